//! Taking an established TCP connection out of a kernel socket: the inverse of [`super::install`].
//!
//! The kernel tells the sequence numbers, queues, windows and options of a socket in repair mode
//! (tcp(7), `CONFIG_CHECKPOINT_RESTORE`), and forgets a connection without a segment when the
//! socket is disconnected in repair mode. What it does not tell:
//!
//! - TS.Recent (RFC 7323 section 4.3). It is 0 in [`Taken::timestamps`], which means unknown.
//! - The urgent pointer of bytes that the program has sent and the peer has not acknowledged. They
//!   are read as plain ones if they are sent again.
//! - Segments received out of order, and what the peer has reported by SACK. RFC 2018 section 8
//!   allows a receiver to forget the former; the peer repeats the latter.
//! - Whether ECN means RFC 3168 or Accurate ECN: `net.ipv4.tcp_ecn` above 2 allows the latter.
//!
//! From the beginning of [`take`] to its end a socket filter drops the peer's segments that reach
//! the kernel, as if the wire had lost them. (Without a filter if the program has attached one: then a
//! segment that changes the connection makes [`take`] fail.) Segments that reached the kernel earlier
//! are part of what is taken. So a caller that wants none lost steers the flow to itself first.

mod question;

use core::ffi::c_int;
use core::time::Duration;
use std::net::{Ipv4Addr, SocketAddrV4};

use super::calls::Queue;
use super::steps::{BIND_TO_INDEX, Target};
use super::{Error, REPAIR_OFF, REPAIR_OFF_SILENTLY, REPAIR_ON, State, Timestamps, WindowScale};
use crate::sys::{Fd, rights, shadow, wait};
use question::{Info, count, has_urgent_data, peek};

/// How the socket became a connection. Decides what it is bound to afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// By connect(): it stays bound to its port, whether the program or the kernel chose that. Its
    /// address is what the program bound, or the connection's if the kernel chose the port.
    Connected,
    /// By accept(): it is bound to no port; the listener has that.
    Accepted,
}

/// A connection that the kernel had, between two segments.
///
/// Sequence numbers are RFC 9293's (section 3.3.1), so a received FIN counts for one in them.
#[derive(Clone, Debug)]
pub struct Taken {
    pub local: SocketAddrV4,
    pub remote: SocketAddrV4,
    /// [`State::Established`] or [`State::CloseWait`].
    pub state: State,
    /// SND.UNA: the sequence number of the first byte of `outgoing`.
    pub send_unacknowledged: u32,
    /// Bytes written and not acknowledged: the first `sent` of them were sent.
    pub outgoing: Vec<u8>,
    pub sent: usize,
    /// SND.WND, in bytes.
    pub send_window: u32,
    /// The largest window that the peer ever offered, in bytes.
    pub largest_send_window: u32,
    /// SND.WL1: the sequence number of the segment that `send_window` came with.
    pub window_update: u32,
    /// RCV.NXT.
    pub receive_next: u32,
    /// RCV.NXT as the kernel last told the peer.
    pub acknowledged: u32,
    /// What is left of the window that the peer was told of, from RCV.NXT on.
    pub receive_window: u32,
    /// Bytes received in order and not read by the program.
    pub unread: Vec<u8>,
    /// The program has shut its receiving side down. Not known in CLOSE-WAIT, where it changes
    /// nothing.
    pub reading_ended: bool,
    /// The peer's MSS option, or the program's TCP_MAXSEG if that is less.
    pub segment_size: u16,
    pub window_scale: Option<WindowScale>,
    pub sack: bool,
    /// `value` is at least as large as any time stamp that was sent. `recent` is 0: unknown.
    pub timestamps: Option<Timestamps>,
    /// Both sides have agreed to ECN of some kind.
    pub ecn: bool,
    /// The path MTU that the kernel has found, in bytes.
    pub path_mtu: u32,
    pub measured: Measured,
    pub counted: Counted,
    /// The kernel has received something at the very last moment, and may have acknowledged it: bytes are
    /// missing from `unread` that the peer will not send again.
    pub is_incomplete: bool,
}

/// What the kernel has learnt of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// None before the first measurement.
    pub smoothed_rtt: Option<Duration>,
    pub rtt_variation: Duration,
    pub least_rtt: Option<Duration>,
    /// In bytes.
    pub congestion_window: u32,
    /// In bytes; None before any congestion.
    pub slow_start_threshold: Option<u32>,
}

/// What the kernel has counted (TCP_INFO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub segments_in: u64,
    pub segments_out: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub retransmissions: u64,
    pub out_of_order: u64,
}

/// Takes the IPv4 connection of `fd`, a TCP socket of either family in ESTABLISHED or CLOSE-WAIT, out of the
/// kernel.
///
/// `ready` gets the connection and makes the caller's own one of it. Nothing may leave for the wire
/// from there: the kernel still has the connection. If `ready` says true, the kernel forgets the
/// connection without a word to the peer, and `fd` becomes an unconnected socket, as `origin` says.
///
/// `Ok(None)`: `ready` said false. The kernel's connection goes on as if nothing had happened.
///
/// An error: the kernel's connection goes on, too. [`Error::call`] names the call that failed, or the
/// obstacle; its errno is EAGAIN if the obstacle may pass, EOPNOTSUPP if it stays. `ready` may have
/// been called and have said true; then the caller forgets its own connection, without a word to
/// the peer.
///
/// Refused are: other states; urgent data that the program has not read; retransmissions under way
/// (EAGAIN); data received out of order, as far as the kernel shows it (EAGAIN); TCP Fast Open, MPTCP,
/// kernel TLS and other ULPs, TCP-AO, SO_PEEK_OFF. The kernel does not tell of a TCP-MD5 key: the
/// caller must know that there is none.
///
/// The options of `fd` stay, but for TCP_MAXSEG and TCP_WINDOW_CLAMP, which the kernel forgets with
/// the connection and does not tell: the caller sets them again. A TCP_QUICKACK ends.
///
/// Nobody may use `fd` meanwhile: in repair mode send() fails with EINVAL and recv() with EPERM.
/// Threads that wait for `fd` are woken by the disconnect.
pub fn take(
    fd: c_int,
    origin: Origin,
    ready: impl FnOnce(&Taken) -> bool,
) -> Result<Option<Taken>, Error> {
    let local = shadow::local_address(fd).ok_or_else(|| stays("address"))?;
    let remote = shadow::peer_address(fd);
    let remote = remote.ok_or(Error { call: "getpeername", errno: libc::ENOTCONN })?;
    check_kind(fd)?;
    check_state(&Info::of(fd)?)?;
    // Repair mode overwrites it and its end clears it (`SK_FORCE_REUSE` in the kernel).
    let reuse = shadow::int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR);
    let unfiltered = !shadow::has_filter(fd);
    let target = Target { fd, unfiltered, segment_size: 0 };
    let source = Source { target, local, remote, origin };
    let _raised = rights::raise();

    source.target.deafen();
    let mode = source.target.set_int("TCP_REPAIR", libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON);
    if let Err(error) = mode {
        source.target.hear();
        return Err(error);
    }
    let result = source.take(ready);
    source.target.hear();
    let end = match result {
        Ok(Some(_)) => REPAIR_OFF_SILENTLY,
        // An acknowledgment may have been lost at the filter: the kernel asks for it again.
        _ if count(fd, question::SIOCOUTQ).unwrap_or(0) > 0 => REPAIR_OFF,
        _ => REPAIR_OFF_SILENTLY,
    };
    shadow::set_int_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, end);
    if let Some(reuse) = reuse {
        shadow::set_int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse);
    }
    result
}

/// The socket that is taken from.
struct Source {
    target: Target,
    local: SocketAddrV4,
    remote: SocketAddrV4,
    origin: Origin,
}

impl Source {
    fn take(&self, ready: impl FnOnce(&Taken) -> bool) -> Result<Option<Taken>, Error> {
        let fd = self.target.fd;
        // Again, because a segment may have changed it before the filter was there.
        let info = Info::of(fd)?;
        check_state(&info)?;
        if has_urgent_data(fd)? {
            return Err(passes("urgent data"));
        }
        let mut taken = self.read(&info)?;
        let holder = match self.origin {
            Origin::Connected => Some(self.hold_port()?),
            Origin::Accepted => None,
        };
        if !ready(&taken) {
            return Ok(None);
        }
        self.check_unchanged(&taken)?;
        self.forget(holder)?;
        // A segment that had passed the filter before it was there, and was held up since.
        self.target.choose(Queue::Receive)?;
        taken.is_incomplete = self.target.queue_sequence() != Ok(taken.receive_next);
        self.target.choose(Queue::None)?;
        Ok(Some(taken))
    }

    fn read(&self, info: &Info) -> Result<Taken, Error> {
        let fd = self.target.fd;
        let unread_len = count(fd, question::SIOCINQ)?;
        // Before a FIN nothing is missing, and it may wait in the queue and take memory itself.
        let may_miss = !info.has_ended() && unread_len == 0 && info.out_of_order() > 0;
        if may_miss && question::holds_memory(fd) {
            return Err(passes("data out of order"));
        }
        self.target.choose(Queue::Receive)?;
        let receive_next = self.target.queue_sequence()?;
        let unread = peek(fd, unread_len, 0)?;

        let queued = count(fd, question::SIOCOUTQ)?;
        let never_sent = count(fd, question::SIOCOUTQNSD)?;
        // No longer than needed: what the kernel would send meanwhile counts as sent and does not
        // leave. [`Source::check_unchanged`] sees that, and the retransmission timer would mend it.
        self.target.choose(Queue::Send)?;
        let send_end = self.target.queue_sequence();
        let outgoing = peek(fd, queued, MOST_ACKNOWLEDGED);
        self.target.choose(Queue::None)?;
        let (send_end, outgoing) = (send_end?, outgoing?);

        let window = self.target.repair_window()?;
        let edge = window.receive_update.wrapping_add(window.receive_window);
        let beyond = edge.wrapping_sub(receive_next);
        let state = if info.has_ended() { State::CloseWait } else { State::Established };
        let ended = wait::poll_now(fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0;
        let int = |name| shadow::int_option(fd, libc::IPPROTO_TCP, name);
        let segment_size = int(libc::TCP_MAXSEG).ok_or_else(|| stays("TCP_MAXSEG"))?;
        // Last, so that no time stamp is sent after it. The kernel leaves out bit 0.
        let stamp = match info.has(question::TIMESTAMPS) {
            true => Some(int(libc::TCP_TIMESTAMP).ok_or_else(|| stays("TCP_TIMESTAMP"))? as u32),
            false => None,
        };
        Ok(Taken {
            local: self.local,
            remote: self.remote,
            state,
            send_unacknowledged: send_end.wrapping_sub(queued as u32),
            sent: queued.saturating_sub(never_sent),
            outgoing,
            send_window: window.send_window,
            largest_send_window: window.largest_send_window,
            window_update: window.update_sequence,
            receive_next,
            acknowledged: window.receive_update,
            receive_window: if (beyond as i32) < 0 { 0 } else { beyond },
            unread,
            reading_ended: ended && state == State::Established,
            segment_size: segment_size.clamp(0, c_int::from(u16::MAX)) as u16,
            window_scale: info.window_scale(),
            sack: info.has(question::SACK),
            timestamps: stamp.map(|stamp| Timestamps { value: stamp.wrapping_add(1), recent: 0 }),
            ecn: info.has(question::ECN),
            path_mtu: info.path_mtu(),
            measured: info.measured(),
            counted: info.counted(),
            is_incomplete: false,
        })
    }

    /// Is what was read still so? Segments come only if there is no filter; what leaves by a timer
    /// of the kernel's moves SND.NXT.
    fn check_unchanged(&self, taken: &Taken) -> Result<(), Error> {
        let fd = self.target.fd;
        self.target.choose(Queue::Receive)?;
        let receive_next = self.target.queue_sequence()?;
        self.target.choose(Queue::None)?;
        let info = Info::of(fd)?;
        let queued = count(fd, question::SIOCOUTQ)?;
        let sent = queued.saturating_sub(count(fd, question::SIOCOUTQNSD)?);
        let is_same = receive_next == taken.receive_next
            && (queued, sent) == (taken.outgoing.len(), taken.sent)
            && info.has_ended() == (taken.state == State::CloseWait);
        check_state(&info)?;
        if is_same { Ok(()) } else { Err(passes("a change")) }
    }

    /// Another socket on the same address and port, which keeps both from others while `fd` is not
    /// bound. Its bind() also ends that the kernel shares a port which it chose in connect() among
    /// connections to different peers (`inet_csk_update_fastreuse`).
    fn hold_port(&self) -> Result<Fd, Error> {
        let failed =
            |errno: rustix::io::Errno| Error { call: "socket", errno: errno.raw_os_error() };
        let socket = shadow::stream_for(self.local).map_err(failed)?;
        let device = shadow::int_option(self.target.fd, libc::SOL_SOCKET, BIND_TO_INDEX);
        if let Some(device) = device.filter(|device| *device != 0) {
            shadow::set_int_option(socket.raw(), libc::SOL_SOCKET, BIND_TO_INDEX, device);
        }
        let holder = Target { fd: socket.raw(), unfiltered: true, segment_size: 0 };
        holder.set_int("TCP_REPAIR", libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON)?;
        holder.bind(self.local)?;
        Ok(socket)
    }

    /// The kernel forgets the connection.
    fn forget(&self, holder: Option<Fd>) -> Result<(), Error> {
        self.target.disconnect()?;
        // Reading it clears the ECONNABORTED that a connection in repair leaves behind.
        let _ = shadow::int_option(self.target.fd, libc::SOL_SOCKET, libc::SO_ERROR);
        if holder.is_some() {
            // EINVAL: it is bound already, because the program has bound it. (getsockname() tells
            // a port in any case, the connection's.) No other error is known: in repair mode
            // bind() does not ask for conflicts. It would have no meaning: the connection is the
            // caller's now.
            let _ = self.target.bind(self.local);
        } else {
            self.forget_port();
        }
        Ok(())
    }

    /// Lets getsockname() tell no port any more: the kernel keeps the number of one that it has taken
    /// back, until the next bind().
    fn forget_port(&self) {
        let fd = self.target.fd;
        let late = shadow::int_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
        let set = |late| {
            let name = libc::IP_BIND_ADDRESS_NO_PORT;
            shadow::set_int_option(fd, libc::IPPROTO_IP, name, late);
        };
        set(1);
        let _ = self.target.bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        set(late.unwrap_or(0));
    }
}

/// What a socket is or is not, whatever its connection does.
fn check_kind(fd: c_int) -> Result<(), Error> {
    let socket = |name| shadow::int_option(fd, libc::SOL_SOCKET, name);
    if socket(libc::SO_PROTOCOL) != Some(libc::IPPROTO_TCP) {
        // MPTCP, too.
        return Err(stays("SO_PROTOCOL"));
    }
    // -1, or an error, if none is set. The disconnect would end it.
    if socket(libc::SO_PEEK_OFF).is_some_and(|offset| offset >= 0) {
        return Err(stays("SO_PEEK_OFF"));
    }
    let tcp = |name, room: &mut [u8]| shadow::option(fd, libc::IPPROTO_TCP, name, room);
    if tcp(libc::TCP_ULP, &mut [0; 16]).is_some_and(|len| len > 0) {
        return Err(stays("TCP_ULP"));
    }
    // ENOENT without a key.
    if tcp(TCP_AO_INFO, &mut [0; 64]).is_some() {
        return Err(stays("TCP_AO"));
    }
    Ok(())
}

/// What a connection may be in the midst of.
fn check_state(info: &Info) -> Result<(), Error> {
    if !info.is_established() && !info.has_ended() {
        return Err(Error { call: "state", errno: libc::ENOTCONN });
    }
    if info.has(question::FAST_OPEN) {
        return Err(stays("TCP_FASTOPEN"));
    }
    if info.is_retransmitting() {
        return Err(passes("retransmissions"));
    }
    Ok(())
}

/// An obstacle that stays.
fn stays(call: &'static str) -> Error {
    Error { call, errno: libc::EOPNOTSUPP }
}

/// An obstacle that may pass.
fn passes(call: &'static str) -> Error {
    Error { call, errno: libc::EAGAIN }
}

/// The send queue may begin with bytes that are acknowledged already: those of one super-frame at
/// most.
const MOST_ACKNOWLEDGED: usize = 1 << 17;

const TCP_AO_INFO: c_int = 40;
