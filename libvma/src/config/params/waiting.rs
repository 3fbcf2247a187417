//! select, poll and epoll; what the completion queues of an adapter would do.

use super::Spec::{
    Latency, LowLatency7750, MemcachedInterrupt, MultiRing, Rti, UltraLatency, West29, WombatFh,
};
use super::{Kind, Param, Show, param};
use crate::config::value::{COUNT, number};

const DRIVERS: &str = "interrupts of an AF_XDP queue are moderated by the driver: ethtool -C";

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_SELECT_POLL", number(-1, 100_000_000), "100000", "Select Poll (usec)", "Polling time of select, poll and epoll_wait before they sleep; -1 for ever")
        .spec(&[(UltraLatency, "-1"), (Latency, "-1"), (West29, "100000"), (WombatFh, "0"), (MemcachedInterrupt, "0"), (LowLatency7750, "-1"), (MultiRing, "-1")]),
    param("VMA_SELECT_POLL_OS_FORCE", Kind::Flag, "0", "Select Poll OS Force", "1: the kernel's descriptors get their look with every poll: VMA_SELECT_POLL_OS_RATIO and VMA_SELECT_SKIP_OS become 1 unless they are set")
        .spec(&[(Latency, "1")]),
    param("VMA_SELECT_POLL_OS_RATIO", COUNT, "10", "Select Poll OS Ratio", "One look at the kernel's descriptors per this many polls, or after the time they take (2 us each); 0 none while polling")
        .formerly(&["VMA_SELECT_POLL_RATIO"]).show(Show::ZeroDisabled)
        .spec(&[(UltraLatency, "0"), (West29, "100"), (LowLatency7750, "0"), (MultiRing, "0")]),
    param("VMA_SELECT_SKIP_OS", COUNT, "4", "Select Skip OS", "Successful polls in a row without a look at the kernel's descriptors")
        .formerly(&["VMA_SKIP_OS_CALL"]).show(Show::ZeroDisabled)
        .spec(&[(UltraLatency, "0"), (West29, "50"), (WombatFh, "20"), (MultiRing, "0")])
        .no_meaning("VMA_SELECT_POLL_OS_RATIO counts successful polls, too, so nobody starves"),
    param("VMA_PROGRESS_ENGINE_INTERVAL", number(0, 60_000), "10", "CQ Drain Interval (msec)", "How often the internal thread drains rings that nobody polls; 0 never. In an idle program it sleeps for up to 100 ms, until something comes")
        .show(Show::ZeroLabel("CQ Drain Thread"))
        .spec(&[(UltraLatency, "0"), (Latency, "100")]),
    param("VMA_PROGRESS_ENGINE_WCE_MAX", COUNT, "10000", "CQ Drain WCE (max)", "Packets after which the internal thread gives the others a chance; 0 as 1")
        .formerly(&["VMA_CQ_DRAIN_WCE_MAX"]),
    param("VMA_CQ_MODERATION_ENABLE", Kind::Flag, "1", "CQ Interrupts Moderation", "1: one interrupt for several packets")
        .spec(&[(UltraLatency, "0"), (Latency, "0"), (MemcachedInterrupt, "0"), (Rti, "0"), (LowLatency7750, "0"), (MultiRing, "0")])
        .verbs(DRIVERS),
    param("VMA_CQ_MODERATION_COUNT", COUNT, "48", "CQ Moderation Count", "Packets that wait for an interrupt").verbs(DRIVERS),
    param("VMA_CQ_MODERATION_PERIOD_USEC", COUNT, "50", "CQ Moderation Period (usec)", "How long a packet waits for an interrupt").verbs(DRIVERS),
    param("VMA_CQ_AIM_MAX_COUNT", COUNT, "560", "CQ AIM Max Count", "Adaptive moderation: most packets that wait").verbs(DRIVERS),
    param("VMA_CQ_AIM_MAX_PERIOD_USEC", COUNT, "250", "CQ AIM Max Period (usec)", "Adaptive moderation: longest wait").verbs(DRIVERS),
    param("VMA_CQ_AIM_INTERVAL_MSEC", COUNT, "250", "CQ AIM Interval (msec)", "Adaptive moderation: how often it adapts; 0 never")
        .show(Show::ZeroLabel("CQ Adaptive Moderation")).verbs(DRIVERS),
    param("VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC", COUNT, "5000", "CQ AIM Interrupts Rate (per sec)", "Adaptive moderation: interrupts aimed at").verbs(DRIVERS),
    param("VMA_CQ_POLL_BATCH_MAX", number(1, 128), "16", "CQ Poll Batch (max)", "Completions taken at once")
        .verbs("the rings of AF_XDP are read in place, not in batches"),
    param("VMA_CQ_KEEP_QP_FULL", Kind::Flag, "1", "CQ Keeps QP Full", "1: a receive queue gets a buffer back for every one it used, if need be the same")
        .spec(&[(UltraLatency, "0"), (Latency, "0")])
        .verbs("the fill ring gets every frame that is free"),
    param("VMA_QP_COMPENSATION_LEVEL", COUNT, "256", "QP Compensation Level", "Spare buffers kept for a receive queue")
        .verbs("the fill ring gets every frame that is free"),
];
