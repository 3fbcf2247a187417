/* Functions of all the programs of SocketXtreme. */
#include "extra.h"
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

static struct vma_api_t *vma;

static inline double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline int ring_of(int fd)
{
	int ring = -1;
	CHECK(vma->get_socket_rings_num(fd) == 1);
	CHECK(vma->get_socket_rings_fds(fd, &ring, 1) == 1 && ring >= 0);
	return ring;
}

/* The next completion. */
static inline struct vma_completion_t next(int ring)
{
	struct vma_completion_t one;
	double begun = seconds();
	int found;
	memset(&one, 0xAA, sizeof(one));
	while ((found = vma->socketxtreme_poll(ring, &one, 1, 0)) == 0)
		CHECK(seconds() - begun < 10);
	CHECK(found == 1 && one.events);
	return one;
}

/* There is none. The peer has sent nothing, so no look can be too early. */
static inline void nothing(int ring)
{
	struct vma_completion_t one;
	for (int look = 0; look < 200; look++)
		CHECK(vma->socketxtreme_poll(ring, &one, 1, 0) == 0);
}

/* Copies a packet out, and checks that the list is what the descriptor says. */
static inline size_t bytes_of(struct vma_packet_desc_t *packet, char *to, size_t room)
{
	size_t total = 0, buffers = 0;
	for (struct vma_buff_t *part = packet->buff_lst; part; part = part->next) {
		CHECK(total + part->len <= room);
		memcpy(to + total, part->payload, part->len);
		total += part->len;
		buffers++;
	}
	CHECK(total == packet->total_len && buffers == packet->num_bufs && buffers > 0);
	return total;
}

static inline int is_packet(struct vma_completion_t *one, const char *text)
{
	char bytes[65536];
	CHECK(one->events & VMA_SOCKETXTREME_PACKET);
	size_t len = bytes_of(&one->packet, bytes, sizeof(bytes));
	return len == strlen(text) && !memcmp(bytes, text, len);
}

static inline void free_one(struct vma_completion_t *one)
{
	CHECK(vma->socketxtreme_free_vma_packets(&one->packet, 1) == 0);
}

/* The next completion is this packet. */
static inline void expect(int ring, const char *text)
{
	struct vma_completion_t one = next(ring);
	if (one.events != VMA_SOCKETXTREME_PACKET)
		fprintf(stderr, "events %#llx instead of a packet\n", (unsigned long long)one.events);
	CHECK(one.events == VMA_SOCKETXTREME_PACKET && is_packet(&one, text));
	free_one(&one);
}

/* Sends a packet back from the memory in which it came. */
static inline void echo(int fd, struct vma_completion_t *one)
{
	struct iovec parts[2];
	struct msghdr message = {.msg_iov = parts};
	if (one->src.sin_port && one->listen_fd == 0) {
		message.msg_name = &one->src;
		message.msg_namelen = sizeof(one->src);
	}
	for (struct vma_buff_t *part = one->packet.buff_lst; part; part = part->next) {
		CHECK(message.msg_iovlen < 2);
		parts[message.msg_iovlen++] = (struct iovec){part->payload, part->len};
	}
	CHECK(sendmsg(fd, &message, 0) == one->packet.total_len);
}
