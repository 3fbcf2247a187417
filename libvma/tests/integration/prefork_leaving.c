/* A server that ceases to accept while connections wait, which others, or itself by another way, accept.
 *
 *   leaving server ADDRESS exit|_exit|close   the only worker leaves, and is followed by another one
 *   leaving server ADDRESS watched            another worker waits beside it already
 *   leaving server ADDRESS ahead|polled       a child accepts what came before the fork to the parent, which has not waited for
 *                                             connections, or has
 *   leaving server ADDRESS exec|owner         another program accepts with the same listener; fcntl(F_SETOWN)
 *   leaving client ADDRESS
 *
 * The client prints "answered N": so many of its connections got back what they sent. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENTS = 16, PORT = 7000, MOST = 210000 };
static struct sockaddr_storage address;
static socklen_t address_len;

/* An address of IPv6 is a server's on `::`. */
static void name(const char *text, int is_server)
{
	if (strchr(text, ':') == NULL) {
		struct sockaddr_in *four = (struct sockaddr_in *)&address;
		four->sin_family = AF_INET;
		four->sin_port = htons(PORT);
		inet_pton(AF_INET, text, &four->sin_addr);
		address_len = sizeof *four;
		return;
	}
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&address;
	six->sin6_family = AF_INET6;
	six->sin6_port = htons(PORT);
	if (!is_server)
		inet_pton(AF_INET6, text, &six->sin6_addr);
	address_len = sizeof *six;
}

static _Atomic int answered;

/* Client number i sends so many bytes at once, the last ones more than a first window holds. */
static size_t request(size_t i)
{
	return i * i * 900 + 1;
}

/* Every third one says that it sends no more, the others by the byte at the end. */
static int ends(size_t i)
{
	return i % 3 == 0;
}

static void serve(int fd)
{
	static char bytes[MOST];
	size_t len = 0;
	for (;;) {
		ssize_t got = recv(fd, bytes + len, sizeof bytes - len, 0);
		if (got < 0)
			perror("recv"), exit(1);
		if (got == 0)
			break;
		len += (size_t)got;
		if (bytes[len - 1] == '.')
			break;
	}
	for (size_t sent = 0; sent < len;) {
		ssize_t now = send(fd, bytes + sent, len - sent, MSG_NOSIGNAL);
		if (now <= 0)
			perror("send"), exit(1);
		sent += (size_t)now;
	}
	close(fd);
}

static int accept_one(int listener)
{
	struct pollfd one = {listener, POLLIN, 0};
	if (poll(&one, 1, 3000) != 1)
		return -1;
	return accept(listener, NULL, NULL);
}

static void first(int listener, const char *how)
{
	struct pollfd one = {listener, POLLIN, 0};
	/* The interface is attached when this returns. */
	poll(&one, 1, 0);
	kill(getppid(), SIGUSR1);
	poll(&one, 1, -1);
	/* All others come meanwhile. */
	usleep(300000);
	serve(accept_one(listener));
	if (strcmp(how, "watched") == 0) {
		kill(getppid(), SIGUSR1);
		usleep(600000);
	}
	if (strcmp(how, "exit") == 0 || strcmp(how, "watched") == 0)
		exit(0);
	if (strcmp(how, "_exit") == 0)
		_exit(0);
	close(listener);
	kill(getppid(), SIGUSR1);
	pause();
}

static int serve_all(int listener, int count)
{
	for (int i = 0; i < count; i++) {
		int fd = accept_one(listener);
		if (fd < 0)
			return perror("accept"), 1;
		serve(fd);
	}
	return 0;
}

static int end_of(pid_t child)
{
	int status;
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* All clients connect to this process, which then goes on in another way. */
static int changes(int listener, const char *how)
{
	struct pollfd one = {listener, POLLIN, 0};
	/* The interface is attached meanwhile. */
	if (strcmp(how, "ahead") == 0)
		usleep(300000);
	else
		poll(&one, 1, 300);
	puts("listening");
	fflush(stdout);
	if (strcmp(how, "ahead") != 0)
		poll(&one, 1, -1);
	usleep(500000);
	if (strcmp(how, "owner") == 0) {
		fcntl(listener, F_SETOWN, getpid());
		return serve_all(listener, CLIENTS);
	}
	if (strcmp(how, "exec") == 0) {
		char number[12];
		snprintf(number, sizeof number, "%d", listener);
		execl("/proc/self/exe", "leaving", "accept", number, NULL);
		return perror("exec"), 1;
	}
	pid_t child = fork();
	if (child == 0)
		exit(serve_all(listener, CLIENTS));
	return end_of(child);
}

static int server(const char *how)
{
	int one = 1, listener = socket(address.ss_family, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&address, address_len) != 0 || listen(listener, 128) != 0)
		return perror("listen"), 1;
	if (strchr("apo", how[0]) != NULL || strcmp(how, "exec") == 0)
		return changes(listener, how);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	pid_t worker = fork();
	if (worker == 0) {
		sigprocmask(SIG_UNBLOCK, &set, NULL);
		first(listener, how);
	}
	int signal;
	sigwait(&set, &signal);
	puts("listening");
	fflush(stdout);
	sigwait(&set, &signal);
	pid_t next = fork();
	if (next == 0)
		exit(serve_all(listener, CLIENTS - 1));
	int status = end_of(next);
	if (strcmp(how, "close") == 0)
		kill(worker, SIGKILL);
	return end_of(worker) == 0 || strcmp(how, "close") == 0 ? status : 1;
}

static void *client(void *argument)
{
	static const struct timeval patience = {10, 0};
	size_t i = (size_t)argument, len = request(i), got = 0;
	char *bytes = malloc(2 * MOST);
	for (size_t at = 0; at < len; at++)
		bytes[at] = (char)('a' + (at * 7 + i) % 26);
	if (!ends(i))
		bytes[len - 1] = '.';
	int fd = socket(address.ss_family, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	if (connect(fd, (struct sockaddr *)&address, address_len) != 0)
		return perror("connect"), NULL;
	if (send(fd, bytes, len, MSG_NOSIGNAL) != (ssize_t)len)
		return perror("send"), NULL;
	if (ends(i))
		shutdown(fd, SHUT_WR);
	for (;;) {
		ssize_t now = recv(fd, bytes + MOST + got, MOST - got, 0);
		if (now < 0)
			return perror("recv"), NULL;
		if (now == 0)
			break;
		got += (size_t)now;
	}
	if (got == len && memcmp(bytes, bytes + MOST, len) == 0)
		answered++;
	else
		fprintf(stderr, "client %zu: %zu of %zu bytes, or others\n", i, got, len);
	return NULL;
}

int main(int argc, char **words)
{
	if (argc < 3)
		return 2;
	if (strcmp(words[1], "accept") == 0)
		return serve_all(atoi(words[2]), CLIENTS);
	name(words[2], strcmp(words[1], "server") == 0);
	if (strcmp(words[1], "server") == 0)
		return server(words[3]);
	pthread_t threads[CLIENTS];
	for (size_t i = 0; i < CLIENTS; i++)
		pthread_create(&threads[i], NULL, client, (void *)i);
	for (int i = 0; i < CLIENTS; i++)
		pthread_join(threads[i], NULL);
	printf("answered %d\n", answered);
	return 0;
}
