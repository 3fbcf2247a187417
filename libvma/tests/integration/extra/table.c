/*
 * The table of the Extra API, and its functions that need no packet.
 *
 * usage: table none | table | rules | threads WISH | dump | refused
 */
#include "extra.h"

#include <dirent.h>
#include <sys/un.h>

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int count = -2; /* . and .. */
	while (readdir(tasks))
		count++;
	closedir(tasks);
	return count;
}

/* One datagram to each socket, whoever carries it. */
static void take(int fd)
{
	char byte;
	CHECK(recv(fd, &byte, 1, 0) == 1);
}

static void *get(void *unused)
{
	(void)unused;
	return vma_get_api();
}

static void table(void)
{
	struct vma_api_t *vma = vma_get_api();
	CHECK(vma && vma == vma_get_api());
	/* It was not started for that. */
	CHECK(threads() == 1);
	void *slots[21];
	CHECK(sizeof(slots) == sizeof(*vma));
	memcpy(slots, vma, sizeof(slots));
	for (int at = 0; at < 21; at++)
		CHECK(slots[at]);
	uint64_t supported = vma->vma_extra_supported_mask;
	CHECK((supported & ~0x377FFFull) == 0);
	CHECK(supported & VMA_EXTRA_API_ADD_CONF_RULE);
	CHECK(supported & VMA_EXTRA_API_THREAD_OFFLOAD);
	CHECK(supported & VMA_EXTRA_API_DUMP_FD_STATS);
	CHECK(!(supported & VMA_EXTRA_API_SOCKETXTREME_POLL));

	/* The handshake, and nothing but it. */
	void *found = NULL;
	socklen_t size = 16;
	CHECK(getsockopt(-1, SOL_SOCKET, 2800, &found, &size) == 0 && found == vma && size == 8);
	size = 7;
	FAILS(getsockopt(-1, SOL_SOCKET, 2800, &found, &size), EBADF);
	size = 8;
	FAILS(getsockopt(-1, SOL_SOCKET, 2800, NULL, &size), EFAULT);
	FAILS(getsockopt(-1, SOL_SOCKET, 2799, &found, &size), EBADF);
	FAILS(getsockopt(-1, IPPROTO_TCP, 2800, &found, &size), EBADF);
	FAILS(getsockopt(-2, SOL_SOCKET, 2800, &found, &size), EBADF);
	FAILS(getsockopt(-1, SOL_SOCKET, 2800, &found, NULL), EBADF);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	FAILS(getsockopt(fd, SOL_SOCKET, 2800, &found, &size), ENOPROTOOPT);

	/* The same in every thread, and after the sockets are gone. */
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, get, NULL) == 0);
	CHECK(pthread_join(thread, &found) == 0 && found == vma);
	close(fd);
	CHECK(vma_get_api() == vma && vma->add_conf_rule("# nothing") == 0);
	say("the table is as published");
}

static void none(void)
{
	CHECK(vma_get_api() == NULL);
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	connected(fd, "10.99.0.2", 7000);
	CHECK(send(fd, "x", 1, 0) == 1);
	take(fd);
	say("without the library");
}

static void rules(void)
{
	struct vma_api_t *vma = vma_get_api();
	CHECK(vma);
	int before = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	errno = 77;
	CHECK(vma->add_conf_rule("use os udp_receiver *:*") == 0);
	CHECK(vma->add_conf_rule("use vma udp_receiver *:5002") == 0);
	CHECK(vma->add_conf_rule("use os udp_receiver 10.99.0.1:what") == 1);
	CHECK(vma->add_conf_rule(NULL) == 1 && errno == 77);
	int kernels = bound(SOCK_DGRAM, "10.99.0.1", 5001);
	int ours = bound(SOCK_DGRAM, "10.99.0.1", 5002);
	say("ready");
	take(before);
	take(kernels);
	take(ours);
	say("all came");
}

static void *make(void *out)
{
	*(int *)out = bound(SOCK_DGRAM, "10.99.0.1", 5001);
	return NULL;
}

/* The wish of this thread: 0, 1 or -. Another thread has none. */
static void wish(const char *mine)
{
	struct vma_api_t *vma = vma_get_api();
	CHECK(vma);
	int early = bound(SOCK_DGRAM, "10.99.0.1", 5002);
	if (*mine != '-')
		CHECK(vma->thread_offload(*mine == '1', pthread_self()) == 0);
	int own = bound(SOCK_DGRAM, "10.99.0.1", 5000), others = -1;
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, make, &others) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	say("ready");
	take(early);
	take(own);
	take(others);
	say("all came");
}

static void dump(void)
{
	struct vma_api_t *vma = vma_get_api();
	CHECK(vma);
	FAILS(vma->dump_fd_stats(0, VLOG_INFO), EINVAL);
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	printf("fd %d\n", fd);
	fprintf(stderr, "one\n");
	CHECK(vma->dump_fd_stats(fd, VLOG_INFO) == 0);
	fprintf(stderr, "too fine\n");
	CHECK(vma->dump_fd_stats(fd, VLOG_DEBUG) == 0);
	fprintf(stderr, "unknown level\n");
	CHECK(vma->dump_fd_stats(fd, 99) == 0);
	fprintf(stderr, "all\n");
	CHECK(vma->dump_fd_stats(0, VLOG_WARNING) == 0);
}

/* ioctl() acts upon no message; those that it does not know are skipped. */
static void control_messages(struct vma_api_t *vma)
{
	struct {
		struct cmsghdr head;
		char data[24];
	} many[2] = {0};
	const size_t one = CMSG_LEN(sizeof(struct vma_cmsg_ioctl_user_alloc_t));
	many[0].head = (struct cmsghdr){.cmsg_len = CMSG_LEN(3), .cmsg_type = 1};
	CHECK(vma->ioctl(NULL, 0) == 0 && vma->ioctl(NULL, 100) == 0);
	CHECK(vma->ioctl(many, 0) == 0 && vma->ioctl(many, CMSG_SPACE(3)) == 0);
	FAILS(vma->ioctl((void *)16, CMSG_SPACE(3)), EFAULT);
	/* The one that is known stands behind another. */
	struct cmsghdr *next = (struct cmsghdr *)((char *)many + CMSG_SPACE(3));
	*next = (struct cmsghdr){.cmsg_len = one, .cmsg_type = CMSG_VMA_IOCTL_USER_ALLOC};
	FAILS(vma->ioctl(many, CMSG_SPACE(3) + CMSG_ALIGN(one)), EOPNOTSUPP);
	next->cmsg_len = one - 1;
	FAILS(vma->ioctl(many, CMSG_SPACE(3) + CMSG_ALIGN(one)), EINVAL);
	/* Lengths that lead nowhere. */
	next->cmsg_len = 0;
	FAILS(vma->ioctl(many, CMSG_SPACE(3) + CMSG_ALIGN(one)), EINVAL);
	next->cmsg_len = 1000;
	FAILS(vma->ioctl(many, CMSG_SPACE(3) + CMSG_ALIGN(one)), EINVAL);
}

/* Values are checked as by the original; there is no such choice here. */
static void ring_options(int fd)
{
	struct vma_ring_alloc_logic_attr logic = {.comp_mask = VMA_RING_ALLOC_MASK_RING_INGRESS};
	struct iovec memory = {&logic, sizeof(logic)};
	socklen_t size = sizeof(logic);
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof(logic) - 1), EINVAL);
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, NULL, sizeof(logic)), EFAULT);
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof(logic)), ENOPROTOOPT);
	FAILS(getsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, &size), ENOPROTOOPT);
	logic.comp_mask = 1 << 4;
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_ALLOC_LOGIC, &logic, sizeof(logic)), EINVAL);
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, sizeof(memory) - 8), EINVAL);
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, sizeof(memory)), ENOPROTOOPT);
	FAILS(setsockopt(-1, SOL_SOCKET, SO_VMA_RING_USER_MEMORY, &memory, sizeof(memory)), EBADF);
}

/* What is not offered says so. */
static void refused(void)
{
	struct vma_api_t *vma = vma_get_api();
	CHECK(vma);
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000), stream = socket(AF_INET, SOCK_STREAM, 0), pair[2], number;
	CHECK(stream >= 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	struct vma_completion_t completion;
	struct vma_packet_desc_t packet;
	struct vma_buff_t buffer;
	uint16_t len = 0;
	uint32_t key;
	struct sockaddr_in to = address("10.99.0.2", 7000);
	struct vma_ring_type_attr ring = {0};
	struct vma_modify_ring_attr change = {0};
	struct vma_mlx_hw_device_data data;
	FAILS(vma->socketxtreme_poll(fd, &completion, 1, 0), EOPNOTSUPP);
	FAILS(vma->socketxtreme_poll(fd, &completion, 1, 0), EOPNOTSUPP);
	FAILS(vma->socketxtreme_free_vma_packets(&packet, 1), EOPNOTSUPP);
	FAILS(vma->socketxtreme_ref_vma_buff(&buffer), EOPNOTSUPP);
	FAILS(vma->socketxtreme_free_vma_buff(&buffer), EOPNOTSUPP);
	/* No socket has a ring with a descriptor. */
	CHECK(vma->get_socket_rings_num(fd) == 0 && vma->get_socket_rings_num(-1) == 0);
	CHECK(vma->get_socket_rings_fds(fd, &number, 1) == 0);
	FAILS(vma->get_socket_rings_fds(fd, NULL, 1), EINVAL);
	FAILS(vma->get_socket_rings_fds(fd, &number, 0), EINVAL);
	struct sockaddr *at = (struct sockaddr *)&to;
	FAILS(vma->get_socket_tx_ring_fd(fd, at, sizeof(to)), ENODATA);
	FAILS(vma->get_socket_tx_ring_fd(stream, at, sizeof(to)), ENOSYS);
	FAILS(vma->get_socket_tx_ring_fd(pair[0], at, sizeof(to)), EINVAL);
	FAILS(vma->get_socket_tx_ring_fd(-1, at, sizeof(to)), EINVAL);
	FAILS(vma->get_socket_tx_ring_fd(fd, NULL, 0), EINVAL);
	FAILS(vma->vma_add_ring_profile(&ring, &number), EOPNOTSUPP);
	FAILS(vma->get_socket_network_header(pair[0], NULL, &len), EINVAL);
	FAILS(vma->get_socket_network_header(fd, NULL, NULL), EINVAL);
	FAILS(vma->get_socket_network_header(fd, NULL, &len), ENOTCONN);
	connected(fd, "10.99.0.2", 7000);
	FAILS(vma->get_socket_network_header(fd, NULL, &len), EOPNOTSUPP);
	FAILS(vma->get_ring_direct_descriptors(0, &data), EOPNOTSUPP);
	FAILS(vma->register_memory_on_ring(0, &data, sizeof(data), &key), EOPNOTSUPP);
	FAILS(vma->register_memory_on_ring(0, NULL, sizeof(data), &key), EINVAL);
	FAILS(vma->register_memory_on_ring(0, &data, 0, &key), EINVAL);
	FAILS(vma->deregister_memory_on_ring(0, &data, sizeof(data)), EOPNOTSUPP);
	FAILS(vma->vma_modify_ring(&change), EOPNOTSUPP);
	control_messages(vma);
	ring_options(fd);
	say("refused");
}

int main(int count, char **words)
{
	const char *what = count > 1 ? words[1] : "";
	if (!strcmp(what, "none"))
		none();
	else if (!strcmp(what, "table"))
		table();
	else if (!strcmp(what, "rules"))
		rules();
	else if (!strcmp(what, "threads"))
		wish(words[2]);
	else if (!strcmp(what, "dump"))
		dump();
	else if (!strcmp(what, "refused"))
		refused();
	else
		return 2;
	return 0;
}
