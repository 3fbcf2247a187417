/* The cases of IPv4 streams over the loopback address of IPv6: every stream socket is one of AF_INET6, every address of 127.0.0.0/8
 * is ::1 (with DATAGRAMS_TOO of datagram sockets as well), any address is that of both families, and others are mapped. The cases say what they say of IPv4. What comes back is
 * not changed: of a struct sockaddr_in6 the cases show the family, the port, the flow label and the length. */
#ifdef OVER_IPV6
#include "prober.h"

/* ld(1), --wrap. */
int __real_socket(int domain, int kind, int protocol);
int __real_bind(int fd, const struct sockaddr *address, socklen_t length);
int __real_connect(int fd, const struct sockaddr *address, socklen_t length);
ssize_t __real_sendto(int fd, const void *bytes, size_t count, int flags, const struct sockaddr *address, socklen_t length);

int __wrap_socket(int domain, int kind, int protocol)
{
	int type = kind & 0xf;
	bool moved = type == SOCK_STREAM;
#ifdef DATAGRAMS_TOO
	moved = moved || type == SOCK_DGRAM;
#endif
	return __real_socket(moved && domain == AF_INET ? AF_INET6 : domain, kind, protocol);
}

/* NULL: the address is to be passed on as it is. */
static const struct sockaddr *translated(int fd, const struct sockaddr *address, socklen_t length,
					 struct sockaddr_in6 *to)
{
	int domain = 0, before = errno;
	socklen_t size = sizeof domain;
	const struct sockaddr_in *from = (const struct sockaddr_in *)address;
	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
	errno = before;
	if (domain != AF_INET6 || length != sizeof *from || (uintptr_t)address < 65536 || from->sin_family != AF_INET)
		return NULL;
	*to = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = from->sin_port };
	uint32_t ip = ntohl(from->sin_addr.s_addr);
	if (ip >> 24 == 127) {
		to->sin6_addr = in6addr_loopback;
	} else if (ip) {
		to->sin6_addr.s6_addr[10] = to->sin6_addr.s6_addr[11] = 0xff;
		memcpy(to->sin6_addr.s6_addr + 12, &from->sin_addr, 4);
	}
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
#endif
