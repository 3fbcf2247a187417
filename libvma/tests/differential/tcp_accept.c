/* listen and accept: flags, names, what is inherited, queues, connections that are gone. */
#include "prober.h"

static void blocking(void)
{
	int listening = DO(tcp());
	GET(listening, SOL_SOCKET, SO_ACCEPTCONN);
	set(listening, SOL_SOCKET, SO_REUSEADDR, 1);
	DO(bind(listening, ADDRESS(HOST, 5000)));
	DO(listen(listening, 5));
	GET(listening, SOL_SOCKET, SO_ACCEPTCONN);
	show_names(listening);
	show_ready(listening, POLLIN, 0);
	struct sockaddr_in from = { 0 };
	socklen_t length = sizeof from;
	peer_connect_later(HOST, 5000, 50);
	int fd = TIMED(50, accept(listening, (struct sockaddr *)&from, &length));
	show_address("from", &from, length);
	show_names(fd);
	GET(fd, SOL_SOCKET, SO_ACCEPTCONN);
	int there = peer_connect_from(6100, HOST, 5000);
	barrier();
	show_ready(listening, POLLIN, 0);
	length = sizeof from;
	fd = TIMED(0, accept4(listening, (struct sockaddr *)&from, &length, 0));
	show_address("from", &from, length);
	exchange((stream){ fd, there });
	show_ready(listening, POLLIN, 0);
	show_names(fd);
	DO(close(fd));
	peer_reads_rest(there);
}

/* How much of the address is wanted. */
static void lengths(void)
{
	static const socklen_t wanted[] = { 0, 1, 2, 8, 15, 16, 17, 100 };
	int listening = tcp_listener(HOST, 5000, 10);
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		unsigned char name[128];
		memset(name, 0xee, sizeof name);
		socklen_t length = wanted[i];
		peer_connect_from(6110 + i, HOST, 5000);
		DO(accept(listening, (struct sockaddr *)name, &length));
		line("  length %d: %s", (int)length, text_of(name, 20));
	}
	socklen_t length = -1;
	peer_connect_from(6120, HOST, 5000);
	DO(accept(listening, (struct sockaddr *)room, &length));
	length = 16;
	peer_connect_from(6121, HOST, 5000);
	DO(accept(listening, NULL, &length));
	line("  length %d", (int)length);
	peer_connect_from(6122, HOST, 5000);
	DO(accept(listening, (struct sockaddr *)room, NULL));
	peer_connect_from(6123, HOST, 5000);
	DO(accept(listening, (void *)16, &length));
	peer_connect_from(6124, HOST, 5000);
	DO(fcntl(listening, F_SETFL, O_NONBLOCK));
	while (accept(listening, NULL, NULL) >= 0)
		line("  one more");
}

static void show_flags(int fd)
{
	line("  flags %#x, %#x", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
}

static void flags(void)
{
	int listening = tcp_listener(HOST, 5000, 10);
	TIMED(0, (fcntl(listening, F_SETFL, O_NONBLOCK), accept(listening, NULL, NULL)));
	DO(accept4(listening, NULL, NULL, 0x1234));
	static const int given[] = { 0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC };
	for (int i = 0; i < 4; i++) {
		int there = peer_connect(HOST, 5000);
		barrier();
		int fd = DO(accept4(listening, NULL, NULL, given[i]));
		show_flags(fd);
		if (given[i] & SOCK_NONBLOCK)
			DO(recv(fd, room, 1, 0));
		peer_writes(there, "x");
		barrier();
		receive_shown(fd, 1, 0);
	}
	DO(fcntl(listening, F_SETFL, 0));
	peer_connect(HOST, 5000);
	show_flags(DO(accept(listening, NULL, NULL)));
	/* The listener's own flags stay its own. */
	show_flags(listening);
	int other = DO(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	show_flags(other);
}

static void show_inherited(int fd)
{
	GET(fd, SOL_TCP, TCP_NODELAY);
	GET(fd, SOL_TCP, TCP_CORK);
	GET(fd, SOL_TCP, TCP_KEEPIDLE);
	GET(fd, SOL_TCP, TCP_KEEPINTVL);
	GET(fd, SOL_TCP, TCP_KEEPCNT);
	GET(fd, SOL_TCP, TCP_USER_TIMEOUT);
	GET(fd, SOL_TCP, TCP_LINGER2);
	GET(fd, SOL_TCP, TCP_SYNCNT);
	GET(fd, SOL_TCP, TCP_DEFER_ACCEPT);
	GET(fd, SOL_TCP, TCP_NOTSENT_LOWAT);
	GET(fd, SOL_SOCKET, SO_KEEPALIVE);
	GET(fd, SOL_SOCKET, SO_RCVBUF);
	GET(fd, SOL_SOCKET, SO_SNDBUF);
	GET(fd, SOL_SOCKET, SO_RCVLOWAT);
	GET(fd, SOL_SOCKET, SO_REUSEADDR);
	GET(fd, SOL_SOCKET, SO_REUSEPORT);
	GET(fd, SOL_SOCKET, SO_OOBINLINE);
	GET(fd, SOL_SOCKET, SO_PRIORITY);
	GET(fd, SOL_SOCKET, SO_MARK);
	GET(fd, SOL_SOCKET, SO_DONTROUTE);
	GET(fd, IPPROTO_IP, IP_TOS);
	GET(fd, IPPROTO_IP, IP_TTL);
	GET(fd, IPPROTO_IP, IP_MTU_DISCOVER);
	struct linger linger = { -1, -1 };
	struct timeval limit = { -1, -1 };
	socklen_t length = sizeof linger;
	DO(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length));
	line("  linger %d %d", linger.l_onoff, linger.l_linger);
	length = sizeof limit;
	DO(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &length));
	line("  %ld.%06ld", (long)limit.tv_sec, (long)limit.tv_usec);
	DO(getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &length));
	line("  %ld.%06ld", (long)limit.tv_sec, (long)limit.tv_usec);
}

static void inherited(void)
{
	int listening = tcp_bound(HOST, 5000);
	set(listening, SOL_TCP, TCP_NODELAY, 1);
	set(listening, SOL_TCP, TCP_KEEPIDLE, 77);
	set(listening, SOL_TCP, TCP_KEEPINTVL, 7);
	set(listening, SOL_TCP, TCP_KEEPCNT, 3);
	set(listening, SOL_TCP, TCP_USER_TIMEOUT, 12345);
	set(listening, SOL_TCP, TCP_LINGER2, 9);
	set(listening, SOL_TCP, TCP_SYNCNT, 4);
	set(listening, SOL_TCP, TCP_NOTSENT_LOWAT, 4096);
	set(listening, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(listening, SOL_SOCKET, SO_RCVBUF, 60000);
	set(listening, SOL_SOCKET, SO_SNDBUF, 50000);
	set(listening, SOL_SOCKET, SO_RCVLOWAT, 3);
	set(listening, SOL_SOCKET, SO_OOBINLINE, 1);
	set(listening, SOL_SOCKET, SO_PRIORITY, 5);
	set(listening, IPPROTO_IP, IP_TOS, 0x28);
	set(listening, IPPROTO_IP, IP_TTL, 33);
	struct linger linger = { 1, 3 };
	struct timeval receiving = { 1, 500000 }, sending = { 2, 0 };
	DO(setsockopt(listening, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	DO(setsockopt(listening, SOL_SOCKET, SO_RCVTIMEO, &receiving, sizeof receiving));
	DO(setsockopt(listening, SOL_SOCKET, SO_SNDTIMEO, &sending, sizeof sending));
	DO(listen(listening, 5));
	look(listening);
	int there = peer_connect(HOST, 5000);
	int fd = DO(accept(listening, NULL, NULL));
	show_inherited(fd);
	exchange((stream){ fd, there });
	/* What is set after the connection came and before it is accepted is not inherited. */
	peer_connect(HOST, 5000);
	barrier();
	set(listening, SOL_TCP, TCP_NODELAY, 0);
	set(listening, SOL_TCP, TCP_KEEPCNT, 4);
	linger = (struct linger){ 0, 0 };
	DO(setsockopt(listening, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	fd = DO(accept(listening, NULL, NULL));
	show_inherited(fd);
}

/* A listener's groups are its own. */
static void groups(void)
{
	int listening = tcp_listener(HOST, 5000, 5);
	struct group_req group = { if_nametoindex(device_name), { 0 } };
	struct ip_mreq_source source = { { inet_addr("239.1.2.4") }, { inet_addr(HOST) },
		{ inet_addr(PEER) } };
	struct ip_mreq plain = { { inet_addr("239.1.2.5") }, { inet_addr(HOST) } };
	memcpy(&group.gr_group, &(struct sockaddr_in[]){ at("239.1.2.3", 0) },
	       sizeof(struct sockaddr_in));
	DO(setsockopt(listening, IPPROTO_IP, MCAST_JOIN_GROUP, &group, sizeof group));
	DO(setsockopt(listening, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &source, sizeof source));
	DO(setsockopt(listening, IPPROTO_IP, IP_ADD_MEMBERSHIP, &plain, sizeof plain));
	int there = peer_connect(HOST, 5000);
	int fd = DO(accept(listening, NULL, NULL));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &group, sizeof group));
	DO(setsockopt(fd, IPPROTO_IP, IP_DROP_SOURCE_MEMBERSHIP, &source, sizeof source));
	DO(setsockopt(fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &plain, sizeof plain));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &group, sizeof group));
	exchange((stream){ fd, there });
}

static void defaults(void)
{
	int listening = tcp_listener(HOST, 5000, 5);
	peer_connect(HOST, 5000);
	int fd = DO(accept(listening, NULL, NULL));
	GET(fd, SOL_TCP, TCP_NODELAY);
	GET(fd, SOL_TCP, TCP_KEEPIDLE);
	GET(fd, SOL_SOCKET, SO_KEEPALIVE);
	GET(fd, SOL_SOCKET, SO_REUSEADDR);
	GET(fd, IPPROTO_IP, IP_TOS);
	GET(fd, IPPROTO_IP, IP_TTL);
}

static void wrong(void)
{
	int fd = DO(tcp());
	DO(accept(fd, NULL, NULL));
	set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	DO(bind(fd, ADDRESS(HOST, 5000)));
	DO(accept(fd, NULL, NULL));
	DO(listen(fd, -1));
	DO(listen(fd, 1000000));
	DO(bind(fd, ADDRESS(HOST, 5001)));
	DO(recv(fd, room, 1, MSG_DONTWAIT));
	DO(recv(fd, room, 1, 0));
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	int value = 77;
	DO(ioctl(fd, FIONREAD, &value));
	DO(ioctl(fd, SIOCOUTQ, &value));
	DO(ioctl(fd, SIOCATMARK, &value));
	DO(shutdown(fd, SHUT_WR)); /* goes on */
	GET(fd, SOL_SOCKET, SO_ACCEPTCONN);
	peer_connects(HOST, 5000);
	DO(accept(fd, NULL, NULL));
	DO(shutdown(fd, SHUT_RD)); /* ends the listening */
	GET(fd, SOL_SOCKET, SO_ACCEPTCONN);
	DO(accept(fd, NULL, NULL));
	show_ready(fd, POLLIN, 0);
	show_names(fd);
	DO(listen(fd, 5)); /* and begins it again */
	int there = peer_connect(HOST, 5000);
	exchange((stream){ DO(accept(fd, NULL, NULL)), there });
	stream on = connected();
	DO(accept(on.fd, NULL, NULL));
	DO(listen(on.fd, 5));
	int datagrams = udp(5002);
	DO(listen(datagrams, 5));
	DO(accept(datagrams, NULL, NULL));
	DO(accept(-1, NULL, NULL));
	DO(accept(900, NULL, NULL));
}

/* Another thread ends the listening that this one waits for. */
static void *end_listening(void *fd)
{
	usleep(50000);
	shutdown(*(int *)fd, SHUT_RDWR);
	return NULL;
}

static void ended(void)
{
	pthread_t thread;
	int fd = tcp_listener(HOST, 5000, 5);
	must("thread", -pthread_create(&thread, NULL, end_listening, &fd));
	TIMED(50, accept(fd, NULL, NULL));
	pthread_join(thread, NULL);
	DO(accept(fd, NULL, NULL));
	DO(listen(fd, 5));
	struct pollfd wait = { fd, POLLIN, 0 };
	must("thread", -pthread_create(&thread, NULL, end_listening, &fd));
	TIMED(50, poll(&wait, 1, 1000));
	show_poll(&wait, 1);
	pthread_join(thread, NULL);
}

/* How many fit before anybody accepts. */
static void backlog(void)
{
	for (int size = 0; size < 2; size++) {
		int listening = tcp_listener(HOST, 5000, size), there = -1;
		for (int i = 0; i < size + 2; i++)
			there = peer_connects(HOST, 5000);
		peer_resets(there, 0); /* it would try again */
		DO(fcntl(listening, F_SETFL, O_NONBLOCK));
		while (DO(accept(listening, NULL, NULL)) >= 0)
			;
		/* A second listen changes it. */
		DO(listen(listening, 10));
		for (int i = 0; i < 3; i++)
			peer_connects(HOST, 5000);
		DO(close(listening));
	}
}

static void limited(void)
{
	int fd = tcp_listener(HOST, 5000, 5);
	struct timeval limit = { 0, 50000 };
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	TIMED(50, accept(fd, NULL, NULL));
	peer_connect_later(HOST, 5000, 20);
	TIMED(20, accept(fd, NULL, NULL));
	TIMED(50, accept4(fd, NULL, NULL, SOCK_NONBLOCK));
	count_signal(SIGALRM, SA_RESTART);
	alarm_in(20);
	TIMED(20, accept(fd, NULL, NULL)); /* not restarted with a limit */
	SIGNALS();
	limit.tv_usec = 0;
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	alarm_in(20);
	peer_connect_later(HOST, 5000, 80);
	TIMED(80, accept(fd, NULL, NULL));
	SIGNALS();
	count_signal(SIGALRM, 0);
	alarm_in(20);
	TIMED(20, accept(fd, NULL, NULL));
	SIGNALS();
}

/* The peer has closed, or reset, before anybody accepted. */
static void gone(void)
{
	int listening = tcp_listener(HOST, 5000, 10);
	struct sockaddr_in from;
	socklen_t length = sizeof from;
	int there = peer_connect_from(6130, HOST, 5000);
	peer_writes(there, "goodbye");
	peer_ends(there, 0);
	barrier();
	show_ready(listening, POLLIN, 0);
	int fd = DO(accept(listening, (struct sockaddr *)&from, &length));
	show_address("from", &from, length);
	show_ready(fd, POLLIN, 0);
	receive_shown(fd, 100, 0);
	receive_shown(fd, 100, 0);
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	there = peer_connect_from(6131, HOST, 5000);
	peer_writes(there, "goodbye");
	peer_resets(there, 0);
	barrier();
	show_ready(listening, POLLIN, 0);
	fd = DO(accept(listening, (struct sockaddr *)&from, &length));
	show_address("from", &from, length);
	show_ready(fd, POLLIN, 0);
	struct sockaddr_in name;
	length = sizeof name;
	DO(getpeername(fd, (struct sockaddr *)&name, &length));
	receive_shown(fd, 100, 0);
	receive_shown(fd, 100, 0);
	DO(send(fd, "x", 1, MSG_NOSIGNAL));
	show_ready(listening, POLLIN, 0);
}

static void unbound(void)
{
	int fd = DO(tcp());
	DO(listen(fd, 5));
	look(fd);
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	DO(getsockname(fd, (struct sockaddr *)&name, &length));
	show_address("own", &name, length);
	int there = peer_connect(HOST, ntohs(name.sin_port));
	exchange((stream){ DO(accept(fd, NULL, NULL)), there });
}

/* The listener is closed with connections in its queue: those are reset, others are not. */
static void closed(void)
{
	int listening = tcp_listener(HOST, 5000, 10);
	int first = peer_connect(HOST, 5000);
	int fd = DO(accept(listening, NULL, NULL));
	int second = peer_connect(HOST, 5000), third = peer_connect(HOST, 5000);
	peer_writes(third, "unread");
	barrier();
	DO(close(listening));
	peer_reads(second, 1);
	peer_reads(third, 1);
	peer_connects(HOST, 5000);
	exchange((stream){ fd, first });
	/* Listening again. */
	int again = DO(tcp());
	set(again, SOL_SOCKET, SO_REUSEADDR, 1);
	DO(bind(again, ADDRESS(HOST, 5000)));
	DO(listen(again, 5));
	look(again);
	int another = tcp();
	set(another, SOL_SOCKET, SO_REUSEADDR, 1);
	DO(bind(another, ADDRESS(HOST, 5000)));
	int there = peer_connect(HOST, 5000);
	exchange((stream){ DO(accept(again, NULL, NULL)), there });
	exchange((stream){ fd, first });
}

/* Its port is not free while a connection of it lives, but with SO_REUSEADDR. */
static void port_of_closed(void)
{
	stream on = accepted();
	int again = DO(tcp());
	DO(bind(again, ADDRESS(HOST, 5000)));
	set(again, SOL_SOCKET, SO_REUSEADDR, 1);
	DO(bind(again, ADDRESS(HOST, 5000)));
	exchange(on);
}

static int by_name(const void *one, const void *two)
{
	return strcmp(*(char *const *)one, *(char *const *)two);
}

/* One listener for everything: the interface, its own address from here, lo. */
static void everywhere(void)
{
	int listening = tcp_listener("0.0.0.0", 5000, 10), ends[4];
	static const char *const places[] = { HOST, "127.0.0.1", "127.0.0.9" };
	show_names(listening);
	int there = peer_connect_from(6140, HOST, 5000);
	for (int i = 0; i < 3; i++) {
		ends[i] = tcp();
		DO(connect(ends[i], ADDRESS(places[i], 5000)));
	}
	barrier();
	char names[4][64], *sorted[4];
	for (int i = 0; i < 4; i++) {
		struct sockaddr_in own, from;
		socklen_t length = sizeof from;
		int fd = DO(accept(listening, (struct sockaddr *)&from, &length));
		getsockname(fd, (struct sockaddr *)&own, &length);
		snprintf(names[i], sizeof names[i], "%s from %s", name_of(&own), name_of(&from));
		sorted[i] = names[i];
		must("send", send(fd, "hello", 5, 0));
	}
	qsort(sorted, 4, sizeof *sorted, by_name);
	for (int i = 0; i < 4; i++)
		line("  %s", sorted[i]);
	for (int i = 0; i < 3; i++)
		receive_shown(ends[i], 5, 0);
	peer_reads(there, 5);
	show_ready(listening, POLLIN, 0);
	/* Late, by either way, while accept waits. */
	peer_connect_later(HOST, 5000, 50);
	TIMED(50, accept(listening, NULL, NULL));
	if (fork() == 0) {
		usleep(50000);
		int fd = tcp();
		must("connect", connect(fd, ADDRESS("127.0.0.1", 5000)));
		usleep(50000);
		_exit(0);
	}
	TIMED(50, accept(listening, NULL, NULL));
	wait(NULL);
}

/* Data has to be there before the connection is. */
static void deferred(void)
{
	int listening = tcp_bound(HOST, 5000);
	SET(listening, SOL_TCP, TCP_DEFER_ACCEPT, 3);
	GET(listening, SOL_TCP, TCP_DEFER_ACCEPT);
	DO(listen(listening, 5));
	look(listening);
	DO(fcntl(listening, F_SETFL, O_NONBLOCK));
	int there = peer_connect(HOST, 5000);
	barrier();
	DO(accept(listening, NULL, NULL));
	show_ready(listening, POLLIN, 20);
	peer_writes(there, "from there");
	show_ready(listening, POLLIN, 300);
	int fd = DO(accept(listening, NULL, NULL));
	receive_shown(fd, 100, 0);
	DO(fcntl(fd, F_SETFL, 0));
	exchange((stream){ fd, there });
}

/* Many, accepted in the order they came. */
static void many(void)
{
	int listening = tcp_listener(HOST, 5000, 40), there[24];
	for (int i = 0; i < 24; i++)
		there[i] = peer_connect_from(6200 + i, HOST, 5000);
	barrier();
	for (int i = 0; i < 24; i++) {
		struct sockaddr_in from;
		socklen_t length = sizeof from;
		int fd = DO(accept(listening, (struct sockaddr *)&from, &length));
		show_address("from", &from, length);
		must("send", send(fd, "x", 1, 0));
		if (i % 2)
			close(fd);
	}
	for (int i = 0; i < 24; i += 5)
		peer_reads_rest(there[i]);
}

/* Listeners at one address and port (SO_REUSEPORT): the clients of one host are spread. */
static void spread(void)
{
	enum { LISTENERS = 2, CLIENTS = 40 };
	int listening[LISTENERS], count[LISTENERS] = { 0 }, all = 0;
	for (int i = 0; i < LISTENERS; i++) {
		listening[i] = tcp();
		set(listening[i], SOL_SOCKET, SO_REUSEADDR, 1);
		set(listening[i], SOL_SOCKET, SO_REUSEPORT, 1);
		must("bind", bind(listening[i], ADDRESS(HOST, 5000)));
		must("listen", listen(listening[i], CLIENTS));
		look(listening[i]);
	}
	for (int i = 0; i < CLIENTS; i++)
		peer_connect(HOST, 5000);
	barrier();
	for (int i = 0; i < LISTENERS; i++) {
		DO(fcntl(listening[i], F_SETFL, O_NONBLOCK));
		int fd;
		while ((fd = accept(listening[i], NULL, NULL)) >= 0) {
			close(fd);
			count[i]++;
		}
		line("  some %d", count[i] > 0);
		all += count[i];
	}
	line("  of %d", all);
}

const probe_case tcp_accept_cases[] = {
	{ "blocking", blocking, false, STREAMS_OURS },
	{ "lengths", lengths, false, STREAMS_OURS },
	{ "flags", flags, false, STREAMS_OURS },
	{ "inherited", inherited, false, STREAMS_OURS },
	{ "groups", groups, false, STREAMS_OURS },
	{ "defaults", defaults, false, STREAMS_OURS },
	{ "wrong", wrong, false, STREAMS_SHARED },
	{ "ended", ended, false, STREAMS_OURS },
	{ "backlog", backlog, false, STREAMS_OURS },
	{ "limited", limited, false, STREAMS_OURS },
	{ "gone", gone, false, STREAMS_OURS },
	{ "unbound", unbound, false, STREAMS_OURS },
	{ "closed", closed, false, STREAMS_SHARED }, /* a closed port is the kernel's to refuse */
	{ "port_of_closed", port_of_closed, false, STREAMS_OURS },
	{ "deferred", deferred, false, STREAMS_OURS },
	{ "many", many, false, STREAMS_OURS },
	{ "spread", spread, false, STREAMS_OURS },
	{ "everywhere", everywhere, true, STREAMS_SHARED }, /* lo; a child */
	{ NULL, NULL, false },
};
