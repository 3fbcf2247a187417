/* epoll on streams: levels, edges in both directions, ends, errors, sets of sets. */
#include "prober.h"

#include <sys/eventfd.h>

static int control(int epoll, int operation, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };
	return epoll_ctl(epoll, operation, fd, &event);
}

#define ADD(epoll, fd, events, data) DO(control(epoll, EPOLL_CTL_ADD, fd, events, data))
#define MOD(epoll, fd, events, data) DO(control(epoll, EPOLL_CTL_MOD, fd, events, data))
#define DEL(epoll, fd) DO(control(epoll, EPOLL_CTL_DEL, fd, 0, 0))
#define ALL (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI)

static int by_data(const void *one, const void *two)
{
	uint64_t a = ((const struct epoll_event *)one)->data.u64;
	uint64_t b = ((const struct epoll_event *)two)->data.u64;
	return a < b ? -1 : a > b;
}

/* The events of one wait, sorted: their order is nobody's promise. */
static void events(int epoll, int timeout, int expected)
{
	struct epoll_event list[32];
	watch_start();
	errno = UNTOUCHED;
	int count = report_timed("epoll_wait", epoll_wait(epoll, list, 32, timeout), expected);
	if (count > 0)
		qsort(list, count, sizeof *list, by_data);
	show_events(list, count);
}

static void states(void)
{
	int epoll = DO(epoll_create1(0)), fd = DO(tcp());
	ADD(epoll, fd, ALL, 1);
	events(epoll, 0, 0); /* unconnected */
	set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	DO(bind(fd, ADDRESS(HOST, 5000)));
	DO(listen(fd, 5));
	events(epoll, 0, 0);
	int there = peer_connect(HOST, 5000);
	barrier();
	events(epoll, 0, 0);
	int made = DO(accept(fd, NULL, NULL));
	events(epoll, 0, 0);
	ADD(epoll, made, ALL, 2);
	events(epoll, 0, 0);
	peer_writes(there, "x");
	barrier();
	events(epoll, 0, 0);
	MOD(epoll, made, EPOLLIN, 3);
	events(epoll, 0, 0);
	MOD(epoll, made, EPOLLRDHUP, 4);
	events(epoll, 0, 0);
	peer_shuts(there, SHUT_WR, 0);
	barrier();
	events(epoll, 0, 0);
	MOD(epoll, made, ALL, 5);
	events(epoll, 0, 0);
	receive_shown(made, 1, 0);
	events(epoll, 0, 0);
	peer_resets(there, 0);
	barrier();
	events(epoll, 0, 0);
	MOD(epoll, made, 0, 6);
	events(epoll, 0, 0);
	show_error(made);
	events(epoll, 0, 0);
	DO(close(made));
	events(epoll, 0, 0);
	DO(close(fd));
	events(epoll, 0, 0);
}

static void edges(void)
{
	stream on = accepted();
	int epoll = DO(epoll_create1(0));
	ADD(epoll, on.fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
	events(epoll, 0, 0);
	peer_writes(on.there, "one");
	barrier();
	events(epoll, 0, 0);
	events(epoll, 0, 0);
	receive_shown(on.fd, 2, 0); /* not all: no new edge */
	events(epoll, 0, 0);
	peer_writes(on.there, "two");
	barrier();
	events(epoll, 0, 0);
	events(epoll, 20, 20);
	MOD(epoll, on.fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 2);
	events(epoll, 0, 0);
	receive_shown(on.fd, 100, 0);
	peer_writes_later(on.there, "late", 30);
	events(epoll, 1000, 30);
	receive_shown(on.fd, 100, 0);
	events(epoll, 0, 0);
	peer_writes(on.there, "last");
	barrier();
	events(epoll, 0, 0);
	peer_shuts(on.there, SHUT_WR, 0);
	barrier();
	events(epoll, 0, 0);
	events(epoll, 0, 0);
	receive_shown(on.fd, 100, 0);
	receive_shown(on.fd, 100, 0);
	events(epoll, 0, 0);
	peer_resets(on.there, 0);
	barrier();
	events(epoll, 0, 0);
	events(epoll, 0, 0);
	/* Read before anybody waited. */
	on = accepted();
	ADD(epoll, on.fd, EPOLLIN | EPOLLET, 3);
	peer_writes(on.there, "gone");
	barrier();
	receive_shown(on.fd, 100, 0);
	events(epoll, 0, 0);
}

/* Writable again after EAGAIN is an edge; writable all the time is none. */
static void edges_of_writing(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = tcp(), epoll = DO(epoll_create1(0));
	peer_set(door, SOL_SOCKET, SO_RCVBUF, 10000);
	set(fd, SOL_SOCKET, SO_SNDBUF, 20000);
	must("connect", connect(fd, ADDRESS(PEER, 6000)));
	int there = peer_accept(door);
	ADD(epoll, fd, EPOLLOUT | EPOLLET, 1);
	events(epoll, 0, 0);
	events(epoll, 0, 0);
	DO(send(fd, "fits", 4, 0));
	peer_reads(there, 4);
	barrier();
	events(epoll, 0, 0);
	char *bytes = stream_bytes(1000000);
	long sent = 0, length;
	while ((length = send(fd, bytes + sent, 1000000 - sent, MSG_DONTWAIT)) > 0)
		sent += length;
	events(epoll, 20, 20);
	peer_reads_later(there, 1000000, 30);
	events(epoll, 1000, 30);
	DO(fcntl(fd, F_SETFL, 0));
	line("  the rest in one: %d", send(fd, bytes + sent, 1000000 - sent, 0) == 1000000 - sent);
	peer_has_read();
	acknowledged(fd);
	MOD(epoll, fd, EPOLLOUT | EPOLLET, 2);
	events(epoll, 0, 0);
	events(epoll, 0, 0);
	/* In both directions: what comes in tells of both. */
	MOD(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLET, 3);
	events(epoll, 0, 0);
	events(epoll, 0, 0);
	peer_writes(there, "x");
	barrier();
	events(epoll, 0, 0);
	events(epoll, 0, 0);
}

static void connecting(void)
{
	int door = peer_listen(PEER, 6000, 5), epoll = DO(epoll_create1(0));
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	ADD(epoll, fd, ALL | EPOLLET, 1); /* before it connects */
	events(epoll, 0, 0);
	events(epoll, 0, 0);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	events(epoll, 1000, 0);
	events(epoll, 0, 0);
	show_error(fd);
	int there = peer_accept(door);
	peer_writes(there, "x");
	barrier();
	events(epoll, 0, 0);
	DO(close(fd));
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	ADD(epoll, fd, EPOLLOUT, 2); /* while it connects */
	events(epoll, 1000, 0);
	DO(close(fd));
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	ADD(epoll, fd, EPOLLOUT | EPOLLIN | EPOLLONESHOT, 3);
	events(epoll, 0, 0);
	DO(connect(fd, ADDRESS(PEER, 6999)));
	events(epoll, 20, 20);
	MOD(epoll, fd, EPOLLOUT | EPOLLIN, 4);
	events(epoll, 1000, 0);
	show_error(fd);
	events(epoll, 0, 0);
	DO(close(fd));
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	DO(connect(fd, ADDRESS(SILENT, 6000)));
	ADD(epoll, fd, ALL, 5);
	events(epoll, 20, 20);
	DO(close(fd));
	events(epoll, 0, 0);
}

static void listeners(void)
{
	int epoll = DO(epoll_create1(0)), listening = tcp_listener(HOST, 5000, 10);
	ADD(epoll, listening, EPOLLIN | EPOLLET, 1);
	events(epoll, 0, 0);
	peer_connect(HOST, 5000);
	barrier();
	events(epoll, 0, 0);
	events(epoll, 0, 0);
	peer_connect(HOST, 5000);
	barrier();
	events(epoll, 0, 0);
	DO(accept(listening, NULL, NULL)); /* not all: no new edge */
	events(epoll, 0, 0);
	DO(accept(listening, NULL, NULL));
	peer_connect_later(HOST, 5000, 30);
	events(epoll, 1000, 30);
	MOD(epoll, listening, EPOLLIN, 2);
	events(epoll, 0, 0);
	events(epoll, 0, 0);
	DO(accept(listening, NULL, NULL));
	events(epoll, 0, 0);
	DEL(epoll, listening);
	ADD(epoll, listening, EPOLLIN | EPOLLEXCLUSIVE, 3);
	MOD(epoll, listening, EPOLLIN, 3);
	peer_connect(HOST, 5000);
	barrier();
	events(epoll, 0, 0);
	DO(accept(listening, NULL, NULL));
	events(epoll, 0, 0);
	DEL(epoll, listening);
	ADD(epoll, listening, EPOLLIN | EPOLLONESHOT, 4);
	peer_connect(HOST, 5000);
	peer_connect(HOST, 5000);
	barrier();
	events(epoll, 0, 0);
	DO(accept(listening, NULL, NULL));
	events(epoll, 0, 0);
	MOD(epoll, listening, EPOLLIN | EPOLLONESHOT, 5);
	events(epoll, 0, 0);
}

static void one_shot(void)
{
	stream on = accepted();
	int epoll = DO(epoll_create1(0));
	ADD(epoll, on.fd, EPOLLIN | EPOLLONESHOT, 1);
	peer_writes(on.there, "one");
	barrier();
	events(epoll, 0, 0);
	peer_writes(on.there, "two");
	barrier();
	events(epoll, 0, 0);
	MOD(epoll, on.fd, EPOLLIN | EPOLLONESHOT, 2);
	events(epoll, 0, 0);
	receive_shown(on.fd, 100, 0);
	MOD(epoll, on.fd, EPOLLIN | EPOLLONESHOT, 3);
	events(epoll, 0, 0);
	peer_shuts(on.there, SHUT_WR, 0);
	barrier();
	events(epoll, 0, 0);
	peer_resets(on.there, 0);
	barrier();
	events(epoll, 0, 0); /* not even errors */
	MOD(epoll, on.fd, EPOLLIN | EPOLLONESHOT, 4);
	events(epoll, 0, 0);
}

static void urgent(void)
{
	stream on = accepted();
	int epoll = DO(epoll_create1(0));
	ADD(epoll, on.fd, EPOLLPRI, 1);
	events(epoll, 0, 0);
	peer_writes_urgent_later(on.there, "!", 30);
	events(epoll, 1000, 30);
	events(epoll, 0, 0);
	receive_shown(on.fd, 1, MSG_OOB);
	events(epoll, 0, 0);
	MOD(epoll, on.fd, ALL | EPOLLET, 2);
	events(epoll, 0, 0);
	peer_writes_urgent(on.there, "!");
	barrier();
	events(epoll, 0, 0);
	events(epoll, 0, 0);
}

static void mixed(void)
{
	int epoll = DO(epoll_create1(0)), ends[2], counter = eventfd(0, EFD_NONBLOCK);
	int datagrams = udp(5001), from = peer_open(PEER, 6000), listening = tcp_listener(HOST, 5000, 5);
	must("pipe", pipe(ends));
	stream on = connected();
	ADD(epoll, ends[0], EPOLLIN, 1);
	ADD(epoll, counter, EPOLLIN, 2);
	ADD(epoll, datagrams, EPOLLIN, 3);
	ADD(epoll, listening, EPOLLIN, 4);
	ADD(epoll, on.fd, EPOLLIN, 5);
	events(epoll, 20, 20);
	must("write", write(ends[1], "x", 1));
	eventfd_write(counter, 1);
	peer_say(from, 5001, "x");
	peer_connect(HOST, 5000);
	peer_writes(on.there, "x");
	barrier();
	events(epoll, 1000, 0);
	must("read", read(ends[0], room, 1));
	must("read", read(counter, room, 8));
	must("recv", recv(datagrams, room, 1, 0));
	must("recv", recv(on.fd, room, 1, 0));
	close(accept(listening, NULL, NULL));
	events(epoll, 20, 20);
	peer_writes_later(on.there, "x", 30);
	events(epoll, 1000, 30);
	must("recv", recv(on.fd, room, 1, 0));
	peer_connect_later(HOST, 5000, 30);
	events(epoll, 1000, 30);
	close(accept(listening, NULL, NULL));
	if (fork() == 0) {
		usleep(50000);
		_exit(write(ends[1], "x", 1) != 1);
	}
	events(epoll, 1000, 50);
	wait(NULL);
}

/* A number closed and used again; copies; registrations of both. */
static void numbers(void)
{
	int epoll = DO(epoll_create1(0));
	stream on = connected();
	ADD(epoll, on.fd, EPOLLIN, 1);
	ADD(epoll, on.fd, EPOLLIN, 1);
	peer_writes(on.there, "x");
	barrier();
	DO(close(on.fd));
	stream again = connected();
	line("  the same number: %d", again.fd == on.fd);
	events(epoll, 0, 0);
	MOD(epoll, again.fd, EPOLLIN, 2);
	ADD(epoll, again.fd, EPOLLIN, 2);
	peer_writes(again.there, "x");
	barrier();
	events(epoll, 0, 0);
	int copy = DO(dup(again.fd));
	ADD(epoll, copy, EPOLLIN, 3);
	events(epoll, 0, 0);
	DO(close(again.fd)); /* its registration lives as long as the copy */
	events(epoll, 0, 0);
	receive_shown(copy, 1, 0);
	events(epoll, 0, 0);
	DO(close(copy));
	events(epoll, 0, 0);
}

static void sets_of_sets(void)
{
	stream on = connected();
	int inner = DO(epoll_create1(0)), outer = DO(epoll_create1(0)), twin = DO(epoll_create1(0));
	ADD(inner, on.fd, EPOLLIN, 1);
	ADD(twin, on.fd, EPOLLIN | EPOLLET, 2);
	ADD(outer, inner, EPOLLIN, 3);
	events(outer, 20, 20);
	peer_writes_later(on.there, "x", 50);
	events(outer, 1000, 50);
	events(inner, 0, 0);
	events(twin, 0, 0);
	events(twin, 0, 0);
	struct pollfd wait = { inner, POLLIN, 0 };
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	receive_shown(on.fd, 10, 0);
	DO(poll(&wait, 1, 0));
	events(outer, 0, 0);
	peer_shuts(on.there, SHUT_WR, 50);
	TIMED(50, poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	events(outer, 0, 0);
	events(twin, 0, 0);
}

/* Two threads wait at one set: one event, one of them. */
static void *waiter(void *epoll)
{
	struct epoll_event event;
	return (void *)(long)epoll_wait(*(int *)epoll, &event, 1, 150);
}

static void shared(void)
{
	stream on = connected();
	int epoll = DO(epoll_create1(0));
	ADD(epoll, on.fd, EPOLLIN | EPOLLONESHOT, 1);
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		must("thread", -pthread_create(&threads[i], NULL, waiter, &epoll));
	peer_writes_later(on.there, "x", 50);
	long sum = 0;
	for (int i = 0; i < 2; i++) {
		void *result;
		pthread_join(threads[i], &result);
		sum += (long)result;
	}
	line("  %ld of 2 told", sum);
}

const probe_case tcp_epoll_cases[] = {
	{ "states", states, false, STREAMS_OURS },
	{ "edges", edges, false, STREAMS_OURS },
	{ "edges_of_writing", edges_of_writing, false, STREAMS_OURS },
	{ "connecting", connecting, false, STREAMS_OURS },
	{ "listeners", listeners, false, STREAMS_OURS },
	{ "one_shot", one_shot, false, STREAMS_OURS },
	{ "urgent", urgent, false, STREAMS_OURS },
	{ "numbers", numbers, false, STREAMS_OURS },
	{ "shared", shared, false, STREAMS_OURS },
	{ "sets_of_sets", sets_of_sets, true, STREAMS_SHARED }, /* for the kernel to wait on */
	{ "mixed", mixed, true, STREAMS_SHARED },               /* a child */
	{ NULL, NULL, false },
};
