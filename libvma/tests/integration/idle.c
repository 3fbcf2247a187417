/*
 * What calls cost that find nothing, at sockets that are bound to 10.99.0.1 and idle.
 *
 * usage: idle: a line for each call, with nanoseconds: the best of many rows. Of those that wait 5 ms, what it took beyond.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SOCKETS 8
#define ROWS 200
#define CALLS 50

static int sockets[SOCKETS], epoll_fd, highest;
static char room[100];

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static int receives(int milliseconds)
{
	/* SO_RCVTIMEO ends it. */
	return recv(sockets[0], room, sizeof(room), milliseconds ? 0 : MSG_DONTWAIT) == -1;
}

static int reads(int milliseconds)
{
	(void)milliseconds;
	return read(sockets[1], room, sizeof(room)) == -1; /* does not block */
}

static int polls(int milliseconds)
{
	struct pollfd list[SOCKETS];
	for (int at = 0; at < SOCKETS; at++)
		list[at] = (struct pollfd){sockets[at], POLLIN, 0};
	return poll(list, SOCKETS, milliseconds) == 0;
}

static int selects(int milliseconds)
{
	fd_set set;
	FD_ZERO(&set);
	for (int at = 0; at < SOCKETS; at++)
		FD_SET(sockets[at], &set);
	struct timeval time = {0, milliseconds * 1000};
	return select(highest + 1, &set, NULL, NULL, &time) == 0;
}

static int waits(int milliseconds)
{
	struct epoll_event events[SOCKETS];
	return epoll_wait(epoll_fd, events, SOCKETS, milliseconds) == 0;
}

static void measure(const char *name, int (*call)(int), int milliseconds)
{
	double best = 1e18, wanted = milliseconds * 1e6;
	int rows = milliseconds ? 20 : ROWS, calls = milliseconds ? 1 : CALLS;
	for (int row = 0; row < rows; row++) {
		double begin = now();
		for (int at = 0; at < calls; at++)
			if (!call(milliseconds))
				exit(1);
		double took = (now() - begin) / calls - wanted;
		if (took < best)
			best = took;
	}
	printf("%s_%d %.0f\n", name, milliseconds, best);
}

int main(void)
{
	epoll_fd = epoll_create1(0);
	for (int at = 0; at < SOCKETS; at++) {
		sockets[at] = socket(AF_INET, SOCK_DGRAM | (at == 1 ? SOCK_NONBLOCK : 0), 0);
		struct sockaddr_in own = {AF_INET, htons(5000 + at), {inet_addr("10.99.0.1")}, {0}};
		struct timeval time = {0, 5000};
		struct epoll_event event = {.events = EPOLLIN};
		if (bind(sockets[at], (struct sockaddr *)&own, sizeof(own)) != 0 ||
		    setsockopt(sockets[at], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)) != 0 ||
		    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, sockets[at], &event) != 0)
			return 1;
		if (sockets[at] > highest)
			highest = sockets[at];
	}
	measure("recv", receives, 0);
	measure("read", reads, 0);
	measure("poll", polls, 0);
	measure("select", selects, 0);
	measure("epoll", waits, 0);
	measure("recv", receives, 5);
	measure("poll", polls, 5);
	measure("select", selects, 5);
	measure("epoll", waits, 5);
	return 0;
}
