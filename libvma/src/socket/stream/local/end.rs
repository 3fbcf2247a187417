//! The end of a pipe: shutdown(), close(), the end of the process, and giving the connection to the
//! kernel while it lives.

use super::super::{Outcome, Phase, Stack, WhyOs, set_phase};
use super::half::{self, Half};
use super::receive::GIVEN_NANOS;
use super::{Shard, connect, promise, shadow};
use crate::log::log_line;
use crate::shard::{SocketId, clock};
use crate::socket::{NO_SHADOW, State, hand_over, local};
use crate::sys::thread;
use crate::sys::time::monotonic_nanos;

/// shutdown(2).
pub fn shutdown(state: &mut Shard, id: SocketId, read: bool, write: bool) -> Outcome<()> {
    state.poll();
    let Some((_, socket)) = state.socket(id) else { return Outcome::Os(WhyOs::NotOurs) };
    let descriptor = socket.shadow();
    let established = super::is_established(state, id);
    if !established {
        // It ends the attempt.
        connect::undo(state, id);
        return Outcome::Os(WhyOs::ShutDown);
    }
    let ended = state.pipe(id).is_none_or(|pipe| {
        let by_kernel = || !pipe.would_tell_its_end() && shadow::is_at_end(descriptor);
        pipe.has_ended() || pipe.is_shut() && by_kernel()
    });
    if ended || !shadow::has_peer(descriptor) {
        return Outcome::Errno(libc::ENOTCONN);
    }
    let Some((_, socket)) = state.socket(id) else { return Outcome::Os(WhyOs::NotOurs) };
    if let Some(stream) = socket.stream.as_mut() {
        stream.reading_shut |= read;
    }
    if read && let Some(pipe) = state.pipe(id) {
        pipe.shut_reading();
    }
    let over = state.pipe(id).is_some_and(|pipe| pipe.is_over());
    if read && over {
        shadow::shutdown(descriptor, libc::SHUT_RD);
    }
    if write && state.pipe(id).is_some_and(|pipe| !pipe.is_shut()) {
        state.shut_pipe(id);
        super::flush(state, id);
    }
    state.announce_change(id);
    Outcome::Ours(())
}

/// How long a closing or leaving process waits for a peer.
const PATIENCE_MILLIS: u64 = 2000;

/// The program closed the last descriptor, this one, which the socket knows as its shadow until it is
/// detached. The caller closes the shadow, unless it is [`NO_SHADOW`].
pub fn close(stack: &Stack, id: SocketId, descriptor: i32) {
    let shared = {
        let Ok(mut state) = stack.shard.lock() else { return };
        state.socket(id).is_some_and(|(_, socket)| hand_over::is_shared(socket))
    };
    if descriptor != NO_SHADOW && shared && give_back_to(stack, id, descriptor, WhyOs::Passed) {
        // A forked child may go on with it; if none does, the kernel ends it.
        if let Ok(mut state) = stack.shard.lock() {
            let _ = crate::socket::last_counters(stack, &mut state, id);
            state.detach(id);
        }
        return;
    }
    let Ok(mut state) = stack.shard.lock() else { return };
    state.catch_up();
    super::flush(&mut state, id);
    let now = clock::now().as_nanos();
    if let Some((destination, was_short)) = state.pipe(id).and_then(|pipe| pipe.brevity(now)) {
        stack.short_streams.note(destination, was_short, now);
    }
    end(&mut state, id, descriptor, true);
    let counters = crate::socket::last_counters(stack, &mut state, id);
    state.detach(id);
    drop(state);
    if let Some((counters, limit)) = counters {
        stack.stats.append(descriptor, &counters, limit);
    }
}

/// Before the process ends: the kernel takes what came back from peers, as far as there is time.
fn drain_backlogs(stack: &Stack, ids: &[SocketId], patience: u64) {
    loop {
        let Ok(mut state) = stack.shard.lock() else { return };
        state.poll();
        state.wind_up_pipes();
        let mut waits = state.awaits_returns_to_closed();
        for id in ids {
            super::flush(&mut state, *id);
            waits |= state.pipe(*id).is_some_and(|pipe| pipe.has_bytes_on_their_way());
        }
        if !waits || monotonic_nanos() >= patience {
            return;
        }
        drop(state);
        thread::nap_millis(1);
    }
}

/// Says that the socket is closed. As on Linux, bytes that the program did not read make it a reset, unless
/// both ends have been told before: then the connection is over already, for both.
///
/// As long as the peer has not read everything it may be given back, and have to go by the kernel: then
/// the pipe goes on without its socket.
fn end(state: &mut Shard, id: SocketId, descriptor: i32, lingers: bool) {
    let Some(pipe) = state.pipe(id) else { return };
    let unread = pipe.unread() > 0 && !pipe.are_both_told() || pipe.is_dead();
    // Whoever reads the rest of it must not take that for all.
    let torn = pipe.has_bytes_on_their_way();
    let (shut, over) = (pipe.is_shut(), pipe.is_end_the_kernels() || pipe.has_left_half());
    let resets = state
        .socket(id)
        .and_then(|(_, socket)| socket.stream.as_ref())
        .is_some_and(|stream| stream.settings.reset_on_close);
    if lingers
        && !unread
        && !resets
        && state.pipe_must_remain(id)
        && let Some(rest) = Half::of(descriptor)
    {
        return state.leave_pipe(id, Box::new(rest));
    }
    if resets && !unread && !torn && state.pipe(id).is_some_and(|pipe| pipe.are_both_told()) {
        // On Linux the connection is over by then, and a close that would reset it does not.
        shadow::set_linger(descriptor, None);
    }
    if unread || torn {
        // First, so that the peer sees it whole when the pipe has told of the end.
        shadow::reset(descriptor);
    }
    state.close_pipe(id);
    if !unread && !torn && shut && !over {
        shadow::shutdown(descriptor, libc::SHUT_WR);
    }
}

/// The process ends: what it sent is in the link, or in the kernel. Returns the sockets that are the
/// kernel's now.
pub fn leave(stack: &Stack) -> Vec<SocketId> {
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    state.catch_up();
    let mut ids = state.ids();
    ids.retain(|id| super::has_pipe(&mut state, *id));
    drop(state);
    let patience = monotonic_nanos() + PATIENCE_MILLIS * 1_000_000;
    drain_backlogs(stack, &ids, patience);
    half::leave_all(stack, patience);
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    let mut shared = Vec::new();
    for id in &ids {
        let Some((_, socket)) = state.socket(*id) else { continue };
        let descriptor = socket.shadow();
        if hand_over::is_shared(socket) {
            shared.push((*id, descriptor));
            continue;
        }
        end(&mut state, *id, descriptor, false);
        depart(&mut state, *id, WhyOs::ProcessEnds);
    }
    drop(state);
    for (id, descriptor) in shared {
        let in_time = monotonic_nanos() < patience;
        if in_time && give_back_to(stack, id, descriptor, WhyOs::ProcessEnds) {
            continue;
        }
        // A child may go on with it, and would follow bytes that never came.
        if let Ok(mut state) = stack.shard.lock()
            && state.pipe(id).is_some_and(|pipe| pipe.has_bytes_on_their_way())
        {
            shadow::reset(descriptor);
        }
    }
    ids
}

/// Threads that wait for the socket go on with the kernel's.
fn depart(state: &mut Shard, id: SocketId, why: WhyOs) {
    state.close_pipe(id);
    if let Some((_, socket)) = state.socket(id) {
        socket.state = State::Os(why);
    }
    set_phase(state, id, Phase::Fresh);
    state.announce_change(id);
    state.depart(id);
}

/// The shadow learns what the pipe knew, and gets what is unread.
fn hand_over_shadow(state: &mut Shard, id: SocketId, descriptor: i32) {
    let Some(pipe) = state.pipe(id) else { return };
    let (shut, reset) = (pipe.is_shut() && pipe.take_untold_end(), pipe.is_reset());
    let poured = state.pour_pipe(id);
    let reading_shut = state
        .socket(id)
        .and_then(|(_, socket)| socket.stream.as_ref())
        .is_some_and(|stream| stream.reading_shut);
    if shut {
        shadow::shutdown(descriptor, libc::SHUT_WR);
    }
    if reading_shut {
        shadow::shutdown(descriptor, libc::SHUT_RD);
    }
    if reset && !poured {
        // Bytes are lost: nobody shall take what is left for all there was.
        shadow::reset(descriptor);
    }
}

/// A peer that was killed has told the kernel alone, and the thread that watches shadows may be the one that waits here.
fn hear_of_death(state: &mut Shard, id: SocketId, descriptor: i32) {
    if shadow::is_at_end(descriptor) {
        if let Some((_, socket)) = state.socket(id) {
            socket.order.note_readable();
        }
        super::attend_to_shadow(state, id);
    }
}

/// Makes the shadow all there is to the connection. False: it cannot be done now. After true the
/// caller forgets the socket.
pub fn give_back_to(stack: &Stack, id: SocketId, descriptor: i32, why: WhyOs) -> bool {
    {
        let Ok(mut state) = stack.shard.lock() else { return false };
        state.poll();
        state.stop_pipe(id);
    }
    let begin = monotonic_nanos();
    let end = begin + PATIENCE_MILLIS * 1_000_000;
    let (mut rounds, mut heard) = (0u32, false);
    loop {
        let Ok(mut state) = stack.shard.lock() else { return false };
        state.poll();
        super::flush(&mut state, id);
        hear_of_death(&mut state, id, descriptor);
        let Some(pipe) = state.pipe(id) else { return true };
        let poured = pipe.unread() == 0 || pipe.has_peers_half() && !pipe.wants_prefetch();
        // Of these the program may have been told (poll(2)); they are to be here when it asks the kernel's socket.
        let awaited = pipe.lacks_bytes() && !pipe.is_dead() && why != WhyOs::ProcessEnds;
        let absent = awaited
            && shadow::events(descriptor) & libc::POLLIN == 0
            && monotonic_nanos() < begin + GIVEN_NANOS;
        if pipe.is_over() && pipe.backlog().is_empty() && poured && !absent {
            hand_over_shadow(&mut state, id, descriptor);
            depart(&mut state, id, why);
            drop(state);
            connect::unwatch(stack, descriptor);
            log_line!(Debug, "fd {descriptor} is served by the kernel: {why}");
            return true;
        }
        // The peer is gone, and cannot send again what was not read here: but it may have left its half.
        let lacks_half = pipe.is_over() && pipe.unread() > 0 && !pipe.has_peers_half();
        if lacks_half && !heard {
            heard = true;
            drop(state);
            local::hear_peers(stack);
            continue;
        }
        let lost = lacks_half;
        if lost {
            // Whoever has the connection next must not take its rest for all of it.
            shadow::reset(descriptor);
        }
        drop(state);
        if lost || monotonic_nanos() >= end {
            log_line!(Debug, "fd {descriptor} cannot be given to the kernel now");
            return false;
        }
        rounds += 1;
        match rounds {
            0..200 => thread::yield_now(),
            200..1000 => thread::nap_micros(50),
            _ => thread::nap_millis(1),
        }
    }
}

/// The sockets of the internal thread's rounds: whose pipe is over is the kernel's (returned), and an
/// offer that nobody took in a second, or that did not come, is given up.
pub fn tend(stack: &Stack) -> Vec<SocketId> {
    const LATE_NANOS: u64 = 1_000_000_000;
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    if !state.has_pipes() {
        return Vec::new();
    }
    state.wind_up_pipes();
    let late = clock::now().as_nanos().saturating_sub(LATE_NANOS);
    for id in state.pipe_owners() {
        super::flush(&mut state, id);
    }
    let mut idle = state.idle_pipes(late);
    idle.retain(|id| {
        let connecting = !super::is_established(&mut state, *id);
        if state.pipe(*id).is_some_and(|pipe| pipe.is_offered() || pipe.is_apart()) {
            if !connecting {
                state.withdraw_pipe(*id);
            }
            return false;
        }
        // The kernel alone would refuse a send that the program has been promised.
        !connecting && !promise::holds_on(&mut state, *id)
    });
    idle
}
