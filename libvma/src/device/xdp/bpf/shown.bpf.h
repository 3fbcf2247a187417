// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Of a ring that the daemon has granted: is a frame one that the kernel would deliver to a socket of the process, as things are now?
//
// The kernel is asked for each frame whose flow is known. Nothing else would do: a socket may be closed, connected, bound to an
// interface or lose its port, and another socket may have the same port (SO_REUSEADDR, SO_REUSEPORT), at any time.
//
// Two sockets are compared by their pointers, for which loading needs CAP_PERFMON.

static struct bpf_sock *(*sk_lookup_udp)(void *skb, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns, __u64 flags) =
	(void *)BPF_FUNC_sk_lookup_udp;
static long (*sk_release)(void *socket) = (void *)BPF_FUNC_sk_release;
static long (*redirect)(__u32 interface, __u64 flags) = (void *)BPF_FUNC_redirect;

// The ends of a socket: bound to, and connected to. IPv4 addresses in the order of the wire, the own port in that of the host, as the kernel
// has them. The port of a socket of AF_INET6 has OF_IPV6 beside it, and its addresses, IPv4-mapped ones too, are folded: of two sockets
// whose keys are the same one can be marked, and the kernel serves the other.
#define AF_INET6 10
#define OF_IPV6 (1U << 16)
struct socket_key {
	__u32 address;
	__u32 port;
	__u32 peer;
	__u32 peer_port;
};

// The sockets that the process has shown. The kernel takes out what is closed. The loader gives the number of entries.
struct bpf_map_def SEC("maps") sockets = {
	.type = BPF_MAP_TYPE_SOCKMAP,
	.key_size = sizeof(__u32),
	.value_size = sizeof(__u32),
	.max_entries = 1,
};

// Where in `sockets` one is.
struct bpf_map_def SEC("maps") places = {
	.type = BPF_MAP_TYPE_HASH,
	.key_size = sizeof(struct socket_key),
	.value_size = sizeof(__u32),
	.max_entries = 65536,
	.map_flags = 1, // BPF_F_NO_PREALLOC
};

// A CPU's last finds in that table, which is cold memory. A find that is out of date does no harm: the socket at the place is compared.
#define RECENT 64
struct recent {
	struct socket_key key;
	__u64 place;
};

struct bpf_map_def SEC("maps") recent = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct recent),
	.max_entries = RECENT,
};

// Where the frames go that the process sends, and those that wake it.
struct way {
	__u8 mac[6];
	__u16 mtu;
	__u64 interface;
	__u64 tap;
	// Masks of the numbers of chunks and of slots.
	__u64 masks[2];
};

struct bpf_map_def SEC("maps") way_of = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct way),
	.max_entries = 1,
};

static __attribute__((always_inline)) int is_at(__u64 place, const struct bpf_sock *found)
{
	struct bpf_sock *shown = map_lookup(&sockets, &place);
	int is = shown == found;
	if (shown)
		sk_release(shown);
	return is;
}

// Addresses that differ in their last bytes, as those of one network do, differ in the sum. (vmad does the same: `fold` of flows.rs.)
static __attribute__((always_inline)) __u32 fold(__u32 a, __u32 b, __u32 c, __u32 d)
{
	__u32 sum = __builtin_bswap32(a);
	sum = sum * 0x9e3779b1U + __builtin_bswap32(b);
	sum = sum * 0x9e3779b1U + __builtin_bswap32(c);
	return sum * 0x9e3779b1U + __builtin_bswap32(d);
}

static __attribute__((always_inline)) int is_marked(const struct bpf_sock *found)
{
	struct socket_key key = {found->src_ip4, found->src_port, found->dst_ip4, found->dst_port};
	if (found->family == AF_INET6) {
		key.address = fold(found->src_ip6[0], found->src_ip6[1], found->src_ip6[2], found->src_ip6[3]);
		key.port |= OF_IPV6;
		// The kernel leaves the address of a former peer there.
		key.peer = 0;
		if (key.peer_port)
			key.peer = fold(found->dst_ip6[0], found->dst_ip6[1], found->dst_ip6[2], found->dst_ip6[3]);
	}
	__u64 number = (key.port ^ key.peer_port ^ key.peer_port >> 8 ^ key.peer >> 24) % RECENT;
	struct recent *recently = map_lookup(&recent, &number);
	if (!recently)
		return 0;
	if (recently->key.address == key.address && recently->key.port == key.port && recently->key.peer == key.peer &&
	    recently->key.peer_port == key.peer_port && is_at(recently->place, found))
		return 1;
	const __u32 *place = map_lookup(&places, &key);
	if (!place || !is_at(*place, found))
		return 0;
	recently->key = key;
	recently->place = *place;
	return 1;
}

static __attribute__((always_inline)) int is_shown(void *skb, const void *data, const void *end, const struct ends *ends)
{
	if (ends->protocol != IPPROTO_UDP)
		return 0;
	const struct ethernet_header *eth = data;
	struct bpf_sock_tuple tuple = {};
	__u64 size = sizeof(tuple.ipv4);
	if (eth->type == ETHERTYPE_IPV6) {
		// A datagram in pieces has another header in front of the ports, and is the kernel's already.
		const struct ipv6_header *ip = (const void *)(eth + 1);
		if ((const void *)(ip + 1) > end)
			return 0;
		// (The kernel's structure has pieces of 32 bits.)
		__builtin_memcpy(tuple.ipv6.saddr, ip->saddr, sizeof(ip->saddr));
		__builtin_memcpy(tuple.ipv6.daddr, ip->daddr, sizeof(ip->daddr));
		tuple.ipv6.sport = ends->ports;
		tuple.ipv6.dport = ends->ports >> 16;
		size = sizeof(tuple.ipv6);
	} else {
		const struct ipv4_header *ip = (const void *)(eth + 1);
		// The later pieces of a datagram have no ports: the kernel puts it together, and knows its socket then.
		if ((const void *)(ip + 1) > end || ip->fragment & __builtin_bswap16(0x3fff))
			return 0;
		tuple.ipv4.saddr = ends->saddr;
		tuple.ipv4.daddr = ends->daddr;
		tuple.ipv4.sport = ends->ports;
		tuple.ipv4.dport = ends->ports >> 16;
	}
	struct bpf_sock *found = sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return 0;
	int is = is_marked(found);
	sk_release(found);
	return is;
}

// The process writes what the steering program takes for the number of a chunk or a slot. One that is too large must not be used
// even for the moment that a processor takes to see so: with CAP_PERFMON the verifier adds no mask of its own.
#define OF_CHUNKS 0
#define OF_SLOTS 1
static __attribute__((always_inline)) __u64 bounded(__u64 number, int of)
{
	__u64 zero = 0;
	const struct way *way = map_lookup(&way_of, &zero);
	return way ? number & way->masks[of] : 0;
}

// A process without the right to a packet socket has a TAP: a frame makes its descriptor readable.
static __attribute__((always_inline)) int ring_tap(void)
{
	__u64 zero = 0;
	const struct way *way = map_lookup(&way_of, &zero);
	return way ? redirect(way->tap, 0) : 2; // TCX_DROP
}
