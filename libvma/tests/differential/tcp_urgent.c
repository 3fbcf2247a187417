/* Urgent data, as Linux does it: one byte out of the stream, a mark, a signal. */
#include "prober.h"

static void show_mark(int fd)
{
	int mark = 77;
	DO(ioctl(fd, SIOCATMARK, &mark));
	line("  at the mark %d, %d", mark, sockatmark(fd));
}

static void show_unread(int fd)
{
	int waiting = 77;
	DO(ioctl(fd, FIONREAD, &waiting));
	line("  unread %d", waiting);
}

/* FIONREAD counts up to the mark, or all if the urgent byte is in line. */
static void counted(void)
{
	for (int inlined = 0; inlined < 2; inlined++) {
		stream on = accepted();
		SET(on.fd, SOL_SOCKET, SO_OOBINLINE, inlined);
		show_unread(on.fd);
		peer_writes(on.there, "abc");
		peer_writes_urgent(on.there, "!");
		peer_writes(on.there, "def");
		barrier();
		show_unread(on.fd);
		receive_shown(on.fd, 2, 0);
		show_unread(on.fd);
		receive_shown(on.fd, 1, 0);
		show_mark(on.fd);
		show_unread(on.fd);
		if (!inlined)
			receive_shown(on.fd, 1, MSG_OOB);
		show_unread(on.fd);
		receive_shown(on.fd, 2, 0);
		show_unread(on.fd);
		receive_shown(on.fd, 10, 0);
		show_unread(on.fd);
		/* The end does not count. */
		peer_writes_urgent(on.there, "xyz");
		peer_shuts(on.there, SHUT_WR, 0);
		barrier();
		show_unread(on.fd);
		receive_shown(on.fd, 2, 0);
		show_unread(on.fd);
		receive_shown(on.fd, 10, 0);
		show_unread(on.fd);
	}
}

static void received(void)
{
	stream on = accepted();
	DO(recv(on.fd, room, 1, MSG_OOB));
	show_mark(on.fd);
	peer_writes(on.there, "abc");
	peer_writes_urgent(on.there, "!");
	peer_writes(on.there, "def");
	barrier();
	show_ready(on.fd, POLLIN, 0);
	show_mark(on.fd);
	int waiting = 77;
	DO(ioctl(on.fd, FIONREAD, &waiting));
	line("  %d", waiting);
	receive_shown(on.fd, 1, MSG_OOB | MSG_PEEK);
	receive_shown(on.fd, 10, MSG_OOB);
	show_ready(on.fd, POLLIN, 0);
	receive_shown(on.fd, 10, MSG_OOB); /* taken already */
	receive_shown(on.fd, 2, 0);
	receive_shown(on.fd, 10, 0); /* up to the mark, not over it */
	show_mark(on.fd);
	receive_shown(on.fd, 10, 0);
	show_mark(on.fd);
	show_ready(on.fd, POLLIN, 0);
	/* Not read out of the stream: lost when the stream is read over it. */
	peer_writes(on.there, "abc");
	peer_writes_urgent(on.there, "!");
	peer_writes(on.there, "def");
	barrier();
	receive_shown(on.fd, 100, 0);
	show_ready(on.fd, POLLIN, 0);
	receive_shown(on.fd, 100, 0);
	show_ready(on.fd, POLLIN, 0);
	receive_shown(on.fd, 1, MSG_OOB);
	/* The last byte of several is the urgent one. */
	peer_writes_urgent(on.there, "xyz");
	barrier();
	receive_shown(on.fd, 10, MSG_OOB);
	receive_shown(on.fd, 10, MSG_DONTWAIT);
	receive_shown(on.fd, 10, MSG_DONTWAIT);
	/* A second one before the first was taken. */
	peer_writes_urgent(on.there, "1");
	peer_writes_urgent(on.there, "2");
	barrier();
	receive_shown(on.fd, 10, MSG_OOB);
	receive_shown(on.fd, 10, MSG_DONTWAIT);
	receive_shown(on.fd, 10, MSG_DONTWAIT);
	exchange(on);
}

static void in_line(void)
{
	stream on = accepted();
	SET(on.fd, SOL_SOCKET, SO_OOBINLINE, 1);
	peer_writes(on.there, "abc");
	peer_writes_urgent(on.there, "!");
	peer_writes(on.there, "def");
	barrier();
	receive_shown(on.fd, 1, MSG_OOB);
	show_ready(on.fd, POLLIN, 0);
	show_mark(on.fd);
	receive_shown(on.fd, 100, 0);
	show_mark(on.fd);
	show_ready(on.fd, POLLIN, 0);
	receive_shown(on.fd, 100, 0);
	show_mark(on.fd);
	show_ready(on.fd, POLLIN, 0);
	/* Changed between arriving and reading. */
	peer_writes_urgent(on.there, "a!");
	barrier();
	SET(on.fd, SOL_SOCKET, SO_OOBINLINE, 0);
	receive_shown(on.fd, 1, MSG_OOB);
	receive_shown(on.fd, 10, MSG_DONTWAIT);
	receive_shown(on.fd, 10, MSG_DONTWAIT);
}

static void waited_for(void)
{
	stream on = accepted();
	struct pollfd wait = { on.fd, POLLPRI, 0 };
	TIMED(20, poll(&wait, 1, 20));
	peer_writes_urgent_later(on.there, "!", 50);
	TIMED(50, poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	fd_set readable, exceptional;
	FD_ZERO(&readable);
	FD_ZERO(&exceptional);
	FD_SET(on.fd, &readable);
	FD_SET(on.fd, &exceptional);
	DO(select(on.fd + 1, &readable, NULL, &exceptional, NULL));
	line("  %d %d", FD_ISSET(on.fd, &readable) != 0, FD_ISSET(on.fd, &exceptional) != 0);
	receive_shown(on.fd, 1, MSG_OOB);
	DO(poll(&wait, 1, 0));
	peer_writes_urgent_later(on.there, "!", 50);
	FD_ZERO(&exceptional);
	FD_SET(on.fd, &exceptional);
	TIMED(50, select(on.fd + 1, NULL, NULL, &exceptional, NULL));
	receive_shown(on.fd, 1, MSG_OOB);
	/* A reader who waits for bytes is not woken by what is not among them. */
	struct timeval limit = { 0, 100000 };
	setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	peer_writes_urgent_later(on.there, "!", 20);
	TIMED(100, recv(on.fd, room, 10, 0));
	/* Waiting for all stops at the mark. */
	peer_writes(on.there, "abc");
	peer_writes_urgent(on.there, "!");
	peer_writes(on.there, "def");
	barrier();
	receive_shown(on.fd, 6, MSG_WAITALL);
	receive_shown(on.fd, 3, MSG_WAITALL);
}

static void signalled(void)
{
	stream on = accepted();
	count_signal(SIGURG, 0);
	DO(fcntl(on.fd, F_GETOWN));
	peer_writes_urgent(on.there, "!");
	barrier();
	SIGNALS();
	line("  %d", fcntl(on.fd, F_SETOWN, getpid()));
	line("  own %d", fcntl(on.fd, F_GETOWN) == getpid());
	peer_writes_urgent(on.there, "!");
	barrier();
	usleep(20000);
	SIGNALS();
	receive_shown(on.fd, 1, MSG_OOB);
	/* While it sleeps in a call. */
	peer_writes_urgent_later(on.there, "!", 50);
	signals = 0;
	TIMED(50, recv(on.fd, room, 10, 0));
	SIGNALS();
	receive_shown(on.fd, 1, MSG_OOB);
	line("  %d", fcntl(on.fd, F_SETOWN, 0));
	/* SIOCSPGRP is the same by another name. */
	int id = getpid();
	DO(ioctl(on.fd, SIOCSPGRP, &id));
	id = 0;
	DO(ioctl(on.fd, SIOCGPGRP, &id));
	line("  own %d", id == getpid());
	signals = 0;
	peer_writes_urgent(on.there, "!");
	barrier();
	usleep(20000);
	SIGNALS();
	signal(SIGURG, SIG_DFL);
}

/* SIGIO, for whoever asks for it. */
static void io_signalled(void)
{
	stream on = accepted();
	count_signal(SIGIO, 0);
	fcntl(on.fd, F_SETOWN, getpid());
	DO(fcntl(on.fd, F_SETFL, O_ASYNC));
	line("  %#x", fcntl(on.fd, F_GETFL));
	peer_writes(on.there, "x");
	barrier();
	usleep(20000);
	line("  signalled %d", signals > 0);
	receive_shown(on.fd, 1, 0);
	DO(fcntl(on.fd, F_SETFL, 0));
	signals = 0;
	peer_writes(on.there, "x");
	barrier();
	usleep(20000);
	SIGNALS();
	signal(SIGIO, SIG_DFL);
}

static void sent(void)
{
	stream on = connected();
	DO(send(on.fd, "abc", 3, 0));
	DO(send(on.fd, "!", 1, MSG_OOB));
	DO(send(on.fd, "def", 3, 0));
	peer_shows(on.there, POLLPRI);
	peer_reads_urgent(on.there);
	peer_reads(on.there, 6);
	DO(send(on.fd, "wxyz", 4, MSG_OOB));
	peer_shows(on.there, POLLPRI);
	peer_reads_urgent(on.there);
	peer_reads(on.there, 3);
	DO(send(on.fd, "", 0, MSG_OOB));
	DO(send(on.fd, "!", 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL));
	DO(shutdown(on.fd, SHUT_WR));
	peer_shows(on.there, POLLPRI | POLLRDHUP);
	peer_reads_urgent(on.there);
	peer_reads_rest(on.there);
}

/* With the end, and after it. */
static void at_the_end(void)
{
	stream on = accepted();
	peer_writes(on.there, "abc");
	peer_writes_urgent(on.there, "!");
	peer_ends(on.there, 0);
	barrier();
	show_ready(on.fd, POLLIN, 0);
	receive_shown(on.fd, 100, 0);
	show_mark(on.fd);
	receive_shown(on.fd, 1, MSG_OOB);
	receive_shown(on.fd, 100, 0);
	receive_shown(on.fd, 1, MSG_OOB);
	show_ready(on.fd, POLLIN, 0);
	/* Thrown away with the rest. */
	on = accepted();
	peer_writes(on.there, "abc");
	peer_writes_urgent(on.there, "!");
	peer_writes(on.there, "def");
	barrier();
	DO(recv(on.fd, NULL, 100, MSG_TRUNC));
	DO(recv(on.fd, NULL, 100, MSG_TRUNC));
	DO(recv(on.fd, NULL, 100, MSG_TRUNC | MSG_DONTWAIT));
	receive_shown(on.fd, 1, MSG_OOB);
	/* Seen by peeking over it. */
	peer_writes_urgent(on.there, "g!");
	peer_writes(on.there, "h");
	barrier();
	receive_shown(on.fd, 100, MSG_PEEK);
	receive_shown(on.fd, 100, 0);
	receive_shown(on.fd, 100, 0);
}

const probe_case tcp_urgent_cases[] = {
	{ "counted", counted, false, STREAMS_OURS },
	{ "received", received, false, STREAMS_OURS },
	{ "in_line", in_line, false, STREAMS_OURS },
	{ "waited_for", waited_for, false, STREAMS_OURS },
	{ "signalled", signalled, false, STREAMS_SHARED }, /* SIGURG makes it the kernel's */
	{ "io_signalled", io_signalled, false, STREAMS_SHARED }, /* so does SIGIO */
	{ "sent", sent, false, STREAMS_OURS },
	{ "at_the_end", at_the_end, false, STREAMS_OURS },
	{ NULL, NULL, false },
};
