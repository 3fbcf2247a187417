// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Which frames of an interface are ours: what both steering programs ask.
//
// A frame is ours when an exact 5-tuple or a 3-tuple flow was installed for it; everything else, ARP
// and ICMP included, is the kernel's. A 5-tuple can also be an exception from a 3-tuple: a connection
// that came from a listener of ours and is the kernel's now. What cannot be judged is the kernel's,
// too: IP options, extension headers of IPv6 other than that of fragments, other EtherTypes, frames for another
// host's MAC address, and trains of UDP datagrams in one buffer (GSO of a local peer) where their size is not
// known: only the kernel can cut them again.
//
// The addresses of a flow of IPv6 are stand-ins, which table `stand_ins` gives: behind that look-up both families are the same.
//
// A fixed 20 or 40 byte IP header keeps every packet offset constant, so loading needs CAP_BPF and
// CAP_NET_ADMIN but not CAP_PERFMON.

#include "packet.bpf.h"

static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;

static __s64 (*csum_diff)(const void *from, __u32 from_size, const void *to, __u32 to_size, __u32 seed) =
	(void *)BPF_FUNC_csum_diff;

// All numbers on the stack have 64 bits. Without CAP_PERFMON, the verifier of Linux before 6.8 refuses a smaller one where
// it knew the range of the number before, or that it was a pointer, which it takes to be spoilt. A number that
// the compiler would put there with less passes through this. (A test of program.rs looks for such stores.)
#define as_64_bits(number) __asm__ volatile("" : "+r"(number))

#define ETHERTYPE_IPV6 __builtin_bswap16(0x86dd)
#define MMAPABLE (1 << 10) // BPF_F_MMAPABLE

struct flow3 {
	__u64 whole; // destination, port << 32, protocol << 48
};

struct datagram {
	__u64 addresses;
	__u64 ident; // protocol << 16
};

// Of IPv6, in a word of which the upper half is never 0 (hashes of the addresses, beside the identification of 32 bits).
#define OF_IPV6_DATAGRAM (1ULL << 63)
// The daemon's programs ask the kernel whose a datagram is, by the ports, which later fragments have not.
#ifdef GRANTED
#define TAKES_FRAGMENTS_OF_IPV6 0
#else
#define TAKES_FRAGMENTS_OF_IPV6 1
#endif

#define VERDICTS 64
// No epoch is that late.
#define VOID (~0ULL)
#define barrier() __asm__ volatile("" ::: "memory")

struct verdict {
	struct flow5 flow;
	__u64 epoch;
};

struct interface {
	__u8 mac[6];
	__u16 mtu;
	// Not 0: there were too many peers without a stand-in. Datagrams of IPv6 are the kernel's now, but for those of peers that a
	// flow names.
	__u64 closed_to_strangers;
};

struct bpf_map_def SEC("maps") flows5 = {
	.type = BPF_MAP_TYPE_HASH,
	.key_size = sizeof(struct flow5),
	.value_size = sizeof(__u32),
	// 100 000 connections, and their hash buckets: 2 MiB. The entries' memory follows need.
	.max_entries = 131072,
	.map_flags = 1, // BPF_F_NO_PREALLOC
};

struct bpf_map_def SEC("maps") flows3 = {
	.type = BPF_MAP_TYPE_HASH,
	.key_size = sizeof(struct flow3),
	.value_size = sizeof(__u32),
	.max_entries = 65536,
	.map_flags = 1, // BPF_F_NO_PREALLOC
};

struct ipv6_address {
	__u64 upper;
	__u64 lower;
};

// In the place of a stand-in: there is none for a peer, which is the kernel's.
#define STRANGER 0xffffffffULL

// The stand-ins of the addresses that flows of ours have, in network byte order as all addresses.
struct bpf_map_def SEC("maps") stand_ins = {
	.type = BPF_MAP_TYPE_HASH,
	.key_size = sizeof(struct ipv6_address),
	.value_size = sizeof(__u32),
	// A server's clients are not there: its flow has no source.
	.max_entries = 131072,
	.map_flags = 1, // BPF_F_NO_PREALLOC
};

// Whose the fragments of a datagram are.
#define KERNELS 0
#define OURS 1
// A later fragment came first and was taken for ours: the first one must follow it.
#define OURS_SO_FAR 2
struct bpf_map_def SEC("maps") fragments = {
	.type = BPF_MAP_TYPE_LRU_HASH,
	.key_size = sizeof(struct datagram),
	.value_size = sizeof(__u64),
	.max_entries = 4096,
};

// The flows that this CPU saw last and found ours: a look into a table above costs some 50 ns, and
// a connection needs two, because their memory is cold. One CPU alone reads and writes an entry.
struct bpf_map_def SEC("maps") verdicts = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct verdict),
	.max_entries = VERDICTS,
};

// As a verdict, of a packet of IPv6, with what table `stand_ins` has for its addresses.
struct ipv6_verdict {
	struct ipv6_address source;
	struct ipv6_address destination;
	__u64 ports; // source, destination << 16, protocol << 32
	__u64 stand_ins; // of the source, which may have none, and of the destination << 32
	__u64 epoch;
};

struct bpf_map_def SEC("maps") ipv6_verdicts = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct ipv6_verdict),
	.max_entries = VERDICTS,
};

// Counts what has ceased to be ours, and the addresses that have got a stand-in, or lost it. A verdict of an earlier epoch is void.
struct bpf_map_def SEC("maps") epoch = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(__u64),
	.max_entries = 1,
	.map_flags = MMAPABLE,
};

struct bpf_map_def SEC("maps") interface = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct interface),
	.max_entries = 1,
};

// Values of `flows5`.
#define PASSED 0
// Values of `flows3`.
#define NONE 0
#define EVERY_PEER 1
// All but some peers, whose 5-tuples say PASSED.
#define MOST_PEERS 2

// `now` is the epoch, read before the tables are. Its upper 16 bits are never used: as a part of the keys
// they keep processors that reorder loads from reading the tables first.
static __attribute__((always_inline)) int look_up(const struct flow5 *flow, __u64 now)
{
	__u64 protocol = flow->ports >> 32 | now >> 48;
	struct flow3 three = {flow->addresses >> 32 | (flow->ports & 0xffff0000) << 16 | protocol << 48};

	// Unconnected sockets are by far the more frequent case, but a connected socket on the
	// same port must win: both answers are "ours", the shard decides between them.
	const __u32 *found = map_lookup(&flows3, &three);
	__u64 whole = found ? *found : NONE;
	as_64_bits(whole);
	if (whole == EVERY_PEER)
		return 1;

	struct flow5 five = {flow->addresses, (flow->ports & 0xffffffff) | protocol << 32};
	const __u32 *exact = map_lookup(&flows5, &five);
	if (exact)
		return *exact != PASSED;
	return whole != NONE;
}

static __attribute__((always_inline)) int is_same(const struct flow5 *a, const struct flow5 *b)
{
	return a->addresses == b->addresses && a->ports == b->ports;
}

static __attribute__((always_inline)) __u64 addresses_of(const struct ipv4_header *ip)
{
	return ip->saddr | (__u64)ip->daddr << 32;
}

// The addresses, ports and protocol of a packet, by which its flow is found. An IPv6 address is a stand-in here, or 0 if it has none.
struct ends {
	__u64 saddr;
	__u64 daddr;
	__u64 protocol;
	__u64 ports; // source, destination << 16
};

static __attribute__((always_inline)) int is_ours(const struct ends *ends)
{
	struct flow5 flow = {
		.addresses = ends->saddr | ends->daddr << 32,
		.ports = ends->ports | ends->protocol << 32,
	};
	__u64 zero = 0;
	const __u64 *current = map_lookup(&epoch, &zero);
	if (!current)
		return 0;
	__u64 now = *(const volatile __u64 *)current;

	__u64 place = (__u32)(ends->saddr ^ (ends->ports & 0xffff) ^ ends->ports >> 16);
	place ^= place >> 16;
	place = (place ^ place >> 8) % VERDICTS;
	struct verdict *known = map_lookup(&verdicts, &place);
	// Never so. Asked once: without CAP_PERFMON, some kernels' verifiers reject a program that asks for the
	// same thing twice, for what a processor might speculate between.
	if (!known)
		return look_up(&flow, now);
	if (known->epoch == now && is_same(&known->flow, &flow))
		return 1;

	int ours = look_up(&flow, now);
	if (ours) {
		// Void while it is written, should another packet come in between.
		known->epoch = VOID;
		barrier();
		known->flow = flow;
		barrier();
		known->epoch = now;
	}
	return ours;
}

static __attribute__((always_inline)) int is_for_us(const struct ethernet_header *eth, const struct interface *link)
{
	if (eth->destination[0] & 1)
		return 1;
	// Compared in three pieces: the verifier wants no memcmp.
	const __u16 *want = (const __u16 *)link->mac;
	const __u16 *have = (const __u16 *)eth->destination;
	return want[0] == have[0] && want[1] == have[1] && want[2] == have[2];
}

// The stand-in of an address; 0 if it has none. (`now` as for `look_up`.)
static __attribute__((always_inline)) __u64 stand_in_of(const __u64 *address, __u64 now)
{
	struct ipv6_address key = {address[0] | now >> 48, address[1]};
	const __u32 *found = map_lookup(&stand_ins, &key);
	__u64 stand_in = found ? *found : 0;
	as_64_bits(stand_in);
	return stand_in;
}

static __attribute__((always_inline)) int is_address(const struct ipv6_address *known, const __u64 *address)
{
	return known->upper == address[0] && known->lower == address[1];
}

static __attribute__((always_inline)) void note_address(struct ipv6_address *known, const __u64 *address)
{
	known->upper = address[0];
	known->lower = address[1];
}

// As `is_ours`, of a packet of IPv6 that has these addresses; those of its `ends` are found here. An epoch ends, too, when an address
// gets a stand-in, loses it, or is left to the kernel.
static __attribute__((always_inline)) __u64 is_ours_ipv6(const __u64 *saddr, const __u64 *daddr, struct ends *ends)
{
	__u64 zero = 0;
	const __u64 *current = map_lookup(&epoch, &zero);
	if (!current)
		return 0;
	__u64 now = *(const volatile __u64 *)current;

	__u64 ports = ends->ports | ends->protocol << 32;
	__u64 place = (__u32)(saddr[1] >> 32 ^ (ports & 0xffff) ^ ports >> 16);
	place ^= place >> 16;
	place = (place ^ place >> 8) % VERDICTS;
	struct ipv6_verdict *known = map_lookup(&ipv6_verdicts, &place);
	// Never so.
	if (!known)
		return 0;
	if (known->epoch == now && known->ports == ports && is_address(&known->source, saddr) &&
	    is_address(&known->destination, daddr)) {
		__u64 source = known->stand_ins & 0xffffffff;
		__u64 destination = known->stand_ins >> 32;
		as_64_bits(source);
		as_64_bits(destination);
		ends->saddr = source;
		ends->daddr = destination;
		return 1;
	}

	ends->daddr = stand_in_of(daddr, now);
	if (!ends->daddr)
		return 0;
	ends->saddr = stand_in_of(saddr, now);
	if (ends->saddr == STRANGER)
		return 0;
	struct flow5 flow = {.addresses = ends->saddr | ends->daddr << 32, .ports = ports};
	if (!look_up(&flow, now))
		return 0;
	// Void while it is written, should another packet come in between.
	known->epoch = VOID;
	barrier();
	note_address(&known->source, saddr);
	note_address(&known->destination, daddr);
	known->ports = ports;
	known->stand_ins = flow.addresses;
	barrier();
	known->epoch = now;
	return 1;
}

// Is the checksum field that of a packet to be cut into datagrams: the sum of the pseudo-header, of all of them? `addresses` is
// the sum of its addresses. A packet that was put together otherwise (NETIF_F_GSO_FRAGLIST) is for the kernel to cut.
static __attribute__((always_inline)) int is_unfinished(const struct udp_header *udp, const void *end, __u64 addresses)
{
	if ((const void *)(udp + 1) > end)
		return 0;
	__u64 sum = addresses + __builtin_bswap16(IPPROTO_UDP) + udp->length;
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == udp->checksum;
}

static __attribute__((always_inline)) __u64 hash_of(const __u64 *address)
{
	return address[0] * 0x9e3779b97f4a7c15ULL ^ address[1];
}

// As `judge`, of a packet of IPv6. The first fragment of a datagram decides for those that follow it, as it has the ports. Where a later
// one comes before it, the kernel has the datagram: they arrive in order, as a rule. A datagram in one piece with a fragment header
// (RFC 6946) is the kernel's: the process gives it so what it cannot have itself.
static __attribute__((always_inline)) __u64 judge_ipv6(const void *data, const void *end, __u64 segment,
						       struct ends *ends)
{
	const struct ethernet_header *eth = data;
	const struct ipv6_header *ip = (const void *)(eth + 1);
	// No header of TCP is shorter, and that of a fragment is as long.
	const struct udp_header *udp = (const void *)(ip + 1);
	if ((const void *)(udp + 1) > end)
		return KERNELS;
	if (ip->version_and_class >> 4 != 6)
		return KERNELS;
	// Multicast, link-local, and what is no address of a host: the kernel answers those that it answers.
	__u8 first = ip->source[0];
	if (first == 0xff || first == 0 || (first == 0xfe && (ip->source[1] & 0xc0) == 0x80))
		return KERNELS;
	__u64 protocol = ip->next_header;
	as_64_bits(protocol);
	struct datagram datagram = {};
	if (TAKES_FRAGMENTS_OF_IPV6 && protocol == IPPROTO_FRAGMENT) {
		const struct fragment_header *piece = (const void *)udp;
		__u64 place = __builtin_bswap16(piece->place) & 0xfff9;
		as_64_bits(place);
		if (!place)
			return KERNELS;
		datagram.addresses = hash_of(ip->saddr);
		datagram.ident = piece->ident | hash_of(ip->daddr) >> 32 << 32 | OF_IPV6_DATAGRAM;
		const __u64 *known = map_lookup(&fragments, &datagram);
		__u64 owner = known ? *known : KERNELS;
		if (place > 1 && known) {
			ends->protocol = IPPROTO_UDP;
			return owner;
		}
		if (known && owner == KERNELS)
			return KERNELS;
		// Of another datagram the first one may be known, whose identification has come round: this one decides anew.
		// (A router's datagrams, which are for nobody here, take no place.)
		if (known || (place > 1 && stand_in_of(ip->daddr, 0))) {
			owner = KERNELS;
			map_update(&fragments, &datagram, &owner, 0);
		}
		if (place > 1)
			return KERNELS;
		// Without its headers the kernel refuses it (RFC 7112).
		udp++;
		if ((const void *)(udp + 1) > end)
			return KERNELS;
		protocol = piece->next_header;
		as_64_bits(protocol);
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return KERNELS;
	ends->protocol = protocol;
	ends->ports = udp->ports.sport | (__u64)udp->ports.dport << 16;
	if (!is_ours_ipv6(ip->saddr, ip->daddr, ends))
		return KERNELS;
	__u64 zero = 0;
	const struct interface *link = map_lookup(&interface, &zero);
	if (!link)
		return KERNELS;
	if (protocol == IPPROTO_UDP) {
		__u64 longest = sizeof(*ip) + (segment ? segment + 8 : __builtin_bswap16(ip->payload_length));
		// (A length of 0 is that of a jumbogram, which Linux takes for that of the packet.)
		if (longest > link->mtu || !udp->length || (!ends->saddr && link->closed_to_strangers))
			return KERNELS;
		if (segment) {
			__u64 addresses = (__u32)csum_diff(0, 0, ip->saddr, sizeof(ip->saddr) + sizeof(ip->daddr), 0);
			if (!is_unfinished(udp, end, addresses))
				return KERNELS;
		}
	}
	if (!is_for_us(eth, link))
		return KERNELS;
	if (datagram.ident) {
		__u64 owner = OURS;
		map_update(&fragments, &datagram, &owner, 0);
	}
	return OURS;
}

// Judges the frame that begins at `data`: KERNELS or OURS. If it holds several segments, each has `segment`
// bytes; 0 if that is not known. `ends` are those of one that is ours; a later fragment has no ports.
static __attribute__((always_inline)) __u64 judge(const void *data, const void *end, __u64 segment,
						  struct ends *ends)
{
	const struct ethernet_header *eth = data;
	const struct ipv4_header *ip = (const void *)(eth + 1);

	if ((const void *)(ip + 1) > end)
		return KERNELS;
	if (eth->type == ETHERTYPE_IPV6)
		return judge_ipv6(data, end, segment, ends);
	if (eth->type != __builtin_bswap16(0x0800) || ip->version_and_length != 0x45)
		return KERNELS;
	if (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_TCP)
		return KERNELS;
	// An address of 0.0.0.0/8 is a stand-in, and not to be had by IPv4.
	if (!(ip->daddr & 0xff) || !(ip->saddr & 0xff))
		return KERNELS;

	__u64 fragment = __builtin_bswap16(ip->fragment);
	as_64_bits(fragment);
	int later_fragment = (fragment & 0x1fff) != 0;
	int any_fragment = later_fragment || (fragment & 0x2000);
	struct datagram datagram = {
		.addresses = addresses_of(ip),
		.ident = ip->ident | (__u64)ip->protocol << 16,
	};

	ends->saddr = ip->saddr;
	ends->daddr = ip->daddr;
	ends->protocol = ip->protocol;
	ends->ports = 0;
	__u64 owner;
	if (later_fragment) {
		__u64 *known = map_lookup(&fragments, &datagram);
		if (known) {
			owner = *known;
		} else {
			// It overtook its first fragment. Port 0 is no flow of anybody; its key
			// stands for "some flow of ours ends at this address".
			struct flow3 address = {ip->daddr | (__u64)ip->protocol << 48};
			owner = map_lookup(&flows3, &address) ? OURS_SO_FAR : KERNELS;
			map_update(&fragments, &datagram, &owner, 0);
		}
	} else {
		const struct ports *ports = (const void *)(ip + 1);
		if ((const void *)(ports + 1) > end)
			return KERNELS;
		ends->ports = ports->sport | (__u64)ports->dport << 16;
		owner = is_ours(ends) ? OURS : KERNELS;
		if (any_fragment) {
			__u64 *known = map_lookup(&fragments, &datagram);
			if (known && *known == OURS_SO_FAR)
				owner = OURS;
			map_update(&fragments, &datagram, &owner, 0);
		}
	}
	if (owner == KERNELS)
		return KERNELS;

	__u64 zero = 0;
	struct interface *link = map_lookup(&interface, &zero);
	if (!link)
		return KERNELS;
	// A segment that fits with an IP header only is a fragment: the guests of old hypervisors leave those to us.
	__u64 longest = segment ? segment + sizeof(*ip) + 8 : __builtin_bswap16(ip->total_length);
	if (ip->protocol == IPPROTO_UDP) {
		if (longest > link->mtu)
			return KERNELS;
		if (segment && !is_unfinished((const void *)(ip + 1), end, (__u64)ip->saddr + ip->daddr))
			return KERNELS;
	}
	return is_for_us(eth, link) ? OURS : KERNELS;
}
