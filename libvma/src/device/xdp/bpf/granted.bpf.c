// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The programs of a ring that the daemon grants to a process without privileges: the steering program (ingress.bpf.c),
// here for sockets that the process has shown only, and the way out.
//
// The process writes frames to a TAP of its own, which the daemon has made, and `vma_outlet` stands at the TAP's tc ingress
// hook. A frame goes on to the interface if it is one that the process could have the kernel send: from the
// interface's MAC address, by UDP, from an address and port that a socket which it has shown is bound to now, and no longer than the
// interface's MTU. Everything else is dropped. The maps are the daemon's; the process cannot write to them. Without
// the daemon nobody watches the host's addresses: then all is dropped.

#define GRANTED
#include "ingress.bpf.c"

static long (*csum_level)(struct __sk_buff *skb, __u64 what) = (void *)BPF_FUNC_csum_level;
static long (*tail_call)(void *skb, void *programs, __u32 number) = (void *)BPF_FUNC_tail_call;

// Of an Ethernet and an IPv4 header.
#define BOTH_HEADERS (14 + 20)

// Which of `sockets` has an address and port (port << 32, protocol << 48): what may stand as a frame's source.
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

// Is the socket at a place bound to that address and port?
static __attribute__((always_inline)) int has(__u64 place, __u32 address, __u16 port)
{
	struct bpf_sock *socket = map_lookup(&sockets, &place);
	if (!socket)
		return 0;
	__u32 bound = socket->src_ip4;
	int is = socket->src_port == __builtin_bswap16(port) && (!bound || bound == address);
	sk_release(socket);
	return is;
}

// Is there a socket that the process has shown, and is it bound to that address and port still?
static __attribute__((always_inline)) int is_bound(__u32 address, __u16 port)
{
	__u64 source = address | (__u64)port << 32 | (__u64)IPPROTO_UDP << 48;
	__u64 number = (port ^ port >> 8) % SENDERS;
	__u64 zero = 0;
	const __u64 *current = map_lookup(&epoch, &zero);
	struct sender *known = map_lookup(&senders, &number);
	if (!current || !known)
		return 0;
	// Read before the table.
	__u64 now = *(const volatile __u64 *)current;
	if (known->source == source && known->epoch == now && has(known->place, address, port))
		return 1;
	source |= now >> 48;
	const __u32 *place = map_lookup(&sources, &source);
	if (!place || !has(*place, address, port))
		return 0;
	known->epoch = VOID;
	barrier();
	known->source = source;
	known->place = *place;
	barrier();
	known->epoch = now;
	return 1;
}

// May the frame go, by its addresses?
static __attribute__((always_inline)) int is_allowed(const struct ethernet_header *eth, const void *end,
						     const struct way *way)
{
	const __u16 *want = (const __u16 *)way->mac;
	const __u16 *have = (const __u16 *)eth->source;
	if (want[0] != have[0] || want[1] != have[1] || want[2] != have[2])
		return 0;
	const struct ipv4_header *ip = (const void *)(eth + 1);
	if (eth->type != __builtin_bswap16(0x0800) || ip->version_and_length != 0x45 || ip->protocol != IPPROTO_UDP)
		return 0;
	// Whose port a later fragment is of nobody knows, and the receiver puts it to whatever datagram has its number.
	if (ip->fragment & __builtin_bswap16(0x3fff))
		return 0;
	const struct ports *ports = (const void *)(ip + 1);
	return (const void *)(ports + 1) <= end && is_bound(ip->saddr, ports->sport);
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
	if (skb->data + BOTH_HEADERS > skb->data_end && skb_pull_data(skb, len < BOTH_HEADERS + 8 ? len : BOTH_HEADERS + 8))
		return DROP;
	const void *data = (const void *)(long)skb->data;
	const void *end = (const void *)(long)skb->data_end;
	if (data + BOTH_HEADERS > end)
		return DROP;
	const struct ethernet_header *eth = data;
	const struct ipv4_header *ip = (const void *)(eth + 1);
	// The tag of a VLAN is not among the bytes any more; a train would be cut behind this program.
	if (!skb->vlan_present && !skb->gso_segs && !skb->gso_size && !is_to_be_summed(skb) && len - sizeof(*eth) <= way->mtu && __builtin_bswap16(ip->total_length) <= len - sizeof(*eth) &&
	    is_allowed(eth, end, way))
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
