//! What earlier releases and their manuals had: shown in the banner only if set.

use super::{Kind, Param, Show, param};
use crate::config::value::{COUNT, Choice, choice, number};

const BLOCK: &[Choice] = &[
    choice(0, &["socket"], "as the socket"),
    choice(1, &["always"], "always block"),
    choice(2, &["never"], "never block"),
];

const DRIVERS: &[&str] = &["ANON", "HUGE", "CONTIG", "PREFER_CONTIG", "PREFER_HUGE", "ALL"];
const NO_ADAPTER: &str = "a setting of the adapter's driver";
const MEASURES: &str = "only builds that measure themselves had it";

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_TX_OFFLOAD", Kind::Flag, "1", "Tx Offload", "0: multicast is sent by the kernel, as by the rules `use os udp_sender 224.0.0.0/4:*` and `use os udp_sender [ff00::]/8:*`").show(Show::IfSet),
    param("VMA_RX_OFFLOAD", Kind::Flag, "1", "Rx Offload", "0: multicast is received by the kernel, as by the rules `use os udp_receiver 224.0.0.0/4:*` and `use os udp_receiver [ff00::]/8:*`").show(Show::IfSet),
    param("VMA_TX_BLOCK", Kind::Choice(BLOCK), "0", "Tx Block Mode", "Whether a UDP send waits for a free frame: 0 as the socket is, 1 always, 2 never").show(Show::IfSet),
    param("VMA_TX_IP_CHECKSUM", Kind::Flag, "1", "Tx IP Checksum", "0: sent IP headers have no checksum")
        .formerly(&["VMA_CHECKSUM"]).show(Show::IfSet).no_meaning("a header without one would be dropped by everybody"),
    param("VMA_TX_DROP_MODE", COUNT, "0", "Tx Drop Mode", "Sent packets are dropped, to debug the library")
        .show(Show::IfSet).no_meaning("faults are put under the device by the library's own tests"),
    param("VMA_RX_SOCKET_MAX", COUNT, "512", "Rx Sock Limit", "Packets queued by a socket")
        .show(Show::IfSet).no_meaning("SO_RCVBUF and VMA_RX_BYTES_MIN count bytes"),
    param("VMA_RX_DRAIN_CQ", Kind::Flag, "0", "Rx Drain CQ", "1: every receive call takes all that has arrived")
        .show(Show::IfSet).no_meaning("a poll takes all that has arrived; VMA_RX_CQ_DRAIN_RATE_NSEC says how often"),
    param("VMA_SELECT_IB_INTR", Kind::Flag, "1", "Select IB Irq", "0: select() does without the adapter's interrupts")
        .show(Show::IfSet).no_meaning("a call that sleeps is woken by the ring's descriptor"),
    param("VMA_UC_OFFLOAD", Kind::Flag, "0", "UC Offload", "1: unicast is offloaded, too")
        .show(Show::IfSet).no_meaning("unicast is offloaded; rules in libvma.conf leave it to the kernel"),
    param("VMA_IGMP", Kind::Flag, "1", "IGMP flag", "1: the library speaks IGMP")
        .formerly(&["VMS_IGMP"]).show(Show::IfSet).no_meaning("the kernel speaks IGMP"),
    param("VMA_FORCE_QP_MC_ATTACH", Kind::Flag, "0", "QP MC Attach", "1: queue pairs join every multicast group")
        .show(Show::IfSet).verbs("AF_XDP has no queue pairs"),
    param("VMA_IPERF", Kind::Flag, "1", "", "1: special treatment of iperf's server").no_meaning("iperf needs none"),
    param("VMA_QP_LOGIC", Kind::Text, "", "", "How sockets were spread over queue pairs").no_meaning("an interface has one ring"),
    param("VMA_ERRCHECK_MUTEX", Kind::Flag, "0", "", "Locks that check themselves").no_meaning("the one lock always knows its holder"),
    param("VMA_TSO", Kind::Flag, "1", "TSO support", "Segments cut by the adapter").show(Show::IfSet)
        .no_meaning("segments as big as the ring takes are sent whenever it can"),
    param("VMA_TX_BUF_SIZE", COUNT, "0", "Tx Mem Buf size", "Bytes of a frame for sending").show(Show::IfSet)
        .no_meaning("a frame of AF_XDP has 2 KiB"),
    param("VMA_LOG_CB_FUNC_PTR", Kind::Text, "", "", "A function's address, to be called with every line")
        .no_meaning("an address out of the environment is not called"),
    param("VMA_DBG_SEND_MCPKT_COUNTER", COUNT, "0", "", "The socket() call with which a test packet was sent").no_meaning("tests bring their own packets"),
    param("VMA_DBG_SEND_MCPKT_MCGROUP", Kind::Text, "", "", "The group it was sent to").no_meaning("tests bring their own packets"),
    param("VMA_TIME_MEASURE_NUM_SAMPLES", number(0, i64::MAX), "10000", "", "Samples of a measurement").no_meaning(MEASURES),
    param("VMA_TIME_MEASURE_DUMP_FILE", Kind::Text, "", "", "The file they were written to").no_meaning(MEASURES),
    param("MLX_QP_ALLOC_TYPE", Kind::OneOf(DRIVERS), "ANON", "", "Memory of queue pairs").verbs(NO_ADAPTER),
    param("MLX_CQ_ALLOC_TYPE", Kind::OneOf(DRIVERS), "ANON", "", "Memory of completion queues").verbs(NO_ADAPTER),
    param("MLX5_TOTAL_UUARS", Kind::Text, "", "", "Doorbell registers").verbs(NO_ADAPTER),
    param("MLX5_SHUT_UP_BF", Kind::Text, "", "", "No Blue Flame").verbs(NO_ADAPTER),
];
