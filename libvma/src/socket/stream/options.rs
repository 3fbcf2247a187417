//! Setting options of stream sockets: the shadow first, which knows every error and keeps them all;
//! what a connection needs of them is mirrored.

use core::num::NonZeroU32;
use std::time::Duration;

use libvma_dev::ipv6_stand_ins;
use libvma_engine::tcp::congestion::Algorithm;
use libvma_engine::tcp::{Buffer, Millis, Settings};

use super::{Inherited, Stack, Stream, WhyOs, listen, local};
use crate::shard::SocketId;
use crate::socket::Socket;
use crate::socket::hand_over;
use crate::sys::shadow;
use crate::sys::sockaddr::Family;

const SO_MAX_PACING_RATE: i32 = 47;
const SO_BINDTOIFINDEX: i32 = 62;
const SO_TIMESTAMP_NEW: i32 = 63;
const SO_TIMESTAMPNS_NEW: i32 = 64;
const SO_TIMESTAMPING_NEW: i32 = 65;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
const TCP_CM_INQ: i32 = 36;
const TCP_TX_DELAY: i32 = 37;
const TCP_AO_ADD_KEY: i32 = 38;
const TCP_AO_DEL_KEY: i32 = 39;
const TCP_AO_INFO: i32 = 40;
const TCP_AO_REPAIR: i32 = 42;
const TCP_RTO_MAX_MS: i32 = 44;
const TCP_RTO_MIN_US: i32 = 45;
const TCP_DELACK_MAX_US: i32 = 46;
const TCP_THIN_LINEAR_TIMEOUTS: i32 = 16;
const TCP_SAVE_SYN: i32 = 27;
const TCP_MD5SIG_EXT: i32 = 32;
const SO_TXTIME: i32 = 61;
const SO_BUF_LOCK: i32 = 72;
const IP_UNICAST_IF: i32 = 50;

/// Options that a stream in user space cannot have: a socket that wants one is the kernel's, with
/// its connection.
const FOREIGN: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
    (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF),
    (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW),
    (libc::IPPROTO_IP, libc::IP_OPTIONS),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
    (libc::IPPROTO_IP, libc::IP_MINTTL),
    (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
    (libc::IPPROTO_TCP, TCP_MD5SIG_EXT),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    (libc::IPPROTO_TCP, libc::TCP_ULP),
    (libc::SOL_SOCKET, SO_TXTIME),
    (libc::IPPROTO_TCP, TCP_TX_DELAY),
    (libc::SOL_SOCKET, SO_MAX_PACING_RATE),
    (libc::IPPROTO_TCP, TCP_AO_ADD_KEY),
    (libc::IPPROTO_TCP, TCP_AO_DEL_KEY),
    (libc::IPPROTO_TCP, TCP_AO_INFO),
    (libc::IPPROTO_TCP, TCP_AO_REPAIR),
];

/// The same, when they are on.
const FOREIGN_IF_ON: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW),
    (libc::IPPROTO_TCP, TCP_CM_INQ),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
    (libc::IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS),
    // A listener keeps the SYN for the connections that it accepts.
    (libc::IPPROTO_TCP, TCP_SAVE_SYN),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, SO_BUF_LOCK),
    (libc::IPPROTO_IP, IP_UNICAST_IF),
    // Errors of ICMP end a call at once, and wait in the error queue.
    (libc::IPPROTO_IP, libc::IP_RECVERR),
];

/// Options that the kernel judges by the state of the connection, which its socket must have first.
const OF_CONNECTION: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    (libc::IPPROTO_TCP, libc::TCP_ULP),
    // With them set, the size of segments cannot be installed.
    (libc::IPPROTO_IP, libc::IP_OPTIONS),
];

/// What of the options that the program set goes over to sockets that accept() makes: those that
/// are set again on each connection are left out.
const NOT_INHERITED: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
];

/// Must the kernel's socket have the connection before it is told of this option?
pub fn needs_connection(
    stack: &Stack,
    id: SocketId,
    (level, name): (i32, i32),
    value: &[u8],
) -> bool {
    // The kernel changes the family of a socket that has the connection itself.
    let changes_family = (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM)
        && value.starts_with(&libc::AF_INET.to_ne_bytes())
        && super::family(stack, id) == Family::Ipv6;
    (changes_family || OF_CONNECTION.contains(&(level, name))) && super::is_connected(stack, id)
}

/// An answer that the kernel's socket would give differently. None: ask it.
pub fn before_set(stack: &Stack, id: SocketId, level: i32, name: i32, value: &[u8]) -> Option<i32> {
    match (level, name) {
        // As a kernel that lacks it: programs then copy.
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => Some(libc::ENOPROTOOPT),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            let algorithm = Algorithm::from_name(core::str::from_utf8(text).ok()?)?;
            change(stack, id, |settings| settings.congestion = algorithm);
            Some(0)
        }
        (
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN | libc::TCP_FASTOPEN_CONNECT | TCP_FASTOPEN_NO_COOKIE,
        ) if super::is_connected(stack, id) => Some(libc::EINVAL),
        // The shadow of a connection that was accepted has no port, so it would take it.
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)
            if super::family(stack, id) == Family::Ipv6 && super::is_connected(stack, id) =>
        {
            Some(libc::EINVAL)
        }
        // In repair mode only, and not of a connection: its shadow is not one.
        (libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)
            if value.len() >= 4 && super::is_connected(stack, id) =>
        {
            Some(libc::EPERM)
        }
        // Only a socket that is not connected can take the clamp off.
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP)
            if int(value) == 0 && value.len() >= 4 && super::is_connected(stack, id) =>
        {
            Some(libc::EINVAL)
        }
        _ => None,
    }
}

/// What became of an option.
pub enum Effect {
    Done,
    /// The kernel's for good.
    Os(WhyOs),
}

/// TCP_NODELAY and TCP_CORK as the program has set them on a socket, so that the kernel's socket has them, too: a bit for each value that is
/// known, as there is one for every connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own(u8);

impl Own {
    /// The bits of an option: that it is off, and that it is on.
    fn bits(name: i32) -> [u8; 2] {
        match name {
            libc::TCP_NODELAY => [1, 2],
            libc::TCP_CORK => [4, 8],
            _ => [0, 0],
        }
    }

    fn note(&mut self, name: i32, on: bool) {
        let [off_bit, on_bit] = Own::bits(name);
        self.0 = self.0 & !(off_bit | on_bit) | if on { on_bit } else { off_bit };
    }

    fn has(self, name: i32, on: bool) -> bool {
        let [off_bit, on_bit] = Own::bits(name);
        self.0 & if on { on_bit } else { off_bit } != 0
    }
}

/// Options that programs set around every message.
pub const FREQUENT: [i32; 3] = [libc::TCP_QUICKACK, libc::TCP_NODELAY, libc::TCP_CORK];

/// Sets one of the [`FREQUENT`] options of TCP if only the connection has to hear of it, and the kernel's socket need not. False: the
/// kernel is to be asked.
pub fn set_alone(stack: &Stack, id: SocketId, name: i32, value: i32) -> bool {
    let on = value != 0;
    let Ok(mut state) = stack.shard.lock() else { return false };
    let synchronized = state.connection(id).map(|it| it.state().is_synchronized());
    let is_carried = synchronized.unwrap_or_else(|| local::has_pipe(&mut state, id));
    let Some((_, socket)) = state.socket(id) else { return false };
    let is_shared = hand_over::is_shared(socket);
    let Some(stream) = socket.stream.as_ref() else { return false };
    let is_held = match name {
        // The mode ends with the next segments: a kernel that gets the connection later begins anew.
        libc::TCP_QUICKACK => synchronized.is_some(),
        // A child may have set another value.
        _ => stream.own.has(name, on) && !is_shared,
    };
    if !is_carried || !is_held {
        return false;
    }
    drop(state);
    match name {
        libc::TCP_QUICKACK => quick_ack(stack, id, on),
        libc::TCP_NODELAY => push_if(stack, id, on),
        _ => push_if(stack, id, !on),
    }
    true
}

/// The kernel accepted a set call with these arguments: take it over.
pub fn after_set(stack: &Stack, id: SocketId, level: i32, name: i32, value: &[u8]) -> Effect {
    {
        let Ok(mut state) = stack.shard.lock() else { return Effect::Done };
        let Some((_, socket)) = state.socket(id) else { return Effect::Done };
        let descriptor = socket.shadow();
        let Some(stream) = socket.stream.as_mut() else { return Effect::Done };
        remember(stream, level, name, value);
        if level == libc::IPPROTO_TCP {
            stream.own.note(name, int(value) != 0);
        }
        match (level, name) {
            (libc::SOL_SOCKET, _) => socket_level(socket, descriptor, name, value),
            (libc::IPPROTO_IP, _) => ip_level(socket, descriptor, name),
            (libc::IPPROTO_IPV6, _) => socket.options.note_ipv6(descriptor, name),
            _ => {}
        }
    }
    let number = int(value);
    let option = (level, name);
    let unusual_discovery = option == (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
        && !matches!(number, libc::IP_PMTUDISC_WANT | libc::IP_PMTUDISC_DO);
    if FOREIGN.contains(&option)
        || unusual_discovery
        || level == libc::IPPROTO_IPV6 && is_foreign_to_ipv6(stack, id, name, number)
        || number != 0 && FOREIGN_IF_ON.contains(&option)
    {
        return Effect::Os(WhyOs::Option { level, name });
    }
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => quick_ack(stack, id, number != 0),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => defer_accept(stack, id),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => no_delay(stack, id, number != 0),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => cork(stack, id, number != 0),
        (libc::IPPROTO_TCP, _) => tcp_level(stack, id, name),
        (libc::IPPROTO_IP, libc::IP_TTL | libc::IP_TOS)
        | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS | libc::IPV6_TCLASS) => envelope(stack, id),
        (libc::SOL_SOCKET, _) => engine_socket_level(stack, id, name, number),
        _ => {}
    }
    listen::update(stack, id);
    local_level(stack, id, option)
}

/// What a pipe to another process needs of an option.
fn local_level(stack: &Stack, id: SocketId, option: (i32, i32)) -> Effect {
    let has_pipe = |mut state: super::Guard<'_>| local::has_pipe(&mut state, id);
    if !stack.shard.lock().is_ok_and(has_pipe) {
        return Effect::Done;
    }
    match option {
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
            local::after_buffer_change(stack, id);
        }
        (level @ libc::SOL_SOCKET, name @ libc::SO_PEEK_OFF) => {
            return Effect::Os(WhyOs::Option { level, name });
        }
        _ => {}
    }
    Effect::Done
}

/// Joining and leaving groups, IP_ADD_MEMBERSHIP to MCAST_MSFILTER of linux/in.h: memberships are a
/// socket's own.
const MEMBERSHIPS: core::ops::RangeInclusive<i32> = libc::IP_ADD_MEMBERSHIP..=MCAST_MSFILTER;
const MCAST_MSFILTER: i32 = 48;
/// The same of linux/in6.h.
const MEMBERSHIPS_OF_IPV6: [core::ops::RangeInclusive<i32>; 3] = [
    libc::IPV6_ADD_MEMBERSHIP..=libc::IPV6_DROP_MEMBERSHIP,
    IPV6_JOIN_ANYCAST..=IPV6_LEAVE_ANYCAST,
    MCAST_JOIN_GROUP..=MCAST_MSFILTER,
];
const MCAST_JOIN_GROUP: i32 = 42;
const IPV6_JOIN_ANYCAST: i32 = 27;
const IPV6_LEAVE_ANYCAST: i32 = 28;

fn remember(stream: &mut Stream, level: i32, name: i32, value: &[u8]) {
    let joins = match level {
        libc::IPPROTO_IP => MEMBERSHIPS.contains(&name),
        libc::IPPROTO_IPV6 => MEMBERSHIPS_OF_IPV6.iter().any(|range| range.contains(&name)),
        _ => false,
    };
    if joins || NOT_INHERITED.contains(&(level, name)) {
        return;
    }
    let is_it = |known: &Inherited| (known.level, known.name) == (level, name);
    match stream.inherited.iter().position(is_it) {
        // The latest is the last one.
        Some(at) => {
            let mut known = stream.inherited.remove(at);
            known.value.clear();
            known.value.extend_from_slice(value);
            stream.inherited.push(known);
        }
        None => stream.inherited.push(Inherited { level, name, value: value.to_vec() }),
    }
    if (level, name) == (libc::IPPROTO_IP, libc::IP_TOS) {
        // It changes the priority too, which accept() does not hand on.
        let (level, name, value) = (libc::SOL_SOCKET, libc::SO_PRIORITY, vec![0; 4]);
        stream.inherited.retain(|known| (known.level, known.name) != (level, name));
        stream.inherited.push(Inherited { level, name, value });
    }
}

fn int(value: &[u8]) -> i32 {
    match *value {
        [a, b, c, d, ..] => i32::from_ne_bytes([a, b, c, d]),
        [byte, ..] => i32::from(byte),
        [] => 0,
    }
}

/// Changes what connections start with, and the connection if there is one.
pub(super) fn change(stack: &Stack, id: SocketId, with: impl Fn(&mut Settings)) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((_, socket)) = state.socket(id) else { return };
    let Some(stream) = socket.stream.as_mut() else { return };
    with(&mut stream.settings);
    state.with_connection(id, |connection, _, now| connection.set(now, |settings| with(settings)));
}

/// What of SOL_SOCKET the socket layer itself needs.
fn socket_level(socket: &mut Socket, descriptor: i32, name: i32, value: &[u8]) {
    let read = |name| shadow::int_option(descriptor, libc::SOL_SOCKET, name).unwrap_or(0);
    let Some(stream) = socket.stream.as_mut() else { return };
    match name {
        libc::SO_RCVTIMEO | libc::SO_RCVTIMEO_NEW => {
            socket.options.receive_timeout = timeout(descriptor, libc::SO_RCVTIMEO, value);
        }
        libc::SO_SNDTIMEO | libc::SO_SNDTIMEO_NEW => {
            stream.send_timeout = timeout(descriptor, libc::SO_SNDTIMEO, value);
        }
        libc::SO_RCVLOWAT => {
            stream.low_water = u32::try_from(read(name)).unwrap_or(u32::MAX).max(1);
        }
        libc::SO_LINGER => {
            let mut value = [0u8; 8];
            shadow::option(descriptor, libc::SOL_SOCKET, name, &mut value);
            let (on, seconds) = (int(&value), int(value.get(4..).unwrap_or_default()));
            stream.linger =
                u32::try_from(seconds).ok().filter(|_| on != 0).and_then(NonZeroU32::new);
        }
        libc::SO_PEEK_OFF => stream.peek_offset = u32::try_from(int(value)).ok(),
        libc::SO_MARK => socket.options.mark = read(name) as u32,
        libc::SO_REUSEPORT => socket.options.reuse_port = read(name) != 0,
        libc::SO_BINDTODEVICE | SO_BINDTOIFINDEX => {
            let index = u32::try_from(read(SO_BINDTOIFINDEX)).ok();
            socket.options.bound_device = index.and_then(NonZeroU32::new);
        }
        _ => {}
    }
}

/// What of SOL_SOCKET the engine needs.
fn engine_socket_level(stack: &Stack, id: SocketId, name: i32, number: i32) {
    let Some(descriptor) = shadow_of(stack, id) else { return };
    let read = |name| shadow::int_option(descriptor, libc::SOL_SOCKET, name).unwrap_or(0);
    let whole = |name| u32::try_from(read(name)).unwrap_or(0);
    let fixed = |limit: u32| Buffer { limit, most: limit, automatic: false };
    match name {
        libc::SO_RCVBUF | libc::SO_RCVBUFFORCE => {
            // Half of it is overhead (tcp_adv_win_scale of tcp(7)).
            let buffer = fixed(whole(libc::SO_RCVBUF) / 2);
            change(stack, id, |settings| settings.receive_buffer = buffer);
        }
        libc::SO_SNDBUF | libc::SO_SNDBUFFORCE => {
            let buffer = fixed(whole(libc::SO_SNDBUF));
            change(stack, id, |settings| settings.send_buffer = buffer);
        }
        libc::SO_KEEPALIVE => {
            change(stack, id, |settings| settings.keep_alive = number != 0);
        }
        libc::SO_OOBINLINE => {
            change(stack, id, |settings| settings.urgent_inline = number != 0);
        }
        libc::SO_RCVLOWAT => {
            let low_water = u32::try_from(read(name)).unwrap_or(1);
            change(stack, id, |settings| settings.receive_low_water = low_water);
        }
        libc::SO_LINGER => {
            let mut value = [0u8; 8];
            shadow::option(descriptor, libc::SOL_SOCKET, name, &mut value);
            let reset = int(&value) != 0 && int(value.get(4..).unwrap_or_default()) == 0;
            change(stack, id, |settings| settings.reset_on_close = reset);
        }
        _ => {}
    }
}

/// A flag, which clients set for each connection: the kernel is not asked for what it has made of it.
fn no_delay(stack: &Stack, id: SocketId, on: bool) {
    change(stack, id, |settings| settings.nodelay = on);
    // Data that a cork holds leaves, too; data written from here on is held again.
    push_if(stack, id, on);
}

fn cork(stack: &Stack, id: SocketId, on: bool) {
    change(stack, id, |settings| settings.cork = on);
    push_if(stack, id, !on);
}

fn tcp_level(stack: &Stack, id: SocketId, name: i32) {
    let Some(descriptor) = shadow_of(stack, id) else { return };
    let Some(value) = shadow::int_option(descriptor, libc::IPPROTO_TCP, name) else { return };
    let positive = u32::try_from(value).unwrap_or(0);
    let byte = positive.min(255) as u8;
    let seconds = Millis::from_secs(positive);
    match name {
        libc::TCP_MAXSEG => {
            let most = u16::try_from(positive).ok().filter(|most| *most != 0);
            change(stack, id, |settings| settings.max_segment = most);
        }
        libc::TCP_KEEPIDLE => change(stack, id, |settings| settings.keep_idle = seconds),
        libc::TCP_KEEPINTVL => change(stack, id, |settings| settings.keep_interval = seconds),
        libc::TCP_KEEPCNT => change(stack, id, |settings| settings.keep_count = byte),
        libc::TCP_SYNCNT => change(stack, id, |settings| settings.syn_retries = byte),
        libc::TCP_LINGER2 => {
            // Negative: FIN-WAIT-2 ends at once.
            let timeout = (value >= 0).then_some(seconds.into());
            change(stack, id, |settings| settings.fin_timeout = timeout);
        }
        libc::TCP_WINDOW_CLAMP => {
            let clamp = if positive == 0 { u32::MAX } else { positive };
            change(stack, id, |settings| settings.window_clamp = clamp);
        }
        libc::TCP_USER_TIMEOUT => {
            let timeout = Duration::from_millis(u64::from(positive));
            let timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            change(stack, id, |settings| settings.user_timeout = timeout);
        }
        libc::TCP_NOTSENT_LOWAT => {
            // The default reads as the largest number.
            let low = if value == 0 { u32::MAX } else { value as u32 };
            change(stack, id, |settings| settings.unsent_low_water = low);
        }
        TCP_RTO_MIN_US => {
            let least = Millis::from_micros(positive);
            change(stack, id, |settings| settings.least_rto = least);
        }
        TCP_RTO_MAX_MS => {
            let most = Millis::from_millis(positive);
            change(stack, id, |settings| settings.most_rto = most);
        }
        TCP_DELACK_MAX_US => {
            let most = Millis::from_micros(positive);
            change(stack, id, |settings| settings.most_ack_delay = most);
        }
        _ => {}
    }
}

/// TCP_NODELAY on and TCP_CORK off send what waits (tcp(7)).
fn push_if(stack: &Stack, id: SocketId, wanted: bool) {
    if wanted && let Ok(mut state) = stack.shard.lock() {
        state.with_connection(id, |connection, wire, now| connection.push(now, wire));
    }
}

fn quick_ack(stack: &Stack, id: SocketId, quick: bool) {
    if let Ok(mut state) = stack.shard.lock() {
        state.with_connection(id, |connection, _, _| connection.set_quick_ack(quick));
    }
}

fn defer_accept(stack: &Stack, id: SocketId) {
    let Some(descriptor) = shadow_of(stack, id) else { return };
    // Rounded to retransmissions by the kernel.
    let value = shadow::int_option(descriptor, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
    let seconds = value.and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0);
    if let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
        && let Some(stream) = socket.stream.as_mut()
    {
        stream.defer_accept = seconds;
    }
}

fn ip_level(socket: &mut Socket, descriptor: i32, name: i32) {
    let value = shadow::int_option(descriptor, libc::IPPROTO_IP, name).unwrap_or(0);
    match name {
        libc::IP_TTL => socket.options.ttl = u8::try_from(value).ok(),
        libc::IP_TOS => socket.options.tos = value as u8,
        _ => {}
    }
}

/// Options that a connection over IPv6 cannot have in user space. The others do not know them.
const FOREIGN_TO_IPV6: &[i32] = &[
    libc::IPV6_RECVERR,
    libc::IPV6_MINHOPCOUNT,
    libc::IPV6_FLOWLABEL_MGR,
    libc::IPV6_FLOWINFO_SEND,
    libc::IPV6_PKTINFO,
    libc::IPV6_2292PKTOPTIONS,
    libc::IPV6_MTU,
    libc::IPV6_HOPOPTS,
    libc::IPV6_RTHDRDSTOPTS,
    libc::IPV6_RTHDR,
    libc::IPV6_DSTOPTS,
    // The route's question does not name it.
    libc::IPV6_ADDR_PREFERENCES,
    IPV6_UNICAST_IF,
];
const IPV6_UNICAST_IF: i32 = 76;

/// Is the socket connected over IPv6 and cannot be any more? Else what it connects to, or accepts, over IPv6 is the kernel's from
/// now on, if it cannot.
fn is_foreign_to_ipv6(stack: &Stack, id: SocketId, name: i32, number: i32) -> bool {
    let unusual_discovery = name == libc::IPV6_MTU_DISCOVER
        && !matches!(number, libc::IP_PMTUDISC_WANT | libc::IP_PMTUDISC_DO);
    if !FOREIGN_TO_IPV6.contains(&name) && !unusual_discovery {
        return false;
    }
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((_, socket)) = state.socket(id) else { return false };
    socket.options.sends_ipv6_by_kernel = true;
    socket.peer.is_some_and(|peer| ipv6_stand_ins::is_one(*peer.ip()))
}

/// TTL and TOS go into every segment.
fn envelope(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((_, socket)) = state.socket(id) else { return };
    let is_ipv6 = socket.peer.is_some_and(|peer| ipv6_stand_ins::is_one(*peer.ip()));
    let (ttl, tos) = socket.options.wishes(is_ipv6);
    state.set_envelope(id, ttl, tos);
}

fn shadow_of(stack: &Stack, id: SocketId) -> Option<i32> {
    Some(stack.shard.lock().ok()?.socket(id)?.1.shadow())
}

/// SO_RCVTIMEO, SO_SNDTIMEO in nanoseconds; None is for ever.
fn timeout(descriptor: i32, name: i32, said: &[u8]) -> Option<u64> {
    // The kernel takes negative seconds for no wait at all, and reads them back as 0.
    let number = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, i64::from_ne_bytes)
    };
    if number(said, 0) < 0 {
        return Some(0);
    }
    let mut value = [0u8; 16];
    shadow::option(descriptor, libc::SOL_SOCKET, name, &mut value)?;
    let seconds = u64::try_from(number(&value, 0)).unwrap_or(0);
    let micros = u64::try_from(number(&value, 8)).unwrap_or(0);
    let nanos = seconds.saturating_mul(1_000_000_000).saturating_add(micros * 1000);
    (nanos > 0).then_some(nanos)
}

#[cfg(test)]
mod tests;
