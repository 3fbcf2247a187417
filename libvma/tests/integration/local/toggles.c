/* Connections that become the kernel's while their epoll registrations change all the time.
 *
 *   toggles serve PORT COUNT      a child answers each of so many connections
 *   toggles call PORT COUNT       registers, changes and takes back; each call must succeed */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in address = {.sin_family = AF_INET};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static void serve(int count)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 16) != 0)
		fail("listen");
	while (count-- > 0) {
		char word[4];
		int fd = accept(listener, NULL, NULL);
		/* By the library of both ends. */
		if (recv(fd, word, 4, 0) != 4 || send(fd, "here", 4, 0) != 4 || recv(fd, word, 4, 0) != 4)
			fail("word");
		if (fork() == 0) {
			/* Sharing the connection makes it the kernel's. */
			send(fd, "child", 5, 0);
			while (recv(fd, word, 4, 0) > 0)
				;
			_exit(0);
		}
		close(fd);
		wait(NULL);
	}
}

static void change(int epoll, int operation, int fd, const char *what)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
	if (epoll_ctl(epoll, operation, fd, &event) != 0)
		fail(what);
}

static void call(int count)
{
	int epoll = epoll_create1(0);
	while (count-- > 0) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		char word[8];
		double end = 0;
		if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
			fail("connect");
		if (send(fd, "word", 4, 0) != 4 || recv(fd, word, 4, 0) != 4 || send(fd, "word", 4, 0) != 4)
			fail("word");
		/* It becomes the kernel's soon after the child's bytes. */
		while (end == 0 || now() < end) {
			change(epoll, EPOLL_CTL_ADD, fd, "EPOLL_CTL_ADD");
			change(epoll, EPOLL_CTL_MOD, fd, "EPOLL_CTL_MOD");
			change(epoll, EPOLL_CTL_DEL, fd, "EPOLL_CTL_DEL");
			if (end == 0 && recv(fd, word, 5, MSG_DONTWAIT) == 5)
				end = now() + 0.1;
		}
		close(fd);
	}
	puts("done");
}

int main(int count, char **words)
{
	(void)count;
	address.sin_port = htons(atoi(words[2]));
	inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
	if (strcmp(words[1], "serve") == 0)
		serve(atoi(words[3]));
	else
		call(atoi(words[3]));
	return 0;
}
