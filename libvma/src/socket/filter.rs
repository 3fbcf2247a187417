//! Receive callbacks: what comes for a socket that has one is judged by the program before receive calls can get it.
//!
//! The program's thread judges, inside a receive or multiplexing call ([`super::block`] asks at the begin of every round), and
//! holds no lock meanwhile. Datagrams are withheld from the queue (`shard::filter`). Bytes of a stream stay where
//! they are, and are read only when they have passed ([`Judgement`]). One packet of a socket at a time is being judged.

use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::is_stand_in;
use libvma_dev::ipv6_stand_ins;

use super::block::Guard;
use super::stream::receive::read_as_judge;
use super::{SocketId, Stack, State};
use crate::extra::{Callback, LARGE, Origin, Packet, Verdict};
use crate::shard::{Readiness, clock};
use crate::sys::time::realtime_nanos;
use crate::sys::{loopback_end, shadow, thread};

/// Most packets of one call, whose own wait has to go on.
const MOST_OF_CALL: usize = 64;

/// May receive calls read what a stream has?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Judgement {
    /// It has no callback.
    #[default]
    None,
    /// The callback has to judge its bytes first.
    Due,
    /// That is going on.
    UnderWay,
    /// That is going on, and the callback is gone when it is over.
    Ending,
    /// The callback left the bytes to receive calls: they may read all that is there.
    Passed,
}

impl Judgement {
    #[inline]
    pub fn withholds(self) -> bool {
        matches!(self, Judgement::Due | Judgement::UnderWay | Judgement::Ending)
    }

    /// The stream has got a callback, or lost it. `readable`: there are bytes.
    fn after_register(self, has_callback: bool, readable: bool) -> Judgement {
        match has_callback {
            true if self == Judgement::Ending => Judgement::UnderWay,
            true if self != Judgement::None => self,
            // Bytes that wait came before the callback.
            true if readable => Judgement::Passed,
            true => Judgement::Due,
            // The bytes that are being judged are read by no other thread before the verdict.
            false if matches!(self, Judgement::UnderWay | Judgement::Ending) => Judgement::Ending,
            false => Judgement::None,
        }
    }

    /// The callback has judged, or is to judge anew. It may have been taken back meanwhile.
    fn after_verdict(self, next: Judgement) -> Judgement {
        match self {
            Judgement::None | Judgement::Ending => Judgement::None,
            Judgement::Due | Judgement::UnderWay | Judgement::Passed => next,
        }
    }
}

/// Gives a socket its callback, or takes it back. EINVAL: it is the kernel's.
pub fn register(stack: &Stack, id: SocketId, callback: Option<Callback>) -> Result<(), i32> {
    let callbacks = &stack.extra.callbacks;
    let mut state = stack.shard.lock().map_err(|_| libc::EAGAIN)?;
    let readable = is_readable(&mut state, id);
    let (endpoint, socket) = state.socket(id).ok_or(libc::EINVAL)?;
    if matches!(socket.state, State::Os(_)) {
        return Err(libc::EINVAL);
    }
    let is_stream = socket.stream.is_some();
    match &mut socket.stream {
        Some(stream) => {
            stream.judgement = stream.judgement.after_register(callback.is_some(), readable);
        }
        // Datagrams are stamped, and take the long way to the program.
        None => endpoint.wants_stamp = callback.is_some() || socket.options.wants_stamp(),
    }
    if let Some(callback) = callback {
        // Before anything can be withheld for it.
        callbacks.set(id, callback, is_stream);
    }
    if is_stream {
        set_arrival(&mut state, id, 0);
        state.announce(id);
    } else {
        state.set_filter(id, callback.is_some());
    }
    if callback.is_none() && judgement(&mut state, id) != Judgement::Ending {
        // With the shard's lock: another thread may be about to register one.
        callbacks.remove(id);
    }
    Ok(())
}

/// Has the program judge what has come for sockets with a callback. Holds no lock when it is called, nor when the callback is.
#[cold]
pub fn judge(stack: &Stack) {
    // A thread that holds the lock already is below a signal handler, or about to read from a stream.
    let Ok(mut state) = stack.shard.lock() else { return };
    for id in streams(stack) {
        begin_anew(&mut state, id);
    }
    state.poll_well();
    note_arrivals(stack, &mut state);
    drop(state);
    let mut left = MOST_OF_CALL;
    let mut may_go_on = || {
        left = left.saturating_sub(1);
        left > 0
    };
    while judge_datagram(stack) && may_go_on() {}
    for id in streams(stack) {
        while judge_stream(stack, id) && may_go_on() {}
    }
}

/// Before a sleep: is there something to be judged by this thread?
#[cold]
pub fn is_due(stack: &Stack, state: &mut Guard<'_>) -> bool {
    state.has_withheld()
        || streams(stack).any(|id| judgement(state, id) == Judgement::Due && has_news(state, id))
}

/// A receive call begins: the program need not be told any more that its callback holds something of the socket.
pub fn forget_held_news(state: &mut Guard<'_>, id: SocketId) {
    if let Some((endpoint, _)) = state.socket(id) {
        endpoint.has_held_news = false;
    }
}

/// A receive call has read from the stream: what comes when nothing is left is judged again.
#[cold]
pub fn after_read(stack: &Stack, id: SocketId) {
    if let Ok(mut state) = stack.shard.lock() {
        begin_anew(&mut state, id);
    }
}

fn streams(stack: &Stack) -> impl Iterator<Item = SocketId> {
    (0..).map_while(|at| stack.extra.callbacks.stream(at))
}

fn judgement(state: &mut Guard<'_>, id: SocketId) -> Judgement {
    let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
    stream.map_or(Judgement::None, |stream| stream.judgement)
}

fn set_judgement(state: &mut Guard<'_>, id: SocketId, judgement: Judgement) {
    if let Some((_, socket)) = state.socket(id)
        && let Some(stream) = &mut socket.stream
    {
        stream.judgement = stream.judgement.after_verdict(judgement);
    }
}

fn begin_anew(state: &mut Guard<'_>, id: SocketId) {
    if judgement(state, id) == Judgement::Passed && !has_news(state, id) {
        set_arrival(state, id, 0);
        set_judgement(state, id, Judgement::Due);
    }
}

/// Notes that bytes to be judged have come. The internal thread does that for a program that makes no call.
#[cold]
pub fn note_arrivals(stack: &Stack, state: &mut Guard<'_>) {
    for id in streams(stack) {
        // Those of a stream whose callback runs are in its hands.
        if judgement(state, id) == Judgement::Due && arrival(state, id) == 0 && has_news(state, id)
        {
            set_arrival(state, id, realtime_nanos());
        }
    }
}

fn arrival(state: &mut Guard<'_>, id: SocketId) -> u64 {
    let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
    stream.map_or(0, |stream| stream.arrival)
}

fn set_arrival(state: &mut Guard<'_>, id: SocketId, arrival: u64) {
    if let Some(stream) = state.socket(id).and_then(|(_, socket)| socket.stream.as_mut()) {
        stream.arrival = arrival;
    }
}

fn is_readable(state: &mut Guard<'_>, id: SocketId) -> bool {
    state.socket(id).is_some_and(|(_, socket)| socket.stream.is_some()) && has_news(state, id)
}

/// Has the stream bytes, an end, or an error?
fn has_news(state: &mut Guard<'_>, id: SocketId) -> bool {
    readiness(state, id).intersects(Readiness::IN.union(Readiness::ERR))
}

fn readiness(state: &mut Guard<'_>, id: SocketId) -> Readiness {
    let has_pipe = state.socket(id).is_some_and(|(endpoint, _)| endpoint.has_pipe());
    let ready = if has_pipe {
        super::stream::local::ready::readiness(state, id)
    } else {
        state.readiness(id)
    };
    ready.unwrap_or(Readiness::NONE)
}

/// False: there is none.
fn judge_datagram(stack: &Stack) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    let held = &stack.extra.held;
    let Some(mut judged) = state.next_withheld(|len| held.pool.take(len)) else { return false };
    let id = judged.socket;
    let len = judged.datagram.len as usize;
    let port = state.socket(id).and_then(|(_, socket)| socket.local).map_or(0, |own| own.port());
    drop(state);
    let verdict = match stack.extra.callbacks.get(id) {
        Some(callback) => {
            let number = held.begin_to_judge(origin(id, &callback, false), len);
            let verdict = callback.judge(&mut Packet {
                number,
                payload: judged.payload.get_mut(..len).unwrap_or_default(),
                source: told(judged.datagram.source),
                destination: told(SocketAddrV4::new(judged.datagram.destination, port)),
                waiting: judged.waiting,
                stamp: judged.datagram.stamp,
            });
            held.end_of_judging(number, judged.payload, verdict == Verdict::Hold);
            verdict
        }
        None => {
            held.pool.give(judged.payload);
            Verdict::Receive
        }
    };
    if let Ok(mut state) = stack.shard.lock() {
        state.judge(id, judged.datagram, verdict == Verdict::Receive);
        if verdict == Verdict::Hold {
            state.note_held(id);
        }
    }
    true
}

/// False: the stream has nothing to be judged now.
fn judge_stream(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    if judgement(&mut state, id) != Judgement::Due {
        return false;
    }
    let ready = readiness(&mut state, id);
    if ready.intersects(Readiness::ERR) {
        // A receive call tells of the error.
        pass(&mut state, id);
        return false;
    }
    if !ready.contains(Readiness::IN) {
        return false;
    }
    set_judgement(&mut state, id, Judgement::UnderWay);
    // Bytes that came while the callback ran are found only now.
    let stamp = Some(arrival(&mut state, id)).filter(|nanos| *nanos != 0);
    let stamp = stamp.unwrap_or_else(realtime_nanos);
    set_arrival(&mut state, id, 0);
    drop(state);
    let verdict = judge_bytes(stack, id, stamp);
    let Ok(mut state) = stack.shard.lock() else { return false };
    if judgement(&mut state, id) == Judgement::Ending {
        stack.extra.callbacks.remove(id);
    }
    if verdict == Some(Verdict::Hold) {
        state.note_held(id);
    }
    match verdict {
        Some(Verdict::Drop | Verdict::Hold) => {
            set_judgement(&mut state, id, Judgement::Due);
            // Others waited for the verdict.
            state.announce(id);
            true
        }
        Some(Verdict::Receive) | None => {
            pass(&mut state, id);
            false
        }
    }
}

fn pass(state: &mut Guard<'_>, id: SocketId) {
    set_judgement(state, id, Judgement::Passed);
    state.announce(id);
}

/// None: there are no bytes, but perhaps an end.
fn judge_bytes(stack: &Stack, id: SocketId, stamp: u64) -> Option<Verdict> {
    let held = &stack.extra.held;
    let mut scratch = held.pool.scratch();
    let room = LARGE;
    let peek = libc::MSG_PEEK;
    let len = read_as_judge(stack, id, &mut [IoSliceMut::new(scratch.bytes())], room, peek);
    let callback = stack.extra.callbacks.get(id).filter(|_| len > 0)?;
    let (source, destination) = ends(stack, id);
    let mut bytes = scratch.keep(len);
    let number = held.begin_to_judge(origin(id, &callback, true), len);
    let verdict = callback.judge(&mut Packet {
        number,
        payload: bytes.get_mut(..len).unwrap_or_default(),
        source: told(source),
        destination: told(destination),
        waiting: (0, 0),
        stamp,
    });
    if verdict != Verdict::Receive {
        take_judged(stack, id, len, || is_still(callback.descriptor, source, destination));
    }
    held.end_of_judging(number, bytes, verdict == Verdict::Hold);
    Some(verdict)
}

fn origin(socket: SocketId, callback: &Callback, is_stream: bool) -> Origin {
    Origin { socket, descriptor: callback.descriptor, is_stream }
}

/// So long the bytes of a pipe that was given up are waited for, which come back by the kernel.
const LONGEST_RETURN_NANOS: u64 = 100_000_000;

/// Takes the bytes that the callback had. They are the first ones still: no other thread could read. If the socket became the
/// kernel's meanwhile, the bytes are the first ones there; `shadow` is its number, if it is still of that connection.
fn take_judged(stack: &Stack, id: SocketId, len: usize, shadow: impl Fn() -> Option<i32>) {
    let mut left = len;
    let mut end = None;
    while left > 0 {
        let departed = stack.shard.lock().is_ok_and(|state| state.has_departed(id));
        let taken = match departed.then(&shadow) {
            Some(None) => return,
            Some(Some(descriptor)) => shadow::discard(descriptor, left),
            None => read_as_judge(stack, id, &mut [], left, libc::MSG_TRUNC),
        };
        left = left.saturating_sub(taken);
        if taken > 0 || left == 0 {
            continue;
        }
        let now = clock::now().as_nanos();
        if now >= *end.get_or_insert(now.saturating_add(LONGEST_RETURN_NANOS)) {
            return;
        }
        thread::nap_millis(1);
    }
}

/// The number, if it is that of the connection between these ends.
fn is_still(descriptor: i32, source: SocketAddrV4, destination: SocketAddrV4) -> Option<i32> {
    let ends = (loopback_end::peer(descriptor), loopback_end::local(descriptor));
    (ends == (Some(source), Some(destination))).then_some(descriptor)
}

/// An address as callbacks get it, which have no IPv6 addresses: 0.0.0.0 with the port.
fn told(address: SocketAddrV4) -> SocketAddrV4 {
    match is_stand_in(*address.ip()) || ipv6_stand_ins::is_one(*address.ip()) {
        true => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, address.port()),
        false => address,
    }
}

/// The peer's address and the own one.
fn ends(stack: &Stack, id: SocketId) -> (SocketAddrV4, SocketAddrV4) {
    let none = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let Ok(mut state) = stack.shard.lock() else { return (none, none) };
    if let Some(connection) = state.connection(id) {
        let key = connection.key();
        return (key.remote_endpoint(), key.local_endpoint());
    }
    let shadow = state.socket(id).map_or(-1, |(_, socket)| socket.shadow());
    drop(state);
    (loopback_end::peer(shadow).unwrap_or(none), loopback_end::local(shadow).unwrap_or(none))
}

#[cfg(test)]
mod tests;
