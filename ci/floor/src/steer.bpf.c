// Steers the UDP datagrams for one destination port into an AF_XDP socket.
// Everything else goes to the kernel untouched.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#define SECTION(name) __attribute__((section(name), used))

// The notation that loaders read map definitions from: the array's length is the number.
#define NUMBER(name, value) int(*name)[value]

static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;

struct {
	NUMBER(type, BPF_MAP_TYPE_XSKMAP);
	NUMBER(key_size, sizeof(__u32));
	NUMBER(value_size, sizeof(__u32));
	NUMBER(max_entries, 1);
} sockets SECTION(".maps");

// Network byte order; the loader fills it in.
const volatile __u16 port = 0;

// ".frags": the kernel may hand us frames larger than a page; without it those are
// dropped in generic mode, and a large MTU refuses native mode.
SECTION("xdp.frags")
int steer(struct xdp_md *context)
{
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = (void *)(long)context->data;
	struct iphdr *ip = (void *)(ethernet + 1);
	struct udphdr *udp = (void *)(ip + 1); // an IP header with options fails the check below

	if ((void *)(udp + 1) > end)
		return XDP_PASS;
	if (ethernet->h_proto != __builtin_bswap16(ETH_P_IP))
		return XDP_PASS;
	if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	if (ip->frag_off & __builtin_bswap16(0x3fff)) // more fragments, or a later one
		return XDP_PASS;
	if (udp->dest != port)
		return XDP_PASS;
	return bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}

char terms[] SECTION("license") = "Dual MIT/GPL";
