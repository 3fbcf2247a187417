/* epoll: triggers, changes, fairness, mixtures, copies of descriptors. */
#include "prober.h"

#include <sys/epoll.h>

static int control(int epoll, int operation, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };
	return epoll_ctl(epoll, operation, fd, &event);
}

#define ADD(epoll, fd, events, data) DO(control(epoll, EPOLL_CTL_ADD, fd, events, data))
#define MOD(epoll, fd, events, data) DO(control(epoll, EPOLL_CTL_MOD, fd, events, data))
#define DEL(epoll, fd) DO(control(epoll, EPOLL_CTL_DEL, fd, 0, 0))

static int by_data(const void *one, const void *two)
{
	uint64_t a = ((const struct epoll_event *)one)->data.u64;
	uint64_t b = ((const struct epoll_event *)two)->data.u64;
	return a < b ? -1 : a > b;
}

/* The events of one wait, sorted: their order is nobody's promise. */
static void events(int epoll, int most, int timeout, int expected)
{
	struct epoll_event list[32];
	watch_start();
	errno = UNTOUCHED;
	int count = report_timed("epoll_wait", epoll_wait(epoll, list, most, timeout), expected);
	if (count > 0)
		qsort(list, count, sizeof *list, by_data);
	show_events(list, count);
}

static void level(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), epoll = DO(epoll_create1(0));
	ADD(epoll, fd, EPOLLIN, 7);
	events(epoll, 8, 0, 0);
	events(epoll, 8, 50, 50);
	peer_say_later(there, 5000, "late", 50);
	events(epoll, 8, -1, 50);
	events(epoll, 8, -1, 0);
	events(epoll, 8, 0, 0);
	receive_shown(fd, 100, 0);
	events(epoll, 8, 0, 0);
	MOD(epoll, fd, EPOLLIN | EPOLLOUT, 8);
	events(epoll, 8, -1, 0);
	peer_say(there, 5000, "one");
	barrier();
	events(epoll, 8, -1, 0); /* one event, not two */
	MOD(epoll, fd, EPOLLOUT, 9);
	events(epoll, 8, -1, 0);
	MOD(epoll, fd, 0, 10);
	events(epoll, 8, 20, 20);
	MOD(epoll, fd, EPOLLIN, 11);
	events(epoll, 8, 0, 0);
	MOD(epoll, fd, EPOLLRDNORM | EPOLLWRNORM | EPOLLRDBAND | EPOLLPRI | EPOLLRDHUP, 12);
	events(epoll, 8, 0, 0);
	/* Bits that mean nothing. */
	MOD(epoll, fd, EPOLLOUT | EPOLLET | 1u << 26 | 1u << 27, 14);
	events(epoll, 8, 0, 0);
	MOD(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLRDNORM | EPOLLWRNORM | EPOLLWRBAND | EPOLLMSG, 13);
	events(epoll, 8, 0, 0);
	DEL(epoll, fd);
	events(epoll, 8, 0, 0);
	ADD(epoll, fd, EPOLLIN, 14); /* ready when it is added */
	events(epoll, 8, 0, 0);
	DO(close(fd));
	events(epoll, 8, 0, 0);
	peer_close(there);
}

static void edge(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), epoll = DO(epoll_create1(0));
	peer_say(there, 5000, "before");
	barrier();
	ADD(epoll, fd, EPOLLIN | EPOLLET, 1);
	events(epoll, 8, 0, 0);
	events(epoll, 8, 0, 0);
	peer_say(there, 5000, "one");
	barrier();
	events(epoll, 8, 0, 0);
	events(epoll, 8, 20, 20);
	receive_shown(fd, 100, 0); /* not all: no new edge */
	events(epoll, 8, 0, 0);
	peer_say(there, 5000, "two");
	peer_say(there, 5000, "three");
	barrier();
	events(epoll, 8, 0, 0);
	events(epoll, 8, 0, 0);
	MOD(epoll, fd, EPOLLIN | EPOLLET, 2); /* still readable: a new edge */
	events(epoll, 8, 0, 0);
	events(epoll, 8, 0, 0);
	while (recv(fd, room, 100, MSG_DONTWAIT) >= 0)
		;
	events(epoll, 8, 0, 0);
	peer_say_later(there, 5000, "late", 30);
	events(epoll, 8, -1, 30);
	events(epoll, 8, 0, 0);
	/* Read before anybody waited: there is nothing to tell. */
	receive_shown(fd, 100, 0);
	peer_say(there, 5000, "gone");
	barrier();
	receive_shown(fd, 100, 0);
	events(epoll, 8, 0, 0);
	peer_close(there);
}

/* With EPOLLOUT an edge in either direction tells of both. */
static void edge_both_ways(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), epoll = DO(epoll_create1(0));
	ADD(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLET, 1);
	events(epoll, 8, 0, 0);
	events(epoll, 8, 0, 0);
	peer_say(there, 5000, "one");
	barrier();
	events(epoll, 8, 0, 0);
	events(epoll, 8, 0, 0);
	receive_shown(fd, 100, 0);
	events(epoll, 8, 0, 0);
	peer_close(there);
}

static void one_shot(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), second = udp(5001);
	int epoll = DO(epoll_create1(0));
	/* The same data for both: only one of them has fired. */
	ADD(epoll, fd, EPOLLIN | EPOLLONESHOT, 1);
	ADD(epoll, second, EPOLLIN | EPOLLONESHOT, 1);
	peer_say(there, 5000, "one");
	barrier();
	events(epoll, 8, 0, 0);
	events(epoll, 8, 20, 20);
	peer_say(there, 5000, "two");
	barrier();
	events(epoll, 8, 0, 0);
	peer_say(there, 5001, "second");
	barrier();
	events(epoll, 8, 0, 0);
	MOD(epoll, fd, EPOLLIN | EPOLLONESHOT, 2);
	events(epoll, 8, 0, 0);
	events(epoll, 8, 0, 0);
	while (recv(fd, room, 100, MSG_DONTWAIT) >= 0)
		;
	MOD(epoll, fd, EPOLLIN | EPOLLONESHOT, 3);
	events(epoll, 8, 0, 0);
	peer_say_later(there, 5000, "late", 30);
	events(epoll, 8, -1, 30);
	events(epoll, 8, 0, 0);
	/* Fired for writing: reading is disarmed too. */
	MOD(epoll, fd, EPOLLOUT | EPOLLIN | EPOLLONESHOT, 4);
	events(epoll, 8, 0, 0);
	peer_say(there, 5000, "x");
	barrier();
	events(epoll, 8, 0, 0);
	receive_shown(fd, 100, 0);
	receive_shown(fd, 100, 0);
	MOD(epoll, fd, EPOLLOUT | EPOLLONESHOT, 5);
	events(epoll, 8, 0, 0);
	events(epoll, 8, 0, 0);
	MOD(epoll, fd, EPOLLIN | EPOLLET | EPOLLONESHOT, 6);
	peer_say(there, 5000, "y");
	barrier();
	events(epoll, 8, 0, 0);
	peer_say(there, 5000, "z");
	barrier();
	events(epoll, 8, 0, 0);
	peer_close(there);
}

static void mixed(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), second = udp(5001), ends[2];
	int epoll = DO(epoll_create(1));
	must("pipe", pipe(ends));
	ADD(epoll, fd, EPOLLIN, 1);
	ADD(epoll, ends[0], EPOLLIN, 2);
	ADD(epoll, second, EPOLLIN, 3);
	events(epoll, 8, 20, 20);
	must("write", write(ends[1], "x", 1));
	events(epoll, 8, -1, 0);
	peer_say(there, 5000, "one");
	peer_say(there, 5001, "two");
	barrier();
	events(epoll, 8, -1, 0);
	must("read", read(ends[0], room, 1));
	events(epoll, 8, -1, 0);
	receive_shown(fd, 10, 0);
	events(epoll, 8, -1, 0);
	receive_shown(second, 10, 0);
	if (fork() == 0) {
		usleep(50000);
		_exit(write(ends[1], "x", 1) != 1);
	}
	events(epoll, 8, -1, 50);
	wait(NULL);
	close(ends[1]);
	events(epoll, 8, -1, 0);
	DEL(epoll, ends[0]);
	events(epoll, 8, 0, 0);
	peer_close(there);
}

/* With room for one event, each of three gets its turn. */
static void fairness(void)
{
	int there = peer_open(PEER, 6000), epoll = DO(epoll_create1(0)), ends[2], seen[4] = { 0 };
	must("pipe", pipe(ends));
	for (int i = 0; i < 3; i++) {
		int fd = udp(5000 + i);
		ADD(epoll, fd, EPOLLIN, i);
		peer_say(there, 5000 + i, "x");
	}
	barrier();
	for (int i = 0; i < 9; i++) {
		struct epoll_event event;
		if (epoll_wait(epoll, &event, 1, 100) == 1 && event.data.u64 < 4)
			seen[event.data.u64]++;
	}
	line("  %d %d %d", seen[0], seen[1], seen[2]);
	ADD(epoll, ends[0], EPOLLIN, 3);
	must("write", write(ends[1], "x", 1));
	memset(seen, 0, sizeof seen);
	for (int i = 0; i < 200; i++) {
		struct epoll_event event;
		if (epoll_wait(epoll, &event, 1, 100) == 1 && event.data.u64 < 4)
			seen[event.data.u64]++;
	}
	line("  everybody had a turn: %d", seen[0] && seen[1] && seen[2] && seen[3]);
	peer_close(there);
}

static void errors(void)
{
	int fd = udp(5000), epoll = DO(epoll_create1(0));
	struct epoll_event event = { .events = EPOLLIN };
	DO(epoll_create(0));
	DO(epoll_create1(0x1234));
	ADD(epoll, fd, EPOLLIN, 1);
	ADD(epoll, fd, EPOLLIN, 2);
	DEL(epoll, fd);
	DEL(epoll, fd);
	MOD(epoll, fd, EPOLLIN, 1);
	DO(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, NULL));
	DO(epoll_ctl(epoll, 77, fd, &event));
	DO(epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event));
	DO(epoll_ctl(epoll, EPOLL_CTL_ADD, 900, &event));
	ADD(epoll, fd, EPOLLIN | EPOLLEXCLUSIVE, 1);
	MOD(epoll, fd, EPOLLIN, 1);
	DO(epoll_wait(epoll, &event, 0, 0));
	DO(epoll_wait(epoll, &event, -1, 0));
	DO(epoll_wait(epoll, NULL, 0, 0));
	DO(epoll_wait(epoll, NULL, 1, 0));
	DO(epoll_wait(epoll, &event, INT32_MAX, 0));
	DO(epoll_wait(fd, &event, 1, 0));
	DO(epoll_pwait2(epoll, &event, 1, &(struct timespec){ 0, -1 }, NULL));
	DO(epoll_pwait2(epoll, &event, 1, &(struct timespec){ -1, 0 }, NULL));
	TIMED(20, epoll_pwait2(epoll, &event, 1, &(struct timespec){ 0, 20000000 }, NULL));
	TIMED(20, epoll_pwait(epoll, &event, 1, 20, NULL));
	DO(close(epoll));
	DO(epoll_wait(epoll, &event, 1, 0));
	DO(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}

/* A registration belongs to the open file: it lives as long as any descriptor of it. */
static void copies(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), epoll = DO(epoll_create1(0));
	int copy = DO(dup(fd));
	ADD(epoll, fd, EPOLLIN, 1);
	peer_say(there, 5000, "one");
	barrier();
	events(epoll, 8, 0, 0);
	ADD(epoll, copy, EPOLLIN, 2); /* its own registration */
	events(epoll, 8, 0, 0);
	DO(close(fd));
	events(epoll, 8, 0, 0); /* the first one is still there */
	receive_shown(copy, 10, 0);
	events(epoll, 8, 0, 0);
	DO(close(copy));
	events(epoll, 8, 0, 0);
	/* A copy of the epoll descriptor is the same set. */
	fd = udp(5000);
	int twin = DO(dup(epoll));
	ADD(twin, fd, EPOLLIN, 3);
	peer_say(there, 5000, "two");
	barrier();
	events(epoll, 8, 0, 0);
	events(twin, 8, 0, 0);
	DO(close(epoll));
	events(twin, 8, 0, 0);
	peer_close(there);
}

/* The number is closed and used again by another socket. */
static void number_again(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), epoll = DO(epoll_create1(0));
	ADD(epoll, fd, EPOLLIN, 1);
	peer_say(there, 5000, "one");
	barrier();
	DO(close(fd));
	int again = udp(5001);
	line("  the same number: %d", again == fd);
	peer_say(there, 5001, "two");
	barrier();
	events(epoll, 8, 0, 0);
	ADD(epoll, again, EPOLLIN, 2);
	events(epoll, 8, 0, 0);
	int other = udp(5002);
	DO(dup2(other, again)); /* closes the one that is watched */
	events(epoll, 8, 0, 0);
	peer_say(there, 5002, "three");
	barrier();
	events(epoll, 8, 0, 0);
	MOD(epoll, again, EPOLLIN, 3);
	ADD(epoll, again, EPOLLIN, 4);
	events(epoll, 8, 0, 0);
	peer_close(there);
}

static void two_sets(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	int one = DO(epoll_create1(0)), two = DO(epoll_create1(0)), outer = DO(epoll_create1(0));
	ADD(one, fd, EPOLLIN, 1);
	ADD(two, fd, EPOLLIN | EPOLLET, 2);
	peer_say(there, 5000, "one");
	barrier();
	events(one, 8, 0, 0);
	events(two, 8, 0, 0);
	events(two, 8, 0, 0);
	events(one, 8, 0, 0);
	receive_shown(fd, 10, 0);
	events(one, 8, 0, 0);
	DO(close(one));
	peer_say(there, 5000, "two");
	barrier();
	events(two, 8, 0, 0);
	receive_shown(fd, 10, 0);
	/* A set in a set, and a set in poll. */
	MOD(two, fd, EPOLLIN, 2);
	ADD(outer, two, EPOLLIN, 3);
	events(outer, 8, 20, 20);
	peer_say_later(there, 5000, "three", 50);
	events(outer, 8, -1, 50);
	struct pollfd wait = { two, POLLIN, 0 };
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	receive_shown(fd, 10, 0);
	DO(poll(&wait, 1, 0));
	peer_say_later(there, 5000, "four", 50);
	TIMED(50, poll(&wait, 1, -1));
	show_poll(&wait, 1);
	events(two, 8, 0, 0);
	fd_set set;
	FD_ZERO(&set);
	FD_SET(two, &set);
	DO(select(two + 1, &set, NULL, NULL, &(struct timeval){ 1, 0 }));
	peer_close(there);
}

static void unbound(void)
{
	int there = peer_open(PEER, 6000), epoll = DO(epoll_create1(0));
	int fd = DO(socket(AF_INET, SOCK_DGRAM, 0));
	ADD(epoll, fd, EPOLLIN, 1);
	events(epoll, 8, 20, 20);
	DO(bind(fd, ADDRESS(HOST, 5000)));
	peer_say_later(there, 5000, "late", 30);
	events(epoll, 8, -1, 30);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	events(epoll, 8, 0, 0);
	receive_shown(fd, 10, 0);
	peer_say_later(there, 5000, "late", 30);
	events(epoll, 8, -1, 30);
	receive_shown(fd, 10, 0);
	/* An error is told as EPOLLERR. */
	DO(connect(fd, ADDRESS(PEER, 6999)));
	DO(send(fd, "x", 1, 0));
	events(epoll, 8, 1000, 0);
	DO(recv(fd, room, 10, MSG_DONTWAIT));
	events(epoll, 8, 0, 0);
	DO(shutdown(fd, SHUT_RDWR));
	events(epoll, 8, 0, 0);
	peer_close(there);
}

const probe_case epoll_cases[] = {
	{ "level", level, false },
	{ "edge", edge, false },
	{ "edge_both_ways", edge_both_ways, false },
	{ "one_shot", one_shot, false },
	{ "mixed", mixed, false },
	{ "fairness", fairness, false },
	{ "errors", errors, false },
	{ "copies", copies, false },
	{ "number_again", number_again, false },
	{ "two_sets", two_sets, true }, /* a set in a set is for the kernel to wait on */
	{ "unbound", unbound, true }, /* the error is the kernel's */
	{ NULL, NULL, false },
};
