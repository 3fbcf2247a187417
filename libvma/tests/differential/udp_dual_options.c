/* UDP sockets of AF_INET6: control messages, options, errors by ICMP, groups, and what becomes of them elsewhere. */
#include "udp_dual.h"

#include <linux/errqueue.h>

#define GROUP "239.1.1.1"
/* Of linux/in6.h, which the headers of the C library leave out. */
#define RECVORIGDSTADDR6 74

static void message_shown(int fd, size_t control_room, int flags)
{
	char control[512];
	struct sockaddr_in6 from;
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from,
		.msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = control_room };
	memset(control, 0xdd, sizeof control);
	if (DO(recvmsg(fd, &message, flags)) < 0)
		return;
	show_message(&message);
	show_name6("from", &from, message.msg_namelen);
}

static const struct {
	const char *name;
	int level, option;
} requests[] = {
	{ "IPV6_RECVPKTINFO", IPPROTO_IPV6, IPV6_RECVPKTINFO },
	{ "IPV6_RECVHOPLIMIT", IPPROTO_IPV6, IPV6_RECVHOPLIMIT },
	{ "IPV6_RECVTCLASS", IPPROTO_IPV6, IPV6_RECVTCLASS },
	{ "IPV6_RECVORIGDSTADDR", IPPROTO_IPV6, RECVORIGDSTADDR6 },
	{ "IPV6_2292PKTINFO", IPPROTO_IPV6, IPV6_2292PKTINFO },
	{ "IPV6_2292HOPLIMIT", IPPROTO_IPV6, IPV6_2292HOPLIMIT },
	{ "IP_PKTINFO", IPPROTO_IP, IP_PKTINFO },
	{ "IP_RECVTTL", IPPROTO_IP, IP_RECVTTL },
	{ "IP_RECVTOS", IPPROTO_IP, IP_RECVTOS },
	{ "IP_RECVORIGDSTADDR", IPPROTO_IP, IP_RECVORIGDSTADDR },
	{ "SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP },
	{ "SO_RXQ_OVFL", SOL_SOCKET, SO_RXQ_OVFL },
};
#define REQUESTS (sizeof requests / sizeof *requests)

static void control(void)
{
	int there = peer_open(PEER, 6000);
	peer_set(there, IPPROTO_IP, IP_TTL, 33);
	peer_set(there, IPPROTO_IP, IP_TOS, 0x48);
	for (size_t i = 0; i < REQUESTS; i++) {
		int fd = bound6("::", 5000);
		line("%s", requests[i].name);
		set(fd, requests[i].level, requests[i].option, 1);
		GET(fd, requests[i].level, requests[i].option);
		if (strstr(requests[i].name, "TIMESTAMP"))
			usleep(50000);
		peer_say(there, 5000, "one");
		peer_say(there, 5000, "two");
		barrier();
		message_shown(fd, 256, MSG_PEEK);
		message_shown(fd, 256, 0);
		set(fd, requests[i].level, requests[i].option, 0);
		message_shown(fd, 256, 0);
		close(fd);
	}
	int fd = bound6("::", 5000);
	peer_say(there, 5000, "late");
	barrier();
	for (size_t i = 0; i < REQUESTS; i++)
		set(fd, requests[i].level, requests[i].option, 1);
	usleep(50000);
	message_shown(fd, 256, 0);
	peer_say(there, 5000, "all");
	barrier();
	static const int rooms[] = { 256, 0, 16, 20, 32, 35, 36, 40, 68, 71, 72, 76, 96, 100, 104, 128, 160 };
	for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
		line("room for %d", rooms[i]);
		message_shown(fd, rooms[i], MSG_PEEK);
	}
	message_shown(fd, 256, 0);
	/* Connected, and bound to the address. */
	int exact = bound6(MAPPED HOST, 5001);
	set(exact, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
	DO(connect(exact, ADDRESS6(MAPPED PEER, 6000)));
	peer_say(there, 5001, "exact");
	barrier();
	message_shown(exact, 256, 0);
	peer_close(there);
}

/* What IPv6 has of the same. */
static void control_of_six(void)
{
	int fd = bound6("::", 5000), six = bound6("::1", 5500);
	for (size_t i = 0; i < REQUESTS; i++)
		if (requests[i].level == IPPROTO_IPV6)
			set(fd, requests[i].level, requests[i].option, 1);
	DO(sendto(six, "six", 3, 0, ADDRESS6("::1", 5000)));
	message_shown(fd, 256, 0);
}

static void control_sent_with(int fd, int there, int level, int type, const void *data, size_t length)
{
	struct sockaddr_in6 to = at6(MAPPED PEER, 6000);
	struct sockaddr_in plain = at(PEER, 6000);
	int domain = 0;
	socklen_t size = sizeof domain;
	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(64)];
	} control;
	memset(&control, 0, sizeof control);
	control.header = (struct cmsghdr){ .cmsg_level = level, .cmsg_type = type, .cmsg_len = CMSG_LEN(length) };
	memcpy(CMSG_DATA(&control.header), data, length);
	struct msghdr message = { .msg_name = &to, .msg_namelen = sizeof to,
		.msg_iov = &(struct iovec){ "with control", 12 }, .msg_iovlen = 1,
		.msg_control = &control, .msg_controllen = CMSG_SPACE(length) };
	if (domain == AF_INET)
		message.msg_name = &plain, message.msg_namelen = sizeof plain;
	if (DO(sendmsg(fd, &message, 0)) > 0)
		peer_hears(there);
}

static void control_sent(void)
{
	int there = peer_open(PEER, 6000), fd = bound6("::", 5000), four = udp(5001);
	struct in6_pktinfo info = { .ipi6_addr = at6(MAPPED HOST, 0).sin6_addr };
	int class = 0x20, index = if_nametoindex(device_name);
	for (int i = 0; i < 2; i++) {
		int with = i ? four : fd;
		info.ipi6_addr = at6(MAPPED HOST, 0).sin6_addr, info.ipi6_ifindex = 0;
		control_sent_with(with, there, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
		control_sent_with(with, there, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info - 1);
#ifndef WITHIN_ONE_HOST
		info.ipi6_ifindex = index;
		control_sent_with(with, there, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
#endif
		info.ipi6_ifindex = 9999;
		control_sent_with(with, there, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
		info.ipi6_addr = at6(MAPPED "10.99.0.77", 0).sin6_addr, info.ipi6_ifindex = 0;
		control_sent_with(with, there, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
		info.ipi6_addr = at6("::1", 0).sin6_addr;
		control_sent_with(with, there, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
		info.ipi6_addr = at6("::", 0).sin6_addr;
		control_sent_with(with, there, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
		control_sent_with(with, there, IPPROTO_IPV6, IPV6_TCLASS, &class, sizeof class);
		control_sent_with(with, there, IPPROTO_IPV6, IPV6_HOPLIMIT, &class, sizeof class);
		control_sent_with(with, there, IPPROTO_IP, IP_TOS, &class, sizeof class);
		control_sent_with(with, there, IPPROTO_IP, IP_TTL, &class, sizeof class);
		struct in_pktinfo old = { .ipi_spec_dst = at(HOST, 0).sin_addr };
		control_sent_with(with, there, IPPROTO_IP, IP_PKTINFO, &old, sizeof old);
	}
	(void)index;
	peer_close(there);
}

/* The error queue has one entry, or none. */
static void queue_shown(int fd)
{
	char control[512];
	struct sockaddr_in6 to;
	struct msghdr message = { .msg_name = &to, .msg_namelen = sizeof to,
		.msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	long got = -1;
	for (int i = 0; i < 60 && got < 0; i++) {
		got = recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT);
		if (got < 0)
			usleep(5000);
	}
	line("  error queue: %s", got < 0 ? "empty" : text_of(room, got));
	if (got < 0)
		return;
	show_name6("to", &to, message.msg_namelen);
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
		struct sock_extended_err error;
		memcpy(&error, CMSG_DATA(at), sizeof error);
		line("  level %d type %d: %s origin %d type %d code %d info %u", at->cmsg_level, at->cmsg_type,
		     error_name(error.ee_errno), error.ee_origin, error.ee_type, error.ee_code, error.ee_info);
		show_name6("offender", (struct sockaddr_in6 *)(CMSG_DATA(at) + sizeof error), at->cmsg_len);
	}
}

/* What ICMP says of datagrams to IPv4. */
static void errors(void)
{
	int fd = bound6("::", 5000);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6999)));
	DO(send(fd, "refused", 7, 0));
	struct pollfd polled = { fd, POLLIN, 0 };
	DO(poll(&polled, 1, 300));
	show_poll(&polled, 1);
	DO(recv(fd, room, 10, MSG_DONTWAIT));
	DO(recv(fd, room, 10, MSG_DONTWAIT));
	DO(send(fd, "refused", 7, 0));
	usleep(20000);
	DO(send(fd, "told", 4, 0));
	show_error(fd);
	close(fd);
	static const int levels[] = { IPPROTO_IP, IPPROTO_IPV6 };
	for (int i = 0; i < 2; i++) {
		fd = bound6("::", 5000);
		set(fd, levels[i], i ? IPV6_RECVERR : IP_RECVERR, 1);
		DO(sendto(fd, "refused", 7, 0, ADDRESS6(MAPPED PEER, 6999)));
		usleep(20000);
		queue_shown(fd);
		show_error(fd);
		DO(connect(fd, ADDRESS6(MAPPED PEER, 6999)));
		DO(send(fd, "connected", 9, 0));
		usleep(20000);
		queue_shown(fd);
		DO(recv(fd, room, 10, MSG_DONTWAIT));
		close(fd);
	}
}

/* Ports of both families, of one, and shared. */
static void ports(void)
{
	int fd = new6(), four = socket(AF_INET, SOCK_DGRAM, 0), six = new6();
	DO(bind(fd, ADDRESS6("::", 5040)));
	DO(bind(four, ADDRESS("0.0.0.0", 5040)));
	DO(bind(four, ADDRESS(HOST, 5040)));
	DO(bind(six, ADDRESS6("::1", 5040)));
	DO(bind(six, ADDRESS6(MAPPED HOST, 5040)));
	SET(six, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	DO(bind(six, ADDRESS6("::", 5040)));
	close(fd);
	DO(bind(four, ADDRESS("0.0.0.0", 5040)));
	DO(bind(six, ADDRESS6("::", 5040)));
	fd = new6();
	DO(bind(fd, ADDRESS6(MAPPED HOST, 5040)));
	close(four);
	DO(bind(fd, ADDRESS6(MAPPED HOST, 5040)));
	int there = peer_open(PEER, 6000);
	peer_say(there, 5040, "to the mapped address");
	barrier();
	from_shown6(fd, 0);
	DO(recv(six, room, 10, MSG_DONTWAIT));
	/* Shared by both: the one of IPv4 comes first, then the later one. */
	static const int options[] = { SO_REUSEADDR, SO_REUSEPORT };
	for (int i = 0; i < 2; i++) {
		int shared[3];
		for (int n = 0; n < 3; n++) {
			shared[n] = n == 1 ? socket(AF_INET, SOCK_DGRAM, 0) : new6();
			set(shared[n], SOL_SOCKET, options[i], 1);
			DO(n == 1 ? bind(shared[n], ADDRESS("0.0.0.0", 5050)) : bind(shared[n], ADDRESS6("::", 5050)));
		}
		peer_say(there, 5050, "shared");
		barrier();
		for (int n = 0; n < 3; n++)
			receive_shown(shared[n], 100, MSG_DONTWAIT);
		close(shared[1]);
		peer_say(there, 5050, "shared");
		barrier();
		int count = 0;
		for (int n = 0; n < 3; n += 2)
			count += recv(shared[n], room, 100, MSG_DONTWAIT) > 0;
		line("  %d has it", count);
		close(shared[0]), close(shared[2]);
	}
	peer_close(there);
}

/* Groups of IPv4, joined by a socket of AF_INET6. */
static void groups(void)
{
	int there = peer_open(PEER, 6000), fd = bound6("::", 5000);
	struct ip_mreq group = { at(GROUP, 0).sin_addr, at(HOST, 0).sin_addr };
	set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
	peer_say_to(there, GROUP, 5000, "before");
	barrier();
	from_shown6(fd, MSG_DONTWAIT);
	DO(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group));
	peer_say_to(there, GROUP, 5000, "joined");
	peer_say(there, 5000, "unicast");
	barrier();
	message_shown(fd, 256, 0);
	message_shown(fd, 256, 0);
	DO(setsockopt(fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &group, sizeof group));
	peer_say_to(there, GROUP, 5000, "left");
	barrier();
	from_shown6(fd, MSG_DONTWAIT);
	peer_join(there, GROUP);
	DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &group.imr_interface, 4));
	DO(sendto(fd, "to the group", 12, 0, ADDRESS6(MAPPED GROUP, 6000)));
	struct ipv6_mreq six = { at6("ff12::1", 0).sin6_addr, if_nametoindex("lo") };
	DO(setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &six, sizeof six));
	DO(setsockopt(fd, IPPROTO_IPV6, IPV6_LEAVE_GROUP, &six, sizeof six));
	six.ipv6mr_multiaddr = at6(MAPPED GROUP, 0).sin6_addr;
	DO(setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &six, sizeof six));
	peer_close(there);
}

/* Options of IPv6 leave IPv4 as it is: all of this is offloaded. */
static void options(void)
{
	int there = peer_open(PEER, 6000), fd = new6();
	SET(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
	SET(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET6);
	SET(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET);
	DO(bind(fd, ADDRESS6("::", 5000)));
	SET(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	SET(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 5);
	SET(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 5);
	SET(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0);
	SET(fd, IPPROTO_IPV6, IPV6_TCLASS, 0x20);
	SET(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
	SET(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
	SET(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1);
	SET(fd, IPPROTO_IPV6, IPV6_RECVPATHMTU, 1);
	SET(fd, IPPROTO_IPV6, 199, 1);
	static char bytes[3000];
	DO(sendto(fd, bytes, 3000, 0, ADDRESS6(MAPPED PEER, 6000)));
	peer_hears(there);
	SET(fd, IPPROTO_IP, IP_TTL, 33);
	SET(fd, IPPROTO_IP, IP_TOS, 0x10);
	SET(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
	DO(sendto(fd, bytes, 3000, 0, ADDRESS6(MAPPED PEER, 6000)));
	DO(sendto(fd, bytes, 1472, 0, ADDRESS6(MAPPED PEER, 6000)));
	peer_hears(there);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	GET(fd, IPPROTO_IPV6, IPV6_MTU);
	GET(fd, IPPROTO_IP, IP_MTU);
	GET(fd, SOL_SOCKET, SO_DOMAIN);
	GET(fd, IPPROTO_IPV6, IPV6_V6ONLY);
	peer_say(there, 5000, "in");
	barrier();
	from_shown6(fd, 0);
	peer_close(there);
}

/* An IPv6 socket becomes one of AF_INET. */
static void address_form(void)
{
	int there = peer_open(PEER, 6000), fd = bound6("::", 5000);
	set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
	SET(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET);
	DO(connect(fd, ADDRESS6(MAPPED PEER, 6000)));
	SET(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET);
	GET(fd, SOL_SOCKET, SO_DOMAIN);
	peer_say(there, 5000, "in");
	barrier();
	receive_from_shown(fd, 100, 0);
	DO(sendto(fd, "mapped", 6, 0, ADDRESS6(MAPPED PEER, 6000)));
	DO(send(fd, "out", 3, 0));
	peer_hears(there);
	peer_say(there, 5000, "again");
	barrier();
	char control[256];
	struct sockaddr_in from;
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from,
		.msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	DO(recvmsg(fd, &message, 0));
	show_message(&message);
	peer_close(there);
}

/* A child goes on with the socket, and has what waited in it. */
static void children(void)
{
	int there = peer_open(PEER, 6000), fd = bound6("::", 5000), six = bound6("::1", 5500);
	peer_say(there, 5000, "before the fork");
	barrier();
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		from_shown6(fd, 0);
		DO(sendto(fd, "by a child", 10, 0, ADDRESS6(MAPPED PEER, 6000)));
		fflush(stdout);
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	line("  status %#x", status);
	peer_hears(there);
	peer_say(there, 5000, "afterwards");
	barrier();
	from_shown6(fd, 0);
	DO(sendto(six, "six", 3, 0, ADDRESS6("::1", 5000)));
	from_shown6(fd, 0);
	int copy = dup(fd);
	close(fd);
	peer_say(there, 5000, "to the copy");
	barrier();
	from_shown6(copy, 0);
	DO(shutdown(copy, SHUT_RD));
	peer_close(there);
}

const probe_case udp_dual_option_cases[] = {
	{ "control", control, false },
	{ "control_of_six", control_of_six, true }, /* ::1 */
	{ "control_sent", control_sent, true },
	{ "errors", errors, true },
	{ "ports", ports, true },
	{ "groups", groups, false },
	{ "options", options, false },
	{ "address_form", address_form, true },
	{ "children", children, true },
	{ 0 },
};
