/* Streams of AF_INET6: names, lengths and errors of those whose traffic is IPv4, and of those whose is not. */
#include "prober.h"

#define MAPPED "::ffff:"

static struct sockaddr_in6 at6(const char *ip, int port)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	if (inet_pton(AF_INET6, ip, &address.sin6_addr) != 1)
		must("an address", -1);
	return address;
}

#define ADDRESS6(ip, port) ((struct sockaddr *)&(struct sockaddr_in6[]){ at6(ip, port) }), \
	sizeof(struct sockaddr_in6)

static int tcp6(void)
{
	return socket(AF_INET6, SOCK_STREAM, 0);
}

static void show_name6(const char *what, const struct sockaddr_in6 *address, socklen_t length)
{
	char ip[INET6_ADDRSTRLEN] = "?";
	inet_ntop(AF_INET6, &address->sin6_addr, ip, sizeof ip);
	int port = ntohs(address->sin6_port);
	line("  %s family %d [%s]:%d, flow %#x, scope %u, length %d", what, address->sin6_family, ip,
	     port >= EPHEMERAL ? EPHEMERAL : port, address->sin6_flowinfo, address->sin6_scope_id,
	     (int)length);
}

static void show_names6(int fd)
{
	struct sockaddr_in6 address;
	memset(&address, 0xee, sizeof address);
	socklen_t length = sizeof address;
	if (DO(getsockname(fd, (struct sockaddr *)&address, &length)) == 0)
		show_name6("own", &address, length);
	memset(&address, 0xee, sizeof address);
	length = sizeof address;
	if (DO(getpeername(fd, (struct sockaddr *)&address, &length)) == 0)
		show_name6("peer", &address, length);
	length = sizeof address;
	memset(&address, 0xee, sizeof address);
	if (DO(getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &address, &length)) == 0)
		show_name6("SO_PEERNAME", &address, length);
	GET(fd, SOL_SOCKET, SO_DOMAIN);
	GET(fd, IPPROTO_IPV6, IPV6_V6ONLY);
}

static int listener6(const char *ip, int port)
{
	int fd = tcp6();
	must("socket", fd);
	set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	must("bind", bind(fd, ADDRESS6(ip, port)));
	must("listen", listen(fd, 10));
	look(fd);
	return fd;
}

static void clients(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = DO(tcp6());
	show_names6(fd);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	show_names6(fd);
	stream on = { fd, peer_accept(door) };
	exchange(on);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	DO(connect(fd, ADDRESS6("::1", 6000)));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(bind(fd, ADDRESS6("::", 5300)));
	DO(listen(fd, 5));
	peer_ends(on.there, 0);
	DO(recv(fd, room, 10, 0));
	show_names6(fd);
	DO(close(fd));
	/* Flow label and scope mean nothing. */
	struct sockaddr_in6 odd = at6(MAPPED PEER, 6000);
	odd.sin6_flowinfo = htonl(0x12345), odd.sin6_scope_id = 7;
	fd = DO(tcp6());
	DO(connect(fd, (struct sockaddr *)&odd, sizeof odd));
	show_names6(fd);
	exchange((stream){ fd, peer_accept(door) });
	/* The scope may be missing. */
	fd = DO(tcp6());
	DO(connect(fd, (struct sockaddr *)&odd, 24));
	show_names6(fd);
	exchange((stream){ fd, peer_accept(door) });
	fd = DO(tcp6());
	DO(bind(fd, ADDRESS6(MAPPED HOST, 5201)));
	show_names6(fd);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	show_names6(fd);
	exchange((stream){ fd, peer_accept(door) });
	fd = DO(tcp6());
	DO(bind(fd, ADDRESS6("::", 5202)));
	show_names6(fd);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	show_names6(fd);
	exchange((stream){ fd, peer_accept(door) });
}

static void refused(void)
{
	int fd = DO(tcp6());
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6999)));
	show_names6(fd);
	show_error(fd);
	fd = DO(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0));
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6999)));
	show_ready(fd, POLLOUT, 300);
	show_error(fd);
	show_names6(fd);
}

static void odd_addresses(void)
{
	int fd = DO(tcp6());
	struct sockaddr_in6 to = at6(MAPPED PEER, 6999);
	const struct sockaddr *name = (struct sockaddr *)&to;
	DO(connect(fd, NULL, sizeof to));
	static const socklen_t lengths[] = { 0, 1, 2, 15, 16, 23, -1, 129, 200 };
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		DO(connect(fd, name, lengths[i]));
		DO(bind(fd, name, lengths[i]));
	}
	for (int length = 16; length <= 28; length += 12) {
		to.sin6_family = AF_INET;
		DO(connect(fd, name, length));
		DO(bind(fd, name, length));
		to.sin6_family = AF_UNIX;
		DO(connect(fd, name, length));
		to.sin6_family = AF_UNSPEC;
		DO(connect(fd, name, length));
		DO(bind(fd, name, length));
	}
	DO(connect(fd, (void *)16, sizeof to));
	DO(bind(fd, (void *)16, sizeof to));
	DO(bind(fd, NULL, sizeof to));
	DO(bind(fd, ADDRESS6(MAPPED "10.99.0.77", 5204)));
	DO(bind(fd, ADDRESS6("2001:db8::77", 5204)));
	show_names6(fd);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6999)));
	DO(connect(fd, ADDRESS6(MAPPED "10.99.0.255", 6000)));
	DO(connect(fd, ADDRESS6(MAPPED "239.1.2.3", 6000)));
	struct sockaddr_storage large = { 0 };
	memcpy(&large, &to, sizeof to);
	((struct sockaddr_in6 *)&large)->sin6_family = AF_INET6;
	DO(connect(fd, (struct sockaddr *)&large, sizeof large));
}

/* What getsockname, getpeername and accept write. */
static void lengths(void)
{
	static const socklen_t wanted[] = { 0, 1, 2, 8, 16, 24, 27, 28, 29, 100 };
	int listening = listener6("::", 5000);
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		unsigned char name[128];
		memset(name, 0xee, sizeof name);
		socklen_t length = wanted[i];
		peer_connect_from(6110 + i, HOST, 5000);
		int fd = DO(accept(listening, (struct sockaddr *)name, &length));
		line("  length %d: %s", (int)length, text_of(name, 32));
		memset(name, 0xee, sizeof name);
		length = wanted[i];
		DO(getsockname(fd, (struct sockaddr *)name, &length));
		line("  length %d: %s", (int)length, text_of(name, 32));
		memset(name, 0xee, sizeof name);
		length = wanted[i];
		DO(getpeername(fd, (struct sockaddr *)name, &length));
		line("  length %d: %s", (int)length, text_of(name, 32));
		memset(name, 0xee, sizeof name);
		length = wanted[i];
		DO(getsockopt(fd, SOL_SOCKET, SO_PEERNAME, name, &length));
		line("  length %d: %s", (int)length, text_of(name, 32));
	}
	socklen_t length = -1;
	peer_connect_from(6130, HOST, 5000);
	DO(accept(listening, (struct sockaddr *)room, &length));
	length = 28;
	peer_connect_from(6131, HOST, 5000);
	int fd = DO(accept(listening, NULL, &length));
	line("  length %d", (int)length);
	length = -1;
	DO(getsockname(fd, (struct sockaddr *)room, &length));
	DO(getpeername(fd, (struct sockaddr *)room, &length));
	DO(getsockname(fd, NULL, &length));
	length = 0;
	DO(getsockname(fd, NULL, &length));
	line("  length %d", (int)length);
	length = 5;
	DO(getsockname(fd, NULL, &length));
	DO(getpeername(fd, (struct sockaddr *)room, NULL));
	peer_connect_from(6132, HOST, 5000);
	DO(accept(listening, (struct sockaddr *)room, NULL));
	char text[100];
	struct iovec part = { room, 10 };
	struct msghdr message = { .msg_name = text, .msg_namelen = sizeof text, .msg_iov = &part, .msg_iovlen = 1 };
	int there = peer_connect_from(6133, HOST, 5000);
	fd = DO(accept(listening, NULL, NULL));
	peer_writes(there, "twenty bytes of text");
	barrier();
	length = sizeof text;
	DO(recvfrom(fd, room, 10, MSG_WAITALL, (struct sockaddr *)text, &length));
	line("  length %d", (int)length);
	DO(recvmsg(fd, &message, MSG_WAITALL));
	show_message(&message);
}

static void servers(void)
{
	static const char *const places[] = { "::", MAPPED HOST, MAPPED "0.0.0.0" };
	for (int i = 0; i < 3; i++) {
		int listening = listener6(places[i], 5010 + i);
		show_names6(listening);
		int there = peer_connect_from(6200 + i, HOST, 5010 + i);
		struct sockaddr_in6 from;
		socklen_t length = sizeof from;
		int fd = DO(accept(listening, (struct sockaddr *)&from, &length));
		show_name6("from", &from, length);
		show_names6(fd);
		exchange((stream){ fd, there });
		DO(connect(listening, ADDRESS6(MAPPED PEER, 6000)));
		DO(connect(listening, ADDRESS6("::1", 6000)));
		SET(listening, IPPROTO_IPV6, IPV6_V6ONLY, 1);
		DO(bind(listening, ADDRESS6("::", 5020)));
		DO(close(fd));
		DO(close(listening));
	}
	/* Without bind(). */
	int listening = DO(tcp6());
	DO(listen(listening, 5));
	show_names6(listening);
}

/* The port of both families, or of one. */
static void ports(void)
{
	int both = DO(tcp6()), four = DO(tcp()), six = DO(tcp6());
	DO(bind(both, ADDRESS6("::", 5040)));
	DO(bind(four, ADDRESS("0.0.0.0", 5040)));
	DO(bind(four, ADDRESS(HOST, 5040)));
	DO(bind(six, ADDRESS6("::1", 5040)));
	SET(six, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	DO(bind(six, ADDRESS6("::", 5041)));
	SET(six, IPPROTO_IPV6, IPV6_V6ONLY, 0);
	DO(bind(four, ADDRESS("0.0.0.0", 5041)));
	DO(listen(six, 5));
	DO(listen(four, 5));
	look(four);
	show_names6(six);
	int there = peer_connect_from(6300, HOST, 5041);
	exchange((stream){ DO(accept(four, NULL, NULL)), there });
	int fd = DO(tcp6());
	SET(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	DO(bind(fd, ADDRESS6(MAPPED HOST, 5042)));
	show_names6(fd);
}

/* IPv6, which is the kernel's. */
static void ipv6(void)
{
	int listening = listener6("::", 5050), fd = DO(tcp6());
	DO(connect(fd, ADDRESS6("::1", 5050)));
	show_names6(fd);
	struct sockaddr_in6 from;
	socklen_t length = sizeof from;
	int there = DO(accept(listening, (struct sockaddr *)&from, &length));
	show_name6("from", &from, length);
	show_names6(there);
	DO(send(fd, "six", 3, 0));
	receive_shown(there, 3, MSG_WAITALL);
	DO(close(fd));
	DO(recv(there, room, 10, 0));
	fd = DO(tcp6());
	DO(connect(fd, ADDRESS6("::", 5050)));
	show_names6(fd);
	int refused = DO(tcp6());
	DO(connect(refused, ADDRESS6("::1", 5999)));
	show_error(refused);
	show_names6(refused);
	DO(connect(refused, ADDRESS6("2001:db8::1", 5999)));
	DO(connect(refused, ADDRESS6("::1", 5050)));
	/* A listener of IPv6 only. */
	int six = listener6("::1", 5051);
	fd = DO(tcp6());
	DO(connect(fd, ADDRESS6("::1", 5051)));
	DO(accept(six, NULL, NULL));
	fd = DO(tcp());
	DO(connect(fd, ADDRESS("127.0.0.1", 5051)));
}

static void options(void)
{
	int listening = DO(tcp6());
	SET(listening, SOL_SOCKET, SO_REUSEADDR, 1);
	SET(listening, IPPROTO_IP, IP_TOS, 0x10);
	SET(listening, IPPROTO_IP, IP_TTL, 33);
	SET(listening, IPPROTO_IPV6, IPV6_TCLASS, 0x20);
	SET(listening, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 44);
	SET(listening, IPPROTO_IPV6, IPV6_V6ONLY, 0);
	SET(listening, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET6);
	DO(bind(listening, ADDRESS6("::", 5060)));
	DO(listen(listening, 5));
	look(listening);
	int there = peer_connect_from(6400, HOST, 5060);
	int fd = DO(accept(listening, NULL, NULL));
	for (int i = 0; i < 2; i++) {
		int which = i ? fd : listening;
		GET(which, IPPROTO_IP, IP_TOS);
		GET(which, IPPROTO_IP, IP_TTL);
		GET(which, IPPROTO_IPV6, IPV6_TCLASS);
		GET(which, IPPROTO_IPV6, IPV6_UNICAST_HOPS);
		GET(which, IPPROTO_IPV6, IPV6_V6ONLY);
		GET(which, IPPROTO_IPV6, IPV6_MTU);
		GET(which, IPPROTO_IP, IP_MTU);
		GET(which, SOL_SOCKET, SO_DOMAIN);
		GET(which, SOL_SOCKET, SO_PROTOCOL);
	}
	SET(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	SET(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 500);
	SET(fd, IPPROTO_IPV6, 199, 1);
	exchange((stream){ fd, there });
	int four = DO(tcp());
	SET(four, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	GET(four, IPPROTO_IPV6, IPV6_MTU);
}

/* An IPv6 socket's connection becomes one of an IPv4 socket. */
static void address_form(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = DO(tcp6());
	SET(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET);
	fd = DO(tcp6());
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	stream on = { fd, peer_accept(door) };
	exchange(on);
	SET(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET);
	GET(fd, SOL_SOCKET, SO_DOMAIN);
	show_names(fd);
	exchange(on);
}

static void again(void)
{
	int door = peer_listen(PEER, 6000, 10), fd = DO(tcp6());
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	peer_accept(door);
	DO(connect(fd, &none, sizeof none));
	show_names6(fd);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	show_names6(fd);
	exchange((stream){ fd, peer_accept(door) });
}

const probe_case tcp_dual_cases[] = {
	{ "clients", clients, true, STREAMS_OURS },
	{ "refused", refused, true, STREAMS_OURS },
	{ "odd_addresses", odd_addresses, true, STREAMS_SHARED },
	{ "lengths", lengths, true, STREAMS_OURS },
	{ "servers", servers, true, STREAMS_OURS },
	{ "ports", ports, true, STREAMS_OURS },
	{ "ipv6", ipv6, true, STREAMS_SHARED },
	{ "options", options, true, STREAMS_OURS },
	{ "address_form", address_form, true, STREAMS_SHARED },
	{ "again", again, true, STREAMS_OURS },
	{ 0 },
};
