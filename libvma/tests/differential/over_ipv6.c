/* The cases of IPv4 over IPv6: every stream socket is one of AF_INET6, every address of 127.0.0.0/8 is ::1, those of the other host
 * and the networks behind it have twins of IPv6 (10.99.0.1 is fd00:99::1), any address is that of both families, and others are mapped. With OWN_ADDRESSES 127.0.0.1 to 127.0.0.3 are addresses that the host has, fd00:98::1 to fd00:98::3. With DATAGRAMS_TOO so are datagram sockets, whose options and control
 * messages of IPPROTO_IP are their twins of IPPROTO_IPV6. The cases say what they say of IPv4. What comes back is not changed: of a
 * struct sockaddr_in6 the cases show the family, the port, the flow label and the length. */
#ifdef OVER_IPV6
#include "over_ipv6.h"

/* ld(1), --wrap. */
int __real_socket(int domain, int kind, int protocol);
int __real_bind(int fd, const struct sockaddr *address, socklen_t length);
int __real_connect(int fd, const struct sockaddr *address, socklen_t length);
ssize_t __real_sendto(int fd, const void *bytes, size_t count, int flags, const struct sockaddr *address, socklen_t length);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
int __real_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags);
int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *length);

int __wrap_socket(int domain, int kind, int protocol)
{
	int type = kind & 0xf;
	bool moved = type == SOCK_STREAM;
#ifdef DATAGRAMS_TOO
	moved = moved || type == SOCK_DGRAM;
#endif
	return __real_socket(moved && domain == AF_INET ? AF_INET6 : domain, kind, protocol);
}

static bool has(int fd, int option, int wanted)
{
	int value = 0, before = errno;
	socklen_t size = sizeof value;
	__real_getsockopt(fd, SOL_SOCKET, option, &value, &size);
	errno = before;
	return value == wanted;
}

struct in6_addr twin(struct in_addr address)
{
	struct in6_addr to = { 0 };
	uint32_t ip = ntohl(address.s_addr);
#ifdef OWN_ADDRESSES
	if (ip > 0x7f000000 && ip <= 0x7f000003) {
		to.s6_addr[0] = 0xfd;
		to.s6_addr[3] = 0x98;
		to.s6_addr[15] = ip;
		return to;
	}
#endif
#ifndef WITHIN_ONE_HOST
	uint32_t network = ip >> 16, low = ip & 0xffff;
	if ((network == (10 << 8 | 99) && low > 0 && low < 255) || network == (10 << 8 | 97)) {
		to.s6_addr[0] = 0xfd;
		to.s6_addr[3] = network == (10 << 8 | 99) ? 0x99 : 0x97;
		to.s6_addr[5] = low >> 8;
		to.s6_addr[15] = low;
		return to;
	}
#endif
#ifdef DATAGRAMS_TOO
	if (ip >> 28 == 14) {
		to.s6_addr[0] = 0xff;
		to.s6_addr[1] = 5;
		memcpy(to.s6_addr + 12, &address, 4);
		return to;
	}
#endif
	if (ip >> 24 == 127) {
		to = in6addr_loopback;
	} else if (ip) {
		to.s6_addr[10] = to.s6_addr[11] = 0xff;
		memcpy(to.s6_addr + 12, &address, 4);
	}
	return to;
}

/* NULL: the address is to be passed on as it is. */
static const struct sockaddr *translated(int fd, const struct sockaddr *address, socklen_t length,
					 struct sockaddr_in6 *to)
{
	const struct sockaddr_in *from = (const struct sockaddr_in *)address;
	if (!has(fd, SO_DOMAIN, AF_INET6) || length != sizeof *from || (uintptr_t)address < 65536 || from->sin_family != AF_INET)
		return NULL;
	*to = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = from->sin_port };
	to->sin6_addr = twin(from->sin_addr);
	return (const struct sockaddr *)to;
}

int __wrap_bind(int fd, const struct sockaddr *address, socklen_t length)
{
	struct sockaddr_in6 to;
	const struct sockaddr *name = translated(fd, address, length, &to);
	return name ? __real_bind(fd, name, sizeof to) : __real_bind(fd, address, length);
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length)
{
	struct sockaddr_in6 to;
	const struct sockaddr *name = translated(fd, address, length, &to);
	return name ? __real_connect(fd, name, sizeof to) : __real_connect(fd, address, length);
}

ssize_t __wrap_sendto(int fd, const void *bytes, size_t count, int flags, const struct sockaddr *address, socklen_t length)
{
	struct sockaddr_in6 to;
	const struct sockaddr *name = translated(fd, address, length, &to);
	return name ? __real_sendto(fd, bytes, count, flags, name, sizeof to)
		    : __real_sendto(fd, bytes, count, flags, address, length);
}

/* The message with another name and other control messages, which are put in `control`. */
static struct msghdr moved(int fd, const struct msghdr *message, struct sockaddr_in6 *to, char *control, size_t size)
{
	struct msghdr copy = *message;
	if (translated(fd, message->msg_name, message->msg_namelen, to)) {
		copy.msg_name = to;
		copy.msg_namelen = sizeof *to;
	}
	if (!has(fd, SO_DOMAIN, AF_INET6) || !has(fd, SO_TYPE, SOCK_DGRAM) || !message->msg_control ||
	    message->msg_controllen < sizeof(struct cmsghdr))
		return copy;
	struct msghdr into = { .msg_control = memset(control, 0, size), .msg_controllen = size };
	struct cmsghdr *next = CMSG_FIRSTHDR(&into);
	size_t used = 0;
	for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR((struct msghdr *)message, at)) {
		int value = 0;
		struct in6_pktinfo info = { 0 };
		bool is_ip = at->cmsg_level == IPPROTO_IP;
		if (at->cmsg_len < CMSG_LEN(1) || at->cmsg_len > CMSG_LEN(64))
			return copy; /* wrong on purpose */
		size_t length = at->cmsg_len - CMSG_LEN(0);
		const void *data = CMSG_DATA(at);
		*next = *at;
		if (is_ip && at->cmsg_type == IP_PKTINFO && length == sizeof(struct in_pktinfo)) {
			const struct in_pktinfo *told = data;
			info.ipi6_ifindex = told->ipi_ifindex;
			info.ipi6_addr = twin(told->ipi_spec_dst);
#if defined WITHIN_ONE_HOST && !defined OWN_ADDRESSES
			info.ipi6_addr = in6addr_loopback;
#endif
			data = &info;
			length = sizeof info;
		} else if (is_ip && (at->cmsg_type == IP_TTL || at->cmsg_type == IP_TOS) && length <= sizeof value) {
			memcpy(&value, data, length);
			data = &value;
			length = sizeof value;
		}
		if (data != CMSG_DATA(at)) {
			next->cmsg_level = IPPROTO_IPV6;
			next->cmsg_type = at->cmsg_type == IP_PKTINFO ? IPV6_PKTINFO :
				at->cmsg_type == IP_TTL ? IPV6_HOPLIMIT : IPV6_TCLASS;
		}
		next->cmsg_len = CMSG_LEN(length);
		memcpy(CMSG_DATA(next), data, length);
		used += CMSG_SPACE(length);
		next = (struct cmsghdr *)(control + used);
		if (used + CMSG_SPACE(64) > size)
			return copy;
	}
	copy.msg_control = control;
	copy.msg_controllen = used;
	return copy;
}

#define CONTROL 512

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
	struct sockaddr_in6 to;
	char control[CONTROL] __attribute__((aligned(8)));
	if ((uintptr_t)message < 65536)
		return __real_sendmsg(fd, message, flags);
	struct msghdr other = moved(fd, message, &to, control, sizeof control);
	return __real_sendmsg(fd, &other, flags);
}

int __wrap_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	static struct mmsghdr others[2048];
	static struct sockaddr_in6 to[2048];
	static char control[2048][CONTROL] __attribute__((aligned(8)));
	if ((uintptr_t)messages < 65536 || count > 2048)
		return __real_sendmmsg(fd, messages, count, flags);
	for (unsigned i = 0; i < count; i++)
		others[i] = (struct mmsghdr){ moved(fd, &messages[i].msg_hdr, &to[i], control[i], CONTROL),
					      messages[i].msg_len };
	int result = __real_sendmmsg(fd, others, count, flags);
	for (unsigned i = 0; i < count; i++)
		messages[i].msg_len = others[i].msg_len;
	return result;
}

/* linux/in6.h, which does not go with netinet/in.h. */
enum { RECVORIGDSTADDR = 74, TRANSPARENT = 75, UNICAST_IF = 76, RECVFRAGSIZE = 77, FREEBIND = 78, MINHOPCOUNT = 73 };

static const int twins[][2] = {
	{ IP_TTL, IPV6_UNICAST_HOPS }, { IP_TOS, IPV6_TCLASS }, { IP_MTU_DISCOVER, IPV6_MTU_DISCOVER },
	{ IP_PKTINFO, IPV6_RECVPKTINFO }, { IP_RECVTTL, IPV6_RECVHOPLIMIT }, { IP_RECVTOS, IPV6_RECVTCLASS },
	{ IP_RECVORIGDSTADDR, RECVORIGDSTADDR }, { IP_RECVERR, IPV6_RECVERR }, { IP_FREEBIND, FREEBIND },
	{ IP_MINTTL, MINHOPCOUNT }, { IP_TRANSPARENT, TRANSPARENT }, { IP_MTU, IPV6_MTU },
	{ IP_UNICAST_IF, UNICAST_IF }, { IP_RECVFRAGSIZE, RECVFRAGSIZE }, { IP_MULTICAST_TTL, IPV6_MULTICAST_HOPS },
	{ IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP }, { IP_MULTICAST_IF, IPV6_MULTICAST_IF },
};

static void to_twin(int fd, int *level, int *name)
{
	if (*level != IPPROTO_IP || !has(fd, SO_DOMAIN, AF_INET6) || !has(fd, SO_TYPE, SOCK_DGRAM))
		return;
	for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
		if (twins[i][0] == *name) {
			*level = IPPROTO_IPV6;
			*name = twins[i][1];
			return;
		}
}

int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
#ifdef DATAGRAMS_TOO
	int result;
	if (level == IPPROTO_IP && has(fd, SO_DOMAIN, AF_INET6) && has(fd, SO_TYPE, SOCK_DGRAM) &&
	    set_group_option(fd, name, value, length, &result))
		return result;
#endif
	to_twin(fd, &level, &name);
	return __real_setsockopt(fd, level, name, value, length);
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
	to_twin(fd, &level, &name);
	return __real_getsockopt(fd, level, name, value, length);
}
#endif
