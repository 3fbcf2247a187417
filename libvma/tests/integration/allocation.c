// Counts what the calling thread allocates during socket calls; after allocations.h.
//
// usage: allocation <own ip> <peer ip> <rounds>     with an echo server on the peer, port 5000
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int fd, epfd;
static struct sockaddr_in peer;
static char buffer[2048];

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void wait_readable(int way)
{
	struct pollfd one = {.fd = fd, .events = POLLIN};
	struct epoll_event event;
	if (way == 1 && poll(&one, 1, 5000) != 1)
		fail("poll");
	if (way == 2 && epoll_wait(epfd, &event, 1, 5000) != 1)
		fail("epoll_wait");
}

// One request and its answer, by one of several pairs of calls.
static void round_trip(int n)
{
	struct iovec part = {.iov_base = buffer, .iov_len = 64};
	struct msghdr message = {.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &part, .msg_iovlen = 1};
	struct mmsghdr many = {.msg_hdr = message};

	switch (n % 3) {
	case 0:
		if (sendto(fd, buffer, 64, 0, (void *)&peer, sizeof peer) != 64)
			fail("sendto");
		break;
	case 1:
		if (sendmsg(fd, &message, 0) != 64)
			fail("sendmsg");
		break;
	default:
		if (sendmmsg(fd, &many, 1, 0) != 1)
			fail("sendmmsg");
	}
	wait_readable(n / 3 % 3);
	part.iov_len = sizeof buffer;
	message.msg_name = NULL;
	message.msg_namelen = 0;
	many.msg_hdr = message;
	switch (n / 9 % 3) {
	case 0:
		if (recvfrom(fd, buffer, sizeof buffer, 0, NULL, NULL) != 64)
			fail("recvfrom");
		break;
	case 1:
		if (recvmsg(fd, &message, 0) != 64)
			fail("recvmsg");
		break;
	default:
		if (recvmmsg(fd, &many, 1, 0, NULL) != 1)
			fail("recvmmsg");
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(5001)};
	struct epoll_event event = {.events = EPOLLIN};
	int rounds = atoi(argv[3]), batch, n;
	long least = 1000000;

	(void)argc;
	peer = own;
	peer.sin_port = htons(5000);
	inet_aton(argv[1], &own.sin_addr);
	inet_aton(argv[2], &peer.sin_addr);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (bind(fd, (void *)&own, sizeof own))
		fail("bind");
	epfd = epoll_create1(0);
	if (epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event))
		fail("epoll_ctl");
	for (n = 0; n < 540; n++) // queues and tables reach their size
		round_trip(n);
	// A change of routes or links (the carrier, up to a second late) makes one send ask the
	// kernel again, which allocates: the least of some batches is what calls cost.
	for (batch = 0; batch < 4; batch++) {
		start_counting();
		for (n = 0; n < rounds / 4; n++)
			round_trip(n);
		long allocations = stop_counting();
		if (allocations < least)
			least = allocations;
	}
	printf("allocations %ld\n", least);
	close(fd);
	return 0;
}
