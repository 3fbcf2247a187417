//! Sending.

use super::Spec::{Latency, LowLatency7750, UltraLatency};
use super::{Kind, Param, param};
use crate::config::value::{COUNT, number, size};

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_TX_SEGS_TCP", COUNT, "1000000", "Tx Mem Segs TCP", "TCP segments of the process")
        .spec(&[(UltraLatency, "512")])
        .no_meaning("a connection keeps bytes, not segments; SO_SNDBUF and net.ipv4.tcp_wmem bound them"),
    param("VMA_TX_BUFS", size(64, 1 << 20), "2048", "Tx Mem Bufs", "Frames for sending, per interface (2 KiB each). The manuals' number is for the whole process")
        .manuals("200000").spec(&[(UltraLatency, "512"), (LowLatency7750, "8192")]),
    param("VMA_TX_WRE", COUNT, "2048", "Tx QP WRE", "Work requests of a send queue")
        .spec(&[(UltraLatency, "256"), (Latency, "256")])
        .verbs("an AF_XDP ring is as long as VMA_TX_BUFS says"),
    param("VMA_TX_WRE_BATCHING", number(1, 64), "64", "Tx QP WRE Batching", "Work requests per requested completion")
        .spec(&[(UltraLatency, "4"), (Latency, "4")])
        .verbs("AF_XDP completes every frame"),
    param("VMA_TX_MAX_INLINE", Kind::Clamped { least: 0, most: 884 }, "204", "Tx Max QP INLINE", "Bytes that go inside the work request; 0 none")
        .formerly(&["VMA_MAX_INLINE"]).manuals("220")
        .verbs("descriptors of AF_XDP carry no payload"),
    param("VMA_TX_MC_LOOPBACK", Kind::Flag, "1", "Tx MC Loopback", "Initial IP_MULTICAST_LOOP and IPV6_MULTICAST_LOOP of a socket"),
    param("VMA_TX_NONBLOCKED_EAGAINS", Kind::Flag, "0", "Tx non-blocked eagains", "1: a non-blocking send that finds no frame says EAGAIN; 0: it counts a drop and says success"),
    param("VMA_TX_PREFETCH_BYTES", size(0, 65536), "256", "Tx Prefetch Bytes", "Bytes of the frame brought into the cache before they are written; 0 none")
        .no_meaning("the payload is copied once, by instructions that write whole cache lines"),
];
