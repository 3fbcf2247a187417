/* poll and select on streams: every state, every way into it. */
#include "prober.h"

static void states(void)
{
	int fd = DO(tcp());
	show_ready(fd, POLLIN, 0); /* unconnected */
	set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	DO(bind(fd, ADDRESS(HOST, 5000)));
	show_ready(fd, POLLIN, 0); /* bound */
	DO(listen(fd, 5));
	show_ready(fd, POLLIN, 0); /* listening */
	int there = peer_connect(HOST, 5000);
	barrier();
	show_ready(fd, POLLIN, 0);
	int made = DO(accept(fd, NULL, NULL));
	show_ready(fd, POLLIN, 0);
	show_ready(made, POLLIN, 0); /* connected */
	peer_writes(there, "bytes");
	barrier();
	show_ready(made, POLLIN, 0);
	receive_shown(made, 5, 0);
	show_ready(made, POLLIN, 0);
	peer_shuts(there, SHUT_WR, 0);
	barrier();
	show_ready(made, POLLIN, 0); /* the peer's half is closed */
	DO(shutdown(made, SHUT_WR));
	peer_reads_rest(there);
	show_ready(made, POLLHUP, 300); /* both */
	stream on = connected();
	DO(shutdown(on.fd, SHUT_WR));
	show_ready(on.fd, POLLIN, 0); /* our half is closed */
	DO(shutdown(on.fd, SHUT_RD));
	show_ready(on.fd, POLLIN, 0);
	on = connected();
	DO(shutdown(on.fd, SHUT_RD));
	show_ready(on.fd, POLLIN, 0);
	on = connected();
	peer_resets(on.there, 0);
	barrier();
	show_ready(on.fd, POLLIN, 0); /* reset */
	show_error(on.fd);
	show_ready(on.fd, POLLIN, 0);
}

/* What poll is asked for, it tells of; errors and ends unasked. */
static void asked(void)
{
	static const short wanted[] = { 0, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLRDBAND,
		POLLWRNORM, POLLWRBAND, POLLIN | POLLOUT, POLLMSG };
	for (int state = 0; state < 5; state++) {
		stream on = connected();
		if (state == 1)
			peer_writes(on.there, "x");
		if (state == 2)
			peer_shuts(on.there, SHUT_WR, 0);
		if (state == 3)
			peer_resets(on.there, 0);
		if (state == 4)
			peer_writes_urgent(on.there, "x");
		barrier();
		line("  state %d", state);
		for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
			struct pollfd wait = { on.fd, wanted[i], 0x77 };
			DO(poll(&wait, 1, 0));
			show_poll(&wait, 1);
		}
		close(on.fd);
	}
}

static void waited_for(void)
{
	int listening = tcp_listener(HOST, 5000, 5);
	struct pollfd wait = { listening, POLLIN, 0 };
	TIMED(20, poll(&wait, 1, 20));
	peer_connect_later(HOST, 5000, 50);
	TIMED(50, poll(&wait, 1, -1));
	show_poll(&wait, 1);
	close(accept(listening, NULL, NULL));
	stream on = connected();
	wait.fd = on.fd;
	TIMED(20, poll(&wait, 1, 20));
	peer_writes_later(on.there, "late", 50);
	TIMED(50, poll(&wait, 1, -1));
	show_poll(&wait, 1);
	receive_shown(on.fd, 10, 0);
	wait.events = POLLRDHUP;
	peer_shuts(on.there, SHUT_WR, 50);
	TIMED(50, poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	wait.events = 0;
	peer_resets(on.there, 50);
	TIMED(50, poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	/* Only the other direction is of interest. */
	on = connected();
	wait = (struct pollfd){ on.fd, POLLRDHUP, 0 };
	peer_writes_later(on.there, "bytes", 10);
	TIMED(40, poll(&wait, 1, 40));
}

static void selected(void)
{
	int listening = tcp_listener(HOST, 5000, 5), silent = socket(AF_INET, SOCK_STREAM, 0);
	fd_set readable, writable, exceptional;
#define SELECT(expected, time) do { \
		struct timeval limit = { 0, (time) * 1000 }; \
		FD_ZERO(&readable); \
		FD_ZERO(&writable); \
		FD_ZERO(&exceptional); \
		for (int i = listening; i <= silent; i++) { \
			FD_SET(i, &readable); \
			FD_SET(i, &writable); \
			FD_SET(i, &exceptional); \
		} \
		watch_start(); \
		errno = UNTOUCHED; \
		report_timed("select", select(silent + 1, &readable, &writable, &exceptional, &limit), \
			     expected); \
		for (int i = listening; i <= silent; i++) \
			line("  %d: %d %d %d", i, FD_ISSET(i, &readable) != 0, \
			     FD_ISSET(i, &writable) != 0, FD_ISSET(i, &exceptional) != 0); \
	} while (0)
	SELECT(0, 0); /* an unconnected one is ready for everything: to fail */
	DO(fcntl(silent, F_SETFL, O_NONBLOCK));
	DO(connect(silent, ADDRESS(SILENT, 6000)));
	SELECT(20, 20);
	peer_connect_later(HOST, 5000, 30);
	SELECT(30, 1000);
	close(silent);
	stream on = connected();
	silent = on.fd;
	close(accept(listening, NULL, NULL));
	SELECT(0, 0);
	peer_writes(on.there, "x");
	barrier();
	SELECT(0, 1000);
	peer_shuts(on.there, SHUT_WR, 0);
	receive_shown(on.fd, 1, 0);
	barrier();
	SELECT(0, 1000);
	peer_resets(on.there, 0);
	barrier();
	SELECT(0, 1000);
	/* Its own end told, a stream is writable: for send() to say EPIPE. */
	close(on.fd);
	on = connected();
	silent = on.fd;
	DO(shutdown(on.fd, SHUT_WR));
	SELECT(0, 1000);
}

static void connecting(void)
{
	int door = peer_listen(PEER, 6000, 5), fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct pollfd wait = { fd, POLLOUT, 0 };
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	peer_accept(door);
	/* Asked for reading only, it does not tell that it is connected. */
	fd = wait.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	wait.events = POLLIN;
	DO(connect(fd, ADDRESS(PEER, 6000)));
	int there = peer_accept(door);
	TIMED(20, poll(&wait, 1, 20));
	peer_writes_later(there, "x", 20);
	TIMED(20, poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	/* Refused, that is told unasked. */
	fd = wait.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	wait.events = 0;
	DO(connect(fd, ADDRESS(PEER, 6999)));
	DO(poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	fd_set writable;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	DO(connect(fd, ADDRESS(PEER, 6999)));
	FD_ZERO(&writable);
	FD_SET(fd, &writable);
	DO(select(fd + 1, NULL, &writable, NULL, NULL));
	line("  %d", FD_ISSET(fd, &writable) != 0);
	show_error(fd);
}

static void mixed(void)
{
	int listening = tcp_listener(HOST, 5000, 5), datagrams = udp(5001), ends[2];
	int from = peer_open(PEER, 6000);
	must("pipe", pipe(ends));
	stream on = connected();
	struct pollfd list[] = { { listening, POLLIN, 0 }, { datagrams, POLLIN, 0 },
		{ ends[0], POLLIN, 0 }, { on.fd, POLLIN, 0 }, { -1, POLLIN, 0 } };
	TIMED(20, poll(list, 5, 20));
	peer_writes(on.there, "x");
	barrier();
	DO(poll(list, 5, -1));
	show_poll(list, 5);
	peer_say(from, 5001, "x");
	peer_connect(HOST, 5000);
	barrier();
	must("write", write(ends[1], "x", 1));
	DO(poll(list, 5, -1));
	show_poll(list, 5);
	must("read", read(ends[0], room, 1));
	must("recv", recv(datagrams, room, 1, 0));
	must("recv", recv(on.fd, room, 1, 0));
	close(accept(listening, NULL, NULL));
	TIMED(20, poll(list, 5, 20));
	/* Each of them late and alone. */
	peer_writes_later(on.there, "x", 30);
	TIMED(30, poll(list, 5, 1000));
	show_poll(list, 5);
	must("recv", recv(on.fd, room, 1, 0));
	peer_say_later(from, 5001, "x", 30);
	TIMED(30, poll(list, 5, 1000));
	show_poll(list, 5);
	must("recv", recv(datagrams, room, 1, 0));
	peer_connect_later(HOST, 5000, 30);
	TIMED(30, poll(list, 5, 1000));
	show_poll(list, 5);
}

/* Interrupted, and the stream is as it was. */
static void interrupted(void)
{
	stream on = accepted();
	struct pollfd wait = { on.fd, POLLIN, 0 };
	count_signal(SIGALRM, SA_RESTART);
	alarm_in(30);
	TIMED(30, poll(&wait, 1, 1000));
	fd_set set;
	FD_ZERO(&set);
	FD_SET(on.fd, &set);
	alarm_in(30);
	TIMED(30, select(on.fd + 1, &set, NULL, NULL, NULL));
	SIGNALS();
	exchange(on);
}

static void many(void)
{
	static struct pollfd list[60];
	int listening = tcp_listener(HOST, 5000, 60), there[60];
	for (int i = 0; i < 50; i++) {
		there[i] = peer_connect(HOST, 5000);
		list[i] = (struct pollfd){ accept(listening, NULL, NULL), POLLIN, 0 };
	}
	TIMED(20, poll(list, 50, 20));
	peer_writes(there[0], "x");
	peer_writes(there[33], "x");
	peer_ends(there[49], 0);
	barrier();
	DO(poll(list, 50, -1));
	for (int i = 0; i < 50; i++)
		if (list[i].revents)
			line("  [%d] revents %#x", i, (unsigned)list[i].revents);
}

const probe_case tcp_ready_cases[] = {
	{ "states", states, false, STREAMS_OURS },
	{ "asked", asked, false, STREAMS_OURS },
	{ "waited_for", waited_for, false, STREAMS_OURS },
	{ "selected", selected, false, STREAMS_OURS },
	{ "connecting", connecting, false, STREAMS_OURS },
	{ "interrupted", interrupted, false, STREAMS_OURS },
	{ "many", many, false, STREAMS_OURS },
	{ "mixed", mixed, false, STREAMS_OURS },
	{ NULL, NULL, false },
};
