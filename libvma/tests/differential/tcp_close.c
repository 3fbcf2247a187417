/* shutdown and close from either end: half, whole, abrupt, at once; and what is told afterwards. */
#include "prober.h"

#include <sys/resource.h>

static int all_ways(int fd)
{
	receive_shown(fd, 10, MSG_DONTWAIT);
	DO(send(fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
	show_ready(fd, POLLIN, 0);
	show_error(fd);
	return fd;
}

static void half_closed(void)
{
	stream on = connected();
	DO(shutdown(on.fd, SHUT_WR));
	peer_shows(on.there, POLLRDHUP);
	peer_reads_rest(on.there);
	show_ready(on.fd, POLLIN, 0);
	show_names(on.fd);
	/* The other direction goes on. */
	for (int i = 0; i < 3; i++) {
		peer_writes(on.there, "goes on");
		receive_shown(on.fd, 7, MSG_WAITALL);
	}
	DO(shutdown(on.fd, SHUT_WR));
	peer_ends(on.there, 0);
	barrier();
	show_ready(on.fd, POLLIN, 300);
	receive_shown(on.fd, 10, 0);
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	DO(getpeername(on.fd, (struct sockaddr *)&name, &length)); /* is a connection no more */
	DO(shutdown(on.fd, SHUT_WR));
	all_ways(on.fd);
	DO(close(on.fd));
}

static void half_closed_by_the_peer(void)
{
	stream on = accepted();
	peer_writes(on.there, "last words");
	peer_shuts(on.there, SHUT_WR, 0);
	barrier();
	show_ready(on.fd, POLLIN, 0);
	receive_shown(on.fd, 100, 0);
	receive_shown(on.fd, 100, 0);
	show_ready(on.fd, POLLIN, 0);
	for (int i = 0; i < 3; i++) {
		DO(send(on.fd, "goes on", 7, 0));
		peer_reads(on.there, 7);
	}
	show_names(on.fd);
	DO(shutdown(on.fd, SHUT_WR));
	peer_reads_rest(on.there);
	barrier();
	show_ready(on.fd, POLLHUP, 300);
	DO(shutdown(on.fd, SHUT_RDWR));
	all_ways(on.fd);
}

/* Reading is over, but only here. */
static void reading_shut(void)
{
	stream on = connected();
	peer_writes(on.there, "before");
	barrier();
	DO(shutdown(on.fd, SHUT_RD));
	show_ready(on.fd, POLLIN, 0);
	receive_shown(on.fd, 3, 0);
	receive_shown(on.fd, 100, 0);
	TIMED(0, recv(on.fd, room, 100, 0));
	peer_writes(on.there, "after");
	barrier();
	receive_shown(on.fd, 100, 0);
	TIMED(0, recv(on.fd, room, 100, 0));
	show_ready(on.fd, POLLIN, 0);
	DO(send(on.fd, "writing goes on", 15, 0));
	peer_reads(on.there, 15);
	peer_shows(on.there, POLLOUT);
	DO(shutdown(on.fd, SHUT_RD));
	DO(shutdown(on.fd, SHUT_WR));
	peer_reads_rest(on.there);
}

static void both_shut(void)
{
	stream on = connected();
	peer_writes(on.there, "unread");
	barrier();
	DO(shutdown(on.fd, SHUT_RDWR));
	peer_reads_rest(on.there);
	all_ways(on.fd);
	all_ways(on.fd);
	DO(shutdown(on.fd, SHUT_RDWR));
	peer_ends(on.there, 0);
	barrier();
	show_ready(on.fd, POLLHUP, 300);
	DO(shutdown(on.fd, SHUT_RDWR));
	DO(shutdown(on.fd, 3));
	DO(shutdown(on.fd, -1));
}

/* While another thread waits. */
struct waiting {
	int fd, how;
};

static void *shut_later(void *argument)
{
	struct waiting *waiting = argument;
	usleep(50000);
	shutdown(waiting->fd, waiting->how);
	return NULL;
}

static void shut_while_waiting(void)
{
	static const int ways[] = { SHUT_RD, SHUT_RDWR };
	for (int i = 0; i < 2; i++) {
		stream on = connected();
		struct waiting waiting = { on.fd, ways[i] };
		pthread_t thread;
		must("thread", -pthread_create(&thread, NULL, shut_later, &waiting));
		TIMED(50, recv(on.fd, room, 10, 0));
		pthread_join(thread, NULL);
		on = connected();
		waiting.fd = on.fd;
		struct pollfd wait = { on.fd, POLLIN, 0 };
		must("thread", -pthread_create(&thread, NULL, shut_later, &waiting));
		TIMED(50, poll(&wait, 1, 1000));
		show_poll(&wait, 1);
		pthread_join(thread, NULL);
	}
}

/* The peer closes: the first bytes sent to it are taken, then it resets. */
static void closed_by_the_peer(void)
{
	stream on = accepted();
	count_signal(SIGPIPE, 0);
	peer_ends(on.there, 50);
	TIMED(50, recv(on.fd, room, 10, 0));
	show_ready(on.fd, POLLIN, 0);
	DO(send(on.fd, "to nobody", 9, 0));
	show_ready(on.fd, POLLHUP, 300);
	SIGNALS();
	DO(send(on.fd, "to nobody", 9, 0));
	SIGNALS();
	DO(send(on.fd, "to nobody", 9, 0));
	SIGNALS();
	show_error(on.fd);
	DO(recv(on.fd, room, 10, 0));
	signal(SIGPIPE, SIG_IGN);
	/* The same, with SO_ERROR or recv first. */
	on = accepted();
	peer_ends(on.there, 0);
	DO(send(on.fd, "to nobody", 9, 0));
	show_ready(on.fd, POLLHUP, 300);
	show_error(on.fd);
	all_ways(on.fd);
	on = accepted();
	peer_ends(on.there, 0);
	DO(send(on.fd, "to nobody", 9, 0));
	show_ready(on.fd, POLLHUP, 300);
	DO(recv(on.fd, room, 10, 0));
	DO(recv(on.fd, room, 10, 0));
	all_ways(on.fd);
}

static void reset(void)
{
	stream on = accepted();
	peer_resets(on.there, 50);
	TIMED(50, recv(on.fd, room, 10, 0));
	DO(recv(on.fd, room, 10, 0));
	show_error(on.fd);
	show_names(on.fd);
	all_ways(on.fd);
	DO(shutdown(on.fd, SHUT_RDWR));
	DO(close(on.fd));
	/* Bytes that had come are gone with it. */
	on = accepted();
	peer_writes(on.there, "never read");
	peer_resets(on.there, 0);
	barrier();
	show_ready(on.fd, POLLIN, 0);
	int waiting = 77;
	DO(ioctl(on.fd, FIONREAD, &waiting));
	line("  %d", waiting);
	receive_shown(on.fd, 100, 0);
	receive_shown(on.fd, 100, 0);
	/* Told by sending, by SO_ERROR, by peeking. */
	count_signal(SIGPIPE, 0);
	on = accepted();
	peer_resets(on.there, 0);
	barrier();
	DO(send(on.fd, "x", 1, 0));
	SIGNALS();
	DO(send(on.fd, "x", 1, 0));
	SIGNALS();
	all_ways(on.fd);
	signal(SIGPIPE, SIG_IGN);
	on = accepted();
	peer_resets(on.there, 0);
	barrier();
	show_error(on.fd);
	all_ways(on.fd);
	on = accepted();
	peer_resets(on.there, 0);
	barrier();
	DO(recv(on.fd, room, 10, MSG_PEEK));
	all_ways(on.fd);
	/* While poll waits, and after a half close. */
	on = accepted();
	struct pollfd wait = { on.fd, POLLIN | POLLRDHUP, 0 };
	peer_resets(on.there, 50);
	TIMED(50, poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	on = accepted();
	DO(shutdown(on.fd, SHUT_WR));
	peer_reads_rest(on.there);
	peer_resets(on.there, 0);
	barrier();
	all_ways(on.fd);
	/* After the peer's end, which was read. */
	on = accepted();
	peer_shuts(on.there, SHUT_WR, 0);
	receive_shown(on.fd, 10, 0);
	peer_resets(on.there, 0);
	barrier();
	all_ways(on.fd);
}

/* Time for a segment to come, in which no call is made: one that is would take it. */
static void quiet(void)
{
	struct timespec begun, now;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < 300000);
}

/* A reset is told by whatever call is the first one after it. */
static void told_first(void)
{
	enum { PEERNAME, PEERNAME_OPTION, INFO, SHUTDOWN, ERROR, UNSENT, DISCONNECT, WAIT, CALLS };
	signal(SIGPIPE, SIG_IGN);
	for (int call = 0; call < CALLS; call++) {
		struct sockaddr_in address;
		struct tcp_info info = { 0 };
		struct pollfd wait;
		fd_set writable;
		socklen_t length = sizeof address;
		int unsent = -1;
		stream on = accepted();
		set(on.fd, SOL_TCP, TCP_NODELAY, 1);
		exchange(on);
		peer_resets(on.there, 0);
		quiet();
		switch (call) {
		case PEERNAME:
			DO(getpeername(on.fd, (struct sockaddr *)&address, &length));
			break;
		case PEERNAME_OPTION:
			DO(getsockopt(on.fd, SOL_SOCKET, SO_PEERNAME, &address, &length));
			break;
		case INFO:
			length = sizeof info;
			DO(getsockopt(on.fd, SOL_TCP, TCP_INFO, &info, &length));
			line("  state %d", info.tcpi_state);
			break;
		case SHUTDOWN:
			DO(shutdown(on.fd, SHUT_WR));
			break;
		case ERROR:
			break;
		case UNSENT:
			DO(ioctl(on.fd, SIOCOUTQ, &unsent));
			line("  %d", unsent);
			break;
		case DISCONNECT:
			DO(connect(on.fd, &(struct sockaddr){ .sa_family = AF_UNSPEC }, sizeof(struct sockaddr)));
			break;
		case WAIT:
			FD_ZERO(&writable);
			FD_SET(on.fd, &writable);
			DO(select(on.fd + 1, NULL, &writable, NULL, &(struct timeval){ 0, 0 }));
			wait = (struct pollfd){ on.fd, POLLIN, 0 };
			DO(poll(&wait, 1, 0));
			show_poll(&wait, 1);
			break;
		}
		show_error(on.fd);
		DO(close(on.fd));
	}
}

/* What was acknowledged is told as soon as the acknowledgment is there. */
static void acknowledged_at_once(void)
{
	stream on = accepted();
	struct tcp_info info = { 0 };
	socklen_t length = sizeof info;
	set(on.fd, SOL_TCP, TCP_NODELAY, 1);
	exchange(on);
	peer_set(on.there, SOL_TCP, TCP_QUICKACK, 1);
	DO(send(on.fd, "one", 3, 0));
	peer_reads(on.there, 3);
	quiet();
	DO(getsockopt(on.fd, SOL_TCP, TCP_INFO, &info, &length));
	line("  unacknowledged %u", info.tcpi_unacked);
	DO(send(on.fd, "two", 3, 0));
	peer_reads(on.there, 3);
	quiet();
	int left = -1;
	DO(ioctl(on.fd, SIOCOUTQ, &left));
	line("  %d", left);
}

/* A close that leaves bytes unread is a reset. */
static void closed_unread(void)
{
	stream early = accepted();
	exchange(early);
	peer_writes(early.there, "not even looked at");
	quiet();
	DO(close(early.fd));
	peer_reads_rest(early.there);
	stream on = accepted();
	peer_writes(on.there, "unread");
	barrier();
	DO(close(on.fd));
	peer_shows(on.there, POLLERR);
	peer_reads_rest(on.there);
	/* All were read: an end. */
	on = accepted();
	peer_writes(on.there, "read");
	receive_shown(on.fd, 4, MSG_WAITALL);
	DO(close(on.fd));
	peer_shows(on.there, POLLRDHUP);
	peer_reads_rest(on.there);
	/* What was sent before is still told, or the reset is first. */
	on = accepted();
	DO(send(on.fd, "answer", 6, 0));
	peer_reads(on.there, 6);
	peer_writes(on.there, "unread");
	barrier();
	DO(shutdown(on.fd, SHUT_WR));
	peer_reads_rest(on.there);
	DO(close(on.fd));
	barrier();
	peer_shows(on.there, POLLERR);
	/* Bytes that come after the close. */
	on = accepted();
	DO(close(on.fd));
	peer_reads_rest(on.there);
	peer_writes(on.there, "too late");
	peer_shows(on.there, POLLERR);
	peer_writes(on.there, "too late");
}

static void lingering(void)
{
	struct linger linger = { 1, 0 };
	stream on = accepted();
	DO(setsockopt(on.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	DO(send(on.fd, "before the reset", 16, 0));
	peer_reads(on.there, 16);
	TIMED(0, close(on.fd));
	peer_shows(on.there, POLLERR);
	peer_reads_rest(on.there);
	/* After shutdown too. */
	on = accepted();
	DO(setsockopt(on.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	DO(shutdown(on.fd, SHUT_WR));
	peer_reads_rest(on.there);
	TIMED(0, close(on.fd));
	peer_shows(on.there, POLLERR);
	/* Off: it goes on behind the program's back. */
	linger = (struct linger){ 0, 0 };
	on = accepted();
	DO(setsockopt(on.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	TIMED(0, close(on.fd));
	peer_reads_rest(on.there);
	/* With a time: until the peer's acknowledgement and end, or the time is over. */
	linger = (struct linger){ 1, 1 };
	on = accepted();
	DO(setsockopt(on.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	DO(send(on.fd, "acknowledged", 12, 0));
	TIMED(0, close(on.fd));
	peer_reads_rest(on.there);
}

/* A linger time that passes: the peer does not take what is to be sent. */
static void lingering_in_vain(void)
{
	struct linger linger = { 1, 1 };
	int door = peer_listen(PEER, 6000, 10), fd = tcp();
	peer_set(door, SOL_SOCKET, SO_RCVBUF, 5000);
	set(fd, SOL_SOCKET, SO_SNDBUF, 200000);
	must("connect", connect(fd, ADDRESS(PEER, 6000)));
	int there = peer_accept(door);
	DO(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	DO(send(fd, stream_bytes(60000), 60000, 0));
	TIMED(1000, close(fd));
	peer_reads_rest(there); /* and yet it arrives */
	/* Not blocking sockets do linger. */
	fd = tcp();
	set(fd, SOL_SOCKET, SO_SNDBUF, 200000);
	must("connect", connect(fd, ADDRESS(PEER, 6000)));
	there = peer_accept(door);
	DO(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	DO(fcntl(fd, F_SETFL, O_NONBLOCK));
	DO(send(fd, stream_bytes(60000), 60000, 0));
	TIMED(1000, close(fd));
	peer_reads_rest(there);
}

/* Both ends at once, in both orders. */
static void at_once(void)
{
	for (int i = 0; i < 6; i++) {
		stream on = i % 2 ? accepted() : connected();
		peer_ends(on.there, 5);
		usleep(3000 + i * 800);
		DO(close(on.fd));
	}
	for (int i = 0; i < 4; i++) {
		stream on = i % 2 ? accepted() : connected();
		peer_shuts(on.there, SHUT_WR, 5);
		usleep(4000 + i * 500);
		DO(shutdown(on.fd, SHUT_WR));
		receive_shown(on.fd, 10, 0);
		peer_reads_rest(on.there);
		show_ready(on.fd, POLLHUP, 300);
		DO(close(on.fd));
	}
}

/* The port of a connection that is over can be bound again if both had SO_REUSEADDR. */
static void ports_after(void)
{
	int door = peer_listen(PEER, 6000, 10), fd, there;
	for (int shared = 0; shared < 2; shared++) {
		fd = DO(tcp());
		SET(fd, SOL_SOCKET, SO_REUSEADDR, shared);
		DO(bind(fd, ADDRESS(HOST, 5300 + shared)));
		DO(connect(fd, ADDRESS(PEER, 6000)));
		there = peer_accept(door);
		DO(close(fd));
		peer_reads_rest(there);
		peer_ends(there, 0);
		barrier();
		fd = DO(tcp());
		DO(bind(fd, ADDRESS(HOST, 5300 + shared))); /* in TIME-WAIT */
		SET(fd, SOL_SOCKET, SO_REUSEADDR, 1);
		DO(bind(fd, ADDRESS(HOST, 5300 + shared)));
	}
	DO(listen(fd, 5));
	look(fd);
	there = peer_connect(HOST, 5301);
	exchange((stream){ DO(accept(fd, NULL, NULL)), there });
	/* After a reset it is free at once. */
	fd = DO(tcp());
	DO(bind(fd, ADDRESS(HOST, 5302)));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	peer_resets(peer_accept(door), 0);
	barrier();
	DO(close(fd));
	fd = DO(tcp());
	DO(bind(fd, ADDRESS(HOST, 5302)));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	exchange((stream){ fd, peer_accept(door) });
}

/* A socket is used again for another connection. */
static void used_again(void)
{
	stream on = accepted();
	peer_resets(on.there, 0);
	barrier();
	int door = peer_listen(PEER, 6000, 10);
	DO(connect(on.fd, ADDRESS(PEER, 6000)));
	DO(recv(on.fd, room, 10, MSG_DONTWAIT));
	DO(connect(on.fd, ADDRESS(PEER, 6000)));
	show_names(on.fd);
	DO(connect(on.fd, &(struct sockaddr){ .sa_family = AF_UNSPEC }, sizeof(struct sockaddr)));
	DO(connect(on.fd, ADDRESS(PEER, 6000)));
	show_names(on.fd);
	exchange((stream){ on.fd, peer_accept(door) });
}

/* Many, one after the other, closed from either end. */
static void short_lives(void)
{
	for (int i = 0; i < 60; i++) {
		stream on = i % 2 ? accepted() : connected();
		long sent = send(on.fd, "hello", 5, 0);
		if (sent != 5)
			line("  %ld", sent);
		close(on.fd);
		if (i % 10 < 2)
			peer_reads_rest(on.there);
		if (i % 3 == 0)
			peer_resets(on.there, 0);
		else
			peer_ends(on.there, 0);
	}
	exchange(connected());
}

/* How many descriptors of a kind there may be. */
static int room_for(int (*make)(void))
{
	int made[400], count = 0;
	while (count < 400 && (made[count] = make()) >= 0)
		count++;
	int error = errno;
	for (int i = 0; i < count; i++)
		close(made[i]);
	line("  at most: %s", error_name(error));
	return count;
}

static int local_socket(void)
{
	return socket(AF_UNIX, SOCK_STREAM, 0);
}

static int plain_file(void)
{
	return open("/dev/null", O_RDONLY);
}

/* Closed connections take no descriptor from the program. */
static void descriptors_after(void)
{
	struct rlimit limit, low;
	must("getrlimit", getrlimit(RLIMIT_NOFILE, &limit));
	low = (struct rlimit){ 300, limit.rlim_max };
	static int (*const kinds[])(void) = { tcp, local_socket, plain_file };
	stream first = connected(); /* what the library needs for any */
	exchange(first);
	for (int kind = 0; kind < 3; kind++) {
		must("setrlimit", setrlimit(RLIMIT_NOFILE, &low));
		int before = room_for(kinds[kind]);
		for (int i = 0; i < 20; i++) {
			stream on = connected();
			close(on.fd);
			peer_ends(on.there, 0);
		}
		int after = room_for(kinds[kind]);
		must("setrlimit", setrlimit(RLIMIT_NOFILE, &limit));
		/* The library may have opened one or two for itself. */
		line("  about as many as before: %d", after >= before - 3);
	}
}

const probe_case tcp_close_cases[] = {
	{ "half_closed", half_closed, false, STREAMS_OURS },
	{ "half_closed_by_the_peer", half_closed_by_the_peer, false, STREAMS_OURS },
	{ "reading_shut", reading_shut, false, STREAMS_OURS },
	{ "both_shut", both_shut, false, STREAMS_OURS },
	{ "shut_while_waiting", shut_while_waiting, false, STREAMS_OURS },
	{ "closed_by_the_peer", closed_by_the_peer, false, STREAMS_OURS },
	{ "reset", reset, false, STREAMS_OURS },
	{ "told_first", told_first, false, STREAMS_OURS },
	{ "acknowledged_at_once", acknowledged_at_once, false, STREAMS_OURS },
	{ "closed_unread", closed_unread, false, STREAMS_OURS },
	{ "lingering", lingering, false, STREAMS_OURS },
	{ "lingering_in_vain", lingering_in_vain, false, STREAMS_OURS },
	{ "at_once", at_once, false, STREAMS_OURS },
	{ "ports_after", ports_after, false, STREAMS_OURS },
	{ "used_again", used_again, false, STREAMS_OURS },
	{ "short_lives", short_lives, false, STREAMS_OURS },
	{ "descriptors_after", descriptors_after, false, STREAMS_OURS },
	{ NULL, NULL, false },
};
