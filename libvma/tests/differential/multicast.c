/* Multicast: memberships, sources, the options of sending, and every error of them. */
#include "prober.h"

#define GROUP "239.1.1.1"
#define SECOND "239.1.1.2"

static struct ip_mreq joined(const char *group)
{
	return (struct ip_mreq){ at(group, 0).sin_addr, at(HOST, 0).sin_addr };
}

static struct ip_mreq_source joined_from(const char *group, const char *source)
{
	return (struct ip_mreq_source){ at(group, 0).sin_addr, at(HOST, 0).sin_addr,
					at(source, 0).sin_addr };
}

#define JOIN(fd, operation, group) \
	(line(#operation " " group), \
	 DO(setsockopt(fd, IPPROTO_IP, operation, &(struct ip_mreq[]){ joined(group) }, 8)))
#define SOURCE(fd, operation, group, source) \
	(line(#operation " " group " " source), \
	 DO(setsockopt(fd, IPPROTO_IP, operation, \
		       &(struct ip_mreq_source[]){ joined_from(group, source) }, 12)))

static int reused(const char *ip, int port)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
	must("reuse", setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
	must("bind", bind(fd, ADDRESS(ip, port)));
	return fd;
}

static void drain(int fd)
{
	barrier();
	while (receive_from_shown(fd, 100, MSG_DONTWAIT))
		;
}

static void membership(void)
{
	int there = peer_open(PEER, 6000), fd = udp(5000);
	peer_say_to(there, GROUP, 5000, "before");
	drain(fd);
	JOIN(fd, IP_ADD_MEMBERSHIP, GROUP);
	JOIN(fd, IP_ADD_MEMBERSHIP, GROUP);
	peer_say_to(there, GROUP, 5000, "joined");
	peer_say_to(there, SECOND, 5000, "another group");
	peer_say_to(there, GROUP, 5001, "another port");
	peer_say_to(there, HOST, 5000, "unicast");
	drain(fd);
	JOIN(fd, IP_ADD_MEMBERSHIP, SECOND);
	peer_say_to(there, SECOND, 5000, "second");
	peer_say_to(there, GROUP, 5000, "first");
	drain(fd);
	JOIN(fd, IP_DROP_MEMBERSHIP, GROUP);
	JOIN(fd, IP_DROP_MEMBERSHIP, GROUP);
	peer_say_to(there, GROUP, 5000, "left");
	peer_say_to(there, SECOND, 5000, "not left");
	drain(fd);
	JOIN(fd, IP_ADD_MEMBERSHIP, GROUP);
	peer_say_to(there, GROUP, 5000, "again");
	drain(fd);
	peer_close(there);
}

static void errors(void)
{
	int fd = udp(5000);
	struct ip_mreq request = joined(GROUP);
	struct ip_mreqn numbered = { .imr_multiaddr = request.imr_multiaddr };
	JOIN(fd, IP_DROP_MEMBERSHIP, GROUP);
	JOIN(fd, IP_ADD_MEMBERSHIP, "10.99.0.2");
	DO(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, 4));
	DO(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, 7));
	DO(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, NULL, 8));
	request.imr_interface = at("10.98.0.1", 0).sin_addr;
	DO(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request));
	numbered.imr_ifindex = 9999;
	DO(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &numbered, sizeof numbered));
	numbered.imr_ifindex = if_nametoindex(device_name);
	DO(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &numbered, sizeof numbered));
	DO(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &numbered, sizeof numbered));
	JOIN(fd, IP_ADD_MEMBERSHIP, GROUP);
	JOIN(fd, IP_DROP_MEMBERSHIP, GROUP);
	int fifty = 0;
	for (int i = 0; i < 30; i++) {
		struct ip_mreq more = request;
		more.imr_multiaddr.s_addr = htonl(0xef020000 + i);
		more.imr_interface = at(HOST, 0).sin_addr;
		fifty += setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &more, sizeof more) == 0;
	}
	line("  %d memberships", fifty);
	/* Any interface: the one the group's route leaves by; there is none. */
	int other = udp(5001);
	request = joined(GROUP);
	request.imr_interface.s_addr = 0;
	DO(setsockopt(other, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request));
}

static void include(void)
{
	int one = peer_open(PEER, 6000), two = peer_open(OTHER, 6001), fd = udp(5000);
	SOURCE(fd, IP_DROP_SOURCE_MEMBERSHIP, GROUP, PEER);
	SOURCE(fd, IP_ADD_SOURCE_MEMBERSHIP, GROUP, PEER);
	peer_say_to(one, GROUP, 5000, "chosen");
	peer_say_to(two, GROUP, 5000, "not chosen");
	drain(fd);
	SOURCE(fd, IP_ADD_SOURCE_MEMBERSHIP, GROUP, PEER);
	SOURCE(fd, IP_BLOCK_SOURCE, GROUP, OTHER);
	JOIN(fd, IP_ADD_MEMBERSHIP, GROUP);
	SOURCE(fd, IP_ADD_SOURCE_MEMBERSHIP, GROUP, OTHER);
	peer_say_to(one, GROUP, 5000, "chosen");
	peer_say_to(two, GROUP, 5000, "chosen too");
	drain(fd);
	SOURCE(fd, IP_DROP_SOURCE_MEMBERSHIP, GROUP, PEER);
	SOURCE(fd, IP_DROP_SOURCE_MEMBERSHIP, GROUP, PEER);
	peer_say_to(one, GROUP, 5000, "dropped");
	peer_say_to(two, GROUP, 5000, "still chosen");
	drain(fd);
	SOURCE(fd, IP_DROP_SOURCE_MEMBERSHIP, GROUP, OTHER);
	peer_say_to(two, GROUP, 5000, "nobody");
	drain(fd);
	SOURCE(fd, IP_ADD_SOURCE_MEMBERSHIP, GROUP, OTHER);
	JOIN(fd, IP_DROP_MEMBERSHIP, GROUP);
	peer_say_to(two, GROUP, 5000, "nobody");
	drain(fd);
	peer_close(one);
	peer_close(two);
}

static void exclude(void)
{
	int one = peer_open(PEER, 6000), two = peer_open(OTHER, 6001), fd = udp(5000);
	SOURCE(fd, IP_BLOCK_SOURCE, GROUP, PEER);
	JOIN(fd, IP_ADD_MEMBERSHIP, GROUP);
	SOURCE(fd, IP_BLOCK_SOURCE, GROUP, PEER);
	SOURCE(fd, IP_BLOCK_SOURCE, GROUP, PEER);
	peer_say_to(one, GROUP, 5000, "blocked");
	peer_say_to(two, GROUP, 5000, "not blocked");
	drain(fd);
	SOURCE(fd, IP_UNBLOCK_SOURCE, GROUP, OTHER);
	SOURCE(fd, IP_UNBLOCK_SOURCE, GROUP, PEER);
	peer_say_to(one, GROUP, 5000, "unblocked");
	drain(fd);
	SOURCE(fd, IP_ADD_SOURCE_MEMBERSHIP, GROUP, PEER);
	SOURCE(fd, IP_DROP_SOURCE_MEMBERSHIP, GROUP, PEER);
	peer_say_to(two, GROUP, 5000, "and after these errors");
	drain(fd);
	SOURCE(fd, IP_BLOCK_SOURCE, GROUP, PEER);
	JOIN(fd, IP_DROP_MEMBERSHIP, GROUP);
	JOIN(fd, IP_ADD_MEMBERSHIP, GROUP);
	peer_say_to(one, GROUP, 5000, "the block is forgotten");
	drain(fd);
	peer_close(one);
	peer_close(two);
}

/* Two sockets of one process on one group, of whom one may not be a member. */
static void two_sockets(void)
{
	int there = peer_open(PEER, 6000), off = 0;
	int one = reused("0.0.0.0", 5000), two = reused("0.0.0.0", 5000), bound = reused(GROUP, 5000);
	int third = reused("0.0.0.0", 5000);
	DO(setsockopt(third, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off));
	JOIN(one, IP_ADD_MEMBERSHIP, GROUP);
	JOIN(two, IP_ADD_MEMBERSHIP, GROUP);
	JOIN(two, IP_ADD_MEMBERSHIP, SECOND);
	peer_say_to(there, GROUP, 5000, "both");
	peer_say_to(there, SECOND, 5000, "the second group");
	line("one");
	drain(one);
	line("two");
	drain(two);
	line("bound to the group, no member");
	drain(bound);
	line("no member, not IP_MULTICAST_ALL");
	drain(third);
	DO(setsockopt(one, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off));
	peer_say_to(there, GROUP, 5000, "both");
	peer_say_to(there, SECOND, 5000, "not for one");
	line("one");
	drain(one);
	line("two");
	drain(two);
	DO(close(two));
	peer_say_to(there, SECOND, 5000, "nobody is left");
	peer_say_to(there, GROUP, 5000, "one is left");
	line("one");
	drain(one);
	drain(bound);
	/* Unicast goes to one of them only. */
	peer_say_to(there, HOST, 5000, "unicast");
	drain(one);
	drain(third);
	peer_close(there);
}

static void bound_to_group(void)
{
	int there = peer_open(PEER, 6000), fd = udp_at(GROUP, 5000), on = 1;
	JOIN(fd, IP_ADD_MEMBERSHIP, GROUP);
	JOIN(fd, IP_ADD_MEMBERSHIP, SECOND);
	DO(setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on));
	DO(setsockopt(fd, IPPROTO_IP, IP_RECVORIGDSTADDR, &on, sizeof on));
	peer_say_to(there, GROUP, 5000, "group");
	peer_say_to(there, SECOND, 5000, "other group");
	peer_say_to(there, HOST, 5000, "unicast");
	barrier();
	char control[128];
	struct msghdr message = { .msg_iov = &(struct iovec){ room, 100 }, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof control };
	if (DO(recvmsg(fd, &message, MSG_DONTWAIT)) >= 0)
		show_message(&message);
	drain(fd);
	/* On a socket bound to any address. */
	int any = udp(5001);
	JOIN(any, IP_ADD_MEMBERSHIP, GROUP);
	DO(setsockopt(any, IPPROTO_IP, IP_PKTINFO, &on, sizeof on));
	peer_say_to(there, GROUP, 5001, "group");
	barrier();
	message.msg_controllen = sizeof control;
	if (DO(recvmsg(any, &message, MSG_DONTWAIT)) >= 0)
		show_message(&message);
	peer_close(there);
}

static void interface_options(void)
{
	int fd = udp(5000);
	struct in_addr address = at(HOST, 0).sin_addr;
	struct ip_mreqn numbered = { .imr_ifindex = if_nametoindex(device_name) };
	socklen_t length = sizeof address;
	DO(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, &length));
	line("  %s, length %d", text_of(&address, 4), (int)length);
	address = at(HOST, 0).sin_addr;
	DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, sizeof address));
	memset(&address, 0, sizeof address);
	DO(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, &length));
	line("  %s, length %d", text_of(&address, 4), (int)length);
	DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &numbered, sizeof numbered));
	DO(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, &length));
	line("  %s", text_of(&address, 4));
	address = at("10.98.0.1", 0).sin_addr;
	DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, sizeof address));
	DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, 2));
	numbered.imr_ifindex = 9999;
	DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &numbered, sizeof numbered));
	address.s_addr = 0;
	DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, sizeof address));
	DO(sendto(fd, "no route", 8, 0, ADDRESS(GROUP, 6000)));
}

static void sending(void)
{
	int there = peer_open("0.0.0.0", 6000), fd = udp(5000);
	struct in_addr address = at(HOST, 0).sin_addr;
	peer_join(there, GROUP);
	DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, sizeof address));
	DO(sendto(fd, "default", 7, 0, ADDRESS(GROUP, 6000)));
	peer_hears(there);
	static const int ttls[] = { 0, 5, 255, 1, -1, 256, -2 };
	for (size_t i = 0; i < sizeof ttls / sizeof *ttls; i++) {
		line("ttl %d", ttls[i]);
		if (DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &ttls[i], sizeof(int))) == 0) {
			DO(sendto(fd, "ttl", 3, 0, ADDRESS(GROUP, 6000)));
			peer_hears(there);
		}
	}
	unsigned char byte = 9;
	DO(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &byte, 1));
	DO(sendto(fd, "byte", 4, 0, ADDRESS(GROUP, 6000)));
	peer_hears(there);
	int tos = 0x10, ttl = 77;
	DO(setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof tos));
	DO(setsockopt(fd, IPPROTO_IP, IP_TTL, &ttl, sizeof ttl)); /* for unicast only */
	DO(sendto(fd, "tos", 3, 0, ADDRESS(GROUP, 6000)));
	peer_hears(there);
	DO(connect(fd, ADDRESS(GROUP, 6000)));
	DO(send(fd, "connected", 9, 0));
	peer_hears(there);
	struct sockaddr_in own = { 0 };
	socklen_t length = sizeof own;
	DO(getsockname(fd, (struct sockaddr *)&own, &length));
	show_address("own", &own, length);
	peer_close(there);
}

/* IP_MULTICAST_LOOP: members on this host hear, the sender among them. */
static void loop(void)
{
	int there = peer_open("0.0.0.0", 5000);
	peer_join(there, GROUP);
	struct in_addr address = at(HOST, 0).sin_addr;
	int sender = reused("0.0.0.0", 5000), member = reused("0.0.0.0", 5000);
	JOIN(sender, IP_ADD_MEMBERSHIP, GROUP);
	JOIN(member, IP_ADD_MEMBERSHIP, GROUP);
	DO(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &address, sizeof address));
	for (int on = 1; on >= 0; on--) {
		line("loop %d", on);
		DO(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_LOOP, &on, sizeof on));
		DO(sendto(sender, "loop", 4, 0, ADDRESS(GROUP, 5000)));
		line("there");
		peer_hears(there);
		line("sender");
		drain(sender);
		line("member");
		drain(member);
	}
	/* With a socket that only sends. */
	int outsider = udp(5001);
	DO(setsockopt(outsider, IPPROTO_IP, IP_MULTICAST_IF, &address, sizeof address));
	DO(sendto(outsider, "from outside", 12, 0, ADDRESS(GROUP, 5000)));
	peer_hears(there);
	drain(member);
	peer_close(there);
}

/* The whole group, and one source of it, in the forms that are for any protocol. */
static struct group_req of_all(void)
{
	struct group_req request = { .gr_interface = if_nametoindex(device_name) };
	struct sockaddr_in group = at(GROUP, 0);
	memcpy(&request.gr_group, &group, sizeof group);
	return request;
}

static struct group_source_req of_peer(void)
{
	struct group_source_req request = { .gsr_interface = if_nametoindex(device_name) };
	struct sockaddr_in group = at(GROUP, 0), source = at(PEER, 0);
	memcpy(&request.gsr_group, &group, sizeof group);
	memcpy(&request.gsr_source, &source, sizeof source);
	return request;
}

/* These forms, and whole filters. */
static void any_protocol(void)
{
	int one = peer_open(PEER, 6000), two = peer_open(OTHER, 6001), fd = udp(5000);
	struct group_source_req from = of_peer();
	struct group_req request = of_all();
	DO(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request));
	peer_say_to(one, GROUP, 5000, "joined");
	drain(fd);
	DO(setsockopt(fd, IPPROTO_IP, MCAST_BLOCK_SOURCE, &from, sizeof from));
	peer_say_to(one, GROUP, 5000, "blocked");
	peer_say_to(two, GROUP, 5000, "not blocked");
	drain(fd);
	DO(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &request, sizeof request));
	peer_say_to(two, GROUP, 5000, "left");
	drain(fd);
	int filtered = udp(5001);
	JOIN(filtered, IP_ADD_MEMBERSHIP, GROUP);
	struct {
		struct ip_msfilter head;
		struct in_addr more[3];
	} filter = { .head = { at(GROUP, 0).sin_addr, at(HOST, 0).sin_addr, MCAST_INCLUDE, 1,
			       { at(PEER, 0).sin_addr } } };
	DO(setsockopt(filtered, IPPROTO_IP, IP_MSFILTER, &filter, IP_MSFILTER_SIZE(1)));
	peer_say_to(one, GROUP, 5001, "chosen");
	peer_say_to(two, GROUP, 5001, "not chosen");
	drain(filtered);
#ifndef OVER_IPV6
	filter.head.imsf_numsrc = 3;
	DO(getsockopt(filtered, IPPROTO_IP, IP_MSFILTER, &filter,
		      &(socklen_t){ IP_MSFILTER_SIZE(3) }));
	line("  mode %u, %u sources", filter.head.imsf_fmode, filter.head.imsf_numsrc);
#endif
	filter.head.imsf_fmode = MCAST_EXCLUDE;
	filter.head.imsf_numsrc = 1;
	DO(setsockopt(filtered, IPPROTO_IP, IP_MSFILTER, &filter, IP_MSFILTER_SIZE(1)));
	peer_say_to(one, GROUP, 5001, "shut out");
	peer_say_to(two, GROUP, 5001, "not shut out");
	drain(filtered);
	filter.head.imsf_numsrc = 0;
	DO(setsockopt(filtered, IPPROTO_IP, IP_MSFILTER, &filter, IP_MSFILTER_SIZE(0)));
	peer_say_to(one, GROUP, 5001, "everybody");
	drain(filtered);
	filter.head.imsf_fmode = MCAST_INCLUDE;
	DO(setsockopt(filtered, IPPROTO_IP, IP_MSFILTER, &filter, IP_MSFILTER_SIZE(0)));
	peer_say_to(one, GROUP, 5001, "nobody");
	drain(filtered);
	JOIN(filtered, IP_DROP_MEMBERSHIP, GROUP);
	peer_close(one);
	peer_close(two);
}

/* The same for sources: the first one says which kind of list it is. */
static void any_protocol_sources(void)
{
	int one = peer_open(PEER, 6000), two = peer_open(OTHER, 6001), fd = udp(5000);
	struct group_source_req from = of_peer();
	struct group_req whole = of_all();
	DO(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_SOURCE_GROUP, &from, sizeof from));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, &from, sizeof from));
	peer_say_to(one, GROUP, 5000, "chosen");
	peer_say_to(two, GROUP, 5000, "not chosen");
	drain(fd);
	DO(setsockopt(fd, IPPROTO_IP, MCAST_BLOCK_SOURCE, &from, sizeof from));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &whole, sizeof whole));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_SOURCE_GROUP, &from, sizeof from));
	peer_say_to(one, GROUP, 5000, "nobody");
	drain(fd);
	line("a member of the whole group that chooses");
	DO(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &whole, sizeof whole));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, &from, sizeof from));
	peer_say_to(one, GROUP, 5000, "chosen");
	peer_say_to(two, GROUP, 5000, "not chosen any more");
	drain(fd);
	DO(setsockopt(fd, IPPROTO_IP, MCAST_UNBLOCK_SOURCE, &from, sizeof from));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &whole, sizeof whole));
	peer_say_to(one, GROUP, 5000, "left");
	drain(fd);
	whole.gr_interface = 0;
	line("any interface");
	DO(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &whole, sizeof whole));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &whole, sizeof whole - 1));
	whole.gr_interface = 9999;
	DO(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &whole, sizeof whole));
	DO(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &whole, sizeof whole));
	peer_say_to(one, GROUP, 5000, "any");
	drain(fd);
	peer_close(one);
	peer_close(two);
}

const probe_case multicast_cases[] = {
	{ "membership", membership, false },
	{ "errors", errors, false },
	{ "include", include, false },
	{ "exclude", exclude, false },
	{ "two_sockets", two_sockets, false },
	{ "bound_to_group", bound_to_group, false },
	{ "interface_options", interface_options, false },
	{ "sending", sending, true }, /* TTL 0 stays on the host */
	{ "loop", loop, true },
	{ "any_protocol", any_protocol, false },
	{ "any_protocol_sources", any_protocol_sources, false },
	{ NULL, NULL, false },
};
