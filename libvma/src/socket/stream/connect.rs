//! connect(): the shadow reserves the port, the flow is steered, the SYN leaves.

use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::{self, is_stand_in};
use libvma_dev::ipv6_stand_ins;
use libvma_engine::tcp::State as TcpState;
use libvma_engine::tcp::lookup::FlowKey;

use super::route::Way;
use super::wait::{Call, Ended, Manner, Watches, until};
use super::{Guard, Outcome, Phase, Stack, WhyOs, errno, local, route, set_phase, view};
use crate::config::rules::Moment;
use crate::control::netlink::{Protocol, RouteQuery};
use crate::shard::tcp::{Opening, five_tuple, three_tuple};
use crate::shard::{Flow, RingId, SocketId};
use crate::socket::{Plane, State};
use crate::sys::sockaddr::{Family, SocketName};
use crate::sys::{Fd, fd, kernel_start, loopback_end, random, repair, shadow};

/// connect(2). [`Outcome::Os`]: the socket is the kernel's for good.
pub fn connect(stack: &Stack, id: SocketId, peer: SocketAddrV4) -> Outcome<()> {
    let Ok(mut state) = stack.shard.lock() else { return Outcome::Os(WhyOs::Reentered) };
    let Some(view) = view(&mut state, id) else { return Outcome::Os(WhyOs::NotOurs) };
    drop(state);
    let started = match view.phase {
        Phase::Listening { .. } | Phase::Connected => return Outcome::Errno(libc::EISCONN),
        Phase::Connecting if view.has_pipe => {
            return local::connect::go_on(stack, id, view.shadow, peer);
        }
        Phase::Connecting => false,
        Phase::Fresh => {
            let Some(shadow) = Shadow::of(stack, id) else { return Outcome::Os(WhyOs::NotOurs) };
            if let Some(outcome) = local::connect::connect(stack, id, view.shadow, peer) {
                return outcome;
            }
            if is_stand_in(*peer.ip()) {
                return Outcome::Os(WhyOs::Ipv6);
            }
            match start(stack, id, &shadow, peer) {
                Ok(()) => true,
                Err(Refusal::Os(why)) => return Outcome::Os(why),
                Err(Refusal::Errno(errno)) => return Outcome::Errno(errno),
                Err(Refusal::UnderWay) => false,
            }
        }
    };
    finish(stack, id, view.nonblocking, started)
}

/// connect() to AF_UNSPEC: whatever the socket is, it is as new afterwards, but for its port, its
/// options and an error to tell. The caller lets the shadow do the same. True if the shadow was the
/// connection: then the socket is the kernel's for good.
pub fn disconnect(stack: &Stack, id: SocketId) -> bool {
    use TcpState::{Closed, Closing, LastAck, TimeWait};
    let Ok(mut state) = stack.shard.lock() else { return false };
    state.poll_well();
    let Some(view) = view(&mut state, id) else { return false };
    match view.phase {
        Phase::Fresh => return false,
        Phase::Listening { .. } => super::give_back::end_listening(&mut state, id),
        Phase::Connecting | Phase::Connected if view.has_pipe => {
            local::connect::undo(&mut state, id);
            return true;
        }
        Phase::Connecting | Phase::Connected => {
            let left = state.connection(id).map(|connection| {
                let over = matches!(connection.state(), Closed | Closing | LastAck | TimeWait);
                let told = connection.take_error().map_or(0, errno);
                (connection.state(), if over { told } else { libc::ECONNRESET })
            });
            match left {
                // The end is agreed upon, and waited out.
                Some((TimeWait, _)) => state.orphan_connection(id, None),
                _ => state.abort_connection(id),
            }
            if let (Some((_, error)), Some((_, socket))) = (left, state.socket(id)) {
                socket.pending_error = error;
            }
        }
    }
    set_phase(&mut state, id, Phase::Fresh);
    state.announce_change(id);
    false
}

enum Refusal {
    Os(WhyOs),
    Errno(i32),
    /// Another thread was faster, to whose attempt this call belongs now.
    UnderWay,
}

impl From<WhyOs> for Refusal {
    fn from(why: WhyOs) -> Refusal {
        Refusal::Os(why)
    }
}

/// The part of the state of a fresh socket's shadow that is known without asking the kernel.
struct Shadow {
    descriptor: i32,
    family: Family,
    /// No call has given it an address yet.
    is_unbound: bool,
    /// The program has set IP_BIND_ADDRESS_NO_PORT, to whatever value.
    may_bind_late: bool,
}

impl Shadow {
    /// For an attempt to connect, which may give it an address: the next attempt asks the kernel.
    fn of(stack: &Stack, id: SocketId) -> Option<Shadow> {
        let mut state = stack.shard.lock().ok()?;
        let (_, socket) = state.socket(id)?;
        let descriptor = socket.shadow();
        let stream = socket.stream.as_mut()?;
        let is_unbound = core::mem::take(&mut stream.unbound);
        let may_bind_late = stream.has_set(libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
        Some(Shadow { descriptor, family: stream.family, is_unbound, may_bind_late })
    }

    /// The address that it is bound to. None: it does not take the peer's family.
    fn address(&self, peer: SocketAddrV4) -> Option<SocketAddrV4> {
        // Whether an unbound socket of IPv6 takes IPv4, too, is an option.
        match self.is_unbound && self.family == Family::Ipv4 {
            true => Some(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
            false => loopback_end::source(self.descriptor, peer),
        }
    }

    /// The port is the kernel's to give, so that no other socket of the host gets it.
    fn reserve(&self, bound: SocketAddrV4, source: Ipv4Addr) -> Option<SocketAddrV4> {
        if bound.port() != 0 {
            return Some(bound);
        }
        if self.may_bind_late {
            // It would leave the port to the kernel's connect(), which never comes.
            let (level, name) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
            if shadow::int_option(self.descriptor, level, name).is_some_and(|late| late != 0) {
                shadow::set_int_option(self.descriptor, level, name, 0);
            }
        }
        let name = SocketName::new(SocketAddrV4::new(source, 0), self.family);
        shadow::bind_as(self.descriptor, &name).ok()?;
        shadow::local_address(self.descriptor).filter(|local| local.port() != 0)
    }
}

/// Sends the SYN, or finds out that the kernel must do it.
fn start(stack: &Stack, id: SocketId, shadow: &Shadow, peer: SocketAddrV4) -> Result<(), Refusal> {
    if peer.port() == 0 {
        return Err(Refusal::Os(WhyOs::Arguments));
    }
    let bound = shadow.address(peer).ok_or(WhyOs::Ipv6)?;
    if !repair::is_allowed() {
        return Err(Refusal::Os(WhyOs::CannotBeGivenBack));
    }
    let (query, ttl, tos, settings) = {
        let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
        let (_, socket) = state.socket(id).ok_or(WhyOs::NotOurs)?;
        socket.pending_error = 0;
        let stream = socket.stream.as_mut().ok_or(WhyOs::NotOurs)?;
        // An address that we chose for an earlier attempt does not bind this one.
        stream.bound_by_us |= bound.port() == 0 && bound.ip().is_unspecified();
        let chosen = !stream.bound_by_us && !bound.ip().is_unspecified();
        let options = &socket.options;
        let is_ipv6 = ipv6_stand_ins::is_one(*peer.ip());
        if is_ipv6 && options.sends_ipv6_by_kernel {
            return Err(Refusal::Os(WhyOs::Ipv6));
        }
        let (ttl, tos) = options.wishes(is_ipv6);
        let query = RouteQuery {
            src: Some(*bound.ip()).filter(|_| chosen),
            oif: options.device(),
            tos,
            mark: options.mark,
            protocol: Some(Protocol::Tcp),
            sport: Some(bound.port()).filter(|port| *port != 0),
            dport: Some(peer.port()),
            ..RouteQuery::to(*peer.ip())
        };
        (query, ttl, tos, stream.settings.clone())
    };

    let mut plane = stack.plane.lock().map_err(|_| WhyOs::Reentered)?;
    let plane = plane.as_mut().ok_or(WhyOs::NoControlPlane)?;
    // Another thread's connect() may have had the plane before; the port is its own then.
    still_fresh(&mut stack.shard.lock().map_err(|_| WhyOs::Reentered)?, id)?;
    let (way, key, rings) = way_and_port(stack, plane, shadow, &query, bound)?;
    let flow = match stack.config.tcp_3t_rules {
        true => three_tuple(&key),
        false => five_tuple(&key),
    };

    // A program that names its port uses the same one again, perhaps after a socket of the kernel's.
    // Among all ports that the kernel gives, the same is rare.
    let start = if bound.port() == 0 { None } else { kernel_start::of(key.local_endpoint(), peer) };

    let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
    still_fresh(&mut state, id)?;
    state.set_own_addresses(plane.control.own_addresses());
    let flows = add_flows(&mut state, &rings, flow)?;
    let opening = Opening {
        key,
        hop: way.hop,
        ttl: ttl.or(way.hop_limit).unwrap_or(DEFAULT_TTL),
        tos,
        settings,
        flows,
        start,
    };
    // The internal thread looks after the others already, and will find this one.
    let is_expected = state.has_tcp() && stack.config.progress_interval_msec > 0;
    if state.open_connection(id, opening).is_err() {
        rings.iter().for_each(|ring| state.remove_flow(*ring, flow));
        return Err(Refusal::Errno(libc::EADDRNOTAVAIL));
    }
    if let Some((_, socket)) = state.socket(id) {
        socket.state = State::Offloaded;
        socket.local = Some(key.local_endpoint());
        socket.peer = Some(peer);
        if let Some(stream) = socket.stream.as_mut() {
            stream.holds_port = true;
        }
    }
    set_phase(&mut state, id, Phase::Connecting);
    drop(state);
    if !is_expected {
        stack.wake_internal_thread();
    }
    Ok(())
}

fn still_fresh(state: &mut Guard<'_>, id: SocketId) -> Result<(), Refusal> {
    match view(state, id).ok_or(WhyOs::NotOurs)?.phase {
        Phase::Fresh => Ok(()),
        Phase::Connecting => Err(Refusal::UnderWay),
        Phase::Connected | Phase::Listening { .. } => Err(Refusal::Errno(libc::EISCONN)),
    }
}

/// net.ipv4.ip_default_ttl is hardly ever changed.
pub(super) const DEFAULT_TTL: u8 = 64;

/// So many ports are tried before there seems to be none.
const PORTS_TRIED: usize = 256;

/// A flow on all of these rings, or on none.
fn add_flows(
    state: &mut Guard<'_>,
    rings: &[RingId],
    flow: Flow,
) -> Result<Vec<(RingId, Flow)>, WhyOs> {
    let mut flows = Vec::with_capacity(rings.len());
    for ring in rings {
        if state.add_flow(*ring, flow).is_err() {
            flows.iter().for_each(|(ring, flow)| state.remove_flow(*ring, *flow));
            return Err(WhyOs::FlowRefused);
        }
        flows.push((*ring, flow));
    }
    Ok(flows)
}

/// The way to the peer of a question, the connection's ends, and where answers may come.
fn way_and_port(
    stack: &Stack,
    plane: &mut Plane,
    shadow: &Shadow,
    query: &RouteQuery,
    bound: SocketAddrV4,
) -> Result<(Way, FlowKey, Vec<RingId>), Refusal> {
    let peer = SocketAddrV4::new(query.dst, query.dport.unwrap_or(0));
    // Connections to one peer are to use all next hops: as long as there is no port the kernel takes a random one (Linux 6.16,
    // ip_route_connect_init()).
    let is_ipv6 = ipv6_stand_ins::is_one(*peer.ip());
    let is_spread = bound.port() == 0 && !is_ipv6 && plane.control.ports_choose_hops();
    let sport = if is_spread { any_port() } else { query.sport };
    let way = route::find(stack, plane, &RouteQuery { sport, ..*query })?;
    let own = SocketAddrV4::new(way.source, bound.port());
    if let Some(place) = stack.config.rules.decide(Moment::Connect, peer, Some(own)) {
        return Err(Refusal::Os(WhyOs::Rule(place)));
    }
    let key = choose_port(stack, shadow, bound, way.source, peer)?;
    // And asks for the route again, by the port (ip_route_newports()).
    let (first, mut rings) = (way.ring, vec![way.ring]);
    if !is_spread {
        return Ok((way, key, rings));
    }
    let (src, sport) = (Some(way.source), Some(key.local_port));
    let way = route::find(stack, plane, &RouteQuery { src, sport, ..*query })?;
    // The address is that of the first hop's interface, by which the peer answers: before Linux 6.16, and where rules look at the
    // source, the second one may be by another.
    if way.ring != first {
        rings.push(way.ring);
    }
    Ok((way, key, rings))
}

/// One that a connection may have.
fn any_port() -> Option<u16> {
    let [low, high, ..] = random::bytes()?;
    Some(u16::from_ne_bytes([low, high]) | 0x8000)
}

/// The connection's addresses and ports. The kernel gives a port again when its socket is closed, though
/// our connection is not at its end yet; only to another peer it is free then.
fn choose_port(
    stack: &Stack,
    shadow: &Shadow,
    bound: SocketAddrV4,
    source: Ipv4Addr,
    peer: SocketAddrV4,
) -> Result<FlowKey, Refusal> {
    // The kernel would give the same ones again.
    let mut tried = Vec::new();
    while tried.len() < PORTS_TRIED {
        let local = shadow.reserve(bound, source).ok_or(WhyOs::Unbound)?;
        let key = FlowKey {
            local: source,
            local_port: local.port(),
            remote: *peer.ip(),
            remote_port: peer.port(),
        };
        let is_free =
            stack.shard.lock().map_err(|_| WhyOs::Reentered)?.has_room_for_connection(&key);
        if is_free || bound.port() != 0 {
            return Ok(key);
        }
        release_port(shadow.descriptor).ok_or(WhyOs::Unbound)?;
        tried.push(hold_port(local));
    }
    Err(Refusal::Errno(libc::EADDRNOTAVAIL))
}

/// None if somebody else has it by now.
fn hold_port(local: SocketAddrV4) -> Option<Fd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let name = ipv6_loopback::named(local);
    let family = if name.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, flags, None).ok()?;
    bind(&socket, &name).ok()?;
    Fd::adopt_briefly(socket).ok()
}

/// Undoes [`Shadow::reserve`]. The kernel takes a port that it chose back only from a socket that leaves a state:
/// for these microseconds it listens.
fn release_port(descriptor: i32) -> Option<()> {
    fd::with_borrowed(descriptor, |fd| {
        rustix::net::listen(fd, 0)?;
        rustix::net::connect_unspec(fd)
    })?
    .ok()
}

/// Waits for the handshake, as far as the socket waits; `started` in this call.
fn finish(stack: &Stack, id: SocketId, nonblocking: bool, started: bool) -> Outcome<()> {
    let timeout = {
        let Ok(mut state) = stack.shard.lock() else { return Outcome::Errno(libc::EALREADY) };
        let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
        stream.and_then(|stream| stream.send_timeout)
    };
    let manner =
        Manner { blocking: !nonblocking, timeout, watches: Watches::Nothing, call: Call::Other };
    if started && nonblocking {
        // As on Linux, however fast the answer is.
        return Outcome::Errno(libc::EINPROGRESS);
    }
    let ended = until(stack, id, manner, |state| judge(state, id));
    match ended {
        Ok(Ok(())) => Outcome::Ours(()),
        Ok(Err(errno)) => Outcome::Errno(errno),
        Err(Ended::WouldBlock | Ended::TimedOut) if started => Outcome::Errno(libc::EINPROGRESS),
        Err(Ended::WouldBlock | Ended::TimedOut) => Outcome::Errno(libc::EALREADY),
        Err(other) => Outcome::Errno(other.errno()),
    }
}

/// How the attempt stands; None while it is under way.
fn judge(state: &mut Guard<'_>, id: SocketId) -> Option<Result<(), i32>> {
    let Some(connection) = state.connection(id) else { return Some(Err(libc::ECONNABORTED)) };
    match connection.state() {
        TcpState::SynSent | TcpState::SynReceived => None,
        TcpState::Closed => {
            let error = connection.take_error().map_or(libc::ECONNABORTED, errno);
            // The next connect() starts anew.
            state.forget_connection(id);
            set_phase(state, id, Phase::Fresh);
            Some(Err(error))
        }
        _ => {
            set_phase(state, id, Phase::Connected);
            Some(Ok(()))
        }
    }
}

#[cfg(test)]
mod tests;
