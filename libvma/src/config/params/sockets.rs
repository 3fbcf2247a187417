//! What a socket is born with, TCP, and what happens to calls that are not offloaded.

use super::Spec::{Latency, LowLatency7750, UltraLatency};
use super::{Kind, Param, Show, param};
use crate::config::value::{COUNT, Choice, choice, number};

const CONTROL_THREAD: &[Choice] = &[
    choice(0, &["off"], "Disabled"),
    choice(1, &["wakeup"], "Delegate TCP timers and wake up"),
    choice(2, &["timer"], "With the timer"),
];

const EXCEPTIONS: &[Choice] = &[
    choice(-2, &["exit"], "exit on failed startup"),
    choice(-1, &["debug"], "just log debug message"),
    choice(0, &["undo"], "log debug and un-offload"),
    choice(1, &["error"], "log error and un-offload"),
    choice(2, &["errno"], "log error and return error"),
    choice(3, &["abort"], "log error and abort"),
];

const EXACT: &str = "timers are exact: a thread sleeps until the next one is due";

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_OFFLOADED_SOCKETS", Kind::Flag, "1", "Offloaded Sockets", "0: new sockets stay with the kernel"),
    param("VMA_TIMER_RESOLUTION_MSEC", COUNT, "10", "Timer Resolution (msec)", "How finely the internal thread keeps time")
        .no_meaning(EXACT),
    param("VMA_TCP_TIMER_RESOLUTION_MSEC", COUNT, "100", "TCP Timer Resolution (msec)", "How finely TCP keeps time")
        .no_meaning(EXACT),
    param("VMA_TCP_CTL_THREAD", Kind::Choice(CONTROL_THREAD), "0", "TCP control thread", "Whether the internal thread does all that TCP does besides carrying data")
        .spec(&[(LowLatency7750, "2")])
        .no_meaning("the internal thread does whatever no thread of the program is doing"),
    param("VMA_TCP_TIMESTAMP_OPTION", number(0, 2), "2", "TCP timestamp option", "Time stamps (RFC 7323): 0 off, 1 on, 2 as net.ipv4.tcp_timestamps says. They are what the round-trip time is measured by, and are on unless the host's are not")
        .manuals("0"),
    param("VMA_TCP_NODELAY", Kind::Flag, "0", "TCP nodelay", "Initial TCP_NODELAY of a socket")
        .show(Show::Digit).spec(&[(UltraLatency, "1"), (Latency, "1")]),
    param("VMA_TCP_QUICKACK", Kind::Flag, "0", "TCP quickack", "1: every segment is acknowledged at once")
        .show(Show::Digit),
    param("VMA_EXCEPTION_HANDLING", Kind::Choice(EXCEPTIONS), "-1", "Exception handling mode", "A socket option that is not offloaded: -1 and 0 hand the socket to the kernel and tell the first time as a warning, then at level debug, 1 tells as an error, 2 refuses the option with EINVAL instead, 3 ends the process; -2 as -1, and ends the process if nothing can be offloaded at all"),
    param("VMA_AVOID_SYS_CALLS_ON_TCP_FD", Kind::Flag, "0", "Avoid sys-calls on tcp fd", "1: options of TCP sockets are answered without a system call")
        .spec(&[(UltraLatency, "1"), (Latency, "1"), (LowLatency7750, "1")])
        .no_meaning("options live in the kernel's twin of a socket, which must know them to take it over"),
    param("VMA_ALLOW_PRIVILEGED_SOCK_OPT", Kind::Flag, "1", "Allow privileged sock opt", "Whether options may be set that need privileges")
        .no_meaning("the kernel's own answer is given"),
    param("VMA_WAIT_AFTER_JOIN_MSEC", COUNT, "0", "Delay after join (msec)", "How long the first packet to a group waits for the subnet manager")
        .verbs("Ethernet has no subnet manager"),
];
