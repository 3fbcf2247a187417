//! Readiness over offloaded and other descriptors at once: poll, select, epoll.
//!
//! All three poll first and sleep then, by `socket::block`. The kernel is asked about its own
//! descriptors every so many polls, and always before or by the sleep. Some of ours are among
//! them (`Seen::shared`): the shadow of a UDP socket or of a listener may have something of its
//! own. The shadow of any other stream socket has nothing to say, and is not asked: the kernel sees
//! an unconnected socket that hangs up all the time.

mod count;
pub mod epoll;
mod pace;
pub mod poll;
pub mod select;

pub use count::{measure_polling, statistics, zero_statistics};
pub use epoll::EpollId;

use std::sync::atomic::{AtomicU64, Ordering};

use self::count::Calls;
use self::pace::Pace;
use self::poll::Told;
use crate::shard::{Readiness, SocketId, State};
use crate::socket::stream::{self, Phase, Stream};
use crate::socket::wait::Patience;
use crate::socket::{self, Socket, Stack};
use crate::sys::thread::mask_differs;
use crate::sys::time::cycles;

// poll(2) and epoll(7) have the same bits.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// A datagram socket can also be written to out of band.
const WRITABLE_DATAGRAM: u32 = WRITABLE | libc::EPOLLWRBAND as u32;
/// What is told whether asked for or not.
const UNASKED: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// What a socket is ready for.
#[derive(Clone, Copy, Debug)]
struct Seen {
    events: u32,
    /// The shadow has a say, too.
    shared: bool,
    /// It is readable, once, because a receive callback holds a packet.
    held: bool,
    /// Something of it may come by the rings. Else the kernel has all of it, as of a listener that other processes
    /// accept from, too.
    served: bool,
}

impl Seen {
    /// A call tells of these events: of a packet that a callback holds no other one will.
    #[inline]
    fn tell(&self, state: &mut State<Socket>, id: SocketId, events: u32) {
        if self.held
            && events & READABLE != 0
            && let Some((endpoint, _)) = state.socket(id)
        {
            endpoint.has_held_news = false;
        }
    }
}

/// How a socket of ours stands; None if it is gone. What it is not ready for it will tell.
fn look(state: &mut State<Socket>, id: SocketId) -> Option<Seen> {
    let (endpoint, socket) = state.socket(id)?;
    let Some(stream) = &socket.stream else {
        // One event with all that holds: a UDP socket can always be written to.
        let held = endpoint.has_held_news;
        let is_readable = endpoint.is_readable() || held;
        let events = if is_readable { READABLE | WRITABLE_DATAGRAM } else { 0 };
        return Some(Seen { events, shared: true, held, served: true });
    };
    let held = endpoint.has_held_news;
    if matches!(socket.state, socket::State::Os(_)) {
        // It was just given to the kernel.
        return Some(Seen { events: 0, shared: true, held: false, served: false });
    }
    let news = if held { READABLE } else { 0 };
    // A receive callback is to judge first what can be read.
    let told = if stream.judgement.withholds() { !READABLE } else { u32::MAX };
    if endpoint.has_pipe() {
        let ready = stream::local::ready::readiness(state, id)?;
        let events = bits(ready) & told | news;
        return Some(Seen { events, shared: false, held, served: true });
    }
    let shared = matches!(stream.phase, Phase::Listening { .. });
    let unconnected = unconnected(stream, socket.has_error());
    let ready = match state.readiness(id) {
        Some(ready) => ready,
        None if shared => Readiness::NONE,
        None => unconnected,
    };
    if !shared
        && !ready.contains(Readiness::OUT)
        && let Some(connection) = state.connection(id)
    {
        connection.want_room();
    }
    let served = !shared || state.is_listening(id);
    Some(Seen { events: bits(ready) & told | news, shared, held, served })
}

/// As Linux has it of a socket that is not connected.
fn unconnected(stream: &Stream, failed: bool) -> Readiness {
    let mut ready = Readiness::HUP.union(Readiness::OUT);
    if stream.reading_shut {
        ready.insert(Readiness::IN.union(Readiness::RDHUP));
    }
    if failed {
        ready.insert(Readiness::ERR);
    }
    ready
}

fn bits(ready: Readiness) -> u32 {
    let each = [
        (Readiness::IN, READABLE),
        (Readiness::OUT, WRITABLE),
        (Readiness::RDHUP, libc::EPOLLRDHUP as u32),
        (Readiness::HUP, libc::EPOLLHUP as u32),
        (Readiness::ERR, libc::EPOLLERR as u32),
        (Readiness::PRI, libc::EPOLLPRI as u32),
    ];
    let held = each.into_iter().filter(|(bit, _)| ready.contains(*bit));
    held.fold(0, |events, (_, bits)| events | bits)
}

/// A listener among these sockets that gets no connections yet: they are to come to us from now on
/// (`stream::listen::steer`).
pub fn unsteered(stack: &Stack, ids: impl IntoIterator<Item = SocketId>) -> Option<SocketId> {
    let mut state = stack.shard.lock().ok()?;
    ids.into_iter().find(|id| {
        let stream = state.socket(*id).and_then(|(_, socket)| socket.stream.as_ref());
        stream.is_some_and(|stream| matches!(stream.phase, Phase::Listening { steered: false }))
    })
}

/// How long to poll, and the mask to sleep with. A mask of the call that differs from the thread's
/// counts for the whole wait, which only the kernel can do: then there is one look and no polling.
fn patience<'a>(
    stack: &Stack,
    mask: Option<&'a libc::sigset_t>,
) -> (Patience, Option<&'a libc::sigset_t>) {
    match mask.filter(|mask| mask_differs(mask)) {
        Some(mask) => (Patience::Loops(0), Some(mask)),
        // Where no packets of ours can come, polling is of no use.
        None if !stack.shard.is_live() => (Patience::Loops(0), None),
        None => (Patience::micros(stack.config.select_poll), None),
    }
}

/// What the calls of poll and select share.
#[derive(Default)]
pub struct OsTurn {
    turn: Turn,
    poll: Calls,
    select: Calls,
    pace: Pace,
}

impl OsTurn {
    fn calls(&self, told: Told) -> &Calls {
        match told {
            Told::Unasked => &self.poll,
            Told::Asked => &self.select,
        }
    }
}

/// When the kernel's descriptors get their look.
#[derive(Default)]
struct Turn {
    polls: AtomicU64,
    /// When a call last saw to it, by the processor's counter.
    asked_at: AtomicU64,
}

/// The time of a poll in a program that does little else, at the most: 2 us, of some 3 GHz.
const CYCLES_OF_A_POLL: u64 = 6_000;

impl Turn {
    /// Counts a poll; true if the kernel is to be asked now: after so many polls (`VMA_SELECT_POLL_OS_RATIO`),
    /// and when a call `begins` after the time that they would take at the most. A program that works for long
    /// between its calls would otherwise keep a descriptor of the kernel waiting for ten times as long.
    #[inline]
    fn is_now(&self, ratio: u64, begins: bool) -> bool {
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        ratio != 0 && (polls.is_multiple_of(ratio) || begins && self.is_late(ratio, cycles()))
    }

    fn is_late(&self, ratio: u64, now: u64) -> bool {
        let since = now.wrapping_sub(self.asked_at.load(Ordering::Relaxed));
        let late = since > ratio.saturating_mul(CYCLES_OF_A_POLL);
        if late {
            self.asked_at.store(now, Ordering::Relaxed);
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_turn_comes_by_polls_and_by_time() {
        let turn = Turn::default();
        let polls = (0..30).filter(|_| turn.is_now(10, false)).count();
        assert_eq!(polls, 3);
        assert!(!turn.is_late(10, 10 * CYCLES_OF_A_POLL));
        assert!(turn.is_late(10, 10 * CYCLES_OF_A_POLL + 1));
        assert!(!turn.is_late(10, 20 * CYCLES_OF_A_POLL));
        assert!(turn.is_late(10, 30 * CYCLES_OF_A_POLL));
        // Never.
        assert!((0..30).all(|_| !turn.is_now(0, true)));
    }

    #[test]
    fn readiness_becomes_the_bits_of_poll() {
        assert_eq!(bits(Readiness::NONE), 0);
        assert_eq!(bits(Readiness::IN), (libc::POLLIN | libc::POLLRDNORM) as u32);
        let ended = Readiness::HUP.union(Readiness::OUT).union(Readiness::RDHUP);
        let expected = libc::POLLHUP | libc::POLLOUT | libc::POLLWRNORM | libc::POLLRDHUP;
        assert_eq!(bits(ended), expected as u32);
        assert_eq!(
            bits(Readiness::ERR.union(Readiness::PRI)),
            (libc::POLLERR | libc::POLLPRI) as u32
        );
    }
}
