/* Signals: what they interrupt, what they restart, and what is told of their handlers. */
#include "prober.h"

#include <setjmp.h>

static volatile int handled, handler_socket = -1;

static void handler(int signal)
{
	(void)signal;
	handled++;
}

static void install(int signal, void (*function)(int), int flags)
{
	struct sigaction action = { .sa_handler = function, .sa_flags = flags };
	must("sigaction", sigaction(signal, &action, NULL));
}

static void alarm_after(int milliseconds)
{
	struct itimerval soon = { .it_value = { 0, milliseconds * 1000 } };
	handled = 0;
	must("setitimer", setitimer(ITIMER_REAL, &soon, NULL));
}

#define HANDLED() line("  handled %d", handled)

/* Every waiting call, interrupted after 50 ms; datagrams come after 120 ms for those that go on. */
static void interrupted(int flags)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 1 };
	struct pollfd wait = { fd, POLLIN, 0 };
	struct timeval limit = { 0, 300000 }, forever = { 0, 0 };
	struct timespec half = { 0, 500000000 };
	struct iovec part = { room, 100 };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } };
	fd_set set;
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	install(SIGALRM, handler, flags);
#define SOON(call, expected) do { \
		alarm_after(50); \
		FD_ZERO(&set); \
		FD_SET(fd, &set); \
		TIMED(expected, call); \
		HANDLED(); \
	} while (0)
	int ends = flags & SA_RESTART ? 120 : 50;
#define GOES_ON(call) do { \
		if (flags & SA_RESTART) \
			peer_say_later(there, 5000, "after the signal", 120); \
		SOON(call, ends); \
	} while (0)
	GOES_ON(recv(fd, room, 100, 0));
	GOES_ON(recvfrom(fd, room, 100, 0, NULL, NULL));
	GOES_ON(read(fd, room, 100));
	GOES_ON(readv(fd, &part, 1));
	GOES_ON(recvmsg(fd, &message.msg_hdr, 0));
	GOES_ON(recvmmsg(fd, &message, 1, 0, NULL));
	/* With a timeout, or one of these, nothing is restarted. */
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	SOON(recv(fd, room, 100, 0), 50);
	SOON(recvmmsg(fd, &message, 1, 0, NULL), 50);
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever));
	SOON(poll(&wait, 1, 500), 50);
	SOON(poll(&wait, 1, -1), 50);
	SOON(ppoll(&wait, 1, &half, NULL), 50);
	SOON(select(fd + 1, &set, NULL, NULL, NULL), 50);
	limit = (struct timeval){ 0, 500000 };
	SOON(select(fd + 1, &set, NULL, NULL, &limit), 50);
	line("  time left: %d", limit.tv_usec > 300000 && limit.tv_usec < 460000);
	line("  the set is as it was: %d", FD_ISSET(fd, &set) != 0);
	SOON(pselect(fd + 1, &set, NULL, NULL, &half, NULL), 50);
	SOON(epoll_wait(epoll, &event, 1, 500), 50);
	SOON(epoll_wait(epoll, &event, 1, -1), 50);
	SOON(epoll_pwait(epoll, &event, 1, 500, NULL), 50);
	SOON(epoll_pwait2(epoll, &event, 1, &half, NULL), 50);
	/* The socket is as good as before. */
	peer_say(there, 5000, "still here");
	receive_shown(fd, 100, 0);
	peer_close(there);
}

static void interrupting(void)
{
	interrupted(0);
}

static void restarting(void)
{
	interrupted(SA_RESTART);
}

/* Signals nobody handles interrupt nothing. */
static void ignored(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	struct pollfd wait = { fd, POLLIN, 0 };
	install(SIGALRM, SIG_IGN, 0);
	alarm_after(30);
	TIMED(80, poll(&wait, 1, 80));
	alarm_after(30);
	peer_say_later(there, 5000, "late", 80);
	TIMED(80, recv(fd, room, 100, 0));
	/* SIGCHLD is ignored unless handled. */
	if (fork() == 0) {
		usleep(20000);
		_exit(0);
	}
	TIMED(80, poll(&wait, 1, 80));
	waitpid(-1, NULL, 0);
	/* Blocked: pending until it may come. */
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGALRM);
	install(SIGALRM, handler, 0);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	alarm_after(30);
	TIMED(80, poll(&wait, 1, 80));
	HANDLED();
	peer_say_later(there, 5000, "late", 50);
	TIMED(50, recv(fd, room, 100, 0));
	HANDLED();
	sigprocmask(SIG_UNBLOCK, &blocked, NULL);
	HANDLED();
	/* To another thread or earlier: not this call's. */
	raise(SIGALRM);
	TIMED(30, poll(&wait, 1, 30));
	peer_close(there);
}

static void informed(int signal, siginfo_t *info, void *context)
{
	handled += info->si_signo == signal && context != NULL;
}

static void show_action(const struct sigaction *action)
{
	line("  %s, flags %#x, SIGUSR2 in mask %d",
	     action->sa_handler == SIG_DFL ? "default"
	     : action->sa_handler == SIG_IGN ? "ignore"
	     : action->sa_handler == handler ? "handler"
	     : action->sa_sigaction == informed ? "informed" : "something else",
	     (unsigned)action->sa_flags & ~0x04000000u, sigismember(&action->sa_mask, SIGUSR2));
}

static void told(void)
{
	static const int flags[] = { 0, SA_RESTART, SA_SIGINFO, SA_NODEFER, SA_RESETHAND, SA_ONSTACK,
		SA_RESTART | SA_SIGINFO | SA_NODEFER, SA_NOCLDSTOP, SA_NOCLDWAIT };
	int fd = udp(5000);
	struct sigaction action, old;
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		memset(&action, 0, sizeof action);
		if (flags[i] & SA_SIGINFO)
			action.sa_sigaction = informed;
		else
			action.sa_handler = handler;
		action.sa_flags = flags[i];
		sigaddset(&action.sa_mask, SIGUSR2);
		handled = 0;
		DO(sigaction(SIGUSR1, &action, &old));
		show_action(&old);
		DO(raise(SIGUSR1));
		HANDLED();
		DO(sigaction(SIGUSR1, NULL, &old));
		show_action(&old);
		DO(sigaction(SIGUSR1, &old, NULL)); /* what was told works */
		install(SIGUSR1, flags[i] & SA_RESETHAND ? SIG_IGN : old.sa_handler, old.sa_flags);
		DO(raise(SIGUSR1));
		HANDLED();
	}
	DO(sigaction(SIGKILL, &action, NULL));
	DO(sigaction(0, &action, NULL));
	DO(sigaction(65, NULL, &old));
	DO(sigaction(-1, &action, NULL));
	DO(sigaction(SIGKILL, NULL, &old));
	line("  %d", signal(SIGUSR1, SIG_IGN) == (void (*)(int))informed);
	line("  %d", signal(SIGUSR1, handler) == SIG_IGN);
	line("  %d", signal(SIGUSR1, SIG_DFL) == handler);
	DO(signal(SIGKILL, handler));
	DO(signal(99, handler));
	sysv_signal(SIGUSR1, handler);
	sigaction(SIGUSR1, NULL, &old);
	show_action(&old);
	siginterrupt(SIGUSR1, 1);
	sigaction(SIGUSR1, NULL, &old);
	show_action(&old);
	(void)fd;
	signal(SIGUSR1, SIG_DFL);
}

/* The handler uses the very socket that the interrupted call waits on. */
static void sending_handler(int signal)
{
	(void)signal;
	handled++;
	if (sendto(handler_socket, "from the handler", 16, 0, ADDRESS(PEER, 6000)) != 16)
		handled += 100;
}

static void receiving_handler(int signal)
{
	char byte[100];
	int before = errno;
	(void)signal;
	long length = recv(handler_socket, byte, sizeof byte, MSG_DONTWAIT);
	handled += length == -1 && errno == EAGAIN ? 1 : 1000;
	struct pollfd wait = { handler_socket, POLLIN, 0 };
	handled += poll(&wait, 1, 0) == 0 ? 10 : 1000;
	errno = before;
}

static void busy_handler(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	struct pollfd wait = { fd, POLLIN, 0 };
	handler_socket = fd;
	install(SIGALRM, sending_handler, SA_RESTART);
	for (int i = 0; i < 5; i++) {
		alarm_after(20 + i);
		peer_say_later(there, 5000, "reply", 60);
		TIMED(60, recv(fd, room, 100, 0));
		HANDLED();
		peer_hears(there);
	}
	alarm_after(20);
	TIMED(20, poll(&wait, 1, 200));
	HANDLED();
	peer_hears(there);
	install(SIGALRM, receiving_handler, SA_RESTART);
	for (int i = 0; i < 5; i++) {
		alarm_after(20 + i);
		peer_say_later(there, 5000, "reply", 60);
		TIMED(60, recv(fd, room, 100, 0));
		HANDLED();
	}
	/* Many signals while many datagrams are sent and received: none lost, none twice. */
	install(SIGALRM, handler, SA_RESTART);
	struct itimerval often = { { 0, 300 }, { 0, 300 } };
	int sent = 0, received = 0;
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < 300; i++) {
		sent += sendto(fd, "many", 4, 0, ADDRESS(PEER, 6000)) == 4;
		if (i % 3 == 0) {
			peer_say(there, 5000, "many");
			received += recv(fd, room, 100, 0) == 4;
		}
	}
	often = (struct itimerval){ { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &often, NULL);
	line("  sent %d, received %d", sent, received);
	peer_counts(there, 300);
	peer_close(there);
}

const probe_case signal_cases[] = {
	{ "interrupting", interrupting, false },
	{ "restarting", restarting, false },
	{ "ignored", ignored, false },
	{ "told", told, false },
	{ "busy_handler", busy_handler, true }, /* a handler above our own lock sends by the kernel */
	{ NULL, NULL, false },
};

/* A handler that does not return: the socket and everything else still work. */
static sigjmp_buf back;

static void jumping_handler(int signal)
{
	(void)signal;
	handled++;
	siglongjmp(back, 1);
}

static void jump_out(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 1 };
	struct pollfd wait = { fd, POLLIN, 0 };
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	install(SIGALRM, jumping_handler, 0);
	for (volatile int i = 0; i < 30; i++) {
		alarm_after(10);
		if (sigsetjmp(back, 1) == 0) {
			if (i % 3 == 0)
				DO(recv(fd, room, 100, 0));
			else if (i % 3 == 1)
				DO(poll(&wait, 1, -1));
			else
				DO(epoll_wait(epoll, &event, 1, -1));
		}
		HANDLED();
		DO(sendto(fd, "still here", 10, 0, ADDRESS(PEER, 6000)));
		peer_hears(there);
		peer_say(there, 5000, "so am I");
		TIMED(0, recv(fd, room, 100, 0));
	}
	peer_close(there);
}

const probe_case longjmp_cases[] = {
	{ "jump_out", jump_out, false },
	{ NULL, NULL, false },
};
