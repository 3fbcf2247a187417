// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The steering program at the XDP hook: hands the frames that are ours to the AF_XDP socket of their
// receive queue.

#include "flows.bpf.h"

static long (*redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;

struct bpf_map_def SEC("maps") sockets = {
	.type = BPF_MAP_TYPE_XSKMAP,
	.key_size = sizeof(__u32),
	.value_size = sizeof(__u32),
	.max_entries = 64,
};

SEC("xdp.frags")
int steer(struct xdp_md *ctx)
{
	const void *data = (const void *)(long)ctx->data;
	const void *end = (const void *)(long)ctx->data_end;
	struct ends ends;
	// XDP does not say what is a train. One shorter than the MTU passes for a datagram.
	if (judge(data, end, 0, &ends) != OURS)
		return XDP_PASS;
	return redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Dual MIT/GPL";
