/* Sending on a stream: every call, what does not fit, what is held back, what is broken. */
#include "prober.h"

#include <sys/sendfile.h>

#define LARGE 1000000

/* To a peer that takes little before it reads. */
static stream narrow(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = tcp();
	peer_set(door, SOL_SOCKET, SO_RCVBUF, 10000);
	set(fd, SOL_SOCKET, SO_SNDBUF, 20000);
	must("connect", connect(fd, ADDRESS(PEER, 6000)));
	stream made = { fd, peer_accept(door) };
	peer_ends(door, 0);
	return made;
}

/* Until not even a byte fits, for long enough that no timer of TCP makes room any more. What fits
 * is a matter of how buffers are counted: not shown. */
static long fill(int fd, long from)
{
	char *bytes = stream_bytes(LARGE);
	long sent, size = LARGE / 2;
	for (int quiet = 0; quiet < 6 && from < LARGE / 2; quiet++) {
		while ((sent = send(fd, bytes + from, size, MSG_DONTWAIT)) > 0) {
			from += sent;
			quiet = 0;
		}
		size = 1;
		usleep(50000);
	}
	line("  full: %d %s", from > 0 && from < LARGE / 2, error_name(errno));
	return from;
}

static void whole(void)
{
	stream on = connected();
	int fd = on.fd;
	DO(send(fd, "send", 4, 0));
	peer_reads(on.there, 4);
	DO(write(fd, "write", 5));
	peer_reads(on.there, 5);
	struct iovec parts[] = { { "one", 3 }, { NULL, 0 }, { "two", 3 }, { "", 0 }, { "3", 1 } };
	DO(writev(fd, parts, 5));
	peer_reads(on.there, 7);
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 5 };
	DO(sendmsg(fd, &message, 0));
	peer_reads(on.there, 7);
	struct mmsghdr several[3] = { { message }, { message }, { message } };
	DO(sendmmsg(fd, several, 3, 0));
	line("  lengths %d %d %d", several[0].msg_len, several[1].msg_len, several[2].msg_len);
	peer_reads(on.there, 21);
	DO(sendto(fd, "sendto", 6, 0, NULL, 0));
	peer_reads(on.there, 6);
	DO(send(fd, "x", 0, 0));
	DO(send(fd, NULL, 0, 0));
	DO(write(fd, NULL, 0));
	DO(writev(fd, parts, 0));
	DO(writev(fd, NULL, 0));
	message = (struct msghdr){ 0 };
	DO(sendmsg(fd, &message, 0));
	DO(sendmmsg(fd, several, 0, 0));
	FILE *file = fdopen(dup(fd), "w");
	fprintf(file, "%s", "by a FILE");
	DO(fclose(file));
	peer_reads(on.there, 9);
	dprintf(fd, "%d", 12345);
	peer_reads(on.there, 5);
	exchange(on);
	DO(close(fd));
	peer_reads_rest(on.there);
}

/* An address is of no use on a stream that has one. */
static void addressed(void)
{
	stream on = connected();
	struct sockaddr_in other = at(OTHER, 6001);
	struct iovec part = { "four", 4 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1,
		.msg_name = &other, .msg_namelen = sizeof other };
	DO(sendto(on.fd, "one", 3, 0, ADDRESS(PEER, 6000)));
	DO(sendto(on.fd, "two", 3, 0, ADDRESS(OTHER, 6001)));
	DO(sendto(on.fd, "three", 5, 0, (struct sockaddr *)&other, 3));
	DO(sendmsg(on.fd, &message, 0));
	other.sin_family = 77;
	DO(sendmsg(on.fd, &message, 0));
	DO(sendto(on.fd, "five", 4, 0, (void *)16, 16));
	DO(sendto(on.fd, "six", 3, 0, (struct sockaddr *)&other, 1000));
	peer_reads(on.there, 19);
	exchange(on);
}

static void flags(void)
{
	stream on = connected();
	static const int given[] = { MSG_DONTWAIT, MSG_NOSIGNAL, MSG_EOR, MSG_CONFIRM, MSG_DONTROUTE,
		MSG_WAITALL, MSG_PEEK, MSG_TRUNC, MSG_ZEROCOPY, MSG_PROXY, MSG_CTRUNC, 0x200000 };
	for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
		char call[40];
		snprintf(call, sizeof call, "send with %#x", given[i]);
		errno = UNTOUCHED;
		report(call, send(on.fd, "x", 1, given[i]));
		peer_reads(on.there, 1);
	}
	exchange(on);
}

/* Held back, then sent together. */
static void held_back(void)
{
	stream on = connected();
	DO(send(on.fd, "one ", 4, MSG_MORE));
	DO(send(on.fd, "two ", 4, MSG_MORE));
	DO(send(on.fd, "three", 5, 0));
	peer_reads(on.there, 13);
	DO(send(on.fd, "late", 4, MSG_MORE)); /* not for ever */
	peer_reads(on.there, 4);
	SET(on.fd, SOL_TCP, TCP_CORK, 1);
	DO(write(on.fd, "one ", 4));
	DO(write(on.fd, "two", 3));
	SET(on.fd, SOL_TCP, TCP_CORK, 0);
	peer_reads(on.there, 7);
	SET(on.fd, SOL_TCP, TCP_CORK, 1);
	DO(write(on.fd, "before the end", 14));
	DO(shutdown(on.fd, SHUT_WR));
	peer_reads_rest(on.there);
	DO(close(on.fd));
	/* Setting TCP_NODELAY sends what the cork holds (tcp(7)), and the cork stays. */
	on = connected();
	SET(on.fd, SOL_TCP, TCP_CORK, 1);
	DO(write(on.fd, "uncorked", 8));
	watch_start();
	SET(on.fd, SOL_TCP, TCP_NODELAY, 1);
	peer_reads(on.there, 8);
	report_timed("TCP_NODELAY on a corked stream", 0, 0);
	DO(write(on.fd, "corked", 6));
	SET(on.fd, SOL_TCP, TCP_NODELAY, 0);
	peer_reads(on.there, 6);
	on = connected();
	SET(on.fd, SOL_TCP, TCP_CORK, 1);
	SET(on.fd, SOL_TCP, TCP_NODELAY, 1);
	GET(on.fd, SOL_TCP, TCP_CORK);
	GET(on.fd, SOL_TCP, TCP_NODELAY);
	DO(write(on.fd, "before close", 12));
	DO(close(on.fd));
	peer_reads_rest(on.there);
	on = connected();
	SET(on.fd, SOL_TCP, TCP_NODELAY, 1);
	for (int i = 0; i < 20; i++)
		must("send", send(on.fd, "many small ones.", 16, 0));
	peer_reads(on.there, 320);
}

static void partial(void)
{
	stream on = narrow();
	show_ready(on.fd, POLLOUT, 0);
	long sent = fill(on.fd, 0);
	show_ready(on.fd, POLLOUT, 20);
	DO(fcntl(on.fd, F_SETFL, O_NONBLOCK));
	TIMED(0, write(on.fd, "x", 1));
	DO(fcntl(on.fd, F_SETFL, 0));
	/* Drained: writable again. */
	struct pollfd wait = { on.fd, POLLOUT, 0 };
	peer_reads_later(on.there, LARGE, 50);
	TIMED(50, poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	char *bytes = stream_bytes(LARGE);
	long left = LARGE - sent;
	line("  the rest in one: %d", send(on.fd, bytes + sent, left, 0) == left);
	peer_has_read();
	acknowledged(on.fd);
	show_ready(on.fd, POLLOUT, 0);
	exchange(on);
}

/* A blocking call takes all of it, by whatever call. */
static void large(void)
{
	stream on = narrow();
	char *bytes = stream_bytes(LARGE);
	peer_reads_later(on.there, LARGE, 20);
	DO(write(on.fd, bytes, LARGE));
	peer_has_read();
	struct iovec parts[] = { { bytes, 300001 }, { bytes + 300001, 7 }, { bytes + 300008, 699992 } };
	peer_reads_later(on.there, LARGE, 20);
	DO(writev(on.fd, parts, 3));
	peer_has_read();
	struct mmsghdr several[3];
	for (int i = 0; i < 3; i++)
		several[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
	peer_reads_later(on.there, LARGE, 20);
	DO(sendmmsg(on.fd, several, 3, 0));
	line("  lengths %d %d %d", several[0].msg_len, several[1].msg_len, several[2].msg_len);
	peer_has_read();
	/* What was sent before the end arrives, although the socket is gone. */
	peer_reads_later(on.there, 2 * LARGE, 20);
	DO(send(on.fd, bytes, LARGE, 0));
	DO(close(on.fd));
	peer_has_read();
}

static void limited(void)
{
	stream on = narrow();
	struct timeval limit = { 0, 50000 };
	DO(setsockopt(on.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
	char *bytes = stream_bytes(LARGE);
	watch_start();
	long sent = send(on.fd, bytes, LARGE, 0);
	errno = UNTOUCHED;
	report_timed("a part of it", sent > 0 && sent < LARGE, 50);
	fill(on.fd, sent);
	TIMED(50, send(on.fd, "x", 1, 0));
	TIMED(50, write(on.fd, "x", 1));
	TIMED(0, send(on.fd, "x", 1, MSG_DONTWAIT));
	count_signal(SIGALRM, SA_RESTART);
	alarm_in(20);
	TIMED(20, send(on.fd, "x", 1, 0));
	SIGNALS();
	limit.tv_usec = 0;
	DO(setsockopt(on.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
	count_signal(SIGALRM, 0);
	alarm_in(20);
	TIMED(20, send(on.fd, "x", 1, 0));
	alarm_in(20);
	TIMED(20, write(on.fd, bytes, 100));
	SIGNALS();
	/* What had been taken is told, even if it is restarted. */
	count_signal(SIGALRM, SA_RESTART);
	on = narrow();
	alarm_in(50);
	watch_start();
	sent = send(on.fd, bytes, LARGE, 0);
	errno = UNTOUCHED;
	report_timed("a part of it", sent > 0 && sent < LARGE, 50);
	SIGNALS();
	/* Restarted, with nothing taken. */
	sent = fill(on.fd, sent);
	alarm_in(20);
	peer_reads_later(on.there, sent, 80);
	TIMED(80, send(on.fd, "x", 1, 0));
	SIGNALS();
}

static void broken(void)
{
	stream on = connected();
	struct iovec part = { "x", 1 };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } };
	count_signal(SIGPIPE, 0);
	DO(shutdown(on.fd, SHUT_WR));
	DO(send(on.fd, "x", 1, 0));
	SIGNALS();
	DO(send(on.fd, "x", 1, MSG_NOSIGNAL));
	SIGNALS();
	DO(send(on.fd, "x", 0, 0));
	SIGNALS();
	DO(write(on.fd, "x", 1));
	SIGNALS();
	DO(writev(on.fd, &part, 1));
	SIGNALS();
	DO(sendmsg(on.fd, &message.msg_hdr, 0));
	SIGNALS();
	DO(sendmmsg(on.fd, &message, 1, 0));
	SIGNALS();
	DO(sendmmsg(on.fd, &message, 1, MSG_NOSIGNAL));
	SIGNALS();
	DO(send(on.fd, "x", 1, MSG_OOB));
	SIGNALS();
	DO(sendto(on.fd, "x", 1, 0, ADDRESS(PEER, 6000)));
	SIGNALS();
	DO(send(on.fd, NULL, 1, MSG_DONTWAIT));
	SIGNALS();
	show_ready(on.fd, POLLOUT, 0);
	show_error(on.fd);
	/* Blocked, it is pending. */
	sigset_t blocked, pending;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGPIPE);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	DO(send(on.fd, "x", 1, 0));
	sigpending(&pending);
	SIGNALS();
	line("  pending %d", sigismember(&pending, SIGPIPE));
	sigprocmask(SIG_UNBLOCK, &blocked, NULL);
	SIGNALS();
	signal(SIGPIPE, SIG_IGN);
	DO(send(on.fd, "x", 1, 0));
	/* The peer goes on sending. */
	peer_reads_rest(on.there);
	peer_writes(on.there, "still here");
	receive_shown(on.fd, 10, MSG_WAITALL);
}

/* By default it ends the program. */
static void ends_the_program(void)
{
	pid_t child = fork();
	if (child == 0) {
		stream on = connected();
		signal(SIGPIPE, SIG_DFL);
		shutdown(on.fd, SHUT_WR);
		DO(send(on.fd, "x", 1, MSG_NOSIGNAL));
		DO(send(on.fd, "x", 1, 0));
		_exit(0);
	}
	int status = 0;
	waitpid(child, &status, 0);
	line("  child ends with %#x", status);
}

/* What waits to be sent, and what of it was not sent yet. */
static void queues(void)
{
	stream on = narrow();
	int value = 77;
	DO(ioctl(on.fd, SIOCOUTQ, &value));
	line("  %d", value);
	DO(ioctl(on.fd, SIOCOUTQNSD, &value));
	line("  %d", value);
	DO(send(on.fd, "12345", 5, 0));
	acknowledged(on.fd);
	long sent = fill(on.fd, 0);
	usleep(50000);
	int unsent = 0;
	DO(ioctl(on.fd, SIOCOUTQ, &value));
	DO(ioctl(on.fd, SIOCOUTQNSD, &unsent));
	line("  %d %d", value > 0 && value < sent, unsent > 0 && unsent <= value);
	peer_reads_later(on.there, 5 + sent, 1);
	acknowledged(on.fd);
	DO(ioctl(on.fd, SIOCOUTQNSD, &unsent));
	line("  %d", unsent);
	DO(ioctl(on.fd, SIOCOUTQ, (void *)16));
	/* The end counts until it is acknowledged. */
	DO(shutdown(on.fd, SHUT_WR));
	acknowledged(on.fd);
}

static int file_of(long length)
{
	char name[] = "/tmp/prober-XXXXXX";
	int fd = mkstemp(name);
	must("mkstemp", fd);
	unlink(name);
	must("write", write(fd, stream_bytes(length), length));
	return fd;
}

static void files(void)
{
	stream on = connected();
	int file = file_of(300000);
	off_t offset = 100;
	DO(sendfile(on.fd, file, &offset, 1000));
	line("  offset %ld, position %ld", (long)offset, (long)lseek(file, 0, SEEK_CUR));
	peer_reads(on.there, 1000);
	lseek(file, 10, SEEK_SET);
	DO(sendfile(on.fd, file, NULL, 20));
	line("  position %ld", (long)lseek(file, 0, SEEK_CUR));
	peer_reads(on.there, 20);
	offset = 0;
	peer_reads_later(on.there, 300000, 1);
	DO(sendfile(on.fd, file, &offset, 10000000));
	peer_has_read();
	line("  offset %ld", (long)offset);
	DO(sendfile(on.fd, file, &offset, 1));
	DO(sendfile(on.fd, file, &offset, 0));
	offset = -1;
	DO(sendfile(on.fd, file, &offset, 1));
	off64_t large_offset = 299990;
	DO(sendfile64(on.fd, file, &large_offset, 100));
	peer_reads(on.there, 10);
	DO(sendfile(on.fd, -1, NULL, 1));
	DO(sendfile(file, on.fd, NULL, 1));
	DO(sendfile(on.fd, on.fd, NULL, 1));
	DO(sendfile(on.fd, file, (void *)16, 1));
	DO(sendfile(900, file, NULL, 1));
	DO(fcntl(on.fd, F_SETFL, O_NONBLOCK));
	offset = 0;
	DO(sendfile(on.fd, file, &offset, 10));
	peer_reads(on.there, 10);
	DO(fcntl(on.fd, F_SETFL, 0));
	/* Broken. */
	count_signal(SIGPIPE, 0);
	DO(shutdown(on.fd, SHUT_WR));
	offset = 0;
	DO(sendfile(on.fd, file, &offset, 10));
	SIGNALS();
	line("  offset %ld", (long)offset);
	signal(SIGPIPE, SIG_IGN);
}

static void splices(void)
{
	stream on = connected();
	int ends[2];
	must("pipe", pipe(ends));
	must("write", write(ends[1], "through a pipe", 14));
	DO(splice(ends[0], NULL, on.fd, NULL, 14, 0));
	peer_reads(on.there, 14);
	TIMED(0, splice(ends[0], NULL, on.fd, NULL, 14, SPLICE_F_NONBLOCK));
	must("write", write(ends[1], "one two", 7));
	DO(splice(ends[0], NULL, on.fd, NULL, 4, SPLICE_F_MORE));
	DO(splice(ends[0], NULL, on.fd, NULL, 100, 0));
	peer_reads(on.there, 7);
	struct timeval limit = { 0, 50000 };
	DO(setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	TIMED(50, splice(on.fd, NULL, ends[1], NULL, 100, 0));
	TIMED(50, splice(on.fd, NULL, ends[1], NULL, 100, SPLICE_F_NONBLOCK)); /* is for the pipe */
	limit.tv_usec = 0;
	DO(setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	peer_writes(on.there, "and back");
	TIMED(0, splice(on.fd, NULL, ends[1], NULL, 100, 0));
	show_bytes("pipe", room, read(ends[0], room, 100));
	peer_writes_later(on.there, "late", 50);
	TIMED(50, splice(on.fd, NULL, ends[1], NULL, 100, 0));
	show_bytes("pipe", room, read(ends[0], room, 100));
	peer_writes(on.there, "in two parts");
	DO(splice(on.fd, NULL, ends[1], NULL, 6, 0));
	receive_shown(on.fd, 100, 0);
	show_bytes("pipe", room, read(ends[0], room, 100));
	loff_t offset = 0;
	DO(splice(on.fd, &offset, ends[1], NULL, 100, 0));
	DO(splice(on.fd, NULL, on.fd, NULL, 100, 0));
	DO(splice(on.fd, NULL, ends[1], NULL, 100, 0x1000));
	DO(splice(on.fd, NULL, ends[1], NULL, 0, 0));
	/* The wrong end of the pipe: told at once, connected or not. */
	int fresh = tcp();
	TIMED(0, splice(ends[1], NULL, on.fd, NULL, 1, 0));
	TIMED(0, splice(ends[1], NULL, on.fd, NULL, 1, SPLICE_F_NONBLOCK));
	TIMED(0, splice(on.fd, NULL, ends[0], NULL, 100, 0));
	TIMED(0, splice(on.fd, NULL, ends[0], NULL, 100, SPLICE_F_NONBLOCK));
	DO(splice(ends[1], NULL, fresh, NULL, 1, 0));
	DO(splice(fresh, NULL, ends[0], NULL, 100, 0));
	DO(splice(ends[1], NULL, on.fd, NULL, 0, 0));
	DO(splice(ends[1], NULL, on.fd, &offset, 1, 0));
	int file = open("/dev/null", O_WRONLY);
	DO(sendfile(on.fd, file, NULL, 1));
	DO(sendfile(on.fd, ends[1], NULL, 1));
	close(file);
	close(fresh);
	DO(fcntl(on.fd, F_SETFL, O_NONBLOCK));
	DO(splice(on.fd, NULL, ends[1], NULL, 100, 0));
	peer_shuts(on.there, SHUT_WR, 0);
	barrier();
	DO(splice(on.fd, NULL, ends[1], NULL, 100, 0));
	count_signal(SIGPIPE, 0);
	DO(shutdown(on.fd, SHUT_WR));
	must("write", write(ends[1], "x", 1));
	DO(splice(ends[0], NULL, on.fd, NULL, 1, 0));
	SIGNALS();
	signal(SIGPIPE, SIG_IGN);
}

static void from_nowhere(void)
{
	stream on = connected();
	void *volatile nowhere = (void *)16;
	struct iovec parts[] = { { "good", 4 }, { nowhere, 10 }, { "never", 5 } };
	struct msghdr message = { .msg_iov = parts + 1, .msg_iovlen = 1 };
	DO(send(on.fd, nowhere, 10, 0));
	DO(write(on.fd, nowhere, 10));
	DO(writev(on.fd, parts + 1, 1));
	DO(writev(on.fd, nowhere, 1));
	DO(sendmsg(on.fd, &message, 0));
	DO(sendmsg(on.fd, nowhere, 0));
	DO(sendmmsg(on.fd, nowhere, 1, 0));
	message = (struct msghdr){ .msg_iov = nowhere, .msg_iovlen = 1 };
	DO(sendmsg(on.fd, &message, 0));
	exchange(on);
}

/* In a child: it is not sure to survive. */
static void control_from_nowhere(void)
{
	pid_t child = fork();
	if (child == 0) {
		stream on = connected();
		struct msghdr message = { .msg_iov = &(struct iovec){ "x", 1 }, .msg_iovlen = 1,
			.msg_control = (void *)16, .msg_controllen = 20 };
		DO(sendmsg(on.fd, &message, 0));
		exchange(on);
		_exit(0);
	}
	int status = -1;
	waitpid(child, &status, 0);
	line("  child ends with %#x", status);
}

static void odd_parts(void)
{
	stream on = connected();
	static struct iovec parts[1100];
	for (int i = 0; i < 1100; i++)
		parts[i] = (struct iovec){ "x", 1 };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 1024 };
	DO(writev(on.fd, parts, 1024));
	peer_reads(on.there, 1024);
	DO(sendmsg(on.fd, &message, 0));
	peer_reads(on.there, 1024);
	DO(writev(on.fd, parts, 1025));
	DO(writev(on.fd, parts, -1));
	message.msg_iovlen = 1025;
	DO(sendmsg(on.fd, &message, 0));
	parts[1].iov_len = -1;
	DO(writev(on.fd, parts, 2));
	message.msg_iovlen = 2;
	DO(sendmsg(on.fd, &message, 0));
	char control[CMSG_SPACE(4)] = { 0 };
	parts[1].iov_len = 1;
	message = (struct msghdr){ .msg_iov = parts, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	*CMSG_FIRSTHDR(&message) = (struct cmsghdr){ CMSG_LEN(4), IPPROTO_IP, IP_TTL };
	DO(sendmsg(on.fd, &message, 0)); /* of no use on a stream */
	CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
	DO(sendmsg(on.fd, &message, 0));
	CMSG_FIRSTHDR(&message)->cmsg_len = 3;
	DO(sendmsg(on.fd, &message, 0));
	DO(shutdown(on.fd, SHUT_WR));
	peer_reads_rest(on.there);
}

/* Data with the SYN, or as if. */
static void early(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = DO(tcp());
	DO(sendto(fd, "early", 5, MSG_FASTOPEN, ADDRESS(PEER, 6000)));
	stream on = { fd, peer_accept(door) };
	peer_reads(on.there, 5);
	DO(sendto(fd, "again", 5, MSG_FASTOPEN, ADDRESS(PEER, 6000)));
	exchange(on);
	fd = DO(tcp());
	SET(fd, SOL_TCP, TCP_FASTOPEN_CONNECT, 1);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(send(fd, "early", 5, 0));
	on = (stream){ fd, peer_accept(door) };
	peer_reads(on.there, 5);
	exchange(on);
	fd = DO(tcp());
	DO(sendto(fd, "early", 5, MSG_FASTOPEN, ADDRESS(PEER, 6999)));
	DO(sendto(fd, "early", 5, MSG_FASTOPEN | MSG_NOSIGNAL, NULL, 0));
}

const probe_case tcp_send_cases[] = {
	{ "whole", whole, false, STREAMS_SHARED }, /* stdio makes it the kernel's */
	{ "addressed", addressed, false, STREAMS_OURS },
	{ "flags", flags, false, STREAMS_OURS },
	{ "held_back", held_back, false, STREAMS_OURS },
	{ "partial", partial, false, STREAMS_OURS },
	{ "large", large, false, STREAMS_OURS },
	{ "limited", limited, false, STREAMS_OURS },
	{ "broken", broken, false, STREAMS_OURS },
	{ "queues", queues, false, STREAMS_OURS },
	{ "files", files, false, STREAMS_OURS },
	{ "splices", splices, false, STREAMS_OURS },
	{ "from_nowhere", from_nowhere, false, STREAMS_OURS },
	{ "odd_parts", odd_parts, false, STREAMS_OURS },
	{ "control_from_nowhere", control_from_nowhere, true, STREAMS_SHARED }, /* a child */
	{ "early", early, false, STREAMS_SHARED }, /* a choice of the library */
	{ "ends_the_program", ends_the_program, true, STREAMS_SHARED }, /* a child */
	{ NULL, NULL, false },
};
