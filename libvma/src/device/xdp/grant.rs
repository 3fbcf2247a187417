//! A ring that the daemon grants (`libvma_dev::grant`): asked for where the process may not load programs itself.
//!
//! The daemon loads and attaches the steering program, and keeps its flows: each change of them is a question to it, of some
//! 50 us. If it does not answer it is not asked again.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;

use libvma_dev::grant::{Answer, HANDED, Request, SOCKET, address, kind};
use libvma_dev::ipv6_stand_ins;
use rustix::fd::{AsFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::flows::Flows;
use super::ingress::Maps;
use super::program::Sizes;
use crate::device::{Flow, OpenError};
use crate::sys::wait::{PollFd, ppoll};
use crate::sys::{Fd, fd, time, unix_socket};

/// How long the daemon may take to make a ring, and to answer for a flow.
const RING_NANOS: u64 = 2_000_000_000;
const FLOW_NANOS: u64 = 500_000_000;
/// Flows are of UDP.
const UDP: u8 = 17;

/// The connection that the ring lasts with.
pub struct Grant {
    connection: Fd,
    /// The daemon did not answer.
    is_lost: bool,
}

/// A ring that was granted.
pub struct Granted {
    pub grant: Grant,
    pub maps: Maps,
    pub tap: Fd,
}

impl Granted {
    /// Asks the daemon for a ring on an interface. None if there is no daemon that grants any.
    ///
    /// Not asked, either, for what it has refused a moment ago: an interface is tried again when any interface changes, and another
    /// process that asks is such a change.
    pub fn ask(interface: u32, sizes: Sizes) -> Option<Result<Granted, OpenError>> {
        if Refusals::lately(interface) {
            return None;
        }
        let connection = unix_socket::connect_path(SOCKET).ok()?;
        let mut grant = Grant { connection, is_lost: false };
        let opened = grant.open(interface, sizes);
        if opened.is_err() {
            Refusals::note(interface);
        }
        Some(opened.map(|(maps, tap)| Granted { grant, maps, tap }))
    }
}

/// Interfaces that the daemon did not grant, and when.
struct Refusals([(u32, u64); 8]);

static REFUSALS: Mutex<Refusals> = Mutex::new(Refusals([(0, 0); 8]));
const PAUSE_NANOS: u64 = 10_000_000_000;

impl Refusals {
    fn lately(interface: u32) -> bool {
        let since = time::monotonic_nanos().saturating_sub(PAUSE_NANOS);
        let is_that = |(of, at): &(u32, u64)| *of == interface && *at != 0 && *at > since;
        REFUSALS.lock().is_ok_and(|known| known.0.iter().any(is_that))
    }

    fn note(interface: u32) {
        let Ok(mut known) = REFUSALS.lock() else { return };
        let place = known.0.iter().position(|(of, _)| *of == interface);
        let oldest = || known.0.iter().enumerate().min_by_key(|(_, (_, at))| *at);
        let place = place.or_else(|| oldest().map(|(place, _)| place));
        if let Some(entry) = place.and_then(|place| known.0.get_mut(place)) {
            *entry = (interface, time::monotonic_nanos());
        }
    }
}

/// Does a daemon grant rings?
pub fn is_daemon_there() -> bool {
    unix_socket::connect_path(SOCKET).is_ok()
}

impl Grant {
    /// By a connection to somebody who answers as the daemon does.
    #[cfg(test)]
    pub fn by(connection: Fd) -> Grant {
        Grant { connection, is_lost: false }
    }

    /// Readable when the ring has ended.
    pub fn connection(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    fn open(&mut self, interface: u32, sizes: Sizes) -> Result<(Maps, Fd), OpenError> {
        let mut request = Request::new(kind::OPEN);
        request.interface = interface;
        request.chunks = sizes.chunks;
        request.slots = sizes.slots;
        let silent = |errno: Errno| OpenError::System {
            call: "a request to vmad",
            errno: errno.raw_os_error(),
        };
        // The daemon may have refused already, and closed the connection: its answer is read all the same.
        let _ = unix_socket::send(&self.connection, request.message(), &[]);
        let end = time::monotonic_nanos() + RING_NANOS;
        let mut pairs = [const { [None, None] }; HANDED.len()];
        for pair in &mut pairs {
            let (answer, descriptors) = self.answer(end).map_err(silent)?;
            if answer.errno != 0 {
                return Err(OpenError::Granted(answer.words().to_owned()));
            }
            *pair = descriptors;
        }
        let [[chunks, slots], [bells, waiters], [control, tap]] = pairs;
        let missing = || OpenError::Granted("descriptors are missing".into());
        let maps = Maps {
            chunks: chunks.ok_or_else(missing)?,
            slots: slots.ok_or_else(missing)?,
            control: control.ok_or_else(missing)?,
            bells: bells.ok_or_else(missing)?,
            waiters: waiters.ok_or_else(missing)?,
        };
        Ok((maps, tap.ok_or_else(missing)?))
    }

    /// `shown` is the kernel's socket that has the flow.
    pub fn add(&mut self, flow: Flow, shown: RawFd) -> Result<(), Errno> {
        let request = about(kind::ADD, flow)?;
        fd::with_borrowed(shown, |socket| self.ask(&request, &[socket])).ok_or(Errno::BADF)?
    }

    /// When this returns the daemon holds the socket no more that was shown.
    pub fn remove(&mut self, flow: Flow) {
        // A flow that the daemon does not know is gone.
        let _ = about(kind::REMOVE, flow).and_then(|request| self.ask(&request, &[]));
    }

    /// The interface has another MAC address or MTU.
    pub fn refresh(&mut self) -> Result<(), Errno> {
        self.ask(&Request::new(kind::REFRESH), &[])
    }

    /// No stand-in is left for a peer: what comes from it is the kernel's from now on.
    pub fn leave_to_kernel(&mut self, peer: Ipv6Addr) -> Result<(), Errno> {
        let mut request = Request::new(kind::STRANGER);
        request.source = peer.octets();
        self.ask(&request, &[])
    }

    /// Gives the ring back.
    pub fn end(&mut self) {
        self.is_lost = true;
        unix_socket::end(&self.connection);
    }

    /// The ring has ended: the daemon is gone, or does not answer.
    pub fn is_over(&self) -> bool {
        self.is_lost
            || crate::sys::wait::poll_now(self.connection.raw(), libc::POLLRDHUP) & ENDED != 0
    }

    fn ask(&mut self, request: &Request, shown: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        if self.is_lost {
            return Err(Errno::NOTCONN);
        }
        let sent = unix_socket::send(&self.connection, request.message(), shown);
        let end = time::monotonic_nanos() + FLOW_NANOS;
        match sent.and_then(|()| self.answer(end)) {
            Ok((answer, _)) if answer.errno == 0 => Ok(()),
            Ok((answer, _)) => Err(Errno::from_raw_os_error(answer.errno)),
            Err(errno) => {
                // A late answer would be taken for that of the next question, and what it does unknown: the ring ends.
                self.end();
                Err(errno)
            }
        }
    }

    fn answer(&self, end: u64) -> Result<(Answer, [Option<Fd>; 2]), Errno> {
        let mut bytes = [0; size_of::<Answer>()];
        loop {
            match unix_socket::receive(&self.connection, &mut bytes) {
                Ok(received) if received.len == bytes.len() => {
                    let answer = Answer::read_from_bytes(&bytes).map_err(|_| Errno::PROTO)?;
                    return Ok((answer, received.descriptors));
                }
                Ok(received) => {
                    return Err(if received.len == 0 { Errno::CONNRESET } else { Errno::PROTO });
                }
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
            let left = end.saturating_sub(time::monotonic_nanos());
            if left == 0 {
                return Err(Errno::TIMEDOUT);
            }
            let mut wanted =
                [PollFd { fd: self.connection.raw(), events: libc::POLLIN, revents: 0 }];
            // Interrupted: it is asked again.
            let _ = ppoll(&mut wanted, Some(left), None);
        }
    }
}

impl super::Ring {
    /// The daemon, if it has granted the ring, has a peer's datagrams left to the kernel, for which the process has no stand-in.
    #[cold]
    pub fn tell_stranger(&mut self, peer: Ipv6Addr) {
        if let Flows::Granted(granted) = &mut self.program.flows {
            granted.tell_stranger(peer);
        }
    }
}

const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;

fn about(kind: u32, flow: Flow) -> Result<Request, Errno> {
    let mut request = Request::new(kind);
    let (protocol, destination) = flow.destination();
    let (Flow::ThreeTuple { port, .. } | Flow::FiveTuple { port, .. }) = flow;
    if protocol != UDP {
        return Err(Errno::OPNOTSUPP);
    }
    request.destination = address(real(destination)?);
    request.port = port.into();
    if let Flow::FiveTuple { source, source_port, .. } = flow {
        request.source = address(real(source)?);
        request.source_port = source_port.into();
    }
    Ok(request)
}

/// The address that a flow has outside this process.
fn real(known: Ipv4Addr) -> Result<IpAddr, Errno> {
    match ipv6_stand_ins::is_one(known) {
        true => ipv6_stand_ins::real(known).map(IpAddr::V6).ok_or(Errno::OPNOTSUPP),
        false => Ok(IpAddr::V4(known)),
    }
}
