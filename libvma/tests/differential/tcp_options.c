/* Options of streams: what is kept, refused, rounded and told, before and after connecting. */
#include "prober.h"

#ifndef TCP_TX_DELAY
#define TCP_TX_DELAY 37
#endif

struct option {
	const char *name;
	int level, option;
};

#define T(name) { #name, IPPROTO_TCP, name }
#define S(name) { #name, SOL_SOCKET, name }
#define I(name) { #name, IPPROTO_IP, name }

static const struct option tcp_integers[] = {
	T(TCP_NODELAY), T(TCP_MAXSEG), T(TCP_CORK), T(TCP_KEEPIDLE), T(TCP_KEEPINTVL), T(TCP_KEEPCNT),
	T(TCP_SYNCNT), T(TCP_LINGER2), T(TCP_DEFER_ACCEPT), T(TCP_WINDOW_CLAMP), T(TCP_USER_TIMEOUT),
	T(TCP_NOTSENT_LOWAT), T(TCP_QUICKACK), T(TCP_FASTOPEN), T(TCP_FASTOPEN_CONNECT),
	T(TCP_FASTOPEN_NO_COOKIE), T(TCP_THIN_LINEAR_TIMEOUTS), T(TCP_THIN_DUPACK), T(TCP_SAVE_SYN),
	T(TCP_INQ), T(TCP_TX_DELAY), { "TCP nonsense", IPPROTO_TCP, 99 },
};
#define TCP_INTEGERS (sizeof tcp_integers / sizeof *tcp_integers)

static const struct option others[] = {
	S(SO_REUSEADDR), S(SO_REUSEPORT), S(SO_KEEPALIVE), S(SO_OOBINLINE), S(SO_BROADCAST),
	S(SO_DONTROUTE), S(SO_PRIORITY), S(SO_MARK), S(SO_RCVLOWAT), S(SO_SNDLOWAT), S(SO_TYPE),
	S(SO_DOMAIN), S(SO_PROTOCOL), S(SO_ACCEPTCONN), S(SO_ERROR), S(SO_TIMESTAMP),
	S(SO_TIMESTAMPNS), S(SO_BUSY_POLL), S(SO_DEBUG), S(SO_PASSCRED), S(SO_PEEK_OFF),
	S(SO_NO_CHECK), S(SO_SELECT_ERR_QUEUE), S(SO_BINDTOIFINDEX), I(IP_TOS), I(IP_TTL),
	I(IP_MTU_DISCOVER), I(IP_PKTINFO), I(IP_RECVTTL), I(IP_RECVTOS), I(IP_RECVERR), I(IP_FREEBIND),
	I(IP_BIND_ADDRESS_NO_PORT), I(IP_MINTTL), I(IP_MULTICAST_TTL), I(IP_MULTICAST_LOOP),
	{ "nonsense", SOL_SOCKET, 9999 }, { "nonsense", 9999, 1 }, { "of UDP", IPPROTO_UDP, 1 },
};
#define OTHERS (sizeof others / sizeof *others)

static void get(int fd, const struct option *option)
{
	show_option(fd, option->level, option->option, option->name);
}

static void put(int fd, const struct option *option, int value)
{
	char call[80];
	snprintf(call, sizeof call, "set %s to %d", option->name, value);
	errno = UNTOUCHED;
	report(call, setsockopt(fd, option->level, option->option, &value, sizeof value));
}

/* Whether it acknowledges at once changes by itself. */
static bool changes_by_itself(const struct option *option)
{
	return option->level == IPPROTO_TCP &&
		(option->option == TCP_QUICKACK || option->option == TCP_WINDOW_CLAMP);
}

static void tcp_values(int fd, bool live)
{
	static const int values[] = { 1, 0, 2, 7, 100, 127, 128, 1000, 32767, 32768, 65536, -1, -5,
		INT32_MAX, INT32_MIN };
	for (size_t i = 0; i < TCP_INTEGERS; i++) {
		const struct option *option = &tcp_integers[i];
		bool shown = !live || !changes_by_itself(option);
		if (shown)
			get(fd, option);
		for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
			put(fd, option, values[v]);
			if (shown)
				get(fd, option);
		}
	}
}

static void tcp_unconnected(void)
{
	tcp_values(DO(tcp()), false);
}

static void tcp_listening(void)
{
	int fd = tcp_listener(HOST, 5000, 5);
	tcp_values(fd, false);
}

/* The connection works whatever was set. */
static void tcp_connected(void)
{
	stream on = connected();
	for (size_t i = 0; i < TCP_INTEGERS; i++)
		if (!changes_by_itself(&tcp_integers[i]))
			get(on.fd, &tcp_integers[i]);
	exchange(on);
	tcp_values(on.fd, true);
	on = accepted();
	for (size_t i = 0; i < TCP_INTEGERS; i++)
		if (!changes_by_itself(&tcp_integers[i]))
			get(on.fd, &tcp_integers[i]);
	exchange(on);
	SET(on.fd, SOL_TCP, TCP_QUICKACK, 1);
	GET(on.fd, SOL_TCP, TCP_QUICKACK);
	SET(on.fd, SOL_TCP, TCP_QUICKACK, 0);
	GET(on.fd, SOL_TCP, TCP_QUICKACK);
	exchange(on);
}

static void others_kept(void)
{
	static const int values[] = { 1, 0, 2, 7, 255, 256, 70000, -1 };
	int fd = DO(tcp());
	for (size_t i = 0; i < OTHERS; i++) {
		get(fd, &others[i]);
		for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
			put(fd, &others[i], values[v]);
			get(fd, &others[i]);
		}
	}
	stream on = connected();
	for (size_t i = 0; i < OTHERS; i++)
		get(on.fd, &others[i]);
	exchange(on);
}

static void lengths(void)
{
	static const socklen_t sizes[] = { 0, 1, 2, 3, 4, 5, 8, 100, -1 };
	static const struct option some[] = { T(TCP_NODELAY), T(TCP_KEEPIDLE), T(TCP_MAXSEG),
		T(TCP_USER_TIMEOUT), S(SO_KEEPALIVE), S(SO_RCVBUF), S(SO_ERROR), I(IP_TOS), I(IP_TTL) };
	int fd = DO(tcp());
	for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
		line("%s", some[i].name);
		for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
			unsigned char value[128] = { 5 };
			DO(setsockopt(fd, some[i].level, some[i].option, value, sizes[s]));
			memset(value, 0xee, sizeof value);
			socklen_t length = sizes[s];
			DO(getsockopt(fd, some[i].level, some[i].option, value, &length));
			line("  length %d: %02x %02x %02x %02x %02x", (int)length, value[0], value[1],
			     value[2], value[3], value[4]);
		}
	}
	void *volatile nowhere = (void *)16;
	socklen_t length = 4;
	DO(setsockopt(fd, SOL_TCP, TCP_NODELAY, nowhere, 4));
	DO(setsockopt(fd, SOL_TCP, TCP_NODELAY, NULL, 4));
	DO(getsockopt(fd, SOL_TCP, TCP_NODELAY, nowhere, &length));
	DO(getsockopt(fd, SOL_TCP, TCP_NODELAY, room, nowhere));
	DO(getsockopt(fd, SOL_TCP, TCP_NODELAY, NULL, &length));
}

static void buffers(void)
{
	static const int sizes[] = { 0, 1, 1000, 2304, 4608, 10000, 100000, 10000000, INT32_MAX, -1 };
	static const struct option four[] = { S(SO_SNDBUF), S(SO_RCVBUF), S(SO_SNDBUFFORCE),
		S(SO_RCVBUFFORCE) };
	int fd = DO(tcp());
	GET(fd, SOL_SOCKET, SO_SNDBUF);
	GET(fd, SOL_SOCKET, SO_RCVBUF);
	for (int o = 0; o < 4; o++)
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
			put(fd, &four[o], sizes[i]);
			get(fd, &four[o & 1]);
		}
	put(fd, &four[0], 30000);
	put(fd, &four[1], 40000);
	int door = peer_listen(PEER, 6000, 5);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	get(fd, &four[0]);
	get(fd, &four[1]);
	put(fd, &four[0], 50000);
	put(fd, &four[1], 60000);
	get(fd, &four[0]);
	get(fd, &four[1]);
	exchange((stream){ fd, peer_accept(door) });
}

static void times(void)
{
	static const struct timeval values[] = { { 0, 0 }, { 1, 500000 }, { 0, 1 }, { 0, 1000000 },
		{ 0, -1 }, { -1, 0 }, { 100000000, 0 }, { INT64_MAX / 1000, 0 } };
	static const int names[] = { SO_RCVTIMEO, SO_SNDTIMEO };
	stream on = connected();
	for (int n = 0; n < 2; n++)
		for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
			struct timeval value;
			socklen_t length = sizeof value;
			DO(setsockopt(on.fd, SOL_SOCKET, names[n], &values[i], sizeof value));
			DO(getsockopt(on.fd, SOL_SOCKET, names[n], &value, &length));
			line("  %ld.%06ld, length %d", (long)value.tv_sec, (long)value.tv_usec, (int)length);
			DO(setsockopt(on.fd, SOL_SOCKET, names[n], &values[i], 8));
			length = 8;
			DO(getsockopt(on.fd, SOL_SOCKET, names[n], &value, &length));
			line("  length %d", (int)length);
		}
	/* Negative: not at all. */
	struct timeval never = { -1, 0 };
	DO(setsockopt(on.fd, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never));
	TIMED(0, recv(on.fd, room, 1, 0));
}

static void lingers(void)
{
	static const struct linger values[] = { { 0, 0 }, { 1, 5 }, { 0, 7 }, { 1, 0 }, { 77, 1 },
		{ 1, -1 }, { -1, 3 }, { 1, INT32_MAX }, { 0, 0 } };
	int fd = DO(tcp());
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		struct linger value = { -7, -7 };
		socklen_t length = sizeof value;
		DO(setsockopt(fd, SOL_SOCKET, SO_LINGER, &values[i], sizeof value));
		DO(getsockopt(fd, SOL_SOCKET, SO_LINGER, &value, &length));
		line("  %d %d, length %d", value.l_onoff, value.l_linger, (int)length);
	}
	DO(setsockopt(fd, SOL_SOCKET, SO_LINGER, &values[1], 4));
	struct linger value = { -7, -7 };
	socklen_t length = 4;
	DO(getsockopt(fd, SOL_SOCKET, SO_LINGER, &value, &length));
	line("  %d %d, length %d", value.l_onoff, value.l_linger, (int)length);
}

/* Not the first one: that is the machine's choice. */
static void show_congestion(int fd, socklen_t length)
{
	char name[32];
	memset(name, 0xee, sizeof name);
	DO(getsockopt(fd, SOL_TCP, TCP_CONGESTION, name, &length));
	line("  length %d: %s", (int)length, text_of(name, strnlen(name, (int)length > 0 ? length : 0)));
}

static void congestion(void)
{
	stream on = connected();
	int fds[2] = { DO(tcp()), on.fd };
	for (int i = 0; i < 2; i++) {
		int fd = fds[i];
		DO(setsockopt(fd, SOL_TCP, TCP_CONGESTION, "cubic", 5));
		show_congestion(fd, 32);
		DO(setsockopt(fd, SOL_TCP, TCP_CONGESTION, "reno", 5));
		show_congestion(fd, 32);
		show_congestion(fd, 16);
		show_congestion(fd, 3);
		show_congestion(fd, 0);
		show_congestion(fd, -1);
		DO(setsockopt(fd, SOL_TCP, TCP_CONGESTION, "no such one", 11));
		DO(setsockopt(fd, SOL_TCP, TCP_CONGESTION, "no such one, and long", 21));
		DO(setsockopt(fd, SOL_TCP, TCP_CONGESTION, "", 0));
		DO(setsockopt(fd, SOL_TCP, TCP_CONGESTION, "", 1));
		DO(setsockopt(fd, SOL_TCP, TCP_CONGESTION, (void *)16, 5));
		DO(setsockopt(fd, SOL_TCP, TCP_CONGESTION, "cubic and more", 5));
		show_congestion(fd, 32);
	}
	exchange(on);
	/* Inherited from the listener. */
	int listening = tcp_bound(HOST, 5000);
	DO(setsockopt(listening, SOL_TCP, TCP_CONGESTION, "reno", 4));
	DO(listen(listening, 5));
	look(listening);
	int there = peer_connect(HOST, 5000), fd = DO(accept(listening, NULL, NULL));
	show_congestion(fd, 32);
	exchange((stream){ fd, there });
}

static void show_info(int fd)
{
	struct tcp_info info;
	socklen_t length = sizeof info;
	memset(&info, 0, sizeof info);
	DO(getsockopt(fd, SOL_TCP, TCP_INFO, &info, &length));
	line("  length %d, state %d, congestion state %d, options %#x", (int)length, info.tcpi_state,
	     info.tcpi_ca_state, info.tcpi_options);
	line("  mss %u, advertised %u, path %u, retransmits %u %u, lost %u", info.tcpi_snd_mss,
	     info.tcpi_advmss, info.tcpi_pmtu, info.tcpi_retransmits, info.tcpi_total_retrans,
	     info.tcpi_lost);
}

static void info(void)
{
	int fd = DO(tcp());
	show_info(fd);
	int listening = tcp_listener(HOST, 5000, 7);
	struct tcp_info about;
	socklen_t length = sizeof about;
	show_info(listening);
	peer_connect(HOST, 5000);
	barrier();
	DO(getsockopt(listening, SOL_TCP, TCP_INFO, &about, &length));
	line("  %u of %u wait", about.tcpi_unacked, about.tcpi_sacked);
	close(listening);
	stream on = connected();
	show_info(on.fd);
	exchange(on);
	acknowledged(on.fd);
	show_info(on.fd);
	DO(getsockopt(on.fd, SOL_TCP, TCP_INFO, &about, &length));
	line("  unacknowledged %u, rtt %d, window %d", about.tcpi_unacked, about.tcpi_rtt > 0,
	     about.tcpi_snd_cwnd > 0);
	DO(shutdown(on.fd, SHUT_WR));
	acknowledged(on.fd);
	show_info(on.fd);
	peer_reads_rest(on.there);
	on = accepted();
	peer_shuts(on.there, SHUT_WR, 0);
	barrier();
	show_info(on.fd);
	peer_resets(on.there, 0);
	barrier();
	show_info(on.fd);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	DO(connect(fd, ADDRESS(SILENT, 6000)));
	show_info(fd);
	static const socklen_t sizes[] = { 0, 1, 4, 8, 100, 104, 1000, -1 };
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		unsigned char bytes[1000];
		memset(bytes, 0xee, sizeof bytes);
		length = sizes[i];
		DO(getsockopt(on.fd, SOL_TCP, TCP_INFO, bytes, &length));
		line("  length %d, state %#x", (int)length, bytes[0]);
	}
	DO(setsockopt(on.fd, SOL_TCP, TCP_INFO, &about, sizeof about));
}

/* The scale of windows goes by the buffer: the system's largest one, or SO_RCVBUF. */
static void scales(void)
{
	static const int sizes[] = { 0, 2000, 60000, 200000, 1000000 };
	struct tcp_info info;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int door = peer_listen(PEER, 6000, 10), fd = tcp(), listening = tcp_bound(HOST, 5000);
		if (sizes[i]) {
			set(fd, SOL_SOCKET, SO_RCVBUF, sizes[i]);
			set(listening, SOL_SOCKET, SO_RCVBUF, sizes[i]);
		}
		must("listen", listen(listening, 5));
		look(listening);
		int there = peer_connect(HOST, 5000);
		int accepted = accept(listening, NULL, NULL);
		must("connect", connect(fd, ADDRESS(PEER, 6000)));
		for (int at = 0; at < 2; at++) {
			socklen_t length = sizeof info;
			DO(getsockopt(at ? accepted : fd, SOL_TCP, TCP_INFO, &info, &length));
			line("  SO_RCVBUF %d: %d, the peer's %d", sizes[i], info.tcpi_rcv_wscale,
			     info.tcpi_snd_wscale);
		}
		close(fd);
		close(accepted);
		close(listening);
		peer_ends(there, 0);
		peer_ends(door, 0);
	}
}

/* The largest segment, as asked for here and told by the other end. */
static void segments(void)
{
	static const int sizes[] = { 0, 87, 88, 536, 1000, 1460, 9000, 32767, 32768, -1 };
	int fd = DO(tcp());
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		SET(fd, SOL_TCP, TCP_MAXSEG, sizes[i]);
		GET(fd, SOL_TCP, TCP_MAXSEG);
	}
	SET(fd, SOL_TCP, TCP_MAXSEG, 700);
	int door = peer_listen(PEER, 6000, 5);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	GET(fd, SOL_TCP, TCP_MAXSEG);
	show_info(fd);
	stream on = { fd, peer_accept(door) };
	exchange(on);
	peer_writes_much(on.there, 20000);
	receive_shown(fd, 20000, MSG_WAITALL);
	DO(send(fd, stream_bytes(20000), 20000, 0));
	peer_reads(on.there, 20000);
	int listening = tcp_bound(HOST, 5000);
	SET(listening, SOL_TCP, TCP_MAXSEG, 600);
	DO(listen(listening, 5));
	look(listening);
	on.there = peer_connect(HOST, 5000);
	on.fd = DO(accept(listening, NULL, NULL));
	GET(on.fd, SOL_TCP, TCP_MAXSEG);
	exchange(on);
}

static void special(void)
{
	int fd = DO(tcp());
	char bytes[64];
	socklen_t length = sizeof bytes;
	DO(getsockopt(fd, SOL_TCP, TCP_ULP, bytes, &length));
	line("  length %d", (int)length);
	DO(setsockopt(fd, SOL_TCP, TCP_ULP, "no such one", 11));
	DO(setsockopt(fd, SOL_TCP, TCP_ULP, "", 0));
	DO(setsockopt(fd, SOL_TCP, TCP_MD5SIG, bytes, 3));
	SET(fd, SOL_TCP, TCP_REPAIR_QUEUE, 1);
	SET(fd, SOL_TCP, TCP_QUEUE_SEQ, 1);
	GET(fd, SOL_TCP, TCP_REPAIR);
	SET(fd, SOL_TCP, TCP_REPAIR, 77);
	SET(fd, SOL_TCP, TCP_REPAIR_OPTIONS, 1);
	length = sizeof bytes;
	DO(getsockopt(fd, SOL_TCP, TCP_SAVED_SYN, bytes, &length));
	line("  length %d", (int)length);
	length = 4;
	DO(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, bytes, &length));
	DO(getsockopt(fd, SOL_SOCKET, SO_PEERNAME, bytes, &length));
	length = sizeof bytes;
	DO(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, bytes, &length));
	line("  length %d", (int)length);
	DO(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "no such device", 15));
	DO(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device_name, strlen(device_name)));
	DO(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, bytes, &length));
	line("  length %d: %s", (int)length, text_of(bytes, strnlen(bytes, length)));
	int door = peer_listen(PEER, 6000, 5);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	exchange((stream){ fd, peer_accept(door) });
	struct sockaddr_in name;
	length = sizeof name;
	DO(getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &name, &length));
	show_address("peer", &name, length);
}

static void modes(void)
{
	stream on = connected();
	int on_now = 1, off = 0;
	DO(fcntl(on.fd, F_GETFL));
	DO(ioctl(on.fd, FIONBIO, &on_now));
	DO(fcntl(on.fd, F_GETFL));
	TIMED(0, recv(on.fd, room, 1, 0));
	DO(ioctl(on.fd, FIONBIO, &off));
	DO(fcntl(on.fd, F_GETFL));
	DO(fcntl(on.fd, F_SETFL, O_NONBLOCK | O_APPEND));
	DO(fcntl(on.fd, F_GETFL));
	TIMED(0, recv(on.fd, room, 1, 0));
	DO(fcntl(on.fd, F_SETFL, O_RDONLY));
	DO(fcntl(on.fd, F_GETFL));
	DO(fcntl(on.fd, F_GETFD));
	DO(ioctl(on.fd, FIOCLEX));
	DO(fcntl(on.fd, F_GETFD));
	DO(ioctl(on.fd, FIONCLEX));
	DO(fcntl(on.fd, F_GETFD));
	DO(ioctl(on.fd, FIONBIO, (void *)16));
	DO(ioctl(on.fd, 0x12345678, &off));
	DO(ioctl(on.fd, TCGETS, room));
	DO(isatty(on.fd));
	DO(lseek(on.fd, 0, SEEK_SET));
	DO(pread(on.fd, room, 1, 0));
	DO(pwrite(on.fd, room, 1, 0));
	DO(fsync(on.fd));
	DO(ftruncate(on.fd, 0));
	DO(fcntl(on.fd, F_DUPFD, -1));
	DO(fcntl(on.fd, 77777));
	DO(fcntl(on.fd, F_GETSIG));
	exchange(on);
}

/* Peeking goes on where it was. */
static void peek_offset(void)
{
	stream on = accepted();
	SET(on.fd, SOL_SOCKET, SO_PEEK_OFF, 0);
	GET(on.fd, SOL_SOCKET, SO_PEEK_OFF);
	peer_writes(on.there, "0123456789");
	barrier();
	receive_shown(on.fd, 3, MSG_PEEK);
	receive_shown(on.fd, 3, MSG_PEEK);
	GET(on.fd, SOL_SOCKET, SO_PEEK_OFF);
	receive_shown(on.fd, 2, 0);
	GET(on.fd, SOL_SOCKET, SO_PEEK_OFF);
	receive_shown(on.fd, 100, MSG_PEEK);
	receive_shown(on.fd, 100, MSG_PEEK | MSG_DONTWAIT);
	SET(on.fd, SOL_SOCKET, SO_PEEK_OFF, -1);
	receive_shown(on.fd, 100, MSG_PEEK);
	receive_shown(on.fd, 100, 0);
}

/* An idle connection whose peer is gone without a word: keep-alive finds out. */
static void kept_alive(void)
{
	stream on = connected();
	SET(on.fd, SOL_TCP, TCP_KEEPIDLE, 1);
	SET(on.fd, SOL_TCP, TCP_KEEPINTVL, 1);
	SET(on.fd, SOL_TCP, TCP_KEEPCNT, 1);
	SET(on.fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	/* Answered: nothing happens. */
	struct pollfd wait = { on.fd, POLLIN, 0 };
	TIMED(2500, poll(&wait, 1, 2500));
	exchange(on);
}

const probe_case tcp_option_cases[] = {
	{ "tcp_unconnected", tcp_unconnected, false, STREAMS_OURS },
	{ "tcp_listening", tcp_listening, false, STREAMS_OURS },
	{ "tcp_connected", tcp_connected, false, STREAMS_SHARED }, /* some make it the kernel's */
	{ "others_kept", others_kept, false, STREAMS_OURS },
	{ "lengths", lengths, false, STREAMS_OURS },
	{ "buffers", buffers, false, STREAMS_OURS },
	{ "times", times, false, STREAMS_OURS },
	{ "lingers", lingers, false, STREAMS_OURS },
	{ "congestion", congestion, false, STREAMS_OURS },
	{ "info", info, false, STREAMS_OURS },
	{ "scales", scales, false, STREAMS_OURS },
	{ "segments", segments, false, STREAMS_OURS },
	{ "special", special, false, STREAMS_SHARED }, /* TCP_REPAIR, SO_BINDTODEVICE */
	{ "modes", modes, false, STREAMS_OURS },
	{ "peek_offset", peek_offset, false, STREAMS_OURS },
	{ "kept_alive", kept_alive, false, STREAMS_OURS },
	{ NULL, NULL, false },
};
