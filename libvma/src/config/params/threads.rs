//! The internal thread, locks, memory.

use super::Spec::{Latency, LowLatency7750, MultiRing, UltraLatency};
use super::{Kind, Param, Show, param};
use crate::config::value::{Choice, choice};

const TIMERS: &[Choice] =
    &[choice(0, &["deferred"], "deferred"), choice(1, &["immediate"], "immediate")];

const THREADS: &[Choice] = &[
    choice(0, &["single"], "Single"),
    choice(1, &["spin"], "Multi spin lock"),
    choice(2, &["mutex"], "Multi mutex lock"),
    choice(3, &["yield"], "Multi more threads than cores using spin lock"),
];

const BATCHING: &[Choice] = &[
    choice(0, &["off"], "No batching buffers"),
    choice(1, &["reclaim"], "Batch and reclaim buffers"),
    choice(2, &["keep"], "Batch and don't reclaim buffers"),
];

const MEMORY: &[Choice] = &[
    choice(0, &["anon"], "Malloc"),
    choice(1, &["contig"], "Contig Pages"),
    choice(2, &["huge"], "Huge Pages"),
    choice(3, &["external"], "External"),
];

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_INTERNAL_THREAD_AFFINITY", Kind::Cpus, "-1", "Internal Thread Affinity", "CPUs of the internal thread; -1 any")
        .spec(&[(UltraLatency, "0"), (Latency, "0"), (LowLatency7750, "0x3")]),
    param("VMA_INTERNAL_THREAD_CPUSET", Kind::Text, "", "Internal Thread Cpuset", "The directory of a cpuset that the internal thread joins"),
    param("VMA_INTERNAL_THREAD_ARM_CQ", Kind::Flag, "0", "Internal Thread Arm CQ", "1: every packet wakes the internal thread, though the program polls, too; for programs that are busy elsewhere"),
    param("VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING", Kind::Choice(TIMERS), "0", "Internal Thread TCP Handling", "1: the internal thread runs TCP's timers as soon as they are due; 0: once they are late, if the program polls and so could run them"),
    param("VMA_THREAD_MODE", Kind::Choice(THREADS), "1", "Thread mode", "How threads exclude each other")
        .show(Show::Text).spec(&[(UltraLatency, "0"), (Latency, "0")])
        .no_meaning("the internal thread is always a second one; the one lock spins, then lets others run"),
    param("VMA_BUFFER_BATCHING_MODE", Kind::Choice(BATCHING), "1", "Buffer batching mode", "Whether sockets keep buffers for themselves")
        .spec(&[(LowLatency7750, "0")])
        .no_meaning("sockets keep no frames; the ring's pool is behind the same lock"),
    param("VMA_MEM_ALLOC_TYPE", Kind::Choice(MEMORY), "1", "Mem Allocate type", "The memory frames lie in")
        .formerly(&["VMA_HUGETBL"]).spec(&[(UltraLatency, "2"), (Latency, "2"), (MultiRing, "2")])
        .verbs("AF_XDP locks ordinary pages, which the kernel may make huge by itself"),
];
