//! Receiving, and what is steered to us.

use super::Spec::{
    Latency, LowLatency7750, MemcachedInterrupt, MultiRing, Rti, UltraLatency, West29, WombatFh,
};
use super::{Kind, Param, Show, param};
use crate::config::value::{COUNT, Choice, choice, number, size};

const TIMESTAMPS: &[Choice] = &[
    choice(0, &["off"], "Disabled"),
    choice(1, &["raw"], "Raw"),
    choice(2, &["best"], "Best possible"),
    choice(3, &["sync"], "Sync to system time"),
    choice(4, &["ptp"], "PTP sync"),
];

const IN_CACHE: &str =
    "AF_XDP says which frames are filled only after the fact, when they are in the cache";

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_RX_BUFS", size(64, 1 << 20), "8192", "Rx Mem Bufs", "Frames for receiving, per interface (2 KiB each). The manuals' number is for the whole process")
        // 7750 stands for the default there, which is for the whole process: 204800.
        .manuals("200000").spec(&[(UltraLatency, "1024")]),
    param("VMA_RX_WRE", COUNT, "2048", "Rx QP WRE", "Of these frames, so many are posted for each receive queue: 128 to all of the queue's, rounded up to a power of two. As many packets of up to 1792 bytes (2048 in tc mode) may come before somebody polls; the fewer they are, the better they stay in the processor's caches")
        .manuals("16000").spec(&[(UltraLatency, "256"), (Latency, "256")]),
    param("VMA_RX_WRE_BATCHING", number(1, 1024), "64", "Rx QP WRE Batching", "Buffers collected before they are posted again")
        .spec(&[(UltraLatency, "4"), (Latency, "4")])
        .verbs("a free frame goes back to the fill ring with the next poll"),
    param("VMA_RX_BYTES_MIN", size(0, i32::MAX as i64), "0", "Rx Byte Min Limit", "A UDP socket queues at least so much, however little SO_RCVBUF asks for. By default it holds what the kernel's would")
        .manuals("65536"),
    param("VMA_RX_POLL", number(-1, 100_000_000), "100000", "Rx Poll Loops", "Rounds of eight polls of a blocking receive call before it sleeps; -1 for ever")
        .spec(&[(UltraLatency, "-1"), (Latency, "-1"), (West29, "1"), (WombatFh, "1"), (MemcachedInterrupt, "1"), (Rti, "-1"), (LowLatency7750, "-1"), (MultiRing, "-1")]),
    param("VMA_RX_POLL_INIT", number(-1, 100_000_000), "0", "Rx Poll Init Loops", "The same while nothing is steered to the UDP socket yet: it is not bound, or no interface is offloaded, or no group joined"),
    param("VMA_RX_UDP_POLL_OS_RATIO", COUNT, "100", "Rx UDP Poll OS Ratio", "One look at the kernel's socket per this many polls; 0 none")
        .formerly(&["VMA_RX_POLL_OS_RATIO", "VMA_RX_SKIP_OS"]).show(Show::ZeroDisabled)
        .spec(&[(UltraLatency, "0"), (West29, "100"), (WombatFh, "100")]),
    param("VMA_HW_TS_CONVERSION", Kind::Choice(TIMESTAMPS), "3", "HW TS Conversion", "How the adapter's time stamps become time of day")
        .formerly(&["VMA_RX_UDP_HW_TS_CONVERSION"]).show(Show::Digit)
        .verbs("frames come from AF_XDP without the adapter's time stamp; the time of the poll is given"),
    param("VMA_RX_POLL_YIELD", Kind::Flag, "0", "Rx Poll Yield", "1: a thread that polls lets others run between its polls; for more such threads than CPUs"),
    param("VMA_RX_PREFETCH_BYTES", size(32, 2044), "256", "Rx Prefetch Bytes", "Bytes of a frame brought into the cache when it has come")
        .no_meaning(IN_CACHE),
    param("VMA_RX_PREFETCH_BYTES_BEFORE_POLL", size(0, 2044), "0", "Rx Prefetch Bytes Before Poll", "Bytes of the next frame brought into the cache before it comes; 0 none")
        .spec(&[(UltraLatency, "256"), (Latency, "256")]).no_meaning(IN_CACHE),
    param("VMA_RX_CQ_DRAIN_RATE_NSEC", COUNT, "0", "Rx CQ Drain Rate (nsec)", "A receive call takes what has arrived this long after the last poll at the latest, though its socket has something queued; 0: only when it has not")
        .show(Show::ZeroLabel("Rx CQ Drain Rate")),
    param("VMA_GRO_STREAMS_MAX", number(0, 1 << 20), "32", "GRO max streams", "TCP connections whose answers to a batch of segments wait for its end, so that few acknowledge all; 0 none")
        .spec(&[(UltraLatency, "0"), (Latency, "0")]),
    param("VMA_TCP_3T_RULES", Kind::Flag, "0", "TCP 3T rules", "1: connections are steered by their own address and port only; fewer rules")
        .spec(&[(LowLatency7750, "1")]),
    param("VMA_UDP_3T_RULES", Kind::Flag, "0", "UDP 3T rules", "1: connected UDP sockets are steered by their own address and port only. 0, the default here, leaves the kernel what other sockets of the port get")
        .manuals("1"),
    param("VMA_ETH_MC_L2_ONLY_RULES", Kind::Flag, "0", "ETH MC L2 only rules", "1: multicast is steered by its MAC address only")
        .verbs("the steering program compares group and port at no extra cost"),
    param("VMA_MC_FORCE_FLOWTAG", Kind::Flag, "0", "Force Flowtag for MC", "1: rules for multicast carry flow tags")
        .verbs("AF_XDP has no flow tags"),
];
