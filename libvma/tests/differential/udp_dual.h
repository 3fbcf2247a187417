/* Addresses of sockets of AF_INET6, and what the two parts of the group udp_dual share. */
#ifndef UDP_DUAL_H
#define UDP_DUAL_H

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

static inline int new6(void)
{
	int fd = socket(AF_INET6, SOCK_DGRAM, 0);
	must("socket", fd);
	return fd;
}

static inline int bound6(const char *ip, int port)
{
	int fd = new6();
	must("bind", bind(fd, ADDRESS6(ip, port)));
	return fd;
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

static inline void show_names6(int fd)
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
}

/* A datagram with its source; false if there is none. */
static inline bool from_shown6(int fd, int flags)
{
	struct sockaddr_in6 from;
	memset(&from, 0xee, sizeof from);
	socklen_t length = sizeof from;
	wipe();
	long got = DO(recvfrom(fd, room, 100, flags, (struct sockaddr *)&from, &length));
	if (got < 0)
		return false;
	show_bytes("bytes", room, got);
	show_name6("from", &from, length);
	return true;
}

#endif
