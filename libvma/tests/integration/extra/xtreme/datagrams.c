/*
 * SocketXtreme with UDP.
 *
 * usage: datagrams echo ADDRESS | buffers | mixed | client | refused
 */
#include "ring.h"

/* Sends each packet back, until one says that it is the last. */
static void echoes(const char *host)
{
	int fd = bound(SOCK_DGRAM, host, 5000), ring = ring_of(fd), last = 0;
	say("ready");
	while (!last) {
		struct vma_completion_t some[4];
		int found = vma->socketxtreme_poll(ring, some, 4, 0);
		CHECK(found >= 0);
		for (int at = 0; at < found; at++) {
			CHECK(some[at].events == VMA_SOCKETXTREME_PACKET && some[at].user_data == (uint64_t)fd);
			CHECK(some[at].src.sin_family == AF_INET && some[at].src.sin_port);
			last |= is_packet(&some[at], "last");
			echo(fd, &some[at]);
			free_one(&some[at]);
		}
	}
	nothing(ring);
	say("done");
}

static void buffers(void)
{
	struct vma_packet_desc_t two[2];
	char bytes[65536];
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000), other = bound(SOCK_DGRAM, "10.99.0.1", 5001);
	uint64_t data = 0x1122334455667788, told = 0;
	socklen_t size = sizeof(told);
	int ring = ring_of(fd);
	CHECK(ring == ring_of(other));
	CHECK(setsockopt(other, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof(data)) == 0);
	CHECK(getsockopt(other, SOL_SOCKET, SO_VMA_USER_DATA, &told, &size) == 0 && told == data);
	nothing(ring);
	say("one");
	struct vma_completion_t one = next(ring);
	CHECK(is_packet(&one, "one") && one.user_data == (uint64_t)fd && one.packet.num_bufs == 1);
	CHECK(one.src.sin_addr.s_addr == address("10.99.0.2", 0).sin_addr.s_addr);
	CHECK(one.packet.hw_timestamp.tv_sec == 0 && one.packet.hw_timestamp.tv_nsec == 0);
	/* References. */
	struct vma_buff_t *buffer = one.packet.buff_lst;
	CHECK(vma->socketxtreme_ref_vma_buff(buffer) == 2 && vma->socketxtreme_ref_vma_buff(buffer) == 3);
	free_one(&one);
	CHECK(is_packet(&one, "one"));
	CHECK(vma->socketxtreme_free_vma_buff(buffer) == 1 && is_packet(&one, "one"));
	CHECK(vma->socketxtreme_free_vma_buff(buffer) == 0);
	FAILS(vma->socketxtreme_free_vma_buff(buffer), EINVAL);
	FAILS(vma->socketxtreme_ref_vma_buff(buffer), EINVAL);
	FAILS(vma->socketxtreme_free_vma_packets(&one.packet, 1), EINVAL);
	/* Two packets at once; a second time they are unknown. */
	say("two");
	one = next(ring);
	CHECK(is_packet(&one, "two") && one.user_data == data);
	two[0] = one.packet;
	one = next(ring);
	CHECK(is_packet(&one, "three"));
	two[1] = one.packet;
	CHECK(vma->socketxtreme_free_vma_packets(two, 0) == 0);
	CHECK(vma->socketxtreme_free_vma_packets(two, 2) == 0);
	FAILS(vma->socketxtreme_free_vma_packets(two, 2), EINVAL);
	/* A long one, in two buffers; the second one is kept. */
	say("long");
	one = next(ring);
	CHECK(one.packet.num_bufs == 2 && bytes_of(&one.packet, bytes, sizeof(bytes)) == 60000);
	for (int at = 0; at < 60000; at++)
		CHECK(bytes[at] == (char)(at % 251));
	buffer = one.packet.buff_lst->next;
	size_t behind = one.packet.buff_lst->len;
	CHECK(vma->socketxtreme_ref_vma_buff(buffer) == 2);
	free_one(&one);
	CHECK(!memcmp(buffer->payload, bytes + behind, 60000 - behind));
	CHECK(vma->socketxtreme_free_vma_buff(buffer) == 0);
	/* An empty one. What the program writes to a head is not read. */
	say("empty");
	one = next(ring);
	CHECK(one.packet.num_bufs == 1 && one.packet.total_len == 0);
	memset(one.packet.buff_lst, 0xFF, sizeof(*buffer));
	free_one(&one);
	/* Packets outlive their socket. */
	say("kept");
	one = next(ring);
	CHECK(is_packet(&one, "kept"));
	CHECK(close(fd) == 0);
	CHECK(is_packet(&one, "kept"));
	free_one(&one);
	/* The next socket of the number begins anew. */
	CHECK(bound(SOCK_DGRAM, "10.99.0.1", 5000) == fd);
	say("again");
	one = next(ring);
	CHECK(is_packet(&one, "again") && one.user_data == (uint64_t)fd);
	free_one(&one);
	CHECK(close(other) == 0);
	nothing(ring);
	say("done");
}

/* By the kernel, by the ring, and with ordinary calls in between. */
static void mixed(void)
{
	char bytes[64];
	int fd = bound(SOCK_DGRAM, "0.0.0.0", 5000), sender = socket(AF_INET, SOCK_DGRAM, 0);
	int ring = ring_of(fd);
	struct sockaddr_in own = address("127.0.0.1", 5000);
	CHECK(sendto(sender, "os", 2, 0, (struct sockaddr *)&own, sizeof(own)) == 2);
	struct vma_completion_t one = next(ring);
	CHECK(is_packet(&one, "os") && one.src.sin_addr.s_addr == own.sin_addr.s_addr);
	free_one(&one);
	say("first");
	expect(ring, "first");
	say("recv");
	CHECK(recv(fd, bytes, sizeof(bytes), 0) == 4 && !memcmp(bytes, "recv", 4));
	nothing(ring);
	/* The socket becomes the kernel's: its datagrams still come by the ring. */
	int any = 1;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &any, sizeof(any)) == 0);
	say("kernels");
	expect(ring, "kernels");
	/* Beside an epoll instance of the program, which sees what nobody has taken. */
	struct epoll_event event = {.events = EPOLLIN};
	int instance = epoll_create1(0);
	CHECK(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event) == 0);
	say("epoll");
	CHECK(epoll_wait(instance, &event, 1, 10000) == 1);
	expect(ring, "epoll");
	CHECK(epoll_wait(instance, &event, 1, 0) == 0);
	say("done");
}

/* A client that is bound by its first send. */
static void client(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), ring = ring_of(fd);
	struct sockaddr_in server = address("10.99.0.2", 7000);
	for (int round = 0; round < 100; round++) {
		char text[16];
		int len = snprintf(text, sizeof(text), "round %d", round);
		CHECK(sendto(fd, text, (size_t)len, 0, (struct sockaddr *)&server, sizeof(server)) == len);
		expect(ring, text);
	}
	say("done");
}

static void refused(void)
{
	struct vma_completion_t some[2];
	struct vma_packet_desc_t packet = {0};
	struct vma_buff_t buffer = {0};
	int number = 77, pair[2];
	/* Before any socket. */
	FAILS(vma->socketxtreme_poll(3, some, 1, 0), EBADFD);
	FAILS(vma->socketxtreme_free_vma_packets(&packet, 1), EINVAL);
	CHECK(vma->get_socket_rings_num(3) == 0);
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	FAILS(vma->socketxtreme_poll(fd, some, 1, 0), EBADFD);
	FAILS(vma->get_socket_rings_fds(fd, NULL, 1), EINVAL);
	FAILS(vma->get_socket_rings_fds(fd, &number, 0), EINVAL);
	FAILS(vma->get_socket_rings_fds(fd, &number, -1), EINVAL);
	FAILS(vma->get_socket_rings_fds(fd, (int *)4096, 1), EFAULT);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	CHECK(vma->get_socket_rings_num(pair[0]) == 0 && vma->get_socket_rings_num(-1) == 0);
	CHECK(vma->get_socket_rings_fds(pair[0], &number, 1) == 0 && number == 77);
	int ring = ring_of(fd), instance = epoll_create1(0);
	CHECK(ring_of(fd) == ring && fcntl(ring, F_GETFD) == FD_CLOEXEC);
	for (int other = -1; other < 40; other++)
		if (other != ring)
			FAILS(vma->socketxtreme_poll(other, some, 1, 0), EBADFD);
	FAILS(vma->socketxtreme_poll(instance, some, 1, 0), EBADFD);
	FAILS(vma->socketxtreme_poll(ring, NULL, 1, 0), EINVAL);
	FAILS(vma->socketxtreme_poll(ring, some, 0, 0), EINVAL);
	FAILS(vma->socketxtreme_free_vma_packets(NULL, 1), EINVAL);
	FAILS(vma->socketxtreme_free_vma_packets(&packet, -1), EINVAL);
	FAILS(vma->socketxtreme_free_vma_packets(&packet, 1), EINVAL);
	FAILS(vma->socketxtreme_free_vma_packets((void *)4096, 1), EFAULT);
	packet.buff_lst = &buffer;
	FAILS(vma->socketxtreme_free_vma_packets(&packet, 1), EINVAL);
	FAILS(vma->socketxtreme_ref_vma_buff(NULL), EINVAL);
	FAILS(vma->socketxtreme_free_vma_buff(NULL), EINVAL);
	FAILS(vma->socketxtreme_ref_vma_buff(&buffer), EINVAL);
	FAILS(vma->socketxtreme_free_vma_buff((void *)4096), EINVAL);
	/* Nothing there: entries and errno stay as they are. */
	memset(some, 0x55, sizeof(some));
	errno = 99;
	CHECK(vma->socketxtreme_poll(ring, some, 2, 0) == 0 && errno == 99);
	CHECK(some[0].listen_fd == 0x55555555 && some[1].user_data == 0x5555555555555555);
	/* A packet that finds no entry stays; flags mean nothing; more entries than there are. */
	say("ready");
	double begun = seconds();
	do {
		CHECK(seconds() - begun < 10);
		errno = 0;
		number = vma->socketxtreme_poll(ring, (void *)4096, 1, 0);
	} while (number == 0);
	CHECK(number == -1 && errno == EFAULT);
	CHECK(vma->socketxtreme_poll(ring, some, 1u << 31, -1) == 1 && is_packet(&some[0], "stays"));
	/* In a forked child there is neither the ring nor the packet. */
	int status, child = fork();
	if (child == 0) {
		FAILS(vma->socketxtreme_poll(ring, some, 1, 0), EBADFD);
		FAILS(vma->socketxtreme_free_vma_packets(&some[0].packet, 1), EINVAL);
		CHECK(is_packet(&some[0], "stays"));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	free_one(&some[0]);
	/* The ring is closed as any descriptor; the next one serves the same sockets. */
	CHECK(close(ring) == 0);
	FAILS(vma->socketxtreme_poll(ring, some, 1, 0), EBADFD);
	ring = ring_of(fd);
	say("new ring");
	expect(ring, "new ring");
	say("done");
}

int main(int count, char **words)
{
	uint64_t bits = VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |
			VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF |
			VMA_EXTRA_API_GET_SOCKET_RINGS_NUM | VMA_EXTRA_API_GET_SOCKET_RINGS_FDS;
	CHECK((vma = vma_get_api()) && (vma->vma_extra_supported_mask & bits) == bits);
	if (count > 2 && !strcmp(words[1], "echo"))
		echoes(words[2]);
	else if (count > 1 && !strcmp(words[1], "buffers"))
		buffers();
	else if (count > 1 && !strcmp(words[1], "mixed"))
		mixed();
	else if (count > 1 && !strcmp(words[1], "client"))
		client();
	else if (count > 1 && !strcmp(words[1], "refused"))
		refused();
	else
		return 2;
	return 0;
}
