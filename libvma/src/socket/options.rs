//! Socket options: the kernel's shadow holds them all; what the data path needs is mirrored here.
//!
//! A set call goes to the shadow first. If the kernel took it, the value is read back from the
//! shadow, so that clamping, doubling and defaults are the kernel's own. An option that neither is
//! mirrored nor known to be harmless gives the socket to the kernel.

use core::num::NonZeroU32;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use libvma_dev::ipv6_stand_ins;
use libvma_engine::udp::lookup::Membership;

use super::multicast::{self, Multicast};
use super::{CachedRoute, Stack, WhyOs, attach};
use crate::config::Config;
use crate::log::log_line;
use crate::shard::SocketId;
use crate::sys::shadow;

/// What the data path needs to know of a socket's options.
#[derive(Clone)]
pub struct Options {
    /// SO_RCVTIMEO in nanoseconds; None is for ever.
    pub receive_timeout: Option<u64>,
    pub timestamp: bool,
    pub timestamp_ns: bool,
    /// SO_TIMESTAMPING with SOF_TIMESTAMPING_SOFTWARE.
    pub timestamping_software: bool,
    pub rxq_overflow: bool,
    pub packet_info: PacketInfo,
    pub receive_ttl: bool,
    pub receive_tos: bool,
    pub original_destination: bool,
    /// Of a UDP socket: control messages of IPv6 datagrams.
    pub ipv6_told: Ipv6Told,
    /// An option is set that gives IPv6 packets what only the kernel can give them.
    pub sends_ipv6_by_kernel: bool,
    /// Those that need fragments only: an option says what becomes of them.
    pub cuts_ipv6_by_kernel: bool,
    /// SO_VMA_SHUTDOWN_RX: what arrives is the kernel's.
    pub receives_by_kernel: bool,
    /// UDP_GRO.
    pub receive_segment: bool,
    /// SO_BINDTODEVICE as an interface index.
    pub bound_device: Option<NonZeroU32>,
    pub mark: u32,
    pub reuse_port: bool,
    pub reuse_address: bool,
    /// IP_TTL; None is the route's or the host's default.
    pub ttl: Option<u8>,
    pub tos: u8,
    /// Of a stream: IPV6_UNICAST_HOPS and IPV6_TCLASS, likewise.
    pub ipv6_hops: Option<u8>,
    pub ipv6_class: u8,
    /// IP_MTU_DISCOVER: DF on what fits.
    pub dont_fragment: bool,
    /// IP_PMTUDISC_DO, PROBE and INTERFACE: refuse what does not fit.
    pub never_fragment: bool,
    /// IP_PMTUDISC_PROBE, INTERFACE and OMIT: the interface's MTU counts, whatever the path's is.
    pub ignore_path_mtu: bool,
    /// Off with SO_NO_CHECK.
    pub checksum: bool,
    /// UDP_SEGMENT: a longer payload leaves as datagrams of so many bytes; 0 is none.
    pub segment: u16,
    pub multicast: Multicast,
    pub ipv6_multicast: Multicast,
    /// IP_MULTICAST_IF, if it named an address.
    pub multicast_source: Option<Ipv4Addr>,
    pub memberships: Vec<Membership>,
}

/// Which control messages tell the destination of an IPv4 datagram. One byte, because every connection has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketInfo {
    None,
    /// IP_PKTINFO.
    Ip,
    /// IPV6_RECVPKTINFO, of AF_INET6: the mapped address.
    Ipv6,
    Both,
}

impl PacketInfo {
    fn of(ip: bool, ipv6: bool) -> PacketInfo {
        match (ip, ipv6) {
            (false, false) => PacketInfo::None,
            (true, false) => PacketInfo::Ip,
            (false, true) => PacketInfo::Ipv6,
            (true, true) => PacketInfo::Both,
        }
    }

    #[inline]
    pub fn has_ip(self) -> bool {
        matches!(self, PacketInfo::Ip | PacketInfo::Both)
    }

    #[inline]
    pub fn has_ipv6(self) -> bool {
        matches!(self, PacketInfo::Ipv6 | PacketInfo::Both)
    }
}

/// The control messages that tell of an IPv6 datagram, beside [`PacketInfo`]. Bits, because every connection has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Told(u8);

impl Ipv6Told {
    /// The options, in the order in which the kernel tells (ip6_datagram_recv_specific_ctl() of Linux 6.18), but for that of
    /// IPV6_FLOWINFO.
    pub const OPTIONS: [i32; 5] = [
        libc::IPV6_RECVHOPLIMIT,
        libc::IPV6_RECVTCLASS,
        libc::IPV6_2292PKTINFO,
        libc::IPV6_2292HOPLIMIT,
        IPV6_RECVORIGDSTADDR,
    ];

    fn bit(name: i32) -> u8 {
        let at = Ipv6Told::OPTIONS.iter().position(|known| *known == name);
        at.map_or(0, |at| 1 << at)
    }

    pub fn has(self, name: i32) -> bool {
        self.0 & Ipv6Told::bit(name) != 0
    }

    pub(super) fn set(&mut self, name: i32, on: bool) {
        let bit = Ipv6Told::bit(name);
        self.0 = if on { self.0 | bit } else { self.0 & !bit };
    }
}

impl Options {
    /// TTL, if one was said, and TOS of what leaves by a stream; of IPv6 hop limit and traffic class.
    pub fn wishes(&self, is_ipv6: bool) -> (Option<u8>, u8) {
        match is_ipv6 {
            true => (self.ipv6_hops, self.ipv6_class),
            false => (self.ttl, self.tos),
        }
    }

    /// The interface that it is bound to.
    pub fn device(&self) -> Option<u32> {
        self.bound_device.map(NonZeroU32::get)
    }

    /// How it sends to this group.
    pub fn multicast(&self, group: Ipv4Addr) -> &Multicast {
        if ipv6_stand_ins::is_group(group) { &self.ipv6_multicast } else { &self.multicast }
    }

    /// Of a datagram, is the interface told?
    fn tells_interface(&self) -> bool {
        self.packet_info != PacketInfo::None || self.ipv6_told.has(libc::IPV6_2292PKTINFO)
    }

    /// The shadow's hop limit or traffic class was set.
    pub fn note_ipv6(&mut self, shadow: i32, name: i32) {
        let value = shadow::int_option(shadow, libc::IPPROTO_IPV6, name);
        let value = value.and_then(|value| u8::try_from(value).ok());
        match name {
            // -1 is read back as the host's default.
            libc::IPV6_UNICAST_HOPS => self.ipv6_hops = value,
            libc::IPV6_TCLASS => self.ipv6_class = value.unwrap_or(0),
            _ => {}
        }
    }

    /// The same where no route says more.
    pub fn envelope(&self, is_ipv6: bool) -> (u8, u8) {
        let (ttl, tos) = self.wishes(is_ipv6);
        (ttl.unwrap_or(64), tos)
    }

    pub fn new(config: &Config) -> Options {
        Options {
            receive_timeout: None,
            timestamp: false,
            timestamp_ns: false,
            timestamping_software: false,
            rxq_overflow: false,
            packet_info: PacketInfo::None,
            receive_ttl: false,
            receive_tos: false,
            original_destination: false,
            ipv6_told: Ipv6Told::default(),
            sends_ipv6_by_kernel: false,
            cuts_ipv6_by_kernel: false,
            receives_by_kernel: false,
            receive_segment: false,
            bound_device: None,
            mark: 0,
            reuse_port: false,
            reuse_address: false,
            ttl: None,
            tos: 0,
            ipv6_hops: None,
            ipv6_class: 0,
            dont_fragment: true,
            never_fragment: false,
            ignore_path_mtu: false,
            checksum: true,
            segment: 0,
            multicast: Multicast::new(config.tx_mc_loopback),
            ipv6_multicast: Multicast::new(config.tx_mc_loopback),
            multicast_source: None,
            memberships: Vec::new(),
        }
    }

    /// Does the program want to know when datagrams arrive?
    pub fn wants_stamp(&self) -> bool {
        self.timestamp || self.timestamp_ns || self.timestamping_software
    }

    /// May other sockets have its address and port, too?
    pub fn shares_port(&self) -> bool {
        self.reuse_port || self.reuse_address
    }
}

/// SOF_TIMESTAMPING_RX_SOFTWARE and SOF_TIMESTAMPING_SOFTWARE: a software stamp on receipt.
const STAMP_ON_RECEIPT: i32 = (1 << 3) | (1 << 4);

/// SOF_TIMESTAMPING_RX_HARDWARE or RAW_HARDWARE: stamps of the adapter.
const STAMP_OF_ADAPTER: i32 = 1 << 2 | 1 << 6;

/// SOF_TIMESTAMPING_TX_HARDWARE, TX_SOFTWARE, TX_SCHED, TX_ACK and TX_COMPLETION: stamps of what is sent,
/// which the kernel makes of its own packets and puts in the error queue.
const STAMP_ON_SENDING: i32 = 1 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 18;

/// Options that mean nothing to a UDP data path in user space, or only to the shadow.
const HARMLESS_SOCKET: &[i32] = &[
    libc::SO_BROADCAST,
    libc::SO_SNDBUF,
    libc::SO_SNDBUFFORCE,
    libc::SO_SNDTIMEO,
    libc::SO_PRIORITY,
    libc::SO_KEEPALIVE,
    libc::SO_LINGER,
    libc::SO_DEBUG,
    libc::SO_RCVLOWAT,
    libc::SO_SNDLOWAT,
    libc::SO_OOBINLINE,
    libc::SO_PASSCRED,
    libc::SO_BUSY_POLL,
    libc::SO_INCOMING_CPU,
    libc::SO_ZEROCOPY,
    libc::SO_SELECT_ERR_QUEUE,
    SO_PREFER_BUSY_POLL,
    SO_BUSY_POLL_BUDGET,
];
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
const SO_BINDTOIFINDEX: i32 = 62;

const HARMLESS_IP: &[i32] = &[
    libc::IP_RECVERR,
    libc::IP_FREEBIND,
    libc::IP_BIND_ADDRESS_NO_PORT,
    libc::IP_MINTTL,
    IP_LOCAL_PORT_RANGE,
];
const IP_LOCAL_PORT_RANGE: i32 = 51;

/// Options that concern IPv6 packets only (ipv6(7), linux/in6.h), which are the shadow's, and mean nothing for a datagram between hosts
/// that comes without extension headers.
const HARMLESS_IPV6: &[i32] = &[
    libc::IPV6_2292HOPOPTS,
    libc::IPV6_2292DSTOPTS,
    libc::IPV6_2292RTHDR,
    libc::IPV6_RECVERR,
    IPV6_JOIN_ANYCAST,
    IPV6_LEAVE_ANYCAST,
    IPV6_ROUTER_ALERT_ISOLATE,
    IPV6_RECVERR_RFC4884,
    libc::IPV6_HOPLIMIT,
    libc::IPV6_RECVHOPOPTS,
    libc::IPV6_RECVRTHDR,
    libc::IPV6_RECVDSTOPTS,
    libc::IPV6_RECVPATHMTU,
    libc::IPV6_PATHMTU,
    libc::IPV6_MINHOPCOUNT,
    libc::IPV6_FREEBIND,
];

/// Options that give packets of IPv6 what only the kernel can give them. They are set seldom, and a socket that has had one sends
/// those by the kernel ever after.
const SENDING_IPV6: &[i32] = &[
    libc::IPV6_2292PKTOPTIONS,
    libc::IPV6_FLOWLABEL_MGR,
    libc::IPV6_FLOWINFO_SEND,
    libc::IPV6_PKTINFO,
    // Fragments, or EMSGSIZE with IPV6_DONTFRAG.
    libc::IPV6_MTU,
    libc::IPV6_HOPOPTS,
    libc::IPV6_RTHDRDSTOPTS,
    libc::IPV6_RTHDR,
    libc::IPV6_DSTOPTS,
    libc::IPV6_AUTOFLOWLABEL,
    // The route's question does not name it.
    libc::IPV6_ADDR_PREFERENCES,
    IPV6_UNICAST_IF,
];
const IPV6_JOIN_ANYCAST: i32 = 27;
const IPV6_LEAVE_ANYCAST: i32 = 28;
const IPV6_ROUTER_ALERT_ISOLATE: i32 = 30;
const IPV6_RECVERR_RFC4884: i32 = 31;
const IPV6_RECVORIGDSTADDR: i32 = 74;
const IPV6_UNICAST_IF: i32 = 76;

/// The kernel accepted a set call with these arguments: take it over. An errno if the call is to
/// fail all the same (VMA_EXCEPTION_HANDLING).
pub fn after_set(
    stack: &Stack,
    id: SocketId,
    level: i32,
    name: i32,
    value: &[u8],
) -> Result<(), i32> {
    if multicast::after_set(stack, id, level, name, value) {
        return Ok(());
    }
    let handled = match level {
        libc::SOL_SOCKET => socket_level(stack, id, name, value),
        libc::IPPROTO_IP => ip_level(stack, id, name),
        libc::IPPROTO_UDP => udp_level(stack, id, name),
        libc::IPPROTO_IPV6 => ipv6_level(stack, id, name),
        // SOL_TCP on a UDP socket is refused by the kernel before this, and SOL_IPV6 on one of AF_INET.
        _ => false,
    };
    if !handled {
        let why = WhyOs::Option { level, name };
        why.judge(stack.config.exceptions)?;
        attach::un_offload(stack, id, why);
    }
    Ok(())
}

fn socket_level(stack: &Stack, id: SocketId, name: i32, value: &[u8]) -> bool {
    if HARMLESS_SOCKET.contains(&name) {
        return true;
    }
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((endpoint, socket)) = state.socket(id) else { return true };
    let fd = socket.shadow();
    let read = |name| shadow::int_option(fd, libc::SOL_SOCKET, name).unwrap_or(0);
    let options = &mut socket.options;
    match name {
        libc::SO_RCVBUF | libc::SO_RCVBUFFORCE => {
            let asked = read(libc::SO_RCVBUF).max(0) as usize;
            endpoint.limit = asked.max(stack.config.rx_bytes_min);
        }
        libc::SO_RCVTIMEO | libc::SO_RCVTIMEO_NEW => {
            // The kernel takes negative seconds for no wait at all, and reads them back as 0,
            // which otherwise is for ever.
            let seconds = value.first_chunk().map_or(0, |bytes| i64::from_ne_bytes(*bytes));
            options.receive_timeout = if seconds < 0 { Some(0) } else { receive_timeout(fd) };
        }
        // Not their twins for 32-bit programs (SO_TIMESTAMP_NEW ...), whose messages have another type.
        libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | libc::SO_TIMESTAMPING => {
            // SO_TIMESTAMP and SO_TIMESTAMPNS exclude each other; the kernel tells which is on.
            options.timestamp_ns = read(libc::SO_TIMESTAMPNS) != 0;
            options.timestamp = read(libc::SO_TIMESTAMP) != 0 && !options.timestamp_ns;
            let flags = read(libc::SO_TIMESTAMPING);
            if flags & STAMP_ON_SENDING != 0 {
                return false;
            }
            options.timestamping_software = flags & STAMP_ON_RECEIPT == STAMP_ON_RECEIPT;
            endpoint.wants_stamp = options.wants_stamp() || endpoint.is_filtered();
            drop(state);
            if flags & STAMP_OF_ADAPTER != 0 {
                tell_of_adapter_stamps(fd);
            }
        }
        libc::SO_RXQ_OVFL => options.rxq_overflow = read(name) != 0,
        libc::SO_REUSEADDR => options.reuse_address = read(name) != 0,
        libc::SO_REUSEPORT => options.reuse_port = read(name) != 0,
        libc::SO_MARK => {
            options.mark = read(name) as u32;
            socket.route = None;
        }
        libc::SO_NO_CHECK => options.checksum = read(name) == 0,
        libc::SO_BINDTODEVICE | SO_BINDTOIFINDEX => {
            let index = read(SO_BINDTOIFINDEX);
            options.bound_device = u32::try_from(index).ok().and_then(NonZeroU32::new);
            drop(state);
            attach::refresh(stack, id);
        }
        _ => return false,
    }
    true
}

/// A served socket asks for time stamps of the adapter. The user learns once that there are none.
fn tell_of_adapter_stamps(fd: i32) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        log_line!(
            Warning,
            "fd {fd} asks for time stamps of the adapter (SO_TIMESTAMPING): frames come without them, and \
             VMA_HW_TS_CONVERSION has no effect. Stamps of software are given to sockets that ask for those, too"
        );
    }
}

fn ip_level(stack: &Stack, id: SocketId, name: i32) -> bool {
    if HARMLESS_IP.contains(&name) {
        return true;
    }
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((endpoint, socket)) = state.socket(id) else { return true };
    let fd = socket.shadow();
    let value = shadow::int_option(fd, libc::IPPROTO_IP, name).unwrap_or(0);
    let options = &mut socket.options;
    match name {
        libc::IP_TTL => {
            // The kernel tells the default where none is set; either way it is the one in force.
            options.ttl = u8::try_from(value).ok();
            forget_envelope(&mut socket.route);
        }
        libc::IP_TOS => {
            options.tos = value as u8;
            socket.route = None;
        }
        libc::IP_MTU_DISCOVER => {
            // ip_dont_fragment(), ip_sk_ignore_df() and ip_sk_use_pmtu() of Linux.
            let (df, refuse, ignore) = match value {
                libc::IP_PMTUDISC_DONT => (false, false, false),
                libc::IP_PMTUDISC_WANT => (true, false, false),
                libc::IP_PMTUDISC_DO => (true, true, false),
                libc::IP_PMTUDISC_PROBE => (true, true, true),
                IP_PMTUDISC_INTERFACE => (false, true, true),
                IP_PMTUDISC_OMIT => (false, false, true),
                _ => return false,
            };
            options.dont_fragment = df;
            options.never_fragment = refuse;
            options.ignore_path_mtu = ignore;
            socket.route = None;
        }
        libc::IP_PKTINFO => {
            options.packet_info = PacketInfo::of(value != 0, options.packet_info.has_ipv6());
            endpoint.wants_interface = options.tells_interface();
        }
        libc::IP_RECVTTL => options.receive_ttl = value != 0,
        libc::IP_RECVTOS => options.receive_tos = value != 0,
        libc::IP_RECVORIGDSTADDR => options.original_destination = value != 0,
        _ => return false,
    }
    true
}

fn ipv6_level(stack: &Stack, id: SocketId, name: i32) -> bool {
    if HARMLESS_IPV6.contains(&name) {
        return true;
    }
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((endpoint, socket)) = state.socket(id) else { return true };
    let fd = socket.shadow();
    let options = &mut socket.options;
    match name {
        libc::IPV6_UNICAST_HOPS | libc::IPV6_TCLASS => {
            options.note_ipv6(fd, name);
            socket.route = None;
        }
        // Fragments, EMSGSIZE, or a packet that is too long.
        libc::IPV6_DONTFRAG | libc::IPV6_MTU_DISCOVER => options.cuts_ipv6_by_kernel = true,
        name if SENDING_IPV6.contains(&name) => {
            options.sends_ipv6_by_kernel = true;
            socket.route = None;
        }
        name if Ipv6Told::OPTIONS.contains(&name) => {
            let value = shadow::int_option(fd, libc::IPPROTO_IPV6, name);
            options.ipv6_told.set(name, value.is_some_and(|value| value != 0));
            endpoint.wants_interface = options.tells_interface();
        }
        // The kernel makes up flow labels, of which it tells then, and knows of what fragments a datagram was made.
        libc::IPV6_FLOWINFO | libc::IPV6_RECVFRAGSIZE => {
            return shadow::int_option(fd, libc::IPPROTO_IPV6, name) == Some(0);
        }
        // Looked at when the socket gets an address; afterwards the kernel refuses to change it.
        libc::IPV6_V6ONLY => {}
        libc::IPV6_RECVPKTINFO => {
            let value = shadow::int_option(fd, libc::IPPROTO_IPV6, name);
            let info = &mut options.packet_info;
            *info = PacketInfo::of(info.has_ip(), value.is_some_and(|value| value != 0));
            endpoint.wants_interface = options.tells_interface();
        }
        libc::IPV6_ADDRFORM => {
            // It was connected to an IPv4 peer, and is of AF_INET from now on.
            socket.family = shadow::family(fd);
            options.memberships.retain(|it| !ipv6_stand_ins::is_group(it.group));
            let info = &mut options.packet_info;
            *info = PacketInfo::of(info.has_ip(), false);
            endpoint.wants_interface = options.tells_interface();
        }
        _ => return false,
    }
    true
}

fn udp_level(stack: &Stack, id: SocketId, name: i32) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((endpoint, socket)) = state.socket(id) else { return true };
    let value = shadow::int_option(socket.shadow(), libc::IPPROTO_UDP, name).unwrap_or(0);
    match name {
        libc::UDP_SEGMENT => socket.options.segment = value as u16,
        libc::UDP_GRO => {
            socket.options.receive_segment = value != 0;
            endpoint.takes_trains = value != 0;
        }
        _ => return false,
    }
    true
}

const IP_PMTUDISC_INTERFACE: i32 = 4;
const IP_PMTUDISC_OMIT: i32 = 5;

/// What stands in the headers of the next datagram is other.
fn forget_envelope(route: &mut Option<Box<CachedRoute>>) {
    if let Some(route) = route {
        route.envelope = None;
    }
}

fn receive_timeout(fd: i32) -> Option<u64> {
    let mut value = [0u8; 16];
    if shadow::option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &mut value) != Some(16) {
        return None;
    }
    let number = |at: usize| {
        let bytes = value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    let nanos = number(0).saturating_mul(1_000_000_000).saturating_add(number(8) * 1000);
    (nanos > 0).then_some(nanos)
}

/// FIONBIO, F_SETFL: the open file description's flags changed.
pub fn after_flags(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((_, socket)) = state.socket(id) else { return };
    let flags = shadow::status_flags(socket.shadow());
    socket.nonblocking = flags & libc::O_NONBLOCK != 0;
    let signal_driven = flags & libc::O_ASYNC != 0;
    drop(state);
    if signal_driven {
        // SIGIO comes from the kernel's socket only.
        attach::un_offload(stack, id, WhyOs::Arguments);
    }
}

#[cfg(test)]
mod tests;
