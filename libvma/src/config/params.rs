//! The one table of parameters: name, kind, default, banner label, meaning.

use core::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Flag,
    Number {
        least: i64,
        most: i64,
    },
    Text,
    OneOf(&'static [&'static str]),
    /// A trace level by name or number.
    Level,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Flag => f.write_str("0 or 1"),
            Kind::Number { least, most } => write!(f, "{least} to {most}"),
            Kind::Text => f.write_str("any text"),
            Kind::OneOf(words) => write!(f, "one of {}", words.join(", ")),
            Kind::Level => {
                f.write_str("none, panic, error, warning, info, details, debug, fine, finer, all")
            }
        }
    }
}

pub struct Param {
    pub name: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    /// What the banner calls it.
    pub label: &'static str,
    pub help: &'static str,
}

const fn number(least: i64, most: i64) -> Kind {
    Kind::Number { least, most }
}

const fn param(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    label: &'static str,
    help: &'static str,
) -> Param {
    Param { name, kind, default, label, help }
}

/// Every parameter that has an effect, in the order of the banner.
#[rustfmt::skip] // a table reads as rows
pub const PARAMS: &[Param] = &[
    param("VMA_TRACELEVEL", Kind::Level, "info", "Log Level", "Verbosity; none or 0 is silent"),
    param("VMA_LOG_FILE", Kind::Text, "", "Log File", "Log to this file instead of stderr; %d is the process id"),
    param("VMA_STATS_FILE", Kind::Text, "", "Stats File", "Each socket's counters are appended here when it is closed; %d is the process id"),
    param("VMA_OFFLOADED_SOCKETS", Kind::Flag, "1", "Offloaded Sockets", "0: new sockets stay with the kernel"),
    param("VMA_XDP", Kind::Text, "auto", "XDP interfaces", "Interfaces to attach to: auto (virtual ones), all, off, or a list of names"),
    param("VMA_XDP_MODE", Kind::OneOf(&["auto", "native", "generic"]), "auto", "XDP mode", "Where the steering program runs"),
    param("VMA_LOCAL", Kind::Flag, "1", "Local", "1: processes of this host talk through shared memory, if they are the same user's and both use the library"),
    param("VMA_TX_BUFS", number(64, 1 << 20), "2048", "Tx Mem Bufs", "Frames for sending, per interface (2 KiB each)"),
    param("VMA_TX_MC_LOOPBACK", Kind::Flag, "1", "Tx MC Loopback", "Initial IP_MULTICAST_LOOP of a socket"),
    param("VMA_TX_NONBLOCKED_EAGAINS", Kind::Flag, "0", "Tx non-blocked eagains", "1: a non-blocking send that finds no frame says EAGAIN; 0: it counts a drop and says success"),
    param("VMA_RX_BUFS", number(64, 1 << 20), "8192", "Rx Mem Bufs", "Frames for receiving, per interface (2 KiB each)"),
    param("VMA_RX_POLL", number(-1, 100_000_000), "100000", "Rx Poll Loops", "Rounds of eight polls of a blocking receive call before it sleeps; -1 for ever"),
    param("VMA_RX_UDP_POLL_OS_RATIO", number(0, 1 << 31), "100", "Rx UDP Poll OS Ratio", "One look at the kernel's socket per this many polls; 0 none"),
    param("VMA_SELECT_POLL", number(-1, 100_000_000), "100000", "Select Poll (usec)", "Polling time of select, poll and epoll_wait before they sleep; -1 for ever"),
    param("VMA_SELECT_POLL_OS_RATIO", number(0, 1 << 31), "10", "Select Poll OS Ratio", "One look at the kernel's descriptors per this many polls; 0 none while polling"),
    param("VMA_PROGRESS_ENGINE_INTERVAL", number(0, 60_000), "10", "CQ Drain Interval (msec)", "How often the internal thread drains rings that nobody polls; 0 never"),
    param("VMA_INTERNAL_THREAD_AFFINITY", number(-1, 1023), "-1", "Internal Thread Affinity", "CPU of the internal thread; -1 any"),
    param("VMA_GRO_STREAMS_MAX", number(0, 1 << 20), "32", "GRO max streams", "TCP connections whose answers to a batch of segments wait for its end, so that one acknowledges all; 0 none"),
    param("VMA_TCP_3T_RULES", Kind::Flag, "0", "TCP 3T rules", "1: connections are steered by their own address and port only; fewer rules"),
    param("VMA_TCP_MAX_SYN_RATE", number(0, 100_000), "0", "TCP max syn rate", "New connections per second and listener; 0 no limit"),
    param("VMA_TCP_TIMESTAMP_OPTION", number(0, 2), "2", "TCP timestamp option", "Time stamps (RFC 7323): 0 off, 1 on, 2 as net.ipv4.tcp_timestamps says"),
    param("VMA_TCP_NODELAY", Kind::Flag, "0", "TCP nodelay", "Initial TCP_NODELAY of a socket"),
    param("VMA_TCP_QUICKACK", Kind::Flag, "0", "TCP quickack", "1: every segment is acknowledged at once"),
    param("VMA_TCP_CC_ALGO", number(-1, 2), "-1", "TCP CC Algorithm", "Congestion control: 0 NewReno, 1 CUBIC, 2 none; -1 as net.ipv4.tcp_congestion_control says, CUBIC where that is neither reno nor cubic"),
    param("VMA_IO_URING", Kind::Flag, "0", "io_uring", "1: io_uring_setup() works; programs that register sockets with it are then not offloaded correctly"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_or_label_is_taken_twice() {
        for (at, param) in PARAMS.iter().enumerate() {
            for other in &PARAMS[at + 1..] {
                assert_ne!(param.name, other.name);
                assert_ne!(param.label, other.label);
            }
            assert!(param.name.starts_with("VMA_") && !param.help.is_empty());
        }
    }

    #[test]
    fn every_default_is_acceptable() {
        for param in PARAMS {
            let good = match param.kind {
                Kind::Flag => matches!(param.default, "0" | "1"),
                Kind::Number { least, most } => {
                    param.default.parse::<i64>().is_ok_and(|n| (least..=most).contains(&n))
                }
                Kind::OneOf(words) => words.contains(&param.default),
                Kind::Level => crate::log::Level::parse(param.default).is_some(),
                Kind::Text => true,
            };
            assert!(good, "{}", param.name);
        }
    }

    /// The parameters as they stand in vma(7).
    fn man_page_section() -> String {
        let escape = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
        let mut text = String::new();
        for param in PARAMS {
            let default = if param.default.is_empty() { "none" } else { param.default };
            text += &format!(
                ".TP\n.B {}\n{}.\nAccepted: {}. Default: {}.\n",
                param.name,
                escape(param.help),
                escape(&param.kind.to_string()),
                escape(default),
            );
        }
        text
    }

    /// `UPDATE=1 cargo test man_page` writes it.
    #[test]
    fn the_man_page_lists_every_parameter() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/vma.7");
        let page = std::fs::read_to_string(path).expect("docs/vma.7");
        let (head, rest) = page.split_once(".\\\" params:begin\n").expect("the first mark");
        let (section, tail) = rest.split_once(".\\\" params:end\n").expect("the second mark");
        if std::env::var_os("UPDATE").is_some() {
            let marks = (".\\\" params:begin\n", ".\\\" params:end\n");
            let page = format!("{head}{}{}{}{tail}", marks.0, man_page_section(), marks.1);
            std::fs::write(path, page).expect("docs/vma.7 is writable");
            return;
        }
        assert_eq!(section, man_page_section(), "UPDATE=1 cargo test man_page");
    }
}
