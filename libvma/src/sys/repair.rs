//! Giving an established TCP connection to the kernel: its state is installed into an unconnected
//! kernel socket with TCP_REPAIR (tcp(7), `CONFIG_CHECKPOINT_RESTORE`, CAP_NET_ADMIN).
//!
//! The kernel then goes on where the snapshot ends: it retransmits what is not acknowledged, sends
//! the rest, closes. What repair mode cannot say directly:
//!
//! - A received FIN. The receive queue takes bytes only, so the FIN is `forge`d: received once
//!   more, over the loopback interface.
//! - A sent FIN. The data before it is installed and the socket shut down again: the same FIN, at the
//!   same sequence number.
//! - TS.Recent (RFC 7323 section 4.3): taken from a forged segment too.
//! - The urgent pointer, SACKed ranges, congestion window and round-trip time: the kernel starts
//!   with its own, as after connect().
//!
//! - TIME-WAIT without a program. FIN-WAIT-2 stands for it, with the peer's FIN not received: if the peer
//!   repeats that FIN, because our acknowledgment was lost, the kernel acknowledges it and is in TIME-WAIT
//!   then. Nothing leaves for the wire.
//! - TIME-WAIT with a program that has the descriptor. A reset of the peer, which may have gone already, would
//!   be an error in FIN-WAIT-2. So the FIN is forged, too: the kernel acknowledges it once more.
//! - CLOSED, with unread data, or with an end that the program has not seen: an established connection that
//!   is reset by a forged segment. Whether the program learns of that is ours to decide.
//!
//! The states before ESTABLISHED cannot be installed. Which connection is given away, when and why is not
//! decided here.
#![doc(alias = "TCP_REPAIR")]

mod calls;
mod forge;
mod steps;
mod take;
#[cfg(test)]
mod tests;

use core::ffi::c_int;
use std::net::SocketAddrV4;
use std::sync::OnceLock;

use libvma_dev::ipv6_loopback::named;

use super::sockaddr::Family;
use super::{Fd, rights, shadow};
use steps::Target;
pub use take::{Counted, Measured, Origin, Taken, take};

/// A connection between two segments.
///
/// Sequence numbers are RFC 9293's (section 3.3.1), so a FIN counts for one in them once it is sent
/// or received.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    pub local: SocketAddrV4,
    pub remote: SocketAddrV4,
    pub state: State,
    /// SND.UNA: the sequence number of the first byte of `unacknowledged`.
    pub send_unacknowledged: u32,
    /// Bytes sent and not acknowledged.
    pub unacknowledged: [&'a [u8]; 2],
    /// Bytes never sent. Our FIN, if `state` has one, follows them, sent or not.
    pub unsent: [&'a [u8]; 2],
    /// SND.WND, in bytes.
    pub send_window: u32,
    /// The largest window that the peer ever offered, in bytes.
    pub largest_send_window: u32,
    /// RCV.NXT: the bytes before it that the program has not read are `unread`.
    pub receive_next: u32,
    /// RCV.WND as the peer knows it: no byte beyond RCV.NXT + RCV.WND may come.
    pub receive_window: u32,
    /// Bytes received in order and not read by the program.
    pub unread: &'a [&'a [u8]],
    /// The peer's MSS option, or the program's TCP_MAXSEG if that is less.
    pub segment_size: u16,
    /// The shift counts, if both sides sent the option (RFC 7323 section 2.2).
    pub window_scale: Option<WindowScale>,
    /// Both sides sent SACK-permitted (RFC 2018 section 2).
    pub sack: bool,
    /// The timestamps, if both sides sent the option (RFC 7323 section 3.2).
    pub timestamps: Option<Timestamps>,
    /// In CLOSED: the program has still to learn of an error.
    pub failed: bool,
    /// In TIME-WAIT: a program has the descriptor, and may still read.
    pub is_held: bool,
}

/// The states that can be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    /// CLOSED: what is unread, then the end, or ECONNRESET ([`Snapshot::failed`]).
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowScale {
    /// Snd.Wind.Shift
    pub send: u8,
    /// Rcv.Wind.Shift
    pub receive: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// What our next segment would have as TSval. The kernel counts on from it, in milliseconds.
    pub value: u32,
    /// TS.Recent
    pub recent: u32,
}

/// A call that failed: which one, and the errno it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    pub call: &'static str,
    pub errno: c_int,
}

/// Makes `fd` the connection of `snapshot`.
///
/// `fd` is a TCP socket of AF_INET, or of AF_INET6 that takes the connection's family, and is not connected; for a connection of
/// IPv6 it is of AF_INET6. It may be bound to the connection's local port, by whatever process; else it is bound here, also if a listener has the port. Its
/// options stay; for SO_KEEPALIVE, TCP_NODELAY and so on the program's must be set before.
///
/// The peer's segments should reach the kernel only once this has returned: while there is no
/// socket yet, the kernel would answer them with RST. What comes meanwhile is lost as on the wire,
/// acknowledgments of what the kernel sends here included. So, when the peer's segments reach the
/// kernel, [`probe`].
///
/// On an error nothing was given away, and `fd` is not connected; it stays bound if it was bound
/// here. No wake-up tells those who wait for the socket of data that was installed as `unread`.
pub fn install(fd: c_int, snapshot: &Snapshot<'_>) -> Result<(), Error> {
    if shadow::peer_address(fd).is_some() {
        // What follows would take its connection away on an error.
        return Err(Error { call: "connect", errno: libc::EISCONN });
    }
    if named(snapshot.local).is_ipv6() && shadow::family(fd) == Family::Ipv4 {
        // The kernel would take the stand-in for an IPv4 address, and talk to nobody.
        return Err(Error { call: "family", errno: libc::EAFNOSUPPORT });
    }
    // Repair mode overwrites it and its end clears it (`SK_FORCE_REUSE` in the kernel).
    let reuse = shadow::int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR);
    // A filter that the program attached is not replaced.
    let unfiltered = !shadow::has_filter(fd);
    // In repair mode it would answer for the connection.
    let segment_size = shadow::int_option(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG);
    let segment_size = segment_size.filter(|size| *size != DEFAULT_MAXSEG).unwrap_or(0);
    let target = Target { fd, unfiltered, segment_size };
    let _raised = rights::raise();
    target.set_int("TCP_REPAIR", libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON)?;
    let result = target.transplant(snapshot);
    if result.is_err() {
        target.uproot();
    }
    if let Some(reuse) = reuse {
        shadow::set_int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse);
    }
    result
}

/// May this thread install connections?
pub fn is_allowed() -> bool {
    // A thread can lose the right at any time; that the kernel can do it at all is asked once.
    static KNOWN: OnceLock<bool> = OnceLock::new();
    !rights::are_ending() && rights::are_held() && *KNOWN.get_or_init(try_repair)
}

fn try_repair() -> bool {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let Ok(socket) = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None) else {
        // Out of descriptors: the next one fails for that reason.
        return true;
    };
    let Ok(socket) = Fd::adopt_briefly(socket) else { return true };
    let _raised = rights::raise();
    shadow::set_int_option(socket.raw(), libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON);
    shadow::int_option(socket.raw(), libc::IPPROTO_TCP, libc::TCP_REPAIR) == Some(REPAIR_ON)
}

/// Has the kernel ask the peer for its window and for what it has received; else a lost
/// acknowledgment would be missed until the retransmission timeout, three seconds here. To be
/// called once, after [`install`]: peers answer only the first of several (Linux for half a second,
/// `tcp_invalid_ratelimit`). Does nothing but in ESTABLISHED.
///
/// The probe has a window as well, which the kernel then takes for known. But a peer acknowledges a segment that it
/// does not expect, and drops it (RFC 9293 section 3.10.7.4): if the window that it knows may be too small for a
/// segment, the kernel is told so, and announces the next one as soon as the program reads.
///
/// Nobody may send on the socket meanwhile.
pub fn probe(fd: c_int) {
    let target = Target { fd, unfiltered: false, segment_size: 0 };
    let _raised = rights::raise();
    let repair = |mode| shadow::set_int_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, mode);
    let reuse = shadow::int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR);
    repair(REPAIR_ON);
    let known = target.repair_window().ok();
    let known = known.filter(|window| window.receive_window <= LARGEST_SEGMENT);
    repair(REPAIR_OFF);
    if let Some(known) = known {
        repair(REPAIR_ON);
        target.expect_window_update(&known);
        repair(REPAIR_OFF_SILENTLY);
    }
    if let Some(reuse) = reuse {
        shadow::set_int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse);
    }
}

impl State {
    fn has_sent_fin(self) -> bool {
        !matches!(self, State::Established | State::CloseWait | State::Closed)
    }

    fn has_received_fin(self) -> bool {
        self.forges_fin() || self == State::TimeWait
    }

    /// The kernel shall have received the FIN, too.
    fn forges_fin(self) -> bool {
        matches!(self, State::CloseWait | State::Closing | State::LastAck)
    }

    fn has_acknowledged_fin(self) -> bool {
        matches!(self, State::FinWait2 | State::TimeWait)
    }
}

/// SND.UNA without our FIN.
fn sent_data(snapshot: &Snapshot<'_>) -> u32 {
    let fin = u32::from(snapshot.state.has_acknowledged_fin());
    snapshot.send_unacknowledged.wrapping_sub(fin)
}

/// RCV.NXT without the peer's FIN.
fn received_data(snapshot: &Snapshot<'_>) -> u32 {
    let fin = u32::from(snapshot.state.has_received_fin());
    snapshot.receive_next.wrapping_sub(fin)
}

fn total(pieces: &[&[u8]]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// The values of TCP_REPAIR.
const REPAIR_ON: c_int = 1;
const REPAIR_OFF: c_int = 0;
const REPAIR_OFF_SILENTLY: c_int = -1;

/// No peer waits for a larger window before it sends a segment.
const LARGEST_SEGMENT: u32 = 65535;

/// What it is unless set (`TCP_MSS_DEFAULT`, RFC 9293 section 3.7.1).
const DEFAULT_MAXSEG: c_int = 536;
