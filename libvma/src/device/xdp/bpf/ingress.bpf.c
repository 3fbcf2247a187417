// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The steering program at the tc ingress hook (tcx, Linux 6.6): copies the frames that are ours into
// memory that the process maps, and drops them. Where frames come in socket buffers (veth, tap) this
// is cheaper than the XDP hook, for which the kernel first copies each frame to a page, and then
// into the AF_XDP socket's memory.
//
// The memory is cut into chunks, as a UMEM is. A ring of slots stands for the fill and the RX ring of
// an AF_XDP socket. The process puts the numbers of free chunks into slots, in order, and then adds how
// many those are to `credit`. This program takes from the credit what a frame needs, reserves as many
// positions by moving `head`, and fills their slots; a slot at position p is published by a `turn` of
// p + 1. (ingress.rs is the other side.) Several processors may run this at once; the process reads the
// slots in the order of their positions.

#include "flows.bpf.h"
#ifdef GRANTED
#include "shown.bpf.h"
#endif

static long (*skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) =
	(void *)BPF_FUNC_skb_load_bytes;
static long (*skb_pull_data)(void *skb, __u32 len) = (void *)BPF_FUNC_skb_pull_data;
static long (*skb_change_proto)(void *skb, __u16 protocol, __u64 flags) = (void *)BPF_FUNC_skb_change_proto;
static long (*skb_change_type)(struct __sk_buff *skb, __u32 type) = (void *)BPF_FUNC_skb_change_type;

#define CHUNK 2048
// A frame of the largest MTU, 65535 bytes and the Ethernet header.
#define MOST_CHUNKS 33
// Ethernet, IPv4 without options, ports.
#define HEADERS (14 + 20 + 4)

// The loader replaces the numbers of entries here and below.
struct bpf_map_def SEC("maps") chunks = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = CHUNK,
	.max_entries = 1,
	.map_flags = MMAPABLE,
};

struct slot {
	__u32 turn;
	__u32 chunk;
	__u32 len;
	// Bit 0: more pieces of the same frame follow. The upper half, in the first piece of a train: the bytes
	// of each of its datagrams.
	__u32 continued;
};

struct bpf_map_def SEC("maps") slots = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct slot),
	.max_entries = 1,
	.map_flags = MMAPABLE,
};

#define LINE 64
struct control {
	// The position that is reserved next. Only this program moves it.
	__u32 head;
	// Number of slots, a power of two, less one. The process says it once.
	__u32 mask;
	// Slots with a free chunk that nobody has reserved. Below zero for a moment when two processors want
	// the last ones at once.
	__s32 credit;
	// The mark (skb->mark) of a frame that wakes the process. The process sets it once.
	__u32 mark;
	// So many threads have a bell of their own.
	__u32 own_bells;
	__u8 pad[LINE - 20];
	// Somebody sleeps until the bell rings.
	__u32 asleep;
	__u8 pad2[LINE - 4];
	// The position that the process reads next, as it was after its last look. It says so only while some
	// thread has a bell of its own.
	__u32 read;
	__u8 pad4[LINE - 4];
	// Frames that found no room.
	__u64 lost;
	__u8 pad3[LINE - 8];
};

struct bpf_map_def SEC("maps") control = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct control),
	.max_entries = 1,
	.map_flags = MMAPABLE,
};

// A thread that waits for certain connections has a bell of its own, so that no other thread is woken for them.
// `waiters` tells which thread waits for a connection, by a hash of it: the upper half of the word is a second hash,
// the lower half the number of the thread's bell. That is a hint: the thread that is woken reads all frames, and
// wakes other threads for theirs. If only this thread reads from the connection (ALONE) and it does not sleep, no
// thread is woken, because it looks at the ring before it sleeps; unless many frames wait, which means that the
// thread computes: then another one must read them, for the peer waits for acknowledgments.
#define MUCH 8
#define BELLS 32
#define ALONE (1U << 31)
#define WAITERS_BITS 12
struct bell {
	__u32 asleep;
	__u8 pad[LINE - 4];
};

struct bpf_map_def SEC("maps") bells = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(struct bell),
	.max_entries = BELLS,
	.map_flags = MMAPABLE,
};

struct bpf_map_def SEC("maps") waiters = {
	.type = BPF_MAP_TYPE_ARRAY,
	.key_size = sizeof(__u32),
	.value_size = sizeof(__u64),
	.max_entries = 1 << WAITERS_BITS,
	.map_flags = MMAPABLE,
};

#define PASS (-1) // TCX_NEXT: as if this program were not there
#define DROP 2	  // TCX_DROP
#define RING 0	  // TCX_PASS: on to whoever takes IPv4, past the programs behind this one
#define OTHER_HOST 3 // PACKET_OTHERHOST of <linux/if_packet.h>

static __attribute__((always_inline)) int lose(struct control *control)
{
	__sync_fetch_and_add(&control->lost, 1);
	return DROP;
}

static __attribute__((always_inline)) struct slot *slot_at(__u64 position, __u64 mask)
{
	__u64 key = position & mask;
	return map_lookup(&slots, &key);
}

// Copies a piece of the frame to the chunk whose number is in the slot at a position: the slot. NULL if
// there is no such chunk: the process has spoilt its memory, and the ring stands still from here.
static __attribute__((always_inline)) struct slot *
fill(struct __sk_buff *skb, __u64 position, __u64 mask, __u64 offset, __u64 size, long *failed)
{
	struct slot *slot = slot_at(position, mask);
	if (!slot)
		return 0;
	__u64 number = slot->chunk;
#ifdef GRANTED
	number = bounded(number, OF_CHUNKS);
#endif
	void *to = map_lookup(&chunks, &number);
	if (!to)
		return 0;
	*failed |= skb_load_bytes(skb, offset, to, size);
	return slot;
}

// Of a connection, for `waiters`; of a fragment that has no ports, of any.
struct connection {
	__u64 place;
	__u64 tag;
};

static __attribute__((always_inline)) struct connection connection_of(const struct ends *ends)
{
	__u32 both = ends->ports << 16 | ends->ports >> 16;
	__u32 saddr = ends->saddr, daddr = ends->daddr, protocol = ends->protocol;
	return (struct connection){
		.place = (__u32)((saddr ^ both) * 0x9e3779b1U) >> (32 - WAITERS_BITS),
		.tag = saddr + both * 0x85ebca6bU + (daddr + protocol) * 0xc2b2ae35U,
	};
}

static __attribute__((always_inline)) int ring_bell(__u64 number)
{
	struct bell *bell = map_lookup(&bells, &number);
	return bell && *(volatile __u32 *)&bell->asleep && __sync_lock_test_and_set(&bell->asleep, 0);
}

#define NOBODY (-1)
// The number of the bell that was chosen for a frame of this connection, or NOBODY.
static __attribute__((always_inline)) __s64 choose_bell(struct control *ring,
							struct connection it, __u64 position)
{
	__u64 count = *(volatile __u32 *)&ring->own_bells;
	const __u64 *waiter = count ? map_lookup(&waiters, &it.place) : 0;
	if (waiter) {
		__u64 word = *(const volatile __u64 *)waiter;
		__u64 number = word % BELLS;
		if (word >> 32 == it.tag && number) {
			if (ring_bell(number))
				return number;
			if ((__u32)word & ALONE && (__u32)(position - *(volatile __u32 *)&ring->read) < MUCH)
				return NOBODY;
		}
	}
	if (*(volatile __u32 *)&ring->asleep && __sync_lock_test_and_set(&ring->asleep, 0))
		return 0;
	// No thread guards the ring now: any sleeping thread will do.
	for (__u64 number = 1; number < BELLS; number++) {
		if (number > count)
			break;
		if (ring_bell(number))
			return number;
	}
	return NOBODY;
}

SEC("classifier")
int vma_ingress(struct __sk_buff *skb)
{
	__u64 zero = 0;
	struct control *ring = map_lookup(&control, &zero);
	if (!ring)
		return PASS;
	// The headers may lie elsewhere: bring them here. Without the memory for that nobody knows whose the
	// frame is; given to the kernel, one of ours would be answered by a reset.
	__u64 len = skb->len;
	const void *data = (const void *)(long)skb->data;
	const void *end = (const void *)(long)skb->data_end;
	// (Of IPv6 more; the bit is one of ETHERTYPE_IPV6, and none of IPv4's.)
	__u64 longer = skb->protocol & 0x80;
	__u64 wanted = HEADERS + (longer >> 2);
	if (data + HEADERS > end || (longer && data + HEADERS + 32 > end)) {
		if (skb_pull_data(skb, len < wanted ? len : wanted))
			return lose(ring);
	}
	// Read again in any case: what the verifier knows of them so far it would follow through all that comes, once for each way here.
	data = (const void *)(long)*(volatile __u32 *)&skb->data;
	end = (const void *)(long)*(volatile __u32 *)&skb->data_end;
	struct ends ends = {};
	// The tag of a VLAN is not among the bytes any more.
	__u64 segment = skb->gso_size;
	if (judge(data, end, segment, &ends) != OURS || skb->vlan_present)
		return PASS;
#ifdef GRANTED
	if (!is_shown(skb, data, end, &ends))
		return PASS;
#endif
	if (ends.protocol != IPPROTO_UDP)
		segment = 0; // TCP's need not be told apart
	// A later fragment may be shorter than that.
	struct connection connection = {};
	if (data + HEADERS <= end)
		connection = connection_of(&ends);
	as_64_bits(segment);
	as_64_bits(connection.place);
	as_64_bits(connection.tag);

	__u64 pieces = (len + CHUNK - 1) / CHUNK;
	if (pieces == 0 || pieces > MOST_CHUNKS)
		return lose(ring);

	if (*(volatile __s32 *)&ring->credit < (__s32)pieces)
		return lose(ring);
	// No position is reserved that has not been paid for: all that are hold a chunk.
	if (__sync_fetch_and_add(&ring->credit, -(__s32)pieces) < (__s32)pieces) {
		__sync_fetch_and_add(&ring->credit, pieces);
		return lose(ring);
	}
	__u64 first = __sync_fetch_and_add(&ring->head, pieces);
	__u64 mask = ring->mask;
#ifdef GRANTED
	mask = bounded(mask, OF_SLOTS);
#endif

	// All pieces but the last one fill their chunk. No slot is read before the first one of the frame,
	// which is published at the end.
	__u64 last = pieces - 1;
	__u64 rest = (len - 1) % CHUNK + 1;
	__u64 size = last > 0 ? CHUNK : rest;
	as_64_bits(size);
	long failed = 0;
	struct slot *slot = fill(skb, first, mask, 0, size, &failed);
	if (!slot)
		return DROP;
	slot->continued = (last > 0) | segment << 16;
	if (last > 0) {
		struct slot *next = fill(skb, first + last, mask, last * CHUNK, rest, &failed);
		if (!next)
			return DROP;
		next->len = rest;
		next->continued = 0;
		*(volatile __u32 *)&next->turn = first + last + 1;
	}
	// The loop comes last: whatever follows it, the verifier looks at after each turn.
	for (__u64 piece = 1; piece < MOST_CHUNKS - 1; piece++) {
		if (piece >= last)
			break;
		__u64 offset = piece * CHUNK;
		as_64_bits(offset);
		struct slot *next = fill(skb, first + piece, mask, offset, CHUNK, &failed);
		if (!next)
			return DROP;
		next->len = CHUNK;
		next->continued = 1;
		*(volatile __u32 *)&next->turn = first + piece + 1;
	}
	// A frame whose first piece is empty is none: the process drops it.
	slot->len = failed ? 0 : size;
	// Publishes all slots, before the question whether somebody sleeps.
	__sync_lock_test_and_set(&slot->turn, first + 1);

	__s64 bell = choose_bell(ring, connection, first);
	if (bell != NOBODY) {
#ifdef GRANTED
		return ring_tap();
#endif
		// The frame itself wakes the process: a packet socket of the process waits for this mark. IP drops
		// the frame as another host's, which only the interface's rx_otherhost_dropped counts. A BPF ring
		// buffer could wake the process, too, but it does so by an interrupt that the processor sends to
		// itself: in a virtual machine the most expensive step on the way of a packet.
		skb->mark = ring->mark + bell;
		// That socket takes IPv4. Nobody looks at what becomes of the headers. (A variable that says of which family the
		// frame is would have the verifier go through all of the above twice.)
		if (skb->protocol == ETHERTYPE_IPV6 && skb_change_proto(skb, __builtin_bswap16(0x0800), 0))
			return DROP;
		if (!skb_change_type(skb, OTHER_HOST))
			return RING;
	}
	return DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
