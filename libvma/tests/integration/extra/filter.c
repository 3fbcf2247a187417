/*
 * Receive callbacks. Each packet says in its first byte what becomes of it: d(rop), h(old), everything else r(eceive).
 * The program says on standard output what it waits for; the test sends that.
 *
 * usage: filter datagrams | local | stream | stream6 | shared | threads
 */
#include "extra.h"

#include <stdbool.h>
#include <sys/select.h>

static struct vma_api_t *vma;
static pthread_t main_thread;
static volatile int inside; /* a receive or multiplexing call */
static int seen, fd, other = -1;
static struct {
	void *id;
	char *bytes;
	size_t len;
} held[8];
static int holds;

static vma_recv_callback_retval_t judge(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					void *context)
{
	char *bytes = iov[0].iov_base;
	seen++;
	CHECK(inside && pthread_equal(pthread_self(), main_thread));
	CHECK(s == fd && sz_iov == 1 && context == &seen);
	CHECK(info->struct_sz == sizeof(*info) && info->packet_id);
	CHECK(info->payload_sz == iov[0].iov_len && iov[0].iov_len >= 1);
	CHECK(info->src->sin_family == AF_INET && info->dst->sin_family == AF_INET);
	/* There is no room for an address of IPv6. */
	int domain;
	socklen_t size = sizeof(domain);
	CHECK(getsockopt(s, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0);
	CHECK((info->src->sin_addr.s_addr == 0) == (domain == AF_INET6) && info->src->sin_port);
	/* What the callback does to errno concerns no call of the program. */
	errno = 99;
	switch (bytes[0]) {
	case 'd':
		return VMA_PACKET_DROP;
	case 'h':
		held[holds].id = info->packet_id;
		held[holds].bytes = bytes;
		held[holds++].len = iov[0].iov_len;
		return VMA_PACKET_HOLD;
	case 's': {
		/* Every call of sockets is allowed. */
		char none;
		CHECK(sendto(s, "from inside", 11, 0, (struct sockaddr *)info->src, sizeof(*info->src)) == 11);
		/* What was received before may be there. */
		errno = EAGAIN;
		CHECK(recv(s, &none, 1, MSG_DONTWAIT | MSG_PEEK) == 1 || errno == EAGAIN);
		if (other >= 0) {
			CHECK(close(other) == 0);
			other = -1;
		}
		int fresh = socket(AF_INET, SOCK_DGRAM, 0);
		struct pollfd one = {fresh, POLLIN, 0};
		CHECK(poll(&one, 1, 0) == 0 && close(fresh) == 0);
		return VMA_PACKET_RECV;
	}
	case 'u':
		CHECK(vma->register_recv_callback(s, NULL, NULL) == 0);
		return VMA_PACKET_RECV;
	default:
		return VMA_PACKET_RECV;
	}
}

static int take(char *buffer, int flags)
{
	inside = 1;
	int len = (int)recv(fd, buffer, 64, flags);
	inside = 0;
	return len;
}

static void expect(const char *text)
{
	char buffer[64];
	int len = take(buffer, 0);
	if (len != (int)strlen(text) || memcmp(buffer, text, len)) {
		fprintf(stderr, "%.*s instead of %s\n", len, buffer, text);
		exit(1);
	}
}

/* Multiplexing calls have the callback called, and tell nothing of what it dropped. */
static void drop_in(const char *call)
{
	int before = seen, ready = 0;
	char nothing;
	say(call);
	for (int round = 0; round < 200 && seen == before; round++) {
		inside = 1;
		if (!strcmp(call, "poll")) {
			struct pollfd one = {fd, POLLIN, 0};
			ready = poll(&one, 1, 100);
		} else if (!strcmp(call, "select")) {
			struct timeval wait = {0, 100000};
			fd_set set;
			FD_ZERO(&set);
			FD_SET(fd, &set);
			ready = select(fd + 1, &set, NULL, NULL, &wait);
		} else {
			struct epoll_event event = {.events = EPOLLIN};
			int epoll = epoll_create1(0);
			CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
			ready = epoll_wait(epoll, &event, 1, 100);
			close(epoll);
		}
		inside = 0;
		CHECK(ready == 0);
	}
	CHECK(seen == before + 1);
	errno = 0;
	CHECK(take(&nothing, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

/* And tell of what it leaves to receive calls. */
static void receive_in(const char *call)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};
	int epoll = epoll_create1(0), before = seen, ready;
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	say(call);
	inside = 1;
	ready = epoll_wait(epoll, &event, 1, 10000);
	CHECK(ready == 1 && (event.events & EPOLLIN));
	inside = 0;
	CHECK(seen == before + 1);
	close(epoll);
}

static void give_back(int at, const char *text, int twice)
{
	struct vma_packet_t packet = {.packet_id = held[at].id, .sz_iov = 0};
	CHECK(held[at].len == strlen(text) && !memcmp(held[at].bytes, text, held[at].len));
	CHECK(vma->free_packets(fd, &packet, 1) == 0);
	FAILS(vma->free_packets(fd, &packet, 1), twice);
}

static void held_packets(void)
{
	struct vma_packet_t packet = {.packet_id = held[0].id, .sz_iov = 0};
	int stranger = bound(SOCK_DGRAM, "10.99.0.1", 5005), pair[2];
	CHECK(pipe(pair) == 0);
	FAILS(vma->free_packets(stranger, &packet, 1), ENOENT);
	FAILS(vma->free_packets(pair[0], &packet, 1), EINVAL);
	FAILS(vma->free_packets(-1, &packet, 1), EINVAL);
	FAILS(vma->free_packets(fd, &packet, 1u << 31), ENOENT);
	FAILS(vma->free_packets(fd, NULL, 1), EFAULT);
	packet.packet_id = &packet;
	FAILS(vma->free_packets(fd, &packet, 1), ENOENT);
	CHECK(vma->free_packets(fd, NULL, 0) == 0);
	give_back(0, "h3", ENOENT);
	close(stranger);
	close(pair[0]);
	close(pair[1]);
}

static void refused(void)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	FAILS(vma->register_recv_callback(pair[0], judge, NULL), EINVAL);
	FAILS(vma->register_recv_callback(-1, judge, NULL), EINVAL);
	int given = bound(SOCK_DGRAM, "10.99.0.1", 5004);
	shutdown(given, SHUT_RD);
	FAILS(vma->register_recv_callback(given, judge, NULL), EINVAL);
	close(given);
}

static void datagrams(void)
{
	refused();
	other = bound(SOCK_DGRAM, "10.99.0.1", 5006);
	fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	CHECK(vma->register_recv_callback(fd, judge, &seen) == 0);
	say("first");
	expect("r2");
	expect("s4");
	expect("r5");
	CHECK(seen == 5 && holds == 1 && other == -1);
	held_packets();
	drop_in("poll");
	drop_in("select");
	drop_in("epoll");
	receive_in("edge");
	expect("r6");
	/* Without a callback everything is received. */
	say("unregister");
	expect("u7");
	expect("d8");
	CHECK(seen == 10);
	/* A packet outlives its socket. */
	CHECK(vma->register_recv_callback(fd, judge, &seen) == 0);
	say("outlive");
	expect("r9");
	close(fd);
	/* There is no such socket any more, and no packet of it. */
	give_back(1, "h9", EINVAL);
	say("done");
}

static void local(void)
{
	fd = bound(SOCK_DGRAM, "127.0.0.1", 5000);
	CHECK(vma->register_recv_callback(fd, judge, &seen) == 0);
	say("linked?");
	char buffer[64];
	/* The first datagrams go by the kernel. */
	while (!seen)
		CHECK(take(buffer, 0) > 0);
	seen = 0;
	say("linked");
	for (;;) {
		int len = take(buffer, 0);
		CHECK(len > 0);
		if (!strncmp(buffer, "end", 3))
			break;
		CHECK(buffer[0] == 'w' || !strncmp(buffer, "r2", 2));
	}
	CHECK(holds == 1);
	give_back(0, "h3", ENOENT);
	say("done");
}

static void stream(bool over_ipv6)
{
	char buffer[64];
	fd = socket(over_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
	if (over_ipv6) {
		struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(7000), .sin6_addr = in6addr_loopback};
		CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	} else {
		connected(fd, "10.99.0.2", 7000);
	}
	CHECK(vma->register_recv_callback(fd, judge, &seen) == 0);
	drop_in("poll");
	drop_in("select");
	drop_in("epoll");
	receive_in("edge");
	expect("r1");
	say("hold");
	int before = holds;
	inside = 1;
	struct pollfd one = {fd, POLLIN, 0};
	/* The program is told that it has one. */
	CHECK(poll(&one, 1, 10000) == 1 && holds == before + 1);
	inside = 0;
	give_back(0, "h2", ENOENT);
	say("drop and receive");
	expect("r3");
	/* Behind what waits everything is received. */
	say("wait");
	inside = 1;
	CHECK(poll(&one, 1, 10000) == 1);
	inside = 0;
	int until = seen;
	say("behind");
	usleep(100000);
	int len = 0;
	while (len < 4)
		len += take(buffer + len, 0);
	CHECK(len == 4 && !memcmp(buffer, "r4d5", 4) && seen == until);
	say("end");
	CHECK(take(buffer, 0) == 0);
	say("done");
}

static _Atomic int parts, aside, go;

/* d2 is judged by the main thread, slowly, while the other one is in the middle of its call. */
static vma_recv_callback_retval_t slowly(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					 void *context)
{
	(void)s, (void)sz_iov, (void)info, (void)context;
	if (*(char *)iov[0].iov_base != 'd') {
		parts++;
		return VMA_PACKET_RECV;
	}
	CHECK(pthread_equal(pthread_self(), main_thread));
	go = 1;
	usleep(300000);
	return VMA_PACKET_DROP;
}

/* Keeps the reader until then. */
static vma_recv_callback_retval_t keep_aside(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					     void *context)
{
	(void)s, (void)sz_iov, (void)iov, (void)info, (void)context;
	CHECK(!pthread_equal(pthread_self(), main_thread));
	aside = 1;
	while (!go)
		usleep(1000);
	return VMA_PACKET_DROP;
}

static void *read_four(void *buffer)
{
	CHECK(recv(fd, buffer, 4, MSG_WAITALL) == 4);
	return NULL;
}

static void shared(void)
{
	char buffer[4];
	pthread_t reader;
	struct pollfd one;
	other = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	connected(fd, "10.99.0.2", 7000);
	CHECK(vma->register_recv_callback(fd, slowly, NULL) == 0);
	CHECK(vma->register_recv_callback(other, keep_aside, NULL) == 0);
	CHECK(pthread_create(&reader, NULL, read_four, buffer) == 0);
	say("part");
	while (!parts)
		usleep(1000);
	usleep(100000);
	say("aside");
	while (!aside)
		usleep(1000);
	say("judged");
	one = (struct pollfd){fd, POLLIN, 0};
	while (!go)
		CHECK(poll(&one, 1, 100) == 0);
	say("rest");
	CHECK(pthread_join(reader, NULL) == 0);
	if (memcmp(buffer, "r1r3", 4)) {
		fprintf(stderr, "%.4s instead of r1r3\n", buffer);
		exit(1);
	}
	say("done");
}

#define MANY 20000
#define BATCH 100
static _Atomic int running, received;

/* Packets are numbered; of two the second one is received. */
static vma_recv_callback_retval_t number(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					 void *context)
{
	int own;
	(void)context;
	CHECK(sz_iov == 1 && iov[0].iov_len == sizeof(own));
	memcpy(&own, iov[0].iov_base, sizeof(own));
	/* None is missing, and no other thread judges at the same time. */
	CHECK(running++ == 0 && own == seen);
	seen++;
	if (own % BATCH == BATCH - 1)
		CHECK(sendto(s, &own, sizeof(own), 0, (struct sockaddr *)info->src, sizeof(*info->src)) == sizeof(own));
	running--;
	return own % 2 ? VMA_PACKET_RECV : VMA_PACKET_DROP;
}

static void *receive_all(void *unused)
{
	int own, last = -1;
	struct timeval wait = {1, 0};
	(void)unused;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) == 0);
	while (recv(fd, &own, sizeof(own), 0) == sizeof(own)) {
		CHECK(own % 2 == 1 && own > last);
		last = own;
		received++;
	}
	CHECK(errno == EAGAIN);
	return NULL;
}

static void threads(void)
{
	pthread_t one, two;
	fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	CHECK(vma->register_recv_callback(fd, number, NULL) == 0);
	CHECK(pthread_create(&one, NULL, receive_all, NULL) == 0 && pthread_create(&two, NULL, receive_all, NULL) == 0);
	say("first");
	CHECK(pthread_join(one, NULL) == 0 && pthread_join(two, NULL) == 0);
	CHECK(seen == MANY && received == MANY / 2);
	say("done");
}

int main(int count, char **words)
{
	main_thread = pthread_self();
	vma = vma_get_api();
	CHECK(vma && vma->vma_extra_supported_mask & VMA_EXTRA_API_REGISTER_RECV_CALLBACK);
	CHECK(vma->vma_extra_supported_mask & VMA_EXTRA_API_FREE_PACKETS);
	if (count > 1 && !strcmp(words[1], "datagrams"))
		datagrams();
	else if (count > 1 && !strcmp(words[1], "local"))
		local();
	else if (count > 1 && !strcmp(words[1], "stream"))
		stream(false);
	else if (count > 1 && !strcmp(words[1], "stream6"))
		stream(true);
	else if (count > 1 && !strcmp(words[1], "shared"))
		shared();
	else if (count > 1 && !strcmp(words[1], "threads"))
		threads();
	else
		return 2;
	return 0;
}
