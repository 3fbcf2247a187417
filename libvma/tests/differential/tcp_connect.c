/* connect: blocking, not blocking, refused, unanswered, odd addresses, undone. */
#include "prober.h"

static int not_blocking(void)
{
	return socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
}

static void blocking(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = DO(tcp());
	show_names(fd);
	TIMED(0, connect(fd, ADDRESS(PEER, 6000)));
	show_names(fd);
	show_error(fd);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(connect(fd, ADDRESS(PEER, 6001)));
	DO(listen(fd, 1));
	DO(accept(fd, NULL, NULL));
	DO(bind(fd, ADDRESS(HOST, 5000)));
	stream on = { fd, peer_accept(door) };
	exchange(on);
	show_ready(fd, POLLOUT, 0);
	DO(close(fd));
	peer_reads_rest(on.there);
}

static void without_blocking(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = DO(not_blocking());
	TIMED(0, connect(fd, ADDRESS(PEER, 6000)));
	struct pollfd wait = { fd, POLLOUT, 0 };
	DO(poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	show_error(fd);
	show_names(fd);
	DO(connect(fd, ADDRESS(PEER, 6000))); /* tells once that it is done */
	DO(connect(fd, ADDRESS(PEER, 6000)));
	stream on = { fd, peer_accept(door) };
	DO(recv(fd, room, 10, 0));
	DO(fcntl(fd, F_GETFL));
	DO(fcntl(fd, F_SETFL, 0));
	exchange(on);
}

static void unanswered(void)
{
	int fd = DO(not_blocking());
	TIMED(0, connect(fd, ADDRESS(SILENT, 6000)));
	DO(connect(fd, ADDRESS(SILENT, 6000)));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	show_error(fd);
	show_ready(fd, POLLOUT, 20);
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	DO(getpeername(fd, (struct sockaddr *)&name, &length));
	DO(getsockname(fd, (struct sockaddr *)&name, &length));
	show_address("own", &name, length);
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	DO(recv(fd, room, 1, 0));
	DO(listen(fd, 1));
	DO(bind(fd, ADDRESS(HOST, 5000)));
	TIMED(0, shutdown(fd, SHUT_RDWR));
	show_ready(fd, POLLOUT, 20);
	show_error(fd);
	DO(connect(fd, ADDRESS(SILENT, 6000)));
	DO(close(fd));
	/* Given up by connecting to nothing. */
	fd = DO(not_blocking());
	DO(connect(fd, ADDRESS(SILENT, 6000)));
	DO(connect(fd, &(struct sockaddr){ .sa_family = AF_UNSPEC }, sizeof(struct sockaddr)));
	show_ready(fd, POLLOUT, 0);
	show_names(fd);
	DO(fcntl(fd, F_SETFL, 0));
	int door = peer_listen(PEER, 6000, 10);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	exchange((stream){ fd, peer_accept(door) });
	/* Closed while connecting. */
	fd = DO(not_blocking());
	DO(connect(fd, ADDRESS(SILENT, 6000)));
	TIMED(0, close(fd));
}

/* Half shut while connecting. */
static void unanswered_shut(void)
{
	static const int ways[] = { SHUT_RD, SHUT_WR };
	for (int i = 0; i < 2; i++) {
		int fd = DO(not_blocking());
		DO(connect(fd, ADDRESS(SILENT, 6000)));
		DO(shutdown(fd, ways[i]));
		show_ready(fd, POLLOUT, 0);
		DO(connect(fd, ADDRESS(SILENT, 6000)));
		DO(recv(fd, room, 1, 0));
		DO(send(fd, "x", 1, MSG_NOSIGNAL));
	}
}

static void refused(void)
{
	int fd = DO(tcp());
	TIMED(0, connect(fd, ADDRESS(PEER, 6999)));
	show_error(fd);
	show_ready(fd, POLLOUT, 0);
	show_names(fd);
	TIMED(0, connect(fd, ADDRESS(PEER, 6999)));
	DO(recv(fd, room, 1, 0));
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	/* The same socket, where somebody listens. */
	int door = peer_listen(PEER, 6000, 10);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	exchange((stream){ fd, peer_accept(door) });
}

static int refused_later(void)
{
	int fd = DO(not_blocking());
	DO(connect(fd, ADDRESS(PEER, 6999)));
	struct pollfd wait = { fd, POLLOUT, 0 };
	DO(poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	return fd;
}

static void refused_without_blocking(void)
{
	int fd = refused_later();
	show_ready(fd, POLLIN, 0);
	show_error(fd);
	show_error(fd);
	show_ready(fd, POLLIN, 0);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(connect(fd, ADDRESS(PEER, 6999)));
	show_ready(fd, POLLIN, 1000);
	/* The error is told by whatever asks first. */
	fd = refused_later();
	DO(connect(fd, ADDRESS(PEER, 6000)));
	show_error(fd);
	show_names(fd);
	fd = refused_later();
	DO(recv(fd, room, 1, 0));
	DO(recv(fd, room, 1, 0));
	show_error(fd);
	fd = refused_later();
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	show_ready(fd, POLLIN, 0);
	fd = refused_later();
	DO(shutdown(fd, SHUT_RDWR));
	show_error(fd);
	fd = refused_later();
	DO(close(fd));
}

/* Over this cable ICMP's answer to a SYN arrives inside the connect that sent it. The kernel then
 * takes it for a hint and goes on, for a second or behind an error that poll tells; with a longer
 * cable it ends the attempt. Shown is what both have in common. */
static void unreachable(void)
{
	static const char *const places[] = { UNREACHABLE, PROHIBITED };
	for (int i = 0; i < 2; i++) {
		int fd = DO(tcp());
		DO(connect(fd, ADDRESS(places[i], 6000)));
		DO(close(fd));
		fd = DO(not_blocking());
		DO(connect(fd, ADDRESS(places[i], 6000)));
		struct pollfd wait = { fd, POLLOUT, 0 };
		DO(poll(&wait, 1, 3000));
		line("  error %d", (wait.revents & POLLERR) != 0);
		show_error(fd);
		DO(close(fd));
	}
}

static void without_route(void)
{
	int fd = DO(tcp());
	TIMED(0, connect(fd, ADDRESS(NO_ROUTE, 6000)));
	show_error(fd);
	show_ready(fd, POLLOUT, 0);
	DO(close(fd));
	fd = DO(not_blocking());
	DO(connect(fd, ADDRESS(NO_ROUTE, 6000)));
	show_ready(fd, POLLOUT, 0);
	show_error(fd);
}

static void odd_addresses(void)
{
	static const char *const places[] = { "10.99.0.255", "239.1.2.3", "255.255.255.255" };
	int fd = DO(tcp());
	for (int i = 0; i < 3; i++)
		DO(connect(fd, ADDRESS(places[i], 6000)));
	struct sockaddr_in to = at(PEER, 6000);
	const struct sockaddr *name = (struct sockaddr *)&to;
	DO(connect(fd, name, 0));
	DO(connect(fd, name, 1));
	DO(connect(fd, name, 15));
	DO(connect(fd, name, -1));
	to.sin_family = AF_INET6;
	DO(connect(fd, name, sizeof to));
	to.sin_family = AF_UNIX;
	DO(connect(fd, name, sizeof to));
	to.sin_family = AF_UNSPEC;
	DO(connect(fd, name, sizeof to));
	DO(connect(fd, (void *)16, sizeof to));
	show_names(fd);
	DO(connect(fd, ADDRESS(PEER, 0)));
	struct sockaddr_storage large = { 0 };
	to = at(PEER, 6999);
	memcpy(&large, &to, sizeof to);
	DO(connect(fd, (struct sockaddr *)&large, sizeof large));
}

/* To itself: nowhere is this host, its own port answers itself. */
static void here(void)
{
	int fd = DO(tcp());
	DO(connect(fd, ADDRESS("0.0.0.0", 5000)));
	int listening = tcp_listener("127.0.0.1", 5000, 5);
	DO(connect(fd, ADDRESS("0.0.0.0", 5000)));
	show_names(fd);
	DO(close(fd));
	DO(close(listening));
	fd = tcp_bound(HOST, 5100);
	DO(connect(fd, ADDRESS(HOST, 5100)));
	show_names(fd);
	DO(send(fd, "to itself", 9, 0));
	receive_shown(fd, 100, 0);
	DO(shutdown(fd, SHUT_WR));
	DO(recv(fd, room, 10, 0));
}

static void bound(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = DO(tcp()), second = DO(tcp());
	DO(bind(fd, ADDRESS(HOST, 5200)));
	DO(bind(second, ADDRESS(HOST, 5200)));
	DO(bind(second, ADDRESS("0.0.0.0", 5200)));
	DO(bind(second, ADDRESS("127.0.0.1", 5200)));
	DO(bind(second, ADDRESS(HOST, 5201)));
	DO(bind(fd, ADDRESS(HOST, 5203)));
	show_names(fd);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	show_names(fd);
	stream on = { fd, peer_accept(door) };
	exchange(on);
	/* Not this host's. */
	int third = DO(tcp());
	DO(bind(third, ADDRESS("10.99.0.77", 5204)));
	DO(bind(third, ADDRESS(HOST, 0)));
	show_names(third);
	DO(connect(third, ADDRESS(PEER, 6000)));
	show_names(third);
	exchange((stream){ third, peer_accept(door) });
	/* From everywhere: the address is chosen by the route. */
	int fourth = DO(tcp());
	DO(bind(fourth, ADDRESS("0.0.0.0", 5205)));
	show_names(fourth);
	DO(connect(fourth, ADDRESS(PEER, 6000)));
	show_names(fourth);
	exchange((stream){ fourth, peer_accept(door) });
#if defined WITHIN_ONE_HOST || !defined OVER_IPV6 /* Linux tries for minutes */
	/* From where the peer cannot answer to. */
	int fifth = DO(tcp());
	DO(bind(fifth, ADDRESS("127.0.0.1", 5206)));
	DO(connect(fifth, ADDRESS(PEER, 6000)));
#endif
}

/* One local address for several connections, but never the same two ends twice. */
static void same_ends(void)
{
	int door = peer_listen(PEER, 6000, 10), other = peer_listen(PEER, 6001, 10);
	int one = tcp_bound(HOST, 5210), two = tcp_bound(HOST, 5210), three = tcp_bound(HOST, 5210);
	DO(connect(one, ADDRESS(PEER, 6000)));
	DO(connect(two, ADDRESS(PEER, 6000)));
	DO(connect(two, ADDRESS(PEER, 6001)));
	exchange((stream){ one, peer_accept(door) });
	exchange((stream){ two, peer_accept(other) });
	DO(listen(three, 1));
	set(three, SOL_SOCKET, SO_REUSEADDR, 0);
	int four = DO(tcp());
	DO(bind(four, ADDRESS(HOST, 5210)));
}

static void listening(void)
{
	int fd = tcp_listener(HOST, 5000, 5);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	show_names(fd);
	int there = peer_connect(HOST, 5000);
	exchange((stream){ DO(accept(fd, NULL, NULL)), there });
	/* Connecting to nothing ends the listening. */
	DO(connect(fd, &(struct sockaddr){ .sa_family = AF_UNSPEC }, sizeof(struct sockaddr)));
	GET(fd, SOL_SOCKET, SO_ACCEPTCONN);
	DO(accept(fd, NULL, NULL));
	show_names(fd);
}

static void disconnected(void)
{
	stream on = connected();
	exchange(on);
	struct sockaddr nothing = { .sa_family = AF_UNSPEC };
	DO(connect(on.fd, &nothing, sizeof nothing));
	peer_reads(on.there, 1);
	show_names(on.fd);
	show_ready(on.fd, POLLIN, 0);
	DO(recv(on.fd, room, 1, 0));
	DO(send(on.fd, "x", 1, MSG_NOSIGNAL));
	DO(connect(on.fd, &nothing, sizeof nothing));
	int door = peer_listen(PEER, 6001, 10);
	DO(connect(on.fd, ADDRESS(PEER, 6001)));
	show_names(on.fd);
	exchange((stream){ on.fd, peer_accept(door) });
	/* With a bound address, that stays. */
	int fd = tcp_bound(HOST, 5220);
	DO(connect(fd, ADDRESS(PEER, 6001)));
	peer_accept(door);
	DO(connect(fd, &nothing, sizeof nothing));
	show_names(fd);
	/* With bytes that nobody read. */
	on = connected();
	peer_writes(on.there, "unread");
	barrier();
	DO(connect(on.fd, &nothing, sizeof nothing));
	DO(recv(on.fd, room, 10, MSG_DONTWAIT));
	show_ready(on.fd, POLLIN, 0);
}

static void unconnected(void)
{
	int fd = DO(tcp());
	count_signal(SIGPIPE, 0);
	DO(shutdown(fd, SHUT_RD));
	DO(shutdown(fd, SHUT_WR));
	DO(shutdown(fd, SHUT_RDWR));
	DO(shutdown(fd, 77));
	DO(recv(fd, room, 1, 0));
	DO(read(fd, room, 1));
	DO(recv(fd, room, 0, 0));
	DO(recv(fd, room, 1, MSG_PEEK | MSG_DONTWAIT));
	DO(send(fd, "x", 1, 0));
	SIGNALS();
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	SIGNALS();
	DO(sendto(fd, "x", 1, 0, ADDRESS(PEER, 6000)));
	DO(write(fd, "x", 1));
	DO(accept(fd, NULL, NULL));
	int value = 77;
	DO(ioctl(fd, SIOCINQ, &value));
	line("  %d", value);
	DO(ioctl(fd, SIOCOUTQ, &value));
	line("  %d", value);
	DO(ioctl(fd, SIOCATMARK, &value));
	line("  %d", value);
	show_ready(fd, POLLOUT, 0);
	show_error(fd);
	signal(SIGPIPE, SIG_IGN);
	DO(close(fd));
}

static void limited(void)
{
	int fd = DO(tcp());
	struct timeval limit = { 0, 100000 };
	DO(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
	TIMED(100, connect(fd, ADDRESS(SILENT, 6000)));
	TIMED(100, connect(fd, ADDRESS(SILENT, 6000)));
	show_error(fd);
	TIMED(100, send(fd, "x", 1, MSG_NOSIGNAL));
	TIMED(0, send(fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
	limit.tv_usec = 50000;
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	TIMED(50, recv(fd, room, 1, 0));
	DO(close(fd));
	/* Given up by TCP. */
	fd = DO(tcp());
	SET(fd, SOL_TCP, TCP_SYNCNT, 1);
	TIMED(3000, connect(fd, ADDRESS(SILENT, 6000)));
	show_error(fd);
	show_ready(fd, POLLOUT, 0);
}

static void interrupted(void)
{
	int fd = DO(tcp());
	count_signal(SIGALRM, 0);
	alarm_in(50);
	TIMED(50, connect(fd, ADDRESS(SILENT, 6000)));
	SIGNALS();
	alarm_in(50);
	TIMED(50, connect(fd, ADDRESS(SILENT, 6000)));
	DO(fcntl(fd, F_SETFL, O_NONBLOCK));
	TIMED(0, connect(fd, ADDRESS(SILENT, 6000)));
	DO(fcntl(fd, F_SETFL, 0));
	/* With a time limit it is not restarted either. */
	count_signal(SIGALRM, SA_RESTART);
	struct timeval limit = { 0, 200000 };
	DO(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
	alarm_in(50);
	TIMED(50, connect(fd, ADDRESS(SILENT, 6000)));
	SIGNALS();
}

/* The peer's queue is full, so its answer comes with the second SYN, after a second. */
static int slow_door(int *filling)
{
	int door = peer_listen(PEER, 6000, 0);
	*filling = tcp();
	must("connect", connect(*filling, ADDRESS(PEER, 6000)));
	return door;
}

static void interrupted_then_done(void)
{
	int filling, fd = DO(tcp()), door = slow_door(&filling);
	count_signal(SIGALRM, 0);
	alarm_in(50);
	TIMED(50, connect(fd, ADDRESS(PEER, 6000)));
	peer_accept(door);
	TIMED(950, connect(fd, ADDRESS(PEER, 6000)));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	exchange((stream){ fd, peer_accept(door) });
	SIGNALS();
}

static void restarted(void)
{
	int filling, fd = DO(tcp()), door = slow_door(&filling);
	count_signal(SIGALRM, SA_RESTART);
	alarm_in(50);
	peer_accept_later(door, 100);
	TIMED(1000, connect(fd, ADDRESS(PEER, 6000)));
	SIGNALS();
	DO(connect(fd, ADDRESS(PEER, 6000)));
	exchange((stream){ fd, peer_accept(door) });
}

const probe_case tcp_connect_cases[] = {
	{ "blocking", blocking, false, STREAMS_OURS },
	{ "without_blocking", without_blocking, false, STREAMS_OURS },
	{ "unanswered", unanswered, false, STREAMS_OURS },
	{ "unanswered_shut", unanswered_shut, false, STREAMS_OURS },
	{ "refused", refused, false, STREAMS_OURS },
	{ "refused_without_blocking", refused_without_blocking, false, STREAMS_OURS },
	{ "unreachable", unreachable, false, STREAMS_OURS },
	{ "without_route", without_route, false, STREAMS_SHARED },
	{ "odd_addresses", odd_addresses, false, STREAMS_SHARED },
	{ "here", here, false, STREAMS_SHARED },
	{ "bound", bound, false, STREAMS_SHARED },
	{ "same_ends", same_ends, false, STREAMS_OURS },
	{ "listening", listening, false, STREAMS_OURS },
	{ "disconnected", disconnected, false, STREAMS_OURS },
	{ "unconnected", unconnected, false, STREAMS_OURS },
	{ "limited", limited, false, STREAMS_OURS },
	{ "interrupted", interrupted, false, STREAMS_OURS },
	{ "interrupted_then_done", interrupted_then_done, false, STREAMS_OURS },
	{ "restarted", restarted, false, STREAMS_OURS },
	{ NULL, NULL, false },
};
