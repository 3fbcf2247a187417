/*
 * Packets that the program has, and what becomes of them and of its calls in unusual moments. The program says on standard
 * output what it waits for; the test sends that.
 *
 * usage: held reuse | force | fork | cancel | many | inside | departs HOST | early | ready | allocation
 */
#include "extra.h"
#include "view.h"

#include <sys/select.h>
#include <sys/wait.h>

static struct vma_api_t *vma;
static int fd, seen;

static int lent(int s, struct view *view, int flags)
{
	int len = vma->recvfrom_zcopy(s, view, sizeof(*view), &flags, NULL, NULL);
	CHECK(len <= 0 || (flags & MSG_VMA_ZCOPY));
	return len;
}

static int give_back(int s, void *records, int count)
{
	return vma->free_packets(s, records, count);
}

static int is(const struct view *view, const char *text)
{
	return view->packet.len == strlen(text) && !memcmp(view->packet.bytes, text, strlen(text));
}

/* Packets of a socket that is no more, whose number another one has. */
static void reuse(void)
{
	struct view view;
	struct record both[2];
	fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	say("datagram");
	CHECK(lent(fd, &view, 0) == 3 && is(&view, "one"));
	close(fd);
	CHECK(bound(SOCK_DGRAM, "10.99.0.1", 5000) == fd && is(&view, "one"));
	CHECK(give_back(fd, &view.packet, 1) == 0);
	FAILS(give_back(fd, &view.packet, 1), ENOENT);
	/* Of a stream each record is followed by its fragments, also when the socket is gone. */
	int stream = socket(AF_INET, SOCK_STREAM, 0);
	connected(stream, "10.99.0.2", 7000);
	for (int at = 0; at < 2; at++) {
		say(at ? "second" : "first");
		CHECK(lent(stream, &view, 0) == 1);
		both[at] = view.packet;
	}
	close(stream);
	CHECK(*both[0].bytes == 'a' && *both[1].bytes == 'b');
	CHECK(give_back(stream, both, 2) == 0);
	FAILS(give_back(stream, both, 1), EINVAL);
	say("done");
}

/* A socket that the kernel serves. */
static void force(void)
{
	char plain[64];
	CHECK(vma->add_conf_rule("use os udp_receiver *:5001") == 0);
	int kernels = bound(SOCK_DGRAM, "10.99.0.1", 5001), flags;
	struct sockaddr_in self = address("10.99.0.1", 5001);
	flags = MSG_VMA_ZCOPY_FORCE | MSG_DONTWAIT;
	FAILS(vma->recvfrom_zcopy(kernels, plain, sizeof(plain), &flags, NULL, NULL), EAGAIN);
	CHECK(sendto(kernels, "os", 2, 0, (struct sockaddr *)&self, sizeof(self)) == 2);
	flags = MSG_VMA_ZCOPY_FORCE;
	FAILS(vma->recvfrom_zcopy(kernels, plain, sizeof(plain), &flags, NULL, NULL), EIO);
	CHECK(flags == MSG_VMA_ZCOPY_FORCE);
	flags = 0;
	CHECK(vma->recvfrom_zcopy(kernels, plain, sizeof(plain), &flags, NULL, NULL) == 2 && flags == 0);
	CHECK(!memcmp(plain, "os", 2));
	/* One that is no Internet socket is read as ever, as by the original. */
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && write(pair[0], "plain", 5) == 5);
	flags = MSG_VMA_ZCOPY_FORCE;
	CHECK(vma->recvfrom_zcopy(pair[1], plain, sizeof(plain), &flags, NULL, NULL) == 5);
	say("done");
}

/* A child has its parent's packets to look at, but not to give back. */
static void forks(void)
{
	struct view view;
	fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	say("datagram");
	CHECK(lent(fd, &view, 0) == 3);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(is(&view, "one"));
		FAILS(give_back(fd, &view.packet, 1), EINVAL);
		/* Also when it has sockets of its own. */
		int own = bound(SOCK_DGRAM, "10.99.0.1", 5001);
		FAILS(give_back(own, &view.packet, 1), ENOENT);
		CHECK(is(&view, "one"));
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(is(&view, "one") && give_back(fd, &view.packet, 1) == 0);
	say("done");
}

static _Atomic int inside;

static void *lend_for_ever(void *unused)
{
	struct view view;
	(void)unused;
	inside = 1;
	lent(fd, &view, 0);
	return NULL;
}

/* Is cancelled in the middle: the thread ends when the call is over, and the packet is judged. */
static vma_recv_callback_retval_t slowly(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					 void *context)
{
	(void)s, (void)sz_iov, (void)iov, (void)info, (void)context;
	inside = 1;
	usleep(300000);
	seen++;
	return VMA_PACKET_DROP;
}

static void *receive_for_ever(void *unused)
{
	char byte;
	(void)unused;
	recv(fd, &byte, 1, 0);
	return NULL;
}

static void cancelled(void *(*thread)(void *))
{
	pthread_t one;
	void *result = NULL;
	inside = 0;
	CHECK(pthread_create(&one, NULL, thread, NULL) == 0);
	say("begun");
	while (!inside)
		usleep(1000);
	usleep(50000);
	CHECK(pthread_cancel(one) == 0 && pthread_join(one, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
}

static void cancel(void)
{
	struct view view;
	fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	cancelled(lend_for_ever);
	CHECK(vma->register_recv_callback(fd, slowly, NULL) == 0);
	cancelled(receive_for_ever);
	CHECK(seen == 1 && vma->register_recv_callback(fd, NULL, NULL) == 0);
	/* Nothing is stuck. */
	say("last");
	CHECK(lent(fd, &view, 0) == 4 && is(&view, "last") && give_back(fd, &view.packet, 1) == 0);
	say("done");
}

#define MANY 3000
#define EACH 10
#define LONG 1000
static struct {
	void *id;
	unsigned char *bytes;
	int number;
} kept[MANY / EACH];
static int holds;

static unsigned char pattern(int number, size_t at)
{
	return (unsigned char)(number * 7 + at * 13);
}

static void intact(const unsigned char *bytes, int number)
{
	for (size_t at = sizeof(int); at < LONG; at++)
		CHECK(bytes[at] == pattern(number, at));
}

static vma_recv_callback_retval_t keep_some(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					    void *context)
{
	int number;
	(void)context;
	CHECK(sz_iov == 1 && iov[0].iov_len == LONG);
	memcpy(&number, iov[0].iov_base, sizeof(number));
	CHECK(number == seen);
	seen++;
	intact(iov[0].iov_base, number);
	if (number % 50 == 49)
		CHECK(sendto(s, "go", 2, 0, (struct sockaddr *)info->src, sizeof(*info->src)) == 2);
	if (number % EACH)
		return VMA_PACKET_DROP;
	kept[holds].id = info->packet_id;
	kept[holds].number = number;
	kept[holds++].bytes = iov[0].iov_base;
	return VMA_PACKET_HOLD;
}

/* A held packet stays as it is while ten times as much comes and goes. */
static void many(void)
{
	fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	CHECK(vma->register_recv_callback(fd, keep_some, NULL) == 0);
	say("first");
	while (seen < MANY) {
		struct pollfd one = {fd, POLLIN, 0};
		CHECK(poll(&one, 1, 100) >= 0);
	}
	CHECK(holds == MANY / EACH);
	for (int at = 0; at < holds; at++) {
		struct vma_packet_t packet = {.packet_id = kept[at].id, .sz_iov = 0};
		intact(kept[at].bytes, kept[at].number);
		CHECK(vma->free_packets(fd, &packet, 1) == 0);
	}
	say("done");
}

static int other;

/* Every kind of call, on this socket, on others, and on new ones. */
static vma_recv_callback_retval_t everything(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					     void *context)
{
	struct sockaddr_in name;
	struct epoll_event event = {.events = EPOLLIN};
	socklen_t size = sizeof(name);
	char bytes[8];
	int value = 1 << 20;
	(void)sz_iov, (void)iov, (void)context;
	if (seen++)
		return VMA_PACKET_RECV;
	CHECK(getsockname(s, (struct sockaddr *)&name, &size) == 0 && name.sin_port == info->dst->sin_port);
	CHECK(setsockopt(s, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)) == 0);
	CHECK(fcntl(s, F_GETFL) >= 0 && dup2(s, 50) == 50 && close(50) == 0);
	/* Bytes that were there before can be received; there were none. */
	FAILS(recv(s, bytes, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(poll(&(struct pollfd){s, POLLIN, 0}, 1, 0) == 0);
	/* A connection with a request and an answer, for which it waits in each of the ways. */
	int stream = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
	connected(stream, "10.99.0.2", 7000);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, stream, &event) == 0);
	for (int way = 0; way < 4; way++) {
		fd_set set;
		CHECK(send(stream, "ask", 3, 0) == 3);
		FD_ZERO(&set);
		FD_SET(stream, &set);
		if (way == 0)
			CHECK(poll(&(struct pollfd){stream, POLLIN, 0}, 1, 5000) == 1);
		else if (way == 1)
			CHECK(select(stream + 1, &set, NULL, NULL, NULL) == 1);
		else if (way == 2)
			CHECK(epoll_wait(epoll, &event, 1, 5000) == 1);
		CHECK(recv(stream, bytes, 3, MSG_WAITALL) == 3 && !memcmp(bytes, "ask", 3));
	}
	CHECK(shutdown(stream, SHUT_WR) == 0 && recv(stream, bytes, 1, 0) == 0);
	CHECK(close(stream) == 0 && close(epoll) == 0);
	/* Another socket, its callback, and this one's. */
	CHECK(vma->register_recv_callback(other, everything, NULL) == 0 && close(other) == 0);
	CHECK(vma->register_recv_callback(s, NULL, NULL) == 0);
	CHECK(vma->register_recv_callback(s, everything, NULL) == 0);
	CHECK(sendto(s, "told", 4, 0, (struct sockaddr *)info->src, sizeof(*info->src)) == 4);
	return VMA_PACKET_RECV;
}

static void calls_inside(void)
{
	char bytes[8];
	other = bound(SOCK_DGRAM, "10.99.0.1", 5001);
	fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	CHECK(vma->register_recv_callback(fd, everything, NULL) == 0);
	say("first");
	CHECK(recv(fd, bytes, sizeof(bytes), 0) == 2 && !memcmp(bytes, "i1", 2));
	CHECK(recv(fd, bytes, sizeof(bytes), 0) == 2 && !memcmp(bytes, "i2", 2) && seen == 2);
	/* One that closes its own socket: the call ends as on any closed socket. */
	say("done");
}

/* The socket becomes the kernel's while its bytes are judged. */
static vma_recv_callback_retval_t leave(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					void *context)
{
	char *bytes = iov[0].iov_base;
	(void)sz_iov, (void)context;
	seen++;
	int any = 1;
	CHECK(setsockopt(s, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &any, sizeof(any)) == 0);
	kept[0].id = info->packet_id;
	kept[0].bytes = iov[0].iov_base;
	return bytes[0] == 'h' ? VMA_PACKET_HOLD : bytes[0] == 'd' ? VMA_PACKET_DROP : VMA_PACKET_RECV;
}

static void departs(const char *host)
{
	for (const char *kind = "dhr"; *kind; kind++) {
		char text[] = {*kind, 0}, bytes[8] = {0};
		fd = socket(AF_INET, SOCK_STREAM, 0);
		connected(fd, host, 7000);
		seen = 0;
		CHECK(vma->register_recv_callback(fd, leave, NULL) == 0);
		say(text);
		while (!seen) {
			struct pollfd one = {fd, POLLIN, 0};
			CHECK(poll(&one, 1, 100) >= 0);
		}
		say("rest");
		int expected = *kind == 'r' ? 4 : 2;
		CHECK(recv(fd, bytes, expected, MSG_WAITALL) == expected);
		if (strcmp(bytes, *kind == 'r' ? "r1x2" : "x2")) {
			fprintf(stderr, "%s behind %s\n", bytes, text);
			exit(1);
		}
		if (*kind == 'h') {
			struct vma_packet_t packet = {.packet_id = kept[0].id, .sz_iov = 0};
			CHECK(!memcmp(kept[0].bytes, "h1", 2) && vma->free_packets(fd, &packet, 1) == 0);
		}
		CHECK(close(fd) == 0);
	}
	say("done");
}

static vma_recv_callback_retval_t hold(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
				       void *context)
{
	(void)s, (void)sz_iov, (void)iov, (void)context;
	kept[0].id = info->packet_id;
	seen++;
	return VMA_PACKET_HOLD;
}

static void free_held(void)
{
	struct vma_packet_t packet = {.packet_id = kept[0].id, .sz_iov = 0};
	CHECK(vma->free_packets(fd, &packet, 1) == 0);
}

static _Atomic(void *) offered;
static _Atomic int taken;

static void *free_offered(void *unused)
{
	struct vma_packet_t packet = {.sz_iov = 0};
	(void)unused;
	while (!(packet.packet_id = offered))
		usleep(1000);
	CHECK(vma->free_packets(fd, &packet, 1) == 0);
	FAILS(vma->free_packets(fd, &packet, 1), ENOENT);
	taken = 1;
	return NULL;
}

/* Another thread gives the packet back before the callback returns. */
static vma_recv_callback_retval_t offer(int s, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
					void *context)
{
	(void)s, (void)sz_iov, (void)iov, (void)context;
	offered = info->packet_id;
	while (!taken)
		usleep(1000);
	seen++;
	return VMA_PACKET_HOLD;
}

static void early(void)
{
	struct vma_packet_t packet = {.sz_iov = 0};
	pthread_t one;
	fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
	CHECK(vma->register_recv_callback(fd, offer, NULL) == 0);
	CHECK(pthread_create(&one, NULL, free_offered, NULL) == 0);
	say("datagram");
	while (!seen)
		CHECK(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 10000) >= 0);
	CHECK(pthread_join(one, NULL) == 0);
	packet.packet_id = offered;
	FAILS(vma->free_packets(fd, &packet, 1), ENOENT);
	say("done");
}

/* A call that waits for events returns when a callback holds something, once. */
static void ready_by(int way, int expected)
{
	struct epoll_event event = {.events = EPOLLIN | (way == 3 ? EPOLLET : 0)};
	struct pollfd one = {fd, POLLIN, 0};
	static int epoll = -1;
	fd_set set;
	char byte;
	if (epoll < 0)
		epoll = epoll_create1(0);
	if (way >= 2 && expected)
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	if (expected)
		say("hold");
	FD_ZERO(&set);
	FD_SET(fd, &set);
	int wait = expected ? 10000 : 50;
	if (way == 0)
		CHECK(poll(&one, 1, wait) == expected && (!expected || one.revents == POLLIN));
	else if (way == 1)
		CHECK(select(fd + 1, &set, NULL, NULL, &(struct timeval){0, expected ? 900000 : 50000}) == expected);
	else
		CHECK(epoll_wait(epoll, &event, 1, wait) == expected && (!expected || event.events == EPOLLIN));
	if (expected) {
		ready_by(way, 0);
		errno = 0;
		CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
		free_held();
	} else if (way >= 2) {
		CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL) == 0);
	}
}

static void ready(void)
{
	for (int type = 0; type < 2; type++) {
		if (type) {
			fd = socket(AF_INET, SOCK_STREAM, 0);
			connected(fd, "10.99.0.2", 7000);
		} else {
			fd = bound(SOCK_DGRAM, "10.99.0.1", 5000);
		}
		CHECK(vma->register_recv_callback(fd, hold, NULL) == 0);
		for (int way = 0; way < 4; way++)
			ready_by(way, 1);
		CHECK(seen == 4 * (type + 1));
	}
	say("done");
}

static void lend_round(int s)
{
	struct view view;
	CHECK(send(s, "x", 1, 0) == 1);
	CHECK(lent(s, &view, 0) == 1 && *view.packet.bytes == 'x' && give_back(s, &view.packet, 1) == 0);
}

static void hold_round(int s)
{
	int before = seen;
	CHECK(send(s, "x", 1, 0) == 1);
	while (seen == before)
		CHECK(poll(&(struct pollfd){s, POLLIN, 0}, 1, 10000) == 1);
	free_held();
}

static long least_of(void (*round)(int), int s)
{
	long least = 1000000;
	for (int at = 0; at < 100; at++)
		round(s);
	for (int batch = 0; batch < 4; batch++) {
		start_counting();
		for (int at = 0; at < 200; at++)
			round(s);
		long allocations = stop_counting();
		least = allocations < least ? allocations : least;
	}
	return least;
}

static void allocation(void)
{
	long counts[4];
	for (int type = 0; type < 2; type++) {
		fd = type ? socket(AF_INET, SOCK_STREAM, 0) : bound(SOCK_DGRAM, "10.99.0.1", 5000);
		connected(fd, "10.99.0.2", 7000);
		counts[2 * type] = least_of(lend_round, fd);
		CHECK(vma->register_recv_callback(fd, hold, NULL) == 0);
		counts[2 * type + 1] = least_of(hold_round, fd);
		CHECK(close(fd) == 0);
	}
	printf("lent %ld, held %ld, of a stream %ld and %ld\n", counts[0], counts[1], counts[2], counts[3]);
}

int main(int count, char **words)
{
	const char *what = count > 1 ? words[1] : "";
	vma = vma_get_api();
	CHECK(vma);
	if (!strcmp(what, "reuse"))
		reuse();
	else if (!strcmp(what, "force"))
		force();
	else if (!strcmp(what, "fork"))
		forks();
	else if (!strcmp(what, "cancel"))
		cancel();
	else if (!strcmp(what, "many"))
		many();
	else if (!strcmp(what, "inside"))
		calls_inside();
	else if (!strcmp(what, "departs"))
		departs(words[2]);
	else if (!strcmp(what, "early"))
		early();
	else if (!strcmp(what, "ready"))
		ready();
	else if (!strcmp(what, "allocation"))
		allocation();
	else
		return 2;
	return 0;
}
