// SPDX-License-Identifier: MIT OR Apache-2.0
//
// At the tc ingress hook, for a moment: has the kernel's listener take connections that were established without
// the kernel, and that nobody has accepted. The segment that ended such a handshake is put into the kernel again;
// for it this program gives the answer that a SYN cookie would (bpf_sk_assign_tcp_reqsk(), Linux 6.9).
//
// That segment comes by `lo`: where a packet socket is bound to IPv4, as those that wake our threads are, TCP gets a
// copy of the socket buffer, which has lost what this program gave it. At the interface by which the peer's own segments
// come it only keeps those from the kernel that come too early; the peer sends them again.

#include "packet.bpf.h"

static long (*skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) =
	(void *)BPF_FUNC_skb_load_bytes;
static struct bpf_sock *(*sk_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns,
					 __u64 flags) = (void *)BPF_FUNC_sk_lookup_tcp;
static long (*sk_release)(void *socket) = (void *)BPF_FUNC_sk_release;

// struct bpf_tcp_req_attrs of the kernel.
struct attributes {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

// A function of the kernel's without a fixed number: the loader replaces this one.
static int (*assign_tcp_reqsk)(void *skb, void *listener, struct attributes *attributes, int size) = (void *)0x7fffffff;

struct connection {
	struct attributes attributes;
	// Of the first byte that the peer has sent, in network byte order.
	__u32 first;
};

struct bpf_map_def SEC("maps") connections = {
	.type = BPF_MAP_TYPE_HASH,
	.key_size = sizeof(struct flow5),
	.value_size = sizeof(struct connection),
	.max_entries = 8192,
	.map_flags = 1, // BPF_F_NO_PREALLOC
};

// Addresses and ports as they stand in a packet of IPv6, and in `struct bpf_sock_tuple`.
struct ends_of_ipv6 {
	__u8 bytes[36];
};

struct bpf_map_def SEC("maps") connections_of_ipv6 = {
	.type = BPF_MAP_TYPE_HASH,
	.key_size = sizeof(struct ends_of_ipv6),
	.value_size = sizeof(struct connection),
	.max_entries = 8192,
	.map_flags = 1, // BPF_F_NO_PREALLOC
};

struct tcp_header {
	__u16 sport;
	__u16 dport;
	__u32 sequence;
} __attribute__((packed));

struct frame {
	struct ethernet_header eth;
	struct ipv4_header ip;
	struct tcp_header tcp;
} __attribute__((packed));

// Of a segment of IPv6, from its addresses on.
struct segment_of_ipv6 {
	struct ends_of_ipv6 ends;
	__u32 sequence;
};

#define ENDS_OF_IPV6 (sizeof(struct ethernet_header) + 8)

#define PASS (-1) // TCX_NEXT
#define DROP 2	  // TCX_DROP
#define LISTEN 10 // BPF_TCP_LISTEN
#define LOOPBACK 1 // The kernel's LOOPBACK_IFINDEX

// The verdict about a segment with this sequence number, of a connection that the kernel is to have.
static __attribute__((always_inline)) int judge(struct __sk_buff *skb, const struct connection *connection,
						struct bpf_sock_tuple *tuple, __u32 size, __u32 sequence)
{
	struct bpf_sock *found = sk_lookup_tcp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return PASS;
	int verdict = PASS;
	// Else the kernel has it already.
	if (found->state == LISTEN) {
		struct attributes attributes = connection->attributes;
		if (skb->ifindex != LOOPBACK || sequence != connection->first)
			verdict = DROP;
		else
			assign_tcp_reqsk(skb, found, &attributes, sizeof(attributes));
	}
	sk_release(found);
	return verdict;
}

// The header has no extensions behind it.
static __attribute__((always_inline)) int judge_ipv6(struct __sk_buff *skb)
{
	struct segment_of_ipv6 segment;
	if (skb_load_bytes(skb, ENDS_OF_IPV6, &segment, sizeof(segment)))
		return PASS;
	const struct connection *connection = map_lookup(&connections_of_ipv6, &segment.ends);
	if (!connection)
		return PASS;
	struct bpf_sock_tuple *tuple = (struct bpf_sock_tuple *)&segment.ends;
	return judge(skb, connection, tuple, sizeof(tuple->ipv6), segment.sequence);
}

SEC("classifier")
int establish(struct __sk_buff *skb)
{
	struct frame frame;
	if (skb_load_bytes(skb, 0, &frame, sizeof(frame)))
		return PASS;
	if (frame.eth.type == __builtin_bswap16(0x86dd)) {
		const struct ipv6_header *ip = (const void *)&frame.ip;
		return ip->next_header == IPPROTO_TCP ? judge_ipv6(skb) : PASS;
	}
	if (frame.eth.type != __builtin_bswap16(0x0800) || frame.ip.version_and_length != 0x45 ||
	    frame.ip.protocol != IPPROTO_TCP || frame.ip.fragment & __builtin_bswap16(0x3fff))
		return PASS;
	struct flow5 flow = {
		frame.ip.saddr | (__u64)frame.ip.daddr << 32,
		frame.tcp.sport | (__u64)frame.tcp.dport << 16 | (__u64)IPPROTO_TCP << 32,
	};
	const struct connection *connection = map_lookup(&connections, &flow);
	if (!connection)
		return PASS;
	struct bpf_sock_tuple tuple = {};
	tuple.ipv4.saddr = frame.ip.saddr;
	tuple.ipv4.daddr = frame.ip.daddr;
	tuple.ipv4.sport = frame.tcp.sport;
	tuple.ipv4.dport = frame.tcp.dport;
	return judge(skb, connection, &tuple, sizeof(tuple.ipv4), frame.tcp.sequence);
}

char _license[] SEC("license") = "Dual MIT/GPL";
