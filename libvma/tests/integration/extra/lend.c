/*
 * recvfrom_zcopy() and free_packets(), and the socket options of the Extra API.
 *
 * usage: lend datagrams | stream | options
 */
#include "extra.h"

static struct vma_api_t *vma;

/* One packet of a call, by hand: the layouts are what is tested. */
struct view {
	size_t count;
	void *id;
	size_t fragments;
	char *bytes;
	size_t len;
};

static int lent(int fd, struct view *view, size_t room, int *flags, struct sockaddr_in *from)
{
	socklen_t size = sizeof(*from);
	memset(view, 0xAA, sizeof(*view));
	int result = vma->recvfrom_zcopy(fd, view, room, flags, (struct sockaddr *)from, from ? &size : NULL);
	CHECK(!from || result <= 0 || size == sizeof(*from) || size == 0);
	return result;
}

static int free_one(int fd, struct view *view)
{
	return vma->free_packets(fd, (struct vma_packet_t *)&view->id, 1);
}

static void datagrams(void)
{
	struct view view, second;
	struct sockaddr_in from;
	char plain[64];
	int flags, fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	say("first");
	flags = 0;
	CHECK(lent(fd, &view, sizeof(view), &flags, &from) == 3 && flags == MSG_VMA_ZCOPY);
	CHECK(view.count == 1 && view.fragments == 1 && view.len == 3 && !memcmp(view.bytes, "one", 3));
	CHECK(from.sin_addr.s_addr == address("10.99.0.2", 0).sin_addr.s_addr && from.sin_port);
	/* Several at a time, given back in any order. */
	flags = MSG_VMA_ZCOPY_FORCE;
	CHECK(lent(fd, &second, sizeof(second), &flags, NULL) == 3);
	CHECK(flags == (MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE));
	CHECK(!memcmp(view.bytes, "one", 3) && !memcmp(second.bytes, "two", 3));
	CHECK(free_one(fd, &view) == 0);
	CHECK(!memcmp(second.bytes, "two", 3));
	FAILS(free_one(fd, &view), ENOENT);
	CHECK(free_one(fd, &second) == 0);
	/* Nothing to receive, and no room: nothing is taken. */
	say("large");
	flags = 0;
	struct pollfd one = {fd, POLLIN, 0};
	CHECK(poll(&one, 1, 10000) == 1);
	FAILS(lent(fd, &view, 23, &flags, NULL), ENOBUFS);
	CHECK(flags == 0);
	FAILS(vma->recvfrom_zcopy(fd, &view, sizeof(view), NULL, NULL, NULL), EFAULT);
	/* A look copies. */
	flags = MSG_PEEK;
	CHECK(vma->recvfrom_zcopy(fd, plain, sizeof(plain), &flags, NULL, NULL) == sizeof(plain));
	CHECK(flags == MSG_PEEK && plain[0] == 'L');
	/* 60000 bytes, in fragments on the wire. */
	flags = 0;
	CHECK(lent(fd, &view, sizeof(view), &flags, NULL) == 60000 && view.len == 60000);
	for (int at = 0; at < 60000; at++)
		CHECK(view.bytes[at] == 'L');
	CHECK(free_one(fd, &view) == 0);
	/* Room for the packet alone: its fragment is left out. */
	say("small room");
	flags = 0;
	CHECK(lent(fd, &view, 24, &flags, NULL) == 0 && flags == MSG_VMA_ZCOPY);
	CHECK(view.count == 1 && view.fragments == 0 && free_one(fd, &view) == 0);
	flags = MSG_DONTWAIT;
	FAILS(lent(fd, &view, sizeof(view), &flags, NULL), EAGAIN);
	CHECK(flags == MSG_DONTWAIT);
	/* What comes by the kernel is copied, or refused and still there. */
	int sender = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in self = address("10.99.0.1", 5000);
	CHECK(sendto(sender, "os", 2, 0, (struct sockaddr *)&self, sizeof(self)) == 2);
	flags = MSG_VMA_ZCOPY_FORCE;
	FAILS(lent(fd, &view, sizeof(view), &flags, NULL), EIO);
	CHECK(flags == MSG_VMA_ZCOPY_FORCE);
	flags = 0;
	CHECK(vma->recvfrom_zcopy(fd, plain, sizeof(plain), &flags, NULL, NULL) == 2 && flags == 0);
	CHECK(!memcmp(plain, "os", 2));
	/* A socket of the kernel's is received from as ever. */
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && write(pair[0], "plain", 5) == 5);
	flags = 0;
	CHECK(vma->recvfrom_zcopy(pair[1], plain, sizeof(plain), &flags, NULL, NULL) == 5 && flags == 0);
	FAILS(free_one(pair[1], &view), EINVAL);
	FAILS(vma->recvfrom_zcopy(-1, plain, sizeof(plain), &flags, NULL, NULL), EBADF);
	/* Mixed with ordinary calls, in order. */
	say("mixed");
	flags = 0;
	CHECK(lent(fd, &view, sizeof(view), &flags, NULL) == 2 && !memcmp(view.bytes, "m1", 2));
	CHECK(recv(fd, plain, sizeof(plain), 0) == 2 && !memcmp(plain, "m2", 2));
	CHECK(lent(fd, &second, sizeof(second), &flags, NULL) == 2 && !memcmp(second.bytes, "m3", 2));
	/* Packets outlive the socket. */
	close(fd);
	CHECK(!memcmp(view.bytes, "m1", 2) && free_one(fd, &view) == 0);
	CHECK(free_one(fd, &second) == 0);
	FAILS(free_one(fd, &second), EINVAL);
	say("done");
}

static void stream(void)
{
	struct view view;
	int flags = 0, fd = socket(AF_INET, SOCK_STREAM, 0);
	long total = 0, before = 0;
	connected(fd, "10.99.0.2", 7000);
	FAILS(lent(fd, &view, 39, &flags, NULL), ENOBUFS);
	say("bulk");
	/* 64 MiB of a pattern, lent and given back. */
	while (total < 64l << 20) {
		flags = 0;
		int len = lent(fd, &view, sizeof(view), &flags, NULL);
		CHECK(len > 0 && flags == MSG_VMA_ZCOPY && view.count == 1 && view.fragments == 1);
		CHECK((size_t)len == view.len);
		for (size_t at = 0; at < view.len; at++)
			CHECK(view.bytes[at] == (char)((total + at) % 251));
		total += len;
		CHECK(free_one(fd, &view) == 0);
		if (!before && total > 4 << 20)
			before = resident();
	}
	/* Nothing is leaked: 60 MiB more have been received since. */
	CHECK(total == 64l << 20 && resident() - before < 2048);
	say("end");
	flags = 0;
	CHECK(lent(fd, &view, sizeof(view), &flags, NULL) == 0 && flags == 0);
	close(fd);
	say("done");
}

static void options(void)
{
	int fd = bound(SOCK_DGRAM, "10.99.0.1", 5000), kernels[2];
	uint64_t data = 0;
	uint32_t tag = 0;
	socklen_t size = sizeof(data);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, &size) == 0);
	CHECK(data == (uint64_t)fd && size == 8);
	data = 0x1122334455667788;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, 8) == 0);
	data = 0;
	CHECK(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, &size) == 0 && data == 0x1122334455667788);
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, 4), EINVAL);
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, NULL, 8), EFAULT);
	size = 4;
	FAILS(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, &size), EINVAL);
	size = sizeof(tag);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, &size) == 0 && tag == (uint32_t)fd + 1);
	tag = 7;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, 4) == 0);
	tag = 0;
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, 4), EINVAL);
	tag = 0xFFFFFFFF;
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, 4), EINVAL);
	FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, 8), EINVAL);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, &size) == 0 && tag == 7);
	FAILS(getsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, NULL, &size), EFAULT);
	FAILS(getsockopt(fd, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, NULL), EFAULT);
	FAILS(getsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &tag, &size), ENOPROTOOPT);
	/* They are the socket's, by whichever number. */
	int copy = dup(fd);
	CHECK(getsockopt(copy, SOL_SOCKET, SO_VMA_FLOW_TAG, &tag, &size) == 0 && tag == 7);
	close(copy);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, kernels) == 0);
	FAILS(setsockopt(kernels[0], SOL_SOCKET, SO_VMA_USER_DATA, &data, 8), ENOPROTOOPT);
	/* The next socket of the number begins anew. */
	close(fd);
	CHECK(bound(SOCK_DGRAM, "10.99.0.1", 5000) == fd);
	size = 8;
	CHECK(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, &size) == 0 && data == (uint64_t)fd);
	/* A stream has them, too. */
	int stream = socket(AF_INET, SOCK_STREAM, 0);
	data = 5;
	CHECK(setsockopt(stream, SOL_SOCKET, SO_VMA_USER_DATA, &data, 8) == 0);
	connected(stream, "10.99.0.2", 7000);
	data = 0;
	CHECK(getsockopt(stream, SOL_SOCKET, SO_VMA_USER_DATA, &data, &size) == 0 && data == 5);
	char byte;
	say("before");
	CHECK(recv(fd, &byte, 1, 0) == 1);
	CHECK(recv(stream, &byte, 1, 0) == 1);
	int any = 1;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &any, sizeof(any)) == 0);
	CHECK(setsockopt(stream, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &any, sizeof(any)) == 0);
	say("after");
	CHECK(recv(fd, &byte, 1, 0) == 1);
	CHECK(recv(stream, &byte, 1, 0) == 1);
	/* The UDP socket still sends past the kernel, also when it has another peer, and still receives by it. */
	for (int port = 7001; port <= 7002; port++) {
		connected(fd, "10.99.0.2", port);
		CHECK(send(fd, "out", 3, 0) == 3);
		CHECK(recv(fd, &byte, 1, 0) == 1);
	}
	say("done");
}

int main(int count, char **words)
{
	vma = vma_get_api();
	CHECK(vma && vma->vma_extra_supported_mask & VMA_EXTRA_API_RECVFROM_ZCOPY);
	if (count > 1 && !strcmp(words[1], "datagrams"))
		datagrams();
	else if (count > 1 && !strcmp(words[1], "stream"))
		stream();
	else if (count > 1 && !strcmp(words[1], "options"))
		options();
	else
		return 2;
	return 0;
}
