/* Every way to send, with every argument that is odd. */
#include "prober.h"

#include <netinet/udp.h>

static char bytes[ROOM];

static void fill(void)
{
	for (int i = 0; i < ROOM; i++)
		bytes[i] = i * 7;
}

static void ways(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	fill();
	DO(sendto(fd, "sendto", 6, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	DO(send(fd, "x", 1, 0));
	DO(write(fd, "x", 1));
	DO(sendto(fd, "x", 1, 0, NULL, 0));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(send(fd, "send", 4, 0));
	peer_hears(there);
	DO(write(fd, "write", 5));
	peer_hears(there);
	struct iovec parts[] = { { "wri", 3 }, { NULL, 0 }, { "tev", 3 } };
	DO(writev(fd, parts, 3));
	peer_hears(there);
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 3 };
	DO(sendmsg(fd, &message, 0));
	peer_hears(there);
	DO(sendto(fd, "no address", 10, 0, NULL, 0));
	peer_hears(there);
	/* On a connected socket the address of the call wins. */
	int elsewhere = peer_open(OTHER, 6001);
	DO(sendto(fd, "elsewhere", 9, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	DO(sendto(fd, "elsewhere", 9, 0, ADDRESS(OTHER, 6001)));
	peer_hears(elsewhere);
	DO(send(fd, "nosignal", 8, MSG_NOSIGNAL));
	peer_hears(there);
	DO(send(fd, "dontwait", 8, MSG_DONTWAIT));
	peer_hears(there);
	DO(send(fd, "eor", 3, MSG_EOR));
	peer_hears(there);
	DO(send(fd, "oob", 3, MSG_OOB));
	DO(send(fd, "confirm", 7, MSG_CONFIRM));
	peer_hears(there);
	DO(send(fd, "dontroute", 9, MSG_DONTROUTE));
	peer_hears(there);
	DO(send(fd, "two ", 4, MSG_MORE));
	DO(send(fd, "parts", 5, 0));
	peer_hears(there);
	peer_close(there);
	peer_close(elsewhere);
}

static void sizes(void)
{
	static const int lengths[] = { 0, 1, 17, 18, 19, WHOLE - 1, WHOLE, WHOLE + 1, 2000, 2953, 9000, 65507 };
	int there = peer_open(PEER, 6000), fd = udp(5000);
	fill();
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		line("length %d", lengths[i]);
		DO(sendto(fd, bytes, lengths[i], 0, ADDRESS(PEER, 6000)));
		peer_hears(there);
	}
	DO(sendto(fd, bytes, 65508, 0, ADDRESS(PEER, 6000)));
	DO(sendto(fd, bytes, 65536, 0, ADDRESS(PEER, 6000)));
	DO(sendto(fd, bytes, 70000, 0, ADDRESS(PEER, 6000)));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(send(fd, bytes, 0, 0));
	peer_hears(there);
	DO(write(fd, bytes, 0));
	peer_hears(there);
	DO(send(fd, bytes, 65508, 0));
	for (int discovery = IP_PMTUDISC_DONT; discovery <= IP_PMTUDISC_OMIT; discovery++) {
		line("path MTU discovery %d", discovery);
		DO(setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &discovery, sizeof discovery));
		DO(send(fd, bytes, WHOLE, 0));
		peer_hears(there);
		if (DO(send(fd, bytes, WHOLE + 1, 0)) > 0)
			peer_hears(there);
	}
	peer_close(there);
}

static void vectors(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	static struct iovec parts[1100];
	fill();
	for (int i = 0; i < 1100; i++)
		parts[i] = (struct iovec){ bytes + i, 1 };
	struct sockaddr_in to = at(PEER, 6000);
	struct msghdr message = { .msg_name = &to, .msg_namelen = sizeof to, .msg_iov = parts };
	static const int counts[] = { 0, 1, 15, 16, 17, 40, 1023, 1024, 1025 };
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		message.msg_iovlen = counts[i];
		line("%d parts", counts[i]);
		if (DO(sendmsg(fd, &message, 0)) >= 0)
			peer_hears(there);
	}
	message.msg_iov = NULL;
	message.msg_iovlen = 0;
	DO(sendmsg(fd, &message, 0));
	peer_hears(there);
	message.msg_iovlen = 1;
	DO(sendmsg(fd, &message, 0));
	struct iovec odd[] = { { NULL, 0 }, { bytes, 5 }, { NULL, 0 } };
	message.msg_iov = odd;
	message.msg_iovlen = 3;
	DO(sendmsg(fd, &message, 0));
	peer_hears(there);
	odd[2] = (struct iovec){ NULL, 5 };
	DO(sendmsg(fd, &message, 0));
	odd[2] = (struct iovec){ bytes, (size_t)-1 };
	DO(sendmsg(fd, &message, 0));
	DO(sendmsg(fd, NULL, 0));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(writev(fd, parts, 0));
	DO(writev(fd, parts, -1));
	DO(writev(fd, parts, 1024));
	peer_hears(there);
	DO(writev(fd, parts, 1025));
	DO(writev(fd, NULL, 1));
	DO(writev(fd, odd, 1)); /* of no bytes */
	peer_hears(there);
	peer_close(there);
}

static void pointers(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	DO(sendto(fd, NULL, 5, 0, ADDRESS(PEER, 6000)));
	DO(sendto(fd, NULL, 0, 0, ADDRESS(PEER, 6000)));
	peer_hears(there);
	DO(sendto(fd, "x", 1, 0, NULL, 16));
	DO(connect(fd, ADDRESS(PEER, 6000)));
	DO(send(fd, NULL, 3, 0));
	DO(write(fd, NULL, 3));
	DO(write(fd, NULL, 0));
	peer_hears(there);
	DO(sendto(fd, "x", 1, 0, NULL, 16));
	peer_hears(there);
	peer_close(there);
}

static void addresses(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000), on = 1;
	struct sockaddr_in to = at(PEER, 6000);
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(6000) };
	DO(sendto(fd, "x", 1, 0, (struct sockaddr *)&to, 15));
	DO(sendto(fd, "x", 1, 0, (struct sockaddr *)&to, 0));
	DO(sendto(fd, "x", 1, 0, (struct sockaddr *)&to, 129));
	DO(sendto(fd, "x", 1, 0, (struct sockaddr *)&six, sizeof six));
	to.sin_family = AF_UNSPEC;
	DO(sendto(fd, "unspecified", 11, 0, (struct sockaddr *)&to, sizeof to));
	peer_hears(there);
	to.sin_family = AF_UNIX;
	DO(sendto(fd, "x", 1, 0, (struct sockaddr *)&to, sizeof to));
	DO(sendto(fd, "x", 1, 0, ADDRESS(PEER, 0)));
	DO(sendto(fd, "x", 1, 0, ADDRESS("10.98.0.1", 6000)));
	DO(sendto(fd, "x", 1, 0, ADDRESS("10.99.0.255", 6000)));
	DO(sendto(fd, "x", 1, 0, ADDRESS("255.255.255.255", 6000)));
	int broadcast = peer_open("0.0.0.0", 6001);
	DO(setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on));
	DO(sendto(fd, "to all", 6, 0, ADDRESS("10.99.0.255", 6001)));
	peer_hears(broadcast);
	struct msghdr message = { .msg_name = &to, .msg_namelen = 7,
		.msg_iov = &(struct iovec){ "x", 1 }, .msg_iovlen = 1 };
	DO(sendmsg(fd, &message, 0));
	to = at(PEER, 6000);
	message.msg_namelen = 200;
	DO(sendmsg(fd, &message, 0));
	message.msg_namelen = -1;
	DO(sendmsg(fd, &message, 0));
	message.msg_namelen = 0;
	DO(sendmsg(fd, &message, 0));
	int elsewhere = udp_at("127.0.0.1", 5001);
	DO(sendto(elsewhere, "x", 1, 0, ADDRESS(PEER, 6000)));
	peer_close(broadcast);
	peer_close(there);
}

__attribute__((unused)) static void broadcast_received(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000), exact = udp_at(HOST, 5001);
	peer_say_to(there, "10.99.0.255", 5000, "to the network");
	peer_say_to(there, "10.99.0.255", 5001, "not for an exact address");
	barrier();
	receive_from_shown(fd, 100, 0);
	receive_from_shown(exact, 100, MSG_DONTWAIT);
	peer_close(there);
}

static void many(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000);
	struct sockaddr_in to = at(PEER, 6000);
	struct iovec parts[] = { { "one", 3 }, { "two", 3 }, { "three", 5 }, { NULL, 4 } };
	struct mmsghdr list[4];
	memset(list, 0, sizeof list);
	for (int i = 0; i < 4; i++)
		list[i].msg_hdr = (struct msghdr){ .msg_name = &to, .msg_namelen = sizeof to,
			.msg_iov = &parts[i], .msg_iovlen = 1 };
	DO(sendmmsg(fd, list, 3, 0));
	line("  lengths %u %u %u", list[0].msg_len, list[1].msg_len, list[2].msg_len);
	for (int i = 0; i < 3; i++)
		peer_hears(there);
	DO(sendmmsg(fd, list, 0, 0));
	/* The fourth fails: the others have been sent, and nobody hears of the error. */
	DO(sendmmsg(fd, list, 4, 0));
	for (int i = 0; i < 3; i++)
		peer_hears(there);
	DO(sendmmsg(fd, list + 3, 1, 0));
	list[1].msg_hdr.msg_namelen = 3;
	DO(sendmmsg(fd, list, 3, 0));
	peer_hears(there);
	DO(sendmmsg(fd, NULL, 2, 0));
	DO(sendmmsg(fd, list, 1, MSG_DONTWAIT));
	peer_hears(there);
	static struct mmsghdr large[1100];
	for (int i = 0; i < 1100; i++)
		large[i] = list[0];
	DO(sendmmsg(fd, large, 1100, 0));
	peer_counts(there, 1024);
	peer_hears(there);
	peer_close(there);
}

/* Waits for the ICMP message: how long the network takes is no part of the comparison. */
static void refusal(int fd)
{
	struct pollfd wait = { fd, 0, 0 };
	line("  refused: %d", poll(&wait, 1, 1000) == 1 && wait.revents == POLLERR);
}

/* ICMP port unreachable: once, on the next call, whichever that is. */
static void refused(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000), error = 0;
	socklen_t length = sizeof error;
	struct pollfd wait = { fd, POLLIN | POLLOUT, 0 };
	struct timeval second = { 1, 0 };
	DO(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second));
	DO(connect(fd, ADDRESS(PEER, 6999)));
	DO(send(fd, "x", 1, 0));
	refusal(fd);
	DO(send(fd, "x", 1, 0));
	DO(send(fd, "x", 1, 0));
	refusal(fd);
	DO(recv(fd, room, 10, 0));
	DO(recv(fd, room, 10, MSG_DONTWAIT));
	DO(send(fd, "x", 1, 0));
	refusal(fd);
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	DO(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
	line("  SO_ERROR %s", error ? error_name(error) : "none");
	DO(poll(&wait, 1, 0));
	show_poll(&wait, 1);
	DO(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
	line("  SO_ERROR %s", error ? error_name(error) : "none");
	/* A call that waits is woken by the error. */
	DO(send(fd, "x", 1, 0));
	TIMED(0, recv(fd, room, 10, 0));
	/* Error and data both there. */
	DO(send(fd, "x", 1, 0));
	refusal(fd);
	DO(connect(fd, ADDRESS(PEER, 6000)));
	peer_say(there, 5000, "data");
	barrier();
	receive_shown(fd, 10, 0);
	receive_shown(fd, 10, MSG_DONTWAIT);
	/* Not connected: nobody is told. */
	int open = udp(5001);
	DO(sendto(open, "x", 1, 0, ADDRESS(PEER, 6999)));
	barrier();
	DO(sendto(open, "x", 1, 0, ADDRESS(PEER, 6999)));
	DO(recv(open, room, 10, MSG_DONTWAIT));
	peer_close(there);
}

static void shut(void)
{
	static const int hows[] = { SHUT_RD, SHUT_WR, SHUT_RDWR };
	for (int i = 0; i < 3; i++) {
		int fd = udp(5000), there = peer_open(PEER, 6000);
		line("shutdown %d", hows[i]);
		DO(shutdown(fd, hows[i]));
		peer_say(there, 5000, "before");
		DO(connect(fd, ADDRESS(PEER, 6000)));
		peer_say(there, 5000, "queued");
		barrier();
		DO(shutdown(fd, hows[i]));
		peer_say(there, 5000, "after");
		barrier();
		struct pollfd wait = { fd, POLLIN | POLLOUT | POLLRDHUP, 0 };
		DO(poll(&wait, 1, 0));
		show_poll(&wait, 1);
		for (int n = 0; n < 3; n++)
			receive_shown(fd, 100, MSG_DONTWAIT);
		DO(send(fd, "x", 1, MSG_NOSIGNAL));
		peer_hears(there);
		DO(shutdown(fd, 17));
		TIMED(0, close(fd));
		peer_close(there);
	}
}

static void hop_limits(void)
{
	int fd = udp(5000), there = peer_open(PEER, 6000), ttl = 9, tos = 0x28;
	struct sockaddr_in to = at(PEER, 6000);
	char control[64] = { 0 };
	struct msghdr message = { .msg_name = &to, .msg_namelen = sizeof to,
		.msg_iov = &(struct iovec){ "ttl", 3 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = CMSG_SPACE(sizeof ttl) };
	struct cmsghdr *first = CMSG_FIRSTHDR(&message);
	*first = (struct cmsghdr){ CMSG_LEN(sizeof ttl), IPPROTO_IP, IP_TTL };
	memcpy(CMSG_DATA(first), &ttl, sizeof ttl);
	DO(sendmsg(fd, &message, 0));
	peer_hears(there);
	first->cmsg_type = IP_TOS;
	memcpy(CMSG_DATA(first), &tos, sizeof tos);
	DO(sendmsg(fd, &message, 0));
	peer_hears(there);
	struct in_pktinfo info = { .ipi_spec_dst = at(HOST, 0).sin_addr };
	*first = (struct cmsghdr){ CMSG_LEN(sizeof info), IPPROTO_IP, IP_PKTINFO };
	memcpy(CMSG_DATA(first), &info, sizeof info);
	message.msg_controllen = CMSG_SPACE(sizeof info);
	DO(sendmsg(fd, &message, 0));
	peer_hears(there);
	info.ipi_spec_dst = at("10.98.0.1", 0).sin_addr;
	memcpy(CMSG_DATA(first), &info, sizeof info);
	DO(sendmsg(fd, &message, 0));
	first->cmsg_len = 3;
	DO(sendmsg(fd, &message, 0));
	*first = (struct cmsghdr){ CMSG_LEN(sizeof ttl), SOL_SOCKET, 77 };
	DO(sendmsg(fd, &message, 0));
	*first = (struct cmsghdr){ CMSG_LEN(2), IPPROTO_UDP, UDP_SEGMENT };
	uint16_t segment = 2;
	memcpy(CMSG_DATA(first), &segment, sizeof segment);
	message.msg_controllen = CMSG_SPACE(sizeof segment);
	DO(sendmsg(fd, &message, 0));
	peer_hears(there);
	peer_hears(there);
	peer_close(there);
}

const probe_case send_cases[] = {
	{ "ways", ways, true },   /* ARP, MSG_MORE, MSG_DONTROUTE */
	{ "sizes", sizes, true }, /* fragments */
	{ "vectors", vectors, false },
	{ "pointers", pointers, true },
	{ "addresses", addresses, true },
#if !defined WITHIN_ONE_HOST && !defined OVER_IPV6 /* lo has no broadcast, nor has IPv6 */
	{ "broadcast_received", broadcast_received, true },
#endif
	{ "many", many, false },
	{ "refused", refused, true }, /* errors are the kernel's */
	{ "shut", shut, true },
	{ "hop_limits", hop_limits, true },
	{ NULL, NULL, false },
};
