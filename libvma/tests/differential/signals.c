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

/* A handler that its own signal may interrupt. Each signal that arrives while the library holds its lock is put
 * off, and must not be let in before. */
static volatile int values, sum, misplaced;

static void queued_handler(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	misplaced += info->si_code == SI_QUEUE && info->si_value.sival_int != values;
	values++;
	sum += info->si_value.sival_int;
}

static void handle_queued(int signal, int flags)
{
	struct sigaction action = { .sa_sigaction = queued_handler, .sa_flags = SA_SIGINFO | flags };
	must("sigaction", sigaction(signal, &action, NULL));
	values = sum = misplaced = 0;
}

/* So much that many signals arrive in the middle of a call. */
static void busy(stream on, int fd, int there)
{
	static char piece[64];
	long sent = 0, received = 0;
	peer_writes_much(on.there, 100000);
	for (int i = 0; i < 1500; i++) {
		/* A signal may end the kernel's send() after a part. */
		size_t at = 0;
		while (at < sizeof piece) {
			long result = send(on.fd, piece + at, sizeof piece - at, 0);
			if (result == -1 && errno != EINTR)
				break;
			at += result > 0 ? result : 0;
		}
		sent += at;
	}
	while (received < 100000) {
		long result = recv(on.fd, room, 200, 0);
		if (result <= 0 && errno != EINTR)
			break;
		received += result > 0 ? result : 0;
	}
	line("  sent %ld, received %ld", sent, received);
	peer_reads(on.there, sent);
	sent = 0;
	for (int i = 0; i < 500; i++)
		sent += sendto(fd, "many", 4, 0, ADDRESS(PEER, 6000)) == 4;
	line("  sent %ld", sent);
	peer_counts(there, 500);
}

static void often(int signal, timer_t *timer, int microseconds)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal };
	struct itimerspec when = { { 0, microseconds * 1000 }, { 0, microseconds * 1000 } };
	must("timer_create", timer_create(CLOCK_MONOTONIC, &event, timer));
	must("timer_settime", timer_settime(*timer, 0, &when, NULL));
}

static void *send_values(void *to)
{
	for (int i = 0; i < 300; i++) {
		union sigval value = { .sival_int = i };
		if (to)
			must("pthread_sigqueue", pthread_sigqueue(*(pthread_t *)to, SIGRTMIN + 1, value));
		else
			must("sigqueue", sigqueue(getpid(), SIGRTMIN + 1, value));
		usleep(100);
	}
	return NULL;
}

static void nested_handler(void)
{
	static const int flags[] = { SA_NODEFER, SA_NODEFER | SA_RESTART, SA_NODEFER | SA_ONSTACK, SA_RESTART };
	static char stack[65536];
	stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
	int there = peer_open(PEER, 6000), fd = udp(5000);
	must("sigaltstack", sigaltstack(&other, NULL));
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		stream on = connected();
		timer_t fast, slow;
		/* Two signals that may interrupt each other, at different times. */
		install(SIGUSR1, handler, flags[i]);
		install(SIGALRM, handler, flags[i]);
		handled = 0;
		often(SIGALRM, &fast, 200);
		often(SIGUSR1, &slow, 330);
		busy(on, fd, there);
		timer_delete(fast);
		timer_delete(slow);
		line("  handled: %d", handled > 20);
		close(on.fd);
	}
	peer_close(there);
}

/* Of signals that queue none is lost, and none comes twice. */
static void queued(void)
{
	pthread_t self = pthread_self(), thread;
	sigset_t set, before;
	int there = peer_open(PEER, 6000), fd = udp(5000);
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 1);
	for (int i = 0; i < 4; i++) {
		stream on = connected();
		bool directed = i & 1;
		handle_queued(SIGRTMIN + 1, SA_RESTART | (i & 2 ? SA_NODEFER : 0));
		pthread_sigmask(SIG_BLOCK, &set, &before);
		pthread_create(&thread, NULL, send_values, directed ? &self : NULL);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		busy(on, fd, there);
		pthread_join(thread, NULL);
		line("  %d values, sum %d", values, sum);
		/* A handler that is interrupted by its own signal comes behind that. */
		if (i == 0)
			line("  misplaced %d", misplaced);
		close(on.fd);
	}
	peer_close(there);
}

/* SA_NODEFER for a signal that the mask has all the same, and one that the handler raises in itself. */
static volatile int depth, deepest;

static void raising_handler(int signal)
{
	depth++;
	deepest = depth > deepest ? depth : deepest;
	if (depth < 3)
		raise(signal);
	depth--;
	handled++;
}

static void nesting(void)
{
	int fd = udp(5000);
	for (int masked = 0; masked < 2; masked++) {
		for (int nodefer = 0; nodefer < 2; nodefer++) {
			struct sigaction action = { .sa_handler = raising_handler,
				.sa_flags = nodefer ? SA_NODEFER : 0 };
			if (masked)
				sigaddset(&action.sa_mask, SIGUSR1);
			handled = deepest = 0;
			DO(sigaction(SIGUSR1, &action, NULL));
			if (!nodefer || masked)
				depth = 2;
			DO(raise(SIGUSR1));
			depth = 0;
			line("  handled %d, deepest %d", handled, deepest);
		}
	}
	/* What libc's older functions install. */
	depth = 2;
	line("  %d", sigset(SIGUSR1, raising_handler) == raising_handler);
	line("  %d", sigset(SIGUSR1, SIG_HOLD) == raising_handler);
	line("  %d", sigset(SIGUSR1, handler) == SIG_HOLD);
	line("  %d", sigset(SIGUSR1, SIG_IGN) == handler);
	line("  %d", sigset(99, handler) == SIG_ERR);
	line("  %d", sysv_signal(SIGUSR1, handler) == SIG_IGN);
	handled = 0;
	DO(raise(SIGUSR1));
	HANDLED();
	line("  %d", ssignal(SIGUSR1, handler) == SIG_DFL);
	/* They interrupt a wait as those of sigaction() do. */
	for (int i = 0; i < 4; i++) {
		struct pollfd wait = { fd, POLLIN, 0 };
		if (i == 0)
			sigset(SIGALRM, handler);
		else if (i == 1)
			sysv_signal(SIGALRM, handler);
		else
			signal(SIGALRM, handler);
		if (i == 2)
			siginterrupt(SIGALRM, 1);
		alarm_after(30);
		TIMED(30, i == 3 ? poll(&wait, 1, 1000) : recv(fd, room, 100, 0));
		HANDLED();
	}
	siginterrupt(SIGALRM, 0);
	siginterrupt(SIGUSR1, 1);
	signal(SIGUSR1, SIG_DFL);
}

const probe_case signal_cases[] = {
	{ "nested_handler", nested_handler, true, STREAMS_OURS },
	{ "queued", queued, true, STREAMS_OURS },
	{ "nesting", nesting, false },
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
