/* UDP sockets of AF_INET6: names, lengths and errors of what they have of IPv4, and IPv6 at the same time. */
#include "udp_dual.h"

static int own_port(int fd)
{
	struct sockaddr_in6 address;
	socklen_t length = sizeof address;
	must("getsockname", getsockname(fd, (struct sockaddr *)&address, &length));
	return ntohs(address.sin6_port);
}

static void names(void)
{
	int there = peer_open(PEER, 6000), fd = DO(socket(AF_INET6, SOCK_DGRAM, 0));
	show_names6(fd);
	DO(bind(fd, ADDRESS6("::", 5300)));
	show_names6(fd);
	DO(bind(fd, ADDRESS6("::", 5301)));
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	show_names6(fd);
	DO(send(fd, "one", 3, 0));
	peer_hears(there);
	peer_say(there, 5300, "back");
	barrier();
	from_shown6(fd, 0);
	/* An address of AF_INET. */
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(connect(fd, ADDRESS6(MAPPED OTHER, 6001)));
	show_names6(fd);
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };
	DO(connect(fd, &nobody, sizeof nobody));
	show_names6(fd);
	peer_say(there, 5300, "unconnected");
	barrier();
	from_shown6(fd, 0);
	close(fd);
	static const char *const places[] = { MAPPED HOST, MAPPED "0.0.0.0" };
	for (int i = 0; i < 2; i++) {
		fd = DO(socket(AF_INET6, SOCK_DGRAM, 0));
		DO(bind(fd, ADDRESS6(places[i], 5310)));
		show_names6(fd);
		peer_say(there, 5310, "in");
		barrier();
		from_shown6(fd, 0);
		DO(sendto(fd, "out", 3, 0, ADDRESS6(MAPPED PEER, 6000)));
		peer_hears(there);
		DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
		show_names6(fd);
		DO(connect(fd, &nobody, sizeof nobody));
		show_names6(fd);
		close(fd);
	}
	/* Without bind(). */
	fd = new6();
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	show_names6(fd);
	DO(send(fd, "client", 6, 0));
	peer_hears(there);
	peer_say(there, own_port(fd), "answer");
	barrier();
	from_shown6(fd, 0);
	DO(connect(fd, &nobody, sizeof nobody));
	show_names6(fd);
	/* Flow label and scope mean nothing; the scope may be missing. */
	struct sockaddr_in6 odd = at6(MAPPED PEER, 6000);
	odd.sin6_flowinfo = htonl(0x12345), odd.sin6_scope_id = 7;
	for (int length = 24; length <= 28; length += 4) {
		fd = new6();
		DO(connect(fd, (struct sockaddr *)&odd, length));
		show_names6(fd);
		DO(send(fd, "odd", 3, 0));
		peer_hears(there);
	}
	peer_close(there);
}

static void unbound(void)
{
	int there = peer_open(PEER, 6000), fd = DO(socket(AF_INET6, SOCK_DGRAM, 0));
	DO(send(fd, "x", 1, 0));
	DO(recv(fd, room, 10, MSG_DONTWAIT));
	DO(sendto(fd, "first", 5, 0, ADDRESS6(MAPPED PEER, 6000)));
	peer_hears(there);
	show_names6(fd);
	peer_say(there, own_port(fd), "answer");
	barrier();
	from_shown6(fd, 0);
	DO(recv(fd, room, 10, MSG_DONTWAIT));
	/* Of either form. */
	fd = new6();
	DO(sendto(fd, "first", 5, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	show_names6(fd);
	peer_say(there, own_port(fd), "answer");
	barrier();
	from_shown6(fd, 0);
	peer_close(there);
}

static const int wanted[] = { 0, 1, 2, 8, 16, 24, 27, 28, 29, 100 };

static void received(void)
{
	int there = peer_open(PEER, 6000), fd = bound6("::", 5000);
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		unsigned char name[128];
		memset(name, 0xee, sizeof name);
		socklen_t length = wanted[i];
		peer_say(there, 5000, "named");
		barrier();
		DO(recvfrom(fd, room, 100, MSG_PEEK, (struct sockaddr *)name, &length));
		line("  length %d: %s", (int)length, text_of(name, 32));
		memset(name, 0xee, sizeof name);
		struct msghdr message = { .msg_name = name, .msg_namelen = wanted[i],
			.msg_iov = &(struct iovec){ room, 3 }, .msg_iovlen = 1 };
		DO(recvmsg(fd, &message, 0));
		line("  namelen %d, flags %#x: %s", (int)message.msg_namelen, message.msg_flags, text_of(name, 32));
	}
	socklen_t length = -1;
	peer_say(there, 5000, "bad length");
	barrier();
	DO(recvfrom(fd, room, 100, 0, (struct sockaddr *)room, &length));
	DO(recv(fd, room, 100, MSG_DONTWAIT));
	peer_say(there, 5000, "no length");
	barrier();
	DO(recvfrom(fd, room, 100, 0, NULL, NULL));
	for (int i = 0; i < 3; i++)
		peer_say(there, 5000, "several");
	barrier();
	struct sockaddr_in6 from[4];
	struct mmsghdr several[4];
	memset(several, 0, sizeof several);
	for (int i = 0; i < 4; i++)
		several[i].msg_hdr = (struct msghdr){ .msg_name = &from[i], .msg_namelen = sizeof from[i],
			.msg_iov = &(struct iovec[]){ { room + 100 * i, 100 } }[0], .msg_iovlen = 1 };
	struct iovec parts[4];
	for (int i = 0; i < 4; i++) {
		parts[i] = (struct iovec){ room + 100 * i, 100 };
		several[i].msg_hdr.msg_iov = &parts[i];
	}
	DO(recvmmsg(fd, several, 4, MSG_DONTWAIT, NULL));
	for (int i = 0; i < 3; i++)
		show_name6("from", &from[i], several[i].msg_hdr.msg_namelen);
	int waiting = -1;
	peer_say(there, 5000, "eight by");
	barrier();
	DO(ioctl(fd, FIONREAD, &waiting));
	line("  %d waiting", waiting);
	DO(read(fd, room, 100));
	peer_close(there);
}

static void sent(void)
{
	int there = peer_open(PEER, 6000), fd = bound6("::", 5000);
	DO(sendto(fd, "x", 1, 0, NULL, 0));
	DO(write(fd, "x", 1));
	DO(sendto(fd, "mapped", 6, 0, ADDRESS6(MAPPED PEER, 6000)));
	peer_hears(there);
	DO(sendto(fd, "four", 4, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	DO(sendto(fd, "port", 4, 0, ADDRESS6(MAPPED PEER, 0)));
	DO(sendto(fd, "broadcast", 9, 0, ADDRESS6(MAPPED "10.99.0.255", 6000)));
	DO(sendto(fd, "nowhere", 7, 0, ADDRESS6(MAPPED "0.0.0.0", 6000)));
	DO(sendto(fd, "unspecified", 11, 0, ADDRESS6("::", 5999)));
	DO(sendto(fd, "no route", 8, 0, ADDRESS6("2001:db8::1", 6000)));
	struct sockaddr_in6 to = at6(MAPPED PEER, 6000);
	const struct sockaddr *name = (struct sockaddr *)&to;
	static const socklen_t lengths[] = { 0, 1, 2, 15, 16, 23, 24, 27, 28, 128, 129, -1 };
	struct sockaddr_storage large = { 0 };
	memcpy(&large, &to, sizeof to);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		line("length %d", (int)lengths[i]);
		if (DO(sendto(fd, "long", 4, 0, (struct sockaddr *)&large, lengths[i])) > 0)
			peer_hears(there);
	}
	static const int families[] = { AF_UNSPEC, AF_UNIX, AF_INET };
	for (size_t i = 0; i < 3; i++)
		for (int length = 16; length <= 28; length += 12) {
			to.sin6_family = families[i];
			line("family %d, length %d", families[i], length);
			DO(sendto(fd, "family", 6, 0, name, length));
		}
	/* A socket of AF_INET knows no mapped address, once or ever. */
	int four = udp(5001);
	for (int i = 0; i < 2; i++) {
		DO(sendto(four, "mapped", 6, 0, ADDRESS6(MAPPED PEER, 6000)));
		DO(sendto(four, "four", 4, 0, ADDRESS(PEER, 6000)));
		peer_hears(there);
	}
	to = at6(MAPPED PEER, 6000);
	struct sockaddr_in plain = at(PEER, 6000);
	struct sockaddr_in6 lost = at6("2001:db8::1", 6000);
	struct iovec part = { "part", 4 };
	struct mmsghdr several[3] = {
		{ .msg_hdr = { .msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &part, .msg_iovlen = 1 } },
		{ .msg_hdr = { .msg_name = &plain, .msg_namelen = sizeof plain, .msg_iov = &part, .msg_iovlen = 1 } },
		{ .msg_hdr = { .msg_name = &lost, .msg_namelen = sizeof lost, .msg_iov = &part, .msg_iovlen = 1 } },
	};
	DO(sendmsg(fd, &several[0].msg_hdr, 0));
	peer_hears(there);
	DO(sendmmsg(fd, several, 3, 0));
	peer_hears(there);
	peer_hears(there);
	DO(sendmmsg(four, several, 3, 0));
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	DO(send(fd, "connected", 9, 0));
	peer_hears(there);
	int elsewhere = peer_open(OTHER, 6001);
	DO(sendto(fd, "elsewhere", 9, 0, ADDRESS6(MAPPED OTHER, 6001)));
	peer_hears(elsewhere);
	to.sin6_family = AF_UNSPEC;
	DO(sendto(fd, "unspecified", 11, 0, name, sizeof to));
	peer_hears(there);
	static char bytes[ROOM];
	DO(send(fd, bytes, 3000, 0));
	peer_hears(there);
	DO(send(fd, bytes, 65507, 0));
	peer_hears(there);
	DO(send(fd, bytes, 65508, 0));
	peer_close(there);
	peer_close(elsewhere);
}

/* IPV6_V6ONLY, and a real IPv6 address. */
static void only_six(void)
{
	int fd = new6();
	SET(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	DO(sendto(fd, "x", 1, 0, ADDRESS6(MAPPED PEER, 6000)));
	DO(sendto(fd, "x", 1, 0, ADDRESS(PEER, 6000)));
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	fd = new6();
	SET(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	DO(bind(fd, ADDRESS6(MAPPED HOST, 5400)));
	DO(bind(fd, ADDRESS6("::", 5400)));
	SET(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
	DO(sendto(fd, "x", 1, 0, ADDRESS6(MAPPED PEER, 6000)));
	/* The port is another socket's for IPv4. */
	int there = peer_open(PEER, 6000), four = udp(5400);
	peer_say(there, 5400, "four");
	barrier();
	DO(recv(fd, room, 10, MSG_DONTWAIT));
	receive_from_shown(four, 100, MSG_DONTWAIT);
	/* Changed its mind before it was bound. */
	fd = new6();
	SET(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	SET(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
	DO(bind(fd, ADDRESS6("::", 5401)));
	peer_say(there, 5401, "both");
	barrier();
	from_shown6(fd, 0);
	fd = bound6("::1", 5402);
	DO(sendto(fd, "x", 1, 0, ADDRESS6(MAPPED PEER, 6000)));
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	show_names6(fd);
	DO(sendto(fd, "self", 4, 0, ADDRESS6("::1", 5402)));
	from_shown6(fd, 0);
	peer_close(there);
}

/* Both kinds on one socket. */
static void both(void)
{
	int there = peer_open(PEER, 6000), fd = bound6("::", 5000), six = bound6("::1", 5500);
	for (int i = 0; i < 3; i++) {
		peer_say(there, 5000, "four");
		barrier();
		from_shown6(fd, i == 2 ? MSG_DONTWAIT : 0);
		DO(sendto(six, "six", 3, 0, ADDRESS6("::1", 5000)));
		from_shown6(fd, i == 1 ? MSG_DONTWAIT : 0);
		DO(sendto(fd, "to six", 6, 0, ADDRESS6("::1", 5500)));
		from_shown6(six, 0);
		DO(sendto(fd, "to four", 7, 0, ADDRESS6(MAPPED PEER, 6000)));
		peer_hears(there);
	}
	/* None is lost, whatever their order. */
	for (int i = 0; i < 20; i++) {
		peer_say(there, 5000, "many of four");
		must("sendto", sendto(six, "many of six", 11, 0, ADDRESS6("::1", 5000)));
	}
	barrier();
	int fours = 0, sixes = 0;
	for (long got; (got = recv(fd, room, 100, MSG_DONTWAIT)) >= 0;)
		*(got == 12 ? &fours : &sixes) += 1;
	line("  %d and %d", fours, sixes);
	struct pollfd polled = { fd, POLLIN, 0 };
	DO(poll(&polled, 1, 0));
	int instance = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	DO(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event));
	DO(epoll_wait(instance, &event, 1, 0));
	for (int i = 0; i < 4; i++) {
		if (i & 1)
			peer_say(there, 5000, "four");
		else
			must("sendto", sendto(six, "six", 3, 0, ADDRESS6("::1", 5000)));
		barrier();
		DO(poll(&polled, 1, 300));
		show_poll(&polled, 1);
		DO(epoll_wait(instance, &event, 1, 300));
		from_shown6(fd, MSG_PEEK);
		from_shown6(fd, MSG_DONTWAIT);
		DO(epoll_wait(instance, &event, 1, 0));
	}
	peer_close(there);
}

/* Connected to one family, then to the other. */
static void turns(void)
{
	int there = peer_open(PEER, 6000), six = bound6("::1", 5501), fd = bound6("::", 5000);
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };
	DO(connect(fd, ADDRESS6("::1", 5501)));
	show_names6(fd);
	DO(send(fd, "six", 3, 0));
	from_shown6(six, 0);
	DO(sendto(six, "back", 4, 0, ADDRESS6("::1", 5000)));
	from_shown6(fd, 0);
	DO(sendto(fd, "aside", 5, 0, ADDRESS6(MAPPED PEER, 6000)));
	peer_hears(there);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	DO(connect(fd, &nobody, sizeof nobody));
	show_names6(fd);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	show_names6(fd);
	DO(send(fd, "four", 4, 0));
	peer_hears(there);
	DO(connect(fd, ADDRESS6("2001:db8::1", 6000)));
	peer_close(there);
}

const probe_case udp_dual_cases[] = {
	{ "names", names, false },
	{ "unbound", unbound, false },
	{ "received", received, false },
	{ "sent", sent, true },
	{ "only_six", only_six, true },
	{ "both", both, true }, /* ::1 */
	{ "turns", turns, true },
	{ 0 },
};
