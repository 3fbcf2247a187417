//! The sockets that a process shows for its flows, and the thread that touches them.
//!
//! The owner of a socket can keep its lock held for as long as a file system in user space likes, and closing other descriptors may take
//! as long. So a ring has a thread for them, of which an answer is awaited for a moment only; without one the ring ends, and
//! the thread keeps the place of its connection.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::anyhow;
use aya::maps::{MapData, MapError, SockMap};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use socket2::{Domain, Protocol, SockRef, Type};

use super::{Place, Refused, tap, thread};

/// The process waits for 500 ms.
const MOMENT: Duration = Duration::from_millis(200);

/// BPF_ANY and BPF_NOEXIST.
const ANY: u64 = 0;
const NO_EXIST: u64 = 1;

/// The thread, from outside.
pub struct Shown {
    commands: Sender<Command>,
    answers: Receiver<Result<Facts, Refused>>,
    is_stuck: bool,
}

enum Command {
    Look(Vec<OwnedFd>),
    Mark { place: u32, again: bool },
    Clear(u32),
    Close,
}

/// The kernel's answers about a socket of UDP.
#[derive(Default)]
pub struct Facts {
    pub namespace: Option<File>,
    /// Own address and port, of IPv6 for a socket of AF_INET6.
    pub local: Option<SocketAddr>,
    /// False: a socket of AF_INET6 that takes IPv6 only.
    pub takes_ipv4: bool,
    pub peer: Option<SocketAddr>,
    pub device: Option<Vec<u8>>,
    pub cookie: u64,
}

impl Facts {
    /// The address and port that the socket is bound to, if datagrams to this address and port may be the socket's.
    pub fn bound_to(&self, (address, port): (IpAddr, u16)) -> Option<SocketAddr> {
        let bound = self.local.filter(|bound| bound.port() == port)?;
        let takes = match (bound.ip(), address) {
            (IpAddr::V6(own), IpAddr::V4(to)) => {
                let is_that = |mapped: Ipv4Addr| mapped.is_unspecified() || mapped == to;
                let is_own = own.is_unspecified() || own.to_ipv4_mapped().is_some_and(is_that);
                self.takes_ipv4 && is_own
            }
            (IpAddr::V4(_), IpAddr::V6(_)) => false,
            (own, to) => own.is_unspecified() || own == to,
        };
        takes.then_some(bound)
    }

    /// The peer that the socket is connected to.
    pub fn peer(&self) -> Option<(IpAddr, u16)> {
        self.peer.map(|peer| (peer.ip().to_canonical(), peer.port()))
    }
}

impl Shown {
    /// `sockets` is the map by which the programs know the sockets.
    ///
    /// # Errors
    /// Of making a thread.
    pub fn start(place: &Place, sockets: SockMap<MapData>) -> std::io::Result<Shown> {
        let (commands, orders) = channel();
        let (tell, answers) = channel();
        let place = place.clone();
        thread(move || {
            serve(sockets, &orders, &tell);
            drop(place);
        })?;
        Ok(Shown { commands, answers, is_stuck: false })
    }

    /// The one socket that is shown; it stays with the thread until [`Shown::close`].
    ///
    /// # Errors
    /// EBADF, EACCES: it is none; ETIMEDOUT.
    pub fn look(&mut self, shown: Vec<OwnedFd>) -> Result<Facts, Refused> {
        self.ask(Command::Look(shown))
    }

    /// The programs know the socket by this place.
    ///
    /// # Errors
    /// EADDRINUSE: another one that is open has the place, unless `again`; EIO in words; ETIMEDOUT.
    pub fn mark(&mut self, place: u32, again: bool) -> Result<(), Refused> {
        self.ask(Command::Mark { place, again }).map(|_| ())
    }

    /// The place is free.
    pub fn clear(&self, place: u32) {
        let _ = self.commands.send(Command::Clear(place));
    }

    /// Closes what was shown. False: that takes too long.
    pub fn close(&mut self) -> bool {
        self.ask(Command::Close).is_ok()
    }

    fn ask(&mut self, command: Command) -> Result<Facts, Refused> {
        let late = || Refused::new(Errno::TIMEDOUT, "what was shown does not answer");
        // A late answer would be taken for that of the next question.
        if self.is_stuck || self.commands.send(command).is_err() {
            return Err(late());
        }
        self.answers.recv_timeout(MOMENT).unwrap_or_else(|_| {
            self.is_stuck = true;
            Err(late())
        })
    }
}

fn serve(
    mut sockets: SockMap<MapData>,
    orders: &Receiver<Command>,
    tell: &Sender<Result<Facts, Refused>>,
) {
    let mut shown = Vec::new();
    while let Ok(command) = orders.recv() {
        let answer = match command {
            Command::Look(these) => {
                shown = these;
                look(&shown)
            }
            Command::Mark { place, again } => mark(&mut sockets, &shown, place, again),
            Command::Clear(place) => {
                // A closed one is out already.
                let _ = sockets.clear_index(&place);
                continue;
            }
            Command::Close => {
                shown.clear();
                Ok(Facts::default())
            }
        };
        if tell.send(answer).is_err() {
            return;
        }
    }
}

fn look(shown: &[OwnedFd]) -> Result<Facts, Refused> {
    let [shown] = shown else {
        return Err(Refused::new(Errno::BADF, "a flow needs the socket that has it"));
    };
    let socket = SockRef::from(shown);
    let is_udp = socket.domain().is_ok_and(|it| matches!(it, Domain::IPV4 | Domain::IPV6))
        && socket.r#type().is_ok_and(|kind| kind == Type::DGRAM)
        && socket.protocol().is_ok_and(|protocol| protocol == Some(Protocol::UDP));
    if !is_udp {
        return Err(Refused::new(Errno::ACCESS, "what was shown is no socket of UDP"));
    }
    let is_ipv6 = socket.domain().is_ok_and(|domain| domain == Domain::IPV6);
    let takes_ipv4 = !is_ipv6 || socket.only_v6().is_ok_and(|only| !only);
    let cookie = socket_cookie(shown)
        .map_err(|errno| Refused::new(errno, format!("the socket shown has no cookie: {errno}")))?;
    Ok(Facts {
        namespace: tap::namespace_of(shown).ok(),
        local: socket.local_addr().ok().and_then(|it| it.as_socket()),
        takes_ipv4,
        peer: socket.peer_addr().ok().and_then(|it| it.as_socket()),
        device: socket.device().ok().flatten(),
        cookie,
    })
}

fn mark(
    sockets: &mut SockMap<MapData>,
    shown: &[OwnedFd],
    place: u32,
    again: bool,
) -> Result<Facts, Refused> {
    let [shown] = shown else { return look(shown) };
    let flags = if again { ANY } else { NO_EXIST };
    let marked = sockets.set(place, shown, flags).map(|()| Facts::default());
    marked.map_err(|error| match error {
        MapError::SyscallError(error) if error.io_error.kind() == ErrorKind::AlreadyExists => {
            let why = "another socket of the ring has the address and port, too";
            Refused::new(Errno::ADDRINUSE, why)
        }
        error => Refused::failed(&anyhow!(error).context("the socket cannot be marked")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_what_the_kernel_would_give_it() {
        let facts = |local: &str, takes_ipv4| Facts {
            local: Some(local.parse().unwrap()),
            takes_ipv4,
            ..Facts::default()
        };
        let takes = |facts: &Facts, to: &str| {
            let to: SocketAddr = to.parse().unwrap();
            facts.bound_to((to.ip(), to.port())).is_some()
        };
        let (four, six) = ("10.0.0.1:5000", "[2001:db8::1]:5000");
        for (local, takes_ipv4, has) in [
            ("0.0.0.0:5000", true, [true, false]),
            ("10.0.0.1:5000", true, [true, false]),
            ("10.0.0.2:5000", true, [false, false]),
            ("[::]:5000", true, [true, true]),
            ("[::]:5000", false, [false, true]),
            ("[::]:5001", true, [false, false]),
            ("[2001:db8::1]:5000", true, [false, true]),
            ("[2001:db8::2]:5000", true, [false, false]),
            ("[::ffff:10.0.0.1]:5000", true, [true, false]),
            ("[::ffff:10.0.0.2]:5000", true, [false, false]),
            ("[::ffff:0.0.0.0]:5000", true, [true, false]),
        ] {
            let facts = facts(local, takes_ipv4);
            assert_eq!([takes(&facts, four), takes(&facts, six)], has, "{local}");
        }
        assert!(Facts::default().bound_to(([10, 0, 0, 1].into(), 0)).is_none());
    }
}
