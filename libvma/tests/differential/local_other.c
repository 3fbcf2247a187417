/* One more program on this host, for the cases in which a process forks, execs or dies. */
#include "prober.h"

#include <sys/sendfile.h>

#define MUCH 300000

static int said = -1, told = -1;

pid_t other_start(const char *what, int port)
{
	int up[2], down[2];
	if (said >= 0)
		close(said);
	if (told >= 0)
		close(told);
	must("pipe", pipe(up));
	must("pipe", pipe(down));
	/* Above the descriptors that a case closes, or counts. */
	said = fcntl(up[0], F_DUPFD_CLOEXEC, 900);
	told = fcntl(down[1], F_DUPFD_CLOEXEC, 900);
	pid_t child = fork();
	must("fork", child);
	if (child == 0) {
		char number[12];
		snprintf(number, sizeof number, "%d", port);
		dup2(down[0], 0);
		dup2(up[1], 2);
		closefrom(3);
		preload_of_peers();
		execl("/proc/self/exe", "prober", "other", what, number, (char *)NULL);
		_exit(5);
	}
	close(up[0]);
	close(up[1]);
	close(down[0]);
	close(down[1]);
	return child;
}

/* Whatever the library says on stderr comes before. */
void other_ready(void)
{
	char byte = 0;
	struct pollfd wait = { said, POLLIN, 0 };
	while (byte != '\1') {
		if (poll(&wait, 1, 5000) != 1 || read(said, &byte, 1) != 1) {
			line("! the other program is not there");
			return;
		}
	}
}

void other_go(void)
{
	must("write to the other", write(told, "x", 1));
}

void other_ends(pid_t other)
{
	int status = -1;
	waitpid(other, &status, 0);
	line("  the other ends with %#x", status);
}

/* From here on: in the other program. */

static void ready(void)
{
	must("ready", write(2, "\1", 1));
}

static void until_told(void)
{
	char byte;
	must("told", read(0, &byte, 1));
}

static void readable_within(int milliseconds, int fd, int length)
{
	int there = 0;
	for (int i = 0; i < milliseconds && there < length; i++) {
		must("FIONREAD", ioctl(fd, FIONREAD, &there));
		usleep(1000);
	}
}

static void until_readable(int fd, int length)
{
	readable_within(2000, fd, length);
}

static void send_all(int fd, const char *bytes, long length)
{
	while (length > 0) {
		long sent = send(fd, bytes, length, MSG_NOSIGNAL);
		must("send", sent);
		bytes += sent;
		length -= sent;
	}
}

static void by_two(int fd)
{
	int turn[2];
	must("pipe", pipe(turn));
	pid_t child = fork();
	if (child == 0) {
		for (int i = 0; i < 3; i++) {
			send_all(fd, "child ", 6);
			must("turn", write(turn[1], "x", 1));
			usleep(20000);
		}
		_exit(0);
	}
	for (int i = 0; i < 3; i++) {
		char byte;
		must("turn", read(turn[0], &byte, 1));
		send_all(fd, "parent ", 7);
	}
	waitpid(child, NULL, 0);
	/* Both read, one after the other. */
	char bytes[16];
	child = fork();
	if (child == 0) {
		long length = recv(fd, bytes, 5, MSG_WAITALL);
		send_all(fd, bytes, length);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	long length = recv(fd, bytes, 5, MSG_WAITALL);
	send_all(fd, bytes, length);
}

static void to_a_child(int fd)
{
	if (fork() == 0) {
		char bytes[64];
		ready();
		until_told();
		for (;;) {
			long length = recv(fd, bytes, sizeof bytes, 0);
			if (length <= 0)
				_exit(0);
			send_all(fd, bytes, length);
		}
	}
	close(fd);
}

/* Half of what it has through a pipe, half from a file. */
static void by_sendfile_and_splice(int fd)
{
	char *bytes = stream_bytes(MUCH), name[] = "/tmp/prober-XXXXXX";
	int file = mkstemp(name), ends[2];
	long done = 0, half = MUCH / 2;
	must("mkstemp", file);
	unlink(name);
	must("write", write(file, bytes, half));
	off_t at = 0;
	while (at < half)
		must("sendfile", sendfile(fd, file, &at, half - at));
	must("pipe", pipe(ends));
	for (done = half; done < MUCH;) {
		long length = write(ends[1], bytes + done, MUCH - done > 16384 ? 16384 : MUCH - done);
		must("write", length);
		done += length;
		while (length > 0) {
			long moved = splice(ends[0], NULL, fd, NULL, length, 0);
			must("splice", moved);
			length -= moved;
		}
	}
	/* And back: what comes goes into a pipe. */
	for (done = 0; done < 10000;) {
		long moved = splice(fd, NULL, ends[1], NULL, 10000 - done, 0);
		must("splice", moved);
		done += moved;
		static char got[10000];
		must("read", read(ends[0], got, moved));
		send_all(fd, got, moved);
	}
}

/* Ends as the letters say: local_ends.c. */
static int end_so(const char *steps, int fd)
{
	char bytes[400];
	const struct linger abrupt = { 1, 0 };
	must("TCP_NODELAY", setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	for (int i = 0; i < 5; i++) {
		must("recv", recv(fd, bytes, 6, MSG_WAITALL));
		send_all(fd, bytes, 6);
	}
	until_told();
	for (; *steps; steps++)
		switch (*steps) {
		case 'r': ready(); break;
		case 't': until_told(); break;
		case 'w': send_all(fd, "its last words", 14); break;
		case 'u': until_readable(fd, 500); break; /* what it will not read */
		case 'l': readable_within(50, fd, 500); break; /* what never gets readable, as it is shut down */
		case 'g': must("recv", recv(fd, bytes, sizeof bytes, MSG_WAITALL)); break;
		case 'f': must("shutdown", shutdown(fd, SHUT_WR)); break;
		case 'b': must("shutdown", shutdown(fd, SHUT_RDWR)); break;
		case 'z': must("SO_LINGER", setsockopt(fd, SOL_SOCKET, SO_LINGER, &abrupt, sizeof abrupt)); break;
		case 'c': must("close", close(fd)); break;
		case 'x': _exit(0);
		case 'k': kill(getpid(), SIGKILL);
		}
	ready();
	pause();
	return 0;
}

static int serve(const char *steps, int port)
{
	int on = 1, listening = tcp();
	must("SO_REUSEADDR", setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
	must("bind", bind(listening, ADDRESS(HOST, port)));
	must("listen", listen(listening, 5));
	ready();
	int fd = accept(listening, NULL, NULL);
	must("accept", fd);
	return end_so(steps, fd);
}

/* Sends before it knows of a pipe, and again when it does. */
static int late(int fd)
{
	char byte;
	ready();
	until_told();
	recv(fd, &byte, 1, MSG_DONTWAIT);
	send_all(fd, stream_bytes(100), 100);
	ready();
	pause();
	return 0;
}

static int with_stream(const char *what, int port)
{
	int fd = tcp();
	must("connect", connect(fd, ADDRESS(HOST, port)));
	if (strncmp(what, "ends:", 5) == 0)
		return end_so(what + 5, fd);
	send_all(fd, "hello", 5);
	if (strcmp(what, "late") == 0)
		return late(fd);
	if (strcmp(what, "unsent") == 0) {
		send_all(fd, stream_bytes(MUCH), MUCH);
		_exit(0);
	}
	if (strcmp(what, "killed_unsent") == 0) {
		send_all(fd, stream_bytes(MUCH), MUCH);
		kill(getpid(), SIGKILL);
	}
	if (strcmp(what, "sendfile") == 0) {
		by_sendfile_and_splice(fd);
		return 0;
	}
	if (strcmp(what, "two") == 0) {
		by_two(fd);
		return 0;
	}
	if (strcmp(what, "child") == 0) {
		to_a_child(fd);
		return 0;
	}
	if (strcmp(what, "exec") == 0) {
		dup2(fd, 0);
		dup2(fd, 1);
		execlp("cat", "cat", (char *)NULL);
		return 9;
	}
	until_readable(fd, 6); /* what it will not read */
	ready();
	if (strcmp(what, "exit_unread") == 0) {
		until_told();
		_exit(0);
	}
	if (strcmp(what, "close_unread") == 0) {
		until_told();
		close(fd);
	}
	if (strcmp(what, "idle") == 0) {
		char bytes[6];
		recv(fd, bytes, 6, MSG_WAITALL);
		ready();
	}
	if (strcmp(what, "in_recv") == 0) {
		char bytes[64];
		recv(fd, bytes, 6, MSG_WAITALL);
		ready();
		recv(fd, bytes, sizeof bytes, 0);
	}
	pause();
	return 0;
}

/* Sends and gets back numbered datagrams. */
static int talk(int port)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct timeval patience = { 2, 0 };
	must("SO_RCVTIMEO", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
	must("connect", connect(fd, ADDRESS(HOST, port)));
	for (int i = 0; i < 200; i++) {
		int got = -1;
		must("send", send(fd, &i, sizeof i, 0));
		must("recv", recv(fd, &got, sizeof got, 0));
		if (got != i)
			return 4;
		usleep(100);
	}
	return 0;
}

static void *waits_for_end(void *nothing)
{
	char byte;
	while (read(0, &byte, 1) > 0)
		;
	_exit(0);
	return nothing;
}

/* One of several that share a port: counts what it gets until it is told. */
static int share(int port, bool streams)
{
	int on = 1, fd = socket(AF_INET, streams ? SOCK_STREAM : SOCK_DGRAM, 0), count = 0;
	must("SO_REUSEPORT", setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on));
	must("bind", bind(fd, ADDRESS(HOST, port)));
	if (streams)
		must("listen", listen(fd, 64));
	ready();
	struct pollfd wait[2] = { { fd, POLLIN, 0 }, { 0, POLLIN, 0 } };
	for (;;) {
		must("poll", poll(wait, 2, -1));
		if (wait[0].revents && streams) {
			int connection = accept(fd, NULL, NULL);
			must("accept", connection);
			send_all(connection, "other", 5);
			close(connection);
			count++;
		} else if (wait[0].revents) {
			char byte;
			struct sockaddr_storage from;
			socklen_t length = sizeof from;
			must("recvfrom", recvfrom(fd, &byte, 1, 0, (struct sockaddr *)&from, &length));
			must("sendto", sendto(fd, "other", 5, 0, (struct sockaddr *)&from, length));
			count++;
		} else {
			return count > 0 ? 0 : 3;
		}
	}
}

int other_main(const char *what, int port)
{
	pthread_t thread;
	if (strncmp(what, "serves:", 7) == 0)
		return serve(what + 7, port);
	if (strcmp(what, "talk") == 0)
		return talk(port);
	if (strcmp(what, "share") == 0)
		return share(port, false);
	if (strcmp(what, "share_streams") == 0)
		return share(port, true);
	if (strcmp(what, "idle_datagrams") == 0) {
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		must("bind", bind(fd, ADDRESS(HOST, port)));
		ready();
		pthread_create(&thread, NULL, waits_for_end, NULL);
		for (;;) {
			char bytes[64];
			struct sockaddr_storage from;
			socklen_t size = sizeof from;
			long length = recvfrom(fd, bytes, 64, 0, (struct sockaddr *)&from, &size);
			sendto(fd, bytes, length, 0, (struct sockaddr *)&from, size);
		}
	}
	return with_stream(what, port);
}
