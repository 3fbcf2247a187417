/* pthread_cancel: threads that wait on a socket are ended, and the socket is as good as before. */
#include "prober.h"

static int cleaned, shared, epoll, pipe_ends[2];
static volatile int enters;
static char target[1000];

static void cleanup(void *unused)
{
	(void)unused;
	cleaned++;
}

/* The calls that are cancellation points. */
enum way { RECV, RECVFROM, READ, READV, RECVMSG, RECVMMSG, POLL, PPOLL, SELECT, PSELECT, EPOLL_WAIT, EPOLL_PWAIT,
	EPOLL_PWAIT2, SPLICE, WAYS, ACCEPT, ACCEPT4, CONNECT, SEND, SENDMSG, WRITE };
static const char *const names[] = { "recv", "recvfrom", "read", "readv", "recvmsg", "recvmmsg", "poll", "ppoll",
	"select", "pselect", "epoll_wait", "epoll_pwait", "epoll_pwait2", "splice", "", "accept", "accept4",
	"connect", "send", "sendmsg", "write" };

static long call(enum way way)
{
	static char much[4000000];
	struct iovec part = { target, sizeof target }, out = { much, sizeof much };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } };
	struct msghdr sent = { .msg_iov = &out, .msg_iovlen = 1 };
	struct pollfd wait = { shared, POLLIN, 0 };
	struct epoll_event event;
	fd_set set;
	FD_ZERO(&set);
	FD_SET(shared, &set);
	switch (way) {
	case RECV: return recv(shared, target, sizeof target, 0);
	case RECVFROM: return recvfrom(shared, target, sizeof target, 0, NULL, NULL);
	case READ: return read(shared, target, sizeof target);
	case READV: return readv(shared, &part, 1);
	case RECVMSG: return recvmsg(shared, &message.msg_hdr, 0);
	case RECVMMSG: return recvmmsg(shared, &message, 1, 0, NULL);
	case POLL: return poll(&wait, 1, -1);
	case PPOLL: return ppoll(&wait, 1, NULL, NULL);
	case SELECT: return select(shared + 1, &set, NULL, NULL, NULL);
	case PSELECT: return pselect(shared + 1, &set, NULL, NULL, NULL, NULL);
	case EPOLL_WAIT: return epoll_wait(epoll, &event, 1, -1);
	case EPOLL_PWAIT: return epoll_pwait(epoll, &event, 1, -1, NULL);
	case EPOLL_PWAIT2: return epoll_pwait2(epoll, &event, 1, NULL, NULL);
	case SPLICE: return splice(shared, NULL, pipe_ends[1], NULL, 10, 0);
	case ACCEPT: return accept(shared, NULL, NULL);
	case ACCEPT4: return accept4(shared, NULL, NULL, 0);
	case CONNECT: return connect(shared, ADDRESS(SILENT, 6000));
	case SEND: return send(shared, much, sizeof much, 0);
	case SENDMSG: return sendmsg(shared, &sent, 0);
	case WRITE: return write(shared, much, sizeof much);
	default: return -2;
	}
}

static void *waiter(void *way)
{
	pthread_cleanup_push(cleanup, NULL);
	enters = 1;
	long result = call((enum way)(long)way);
	/* What has sent a part may tell so first. */
	if ((enum way)(long)way >= SEND)
		pthread_testcancel();
	line("  returned %ld", result);
	pthread_cleanup_pop(0);
	return NULL;
}

static void shows(const char *name, pthread_t thread)
{
	void *result = NULL;
	must("pthread_join", pthread_join(thread, &result));
	line("  %s: cancelled %d, cleaned %d", name, result == PTHREAD_CANCELED, cleaned);
	cleaned = 0;
}

static void cancel(enum way way, int after)
{
	pthread_t thread;
	enters = 0;
	must("pthread_create", pthread_create(&thread, NULL, waiter, (void *)(long)way));
	while (!enters)
		sched_yield();
	usleep(after);
	must("pthread_cancel", pthread_cancel(thread));
	shows(names[way], thread);
}

static void watched(int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	shared = fd;
	epoll = epoll_create1(0);
	must("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}

static void datagrams(void)
{
	int there = peer_open(PEER, 6000);
	watched(udp(5000));
	for (int way = RECV; way < SPLICE; way++) {
		cancel(way, 5000);
		peer_say(there, 5000, "still here");
		receive_shown(shared, 100, 0);
		DO(sendto(shared, "as good", 7, 0, ADDRESS(PEER, 6000)));
		peer_hears(there);
	}
	/* At any moment. */
	for (int i = 0; i < 30; i++)
		cancel(i % SPLICE, i * 37);
	peer_close(there);
}

static void streams(void)
{
	stream on = connected();
	must("pipe", pipe(pipe_ends));
	watched(on.fd);
	for (int way = RECV; way < WAYS; way++) {
		cancel(way, 5000);
		exchange(on);
	}
	for (int i = 0; i < 30; i++)
		cancel(i % WAYS, i * 37);
	exchange(on);
	for (int way = SEND; way <= WRITE; way++) {
		stream full = connected();
		/* What was sent so far comes; how much that is, is nobody's business. */
		shared = full.fd;
		while (send(full.fd, room, sizeof room, MSG_DONTWAIT) > 0)
			;
		cancel(way, 20000);
		close(full.fd);
		peer_ends(full.there, 0);
	}
	exchange(on);
}

static void listeners(void)
{
	watched(tcp_listener(HOST, 5000, 5));
	for (int i = 0; i < 4; i++) {
		static const enum way ways[] = { ACCEPT, ACCEPT4, POLL, EPOLL_WAIT };
		cancel(ways[i], 5000);
		int there = peer_connect(HOST, 5000);
		stream on = { accept(shared, NULL, NULL), there };
		exchange(on);
		close(on.fd);
		peer_reads_rest(there);
	}
}

/* What the kernel waits for, and an epoll instance that gets a socket of ours behind that. */
static void ordinary(void)
{
	static const enum way ways[] = { READ, READV, POLL, PPOLL, SELECT, PSELECT, EPOLL_WAIT, EPOLL_PWAIT,
		EPOLL_PWAIT2 };
	must("pipe", pipe(pipe_ends));
	watched(pipe_ends[0]);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		cancel(ways[i], 5000);
	stream on = connected();
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
	TIMED(0, epoll_ctl(epoll, EPOLL_CTL_ADD, on.fd, &event));
	peer_writes_later(on.there, "x", 20);
	TIMED(20, epoll_wait(epoll, &event, 1, 1000));
	receive_shown(on.fd, 10, 0);
}

static void connecting(void)
{
	shared = tcp();
	cancel(CONNECT, 50000);
	/* It goes on. */
	DO(fcntl(shared, F_SETFL, O_NONBLOCK));
	DO(connect(shared, ADDRESS(SILENT, 6000)));
	close(shared);
}

/* A thread that does not want to be cancelled is not, until it does. */
static void *unwilling(void *unused)
{
	char byte[10];
	pthread_cleanup_push(cleanup, NULL);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	enters = 1;
	long result = recv(shared, byte, sizeof byte, 0);
	line("  unwilling: %ld", result);
	struct pollfd wait = { shared, POLLIN, 0 };
	TIMED(60, poll(&wait, 1, 60));
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	result = recv(shared, byte, sizeof byte, 0);
	line("  willing: %ld", result);
	pthread_cleanup_pop(0);
	return unused;
}

/* Cancelled before the call, which has something to receive, and must leave it. */
static void *late(void *unused)
{
	pthread_cleanup_push(cleanup, NULL);
	enters = 1;
	while (enters != 2)
		sched_yield();
	line("  late: %ld", (long)recv(shared, room, 10, 0));
	pthread_cleanup_pop(0);
	return unused;
}

/* One that may be cancelled anywhere. */
static void *anywhere(void *unused)
{
	pthread_cleanup_push(cleanup, NULL);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	enters = 1;
	for (;;)
		recv(shared, room, 10, 0);
	pthread_cleanup_pop(0);
	return unused;
}

static void states(void)
{
	stream on = connected();
	pthread_t thread;
	shared = on.fd;
	enters = 0;
	pthread_create(&thread, NULL, unwilling, NULL);
	while (!enters)
		sched_yield();
	usleep(20000);
	must("pthread_cancel", pthread_cancel(thread));
	usleep(20000);
	peer_writes(on.there, "data");
	shows("unwilling", thread);
	enters = 0;
	pthread_create(&thread, NULL, late, NULL);
	while (!enters)
		sched_yield();
	must("pthread_cancel", pthread_cancel(thread));
	peer_writes(on.there, "more");
	barrier();
	enters = 2;
	shows("late", thread);
	receive_shown(on.fd, 10, 0);
	for (int i = 0; i < 10; i++) {
		enters = 0;
		pthread_create(&thread, NULL, anywhere, NULL);
		while (!enters)
			sched_yield();
		usleep(i * 700);
		must("pthread_cancel", pthread_cancel(thread));
		shows("anywhere", thread);
	}
	exchange(on);
	/* Others are not disturbed. */
	pthread_t other;
	enters = 0;
	pthread_create(&other, NULL, waiter, (void *)(long)RECV);
	pthread_create(&thread, NULL, waiter, (void *)(long)POLL);
	usleep(20000);
	must("pthread_cancel", pthread_cancel(thread));
	shows("poll", thread);
	peer_writes(on.there, "to the other");
	shows("recv", other);
}

const probe_case cancel_cases[] = {
	{ "datagrams", datagrams, false },
	{ "streams", streams, false, STREAMS_OURS },
	{ "listeners", listeners, false, STREAMS_OURS },
	{ "ordinary", ordinary, false, STREAMS_OURS },
	{ "connecting", connecting, false, STREAMS_SHARED },
	{ "states", states, false, STREAMS_OURS },
	{ NULL, NULL, false },
};
