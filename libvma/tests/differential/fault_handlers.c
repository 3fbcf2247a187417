/* SIGSEGV and SIGBUS are the program's, though the library has a handler of its own for bad pointers. */
#include "prober.h"
#include <setjmp.h>
#include <sys/mman.h>

static char *nowhere, *behind_a_file;
static sigjmp_buf back;
static volatile int runs;
static char other_stack[65536];

static void prepare(void)
{
	if (nowhere != NULL)
		return;
	nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	FILE *file = tmpfile();
	behind_a_file = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	fclose(file);
}

static void show(int signal)
{
	char here;
	sigset_t mask;
	sigprocmask(SIG_SETMASK, NULL, &mask);
	bool away = &here >= other_stack && &here < other_stack + sizeof other_stack;
	line("  signal %d, %s stack, blocked: itself %d, SIGUSR1 %d, SIGUSR2 %d", signal,
	     away ? "the other" : "the usual", sigismember(&mask, signal),
	     sigismember(&mask, SIGUSR1), sigismember(&mask, SIGUSR2));
}

static void plain(int signal)
{
	runs++;
	show(signal);
	siglongjmp(back, 1);
}

static void informed(int signal, siginfo_t *info, void *context)
{
	runs++;
	show(signal);
	long at = (char *)info->si_addr - (signal == SIGSEGV ? nowhere : behind_a_file);
	if (info->si_code > 0)
		line("  code %d, at %ld", info->si_code, at);
	else
		line("  code %d, of this process %d", info->si_code, info->si_pid == getpid());
	if (context == NULL)
		line("  no context");
	siglongjmp(back, 1);
}

/* The handler makes the page readable, and the instruction goes on. */
static void mends(int signal, siginfo_t *info, void *context)
{
	runs++;
	mprotect(nowhere, 4096, PROT_READ);
}

static void nests(int signal)
{
	show(signal);
	if (runs++ == 0)
		*(volatile char *)nowhere;
	siglongjmp(back, 1);
}

static void leaves(int signal)
{
	_exit(3);
}

static void show_action(int signal)
{
	struct sigaction now;
	if (DO(sigaction(signal, NULL, &now)) != 0)
		return;
	void *handler = (void *)now.sa_handler;
	line("  %s, flags %x, SIGUSR1 %d",
	     handler == (void *)SIG_DFL ? "default" : handler == (void *)SIG_IGN ? "ignored" :
	     handler == (void *)plain ? "plain" : handler == (void *)informed ? "informed" :
	     handler == (void *)mends ? "mends" : handler == (void *)nests ? "nests" :
	     handler == (void *)leaves ? "leaves" : "another",
	     (unsigned)now.sa_flags & ~0x4000000u, sigismember(&now.sa_mask, SIGUSR1));
}

static void install(int signal, void *handler, int flags)
{
	struct sigaction action = { .sa_handler = (void (*)(int))handler, .sa_flags = flags };
	sigemptyset(&action.sa_mask);
	sigaddset(&action.sa_mask, SIGUSR1);
	DO(sigaction(signal, &action, NULL));
	show_action(signal);
}

static void fault(int signal)
{
	if (sigsetjmp(back, 1) == 0)
		*(volatile char *)(signal == SIGSEGV ? nowhere + 100 : behind_a_file + 100);
	line("  %d runs", runs);
}

static void in_child(void (*what)(int), int argument)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		what(argument);
		fflush(stdout);
		_exit(7);
	}
	int status;
	waitpid(child, &status, 0);
	line("  the child: %s %d", WIFSIGNALED(status) ? "killed by" : "ended with",
	     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void sent(int signal)
{
	if (sigsetjmp(back, 1) == 0)
		kill(getpid(), signal);
	line("  %d runs", runs);
}

static void raised(int signal)
{
	if (sigsetjmp(back, 1) == 0)
		raise(signal);
	line("  %d runs", runs);
}

/* Bad pointers in calls are no faults of the program. */
static void calls(int fd)
{
	DO(recv(fd, nowhere, 10, MSG_DONTWAIT));
	DO(sendto(fd, nowhere, 10, 0, ADDRESS(PEER, 6000)));
	DO(sendto(fd, behind_a_file, 10, 0, ADDRESS(PEER, 6000)));
	DO(poll((struct pollfd *)nowhere, 1, 0));
	line("  %d runs", runs);
}

static void all_of(int signal, int fd)
{
	static void *const handlers[] = { plain, informed };
	stack_t other = { .ss_sp = other_stack, .ss_size = sizeof other_stack };
	for (int i = 0; i < 4; i++) {
		runs = 0;
		int flags = (i & 1 ? SA_SIGINFO : 0) | (i & 2 ? SA_ONSTACK : 0);
		install(signal, handlers[i & 1], flags);
		for (int stack = 0; stack < 2; stack++) {
			other.ss_flags = stack ? 0 : SS_DISABLE;
			DO(sigaltstack(&other, NULL));
			fault(signal);
			sent(signal);
			raised(signal);
			calls(fd);
		}
	}
}

/* The first case: no Internet socket has been made before. */
static void installed_before(void)
{
	prepare();
	install(SIGSEGV, informed, SA_SIGINFO | SA_ONSTACK);
	install(SIGBUS, plain, SA_RESTART);
	int fd = udp(5000);
	show_action(SIGSEGV);
	show_action(SIGBUS);
	runs = 0;
	fault(SIGSEGV);
	fault(SIGBUS);
	calls(fd);
	signal(SIGSEGV, SIG_DFL);
	signal(SIGBUS, SIG_DFL);
}

static void installed_after(void)
{
	prepare();
	int fd = udp(5000);
	calls(fd);
	show_action(SIGSEGV);
	all_of(SIGSEGV, fd);
	all_of(SIGBUS, fd);
	DO(signal(SIGSEGV, plain) == (void *)informed);
	show_action(SIGSEGV);
	fault(SIGSEGV);
	DO(sigset(SIGSEGV, SIG_DFL) == plain);
	DO(signal(SIGBUS, SIG_DFL) == (void *)informed);
	show_action(SIGSEGV);
}

static void by_default(void)
{
	prepare();
	int fd = udp(5000);
	signal(SIGSEGV, SIG_DFL);
	signal(SIGBUS, SIG_DFL);
	for (int signal = SIGBUS; signal <= SIGSEGV; signal += SIGSEGV - SIGBUS) {
		in_child(fault, signal);
		in_child(sent, signal);
		in_child(raised, signal);
	}
	in_child(calls, fd);
	DO(signal(SIGSEGV, SIG_IGN) == SIG_DFL);
	show_action(SIGSEGV);
	in_child(fault, SIGSEGV);
	in_child(sent, SIGSEGV);
	DO(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
	show_action(SIGSEGV);
	calls(fd);
}

static void twice(int signal)
{
	fault(signal);
	show_action(signal);
	fault(signal);
}

static void blocked(int signal)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, signal);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fault(signal);
}

static void special_flags(void)
{
	prepare();
	int fd = udp(5000);
	runs = 0;
	install(SIGSEGV, plain, SA_RESETHAND);
	in_child(twice, SIGSEGV);
	install(SIGSEGV, informed, SA_RESETHAND | SA_SIGINFO | SA_NODEFER);
	in_child(twice, SIGSEGV);
	install(SIGSEGV, nests, 0);
	in_child(fault, SIGSEGV);
	install(SIGSEGV, nests, SA_NODEFER);
	in_child(fault, SIGSEGV);
	in_child(blocked, SIGSEGV);
	install(SIGSEGV, mends, SA_SIGINFO);
	fault(SIGSEGV);
	mprotect(nowhere, 4096, PROT_NONE);
	calls(fd);
	/* A child that has this memory, but signal handlers of its own. */
	runs = 0;
	fflush(stdout);
	if (vfork() == 0) {
		signal(SIGSEGV, SIG_DFL);
		_exit(0);
	}
	show_action(SIGSEGV);
	fault(SIGSEGV);
	mprotect(nowhere, 4096, PROT_NONE);
	in_child(calls, fd);
	/* Its fault resets its own handler only. */
	install(SIGSEGV, leaves, SA_RESETHAND);
	fflush(stdout);
	pid_t child = vfork();
	if (child == 0) {
		*(volatile char *)nowhere;
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	line("  the child ended with %d", WEXITSTATUS(status));
	show_action(SIGSEGV);
	signal(SIGSEGV, SIG_DFL);
}

const probe_case fault_handler_cases[] = {
	{ "installed_before", installed_before },
	{ "installed_after", installed_after },
	{ "by_default", by_default },
	{ "special_flags", special_flags },
	{ NULL, NULL, false },
};
