//! Neighbours, links, fork, and what the manuals list last.

use super::Spec::MultiRing;
use super::{Kind, Param, Show, param};
use crate::config::value::{COUNT, Choice, choice};

const ALGORITHMS: &[Choice] = &[
    choice(-1, &["host"], "as the host"),
    choice(0, &["lwip", "reno", "newreno"], "LWIP"),
    choice(1, &["cubic"], "CUBIC"),
    choice(2, &["none"], "NONE"),
];

const KERNEL_RESOLVES: &str = "the kernel resolves neighbours, as net.ipv4.neigh says";

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_NEIGH_UC_ARP_QUATA", COUNT, "3", "Num of UC ARPs", "Unicast requests to a neighbour before one to all").no_meaning(KERNEL_RESOLVES),
    param("VMA_NEIGH_UC_ARP_DELAY_MSEC", COUNT, "10000", "UC ARP delay (msec)", "Time between those").no_meaning(KERNEL_RESOLVES),
    param("VMA_NEIGH_NUM_ERR_RETRIES", COUNT, "1", "Num of neigh restart retries", "How often a failed resolution starts again").no_meaning(KERNEL_RESOLVES),
    param("VMA_IPOIB", Kind::Flag, "1", "IPOIB support", "Offload of IP over InfiniBand").verbs("AF_XDP is for Ethernet"),
    param("VMA_SOCKETXTREME", Kind::Flag, "0", "SocketXtreme mode", "1: the program can poll for completions by the Extra API instead of receiving socket by socket")
        .formerly(&["VMA_POLL"]),
    param("VMA_BF", Kind::Flag, "1", "BF (Blue Flame)", "Doorbells that carry the work request").verbs("AF_XDP rings no doorbell of the adapter"),
    param("VMA_FORK", Kind::Flag, "1", "fork() support", "Whether ibv_fork_init() is called").verbs("with AF_XDP fork() is safe in any case"),
    param("VMA_CLOSE_ON_DUP2", Kind::Flag, "1", "close on dup2()", "0: dup2() leaves what the library knows of the number it replaces")
        .no_meaning("the number names another file afterwards, so what was known of it always goes"),
    param("VMA_DEFERRED_CLOSE", Kind::Flag, "0", "Deferred close", "1: the kernel's descriptor is closed after the library's part")
        .no_meaning("close() always ends with the kernel's descriptor, as another thread may get the number"),
    param("VMA_MTU", crate::config::value::size(0, 65535), "0", "MTU", "Most bytes of an IP packet that is sent, if that is less than the way takes; 0 as the way; at least 68")
        .show(Show::Zero("follow actual MTU")),
    param("VMA_MSS", crate::config::value::size(0, 65495), "0", "MSS", "Most bytes of a TCP segment, if that is less than fits the MTU; 0 as the MTU; at least 88")
        .show(Show::Zero("follow VMA_MTU")),
    param("VMA_TCP_CC_ALGO", Kind::Choice(ALGORITHMS), "-1", "TCP CC Algorithm", "Congestion control: 0 NewReno, 1 CUBIC, 2 none; -1 as net.ipv4.tcp_congestion_control says, CUBIC where that is neither reno nor cubic")
        .manuals("0"),
    param("VMA_RX_POLL_ON_TX_TCP", Kind::Flag, "0", "Polling Rx on Tx TCP", "1: a send call on a connection takes what has arrived first, so that acknowledgements count at once")
        .spec(&[(MultiRing, "1")]),
    param("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", Kind::Flag, "0", "Trig dummy send getsockname()", "1: getsockname() is followed by a dummy send, which keeps the way of a packet warm and puts nothing on the wire")
        .spec(&[(MultiRing, "1")]),
    param("VMA_SUPPRESS_IGMP_WARNING", Kind::Flag, "0", "Suppress IGMP ver. warning", "1: no warning that IGMP is not version 2")
        .show(Show::IfSet).no_meaning("the kernel speaks IGMP, of any version"),
];
