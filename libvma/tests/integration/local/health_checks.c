/* One question by each UDP socket, as dnsdist checks its servers: the socket is connected, sends, is added to a new epoll
 * instance, waited for, and taken out of the instance, or the instance closed, before the answer is read.
 *
 *   health_checks PORT COUNT
 *
 * The answering process is a child. Says "all COUNT answered", or which questions had no answer after epoll_wait()
 * had reported one. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in server = {AF_INET, 0, {0}, {0}};

static void answer(int fd)
{
	char data[64];
	for (;;) {
		struct sockaddr_in from;
		socklen_t len = sizeof from;
		ssize_t got = recvfrom(fd, data, sizeof data, 0, (void *)&from, &len);
		if (got > 0)
			sendto(fd, data, got, 0, (void *)&from, len);
	}
}

/* The answer's number, or why there is none. */
static long check(int number)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), instance = epoll_create1(0), waiting = 0;
	struct epoll_event event = {EPOLLIN, {0}};
	long got = -1;
	if (connect(fd, (void *)&server, sizeof server) || send(fd, &number, sizeof number, 0) < 0)
		return -errno;
	epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
	if (epoll_wait(instance, &event, 1, 2000) != 1)
		return -ETIMEDOUT;
	if (number % 3 == 0)
		close(instance);
	else
		epoll_ctl(instance, EPOLL_CTL_DEL, fd, NULL);
	if (number % 2)
		ioctl(fd, FIONREAD, &waiting);
	if (number % 2 && waiting != sizeof number)
		got = -ENODATA;
	else if (recv(fd, &waiting, sizeof waiting, 0) != sizeof waiting)
		got = -errno;
	else
		got = waiting;
	close(fd);
	if (number % 3)
		close(instance);
	return got;
}

int main(int argc, char **argv)
{
	int count = atoi(argv[2]), bad = 0;
	server.sin_port = htons(atoi(argv[1])), server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	(void)argc;
	pid_t child = fork();
	if (child == 0) {
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		if (bind(fd, (void *)&server, sizeof server))
			_exit(1);
		answer(fd);
	}
	/* Until it is there. */
	while (check(0) < 0)
		nanosleep(&(struct timespec){0, 10000000}, NULL);
	for (int number = 1; number <= count; number++) {
		long got = check(number);
		if (got != number)
			bad++, printf("question %d: %s\n", number, got < 0 ? strerror(-got) : "another answer");
		/* Sockets that follow each other in less than 10 ms are the kernel's. */
		nanosleep(&(struct timespec){0, 12000000}, NULL);
	}
	if (!bad)
		printf("all %d answered\n", count);
	kill(child, SIGKILL);
}
