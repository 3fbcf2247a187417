//! The two sockets of one network namespace: a raw one that speaks in the names of dead
//! connections, and a packet socket that hears their peers. Open only while a notification is under
//! way.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::event::epoll;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use super::notification::{Heard, Notification};
use super::segment::{self, Kind};
use super::{Connection, would_block};
use crate::namespace::Namespace;

pub struct Channel {
    pub notifications: HashMap<Connection, Notification>,
    speaks: Socket,
    /// The address that `speaks` is bound to.
    name: Ipv4Addr,
    hears: Socket,
    /// Whether it was said already that RSTs do not reach a peer.
    warned: bool,
    /// The sockets keep it, but the channel is known by its identity, which must not come to name
    /// another one.
    _namespace: Rc<Namespace>,
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
    /// Opens the sockets inside `namespace`, and adds the one to `epoll` that receives.
    ///
    /// # Errors EPERM without CAP_NET_RAW there or CAP_SYS_ADMIN, EMFILE and the like; the message
    /// says which call.
    pub fn open(namespace: &Rc<Namespace>, epoll: &OwnedFd) -> io::Result<Self> {
        let (speaks, hears) = namespace
            .inside(|| Ok((speaking()?, hearing()?)))
            .map_err(|error| named("setns into the process's network namespace", &error))
            .flatten()?;
        // Without CAP_NET_ADMIN it stays as it is, some 300 answers.
        let _ = set_socket_recv_buffer_size_force(&hears, RECEIVE_BUFFER);
        epoll::add(epoll, &hears, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        Ok(Self {
            notifications: HashMap::new(),
            speaks,
            name: Ipv4Addr::UNSPECIFIED,
            hears,
            warned: false,
            _namespace: Rc::clone(namespace),
        })
    }

    /// Reads what peers answered; with `force` resets them from here, too.
    pub fn listen(&mut self, force: bool) {
        for _ in 0..ANSWERS {
            // Longer ones end at the filter.
            let mut buffer = [0_u8; 128];
            match (&self.hears).read(&mut buffer) {
                Ok(length) => self.hear(&buffer[..length], force),
                Err(error) if would_block(&error) => return,
                // A link went down, for example.
                Err(error) => log::debug!("hearing peers: {error}"),
            }
        }
    }

    /// Sends a SYN, a FIN probe or both.
    pub fn say(&mut self, connection: Connection, syn: bool, probe: bool) -> Sent {
        if let Err(error) = self.call_itself(*connection.local.ip()) {
            log::debug!(
                "{connection}: {} is no address of this host: {error}",
                connection.local.ip()
            );
            return Sent::Gone;
        }
        if syn {
            self.send(&connection, Kind::Syn);
        }
        if probe {
            self.send(&connection, Kind::Probe);
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
            && self.call_itself(*connection.local.ip()).is_ok()
        {
            self.send(&connection, Kind::Rst(expects));
        }
        if !matches!(heard, Heard::Alive { .. }) {
            log::debug!("{peer} has no connection with {} any more", connection.local);
            self.notifications.remove(&connection);
        }
    }

    /// Binds the raw socket to the address in whose name it speaks next. The packet has it anyway;
    /// this makes the route follow it, where rules look at the source (ip-rule(8)).
    fn call_itself(&mut self, name: Ipv4Addr) -> io::Result<()> {
        if self.name != name {
            self.speaks.bind(&SocketAddrV4::new(name, 0).into())?;
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
        let packet = segment::packet(connection, kind);
        let to = SockAddr::from(SocketAddrV4::new(*connection.peer.ip(), 0));
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
    speaking().and(hearing()).map(drop)
}

/// A raw socket that takes whole IPv4 packets and receives nothing.
fn speaking() -> io::Result<Socket> {
    /// `IPPROTO_RAW`: implies `IP_HDRINCL` (raw(7)).
    const RAW: i32 = 255;
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)))
        .map_err(|error| named("raw socket (CAP_NET_RAW)", &error))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A packet socket for answers, whatever interface they come by.
///
/// A raw socket would hear them behind the firewall only; the packet socket also hears what the
/// firewall keeps from the kernel, where `--force-rst` is what is needed.
fn hearing() -> io::Result<Socket> {
    /// `ETH_P_IP` in network byte order (packet(7)).
    const IPV4: i32 = 0x0800_u16.to_be() as i32;
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(IPV4)))
        .map_err(|error| named("packet socket (CAP_NET_RAW)", &error))?;
    socket.attach_filter(&answer_filter())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Lets through what an answer can look like, so that a host's other traffic does not wake the
/// daemon: received, TCP, unfragmented, with ACK or RST, without payload. The packet begins with
/// its IPv4 header.
///
/// Classic BPF as in linux/filter.h and the kernel's networking/filter.rst. A jump skips that many
/// instructions.
fn answer_filter() -> [SockFilter; 19] {
    const LD_W_ABS: u16 = 0x20;
    const LD_H_ABS: u16 = 0x28;
    const LD_B_ABS: u16 = 0x30;
    const LD_B_IND: u16 = 0x50;
    const LDX_HEADER_LENGTH: u16 = 0xb1;
    const JEQ: u16 = 0x15;
    const JSET: u16 = 0x45;
    const AND: u16 = 0x54;
    const RSH: u16 = 0x74;
    const ADD_X: u16 = 0x0c;
    const SUB_X: u16 = 0x1c;
    const TAX: u16 = 0x07;
    const RET: u16 = 0x06;
    /// `SKF_AD_OFF + SKF_AD_PKTTYPE`.
    const PACKET_TYPE: u32 = 0xffff_f004;
    const OUTGOING: u32 = 4;
    /// Where the last instruction stands.
    const DROP: u8 = 18;
    let step = |code, k| SockFilter::new(code, 0, 0, k);
    // The first number is where the instruction itself stands.
    let drop_if = |at, code, k| SockFilter::new(code, DROP - 1 - at, 0, k);
    let drop_unless = |at, code, k| SockFilter::new(code, 0, DROP - 1 - at, k);
    [
        step(LD_W_ABS, PACKET_TYPE),
        drop_if(1, JEQ, OUTGOING),
        step(LD_B_ABS, 9), // the protocol
        drop_unless(3, JEQ, 6),
        step(LD_H_ABS, 6), // more fragments, fragment offset
        drop_if(5, JSET, 0x3fff),
        step(LDX_HEADER_LENGTH, 0),
        step(LD_B_IND, 13), // the flags: ACK, RST
        drop_unless(8, JSET, 0x14),
        step(LD_B_IND, 12), // the data offset, in words, in the upper half
        step(RSH, 2),
        step(AND, 0x3c),
        step(ADD_X, 0),
        step(TAX, 0),      // both headers
        step(LD_H_ABS, 2), // the whole packet
        step(SUB_X, 0),
        drop_unless(16, JEQ, 0),
        step(RET, 120), // both headers at their longest
        step(RET, 0),
    ]
}

fn named(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
