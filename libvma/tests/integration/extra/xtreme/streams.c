/*
 * SocketXtreme with TCP.
 *
 * usage: streams server ADDRESS COUNT [DEVICE] | client ADDRESS | together | refused | hoard | full | kernels
 */
#include "ring.h"

#define FIRST_DATA 1000000

static struct vma_completion_t connection(int ring, int listener)
{
	struct vma_completion_t one = next(ring);
	CHECK(one.events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED);
	CHECK(one.listen_fd == listener && one.src.sin_family == AF_INET && one.src.sin_port);
	return one;
}

/* Echoes so many connections to their ends. */
static void server(const char *host, int ends, const char *device)
{
	struct sockaddr_in own = address(host, 5000);
	int fd = socket(AF_INET, SOCK_STREAM, 0), accepted = 0, may_be_kernels = !device;
	CHECK(!device || setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device)) == 0);
	CHECK(bind(fd, (struct sockaddr *)&own, sizeof(own)) == 0);
	/* The ring is there after bind(). */
	int ring = ring_of(fd);
	struct sockaddr_in peers[64];
	/* It blocks, which the ring does not mind. */
	CHECK(listen(fd, 64) == 0);
	say("ready");
	while (ends > 0) {
		struct vma_completion_t one = next(ring);
		if (one.events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) {
			struct sockaddr_in peer;
			socklen_t size = sizeof(peer);
			int child = (int)one.user_data;
			CHECK(one.events == VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED && one.listen_fd == fd);
			CHECK(getpeername(child, (struct sockaddr *)&peer, &size) == 0);
			CHECK(!memcmp(&peer, &one.src, sizeof(peer)));
			uint64_t data = FIRST_DATA + (uint64_t)child;
			CHECK(setsockopt(child, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof(data)) == 0);
			CHECK(child < 64);
			peers[child] = peer;
			accepted++;
			continue;
		}
		CHECK(one.user_data >= FIRST_DATA);
		int child = (int)(one.user_data - FIRST_DATA);
		if (one.events & VMA_SOCKETXTREME_PACKET) {
			CHECK(!memcmp(&one.src, &peers[child], sizeof(one.src)));
			one.src.sin_port = 0;
			echo(child, &one);
			free_one(&one);
		}
		/* Connections of the kernel's tell also that they can be written to as ever. */
		CHECK(!(one.events & EPOLLERR) && (may_be_kernels || !(one.events & EPOLLOUT)));
		if (one.events & (EPOLLRDHUP | EPOLLHUP)) {
			CHECK(close(child) == 0);
			ends--;
		}
	}
	nothing(ring);
	printf("%d accepted\n", accepted);
	say("done");
}

/* Connects without blocking, sends and receives. */
static void client(const char *host)
{
	struct sockaddr_in at = address(host, 7000);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), ring = ring_of(fd);
	nothing(ring);
	FAILS(connect(fd, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	struct vma_completion_t one = next(ring);
	CHECK(one.events == EPOLLOUT && one.user_data == (uint64_t)fd);
	for (int round = 0; round < 100; round++) {
		char text[16];
		size_t len = (size_t)snprintf(text, sizeof(text), "round %d", round);
		CHECK(send(fd, text, len, 0) == (ssize_t)len);
		one = next(ring);
		CHECK(one.events == VMA_SOCKETXTREME_PACKET && is_packet(&one, text));
		CHECK(one.src.sin_port == at.sin_port && one.src.sin_addr.s_addr == at.sin_addr.s_addr);
		free_one(&one);
	}
	/* The peer ends its direction, then this one does, and the connection is over. */
	say("end");
	one = next(ring);
	CHECK(one.events == EPOLLRDHUP);
	nothing(ring);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	one = next(ring);
	CHECK(one.events == EPOLLHUP);
	nothing(ring);
	close(fd);
	say("done");
}

/* The connection is there and has bytes before the program looks. */
static void together(void)
{
	struct sockaddr_in at = address("10.99.0.2", 7000);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), ring = ring_of(fd);
	FAILS(connect(fd, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	struct pollfd one_fd = {fd, POLLIN, 0};
	CHECK(poll(&one_fd, 1, 10000) == 1);
	struct vma_completion_t one = next(ring);
	CHECK(one.events == (VMA_SOCKETXTREME_PACKET | EPOLLOUT) && is_packet(&one, "welcome"));
	free_one(&one);
	nothing(ring);
	say("done");
}

/* Connections that fail, at once and later. */
static void refused(void)
{
	struct sockaddr_in at = address("10.99.0.2", 7001);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), ring = ring_of(fd), error = 0;
	socklen_t size = sizeof(error);
	FAILS(connect(fd, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	struct vma_completion_t one = next(ring);
	CHECK(one.events & EPOLLERR && one.events & EPOLLHUP && !(one.events & EPOLLOUT));
	CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ECONNREFUSED);
	nothing(ring);
	/* The same socket again (the kernel, too, says first that the former try is over), to a server that resets the connection. */
	at.sin_port = htons(7000);
	FAILS(connect(fd, (struct sockaddr *)&at, sizeof(at)), ECONNABORTED);
	FAILS(connect(fd, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	one = next(ring);
	CHECK(one.events == EPOLLOUT && one.user_data == (uint64_t)fd);
	say("reset");
	one = next(ring);
	CHECK(one.events & EPOLLERR && one.events & EPOLLHUP && !(one.events & VMA_SOCKETXTREME_PACKET));
	CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ECONNRESET);
	nothing(ring);
	close(fd);
	say("done");
}

/* Keeps what comes until there is no more; then frees it, and the rest comes. */
static void hoard(void)
{
	static struct vma_packet_desc_t kept[65536];
	int fd = bound(SOCK_STREAM, "10.99.0.1", 5000), ring = ring_of(fd), count = 0;
	CHECK(listen(fd, 5) == 0);
	say("ready");
	connection(ring, fd);
	long total = 0, at_most = 0;
	double quiet = seconds();
	/* The peer sends 64 MiB as fast as it can. */
	while (seconds() - quiet < 1) {
		struct vma_completion_t one;
		if (vma->socketxtreme_poll(ring, &one, 1, 0) == 0)
			continue;
		CHECK(one.events == VMA_SOCKETXTREME_PACKET && count < 65536);
		kept[count++] = one.packet;
		at_most += one.packet.total_len;
		quiet = seconds();
	}
	CHECK(at_most > 0 && at_most <= 4 << 20);
	say("stopped");
	for (int at = 0; at < count; at++)
		for (struct vma_buff_t *part = kept[at].buff_lst; part; part = part->next)
			for (int byte = 0; byte < part->len; byte++)
				CHECK(((char *)part->payload)[byte] == (char)(total++ % 251));
	CHECK(vma->socketxtreme_free_vma_packets(kept, count) == 0);
	struct vma_completion_t one;
	do {
		one = next(ring);
		if (one.events & VMA_SOCKETXTREME_PACKET) {
			for (struct vma_buff_t *part = one.packet.buff_lst; part; part = part->next)
				for (int byte = 0; byte < part->len; byte++)
					CHECK(((char *)part->payload)[byte] == (char)(total++ % 251));
			free_one(&one);
		}
	} while (!(one.events & EPOLLRDHUP));
	CHECK(total == 64l << 20);
	say("done");
}

/* Sends until there is no room, and again when there is. */
static void full(void)
{
	static char bytes[1 << 16];
	int fd = bound(SOCK_STREAM, "10.99.0.1", 5000), ring = ring_of(fd);
	long total = 0;
	ssize_t sent;
	CHECK(listen(fd, 5) == 0);
	say("ready");
	int child = (int)connection(ring, fd).user_data;
	for (int round = 0; round < 3; round++) {
		struct vma_completion_t one = {.events = EPOLLOUT};
		/* The peer's receive buffer takes some more for a while. */
		for (double quiet = seconds(); seconds() - quiet < 0.3;) {
			if (one.events == EPOLLOUT) {
				while ((sent = send(child, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
					total += sent;
				CHECK(sent == -1 && errno == EAGAIN);
				quiet = seconds();
			}
			one.events = 0;
			CHECK(vma->socketxtreme_poll(ring, &one, 1, 0) >= 0);
			CHECK(one.events == 0 || one.events == EPOLLOUT);
		}
		printf("sent %ld\n", total);
		say("full");
		one = next(ring);
		CHECK(one.events == EPOLLOUT && one.user_data == (uint64_t)child);
	}
	close(child);
	say("done");
}

/* Connections of the kernel's tell also that they can be written to as ever. */
static struct vma_completion_t next_but_room(int ring)
{
	struct vma_completion_t one;
	do {
		one = next(ring);
	} while (one.events == EPOLLOUT);
	return one;
}

/* A connection and its listener become the kernel's. */
static void kernels(void)
{
	int fd = bound(SOCK_STREAM, "10.99.0.1", 5000), ring = ring_of(fd), any = 1;
	CHECK(listen(fd, 5) == 0);
	say("ready");
	int child = (int)connection(ring, fd).user_data;
	struct vma_completion_t one = next_but_room(ring);
	CHECK(is_packet(&one, "ours"));
	free_one(&one);
	CHECK(setsockopt(child, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &any, sizeof(any)) == 0);
	say("leaves");
	one = next_but_room(ring);
	CHECK(is_packet(&one, "kernels"));
	free_one(&one);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &any, sizeof(any)) == 0);
	say("again");
	one = next_but_room(ring);
	CHECK(one.events & EPOLLRDHUP && one.user_data == (uint64_t)child);
	one = connection(ring, fd);
	CHECK((int)one.user_data != child);
	one = next_but_room(ring);
	CHECK(is_packet(&one, "again"));
	free_one(&one);
	say("done");
}

int main(int count, char **words)
{
	CHECK((vma = vma_get_api()));
	if (count > 3 && !strcmp(words[1], "server"))
		server(words[2], atoi(words[3]), words[4]);
	else if (count > 2 && !strcmp(words[1], "client"))
		client(words[2]);
	else if (count > 1 && !strcmp(words[1], "together"))
		together();
	else if (count > 1 && !strcmp(words[1], "refused"))
		refused();
	else if (count > 1 && !strcmp(words[1], "hoard"))
		hoard();
	else if (count > 1 && !strcmp(words[1], "full"))
		full();
	else if (count > 1 && !strcmp(words[1], "kernels"))
		kernels();
	else
		return 2;
	return 0;
}
