//! Which packets of the network a socket gets: flows, installed before it can miss one, removed
//! when it can no longer need one; and giving a socket back to the kernel.

mod flows;

use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::Shown;
use libvma_dev::ipv6_stand_ins;
use libvma_engine::wire::ipv4::protocol;
use rustix::event::epoll::EventFlags;

use self::flows::{Place, Wanted};
use super::attaching::Need;
use super::shadow_news::Kind;
use super::why::Remedy;
use super::{
    Plane, Shard, Stack, State, Via, WhyOs, brevity, hand_over, local, lost_rings, sharing, stream,
};
use crate::config::XdpMode;
use crate::config::rules::Moment;
use crate::control::Control;
use crate::log::log_line;
use crate::process::inherit;
use crate::shard::{Flow, Interface, Limits, Mode, RingId, SocketId, clock};
use crate::sys::loopback_end;
use crate::sys::loopback_end::Takes;
use crate::sys::sockaddr::Family;

/// The program named the socket by bind(), to a port that the kernel chose if `automatic`: other processes
/// may find it.
pub fn name(stack: &Stack, id: SocketId, automatic: bool) {
    if let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
    {
        socket.named = true;
        if automatic {
            socket.datagrams.get_or_insert_default().brevity_key = Some(brevity::AUTOMATIC);
        }
        let (shadow, device) = (socket.shadow(), socket.options.device());
        drop(state);
        if !may_be_brief(stack, automatic)
            && let Some(local) = loopback_end::listening(shadow)
        {
            open_rings(stack, *local.ip(), device);
        }
    }
    refresh(stack, id);
    post(stack, id);
}

/// A port of the kernel's choice is a client's, which may end after one question (a resolver) or one transfer (active FTP): its
/// interface is attached in the background, as for a first send.
pub(super) fn may_be_brief(stack: &Stack, automatic: bool) -> bool {
    automatic && stack.attaching.is_in_background(&stack.config)
}

/// Lets other processes of this host find the socket, once it has an address.
pub fn post(stack: &Stack, id: SocketId) {
    let found = stack.shard.lock().ok().and_then(|mut state| {
        let (_, socket) = state.socket(id)?;
        let address = socket.local.map(|local| match socket.takes {
            Takes::Ipv6 if local.ip().is_unspecified() => {
                SocketAddrV4::new(ipv6_stand_ins::ANY, local.port())
            }
            _ => local,
        });
        let fits = socket.state == State::Offloaded
            && !socket.options.receives_by_kernel
            && socket.stream.is_none()
            && socket.posted.is_none()
            && socket.options.device().is_none();
        Some((socket.shadow(), address.filter(|_| fits)?))
    });
    let Some((shadow, address)) = found else { return };
    if ipv6_stand_ins::is_multicast(*address.ip()) || !stack.config.local {
        return;
    }
    let Some(posted) = local::post(stack, protocol::UDP, shadow, address) else { return };
    if let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
        && socket.state == State::Offloaded
    {
        socket.posted = Some(Box::new(posted));
        // The kernel chooses among the members of a group (SO_REUSEPORT), and senders say which one it was.
        let shares = socket.options.reuse_port;
        if !shares || state.name(id, posted.member_number()) {
            return;
        }
        if let Some((_, socket)) = state.socket(id) {
            socket.posted = None;
        }
    }
    // The socket was closed, or became the kernel's, meanwhile, or another member has its number.
    local::unpost(stack, posted);
}

/// Datagrams for the UDP socket go to the kernel from now on; it still sends by us (SO_VMA_SHUTDOWN_RX).
pub fn leave_receiving(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((_, socket)) = state.socket(id) else { return };
    socket.options.receives_by_kernel = true;
    let posted = socket.posted.take();
    drop(state);
    if let Some(posted) = posted {
        local::unpost(stack, *posted);
    }
    refresh(stack, id);
}

/// Takes over what the shadow says of its addresses (after bind, connect, a first send) and
/// installs the flows that follow. A socket that cannot be offloaded becomes the kernel's.
pub fn refresh(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((_, socket)) = state.socket(id) else { return };
    if matches!(socket.state, State::Os(_)) {
        return;
    }
    let descriptor = socket.shadow();
    let served = loopback_end::of_datagrams(descriptor);
    (socket.local, socket.peer) = served.map_or((None, None), |ends| (ends.local, ends.peer));
    socket.takes = served.map_or(Takes::Both, |ends| ends.takes);
    socket.route = None;
    if let Some(peer) = socket.peer {
        socket.note_first_destination(peer);
    }
    let key = socket.brevity_key().filter(|_| socket.state == State::Undecided);
    let unserved = match socket.family {
        Family::Ipv4 => WhyOs::Broadcast,
        Family::Ipv6 => WhyOs::Ipv6,
    };
    drop(state);

    let is_short = |key| stack.short_datagrams.expects(key, clock::now().as_nanos());
    let result = match stack.plane.lock() {
        _ if served.is_none() => Err(unserved),
        _ if !stack.extra.callbacks.are_any() && key.is_some_and(is_short) => Err(WhyOs::Short),
        Ok(mut plane) => match plane.as_mut() {
            Some(plane) => install(stack, plane, id),
            None => Err(WhyOs::NoControlPlane),
        },
        Err(_) => Err(WhyOs::Reentered),
    };
    if let Ok(mut state) = stack.shard.lock() {
        // A thread that waits on the unbound socket looks again.
        state.announce(id);
    }
    match result {
        Ok(()) => watch_shadow(stack, id, descriptor),
        Err(why) if may_pass(why) => {
            log_line!(Debug, "fd {descriptor} is served by the kernel for now: {why}");
            watch_shadow(stack, id, descriptor);
        }
        Err(why) => un_offload(stack, id, why),
    }
}

/// Could the socket be offloaded later? Then it stays ours, without flows, and gets them when an
/// interface or an address changes.
pub(super) fn may_pass(why: WhyOs) -> bool {
    match why {
        WhyOs::NoInterface | WhyOs::Attaching => true,
        WhyOs::Interface(reason) => reason.may_pass(),
        _ => false,
    }
}

/// An address or interface came or went: every offloaded socket gets the flows it should have now.
///
/// Returns those that cannot have any, and why. Such a socket works without flows: its packets then reach
/// the shadow.
pub fn reconsider(stack: &Stack, plane: &mut Plane) -> Vec<(SocketId, WhyOs)> {
    let mut without = Vec::new();
    let Ok(state) = stack.shard.lock() else { return without };
    let ids = state.ids();
    drop(state);
    for id in ids {
        let Ok(mut state) = stack.shard.lock() else { return without };
        let Some((_, socket)) = state.socket(id) else { continue };
        let is_ahead = socket.stream.as_ref().is_some_and(|stream| stream.ahead);
        let (offloaded, stream) = (socket.state == State::Offloaded, socket.stream.is_some());
        drop(state);
        let result = match (offloaded || is_ahead, stream) {
            (false, _) => continue,
            (true, false) => install(stack, plane, id),
            (true, true) => stream::listen::install(stack, plane, id),
        };
        if let Err(why) = result {
            log_line!(Debug, "a socket has no offloaded interface: {why}");
            without.push((id, why));
        }
    }
    without
}

/// Rings whose interface changed learn it; interfaces that were refused get another
/// chance, since something about them changed.
pub fn update_interfaces(stack: &Stack, plane: &mut Plane) {
    plane.rings.retain(|_, ring| ring.is_ok());
    let Ok(mut state) = stack.shard.lock() else { return };
    for (interface, ring) in &plane.rings {
        let (Ok(ring), Ok(now)) = (ring, plane.control.offloadable(*interface)) else { continue };
        if let Some(ring) = state.ring_mut(*ring)
            && ring.interface() != &now
            && let Err(error) = ring.update_interface(now)
        {
            log_line!(Warning, "{}: {error}", ring.interface().name);
        }
    }
}

/// Routes that may be others without a message are looked up again: whether another process of the
/// host listens to a group, or serves a port with the library.
pub fn void_doubtful_routes(state: &mut Shard) {
    for id in state.ids() {
        let Some((_, socket)) = state.socket(id) else { continue };
        let looped = socket.loops_multicast();
        socket.route = socket.route.take().filter(|route| {
            let to = route.destination;
            let group = ipv6_stand_ins::is_multicast(to) && looped;
            !group && !matches!(route.via, Via::Os(WhyOs::LocalDestination))
        });
    }
}

/// Brings the socket's flows and its filter in line with its addresses and memberships.
pub(super) fn install(stack: &Stack, plane: &mut Plane, id: SocketId) -> Result<(), WhyOs> {
    let Some(place) = Place::of(stack, id)? else { return unplace(stack, id) };
    if hand_over::is_beside_passed(stack, place.shadow, place.local.port()) {
        return Err(WhyOs::Passed);
    }
    let rules = &stack.config.rules;
    if let Some(rule) =
        place.peer.and_then(|to| rules.decide(Moment::UdpConnect, to, Some(place.local)))
    {
        return Err(WhyOs::Rule(rule));
    }
    let mut wanted = Wanted::withholding(sharing::withheld(stack, &mut plane.control, id));
    wanted.add_addresses(stack, plane, &place);
    let unserved = wanted.is_empty()
        && !ipv6_stand_ins::is_multicast(*place.local.ip())
        && !place.is_within_host(stack, &plane.control);
    if unserved && !may_pass(wanted.why) {
        return Err(wanted.why);
    }
    wanted.add_groups(stack, plane, &place, &memberships(stack, id)?);
    if place.receives_by_kernel {
        wanted.leave_to_kernel();
    }

    let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
    state.set_own_addresses(plane.control.own_addresses());
    let (_, socket) = state.socket(id).ok_or(WhyOs::NotOurs)?;
    let filter = place.filter(&socket.options);
    if let State::Os(why) = socket.state {
        // Given to the kernel while the rings were being opened.
        return Err(why);
    }
    socket.state = State::Offloaded;
    state.catch_up();
    // The filter first: a packet that a flow brings must find its socket.
    state.bind(id, filter);
    let held = exchange_flows(&mut state, id, wanted.flows);
    if state.socket(id).is_some_and(|(_, socket)| sharing::may_share(socket)) {
        // Only now would a review find the socket.
        stack.wake_internal_thread();
    }
    match (held, unserved) {
        (true, false) => Ok(()),
        (true, true) => Err(wanted.why),
        // The daemon is gone: the ring will be, too, and another one come.
        (false, _) if lost_rings::are_any(&state, plane) => Err(WhyOs::Attaching),
        (false, _) => Err(WhyOs::FlowRefused),
    }
}

/// Nothing can arrive: the socket is not bound yet, or no longer (connect to AF_UNSPEC gives an automatic
/// port back).
fn unplace(stack: &Stack, id: SocketId) -> Result<(), WhyOs> {
    let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
    exchange_flows(&mut state, id, Vec::new());
    state.unbind(id);
    if let Some((_, socket)) = state.socket(id)
        && socket.state == State::Offloaded
    {
        socket.state = State::Undecided;
    }
    Ok(())
}

/// Adds what is wanted and not there, then removes what is there and not wanted. False if none of
/// the wanted flows could be had.
pub(super) fn exchange_flows(state: &mut Shard, id: SocketId, wanted: Vec<(RingId, Flow)>) -> bool {
    let Some((_, socket)) = state.socket(id) else { return false };
    let shadow = socket.shadow();
    let old = core::mem::take(&mut socket.flows);
    let needs_some = !wanted.is_empty();
    let mut now = Vec::with_capacity(wanted.len());
    for entry in wanted {
        if old.contains(&entry) {
            now.push(entry);
            continue;
        }
        match state.add_flow_of(shadow, entry.0, entry.1) {
            Ok(()) => now.push(entry),
            Err(errno) => {
                let (_, ip) = entry.1.destination();
                let to = Shown(SocketAddrV4::new(ip, 0));
                match errno {
                    // Of the kinds that the daemon grants it is none, or another socket of the port has it.
                    libc::EOPNOTSUPP | libc::EADDRINUSE => {
                        log_line!(Debug, "a flow to {to} is the kernel's");
                    }
                    _ => log_line!(Warning, "a flow to {to} was refused with errno {errno}"),
                }
            }
        }
    }
    for (ring, flow) in old.iter().filter(|entry| !now.contains(entry)) {
        state.remove_flow(*ring, *flow);
    }
    let held = !needs_some || !now.is_empty();
    let is_stream = state.socket(id).is_some_and(|(_, socket)| socket.stream.is_some());
    if !is_stream && old.iter().any(|entry| !now.contains(entry)) {
        // What the ring has received is older than what the shadow gets from now on.
        state.catch_up();
        if let Some((endpoint, socket)) = state.socket(id) {
            socket.order.note_lost_flow(endpoint.waiting().0 as usize);
        }
    }
    if let Some((endpoint, socket)) = state.socket(id) {
        if now.iter().any(|entry| !old.contains(entry)) {
            // What has come so far went to the shadow.
            endpoint.begin_after_kernel();
        }
        socket.flows = now;
    }
    held
}

/// The interfaces that a socket with this local address hears.
pub(super) fn interfaces(control: &Control, local: Ipv4Addr, device: Option<u32>) -> Vec<u32> {
    match device {
        Some(device) => vec![device],
        None if local == ipv6_stand_ins::ANY || ipv6_stand_ins::is_group(local) => {
            control.addressed_interfaces(ipv6_stand_ins::is_one)
        }
        None if local.is_unspecified() || local.is_multicast() => {
            control.addressed_interfaces(|address| !ipv6_stand_ins::is_one(address))
        }
        None => control.interface_of(local).into_iter().collect(),
    }
}

fn memberships(stack: &Stack, id: SocketId) -> Result<Vec<(Ipv4Addr, u32)>, WhyOs> {
    let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
    let (_, socket) = state.socket(id).ok_or(WhyOs::NotOurs)?;
    let joined = &socket.options.memberships;
    Ok(joined.iter().map(|membership| (membership.group, membership.interface)).collect())
}

/// A server that is started again may find the interface in the hands of its predecessor, which has
/// given the port up already and is about to end.
const PREDECESSOR_NANOS: u64 = 100_000_000;

/// Opens the rings of a socket that a server binds, or listens on, to an address: at once, because many
/// servers give up their rights as soon as they have their sockets.
pub(super) fn open_rings(stack: &Stack, local: Ipv4Addr, device: Option<u32>) {
    let Ok(mut plane) = stack.plane.lock() else { return };
    let Some(plane) = plane.as_mut() else { return };
    for interface in interfaces(&plane.control, local, device) {
        // Where the daemon's ring was lost somebody waits for the daemon.
        let is_open = plane.rings.contains_key(&interface) || stack.attaching.was_loss();
        if !is_open && plane.wanted.take(interface) {
            let _ = open_ring(stack, plane, interface, PREDECESSOR_NANOS);
        }
    }
}

/// The ring of an interface; opened for the first socket that needs it.
pub(super) fn ring(
    stack: &Stack,
    plane: &mut Plane,
    interface: u32,
    need: Need,
) -> Result<RingId, WhyOs> {
    stays(stack)?;
    if plane.rings.contains_key(&interface) || !stack.attaching.is_in_background(&stack.config) {
        return open_ring(stack, plane, interface, 0);
    }
    // Not one that may not be attached.
    plane.control.offloadable(interface).map_err(WhyOs::Interface)?;
    if stack.attaching.want(&mut plane.wanted, interface, need) {
        stack.wake_internal_thread();
    }
    Err(WhyOs::Attaching)
}

/// An error once the process has given up its interfaces, at its end: none serves anything new.
fn stays(stack: &Stack) -> Result<(), WhyOs> {
    let state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
    if state.has_left() { Err(WhyOs::ProcessEnds) } else { Ok(()) }
}

/// The same for TCP.
pub(super) fn stream_ring(
    stack: &Stack,
    plane: &mut Plane,
    interface: u32,
    need: Need,
) -> Result<RingId, WhyOs> {
    let ring = ring(stack, plane, interface, need)?;
    let state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
    match state.ring(ring).is_none_or(|ring| ring.takes_streams()) {
        true => Ok(ring),
        false => Err(WhyOs::LongSegments),
    }
}

fn open_ring(
    stack: &Stack,
    plane: &mut Plane,
    interface: u32,
    patience_nanos: u64,
) -> Result<RingId, WhyOs> {
    stays(stack)?;
    if let Some(known) = plane.rings.get(&interface) {
        return *known;
    }
    // Not remembered: the interface may come up, or leave its bridge.
    let spec = plane.control.offloadable(interface).map_err(WhyOs::Interface)?;
    let result = attach(stack, spec, patience_nanos);
    plane.rings.insert(interface, result);
    if let Ok(ring) = result {
        lost_rings::check(stack, ring);
    }
    result
}

/// Processes that have an interface at the same time; more would make its packets slow, each of which goes
/// through the steering programs before the one that it is for.
const MOST_SHARERS: u32 = 8;

/// Opens the ring of an interface: tens of milliseconds, in which the caller may hold the plane, but not the
/// shard.
pub fn attach(stack: &Stack, spec: Interface, patience_nanos: u64) -> Result<RingId, WhyOs> {
    stays(stack)?;
    let name = spec.name.clone();
    let mode = match stack.config.xdp_mode {
        XdpMode::Auto => Mode::Auto,
        XdpMode::Native => Mode::Native,
        XdpMode::Generic => Mode::Generic,
        XdpMode::Tc => Mode::Tc,
    };
    let limits = Limits {
        rx_frames: stack.config.rx_bufs,
        rx_posted: stack.config.rx_wre,
        tx_frames: stack.config.tx_bufs,
        patience_nanos,
        // A forked child shares an interface only if its connections end at the peer when it is killed, as those of the
        // kernel do: a worker that has seen to it.
        most_sharers: if inherit::is_child() && !stack.watch.is_guarded(false) {
            1
        } else {
            MOST_SHARERS
        },
    };
    let refused = |mode, error: &_| log_line!(Debug, "{name}: not in mode {mode:?}: {error}");
    // Before the first connection finds the ring.
    stream::system::learn_starts(stack);
    match stack.shard.open_ring(spec, mode, limits, refused) {
        Ok(ring) => {
            let mode = stack.shard.lock().ok().and_then(|state| state.ring(ring)?.mode());
            log_line!(Debug, "{name}: offloaded in mode {mode:?}");
            lost_rings::watch(stack, ring);
            stack.attaching.count_attached();
            stack.wake_internal_thread();
            Ok(ring)
        }
        Err(error) => {
            let what = format_args!("{name} is not offloaded, the kernel serves it: {error}");
            match error.lacks_privilege() {
                true => Remedy::Privileges.tell(what),
                // There may be many workers.
                false if inherit::is_child() => log_line!(Debug, "{what}"),
                false => log_line!(Warning, "{what}"),
            }
            Err(WhyOs::RingRefused)
        }
    }
}

/// Gives a socket to the kernel for good. From now on its packets reach the shadow; what it has queued
/// goes there ahead of them. What cannot (a ring that is gone) can still be read.
pub fn un_offload(stack: &Stack, id: SocketId, why: WhyOs) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((_, socket)) = state.socket(id) else { return };
    if matches!(socket.state, State::Os(_)) {
        return;
    }
    let descriptor = socket.shadow();
    socket.state = State::Os(why);
    let (flows, posted) = (socket.flows.clone(), socket.posted.take());
    hand_over::queue(&mut state, id, descriptor, &flows);
    if let Some((_, socket)) = state.socket(id) {
        socket.flows.clear();
    }
    for (ring, flow) in &flows {
        state.remove_flow(*ring, *flow);
    }
    // Packets that the ring got before the flow went are still this socket's, and the longest datagrams could not pass it. The lock
    // has been held all the time: a thread that ends the process takes it, and finds nothing left in the queue.
    hand_over::queue(&mut state, id, descriptor, &flows);
    if let Some(posted) = posted {
        drop(state);
        local::unpost(stack, *posted);
        state = match stack.shard.lock() {
            Ok(state) => state,
            Err(_) => return,
        };
        // Peers within the host have sent to the link until now.
        hand_over::queue(&mut state, id, descriptor, &flows);
    }
    // Sockets that share a flow share its fate: a packet goes either to the rings or to the kernel. A socket that takes
    // IPv6 only from now on leaves its share to the others: a QUIC server has one for each client beside its listener.
    let siblings = match why {
        WhyOs::Ipv6 => Vec::new(),
        _ => hand_over::siblings(&mut state, id, &flows),
    };
    state.unbind(id);
    state.announce(id);
    drop(state);
    stack.shadows.forget(Kind::Datagrams, descriptor);
    if why != WhyOs::Ipv6 {
        // Of IPv6 the call tells that led to it: many programs only try whether there is IPv6.
        why.tell(format_args!("fd {descriptor}"));
    }
    for sibling in siblings {
        un_offload(stack, sibling, why);
    }
}

/// The internal thread shall tell when the shadow has something: data that came another way than
/// through our rings, or an ICMP error.
pub(super) fn watch_shadow(stack: &Stack, id: SocketId, descriptor: i32) {
    if descriptor < 0 {
        return;
    }
    let mut kind = Kind::Datagrams;
    if let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
    {
        socket.is_shadow_watched = true;
        if socket.stream.is_some() {
            kind = Kind::Streams;
        }
    }
    let events = EventFlags::IN | EventFlags::ERR | EventFlags::ET;
    stack.shadows.watch(kind, descriptor, id, events);
}

#[cfg(test)]
mod tests;
