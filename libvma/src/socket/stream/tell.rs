//! What getsockopt() and ioctl() tell of a connection; of everything else the shadow tells.

use core::sync::atomic::{AtomicUsize, Ordering};

use libvma_dev::ipv6_stand_ins;
use libvma_engine::tcp::connection::Info;
use libvma_engine::tcp::{Connection, State as TcpState};

use super::{Phase, Stack, errno, local, view};
use crate::shard::tcp::Body;
use crate::shard::{SocketId, clock};
use crate::sys::shadow;
use crate::sys::sockaddr::{Family, SocketName};

/// A value of an option.
pub enum Value {
    Number(i32),
    /// Cut to the room the program has.
    Bytes(Vec<u8>),
}

/// None: the shadow knows.
pub fn option(stack: &Stack, id: SocketId, level: i32, name: i32) -> Option<Value> {
    let Ok(mut state) = stack.shard.lock() else { return None };
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            state.poll_well();
            let (_, socket) = state.socket(id)?;
            let pending = core::mem::take(&mut socket.pending_error);
            if pending != 0 {
                return Some(Value::Number(pending));
            }
            if let Some(error) = local::ready::take_error(&mut state, id) {
                return Some(Value::Number(error));
            }
            let connection = state.connection(id)?;
            let error = connection.take_error().map_or(0, errno);
            return Some(Value::Number(error));
        }
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => {
            let (_, socket) = state.socket(id)?;
            let offset = socket.stream.as_ref()?.peek_offset?;
            return Some(Value::Number(i32::try_from(offset).unwrap_or(i32::MAX)));
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) if !local::has_pipe(&mut state, id) => {
            let (_, socket) = state.socket(id)?;
            let name = socket.stream.as_ref()?.settings.congestion.name();
            // The kernel's names are 16 bytes (TCP_CA_NAME_MAX).
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(16, 0);
            return Some(Value::Bytes(bytes));
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) if state.is_listening(id) => {
            state.poll_well();
            let waiting = state.accept_queue_len(id)?;
            let descriptor = state.socket(id)?.1.shadow();
            return about_listener(descriptor, waiting).map(Value::Bytes);
        }
        _ => {}
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO)
        && let Some(own) = local::ready::tcp_state(&mut state, id)
    {
        let descriptor = state.socket(id)?.1.shadow();
        let mut bytes = vec![0; 2 * SIZE_OF_INFO];
        let len = shadow::option(descriptor, level, name, &mut bytes)?;
        bytes.truncate(len);
        *bytes.first_mut()? = state_number(own);
        return Some(Value::Bytes(bytes));
    }
    let family = super::family_of(&mut state, id);
    let connection = state.connection(id)?;
    let now = clock::now();
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            let mut bytes = tcp_info(&connection.info(now), path_mtu(connection));
            let descriptor = state.socket(id)?.1.shadow();
            bytes.resize(len_of_info(descriptor), 0);
            Some(Value::Bytes(bytes))
        }
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
            Some(Value::Number(connection.info(now).snd_mss as i32))
        }
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => {
            Some(Value::Number(i32::from(connection.is_quick_ack())))
        }
        (libc::SOL_SOCKET, libc::SO_PEERNAME) => {
            // Whatever became of the connection, unlike getpeername().
            let peer = connection.key().remote_endpoint();
            Some(Value::Bytes(SocketName::new(peer, family).bytes().to_vec()))
        }
        (libc::IPPROTO_IPV6, libc::IPV6_MTU) if family == Family::Ipv6 => {
            Some(Value::Number(path_mtu(connection) as i32))
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PATHMTU) if family == Family::Ipv6 => {
            // A struct ip6_mtuinfo, of which the kernel fills in the MTU only.
            let mut bytes = vec![0; SIZE_OF_MTU_INFO];
            bytes.last_chunk_mut::<4>()?.copy_from_slice(&path_mtu(connection).to_ne_bytes());
            Some(Value::Bytes(bytes))
        }
        (libc::IPPROTO_IP, libc::IP_MTU) => Some(Value::Number(path_mtu(connection) as i32)),
        _ => None,
    }
}

/// As much of a `struct tcp_info` as the running kernel knows; asked once.
fn len_of_info(descriptor: i32) -> usize {
    static LEN: AtomicUsize = AtomicUsize::new(0);
    let known = LEN.load(Ordering::Relaxed);
    if known > 0 {
        return known;
    }
    let mut own = [0; 2 * SIZE_OF_INFO];
    match shadow::option(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, &mut own) {
        Some(len) => {
            LEN.store(len, Ordering::Relaxed);
            len
        }
        None => SIZE_OF_INFO,
    }
}

/// The shadow's `struct tcp_info`, with those who wait in our accept queue added to its own
/// (tcpi_unacked).
fn about_listener(descriptor: i32, waiting: usize) -> Option<Vec<u8>> {
    const UNACKED: core::ops::Range<usize> = 24..28;
    let mut bytes = vec![0; 2 * SIZE_OF_INFO];
    let len = shadow::option(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)?;
    bytes.truncate(len);
    let place = bytes.get_mut(UNACKED)?;
    let own = u32::from_ne_bytes((&*place).try_into().ok()?);
    let sum = own.saturating_add(u32::try_from(waiting).unwrap_or(u32::MAX));
    place.copy_from_slice(&sum.to_ne_bytes());
    Some(bytes)
}

/// What an ioctl tells; None: the shadow knows.
pub fn ioctl(stack: &Stack, id: SocketId, request: u64) -> Option<Result<i32, i32>> {
    const SIOCATMARK: u64 = 0x8905;
    const SIOCOUTQNSD: u64 = 0x894b;
    const FIONREAD: u64 = libc::FIONREAD;
    const SIOCOUTQ: u64 = libc::TIOCOUTQ;
    if !matches!(request, SIOCATMARK | SIOCOUTQNSD | FIONREAD | SIOCOUTQ) {
        return None;
    }
    let Ok(mut state) = stack.shard.lock() else { return None };
    if matches!(view(&mut state, id)?.phase, Phase::Fresh | Phase::Listening { .. }) {
        return None;
    }
    state.poll_well();
    if local::has_pipe(&mut state, id) {
        // What the pipe took is in the peer's memory.
        let unread = (request == FIONREAD).then(|| local::ready::unread(&mut state, id));
        return unread.flatten().map(Ok);
    }
    let connection = state.connection(id)?;
    let number = match request {
        FIONREAD => unread(connection),
        SIOCATMARK => i32::from(connection.bytes_to_mark() == Some(0)),
        _ if matches!(connection.state(), TcpState::SynSent | TcpState::SynReceived) => 0,
        SIOCOUTQ => connection.unacknowledged() as i32,
        _ => connection.unsent() as i32,
    };
    Some(Ok(number))
}

/// FIONREAD: up to the urgent byte if that is there, or all if it is read in line (Linux: tcp_inq()).
fn unread(connection: &Connection<Body>) -> i32 {
    let all = connection.queued();
    let to_mark = connection.bytes_to_mark().filter(|distance| *distance < all);
    let count = if connection.settings().urgent_inline { all } else { to_mark.unwrap_or(all) };
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Of `struct tcp_info`, as far as it is filled in here.
const SIZE_OF_INFO: usize = 248;
/// Of `struct ip6_mtuinfo` (linux/ipv6.h).
const SIZE_OF_MTU_INFO: usize = 32;

/// As the kernel counts it, with the header of the connection's family.
fn path_mtu(connection: &Connection<Body>) -> u32 {
    ipv6_stand_ins::mtu(connection.key().remote, connection.path().mtu)
}

/// `struct tcp_info` of linux/tcp.h.
fn tcp_info(info: &Info, mtu: u32) -> Vec<u8> {
    let mut bytes = vec![0u8; SIZE_OF_INFO];
    let micros = |time: core::time::Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let millis = |time: core::time::Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let mss = info.snd_mss.max(1);
    // Sequence numbers as segments.
    let segments = |count: u32| count.div_ceil(mss);
    let options = u8::from(info.timestamps)
        | u8::from(info.sack) << 1
        | u8::from(info.window_scaling) << 2
        | u8::from(info.ecn) << 3
        | u8::from(info.ecn_seen) << 4;
    let recovery = if info.is_recovering { 3 } else { 0 };
    let retransmits = info.retransmits.min(255) as u8;
    let scales = info.snd_scale & 0xf | info.rcv_scale << 4;
    let head = [
        state_number(info.state),
        recovery,
        retransmits,
        info.probes,
        retransmits,
        options,
        scales,
    ];
    for (place, byte) in bytes.iter_mut().zip(head) {
        *place = byte;
    }
    let mut put = |at: usize, value: u32| {
        if let Some(place) = bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    };
    let counters = &info.counters;
    let srtt = info.srtt.map_or(0, micros);
    // Less the options that every segment carries, as Linux has it.
    let advertised = info.advertised_mss.saturating_sub(if info.timestamps { 12 } else { 0 });
    let since_received = millis(info.since_received);
    for (at, value) in [
        (8, micros(info.rto)),
        (12, 40_000),
        (16, info.snd_mss),
        (20, info.rcv_mss),
        (24, segments(info.unacknowledged)),
        (28, segments(info.sacked)),
        (32, segments(info.to_retransmit)),
        (36, segments(info.to_retransmit)),
        (44, millis(info.since_sent)),
        (52, since_received),
        (56, since_received),
        (60, mtu),
        (64, info.rcv_wnd),
        (68, srtt),
        (72, micros(info.rttvar)),
        (76, info.ssthresh.checked_div(mss).unwrap_or(0).min(i32::MAX as u32)),
        (80, segments(info.cwnd)),
        (84, advertised),
        (88, 3),
        (96, info.receive_limit),
        (100, counters.retransmissions as u32),
        (136, counters.segments_out as u32),
        (140, counters.segments_in as u32),
        (144, info.unsent),
        (148, info.min_rtt.map_or(u32::MAX, micros)),
        (224, counters.out_of_order as u32),
        (228, info.snd_wnd),
        (232, info.rcv_wnd),
    ] {
        put(at, value);
    }
    let mut put = |at: usize, value: u64| {
        if let Some(place) = bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    };
    put(112, u64::MAX);
    put(120, counters.bytes_acked);
    put(128, counters.bytes_received);
    bytes
}

/// The numbers of linux/tcp.h.
pub fn state_number(state: TcpState) -> u8 {
    match state {
        TcpState::Established => 1,
        TcpState::SynSent => 2,
        TcpState::SynReceived => 3,
        TcpState::FinWait1 => 4,
        TcpState::FinWait2 => 5,
        // What is left of a connection in TIME-WAIT is no socket's on Linux.
        TcpState::TimeWait | TcpState::Closed => 7,
        TcpState::CloseWait => 8,
        TcpState::LastAck => 9,
        TcpState::Closing => 11,
    }
}

#[cfg(test)]
mod tests;
