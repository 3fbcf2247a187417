/* Every option of options.h on a UDP socket and on a connection: default, a value that is taken, other lengths,
 * what the kernel says of it; and, on stderr, whether packets go by the kernel afterwards. */
#include "prober.h"

#include <linux/bpf.h>
#include <linux/filter.h>
#include <sys/syscall.h>

#define GROUP "239.1.1.1"
#define GROUP6 "ff12::1234"
/* Of linux/in6.h, which the headers of the C library leave out. */
#define IPV6_UNICAST_IF_ 76

static const struct row {
	const char *name;
	int level, number;
	char kind;
	int value;
} rows[] = {
#define O(level, name, number, kind, value, text) { #name, level, number, #kind[0], value },
#include "options.h"
};
#define ROWS (sizeof rows / sizeof *rows)

/* What a value may be. */
union value {
	unsigned char bytes[512];
	int number;
	struct timeval time;
	struct linger linger;
	struct sock_fprog filter;
	struct ip_mreq group;
	struct ip_mreq_source source;
	struct ip_msfilter filters;
	struct group_req any_group;
	struct group_source_req any_source;
	struct group_filter any_filters;
	struct tcp_md5sig key;
	struct ipv6_mreq group6;
	struct in6_pktinfo info6;
};

/* A program that passes everything. */
static int bpf_program(void)
{
	static const struct bpf_insn code[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0xffff },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	static int program = -1;
	union bpf_attr load = { .prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = 2,
		.insns = (uintptr_t)code, .license = (uintptr_t)"GPL" };
	if (program < 0) {
		int made = syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load);
		must("bpf", made);
		/* Behind the numbers that a case closes. */
		program = fcntl(made, F_DUPFD_CLOEXEC, first_descriptor + 100);
		must("dup", program);
		close(made);
	}
	return program;
}

static void store(void *address, const char *ip)
{
	struct sockaddr_in made = at(ip, 0);
	memcpy(address, &made, sizeof made);
}

static socklen_t membership(const struct row *row, union value *value)
{
	struct in_addr group = at(GROUP, 0).sin_addr, host = at(HOST, 0).sin_addr, peer = at(PEER, 0).sin_addr;
	switch (row->number) {
	case IP_ADD_MEMBERSHIP: case IP_DROP_MEMBERSHIP:
		value->group = (struct ip_mreq){ group, host };
		return sizeof value->group;
	case IP_UNBLOCK_SOURCE: case IP_BLOCK_SOURCE: case IP_ADD_SOURCE_MEMBERSHIP: case IP_DROP_SOURCE_MEMBERSHIP:
		value->source = (struct ip_mreq_source){ group, host, peer };
		return sizeof value->source;
	case IP_MSFILTER:
		value->filters = (struct ip_msfilter){ .imsf_multiaddr = group, .imsf_interface = host,
			.imsf_fmode = MCAST_EXCLUDE, .imsf_numsrc = 0 };
		return IP_MSFILTER_SIZE(0);
	case MCAST_JOIN_GROUP: case MCAST_LEAVE_GROUP:
		value->any_group.gr_interface = if_nametoindex(device_name);
		store(&value->any_group.gr_group, GROUP);
		return sizeof value->any_group;
	case MCAST_MSFILTER:
		value->any_filters.gf_interface = if_nametoindex(device_name);
		value->any_filters.gf_fmode = MCAST_EXCLUDE;
		store(&value->any_filters.gf_group, GROUP);
		return GROUP_FILTER_SIZE(0);
	default:
		value->any_source.gsr_interface = if_nametoindex(device_name);
		store(&value->any_source.gsr_group, GROUP);
		store(&value->any_source.gsr_source, PEER);
		return sizeof value->any_source;
	}
}

static void store6(void *address, const char *ip)
{
	struct sockaddr_in6 made = { .sin6_family = AF_INET6 };
	inet_pton(AF_INET6, ip, &made.sin6_addr);
	memcpy(address, &made, sizeof made);
}

static socklen_t special6(const struct row *row, union value *value)
{
	int index = if_nametoindex(device_name);
	switch (row->number) {
	case IPV6_ADD_MEMBERSHIP: case IPV6_DROP_MEMBERSHIP: case IPV6_JOIN_ANYCAST: case IPV6_LEAVE_ANYCAST:
		inet_pton(AF_INET6, GROUP6, &value->group6.ipv6mr_multiaddr);
		value->group6.ipv6mr_interface = index;
		return sizeof value->group6;
	case MCAST_JOIN_GROUP: case MCAST_LEAVE_GROUP:
		value->any_group.gr_interface = index;
		store6(&value->any_group.gr_group, GROUP6);
		return sizeof value->any_group;
	case MCAST_MSFILTER:
		value->any_filters.gf_interface = index;
		value->any_filters.gf_fmode = MCAST_EXCLUDE;
		store6(&value->any_filters.gf_group, GROUP6);
		return GROUP_FILTER_SIZE(0);
	case MCAST_BLOCK_SOURCE: case MCAST_UNBLOCK_SOURCE: case MCAST_JOIN_SOURCE_GROUP: case MCAST_LEAVE_SOURCE_GROUP:
		value->any_source.gsr_interface = index;
		store6(&value->any_source.gsr_group, GROUP6);
		store6(&value->any_source.gsr_source, "fe80::9");
		return sizeof value->any_source;
	case IPV6_PKTINFO:
		return sizeof value->info6;
	case IPV6_MULTICAST_IF:
		value->number = index;
		return 4;
	case IPV6_UNICAST_IF_:
		value->number = htonl(index);
		return 4;
	default: /* extension headers: none */
		return 0;
	}
}

static socklen_t special(const struct row *row, union value *value)
{
	if (row->level == IPPROTO_IPV6)
		return special6(row, value);
	static struct sock_filter pass = { BPF_RET | BPF_K, 0, 0, 0xffff };
	int index = if_nametoindex(device_name);
	if (row->level == IPPROTO_IP && row->number >= IP_ADD_MEMBERSHIP && row->number <= MCAST_MSFILTER)
		return membership(row, value);
	if (row->level == IPPROTO_IP) {
		if (row->number == IP_MULTICAST_IF)
			value->number = at(HOST, 0).sin_addr.s_addr;
		else if (row->number == IP_UNICAST_IF)
			value->number = htonl(index);
		else
			memcpy(value->bytes, "\1\1\1", 4);
		return 4;
	}
	if (row->level == IPPROTO_TCP) {
		switch (row->number) {
		case TCP_CONGESTION:
			return strlen(strcpy((char *)value->bytes, "reno"));
		case TCP_ULP:
			return strlen(strcpy((char *)value->bytes, "none such"));
		case TCP_FASTOPEN_KEY:
			return 16;
		case TCP_MD5SIG: case TCP_MD5SIG_EXT:
			store(&value->key.tcpm_addr, OTHER);
			value->key.tcpm_keylen = 4;
			return sizeof value->key;
		default:
			return 300;
		}
	}
	switch (row->number) {
	case SO_BINDTODEVICE:
		return strlen(strcpy((char *)value->bytes, device_name));
	case SO_ATTACH_FILTER: case SO_ATTACH_REUSEPORT_CBPF:
		value->filter = (struct sock_fprog){ 1, &pass };
		return sizeof value->filter;
	case SO_ATTACH_BPF: case SO_ATTACH_REUSEPORT_EBPF:
		value->number = bpf_program();
		return 4;
	case SO_BINDTOIFINDEX:
		value->number = index;
		return 4;
	default: /* SO_TXTIME: a clock, no flags; SO_DEVMEM_DONTNEED: tokens */
		value->number = CLOCK_MONOTONIC;
		return 8;
	}
}

static socklen_t build(const struct row *row, union value *value)
{
	memset(value, 0, sizeof *value);
	switch (row->kind) {
	case 'T':
		value->time.tv_sec = 1;
		return sizeof value->time;
	case 'L':
		value->linger = (struct linger){ 1, 5 };
		return sizeof value->linger;
	case 'B':
		return special(row, value);
	case 'R': case 'Q':
		value->number = 1;
		return 4;
	default:
		value->number = row->value;
		return 4;
	}
}

/* A membership that an option of IPv6 changes. */
static void prepare6(int fd, const struct row *row)
{
	union value value;
	struct row first = { .level = IPPROTO_IPV6, .number = MCAST_JOIN_GROUP };
	memset(&value, 0, sizeof value);
	if (row->number == MCAST_LEAVE_SOURCE_GROUP)
		first.number = MCAST_JOIN_SOURCE_GROUP;
	else if (row->number == IPV6_DROP_MEMBERSHIP)
		first.number = IPV6_ADD_MEMBERSHIP;
	else if (row->number < MCAST_BLOCK_SOURCE || row->number > MCAST_MSFILTER || row->number == MCAST_JOIN_SOURCE_GROUP)
		return;
	setsockopt(fd, IPPROTO_IPV6, first.number, &value, special6(&first, &value));
	if (row->number == MCAST_UNBLOCK_SOURCE) {
		first.number = MCAST_BLOCK_SOURCE;
		setsockopt(fd, IPPROTO_IPV6, first.number, &value, special6(&first, &value));
	}
}

/* What an option needs before it. */
static void prepare(int fd, const struct row *row)
{
	struct in_addr group = at(GROUP, 0).sin_addr, host = at(HOST, 0).sin_addr, peer = at(PEER, 0).sin_addr;
	struct ip_mreq all = { group, host };
	struct ip_mreq_source one = { group, host, peer };
	if (row->level == IPPROTO_IPV6)
		prepare6(fd, row);
	if (row->level != IPPROTO_IP)
		return;
	switch (row->number) {
	case IP_UNBLOCK_SOURCE: case MCAST_UNBLOCK_SOURCE:
		setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &all, sizeof all);
		setsockopt(fd, IPPROTO_IP, IP_BLOCK_SOURCE, &one, sizeof one);
		break;
	case IP_DROP_SOURCE_MEMBERSHIP: case MCAST_LEAVE_SOURCE_GROUP:
		setsockopt(fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &one, sizeof one);
		break;
	case IP_DROP_MEMBERSHIP: case IP_BLOCK_SOURCE: case IP_MSFILTER:
	case MCAST_LEAVE_GROUP: case MCAST_BLOCK_SOURCE: case MCAST_MSFILTER:
		setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &all, sizeof all);
	}
}

/* The result as text. */
static const char *outcome(int result)
{
	return result < 0 ? error_name(errno) : "taken";
}

static int read_shown(int fd, const struct row *row, const char *when, socklen_t length)
{
	unsigned char bytes[512];
	char text[100] = "";
	memset(bytes, 0xee, sizeof bytes);
	int result = getsockopt(fd, row->level, row->number, bytes, &length);
	/* Which congestion control is the default is the machine's choice. */
	bool is_choice = row->level == IPPROTO_TCP && row->number == TCP_CONGESTION && strcmp(when, "default") == 0;
	bool shown = row->kind != 'V' && row->kind != 'Q' && !is_choice;
	for (socklen_t i = 0; shown && result == 0 && i < length && i < 32; i++)
		sprintf(text + strlen(text), " %02x", bytes[i]);
	line("  %s: %s, length %d%s", when, result < 0 ? error_name(errno) : "read", (int)length, text);
	return result;
}

static int set_shown(int fd, const struct row *row, const char *when, long length)
{
	union value value;
	socklen_t all = build(row, &value);
	int result = setsockopt(fd, row->level, row->number, &value, length < 0 ? all : (socklen_t)length);
	line("  %s: %s", when, outcome(result));
	return result;
}

/* Of a socket that has the option. */
static int domain(const struct row *row)
{
	return row->level == IPPROTO_IPV6 ? AF_INET6 : AF_INET;
}

/* A socket of the row's family at the prober's port 5000. */
static int datagrams_of(const struct row *row)
{
	struct sockaddr_in6 own, peer;
	if (domain(row) == AF_INET) {
		int fd = udp_at(HOST, 5000);
		must("connect", connect(fd, ADDRESS(PEER, 6000)));
		return fd;
	}
	store6(&own, "::ffff:" HOST);
	store6(&peer, "::ffff:" PEER);
	own.sin6_port = htons(5000), peer.sin6_port = htons(6000);
	int fd = socket(AF_INET6, SOCK_DGRAM, 0);
	must("bind", bind(fd, (struct sockaddr *)&own, sizeof own));
	must("connect", connect(fd, (struct sockaddr *)&peer, sizeof peer));
	return fd;
}

static int connect_to_peer(int fd, const struct row *row)
{
	struct sockaddr_in6 peer;
	if (domain(row) == AF_INET)
		return connect(fd, ADDRESS(PEER, 6000));
	store6(&peer, "::ffff:" PEER);
	peer.sin6_port = htons(6000);
	return connect(fd, (struct sockaddr *)&peer, sizeof peer);
}

static stream stream_of(const struct row *row)
{
	if (domain(row) == AF_INET)
		return connected();
	int door = peer_listen(PEER, 6000, 5), fd = socket(AF_INET6, SOCK_STREAM, 0);
	must("connect", connect_to_peer(fd, row));
	return (stream){ fd, peer_accept(door) };
}

/* Before anything else; other lengths. True if it can be set, and if it can be read. */
static void fresh(int type, const struct row *row, bool *settable, bool *readable)
{
	static const int lengths[] = { 0, 1, 3, 5 };
	int fd = socket(domain(row), type, 0);
	must("socket", fd);
	*readable = read_shown(fd, row, "default", 256) == 0;
	prepare(fd, row);
	*settable = set_shown(fd, row, "set", -1) == 0;
	*readable |= read_shown(fd, row, "read back", 256) == 0;
	read_shown(fd, row, "read 1", 1);
	read_shown(fd, row, "read 0", 0);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
		set_shown(fd, row, "set with another length", lengths[i]);
	close(fd);
}

/* A program asks for so much, and does not wait for ever. */
static void hear(int fd)
{
	struct pollfd wait = { fd, POLLIN, 0 };
	poll(&wait, 1, 300);
	recv(fd, room, 100, MSG_DONTWAIT);
}

/* Tells the options of IPv6 that are named as those of IPv4. */
static const char *prefix(const struct row *row)
{
	return row->level == IPPROTO_IPV6 && strncmp(row->name, "IPV6", 4) != 0 ? "IPV6_" : "";
}

static void told(const char *protocol, const struct row *row, bool settable, bool readable, long packets)
{
	fflush(stdout);
	fprintf(stderr, "@ %s %s%s %d %d %ld\n", protocol, prefix(row), row->name, settable, readable, packets);
}

/* Each option is a case of its own in the transcript, so that all that differ are told. */
static void begin(const char *protocol, const struct row *row)
{
	static char name[80];
	snprintf(name, sizeof name, "%s_%s%s", protocol, prefix(row), row->name);
	case_name = name;
	line("value %d", row->value);
}

static void of_udp(void)
{
	int there = peer_open(PEER, 6000);
	for (const struct row *row = rows; row < rows + ROWS; row++) {
		bool settable, readable;
		begin("udp", row);
		fresh(SOCK_DGRAM, row, &settable, &readable);
		int fd = datagrams_of(row);
		prepare(fd, row);
		settable |= set_shown(fd, row, "set", -1) == 0;
		readable |= read_shown(fd, row, "read back", 256) == 0;
		long before = kernel_datagrams();
		bool sent = send(fd, "out", 3, 0) == 3;
		line("  send: %d", sent);
		if (sent)
			peer_hears(there);
		peer_say(there, 5000, "in");
		hear(fd);
		told("udp", row, settable, readable, kernel_datagrams() - before);
		close(fd);
	}
	peer_close(there);
}

static bool is_repair(const struct row *row)
{
	return row->level == IPPROTO_TCP && row->number == TCP_REPAIR;
}

static void talk(int fd, int there)
{
	line("  send: %d", send(fd, "from here", 9, MSG_DONTWAIT) == 9);
	peer_writes(there, "from there");
	hear(fd);
}

static void of_tcp(void)
{
	for (const struct row *row = rows; row < rows + ROWS; row++) {
		bool settable, readable;
		begin("tcp", row);
		fresh(SOCK_STREAM, row, &settable, &readable);
		bool early = settable && !is_repair(row);
		stream on = stream_of(row);
		prepare(on.fd, row);
		until_quiet();
		long before = kernel_segments();
		bool live = set_shown(on.fd, row, "set", -1) == 0;
		readable |= read_shown(on.fd, row, "read back", 256) == 0;
		if (!is_repair(row))
			talk(on.fd, on.there);
		long packets = kernel_segments() - before;
		close(on.fd);
		peer_forget();
		if (early && !live) {
			/* Refused by a connection: set before there is one. */
			until_quiet();
			before = kernel_segments();
			int door = peer_listen(PEER, 6000, 5), fd = socket(domain(row), SOCK_STREAM, 0);
			set_shown(fd, row, "set", -1);
			line("  connect: %d", connect_to_peer(fd, row));
			line("  send: %d", send(fd, "from here", 9, 0) == 9);
			int there = peer_accept(door);
			peer_writes(there, "from there");
			hear(fd);
			packets += kernel_segments() - before;
			close(fd);
			peer_forget();
		}
		told("tcp", row, settable || live, readable, packets);
	}
}

/* Numbers of the levels that the table does not have. What iptables has at its level is not a socket's. */
static void others(void)
{
	static const struct { int level, last; } levels[] = {
		{ SOL_SOCKET, 127 }, { IPPROTO_IP, 63 }, { IPPROTO_IPV6, 63 }, { IPPROTO_UDP, 127 }, { IPPROTO_TCP, 127 } };
	static const int types[] = { SOCK_DGRAM, SOCK_STREAM };
	for (size_t at = 0; at < 2 * (sizeof levels / sizeof *levels); at++) {
		int level = levels[at / 2].level, one = 1;
		int fd = socket(level == IPPROTO_IPV6 ? AF_INET6 : AF_INET, types[at & 1], 0);
		for (int number = 1; number <= levels[at / 2].last; number++) {
			bool known = false;
			for (size_t i = 0; i < ROWS; i++)
				known |= rows[i].level == level && rows[i].number == number;
			if (known)
				continue;
			socklen_t length = sizeof one;
			bool is_unknown = setsockopt(fd, level, number, &one, 4) < 0
				&& (errno == ENOPROTOOPT || errno == EOPNOTSUPP)
				&& getsockopt(fd, level, number, &one, &length) < 0
				&& (errno == ENOPROTOOPT || errno == EOPNOTSUPP);
			if (!is_unknown)
				line("  not in the table: level %d, number %d", level, number);
		}
		close(fd);
	}
}

const probe_case option_table_cases[] = {
	{ "of_udp", of_udp, true },
	{ "of_tcp", of_tcp, true, STREAMS_SHARED },
	{ "others", others, false },
	{ NULL, NULL, false },
};
