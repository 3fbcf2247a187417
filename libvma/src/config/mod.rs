//! Configuration: what the environment and libvma.conf say, checked once, as plain values.
//!
//! `params` is the one table of parameters; everything that names one derives from it. `settings`
//! layers their values; [`Config`] is what the rest of the library reads. `rules` is libvma.conf.

mod adjust;
pub mod params;
pub mod rules;
pub mod settings;
pub mod spec;
mod spelling;
pub mod value;

#[cfg(test)]
mod documentation;
#[cfg(test)]
mod effects;

use crate::log::Level;
use rules::{Protocol, Rules, expand};
use settings::Settings;

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
    Tc,
}

/// What becomes of a socket option that is not offloaded (`VMA_EXCEPTION_HANDLING`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceptions {
    /// The socket is the kernel's; said at level debug.
    Debug,
    /// The same, and said as an error.
    Error,
    /// The option is refused, and that is said as an error.
    Refuse,
    /// Said as an error, the last thing that the process does.
    Abort,
}

/// Does a UDP send wait for a frame (`VMA_TX_BLOCK`)?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    AsSocket,
    Always,
    Never,
}

/// The values in force.
#[derive(Clone, Debug)]
pub struct Config {
    pub trace_level: Level,
    pub log_details: u8,
    pub log_colors: bool,
    pub log_file: String,
    /// Where captured packets go; empty for nowhere.
    pub capture_file: String,
    pub capture_snap_len: u32,
    /// 0: no limit.
    pub capture_file_size: u64,
    pub capture_files: u32,
    pub stats_file: String,
    /// Where the file for vma_stats is; empty for none.
    pub stats_directory: String,
    /// Where the daemon finds this process; empty for not at all.
    pub notify_directory: String,
    /// Sockets that it has places for.
    pub stats_sockets: u32,
    /// The share of time that is spent polling is measured.
    pub measures_polling: bool,
    pub rules: Rules,
    pub handle_sigintr: bool,
    pub handle_sigsegv: bool,
    pub exceptions: Exceptions,
    /// The process ends if nothing can be offloaded at all.
    pub exit_on_failed_start: bool,
    pub offloaded_sockets: bool,
    /// The program polls a ring for completions.
    pub socketxtreme: bool,
    /// Other processes of this host are reached through shared memory.
    pub local: bool,
    pub xdp: XdpInterfaces,
    pub xdp_mode: XdpMode,
    /// Interfaces are attached while the kernel serves the sockets that need them.
    pub attaches_in_background: bool,
    /// Unsuccessful polls before a blocking receive call sleeps; -1 for ever.
    pub rx_poll: i64,
    /// The same of a socket to which nothing is steered.
    pub rx_poll_init: i64,
    /// One look at the kernel's twin of a socket per this many polls; 0 never.
    pub rx_udp_poll_os_ratio: u64,
    /// A thread that polls lets others run between its polls.
    pub rx_poll_yield: bool,
    /// What a UDP socket queues at least.
    pub rx_bytes_min: usize,
    /// A receive call polls if the last poll is so long ago, though it need not; 0 never.
    pub rx_drain_nanos: u64,
    /// A send call on a connection polls first.
    pub rx_poll_on_tx_tcp: bool,
    pub dummy_at_getsockname: bool,
    /// Microseconds of polling in select, poll and epoll_wait; -1 for ever.
    pub select_poll: i64,
    pub select_poll_os_ratio: u64,
    pub rx_bufs: u32,
    pub rx_wre: u32,
    pub tx_bufs: u32,
    pub tx_mc_loopback: bool,
    pub tx_nonblocked_eagains: bool,
    pub tx_block: Blocking,
    /// None: any.
    pub internal_thread_cpus: Vec<usize>,
    /// The directory of a cpuset; empty for none.
    pub internal_thread_cpuset: String,
    /// The internal thread wakes for every packet.
    pub internal_thread_arm: bool,
    /// The internal thread runs TCP's timers as soon as they are due.
    pub internal_thread_timers: bool,
    pub progress_interval_msec: u64,
    /// Packets that the internal thread takes in one go.
    pub progress_most: u64,
    /// How often routes and neighbours are asked for again.
    pub refresh_msec: u64,
    pub io_uring: bool,
    /// Connections whose answers wait for the end of a batch; 0 none.
    pub gro_streams: usize,
    /// Steer a connection by its own port only, not by the peer's address, too.
    pub tcp_3t_rules: bool,
    /// The same of connected UDP sockets.
    pub udp_3t_rules: bool,
    /// New connections per second and listener; 0 is no limit.
    pub tcp_max_syn_rate: u32,
    /// 0 off, 1 on, 2 as the host has it.
    pub tcp_timestamps: u8,
    pub tcp_nodelay: bool,
    pub tcp_quickack: bool,
    /// None: the host's.
    pub tcp_congestion: Option<u64>,
    /// None: as the way takes.
    pub mtu: Option<u32>,
    /// None: as the MTU.
    pub mss: Option<u16>,
}

/// Is the program in the SocketXtreme mode? For the time before there is a [`Config`].
pub fn is_socketxtreme(environment: impl IntoIterator<Item = (String, String)>) -> bool {
    const NAMES: [&str; 2] = ["VMA_SOCKETXTREME", "VMA_POLL"];
    let said = environment.into_iter().filter(|(name, _)| NAMES.contains(&name.as_str()));
    Settings::read(said).flag("VMA_SOCKETXTREME")
}

impl Config {
    /// The values of the settings, without libvma.conf: that is a file to be read, by
    /// [`Rules::load`], when complaints can be logged.
    pub fn new(settings: &Settings) -> Config {
        let number = |name| settings.number(name);
        let flag = |name| settings.flag(name);
        let count = |name| settings.number(name).unsigned_abs();
        Config {
            trace_level: Level::parse(settings.text("VMA_TRACELEVEL")).unwrap_or(Level::Info),
            log_details: number("VMA_LOG_DETAILS") as u8,
            log_colors: flag("VMA_LOG_COLORS"),
            log_file: expand(settings.text("VMA_LOG_FILE")),
            capture_file: expand(settings.text("VMA_PCAP")),
            capture_snap_len: number("VMA_PCAP_SNAPLEN") as u32,
            capture_file_size: count("VMA_PCAP_FILE_SIZE"),
            capture_files: number("VMA_PCAP_FILES") as u32,
            stats_file: settings.text("VMA_STATS_FILE").to_owned(),
            stats_directory: settings.text("VMA_STATS_SHMEM_DIR").to_owned(),
            notify_directory: settings.text("VMA_VMAD_NOTIFY_DIR").to_owned(),
            stats_sockets: number("VMA_STATS_FD_NUM") as u32,
            measures_polling: flag("VMA_CPU_USAGE_STATS"),
            rules: Rules::default(),
            handle_sigintr: flag("VMA_HANDLE_SIGINTR"),
            handle_sigsegv: flag("VMA_HANDLE_SIGSEGV"),
            exceptions: match number("VMA_EXCEPTION_HANDLING") {
                1 => Exceptions::Error,
                2 => Exceptions::Refuse,
                3 => Exceptions::Abort,
                _ => Exceptions::Debug,
            },
            exit_on_failed_start: number("VMA_EXCEPTION_HANDLING") == -2,
            offloaded_sockets: flag("VMA_OFFLOADED_SOCKETS"),
            socketxtreme: flag("VMA_SOCKETXTREME"),
            local: flag("VMA_LOCAL"),
            xdp: match settings.text("VMA_XDP") {
                "off" | "0" => XdpInterfaces::Off,
                "auto" | "" => XdpInterfaces::Auto,
                "all" => XdpInterfaces::All,
                names => XdpInterfaces::Named(names.split(',').map(|n| n.trim().into()).collect()),
            },
            xdp_mode: match settings.text("VMA_XDP_MODE") {
                "native" => XdpMode::Native,
                "generic" => XdpMode::Generic,
                "tc" => XdpMode::Tc,
                _ => XdpMode::Auto,
            },
            attaches_in_background: settings.text("VMA_XDP_ATTACH") != "foreground",
            rx_poll: number("VMA_RX_POLL"),
            rx_poll_init: number("VMA_RX_POLL_INIT"),
            rx_udp_poll_os_ratio: count("VMA_RX_UDP_POLL_OS_RATIO"),
            rx_poll_yield: flag("VMA_RX_POLL_YIELD"),
            rx_bytes_min: count("VMA_RX_BYTES_MIN") as usize,
            rx_drain_nanos: count("VMA_RX_CQ_DRAIN_RATE_NSEC"),
            rx_poll_on_tx_tcp: flag("VMA_RX_POLL_ON_TX_TCP"),
            dummy_at_getsockname: flag("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME"),
            select_poll: number("VMA_SELECT_POLL"),
            select_poll_os_ratio: count("VMA_SELECT_POLL_OS_RATIO"),
            rx_bufs: number("VMA_RX_BUFS") as u32,
            rx_wre: u32::try_from(number("VMA_RX_WRE")).unwrap_or(u32::MAX),
            tx_bufs: number("VMA_TX_BUFS") as u32,
            tx_mc_loopback: flag("VMA_TX_MC_LOOPBACK"),
            tx_nonblocked_eagains: flag("VMA_TX_NONBLOCKED_EAGAINS"),
            tx_block: match number("VMA_TX_BLOCK") {
                1 => Blocking::Always,
                2 => Blocking::Never,
                _ => Blocking::AsSocket,
            },
            internal_thread_cpus: value::cpus(settings.text("VMA_INTERNAL_THREAD_AFFINITY"))
                .unwrap_or_default(),
            internal_thread_cpuset: settings.text("VMA_INTERNAL_THREAD_CPUSET").to_owned(),
            internal_thread_arm: flag("VMA_INTERNAL_THREAD_ARM_CQ"),
            internal_thread_timers: flag("VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING"),
            progress_interval_msec: count("VMA_PROGRESS_ENGINE_INTERVAL"),
            progress_most: count("VMA_PROGRESS_ENGINE_WCE_MAX"),
            refresh_msec: count("VMA_NETLINK_TIMER"),
            io_uring: flag("VMA_IO_URING"),
            gro_streams: number("VMA_GRO_STREAMS_MAX") as usize,
            tcp_3t_rules: flag("VMA_TCP_3T_RULES"),
            udp_3t_rules: flag("VMA_UDP_3T_RULES"),
            tcp_max_syn_rate: number("VMA_TCP_MAX_SYN_RATE") as u32,
            tcp_timestamps: number("VMA_TCP_TIMESTAMP_OPTION") as u8,
            tcp_nodelay: flag("VMA_TCP_NODELAY"),
            tcp_quickack: flag("VMA_TCP_QUICKACK"),
            tcp_congestion: u64::try_from(number("VMA_TCP_CC_ALGO")).ok(),
            // The least that IPv4 allows a link.
            mtu: u32::try_from(number("VMA_MTU"))
                .ok()
                .filter(|mtu| *mtu > 0)
                .map(|mtu| mtu.max(68)),
            mss: u16::try_from(number("VMA_MSS")).ok().filter(|mss| *mss > 0),
        }
    }

    /// Are new sockets of this kind offloaded at all, but for those of threads that wished otherwise?
    pub fn offloads(&self, protocol: Protocol) -> bool {
        self.offloaded_sockets && !self.rules.leave_all(protocol)
    }

    /// What TCP is to announce at most, as by TCP_MAXSEG.
    pub fn max_segment(&self) -> Option<u16> {
        let of_mtu = self.mtu.map(|mtu| mtu.saturating_sub(40).min(u32::from(u16::MAX)) as u16);
        self.mss.into_iter().chain(of_mtu).min()
    }

    /// The MTU of a way that takes so much.
    pub fn limit_mtu(&self, way: u32) -> u32 {
        self.mtu.map_or(way, |mtu| mtu.min(way))
    }
}
