/*
 * Packets that the program has are counted: a datagram "h..." is held by the callback, any other is lent and kept. "f..." gives
 * back those that are held, and "c..." closes their socket. After each step the program says so and waits for the next datagram.
 */
#include "extra.h"
#include "view.h"

static struct vma_api_t *vma;
static struct record held[8];
static int held_count;

static vma_recv_callback_retval_t judge(int fd, size_t count, struct iovec iov[], struct vma_info_t *info, void *context)
{
	(void)fd, (void)context;
	CHECK(count == 1);
	if (*(char *)iov[0].iov_base != 'h')
		return VMA_PACKET_RECV;
	held[held_count++] = (struct record){.id = info->packet_id};
	return VMA_PACKET_HOLD;
}

/* The next packet that is lent; its first byte says what to do. */
static struct record next(int fd)
{
	struct view view;
	int flags = 0;
	CHECK(vma->recvfrom_zcopy(fd, &view, sizeof(view), &flags, NULL, NULL) > 0 && (flags & MSG_VMA_ZCOPY));
	return view.packet;
}

int main(void)
{
	struct record of_stream, of_datagrams[2], command;
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000), other = bound(SOCK_DGRAM, "10.99.0.1", 5001);
	int stream = socket(AF_INET, SOCK_STREAM, 0);
	CHECK((vma = vma_get_api()));
	connected(stream, "10.99.0.2", 7000);
	CHECK(vma->register_recv_callback(fd, judge, NULL) == 0);
	printf("datagrams %d stream %d\n", fd, stream);
	say("ready");
	of_stream = next(stream);
	of_datagrams[0] = next(fd);
	of_datagrams[1] = next(fd);
	CHECK(held_count == 3);
	vma->dump_fd_stats(fd, 3);
	say("has all");

	command = next(fd);
	CHECK(*command.bytes == 'f' && vma->free_packets(fd, (struct vma_packet_t *)&command, 1) == 0);
	for (int at = 0; at < held_count; at++)
		CHECK(vma->free_packets(fd, (struct vma_packet_t *)&held[at], 1) == 0);
	CHECK(vma->free_packets(stream, (struct vma_packet_t *)&of_stream, 1) == 0);
	say("freed some");

	command = next(fd);
	CHECK(*command.bytes == 'c' && vma->free_packets(fd, (struct vma_packet_t *)&command, 1) == 0);
	CHECK(close(fd) == 0);
	say("closed");

	command = next(other);
	CHECK(vma->free_packets(other, (struct vma_packet_t *)&command, 1) == 0);
	for (int at = 0; at < 2; at++)
		CHECK(vma->free_packets(fd, (struct vma_packet_t *)&of_datagrams[at], 1) == 0);
	say("freed all");

	command = next(other);
	CHECK(vma->free_packets(other, (struct vma_packet_t *)&command, 1) == 0);
	say("done");
	return 0;
}
