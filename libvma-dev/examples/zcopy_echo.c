/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sends each datagram back from the memory in which the library lends it.
 *
 * usage: zcopy_echo ADDRESS PORT COUNT
 *
 * It ends after so many. Without libvma it works as well, from a buffer of its own.
 * Compile with: cc $(pkg-config --cflags libvma) zcopy_echo.c -o zcopy_echo
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

/* Holds packets, or data that had to be copied. */
static _Alignas(8) char buffer[65536];

static int fail(const char *what)
{
	perror(what);
	return -1;
}

/* One datagram there and back. Returns 1 if it was lent, 0 if it was copied, -1 if it failed. */
static int echo(struct vma_api_t *vma, int fd)
{
	struct sockaddr_in from;
	socklen_t size = sizeof(from);
	int flags = 0;
	ssize_t len;

	if (!vma) {
		len = recvfrom(fd, buffer, sizeof(buffer), 0, (struct sockaddr *)&from, &size);
	} else {
		len = vma->recvfrom_zcopy(fd, buffer, sizeof(buffer), &flags, (struct sockaddr *)&from, &size);
	}
	if (len < 0)
		return fail("zcopy_echo: receive");
	if (!(flags & MSG_VMA_ZCOPY)) {
		if (sendto(fd, buffer, (size_t)len, 0, (struct sockaddr *)&from, size) != len)
			return fail("zcopy_echo: send");
		return 0;
	}
	struct vma_packets_t *packets = (struct vma_packets_t *)buffer;
	struct vma_packet_t *packet = packets->pkts;
	/* UDP: one packet, in one or more fragments, which follow it: packet->iov, in memory that is aligned. */
	struct iovec *fragments = (void *)(packet + 1);
	struct msghdr message = {
		.msg_name = &from,
		.msg_namelen = size,
		.msg_iov = fragments,
		.msg_iovlen = packet->sz_iov,
	};
	ssize_t sent = sendmsg(fd, &message, 0);
	if (vma->free_packets(fd, packet, packets->n_packet_num))
		return fail("zcopy_echo: free_packets");
	return sent == len ? 1 : fail("zcopy_echo: send");
}

int main(int count, char **words)
{
	struct vma_api_t *vma = vma_get_api();
	struct sockaddr_in own = {.sin_family = AF_INET};
	unsigned long lent = 0, copied = 0;
	int fd;

	if (count != 4 || inet_pton(AF_INET, words[1], &own.sin_addr) != 1) {
		fprintf(stderr, "usage: zcopy_echo ADDRESS PORT COUNT\n");
		return 2;
	}
	own.sin_port = htons((uint16_t)atoi(words[2]));
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof(own)))
		return fail("zcopy_echo: bind") != 0;
	puts("ready");
	fflush(stdout);
	while (lent + copied < strtoul(words[3], NULL, 10)) {
		int how = echo(vma, fd);
		if (how < 0)
			return 1;
		lent += how == 1;
		copied += how == 0;
	}
	printf("%lu lent, %lu copied\n", lent, copied);
	close(fd);
	return 0;
}
