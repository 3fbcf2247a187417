//! Configuration: what the environment says, checked once, as plain values.
//!
//! `params` is the one table of parameters; everything that names one derives from it.

pub mod params;

use crate::log::{Level, log_line};
use params::{Kind, PARAMS, Param};

/// Which interfaces a process may attach a program to by itself (`VMA_XDP`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpInterfaces {
    Off,
    /// Virtual ones only: attaching to a physical one has side effects that need a word from the
    /// administrator.
    Auto,
    All,
    Named(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    Auto,
    Native,
    Generic,
}

/// The values in force.
#[derive(Clone, Debug)]
pub struct Config {
    pub trace_level: Level,
    pub log_file: String,
    pub stats_file: String,
    pub offloaded_sockets: bool,
    /// Other processes of this host are reached through shared memory.
    pub local: bool,
    pub xdp: XdpInterfaces,
    pub xdp_mode: XdpMode,
    /// Unsuccessful polls before a blocking receive call sleeps; -1 for ever.
    pub rx_poll: i64,
    /// One look at the kernel's twin of a socket per this many polls; 0 never.
    pub rx_udp_poll_os_ratio: u64,
    /// Microseconds of polling in select, poll and epoll_wait; -1 for ever.
    pub select_poll: i64,
    pub select_poll_os_ratio: u64,
    pub rx_bufs: u32,
    pub tx_bufs: u32,
    pub tx_mc_loopback: bool,
    pub tx_nonblocked_eagains: bool,
    pub internal_thread_affinity: i64,
    pub progress_interval_msec: u64,
    pub io_uring: bool,
    /// Connections whose answers wait for the end of a batch; 0 none.
    pub gro_streams: usize,
    /// Steer a connection by its own port only, not by the peer's address, too.
    pub tcp_3t_rules: bool,
    /// New connections per second and listener; 0 is no limit.
    pub tcp_max_syn_rate: u32,
    /// 0 off, 1 on, 2 as the host has it.
    pub tcp_timestamps: u8,
    pub tcp_nodelay: bool,
    pub tcp_quickack: bool,
    /// None: the host's.
    pub tcp_congestion: Option<u64>,
}

impl Config {
    /// Reads every parameter through `lookup`. A bad value is reported once and its default taken.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Config {
        let value = |name: &str| -> String {
            let Some(param) = PARAMS.iter().find(|param| param.name == name) else {
                return String::new();
            };
            checked(param, lookup(name))
        };
        let number = |name: &str| value(name).parse::<i64>().unwrap_or(0);
        let flag = |name: &str| number(name) != 0;
        Config {
            trace_level: Level::parse(&value("VMA_TRACELEVEL")).unwrap_or(Level::Info),
            log_file: value("VMA_LOG_FILE"),
            stats_file: value("VMA_STATS_FILE"),
            offloaded_sockets: flag("VMA_OFFLOADED_SOCKETS"),
            local: flag("VMA_LOCAL"),
            xdp: match value("VMA_XDP").as_str() {
                "off" | "0" => XdpInterfaces::Off,
                "auto" | "" => XdpInterfaces::Auto,
                "all" => XdpInterfaces::All,
                names => XdpInterfaces::Named(names.split(',').map(|n| n.trim().into()).collect()),
            },
            xdp_mode: match value("VMA_XDP_MODE").as_str() {
                "native" => XdpMode::Native,
                "generic" => XdpMode::Generic,
                _ => XdpMode::Auto,
            },
            rx_poll: number("VMA_RX_POLL"),
            rx_udp_poll_os_ratio: number("VMA_RX_UDP_POLL_OS_RATIO").unsigned_abs(),
            select_poll: number("VMA_SELECT_POLL"),
            select_poll_os_ratio: number("VMA_SELECT_POLL_OS_RATIO").unsigned_abs(),
            rx_bufs: number("VMA_RX_BUFS") as u32,
            tx_bufs: number("VMA_TX_BUFS") as u32,
            tx_mc_loopback: flag("VMA_TX_MC_LOOPBACK"),
            tx_nonblocked_eagains: flag("VMA_TX_NONBLOCKED_EAGAINS"),
            internal_thread_affinity: number("VMA_INTERNAL_THREAD_AFFINITY"),
            progress_interval_msec: number("VMA_PROGRESS_ENGINE_INTERVAL").unsigned_abs(),
            io_uring: flag("VMA_IO_URING"),
            gro_streams: number("VMA_GRO_STREAMS_MAX") as usize,
            tcp_3t_rules: flag("VMA_TCP_3T_RULES"),
            tcp_max_syn_rate: number("VMA_TCP_MAX_SYN_RATE") as u32,
            tcp_timestamps: number("VMA_TCP_TIMESTAMP_OPTION") as u8,
            tcp_nodelay: flag("VMA_TCP_NODELAY"),
            tcp_quickack: flag("VMA_TCP_QUICKACK"),
            tcp_congestion: u64::try_from(number("VMA_TCP_CC_ALGO")).ok(),
        }
    }
}

/// The value to use: what was said if it is acceptable, else the default.
fn checked(param: &Param, said: Option<String>) -> String {
    let Some(said) = said else { return param.default.into() };
    let text = said.trim();
    let good = match param.kind {
        Kind::Text => return said,
        Kind::Flag => matches!(text, "0" | "1"),
        Kind::Number { least, most } => {
            text.parse::<i64>().is_ok_and(|number| (least..=most).contains(&number))
        }
        Kind::OneOf(words) => {
            let lower = text.to_ascii_lowercase();
            if words.contains(&lower.as_str()) {
                return lower;
            }
            false
        }
        Kind::Level => Level::parse(text).is_some(),
    };
    if good {
        return text.into();
    }
    log_line!(
        Warning,
        "{}={said} is not accepted ({}), using {}",
        param.name,
        param.kind,
        param.default
    );
    param.default.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Config {
        Config::read(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let config = with(&[]);
        assert_eq!(config.trace_level, Level::Info);
        assert_eq!(config.rx_poll, 100_000);
        assert_eq!(config.xdp, XdpInterfaces::Auto);
        assert!(config.offloaded_sockets);
    }

    #[test]
    fn bad_values_fall_back_to_the_default() {
        let config = with(&[
            ("VMA_RX_POLL", "many"),
            ("VMA_SELECT_POLL", "-7"),
            ("VMA_XDP_MODE", "fast"),
            ("VMA_OFFLOADED_SOCKETS", "yes"),
        ]);
        assert_eq!(config.rx_poll, 100_000);
        assert_eq!(config.select_poll, 100_000);
        assert_eq!(config.xdp_mode, XdpMode::Auto);
        assert!(config.offloaded_sockets);
    }

    #[test]
    fn interfaces_can_be_listed() {
        let config = with(&[("VMA_XDP", "eth1, eth2")]);
        assert_eq!(config.xdp, XdpInterfaces::Named(vec!["eth1".into(), "eth2".into()]));
        assert_eq!(with(&[("VMA_XDP", "off")]).xdp, XdpInterfaces::Off);
    }
}
