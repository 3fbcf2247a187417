/* Streams of several descriptors and several processes: copies, fork, exec, passing. */
#include "prober.h"

static void copies(void)
{
	stream on = connected();
	int copy = DO(dup(on.fd));
	exchange((stream){ copy, on.there });
	DO(close(on.fd)); /* not the last one: no end */
	DO(send(on.fd, "x", 1, MSG_NOSIGNAL));
	exchange((stream){ copy, on.there });
	int high = DO(fcntl(copy, F_DUPFD, 70));
	DO(fcntl(copy, F_SETFL, O_NONBLOCK));
	DO(recv(high, room, 1, 0));
	DO(fcntl(high, F_SETFL, 0));
	SET(copy, SOL_TCP, TCP_NODELAY, 1);
	GET(high, SOL_TCP, TCP_NODELAY);
	DO(close(copy));
	exchange((stream){ high, on.there });
	/* Onto another one: that one ends. */
	stream other = connected();
	DO(dup2(high, other.fd));
	peer_reads_rest(other.there);
	exchange((stream){ other.fd, on.there });
	DO(close(high));
	/* shutdown is for all of them. */
	copy = DO(dup(other.fd));
	DO(shutdown(copy, SHUT_WR));
	DO(send(other.fd, "x", 1, MSG_NOSIGNAL));
	peer_reads_rest(on.there);
	DO(close(other.fd));
	peer_writes(on.there, "to the copy");
	receive_shown(copy, 11, MSG_WAITALL);
	DO(close(copy));
	/* Of a listener. */
	int listening = tcp_listener(HOST, 5000, 5);
	copy = DO(dup(listening));
	DO(close(listening));
	int there = peer_connect(HOST, 5000);
	exchange((stream){ DO(accept(copy, NULL, NULL)), there });
}

static void finish(pid_t child)
{
	int status = -1;
	waitpid(child, &status, 0);
	line("  child ends with %#x", status);
}

/* The child uses the connection while the parent has it, then both do. */
static void inherited(void)
{
	stream on = connected();
	exchange(on);
	pid_t child = fork();
	if (child == 0) {
		exchange(on);
		_exit(0);
	}
	finish(child);
	exchange(on);
	child = fork();
	if (child == 0) {
		receive_shown(on.fd, 100, 0);
		DO(close(on.fd));
		_exit(0);
	}
	usleep(50000);
	peer_writes(on.there, "for the child");
	finish(child);
	exchange(on);
	peer_writes(on.there, "queued before");
	barrier();
	child = fork();
	if (child == 0) {
		receive_shown(on.fd, 6, MSG_DONTWAIT);
		_exit(0);
	}
	finish(child);
	receive_shown(on.fd, 100, MSG_DONTWAIT);
	/* The child's shutdown is everybody's. */
	child = fork();
	if (child == 0) {
		DO(shutdown(on.fd, SHUT_WR));
		_exit(0);
	}
	finish(child);
	DO(send(on.fd, "x", 1, MSG_NOSIGNAL));
	peer_reads_rest(on.there);
}

/* As servers that fork do: accept, fork, close. */
static void served_by_children(void)
{
	int listening = tcp_listener(HOST, 5000, 5), ready[2];
	must("pipe", pipe(ready));
	for (int i = 0; i < 3; i++) {
		int there = peer_connect(HOST, 5000);
		int fd = DO(accept(listening, NULL, NULL));
		if (i == 1)
			peer_writes(there, "before the fork");
		barrier();
		pid_t child = fork();
		if (child == 0) {
			close(listening);
			must("read", read(ready[0], room, 1));
			if (i == 1)
				receive_shown(fd, 15, MSG_WAITALL);
			exchange((stream){ fd, there });
			_exit(0);
		}
		DO(close(fd));
		must("write", write(ready[1], "x", 1));
		finish(child);
		peer_reads_rest(there);
	}
	/* The child later, while nobody else has it. */
	int there = peer_connect(HOST, 5000);
	int fd = DO(accept(listening, NULL, NULL));
	pid_t child = fork();
	if (child == 0) {
		must("read", read(ready[0], room, 1));
		exchange((stream){ fd, there });
		exchange((stream){ fd, there });
		_exit(0);
	}
	DO(close(fd));
	peer_shows(there, POLLRDHUP);
	must("write", write(ready[1], "x", 1));
	finish(child);
	peer_reads_rest(there);
}

/* Children that accept from the parent's listener. */
static void accepted_by_children(void)
{
	int listening = tcp_listener(HOST, 5000, 5);
	for (int i = 0; i < 2; i++) {
		pid_t child = fork();
		if (child == 0) {
			int fd = DO(accept(listening, NULL, NULL));
			receive_shown(fd, 5, MSG_WAITALL);
			DO(send(fd, "child", 5, 0));
			_exit(0);
		}
		usleep(30000);
		int there = peer_connect(HOST, 5000);
		peer_writes(there, "hello");
		peer_reads_rest(there);
		finish(child);
	}
	int there = peer_connect(HOST, 5000);
	exchange((stream){ DO(accept(listening, NULL, NULL)), there });
}

/* A process of its own: its connections, and their end when it is killed. */
static void of_the_child(void)
{
	stream on = connected();
	exchange(on);
	int door = peer_listen(PEER, 6001, 5);
	pid_t child = fork();
	if (child == 0) {
		int fd = tcp();
		DO(connect(fd, ADDRESS(PEER, 6001)));
		exchange((stream){ fd, peer_accept(door) });
		_exit(0);
	}
	finish(child);
	exchange(on);
	int ready[2];
	must("pipe", pipe(ready));
	child = fork();
	if (child == 0) {
		close(on.fd);
		int fd = tcp();
		must("connect", connect(fd, ADDRESS(PEER, 6001)));
		must("write", write(ready[1], "x", 1));
		pause();
	}
	must("read", read(ready[0], room, 1));
	int there = peer_accept(door);
	kill(child, SIGKILL);
	finish(child);
	peer_shows(there, POLLRDHUP);
	exchange(on);
}

/* The program of a child that exec replaces: it has the connection as its standard streams. */
static void executed(void)
{
	stream on = accepted();
	exchange(on);
	pid_t child = fork();
	if (child == 0) {
		dup2(on.fd, 0);
		dup2(on.fd, 1);
		execlp("cat", "cat", (char *)NULL);
		_exit(9);
	}
	DO(close(on.fd));
	peer_writes(on.there, "through cat");
	peer_reads(on.there, 11);
	peer_shuts(on.there, SHUT_WR, 0);
	peer_reads_rest(on.there);
	finish(child);
	/* With close-on-exec it ends there, if it is the last one. */
	on = accepted();
	DO(fcntl(on.fd, F_SETFD, FD_CLOEXEC));
	child = fork();
	if (child == 0) {
		execlp("sleep", "sleep", "0.3", (char *)NULL);
		_exit(9);
	}
	usleep(100000);
	DO(close(on.fd));
	peer_shows(on.there, POLLRDHUP);
	peer_reads_rest(on.there);
	finish(child);
	/* Programs that have nothing to do with it. */
	on = accepted();
	exchange(on);
	DO(system("exit 3"));
	exchange(on);
	child = vfork();
	if (child == 0) {
		execlp("true", "true", (char *)NULL);
		_exit(9);
	}
	finish(child);
	exchange(on);
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
	int ends[2];
	must("socketpair", socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
	/* The child is older than the connection. */
	pid_t child = fork();
	if (child == 0) {
		int fd = receive_descriptor(ends[1]), there = receive_descriptor(ends[1]);
		line("  two descriptors: %d", fd >= 0 && there >= 0);
		receive_shown(fd, 6, MSG_WAITALL);
		DO(send(fd, "from the child", 14, 0));
		receive_shown(there, 14, MSG_WAITALL | MSG_DONTWAIT);
		_exit(0);
	}
	stream on = connected();
	exchange(on);
	peer_writes(on.there, "queued");
	barrier();
	must("pass", send_descriptor(ends[0], on.fd));
	must("pass", send_descriptor(ends[0], on.fd));
	finish(child);
	peer_reads(on.there, 14);
	exchange(on);
	/* To the same process: a copy that outlives the first one. */
	on = connected();
	DO(send_descriptor(ends[0], on.fd));
	DO(close(on.fd));
	peer_writes(on.there, "in between");
	int copy = receive_descriptor(ends[1]);
	receive_shown(copy, 10, MSG_WAITALL);
	exchange((stream){ copy, on.there });
	DO(close(copy));
	peer_reads_rest(on.there);
}

/* Number by number, as closing of all descriptors does. */
static void closed_in_ranges(void)
{
	stream on = connected(), other = connected();
	DO(close_range(other.fd, other.fd, 0));
	peer_reads_rest(other.there);
	exchange(on);
	int high = DO(fcntl(on.fd, F_DUPFD, 60));
	DO(close(on.fd));
	closefrom(60);
	DO(recv(high, room, 1, 0));
	peer_reads_rest(on.there);
}

const probe_case tcp_process_cases[] = {
	{ "copies", copies, false, STREAMS_OURS },
	{ "closed_in_ranges", closed_in_ranges, false, STREAMS_OURS },
	{ "inherited", inherited, true, STREAMS_SHARED },
	{ "served_by_children", served_by_children, true, STREAMS_SHARED },
	{ "accepted_by_children", accepted_by_children, true, STREAMS_SHARED },
	{ "of_the_child", of_the_child, true, STREAMS_SHARED },
	{ "executed", executed, true, STREAMS_SHARED },
	{ "passed", passed, true, STREAMS_SHARED },
	{ NULL, NULL, false },
};
