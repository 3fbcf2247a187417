/* The part of over_ipv6.c that is about groups: 239.1.2.3 is ff05::ef01:203, and each call that joins, leaves or chooses sources is the one of
 * IPv6 that does the same. Interfaces, which IPv4 may name by an address, are named by their index. */
#ifdef DATAGRAMS_TOO
#include "over_ipv6.h"

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t length);

/* linux/in6.h, which does not go with netinet/in.h. */
enum { ALL = 29 };
#define NO_INTERFACE 9999

/* Of the one interface besides lo: that of the cable's addresses. */
static unsigned the_interface(void)
{
	unsigned found = 0;
	struct if_nameindex *all = if_nameindex();
	for (struct if_nameindex *one = all; one && one->if_index; one++)
		if (strcmp(one->if_name, "lo"))
			found = one->if_index;
	if_freenameindex(all);
	return found;
}

static unsigned interface_at(struct in_addr address)
{
	uint32_t ip = ntohl(address.s_addr);
	if (ip == 0)
		return 0;
	return ip >> 16 == (10 << 8 | 99) && (ip & 0xffff) < 255 ? the_interface() : NO_INTERFACE;
}

static struct sockaddr_storage named(struct in_addr address)
{
	struct sockaddr_in6 name = { .sin6_family = AF_INET6, .sin6_addr = twin(address) };
	struct sockaddr_storage storage = { 0 };
	memcpy(&storage, &name, sizeof name);
	return storage;
}

static int join(int fd, int name, struct in_addr group, unsigned interface)
{
	struct ipv6_mreq request = { twin(group), interface };
	int to = name == IP_ADD_MEMBERSHIP ? IPV6_JOIN_GROUP : IPV6_LEAVE_GROUP;
	return __real_setsockopt(fd, IPPROTO_IPV6, to, &request, sizeof request);
}

static int choose(int fd, int name, const struct ip_mreq_source *from)
{
	static const int twins[][2] = {
		{ IP_ADD_SOURCE_MEMBERSHIP, MCAST_JOIN_SOURCE_GROUP },
		{ IP_DROP_SOURCE_MEMBERSHIP, MCAST_LEAVE_SOURCE_GROUP },
		{ IP_BLOCK_SOURCE, MCAST_BLOCK_SOURCE },
		{ IP_UNBLOCK_SOURCE, MCAST_UNBLOCK_SOURCE },
	};
	struct group_source_req request = { interface_at(from->imr_interface), named(from->imr_multiaddr),
					    named(from->imr_sourceaddr) };
	for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
		if (twins[i][0] == name)
			return __real_setsockopt(fd, IPPROTO_IPV6, twins[i][1], &request, sizeof request);
	return -1;
}

static int filter(int fd, const struct ip_msfilter *from)
{
	struct {
		struct group_filter head;
		struct sockaddr_storage more[8];
	} request = { .head = { interface_at(from->imsf_interface), named(from->imsf_multiaddr),
				from->imsf_fmode, from->imsf_numsrc } };
	for (uint32_t i = 0; i < from->imsf_numsrc && i < 8; i++)
		request.head.gf_slist[i] = named(from->imsf_slist[i]);
	return __real_setsockopt(fd, IPPROTO_IPV6, MCAST_MSFILTER, &request, GROUP_FILTER_SIZE(from->imsf_numsrc));
}

/* The forms for any protocol: the addresses in them. */
static int either(int fd, int name, const void *value, socklen_t length)
{
	union {
		struct group_req one;
		struct group_source_req two;
	} request;
	if (length > sizeof request)
		return __real_setsockopt(fd, IPPROTO_IPV6, name, value, length);
	memcpy(&request, value, length);
	struct sockaddr_storage *names[] = { &request.two.gsr_group, &request.two.gsr_source };
	for (size_t i = 0; i < (length < sizeof request ? 1 : 2); i++) {
		struct sockaddr_in *name4 = (struct sockaddr_in *)names[i];
		if (name4->sin_family == AF_INET)
			*names[i] = named(name4->sin_addr);
	}
	return __real_setsockopt(fd, IPPROTO_IPV6, name, &request, length);
}

bool set_group_option(int fd, int name, const void *value, socklen_t length, int *result)
{
	const struct ip_mreqn *numbered = value;
	bool is_number = length == sizeof(int), is_bad = (uintptr_t)value < 65536;
	switch (name) {
	case IP_MULTICAST_IF: {
		bool by_index = length == sizeof *numbered && numbered->imr_ifindex;
		if (is_bad || (!is_number && length < sizeof(struct ip_mreq))) {
			*result = __real_setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, value, length);
			return true;
		}
		unsigned index = by_index ? numbered->imr_ifindex :
			interface_at(is_number ? *(const struct in_addr *)value : numbered->imr_address);
		*result = __real_setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof index);
		return true;
	}
	case IP_MULTICAST_ALL:
		*result = __real_setsockopt(fd, IPPROTO_IPV6, ALL, value, length);
		return true;
	case IP_ADD_MEMBERSHIP:
	case IP_DROP_MEMBERSHIP:
		if (is_bad || length < sizeof(struct ip_mreq))
			*result = __real_setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, value, length);
		else
			*result = join(fd, name, numbered->imr_multiaddr,
				       length == sizeof *numbered && numbered->imr_ifindex ? (unsigned)numbered->imr_ifindex :
											     interface_at(numbered->imr_address));
		return true;
	case IP_ADD_SOURCE_MEMBERSHIP:
	case IP_DROP_SOURCE_MEMBERSHIP:
	case IP_BLOCK_SOURCE:
	case IP_UNBLOCK_SOURCE:
		*result = choose(fd, name, value);
		return true;
	case IP_MSFILTER:
		*result = filter(fd, value);
		return true;
	case MCAST_JOIN_GROUP:
	case MCAST_LEAVE_GROUP:
	case MCAST_JOIN_SOURCE_GROUP:
	case MCAST_LEAVE_SOURCE_GROUP:
	case MCAST_BLOCK_SOURCE:
	case MCAST_UNBLOCK_SOURCE:
		*result = either(fd, name, value, length);
		return true;
	}
	return false;
}
#endif
