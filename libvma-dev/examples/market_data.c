/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Receives a multicast feed in a callback: finds gaps, and how long each message took from its arrival to the callback.
 *
 * usage: market_data GROUP PORT INTERFACE-ADDRESS LAST
 *
 * A message begins with its number, 4 bytes in network byte order. The program ends after number LAST. It needs libvma.
 * The messages that begin a burst are kept, and looked at afterwards.
 * Compile with: cc $(pkg-config --cflags libvma) market_data.c -o market_data
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

#define BURST 16
#define MOST_KEPT 1024

struct feed {
	uint32_t next;
	uint32_t messages;
	uint32_t missing;
	uint32_t stamped;
	int64_t longest_ns;
	size_t kept;
	struct {
		void *id;
		const unsigned char *bytes;
	} packets[MOST_KEPT];
};

static int64_t nanoseconds(struct timespec time)
{
	return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static vma_recv_callback_retval_t take(int fd, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
				       void *context)
{
	struct feed *feed = context;
	struct timespec stamp = info->hw_timestamp, now;
	uint32_t number;

	(void)fd;
	if (sz_iov < 1 || iov[0].iov_len < sizeof(number))
		return VMA_PACKET_DROP;
	memcpy(&number, iov[0].iov_base, sizeof(number));
	number = ntohl(number);
	feed->messages++;
	if (number > feed->next)
		feed->missing += number - feed->next;
	feed->next = number + 1;
	/* A device without a clock: the time at which the library had it. */
	if (!nanoseconds(stamp))
		stamp = info->sw_timestamp;
	if (nanoseconds(stamp)) {
		clock_gettime(CLOCK_REALTIME, &now);
		int64_t waited = nanoseconds(now) - nanoseconds(stamp);
		feed->stamped++;
		if (waited > feed->longest_ns)
			feed->longest_ns = waited;
	}
	if (number % BURST || feed->kept == MOST_KEPT)
		return VMA_PACKET_DROP;
	/* `info` and the array `iov` are gone when this returns; the payload is not. */
	feed->packets[feed->kept].id = info->packet_id;
	feed->packets[feed->kept++].bytes = iov[0].iov_base;
	return VMA_PACKET_HOLD;
}

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int count, char **words)
{
	static struct feed feed;
	struct vma_api_t *vma = vma_get_api();
	struct sockaddr_in group = {.sin_family = AF_INET};
	struct ip_mreq join;

	if (count != 5 || inet_pton(AF_INET, words[1], &group.sin_addr) != 1 ||
	    inet_pton(AF_INET, words[3], &join.imr_interface) != 1) {
		fprintf(stderr, "usage: market_data GROUP PORT INTERFACE-ADDRESS LAST\n");
		return 2;
	}
	if (!vma) {
		fprintf(stderr, "market_data: run it as LD_PRELOAD=libvma.so market_data ...\n");
		return 1;
	}
	group.sin_port = htons((uint16_t)atoi(words[2]));
	join.imr_multiaddr = group.sin_addr;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&group, sizeof(group)))
		return fail("market_data: bind");
	if (setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof(join)))
		return fail("market_data: join");
	if (vma->register_recv_callback(fd, take, &feed))
		return fail("market_data: register_recv_callback");
	puts("ready");
	fflush(stdout);
	while (feed.next <= strtoul(words[4], NULL, 10)) {
		struct pollfd one = {.fd = fd, .events = POLLIN};
		char message[2048];
		/* The callback takes all that comes by the library; poll() tells of what it keeps. */
		if (poll(&one, 1, 10) > 0 && recv(fd, message, sizeof(message), MSG_DONTWAIT) >= 0)
			puts("a message came by the kernel");
	}
	printf("%u messages, %u missing, %u stamped\nkept [", feed.messages, feed.missing, feed.stamped);
	for (size_t at = 0; at < feed.kept; at++) {
		struct vma_packet_t packet = {.packet_id = feed.packets[at].id};
		printf("%s%u", at ? ", " : "", feed.packets[at].bytes[3]);
		if (vma->free_packets(fd, &packet, 1))
			return fail("market_data: free_packets");
	}
	printf("]\n");
	fprintf(stderr, "at most %lld ns from arrival to callback\n", (long long)feed.longest_ns);
	close(fd);
	return 0;
}
