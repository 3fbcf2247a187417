/* Connections that live for one request.
 *
 *   churn server ADDRESS PORT FIRST
 *   churn client ADDRESS PORT FIRST AT-ONCE SECONDS
 *
 * The client connects, sends 64 bytes and reads as many. FIRST says which end closes first, `server` (as with
 * HTTP/1.0) or `client`, and so has the connection in TIME-WAIT. The client prints a line for each second:
 * connections, and the longest from connect() to the end in microseconds. It ends with 1 at an error. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS 65536
#define MESSAGE 64

static int instance, client_first;
static double began[DESCRIPTORS];
static char message[MESSAGE];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void watch(int fd, int operation, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.fd = fd};
	if (fd >= DESCRIPTORS || epoll_ctl(instance, operation, fd, &event) != 0)
		die("epoll_ctl");
}

static int server(const struct sockaddr_in *at)
{
	struct epoll_event ready[64];
	int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (const struct sockaddr *)at, sizeof *at) != 0 || listen(listener, 1024) != 0)
		die("listen");
	watch(listener, EPOLL_CTL_ADD, EPOLLIN);
	for (;;) {
		int count = epoll_wait(instance, ready, 64, -1);
		for (int i = 0; i < count; i++) {
			int fd = ready[i].data.fd;
			if (fd == listener) {
				while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
					watch(fd, EPOLL_CTL_ADD, EPOLLIN);
				continue;
			}
			ssize_t got = recv(fd, message, MESSAGE, 0);
			if (got < 0 && errno == EAGAIN)
				continue;
			if (got > 0 && send(fd, message, (size_t)got, MSG_NOSIGNAL) == got && client_first)
				continue;
			close(fd);
		}
	}
}

static void begin(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (fd < 0 || fd >= DESCRIPTORS)
		die("socket");
	began[fd] = now();
	if (connect(fd, (const struct sockaddr *)to, sizeof *to) != 0 && errno != EINPROGRESS)
		die("connect");
	watch(fd, EPOLL_CTL_ADD, EPOLLOUT);
}

static int client(const struct sockaddr_in *to, int at_once, int seconds)
{
	struct epoll_event ready[64];
	long done = 0;
	double longest = 0, second = now();
	for (int i = 0; i < at_once; i++)
		begin(to);
	while (seconds > 0) {
		int count = epoll_wait(instance, ready, 64, 100);
		for (int i = 0; i < count; i++) {
			int fd = ready[i].data.fd;
			if (ready[i].events & EPOLLOUT) {
				int error = 0;
				socklen_t len = sizeof error;
				getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
				if (error || send(fd, message, MESSAGE, MSG_NOSIGNAL) != MESSAGE) {
					errno = error ? error : errno;
					die("send");
				}
				watch(fd, EPOLL_CTL_MOD, EPOLLIN);
				continue;
			}
			ssize_t got = recv(fd, message, MESSAGE, 0);
			if ((got == MESSAGE && !client_first) || (got < 0 && errno == EAGAIN))
				continue;
			if (got != (client_first ? MESSAGE : 0))
				die("recv");
			double taken = now() - began[fd];
			longest = taken > longest ? taken : longest;
			close(fd);
			done++;
			begin(to);
		}
		if (now() >= second + 1) {
			printf("%ld %.0f\n", done, longest * 1e6);
			fflush(stdout);
			done = 0, longest = 0, second += 1, seconds--;
		}
	}
	return 0;
}

int main(int argc, char **words)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	if (argc < 5 || inet_pton(AF_INET, words[2], &address.sin_addr) != 1)
		return fprintf(stderr, "usage: churn server|client ADDRESS PORT server|client [AT-ONCE SECONDS]\n"), 2;
	client_first = strcmp(words[4], "client") == 0;
	address.sin_port = htons((uint16_t)atoi(words[3]));
	instance = epoll_create1(0);
	if (argc == 5 && strcmp(words[1], "server") == 0)
		return server(&address);
	if (argc == 7 && strcmp(words[1], "client") == 0)
		return client(&address, atoi(words[5]), atoi(words[6]));
	return 2;
}
