// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Frames as they lie on the wire, and what every program of ours is made with.

#include <linux/bpf.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))

// The map format of the BPF loaders before BTF: it spares BTF, and with it load time.
struct bpf_map_def {
	unsigned int type;
	unsigned int key_size;
	unsigned int value_size;
	unsigned int max_entries;
	unsigned int map_flags;
};

static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the keys are put together for little-endian machines"
#endif

// Addresses and ports in network byte order, as they stand in the packet.
struct flow5 {
	__u64 addresses; // source, destination << 32
	__u64 ports;	 // source, destination << 16, protocol << 32
};

struct ethernet_header {
	__u8 destination[6];
	__u8 source[6];
	__u16 type;
} __attribute__((packed));

struct ipv4_header {
	__u8 version_and_length;
	__u8 tos;
	__u16 total_length;
	__u16 ident;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__u32 saddr;
	__u32 daddr;
} __attribute__((packed));

struct ipv6_header {
	__u8 version_and_class;
	__u8 class_and_label[3];
	__u16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	union {
		__u64 saddr[2];
		__u8 source[16];
	};
	__u64 daddr[2];
} __attribute__((packed));

// RFC 8200 section 4.5.
struct fragment_header {
	__u8 next_header;
	__u8 reserved;
	__u16 place; // the offset, a multiple of 8; bit 0: more follow
	__u32 ident;
};

// Of UDP and TCP alike; absent in a later fragment, which may carry less than these 4 bytes.
struct ports {
	__u16 sport;
	__u16 dport;
};

struct udp_header {
	struct ports ports;
	__u16 length;
	__u16 checksum;
};

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_FRAGMENT 44
