/* fork, exec and descriptors that are passed: sockets in more than one process. */
#include "prober.h"

#include <spawn.h>

extern char **environ;

static void both_ways(int fd, int there, int port)
{
	DO(sendto(fd, "out", 3, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	peer_say(there, port, "in");
	receive_from_shown(fd, 100, 0);
}

static void finish(pid_t child)
{
	int status = -1;
	waitpid(child, &status, 0);
	line("  child ends with %#x", status);
}

/* The child's own socket, while the parent's goes on. */
static void own_sockets(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	both_ways(fd, there, 5000);
	for (int i = 0; i < 3; i++) {
		pid_t child = fork();
		if (child == 0) {
			int own = udp(5001);
			both_ways(own, there, 5001);
			close(own);
			_exit(0);
		}
		finish(child);
		both_ways(fd, there, 5000);
	}
	/* Both at once. */
	int ready[2];
	must("pipe", pipe(ready));
	pid_t child = fork();
	if (child == 0) {
		int own = udp(5001);
		must("write", write(ready[1], "x", 1));
		receive_from_shown(own, 100, 0);
		_exit(0);
	}
	must("read", read(ready[0], room, 1));
	peer_say(there, 5000, "parent");
	receive_from_shown(fd, 100, 0);
	peer_say(there, 5001, "child");
	finish(child);
	both_ways(fd, there, 5000);
	peer_close(there);
}

/* The child has the parent's socket: it sends, and receives while the parent does not. */
static void inherited(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	both_ways(fd, there, 5000);
	pid_t child = fork();
	if (child == 0) {
		DO(sendto(fd, "from the child", 14, 0, ADDRESS(PEER, 6000)));
		_exit(0);
	}
	finish(child);
	peer_hears(there);
	both_ways(fd, there, 5000);
	child = fork();
	if (child == 0) {
		struct pollfd wait = { fd, POLLIN, 0 };
		DO(poll(&wait, 1, 1000));
		receive_from_shown(fd, 100, MSG_DONTWAIT);
		_exit(0);
	}
	usleep(50000);
	peer_say(there, 5000, "for the child");
	finish(child);
	both_ways(fd, there, 5000);
	/* What was queued before the fork is there for whoever reads first. */
	peer_say(there, 5000, "queued before");
	barrier();
	child = fork();
	if (child == 0) {
		receive_from_shown(fd, 100, MSG_DONTWAIT);
		_exit(0);
	}
	finish(child);
	receive_from_shown(fd, 100, MSG_DONTWAIT);
	peer_close(there);
}

/* The parent leaves the socket to the child, as daemons and servers that fork do. */
static void handed_over(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000), ready[2];
	must("pipe", pipe(ready));
	pid_t child = fork();
	if (child == 0) {
		must("read", read(ready[0], room, 1));
		struct timeval second = { 1, 0 };
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
		for (int i = 0; i < 2; i++) {
			peer_say(there, 5000, "for the child");
			receive_from_shown(fd, 100, 0);
			DO(sendto(fd, "from the child", 14, 0, ADDRESS(PEER, 6000)));
			peer_hears(there);
		}
		_exit(0);
	}
	DO(close(fd));
	must("write", write(ready[1], "x", 1));
	finish(child);
	/* And now it is free. */
	fd = DO(socket(AF_INET, SOCK_DGRAM, 0));
	DO(bind(fd, ADDRESS("0.0.0.0", 5000)));
	both_ways(fd, there, 5000);
	peer_close(there);
}

static int send_descriptor(int by, int fd)
{
	char control[CMSG_SPACE(sizeof fd)] = { 0 };
	struct msghdr message = { .msg_iov = &(struct iovec){ "x", 1 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	*CMSG_FIRSTHDR(&message) = (struct cmsghdr){ CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof fd);
	return sendmsg(by, &message, 0);
}

static int receive_descriptor(int by)
{
	int fd = -1;
	char byte, control[CMSG_SPACE(sizeof fd)] = { 0 };
	struct msghdr message = { .msg_iov = &(struct iovec){ &byte, 1 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	must("recvmsg", recvmsg(by, &message, 0));
	if (CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

static void passed(void)
{
	int there = peer_open(PEER, 6000), ends[2];
	must("socketpair", socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
	/* The child is older than the socket. */
	pid_t child = fork();
	if (child == 0) {
		int fd = receive_descriptor(ends[1]);
		struct timeval second = { 1, 0 };
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
		both_ways(fd, there, 5000);
		struct pollfd wait = { fd, POLLIN, 0 };
		DO(poll(&wait, 1, 0));
		_exit(0);
	}
	int fd = udp(5000);
	both_ways(fd, there, 5000);
	must("pass", send_descriptor(ends[0], fd));
	finish(child);
	both_ways(fd, there, 5000);
	/* To the same process: a copy. */
	int second = udp(5001);
	DO(send_descriptor(ends[0], second));
	int copy = receive_descriptor(ends[1]);
	DO(close(second));
	both_ways(copy, there, 5001);
	peer_close(there);
}

static void programs(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	both_ways(fd, there, 5000);
	DO(system("exit 3"));
	both_ways(fd, there, 5000);
	FILE *pipe = popen("echo from a program", "r");
	line("  %s", fgets(room, 100, pipe) ? text_of(room, 14) : "nothing");
	DO(pclose(pipe));
	both_ways(fd, there, 5000);
	pid_t child;
	char *words[] = { "true", NULL };
	DO(posix_spawnp(&child, "true", NULL, NULL, words, environ));
	finish(child);
	both_ways(fd, there, 5000);
	child = vfork();
	if (child == 0) {
		execlp("true", "true", (char *)NULL);
		_exit(9);
	}
	finish(child);
	both_ways(fd, there, 5000);
	/* A child that closes everything, as daemons do. */
	child = fork();
	if (child == 0) {
		for (int i = 3; i < 4096; i++)
			close(i);
		_exit(0);
	}
	finish(child);
	both_ways(fd, there, 5000);
	peer_close(there);
}

const probe_case process_cases[] = {
	{ "own_sockets", own_sockets, true }, /* the parent has the interface, the child the kernel */
	{ "inherited", inherited, true },     /* shared with another process: the kernel's */
	{ "handed_over", handed_over, true }, /* the same */
	{ "passed", passed, true },           /* the same */
	{ "programs", programs, false },
	{ NULL, NULL, false },
};
