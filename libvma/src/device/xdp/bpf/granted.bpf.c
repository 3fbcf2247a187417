// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The programs of a ring that the daemon grants to a process without privileges: the steering program (ingress.bpf.c),
// here for sockets that the process has shown only, and the way out.
//
// The process writes frames to a TAP of its own, which the daemon has made, and `vma_outlet` stands at the TAP's tc ingress
// hook. A frame goes on to the interface if it is one that the process could have the kernel send: from the
// interface's MAC address, by UDP, from an address and port that a socket which it has shown is bound to now, at this interface or at none, and no
// longer than the interface's MTU. Everything else is dropped. A socket stays shown when its process gives its port back and binds it
// elsewhere: so it is looked at for each frame. The maps are the daemon's; the process cannot write to them. Without
// the daemon nobody watches the host's addresses: then all is dropped.

#define GRANTED
#include "ingress.bpf.c"

static long (*csum_level)(struct __sk_buff *skb, __u64 what) = (void *)BPF_FUNC_csum_level;
static long (*tail_call)(void *skb, void *programs, __u32 number) = (void *)BPF_FUNC_tail_call;

// Of Ethernet, IP and UDP.
#define ALL_HEADERS (14 + 20 + 8)
#define ALL_HEADERS_OF_IPV6 (14 + 40 + 8)

// Which of `sockets` has an address, or its stand-in, and port (port << 32, protocol << 48): what may stand as a frame's source.
struct bpf_map_def SEC("maps") sources = {
	.type = BPF_MAP_TYPE_HASH,
	.key_size = sizeof(__u64),
	.value_size = sizeof(__u32),
	.max_entries = 65536,
	.map_flags = 1, // BPF_F_NO_PREALLOC
};

// A CPU's last finds in that table, each as of an epoch.
#define SENDERS 16
struct sender {
	__u64 source;
	__u64 epoch;
	__u64 place;
};

struct bpf_map_def SEC("maps") senders = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct sender),
	.max_entries = SENDERS,
};

// Frames that were dropped, for who looks why.
struct bpf_map_def SEC("maps") dropped = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(__u64),
	.max_entries = 1,
};

// The sender of a datagram, by its headers.
struct source {
	// An IPv4 address, or the stand-in of one of IPv6.
	__u64 name;
	__u64 port;
	// Of IPv6, as it stands in the packet; zeros of IPv4.
	struct ipv6_address address;
};

static __attribute__((always_inline)) int is_ipv6(const struct source *source)
{
	return (source->address.upper | source->address.lower) != 0;
}

// Does a socket of AF_INET6 without an IPv4 address take IPv4? One of IPv6 only may stand beside another user's of IPv4, and the
// fields of a socket do not tell. What the kernel finds for IPv4 does, among the sockets that are bound to any address: it is no socket of
// IPv6 only. Of several with the port (SO_REUSEPORT) it may be another one; if that takes both families there is no room
// for another user's of IPv4. As the frame has come by the TAP, a socket that is bound to an interface is not found: vmad grants it no IPv4.
static __attribute__((always_inline)) int takes_ipv4(void *skb, const struct bpf_sock *socket)
{
	struct bpf_sock_tuple tuple = {};
	tuple.ipv4.dport = __builtin_bswap16(socket->src_port);
	struct bpf_sock *found = sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return 0;
	// (The process that has the TAP may bind a socket to it, and a socket that is bound to ::ffff:0.0.0.0 takes IPv4 only.)
	int is_of_both = found->family == AF_INET6 && !found->bound_dev_if &&
			 !(found->src_ip6[0] | found->src_ip6[1] | found->src_ip6[2] | found->src_ip6[3]);
	int is = is_of_both || found == socket;
	sk_release(found);
	return is;
}

// Is the socket at a place bound to that address and port, and to no other interface?
static __attribute__((always_inline)) int has(void *skb, __u64 place, const struct source *source, const struct way *way)
{
	struct bpf_sock *socket = map_lookup(&sockets, &place);
	if (!socket)
		return 0;
	__u32 device = socket->bound_dev_if;
	int is = socket->src_port == __builtin_bswap16(source->port) && (!device || device == way->interface);
	if (is_ipv6(source)) {
		__u64 upper = socket->src_ip6[0] | (__u64)socket->src_ip6[1] << 32;
		__u64 lower = socket->src_ip6[2] | (__u64)socket->src_ip6[3] << 32;
		int is_any = !(upper | lower);
		is = is && socket->family == AF_INET6 &&
		     (is_any || (upper == source->address.upper && lower == source->address.lower));
	} else {
		__u32 bound = socket->src_ip4;
		is = is && (!bound || bound == source->name);
		if (is && !bound && socket->family == AF_INET6)
			is = takes_ipv4(skb, socket);
	}
	sk_release(socket);
	return is;
}

// Is there a socket that the process has shown, and is it bound to that address and port still?
static __attribute__((always_inline)) int is_bound(void *skb, const struct source *by, const struct way *way)
{
	__u64 source = by->name | by->port << 32 | (__u64)IPPROTO_UDP << 48;
	__u64 number = (by->port ^ by->port >> 8) % SENDERS;
	__u64 zero = 0;
	const __u64 *current = map_lookup(&epoch, &zero);
	struct sender *known = map_lookup(&senders, &number);
	if (!current || !known)
		return 0;
	// Read before the table.
	__u64 now = *(const volatile __u64 *)current;
	if (known->source == source && known->epoch == now && has(skb, known->place, by, way))
		return 1;
	source |= now >> 48;
	const __u32 *place = map_lookup(&sources, &source);
	if (!place || !has(skb, *place, by, way))
		return 0;
	known->epoch = VOID;
	barrier();
	known->source = source;
	known->place = *place;
	barrier();
	known->epoch = now;
	return 1;
}

// The source of a datagram of IPv4, in a packet of `len` bytes; 0 if it is none.
static __attribute__((always_inline)) int read_ipv4(const struct ipv4_header *ip, const void *end, __u64 len,
						    struct source *source)
{
	const struct ports *ports = (const void *)(ip + 1);
	if ((const void *)(ports + 1) > end || ip->version_and_length != 0x45 || ip->protocol != IPPROTO_UDP ||
	    __builtin_bswap16(ip->total_length) > len)
		return 0;
	// A later fragment has no port, and its receiver puts it to whatever datagram has the same number: no socket can be named for it.
	if (ip->fragment & __builtin_bswap16(0x3fff))
		return 0;
	// Addresses of 0.0.0.0/8 are stand-ins in the tables.
	if (!(ip->saddr & 0xff))
		return 0;
	source->name = ip->saddr;
	source->port = ports->sport;
	return 1;
}

// The same of IPv6. A header in front of that of UDP, of fragments or others, is none of those that the library writes.
static __attribute__((always_inline)) int read_ipv6(const struct ipv6_header *ip, const void *end, __u64 len,
						    struct source *source)
{
	const struct ports *ports = (const void *)(ip + 1);
	if ((const void *)(ports + 1) > end || ip->version_and_class >> 4 != 6 || ip->next_header != IPPROTO_UDP ||
	    __builtin_bswap16(ip->payload_length) + sizeof(*ip) > len)
		return 0;
	source->address.upper = ip->saddr[0];
	source->address.lower = ip->saddr[1];
	source->name = stand_in_of(ip->saddr, 0);
	source->port = ports->sport;
	return source->name != 0;
}

// May the frame go, by its addresses?
static __attribute__((always_inline)) int is_allowed(void *skb, const struct ethernet_header *eth, const void *end,
						     __u64 len, const struct way *way)
{
	const __u16 *want = (const __u16 *)way->mac;
	const __u16 *have = (const __u16 *)eth->source;
	if (want[0] != have[0] || want[1] != have[1] || want[2] != have[2])
		return 0;
	struct source source = {};
	if (eth->type == ETHERTYPE_IPV6) {
		if (!read_ipv6((const void *)(eth + 1), end, len, &source))
			return 0;
	} else if (eth->type != __builtin_bswap16(0x0800) || !read_ipv4((const void *)(eth + 1), end, len, &source)) {
		return 0;
	}
	return is_bound(skb, &source, way);
}

// Would the interface write a checksum to the frame, wherever its sender has said? Those that come by the TAP's descriptor are none of
// the kind, but vhost-net takes such from whoever may open it. The level of a frame that is to be summed is not raised.
static __attribute__((always_inline)) int is_to_be_summed(struct __sk_buff *skb)
{
	csum_level(skb, BPF_CSUM_LEVEL_INC);
	int is = csum_level(skb, BPF_CSUM_LEVEL_QUERY) < 0;
	csum_level(skb, BPF_CSUM_LEVEL_RESET);
	return is;
}

SEC("classifier")
int vma_outlet(struct __sk_buff *skb)
{
	__u64 zero = 0;
	const struct way *way = map_lookup(&way_of, &zero);
	if (!way)
		return DROP;
	__u64 len = skb->len;
	__u64 wanted = skb->protocol == ETHERTYPE_IPV6 ? ALL_HEADERS_OF_IPV6 : ALL_HEADERS;
	const void *data = (const void *)(long)skb->data;
	const void *end = (const void *)(long)skb->data_end;
	if (data + ALL_HEADERS > end || (wanted > ALL_HEADERS && data + ALL_HEADERS_OF_IPV6 > end)) {
		if (skb_pull_data(skb, len < wanted ? len : wanted))
			return DROP;
	}
	data = (const void *)(long)*(volatile __u32 *)&skb->data;
	end = (const void *)(long)*(volatile __u32 *)&skb->data_end;
	const struct ethernet_header *eth = data;
	if ((const void *)(eth + 1) > end)
		return DROP;
	len -= sizeof(*eth);
	// The tag of a VLAN is not among the bytes any more; a train would be cut behind this program.
	if (!skb->vlan_present && !skb->gso_segs && !skb->gso_size && !is_to_be_summed(skb) && len <= way->mtu &&
	    is_allowed(skb, eth, end, len, way))
		return redirect(way->interface, 0);
	__u64 *count = map_lookup(&dropped, &zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	return DROP;
}

// Holds the program above. The kernel empties such a table when no process holds a descriptor of it: the daemon is gone.
struct bpf_map_def SEC("maps") gate = {
	.type = BPF_MAP_TYPE_PROG_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(__u32),
	.max_entries = 1,
};

// The program that is attached, for as long as the TAP is there.
SEC("classifier")
int vma_gate(struct __sk_buff *skb)
{
	tail_call(skb, &gate, 0);
	return DROP;
}
