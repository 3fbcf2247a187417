/* select, pselect, poll, ppoll: ready, not ready, late, mixed, wrong. */
#include "prober.h"

#include <sys/resource.h>

static void poll_one(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	struct pollfd wait = { fd, POLLIN, 0 };
	TIMED(0, poll(&wait, 1, 0));
	TIMED(50, poll(&wait, 1, 50));
	peer_say_later(there, 5000, "late", 50);
	TIMED(50, poll(&wait, 1, -1));
	show_poll(&wait, 1);
	TIMED(0, poll(&wait, 1, -1));
	wait.events = POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM | POLLPRI | POLLRDBAND | POLLWRBAND;
	DO(poll(&wait, 1, -1));
	show_poll(&wait, 1);
	wait.events = POLLOUT;
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	wait.events = 0;
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	wait.events = POLLPRI;
	TIMED(50, poll(&wait, 1, 50));
	wait.events = POLLRDNORM;
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	receive_shown(fd, 100, 0);
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	wait.fd = ~fd;
	wait.revents = 0x77;
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	DO(poll(NULL, 0, 0));
	TIMED(20, poll(NULL, 0, 20));
	DO(poll(NULL, 1, 0));
	peer_close(there);
}

static void poll_mixed(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), second = udp(5001), ends[2], local[2];
	must("pipe", pipe(ends));
	must("socketpair", socketpair(AF_UNIX, SOCK_DGRAM, 0, local));
	struct pollfd list[] = {
		{ fd, POLLIN, 0 }, { ends[0], POLLIN, 0 }, { -1, POLLIN, 0x7f }, { second, POLLIN, 0 },
		{ ends[1], POLLOUT, 0 }, { local[0], POLLIN, 0 }, { 900, POLLIN, 0 }, { fd, POLLIN, 0 },
	};
	DO(poll(list, 8, 0));
	show_poll(list, 8);
	TIMED(0, poll(list, 8, -1)); /* the closed one */
	list[6].fd = -1;
	list[4].fd = -1;
	TIMED(20, poll(list, 8, 20));
	show_poll(list, 8);
	must("write", write(ends[1], "x", 1));
	DO(poll(list, 8, -1));
	show_poll(list, 8);
	peer_say(there, 5001, "x");
	must("send", send(local[1], "x", 1, 0));
	barrier();
	DO(poll(list, 8, -1));
	show_poll(list, 8);
	peer_say(there, 5000, "x");
	barrier();
	DO(poll(list, 8, -1));
	show_poll(list, 8);
	must("read", read(ends[0], room, 1));
	must("recv", recv(local[0], room, 1, 0));
	must("recv", recv(second, room, 1, 0));
	must("recv", recv(fd, room, 1, 0));
	/* Only the pipe comes, late. */
	if (fork() == 0) {
		usleep(50000);
		_exit(write(ends[1], "x", 1) != 1);
	}
	TIMED(50, poll(list, 8, -1));
	show_poll(list, 8);
	wait(NULL);
	close(ends[1]);
	DO(poll(list, 2, -1));
	show_poll(list, 2);
	peer_close(there);
}

static void poll_errors(void)
{
	int fd = udp(5000);
	struct pollfd wait = { fd, POLLIN, 0 };
	struct timespec negative = { -1, 0 }, large = { 0, 1000000000 }, tenth = { 0, 50000000 };
	DO(ppoll(&wait, 1, &negative, NULL));
	DO(ppoll(&wait, 1, &large, NULL));
	TIMED(50, ppoll(&wait, 1, &tenth, NULL));
	line("  the timeout is as it was: %d", tenth.tv_nsec == 50000000);
	struct pollfd *volatile hidden = &wait; /* from _FORTIFY_SOURCE, which would end the program */
	DO(poll(hidden, 2000000000, 0));
	DO(close(fd));
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
}

static void show_sets(int limit, fd_set *read_set, fd_set *write_set, fd_set *except_set)
{
	char text[256] = "";
	for (int fd = 0; fd < limit; fd++) {
		if (read_set && FD_ISSET(fd, read_set))
			sprintf(text + strlen(text), " r%d", fd);
		if (write_set && FD_ISSET(fd, write_set))
			sprintf(text + strlen(text), " w%d", fd);
		if (except_set && FD_ISSET(fd, except_set))
			sprintf(text + strlen(text), " e%d", fd);
	}
	line(" %s", text);
}

static void select_mixed(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), second = udp(5001), ends[2];
	must("pipe", pipe(ends));
	fd_set readable, writable, exceptional;
	struct timeval timeout;
#define SETS() do { \
		FD_ZERO(&readable); \
		FD_ZERO(&writable); \
		FD_ZERO(&exceptional); \
		FD_SET(fd, &readable); \
		FD_SET(second, &readable); \
		FD_SET(ends[0], &readable); \
	} while (0)
	SETS();
	timeout = (struct timeval){ 0, 0 };
	TIMED(0, select(60, &readable, NULL, NULL, &timeout));
	show_sets(60, &readable, NULL, NULL);
	SETS();
	timeout = (struct timeval){ 0, 50000 };
	TIMED(50, select(60, &readable, &writable, &exceptional, &timeout));
	show_sets(60, &readable, &writable, &exceptional);
	line("  left %ld.%06ld", (long)timeout.tv_sec, (long)timeout.tv_usec);
	peer_say_later(there, 5000, "late", 50);
	SETS();
	timeout = (struct timeval){ 10, 0 };
	TIMED(50, select(60, &readable, NULL, NULL, &timeout));
	show_sets(60, &readable, NULL, NULL);
	line("  left %ld", (long)timeout.tv_sec);
	SETS();
	FD_SET(fd, &writable);
	FD_SET(ends[1], &writable);
	FD_SET(fd, &exceptional);
	must("write", write(ends[1], "x", 1));
	DO(select(60, &readable, &writable, &exceptional, NULL));
	show_sets(60, &readable, &writable, &exceptional);
	/* The same descriptor, writable only. */
	FD_ZERO(&writable);
	FD_SET(fd, &writable);
	DO(select(60, NULL, &writable, NULL, NULL));
	show_sets(60, NULL, &writable, NULL);
	/* The limit leaves out what is above. */
	SETS();
	timeout = (struct timeval){ 0, 50000 };
	TIMED(50, select(fd, &readable, NULL, NULL, &timeout));
	SETS();
	FD_SET(59, &readable);
	DO(select(60, &readable, NULL, NULL, NULL));
	show_sets(60, &readable, NULL, NULL);
	DO(select(-1, &readable, NULL, NULL, NULL));
	SETS();
	timeout = (struct timeval){ -1, 0 };
	DO(select(60, &readable, NULL, NULL, &timeout));
	timeout = (struct timeval){ 0, -1 };
	DO(select(60, &readable, NULL, NULL, &timeout));
	must("recv", recv(fd, room, 10, 0));
	must("read", read(ends[0], room, 10));
	SETS();
	timeout = (struct timeval){ 0, 1050000 };
	peer_say_later(there, 5001, "late", 30);
	TIMED(30, select(60, &readable, NULL, NULL, &timeout));
	line("  left %ld", (long)timeout.tv_sec);
	must("recv", recv(second, room, 10, 0));
	SETS();
	struct timespec limit = { 0, 50000000 }, negative = { -1, 0 };
	TIMED(50, pselect(60, &readable, NULL, NULL, &limit, NULL));
	show_sets(60, &readable, NULL, NULL);
	line("  the timeout is as it was: %d", limit.tv_nsec == 50000000);
	DO(pselect(60, &readable, NULL, NULL, &negative, NULL));
	TIMED(20, select(0, NULL, NULL, NULL, &(struct timeval){ 0, 20000 }));
	peer_close(there);
}

/* More sockets than any list inside is made for. */
static void many_sockets(void)
{
	int there = peer_open(PEER, 6000);
	static int fds[70];
	static struct pollfd list[70];
	for (int i = 0; i < 70; i++) {
		fds[i] = udp(5000 + i);
		list[i] = (struct pollfd){ fds[i], POLLIN, 0 };
	}
	TIMED(20, poll(list, 70, 20));
	peer_say(there, 5000 + 69, "the last");
	peer_say(there, 5000, "the first");
	barrier();
	DO(poll(list, 70, -1));
	for (int i = 0; i < 70; i++)
		if (list[i].revents)
			line("  [%d] revents %#x", i, (unsigned)list[i].revents);
	peer_close(there);
}

/* Descriptors above FD_SETSIZE, in sets that are large enough. */
static void beyond(void)
{
	static unsigned long set[4096 / 64];
	struct rlimit limit = { 4096, 4096 };
	int there = peer_open(PEER, 6000), fd = udp(5000);
	DO(setrlimit(RLIMIT_NOFILE, &limit));
	int high = DO(fcntl(fd, F_DUPFD, 3000));
	close(fd);
	struct timeval short_time = { 0, 20000 };
	set[high / 64] = 1ul << high % 64;
	TIMED(20, select(high + 1, (fd_set *)set, NULL, NULL, &short_time));
	set[high / 64] = 1ul << high % 64;
	peer_say_later(there, 5000, "high", 30);
	TIMED(30, select(high + 1, (fd_set *)set, NULL, NULL, NULL));
	line("  %d", set[high / 64] == 1ul << high % 64);
	receive_shown(high, 10, 0);
	DO(close(high));
	peer_close(there);
}

/* Signal masks: what they let through while the call waits. */
static volatile int handled;

static void handler(int signal)
{
	(void)signal;
	handled++;
}

static void masks(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	sigset_t blocked, none;
	struct timespec second = { 1, 0 }, short_time = { 0, 50000000 }, zero = { 0, 0 };
	struct sigaction action = { .sa_handler = handler };
	struct pollfd wait = { fd, POLLIN, 0 };
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 1 };
	int epoll = epoll_create1(0);
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaction(SIGUSR1, &action, NULL);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	fd_set set;
#define PENDING() do { \
		handled = 0; \
		kill(getpid(), SIGUSR1); \
		FD_ZERO(&set); \
		FD_SET(fd, &set); \
	} while (0)
#define HANDLED() line("  handled %d", handled)
#define CLEAR() (sigprocmask(SIG_UNBLOCK, &blocked, NULL), sigprocmask(SIG_BLOCK, &blocked, NULL))
	PENDING();
	TIMED(0, ppoll(&wait, 1, &second, &none));
	HANDLED();
	PENDING();
	TIMED(0, pselect(fd + 1, &set, NULL, NULL, &second, &none));
	HANDLED();
	PENDING();
	TIMED(0, epoll_pwait(epoll, &event, 1, 1000, &none));
	HANDLED();
	PENDING();
	TIMED(0, epoll_pwait2(epoll, &event, 1, &second, &none));
	HANDLED();
	/* Kept out. */
	PENDING();
	TIMED(50, ppoll(&wait, 1, &short_time, &blocked));
	HANDLED();
	TIMED(50, poll(&wait, 1, 50));
	HANDLED();
	TIMED(50, epoll_pwait(epoll, &event, 1, 50, NULL));
	HANDLED();
	CLEAR();
	HANDLED();
	/* No time to wait: pending, not ready. */
	PENDING();
	DO(ppoll(&wait, 1, &zero, &none));
	HANDLED();
	CLEAR();
	PENDING();
	DO(epoll_pwait(epoll, &event, 1, 0, &none));
	HANDLED();
	CLEAR();
	/* Ready and pending: what is ready wins. */
	peer_say(there, 5000, "ready");
	barrier();
	PENDING();
	DO(ppoll(&wait, 1, &second, &none));
	HANDLED();
	CLEAR();
	PENDING();
	DO(pselect(fd + 1, &set, NULL, NULL, &second, &none));
	HANDLED();
	CLEAR();
	PENDING();
	DO(epoll_pwait(epoll, &event, 1, 1000, &none));
	HANDLED();
	CLEAR();
	/* The call's mask blocks what the thread's lets through. */
	sigprocmask(SIG_UNBLOCK, &blocked, NULL);
	must("recv", recv(fd, room, 10, 0));
	handled = 0;
	struct itimerval soon = { .it_value = { 0, 20000 } };
	struct sigaction before;
	sigaction(SIGALRM, &action, &before);
	sigset_t alarm_blocked;
	sigemptyset(&alarm_blocked);
	sigaddset(&alarm_blocked, SIGALRM);
	setitimer(ITIMER_REAL, &soon, NULL);
	TIMED(50, ppoll(&wait, 1, &short_time, &alarm_blocked));
	HANDLED();
	setitimer(ITIMER_REAL, &soon, NULL);
	TIMED(50, epoll_pwait(epoll, &event, 1, 50, &alarm_blocked));
	HANDLED();
	sigset_t now;
	sigprocmask(SIG_BLOCK, NULL, &now);
	line("  the mask is as it was: %d", !sigismember(&now, SIGALRM) && !sigismember(&now, SIGUSR1));
	sigaction(SIGALRM, &before, NULL);
	peer_close(there);
}

const probe_case wait_cases[] = {
	{ "poll_one", poll_one, false },
	{ "poll_mixed", poll_mixed, false },
	{ "poll_errors", poll_errors, false },
	{ "select_mixed", select_mixed, false },
	{ "many_sockets", many_sockets, false },
	{ "beyond", beyond, false },
	{ "masks", masks, false },
	{ NULL, NULL, false },
};
