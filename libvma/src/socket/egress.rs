//! send, sendto, sendmsg, write ...: one datagram from the caller to its ring, copied once.

mod rehearsal;
mod route;
mod size;
mod strangers;

pub use rehearsal::rehearse;
pub use route::on_packet_too_big;
pub use strangers::Strangers;

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::is_stand_in;
use libvma_dev::ipv6_stand_ins;
use libvma_engine::wire::udp::MAX_DATA_LEN;

use super::ancillary::{Ancillary, may_be_train};
use super::block::Guard;
use super::{CachedRoute, Outcome, Socket, Stack, State, Via, WhyOs, attach, local};
use crate::config::Blocking;
use crate::config::rules::Moment;
use crate::shard::{Egress, Envelope, NextHop, Progress, RingId, SendError, SocketId, envelope};
use crate::sys::sockaddr::Family;
use crate::sys::{loopback_end, shadow, thread, user};

/// A send call as the program made it.
pub struct Request<'a> {
    pub payload: &'a [IoSlice<'a>],
    /// The destination the call names.
    pub to: Option<SocketAddrV4>,
    /// The family of the name: a socket of AF_INET takes no mapped address.
    pub named: Family,
    /// MSG_* of the call.
    pub flags: i32,
    /// The control messages of the call, if it has any; empty if they are not to be read.
    pub control: Option<&'a [u8]>,
    /// More messages of the same call follow: the last one, or [`kick`], sends them.
    pub more_follow: bool,
}

/// Flags that change nothing for a datagram, or that we do ourselves.
const KNOWN_FLAGS: i32 =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM | libc::MSG_EOR;

/// The bits of the traffic class that routes do not depend on.
const ECN: u8 = 3;

/// Who has so few datagrams in a link is not the one that filled it.
const FEW_OUTSTANDING: u32 = 32;

/// Sends one datagram; of a call with several, only queues it on the ring returned.
pub fn send(stack: &Stack, id: SocketId, request: &Request<'_>) -> Outcome<(usize, RingId)> {
    let (ancillary, len) = match examine(stack, id, request) {
        Ok(examined) => examined,
        Err(why) => return Outcome::Os(why),
    };
    let Ok(mut state) = stack.shard.lock() else { return Outcome::Os(WhyOs::Reentered) };
    let is_known = request.named != Family::Ipv6 && !ancillary.for_ipv6 || is_ipv6(&mut state, id);
    if is_known
        && len <= envelope::MOST
        && ancillary.is_plain()
        && let Some(ring) = send_enveloped(&mut state, id, request, ancillary, len)
    {
        return Outcome::Ours((len, ring));
    }
    match decide(stack, state, id, request, ancillary, len) {
        Ok((state, destination, way)) => transmit(stack, state, id, request, len, destination, way),
        Err(why) => Outcome::Os(why),
    }
}

/// Would [`send`] leave this to the kernel? Nothing is sent.
pub fn is_kernels(stack: &Stack, id: SocketId, request: &Request<'_>) -> bool {
    let Ok((ancillary, len)) = examine(stack, id, request) else { return true };
    let Ok(mut state) = stack.shard.lock() else { return true };
    if state.socket(id).is_some_and(|(_, socket)| socket.order.may_have_error()) {
        // The call that is made then takes the error.
        return false;
    }
    decide(stack, state, id, request, ancillary, len).is_err()
}

/// The control messages of a call, and its length: all that can be said without the socket.
#[inline]
fn examine(
    stack: &Stack,
    id: SocketId,
    request: &Request<'_>,
) -> Result<(Ancillary, usize), WhyOs> {
    let ancillary = match request.control.map(Ancillary::parse) {
        None => Ancillary::default(),
        Some(Some(ancillary)) => ancillary,
        Some(None) => return Err(passed(stack, id, request, WhyOs::ControlMessage)),
    };
    if request.flags & !KNOWN_FLAGS != 0 {
        return Err(passed(stack, id, request, WhyOs::Arguments));
    }
    let len = request.payload.iter().map(|piece| piece.len()).sum();
    if len > MAX_DATA_LEN {
        return Err(WhyOs::Arguments);
    }
    Ok((ancillary, len))
}

/// The way of a datagram by one of our rings, and its destination; or the reason why the kernel sends it.
fn decide<'a>(
    stack: &'a Stack,
    mut state: Guard<'a>,
    id: SocketId,
    request: &Request<'_>,
    ancillary: Ancillary,
    len: usize,
) -> Result<(Guard<'a>, SocketAddrV4, Way), WhyOs> {
    let lock = || stack.shard.lock().map_err(|_| WhyOs::Reentered);
    let (mut bound, mut heeded) = (false, false);
    let for_ipv6 = request.named == Family::Ipv6 || ancillary.for_ipv6;
    loop {
        if for_ipv6 && !is_ipv6(&mut state, id) {
            // The kernel refuses the name, and ignores the control message.
            return Err(passed_locked(state, id, request, WhyOs::Arguments));
        }
        let (epoch, answers) = (state.epoch(), state.answers());
        let Some((_, socket)) = state.socket(id) else {
            return Err(WhyOs::NotOurs);
        };
        let Some(destination) = request.to.or(socket.peer) else {
            return Err(WhyOs::Arguments);
        };
        match socket.state {
            State::Os(why) => return Err(passed_locked(state, id, request, why)),
            State::Undecided => {
                let descriptor = socket.shadow();
                drop(state);
                let ends = (descriptor, destination);
                if core::mem::replace(&mut bound, true) || !start(stack, id, request, ends) {
                    return Err(passed(stack, id, request, WhyOs::Unbound));
                }
                state = lock()?;
                continue;
            }
            State::Offloaded => {}
        }
        if socket.os_corked {
            drop(state);
            return Err(passed(stack, id, request, WhyOs::Arguments));
        }
        let Some(ancillary) = ancillary.towards(destination) else {
            return Err(passed_locked(state, id, request, WhyOs::ControlMessage));
        };
        if let Some(why) = kernels_part(stack, socket, &ancillary, destination) {
            return Err(passed_locked(state, id, request, why));
        }
        let cached = route::cached(socket, destination, ancillary.source, (epoch, answers));
        let Some(via) = cached else {
            drop(state);
            match route::renew(stack, id, destination, ancillary.source, (epoch, answers)) {
                Some(Via::Ring { .. }) => {
                    state = lock()?;
                    continue;
                }
                Some(Via::Os(why)) => return Err(passed(stack, id, request, why)),
                None => return Err(WhyOs::Reentered),
            }
        };
        let (hop, source, hop_limit, class) = match via {
            Via::Ring { hop, source, hop_limit, class } => (hop, source, hop_limit, class),
            Via::Os(why) => return Err(passed_locked(state, id, request, why)),
        };
        if state.has_withdrawn(&hop) && !core::mem::replace(&mut heeded, true) {
            // Perhaps the one that this is for: the kernel's word counts then. Once a call: a peer
            // could do nothing else.
            drop(state);
            local::hear_peers(stack);
            state = lock()?;
            continue;
        }
        if class.is_some()
            && size::is_kernels_by_length(&mut state, id, &hop, &ancillary, (destination, len))
        {
            return Err(passed_locked(state, id, request, WhyOs::Arguments));
        }
        // A link is used for the first time now: what was sent before went by the kernel.
        let route = state.socket(id).and_then(|(_, socket)| socket.route.as_ref());
        let after_kernel = route.map_or(0, |route| route.by_kernel);
        let way = Way { hop, source, hop_limit, class, after_kernel, ancillary };
        return Ok((state, destination, way));
    }
}

fn is_ipv6(state: &mut Guard<'_>, id: SocketId) -> bool {
    state.socket(id).is_some_and(|(_, socket)| socket.family == Family::Ipv6)
}

/// Is this call the kernel's, though the socket is ours?
#[inline]
fn kernels_part(
    stack: &Stack,
    socket: &mut Socket,
    ancillary: &Ancillary,
    destination: SocketAddrV4,
) -> Option<WhyOs> {
    let rules = &stack.config.rules;
    if rules.ask_senders()
        && let Some(place) = rules.decide(Moment::Send, destination, None)
    {
        return Some(WhyOs::Rule(place));
    }
    // The kernel reports a pending error on the next call, whichever that is.
    if socket.order.take_error() {
        return Some(WhyOs::PendingError);
    }
    let to = *destination.ip();
    let hops = || ancillary.ttl.unwrap_or(socket.options.multicast(to).hops);
    let stays_here = ipv6_stand_ins::is_multicast(to) && hops() == 0;
    if destination.port() == 0 || stays_here {
        return Some(WhyOs::Arguments);
    }
    if is_stand_in(*destination.ip()) {
        return None;
    }
    // Another traffic class may have another route.
    let (_, usual) = socket.options.wishes(ipv6_stand_ins::is_one(*destination.ip()));
    let class = ancillary.tos.is_some_and(|tos| (tos ^ usual) & !ECN != 0);
    class.then_some(WhyOs::ControlMessage)
}

/// The short way of a datagram that is like the one before, to another process of this host. None:
/// the long way is to be gone.
#[inline]
fn send_enveloped(
    state: &mut Guard<'_>,
    id: SocketId,
    request: &Request<'_>,
    ancillary: Ancillary,
    len: usize,
) -> Option<RingId> {
    let epoch = state.epoch();
    let (endpoint, socket, ring) = state.socket_and_links(id)?;
    let route = socket.route.as_deref_mut()?;
    let envelope = route.envelope.as_ref()?;
    let segment = ancillary.segment.unwrap_or(socket.options.segment);
    let ordinary = route.epoch == epoch
        && request.to.or(socket.peer)? == envelope.destination
        && socket.state == State::Offloaded
        && (segment == 0 || len <= segment.into() && socket.options.checksum)
        && !(socket.order.may_have_error() || socket.os_corked || route.by_kernel > 0);
    // The long way tells of memory that is not there.
    if !ordinary || !user::all_give(request.payload, 0, len) {
        return None;
    }
    let kick = !request.more_follow;
    let progress = envelope::send(ring, envelope, request.payload, len, kick).ok()?;
    endpoint.counters.tx_packets += 1;
    endpoint.counters.tx_bytes += len as u64;
    route.outstanding.note(progress);
    Some(envelope.ring)
}

/// Sends what a burst has queued on a ring.
pub fn kick(stack: &Stack, ring: RingId) {
    let began_to_wait = stack.shard.lock().is_ok_and(|mut state| state.kick(ring));
    if began_to_wait {
        stack.wake_internal_thread();
    }
}

/// How this datagram goes.
struct Way {
    hop: NextHop,
    source: Ipv4Addr,
    hop_limit: Option<u8>,
    /// Of a packet of IPv6: the socket's traffic class.
    class: Option<u8>,
    /// By a link, after so many others by the kernel.
    after_kernel: u16,
    ancillary: Ancillary,
}

impl Way {
    /// The datagram, by the options of the socket and what the call says instead.
    #[inline]
    fn egress<'e>(
        &'e self,
        socket: &Socket,
        destination: SocketAddrV4,
        payload: &'e [IoSlice<'e>],
        len: usize,
    ) -> Egress<'e> {
        let options = &socket.options;
        let group = Some(*destination.ip()).filter(|to| ipv6_stand_ins::is_multicast(*to));
        let multicast = group.map(|group| options.multicast(group));
        // IP_TTL is not for packets of IPv6.
        let own_ttl = options.ttl.filter(|_| self.class.is_none());
        let unicast_ttl = own_ttl.or(self.hop_limit).unwrap_or(64);
        let ttl = multicast.map_or(unicast_ttl, |it| it.hops);
        Egress {
            hop: &self.hop,
            source: SocketAddrV4::new(self.source, socket.local.map_or(0, |local| local.port())),
            destination,
            ttl: self.ancillary.ttl.unwrap_or(ttl),
            tos: self.ancillary.tos.or(self.class).unwrap_or(options.tos),
            dont_fragment: options.dont_fragment,
            // IP_MTU_DISCOVER is not for packets of IPv6.
            never_fragment: options.never_fragment && self.class.is_none(),
            // SO_NO_CHECK is for IPv4 (RFC 8200 section 8.1).
            checksum: options.checksum || self.class.is_some(),
            loop_back: multicast.is_some() && socket.loops_multicast(),
            after_kernel: self.after_kernel,
            payload,
            skip: 0,
            len,
        }
    }
}

fn transmit<'a>(
    stack: &'a Stack,
    mut state: Guard<'a>,
    id: SocketId,
    request: &Request<'_>,
    len: usize,
    destination: SocketAddrV4,
    way: Way,
) -> Outcome<(usize, RingId)> {
    let (hop, ancillary) = (&way.hop, way.ancillary);
    let (interruptions, thread) = thread::interruptions_and_id(false);
    // Of a train: the bytes that are queued.
    let mut done = 0;
    loop {
        let Some((endpoint, socket)) = state.socket(id) else {
            return Outcome::Os(WhyOs::NotOurs);
        };
        let options = &socket.options;
        let segment = ancillary.segment.unwrap_or(options.segment);
        if segment != 0
            && done == 0
            && let Err(errno) =
                size::check_train(len, segment, hop.mtu, options.checksum || way.class.is_some())
        {
            endpoint.counters.tx_errors += 1;
            return Outcome::Errno(errno);
        }
        let egress = way.egress(socket, destination, request.payload, len);
        let asked = !socket.nonblocking && request.flags & libc::MSG_DONTWAIT == 0;
        let blocking = waits(stack.config.tx_block, asked);
        let is_train = segment != 0 && len > usize::from(segment);
        let result = match is_train {
            false => state.send(&egress),
            true => state.send_train(&egress, segment, &mut done),
        };
        let progress = state.progress(hop);
        // A captured packet, or one whose sender is asked about each time, goes the long way.
        let prepares = !stack.config.rules.ask_senders() && !state.is_captured();
        let (counters, route) = match state.socket(id) {
            Some((endpoint, socket)) => {
                endpoint.tx_thread = thread;
                (&mut endpoint.counters, &mut socket.route)
            }
            None => return Outcome::Os(WhyOs::NotOurs),
        };
        match result {
            Ok(()) => {
                let count = if is_train { len.div_ceil(segment.into()) } else { 1 };
                counters.tx_packets += count as u64;
                counters.tx_bytes += len as u64;
                if let Some(route) = route {
                    let model = (prepares && ancillary.is_plain()).then_some(&egress);
                    note_sent(route, progress, model);
                }
                if !request.more_follow && state.kick_or_wait(hop.ring) {
                    drop(state);
                    stack.wake_internal_thread();
                }
                return Outcome::Ours((len, hop.ring));
            }
            Err(SendError::NoFrame)
                if blocking && thread::interruptions(false) == interruptions =>
            {
                drop(state);
                thread::yield_now();
                match stack.shard.lock() {
                    Ok(again) => state = again,
                    Err(_) if done > 0 => return Outcome::Ours((len, hop.ring)),
                    Err(_) => return Outcome::Os(WhyOs::Reentered),
                }
                if state.kick(hop.ring) {
                    stack.wake_internal_thread();
                }
            }
            // Of a train a part has left. The rest may be lost here as anywhere on the way.
            Err(_) if done > 0 => {
                return cut_off(stack, state, id, (len, done, segment), hop.ring);
            }
            Err(SendError::NoFrame) if blocking => return Outcome::Errno(libc::EINTR),
            Err(SendError::ReceiverFull) if has_room_in_kernel(progress, route) => {
                return Outcome::Os(passed_locked(state, id, request, WhyOs::LinkFull));
            }
            Err(SendError::Fragments) => {
                return Outcome::Os(passed_locked(state, id, request, WhyOs::Arguments));
            }
            Err(error) => return failed(stack, state, id, (error, len), hop.ring),
        }
    }
}

/// A datagram has left by a link or a ring; the next one may be sent after the model.
#[inline(always)]
fn note_sent(route: &mut CachedRoute, progress: Option<Progress>, model: Option<&Egress<'_>>) {
    route.by_kernel = 0;
    let Some(progress) = progress else { return };
    route.outstanding.note(progress);
    if let Some(model) = model {
        route.envelope = Envelope::new(model);
    }
}

/// The link is shared by all sockets of that process. One that has not filled it has room in the kernel; one
/// that has would meet a full buffer there, too.
fn has_room_in_kernel(progress: Option<Progress>, route: &Option<Box<CachedRoute>>) -> bool {
    let outstanding = progress.zip(route.as_ref());
    outstanding.is_some_and(|(progress, route)| route.outstanding.most(progress) < FEW_OUTSTANDING)
}

/// A datagram did not leave, and will not.
#[cold]
fn failed(
    stack: &Stack,
    mut state: Guard<'_>,
    id: SocketId,
    (error, len): (SendError, usize),
    ring: RingId,
) -> Outcome<(usize, RingId)> {
    let Some((endpoint, _)) = state.socket(id) else { return Outcome::Os(WhyOs::NotOurs) };
    let counters = &mut endpoint.counters;
    match error {
        SendError::NoRing | SendError::Fragments => return Outcome::Os(WhyOs::RingRefused),
        SendError::TooBig => {
            counters.tx_errors += 1;
            return Outcome::Errno(libc::EMSGSIZE);
        }
        SendError::Fault => {
            counters.tx_errors += 1;
            return Outcome::Errno(libc::EFAULT);
        }
        SendError::NoFrame => {
            if let Err(errno) = dropped(stack.config.tx_nonblocked_eagains) {
                counters.tx_eagain += 1;
                return Outcome::Errno(errno);
            }
        }
        SendError::ReceiverFull => {}
    }
    counters.tx_dropped += 1;
    state.note_lost(ring);
    Outcome::Ours((len, ring))
}

/// Of a train's `len` bytes only `done` found room; the program hears that all have left.
#[cold]
fn cut_off(
    stack: &Stack,
    mut state: Guard<'_>,
    id: SocketId,
    (len, done, segment): (usize, usize, u16),
    ring: RingId,
) -> Outcome<(usize, RingId)> {
    if let Some((endpoint, _)) = state.socket(id) {
        let of = |bytes: usize| bytes.div_ceil(segment.max(1).into()) as u64;
        endpoint.counters.tx_packets += of(done);
        endpoint.counters.tx_bytes += done as u64;
        endpoint.counters.tx_dropped += of(len - done);
    }
    state.note_lost(ring);
    if state.kick(ring) {
        drop(state);
        stack.wake_internal_thread();
    }
    Outcome::Ours((len, ring))
}

/// Does a send without a free frame wait for one (`VMA_TX_BLOCK`)? `asked`: the socket would.
fn waits(block: Blocking, asked: bool) -> bool {
    match block {
        Blocking::AsSocket => asked,
        Blocking::Always => true,
        Blocking::Never => false,
    }
}

/// What a send that does not wait says of a datagram for which no frame was free
/// (`VMA_TX_NONBLOCKED_EAGAINS`).
fn dropped(eagains: bool) -> Result<(), i32> {
    if eagains { Err(libc::EAGAIN) } else { Ok(()) }
}

/// Gives an unbound shadow its port, so that the answer can be steered. False if the kernel shall
/// do the whole call (and say what is wrong with it).
fn name_shadow(descriptor: i32, request: &Request<'_>, destination: SocketAddrV4) -> bool {
    if loopback_end::of_datagrams(descriptor).is_some_and(|ends| ends.local.is_some()) {
        return true;
    }
    let valid = destination.port() != 0 && !destination.ip().is_unspecified();
    request.to.is_some() && valid && shadow::bind_any(descriptor).is_ok()
}

/// The first send of an unbound socket binds it (ip(7)). False if the kernel shall do the whole call.
fn start(
    stack: &Stack,
    id: SocketId,
    request: &Request<'_>,
    (descriptor, destination): (i32, SocketAddrV4),
) -> bool {
    let is_named = name_shadow(descriptor, request, destination);
    if is_named {
        note_start(stack, id, destination);
        attach::refresh(stack, id);
    }
    is_named
}

/// The socket was not named and sends its first datagram: only there may answers come from.
fn note_start(stack: &Stack, id: SocketId, destination: SocketAddrV4) {
    let ip = *destination.ip();
    let own = ip.is_loopback()
        || stack.plane.lock().is_ok_and(|plane| {
            plane.as_ref().is_some_and(|plane| plane.control.interface_of(ip).is_some())
        });
    if let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
    {
        socket.starts_locally = own || socket.starts_locally;
        socket.note_first_destination(destination);
    }
}

/// The kernel is to send it, for this reason.
fn passed(stack: &Stack, id: SocketId, request: &Request<'_>, why: WhyOs) -> WhyOs {
    let Ok(mut state) = stack.shard.lock() else { return why };
    if let Some((_, socket)) = state.socket(id) {
        socket.os_corked = request.flags & libc::MSG_MORE != 0;
    }
    passed_locked(state, id, request, why)
}

fn passed_locked(mut state: Guard<'_>, id: SocketId, request: &Request<'_>, why: WhyOs) -> WhyOs {
    if let Some((_, socket)) = state.socket(id)
        && let Some(route) = &mut socket.route
        && route.port.is_some()
        && request.control.is_some_and(may_be_train)
    {
        // A train may be received there as one message, or as many.
        route.by_kernel = u16::MAX;
    }
    why
}

/// The kernel has done a send call on the shadow. If it bound the socket on its own, the flows follow.
pub fn after_os(stack: &Stack, id: SocketId, outcome: Result<usize, i32>) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((endpoint, socket)) = state.socket(id) else { return };
    let counters = &mut endpoint.counters;
    match outcome {
        // Nothing written to a stream is nothing.
        Ok(0) if socket.stream.is_some() => {}
        Ok(len) => {
            counters.tx_os_packets += 1;
            counters.tx_os_bytes += len as u64;
            socket.note_sent_by_kernel();
        }
        Err(libc::EAGAIN) => counters.tx_os_eagain += 1,
        Err(libc::EINTR) => {}
        Err(_) => counters.tx_os_errors += 1,
    }
    let undecided = socket.state == State::Undecided && socket.stream.is_none();
    drop(state);
    if undecided && outcome.is_ok() {
        attach::refresh(stack, id);
    }
}

#[cfg(test)]
mod tests;
