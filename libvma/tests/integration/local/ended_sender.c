/* A process sends by COUNT connections and ends while its peer has read nothing of it; then another process than
 * the one that accepted them reads all.
 *
 *   ended_sender COUNT BYTES END READER WHEN
 *
 * END, of the sender: exit (with its sockets open), close (and exits), shut (down writing, and exits), cross (closes, and
 * exits while the reader gets the connections), kill (is killed).
 * READER: self, fork (a child), orphan (a child whose parent ends at once), exec (a program), pass (a process
 * that gets the descriptors by SCM_RIGHTS).
 * WHEN, of the link between client and server: linked (another connection waits first until the kernel sees no bytes of an
 * exchange), late (the client stops the server while it connects, so that all connections begin in the kernel).
 *
 * The server starts the client, which is gone before anything is read, unless it says cross. Says "whole" if every connection brought
 * all of its bytes and an end, and what it brought if not. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64 };

static int count, bytes, connections[MOST];
static char *self;

static void check(int ok, const char *what)
{
	if (!ok) {
		printf("%s: %s\n", what, strerror(errno));
		fflush(stdout);
		_exit(1);
	}
}

static char at(int connection, long offset)
{
	return (char)((offset * 2654435761u >> 13) + connection * 41);
}

/* Reads all of one connection, of which a byte was read. */
static int read_one(int fd, int which)
{
	static char room[1 << 16];
	long have = 1;
	for (;;) {
		struct pollfd one = {fd, POLLIN, 0};
		if (poll(&one, 1, 10000) == 0) {
			printf("connection %d: nothing after %ld bytes\n", which, have);
			return 0;
		}
		ssize_t got = read(fd, room, sizeof room);
		if (got < 0) {
			printf("connection %d: %s after %ld bytes\n", which, strerror(errno), have);
			return 0;
		}
		if (got == 0)
			break;
		for (ssize_t i = 0; i < got; i++, have++) {
			if (room[i] != at(which, have)) {
				printf("connection %d: wrong byte at %ld\n", which, have);
				return 0;
			}
		}
	}
	if (have != bytes)
		printf("connection %d: an end after %ld bytes\n", which, have);
	return have == bytes;
}

static void read_all(void)
{
	int whole = 1;
	for (int i = 0; i < count; i++)
		whole &= read_one(connections[i], i);
	if (whole)
		puts("whole");
	fflush(stdout);
	_exit(0);
}

/* A socket by which client and server say that all is sent, and that the connections are about to be handed on. */
enum { SIGN = 100 };

/* Bytes that the kernel has moved by a connection. */
static unsigned long long by_kernel(int fd)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof info;
	check(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0, "TCP_INFO");
	return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

/* Makes a connection before all others, and returns when the library serves it: from then on it serves each new one. */
static void await_link(const struct sockaddr_in *address)
{
	char byte;
	int fd = socket(AF_INET, SOCK_STREAM, 0), served = getenv("LD_PRELOAD") == NULL;
	check(connect(fd, (const void *)address, sizeof *address) == 0, "first connect");
	for (int i = 0; i < 5000 && !served; i++) {
		unsigned long long before = by_kernel(fd);
		check(write(fd, "p", 1) == 1 && read(fd, &byte, 1) == 1, "exchange");
		served = i > 0 && by_kernel(fd) == before;
		if (!served)
			usleep(1000);
	}
	errno = ETIMEDOUT;
	check(served, "the library does not serve the first connection");
	check(shutdown(fd, SHUT_WR) == 0 && read(fd, &byte, 1) == 0, "first end");
	close(fd);
}

static void serve_first(int listener)
{
	char byte;
	int fd = accept(listener, NULL, NULL);
	check(fd >= 0, "first accept");
	while (read(fd, &byte, 1) == 1)
		check(write(fd, &byte, 1) == 1, "first answer");
	close(fd);
}

static void client(const char *end, int port, int late)
{
	struct sockaddr_in address = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {0}};
	char *data = malloc(bytes), answer;
	if (late)
		kill(getppid(), SIGSTOP);
	else
		await_link(&address);
	for (int i = 0; i < count; i++) {
		connections[i] = socket(AF_INET, SOCK_STREAM, 0);
		check(connect(connections[i], (void *)&address, sizeof address) == 0, "connect");
	}
	if (late)
		kill(getppid(), SIGCONT);
	for (int i = 0; i < count; i++) {
		for (long k = 0; k < bytes; k++)
			data[k] = at(i, k);
		check(write(connections[i], data, 1) == 1, "first byte");
		check(read(connections[i], &answer, 1) == 1, "answer");
		check(write(connections[i], data + 1, bytes - 1) == bytes - 1, "write");
		if (strcmp(end, "close") == 0 || strcmp(end, "cross") == 0)
			close(connections[i]);
		else if (strcmp(end, "shut") == 0)
			shutdown(connections[i], SHUT_WR);
	}
	if (strcmp(end, "cross") == 0) {
		check(write(SIGN, "c", 1) == 1, "sign");
		check(read(SIGN, &answer, 1) == 1, "sign back");
	}
	if (strcmp(end, "kill") == 0)
		kill(getpid(), SIGKILL);
	exit(0);
}

/* Takes all connections from a socket, one in each message. */
static void take_all(int from)
{
	for (int i = 0; i < count; i++) {
		char byte, room[CMSG_SPACE(sizeof(int))] = {0};
		struct iovec data = {&byte, 1};
		struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
		check(recvmsg(from, &message, 0) == 1, "recvmsg");
		memcpy(&connections[i], CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	}
	read_all();
}

static void pass_all(int to)
{
	for (int i = 0; i < count; i++) {
		char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
		struct iovec data = {&byte, 1};
		struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &connections[i], sizeof(int));
		check(sendmsg(to, &message, 0) == 1, "sendmsg");
		close(connections[i]);
	}
}

static void server(const char *end, const char *reader, const char *when)
{
	int pair[2], status;
	pid_t helper = 0;
	check(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0, "socketpair");
	if (strcmp(reader, "pass") == 0 && (helper = fork()) == 0) {
		close(pair[0]);
		take_all(pair[1]);
	}
	struct sockaddr_in address = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {0}};
	socklen_t len = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	check(bind(listener, (void *)&address, len) == 0 && listen(listener, MOST) == 0, "listen");
	getsockname(listener, (void *)&address, &len);
	/* A listener that was waited on stays the parent's over a fork, and the client finds it whenever it connects. */
	struct pollfd ready = {listener, POLLIN, 0};
	check(poll(&ready, 1, 0) == 0, "poll");
	int sign[2], crosses = strcmp(end, "cross") == 0;
	check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sign) == 0, "socketpair");
	pid_t peer = fork();
	if (peer == 0) {
		dup2(sign[1], SIGN);
		char words[2][16], port[16];
		sprintf(words[0], "%d", count), sprintf(words[1], "%d", bytes), sprintf(port, "%d", ntohs(address.sin_port));
		execl(self, self, words[0], words[1], "client", end, when, port, NULL);
		_exit(1);
	}
	if (strcmp(when, "linked") == 0)
		serve_first(listener);
	for (int i = 0; i < count; i++) {
		connections[i] = accept(listener, NULL, NULL);
		check(connections[i] >= 0, "accept");
	}
	for (int i = 0; i < count; i++) {
		char byte;
		check(read(connections[i], &byte, 1) == 1 && byte == at(i, 0), "first byte");
		check(write(connections[i], "a", 1) == 1, "answer");
	}
	char byte;
	if (crosses)
		check(read(sign[0], &byte, 1) == 1 && write(sign[0], "s", 1) == 1, "sign");
	else
		check(waitpid(peer, &status, 0) == peer && (status == 0 || WIFSIGNALED(status)), "the client");
	if (strcmp(reader, "self") == 0)
		read_all();
	if (helper) {
		pass_all(pair[0]);
		waitpid(helper, NULL, 0);
		_exit(0);
	}
	pid_t child = fork();
	if (child == 0) {
		if (strcmp(reader, "exec") != 0)
			read_all();
		char words[MOST + 6][16], *arguments[MOST + 7] = {self};
		sprintf(words[1], "%d", count), sprintf(words[2], "%d", bytes), strcpy(words[3], "reader");
		for (int i = 0; i < count; i++)
			sprintf(words[4 + i], "%d", connections[i]);
		for (int i = 1; i < 4 + count; i++)
			arguments[i] = words[i];
		execv(self, arguments);
		_exit(1);
	}
	if (strcmp(reader, "orphan") != 0)
		waitpid(child, NULL, 0);
	exit(0);
}

int main(int argc, char **argv)
{
	self = argv[0];
	count = atoi(argv[1]), bytes = atoi(argv[2]);
	if (strcmp(argv[3], "client") == 0)
		client(argv[4], atoi(argv[6]), strcmp(argv[5], "late") == 0);
	if (strcmp(argv[3], "reader") == 0) {
		for (int i = 0; i < count; i++)
			connections[i] = atoi(argv[4 + i]);
		read_all();
	}
	(void)argc;
	/* Whoever is the last to end: all that is said has been said then. */
	int said[2];
	char room[4096];
	ssize_t got;
	check(pipe(said) == 0, "pipe");
	if (fork() == 0) {
		dup2(said[1], 1);
		close(said[0]), close(said[1]);
		server(argv[3], argv[4], argv[5]);
	}
	close(said[1]);
	while ((got = read(said[0], room, sizeof room)) > 0)
		check(write(1, room, got) == got, "write");
	exit(0);
}
