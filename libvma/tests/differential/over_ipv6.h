/* What over_ipv6.c and over_ipv6_groups.c share. */
#ifndef OVER_IPV6_H
#define OVER_IPV6_H

#include "prober.h"

/* The IPv6 address in the place of an IPv4 address. */
struct in6_addr twin(struct in_addr address);

/* Sets an option that is about groups to what is its twin of IPv6; false: it is another option. */
bool set_group_option(int fd, int name, const void *value, socklen_t length, int *result);

#endif
