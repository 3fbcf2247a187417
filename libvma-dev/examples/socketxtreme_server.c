/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An echo server without receive calls: one ring tells of packets, connections and their ends.
 *
 * usage: socketxtreme_server ADDRESS PORT COUNT
 *
 * It ends when so many connections have ended. It needs libvma, and VMA_SOCKETXTREME=1 in the environment.
 * Compile with: cc $(pkg-config --cflags libvma) socketxtreme_server.c -o socketxtreme_server
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

#define BATCH 16

static int fail(const char *what)
{
	perror(what);
	return -1;
}

/* Sends a packet back from the memory in which it came. It is of one or more buffers. */
static int echo(int fd, struct vma_packet_desc_t *packet)
{
	struct vma_buff_t *buffer;

	for (buffer = packet->buff_lst; buffer; buffer = buffer->next) {
		char *at = buffer->payload;
		size_t left = buffer->len;

		/* The connection blocks, so each call sends something. */
		while (left > 0) {
			ssize_t sent = send(fd, at, left, MSG_NOSIGNAL);
			if (sent < 0)
				return fail("socketxtreme_server: send");
			at += sent;
			left -= (size_t)sent;
		}
	}
	return 0;
}

static int serve(struct vma_api_t *vma, int ring, unsigned long ends)
{
	struct vma_completion_t some[BATCH];
	unsigned long packets = 0, connections = 0;

	while (ends > 0) {
		int count = vma->socketxtreme_poll(ring, some, BATCH, 0);

		if (count < 0)
			return fail("socketxtreme_server: socketxtreme_poll");
		for (int at = 0; at < count; at++) {
			int fd = (int)some[at].user_data;

			if (some[at].events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED)
				connections++;
			if (some[at].events & VMA_SOCKETXTREME_PACKET) {
				packets++;
				echo(fd, &some[at].packet);
				if (vma->socketxtreme_free_vma_packets(&some[at].packet, 1))
					return fail("socketxtreme_server: free");
			}
			if (some[at].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
				close(fd);
				ends--;
			}
		}
	}
	printf("%lu connections, %s\n", connections, packets >= connections ? "packets came" : "packets are missing");
	return 0;
}

int main(int count, char **words)
{
	struct vma_api_t *vma = vma_get_api();
	struct sockaddr_in own = {.sin_family = AF_INET};
	int fd, ring = -1;

	if (count != 4 || inet_pton(AF_INET, words[1], &own.sin_addr) != 1) {
		fprintf(stderr, "usage: socketxtreme_server ADDRESS PORT COUNT\n");
		return 2;
	}
	if (!vma || !(vma->vma_extra_supported_mask & VMA_EXTRA_API_SOCKETXTREME_POLL)) {
		fprintf(stderr, "socketxtreme_server: it needs libvma and VMA_SOCKETXTREME=1\n");
		return 1;
	}
	own.sin_port = htons((uint16_t)atoi(words[2]));
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof(own)))
		return fail("socketxtreme_server: bind") != 0;
	/* The ring is there after bind(). */
	if (vma->get_socket_rings_fds(fd, &ring, 1) != 1)
		return fail("socketxtreme_server: no ring") != 0;
	if (listen(fd, SOMAXCONN))
		return fail("socketxtreme_server: listen") != 0;
	puts("ready");
	fflush(stdout);
	if (serve(vma, ring, strtoul(words[3], NULL, 10)))
		return 1;
	close(fd);
	return 0;
}
