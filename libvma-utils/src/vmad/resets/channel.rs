//! The sockets of one network namespace, two for each family: a raw one that speaks in the names of dead
//! connections, and a packet socket that hears their peers. Open only while a notification is under
//! way.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::event::epoll;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::notification::{Heard, Notification};
use super::segment::{self, Kind};
use super::{Connection, filter, would_block};
use crate::namespace::Namespace;

pub struct Channel {
    pub notifications: HashMap<Connection, Notification>,
    ipv4: Option<Pair>,
    ipv6: Option<Pair>,
    /// Whether it was said already that RSTs do not reach a peer.
    warned: bool,
    /// The channel is known by its identity, which must not come to name another one.
    namespace: Rc<Namespace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

/// The sockets of one family.
struct Pair {
    speaks: Socket,
    /// The address that `speaks` is bound to.
    name: IpAddr,
    hears: Socket,
}

/// Whether a segment could leave.
pub enum Sent {
    /// Or it was lost at home; then the next round makes up for it.
    Yes,
    /// This host has no such address any more, so it has nothing to say about it either.
    Gone,
}

/// Bytes for answers that wait while the daemon does something else: 10 000 of them.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Answers read at one go, so that a flood of packets cannot hold the daemon.
const ANSWERS: usize = 4096;

impl Channel {
    /// Without sockets.
    pub fn new(namespace: &Rc<Namespace>) -> Self {
        Self {
            notifications: HashMap::new(),
            ipv4: None,
            ipv6: None,
            warned: false,
            namespace: Rc::clone(namespace),
        }
    }

    /// Opens the sockets of a family inside the namespace unless they are open, and adds the one to `epoll` that receives.
    ///
    /// # Errors EPERM without CAP_NET_RAW there or CAP_SYS_ADMIN, EMFILE and the like; the message
    /// says which call.
    pub fn open(&mut self, family: Family, epoll: &OwnedFd) -> io::Result<()> {
        let pair = match family {
            Family::Ipv4 => &mut self.ipv4,
            Family::Ipv6 => &mut self.ipv6,
        };
        if pair.is_some() {
            return Ok(());
        }
        let (speaks, hears) = self
            .namespace
            .inside(|| Ok((speaking(family)?, hearing(family)?)))
            .map_err(|error| named("setns into the process's network namespace", &error))
            .flatten()?;
        // Without CAP_NET_ADMIN it stays as it is, some 300 answers.
        let _ = set_socket_recv_buffer_size_force(&hears, RECEIVE_BUFFER);
        epoll::add(epoll, &hears, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        let name = match family {
            Family::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::Ipv6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        *pair = Some(Pair { speaks, name, hears });
        Ok(())
    }

    /// Reads what peers answered; with `force` resets them from here, too.
    pub fn listen(&mut self, force: bool) {
        for family in [Family::Ipv4, Family::Ipv6] {
            for _ in 0..ANSWERS {
                // Longer ones end at the filter.
                let mut buffer = [0_u8; 128];
                let Some(pair) = self.pair(family) else { break };
                match (&pair.hears).read(&mut buffer) {
                    Ok(length) => self.hear(&buffer[..length], force),
                    Err(error) if would_block(&error) => break,
                    // A link went down, for example.
                    Err(error) => log::debug!("hearing peers: {error}"),
                }
            }
        }
    }

    fn pair(&mut self, family: Family) -> Option<&mut Pair> {
        match family {
            Family::Ipv4 => self.ipv4.as_mut(),
            Family::Ipv6 => self.ipv6.as_mut(),
        }
    }

    /// Sends a SYN, a FIN probe or both.
    pub fn say(&mut self, connection: Connection, syn: bool, probe: bool) -> Sent {
        let Some(pair) = self.pair(connection.family()) else { return Sent::Gone };
        if let Err(error) = pair.call_itself(connection.local.ip()) {
            log::debug!(
                "{connection}: {} is no address of this host: {error}",
                connection.local.ip()
            );
            return Sent::Gone;
        }
        if syn {
            pair.send(&connection, Kind::Syn);
        }
        if probe {
            pair.send(&connection, Kind::Probe);
        }
        Sent::Yes
    }

    /// The notification has ended.
    pub fn finish(&mut self, connection: &Connection) {
        if let Some(notification) = self.notifications.remove(connection) {
            if notification.answered() {
                log::debug!("{connection}: told the peer, which says nothing to that");
            } else {
                log::debug!("{connection}: the peer never answered");
            }
        }
    }

    fn hear(&mut self, packet: &[u8], force: bool) {
        let Some((connection, answer)) = segment::answer(packet) else { return };
        let Some(notification) = self.notifications.get_mut(&connection) else { return };
        let heard = notification.hear(answer);
        let stubborn = notification.is_last_round();
        let peer = connection.peer;
        let rst = match heard {
            Heard::Alive { expects } => {
                log::debug!("recv SYN|ACK from: {peer} with SegNo: {expects}");
                if stubborn && !force && !self.warned {
                    self.warned = true;
                    log::warn!(
                        "{peer} still has its connection with {}: the kernel's RST did not reach it; \
                         see --force-rst",
                        connection.local
                    );
                }
                Some(expects)
            }
            Heard::HalfOpen { expects } => Some(expects),
            Heard::Done => None,
        };
        if let Some(expects) = rst
            && force
            && let Some(pair) = self.pair(connection.family())
            && pair.call_itself(connection.local.ip()).is_ok()
        {
            pair.send(&connection, Kind::Rst(expects));
        }
        if !matches!(heard, Heard::Alive { .. }) {
            log::debug!("{peer} has no connection with {} any more", connection.local);
            self.notifications.remove(&connection);
        }
    }
}

impl Pair {
    /// Binds the raw socket to the address in whose name it speaks next. The packet has it anyway;
    /// this makes the route follow it, where rules look at the source (ip-rule(8)).
    fn call_itself(&mut self, name: IpAddr) -> io::Result<()> {
        if self.name != name {
            self.speaks.bind(&SocketAddr::new(name, 0).into())?;
            self.name = name;
        }
        Ok(())
    }

    fn send(&self, connection: &Connection, kind: Kind) {
        match kind {
            Kind::Syn => log::debug!("send SYN to: {}", connection.peer),
            Kind::Probe => log::debug!("send FIN probe to: {}", connection.peer),
            Kind::Rst(_) => log::debug!("send RST to: {}", connection.peer),
        }
        let Some(packet) = segment::packet(connection, kind) else { return };
        let to = SockAddr::from(SocketAddr::new(connection.peer.ip(), 0));
        if let Err(error) = self.speaks.send_to(&packet, &to) {
            // No route, a firewall (EPERM), no room: lost, as it might have been on the way.
            log::debug!("{connection}: sending: {error}");
        }
    }
}

/// Tells at the start what would otherwise fail when the first process dies.
///
/// # Errors
/// EPERM without CAP_NET_RAW. The message says which socket.
pub fn probe_privilege() -> io::Result<()> {
    speaking(Family::Ipv4).and(hearing(Family::Ipv4)).map(drop)
}

/// A raw socket that takes whole packets and receives nothing.
fn speaking(family: Family) -> io::Result<Socket> {
    /// `IPPROTO_RAW`: implies `IP_HDRINCL` (raw(7)) and `IPV6_HDRINCL`.
    const RAW: i32 = 255;
    let domain = match family {
        Family::Ipv4 => Domain::IPV4,
        Family::Ipv6 => Domain::IPV6,
    };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))
        .map_err(|error| named("raw socket (CAP_NET_RAW)", &error))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A packet socket for answers, whatever interface they come by.
///
/// A raw socket would hear them behind the firewall only; the packet socket also hears what the
/// firewall keeps from the kernel, where `--force-rst` is what is needed.
fn hearing(family: Family) -> io::Result<Socket> {
    /// `ETH_P_IP` in network byte order (packet(7)).
    const IPV4: i32 = 0x0800_u16.to_be() as i32;
    /// `ETH_P_IPV6`.
    const IPV6: i32 = 0x86dd_u16.to_be() as i32;
    let protocol = match family {
        Family::Ipv4 => IPV4,
        Family::Ipv6 => IPV6,
    };
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(protocol)))
        .map_err(|error| named("packet socket (CAP_NET_RAW)", &error))?;
    match family {
        Family::Ipv4 => socket.attach_filter(&filter::ipv4())?,
        Family::Ipv6 => socket.attach_filter(&filter::ipv6())?,
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn named(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
