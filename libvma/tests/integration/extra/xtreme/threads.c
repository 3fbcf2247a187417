/*
 * SocketXtreme with several threads, and what a process has of it in all.
 *
 * usage: threads threads | allocation | counted
 */
#include "ring.h"

#define SOCKETS 4

static int ring, sockets[SOCKETS];
static volatile int over;

/* Answers all that comes on any socket, as three other threads do. */
static void *answers(void *count)
{
	struct vma_completion_t some[3];
	while (!over) {
		int found = vma->socketxtreme_poll(ring, some, 3, 0);
		CHECK(found >= 0);
		for (int at = 0; at < found; at++) {
			CHECK(some[at].events == VMA_SOCKETXTREME_PACKET);
			if (is_packet(&some[at], "over"))
				over = 1;
			else
				echo((int)some[at].user_data, &some[at]);
			free_one(&some[at]);
			++*(long *)count;
		}
	}
	return NULL;
}

static void threads(void)
{
	pthread_t others[3];
	long counts[4] = {0}, all = 0;
	for (int at = 0; at < SOCKETS; at++)
		sockets[at] = bound(SOCK_DGRAM, "10.99.0.1", 5000 + at);
	ring = ring_of(sockets[0]);
	for (int at = 0; at < 3; at++)
		CHECK(pthread_create(&others[at], NULL, answers, &counts[at]) == 0);
	say("ready");
	answers(&counts[3]);
	for (int at = 0; at < 4; at++) {
		CHECK(at == 3 || pthread_join(others[at], NULL) == 0);
		all += counts[at];
	}
	printf("%ld packets\n", all);
	say("done");
}

static void one_round(int fd)
{
	CHECK(send(fd, "round", 5, 0) == 5);
	struct vma_completion_t one = next(ring);
	CHECK(one.events == VMA_SOCKETXTREME_PACKET && one.packet.total_len == 5);
	free_one(&one);
}

/* Allocations of a hundred rounds: the least of some, for the peer and the library's other work have theirs. */
static long least_of_rounds(int fd)
{
	long least = 1 << 30;
	for (int pass = 0; pass < 3; pass++) {
		start_counting();
		for (int round = 0; round < 100; round++)
			one_round(fd);
		long allocations = stop_counting();
		least = allocations < least ? allocations : least;
	}
	return least;
}

static void allocation(void)
{
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000), stream = socket(AF_INET, SOCK_STREAM, 0);
	connected(fd, "10.99.0.2", 7000);
	ring = ring_of(fd);
	long of_datagrams = least_of_rounds(fd), before = resident();
	for (int round = 0; round < 2000; round++)
		one_round(fd);
	/* 2000 packets of 2 KiB would be 1000 pages. */
	CHECK(resident() - before < 200);
	connected(stream, "10.99.0.2", 7000);
	CHECK(next(ring).events == EPOLLOUT);
	printf("%ld and %ld\n", of_datagrams, least_of_rounds(stream));
}

static void counted(void)
{
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	ring = ring_of(fd);
	struct vma_completion_t one, two;
	printf("fd %d\n", fd);
	say("ready");
	one = next(ring);
	two = next(ring);
	CHECK(vma->socketxtreme_ref_vma_buff(two.packet.buff_lst) == 2);
	free_one(&one);
	free_one(&two);
	vma->dump_fd_stats(fd, 3);
	CHECK(vma->socketxtreme_free_vma_buff(two.packet.buff_lst) == 0);
	vma->dump_fd_stats(fd, 3);
	say("done");
}

int main(int count, char **words)
{
	CHECK((vma = vma_get_api()));
	if (count > 1 && !strcmp(words[1], "threads"))
		threads();
	else if (count > 1 && !strcmp(words[1], "allocation"))
		allocation();
	else if (count > 1 && !strcmp(words[1], "counted"))
		counted();
	else
		return 2;
	return 0;
}
