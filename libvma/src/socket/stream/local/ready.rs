//! What poll(2) sees of a socket with a pipe, and what getsockopt() and ioctl() tell.

use libvma_engine::tcp::State as TcpState;

use super::{Shard, shadow};
use crate::shard::pipe::{Turn, Way};
use crate::shard::{Readiness, SocketId};

/// What the socket is ready for. What it is not ready for it will tell.
pub fn readiness(state: &mut Shard, id: SocketId) -> Option<Readiness> {
    super::flush(state, id);
    super::attend_to_shadow(state, id);
    let (_, socket) = state.socket(id)?;
    let descriptor = socket.shadow();
    let stream = socket.stream.as_ref()?;
    let (low_water, reading_shut) = (stream.low_water, stream.reading_shut);
    let has_error = socket.has_error();
    let low_water = (low_water as usize).min(super::MOST_LOW_WATER);
    if !super::is_established(state, id) {
        return Some(from_poll(shadow::events(descriptor)));
    }
    let writable = state.is_pipe_writable(id) || overflows(state, id, descriptor);
    if state.pipe(id)?.readable() < low_water {
        gather(state, id, descriptor);
    }
    let pipe = state.pipe(id)?;
    let mut ready = Readiness::NONE;
    let (turn, way) = (pipe.turn(), pipe.way());
    if pipe.is_dead() {
        for bit in [Readiness::IN, Readiness::OUT, Readiness::RDHUP, Readiness::HUP] {
            ready.insert(bit);
        }
        if pipe.is_reset() {
            ready.insert(Readiness::ERR);
        }
        return Some(ready);
    }
    let asks = matches!(turn, Turn::Kernel { .. }) || way == Way::Kernel || pipe.is_over();
    let kernel = if asks {
        from_poll(pipe.without_late_error(shadow::events(descriptor)))
    } else {
        Readiness::NONE
    };
    let insert_if = |ready: &mut Readiness, holds: bool, bits: Readiness| {
        if holds {
            ready.insert(bits);
        }
    };
    let at_kernel = matches!(turn, Turn::Kernel { .. });
    // The kernel tells of its bytes itself, but not of the pipe's behind them.
    let readable = match pipe.readable() {
        0 => 0,
        _ => pipe.readable_with(|| shadow::unread(descriptor)),
    };
    let kernel_ended = at_kernel && kernel.contains(Readiness::RDHUP);
    let ended = kernel_ended || pipe.is_end_here(|| shadow::unread(descriptor));
    insert_if(&mut ready, readable > 0 && (readable >= low_water || ended), Readiness::IN);
    insert_if(&mut ready, at_kernel && kernel.contains(Readiness::IN), Readiness::IN);
    insert_if(&mut ready, ended || reading_shut, Readiness::IN.union(Readiness::RDHUP));
    let shut = pipe.is_shut();
    insert_if(&mut ready, shut, Readiness::OUT);
    insert_if(&mut ready, shut && (ended || reading_shut), Readiness::HUP);
    match way {
        Way::Pipe if writable => {
            ready.insert(Readiness::OUT);
            pipe.promise_room();
        }
        Way::Pipe => pipe.want_room(),
        Way::Kernel if kernel.contains(Readiness::OUT) => {
            ready.insert(Readiness::OUT);
            pipe.promise_room();
        }
        Way::Kernel => {}
        Way::Nowhere | Way::Shut => {}
    }
    // A connection that was closed or died says so at once, whatever is still to be read.
    for bit in [Readiness::RDHUP, Readiness::HUP, Readiness::ERR, Readiness::PRI] {
        let counts = pipe.is_over() || pipe.is_pending() || at_kernel;
        insert_if(&mut ready, counts && kernel.contains(bit), bit);
    }
    if pipe.is_reset() || has_error {
        for bit in [Readiness::IN, Readiness::OUT, Readiness::RDHUP, Readiness::HUP, Readiness::ERR]
        {
            ready.insert(bit);
        }
    }
    Some(ready)
}

/// Bytes that went by the kernel while the link was full, and the pipe's behind them: what can be read is
/// counted in one queue.
#[inline]
fn gather(state: &mut Shard, id: SocketId, descriptor: i32) {
    if state.pipe(id).is_some_and(|pipe| pipe.has_bytes_behind()) {
        super::prefetch(state, id, descriptor);
    }
}

/// Has the link no room, but the kernel's connection, and may the bytes go there?
#[cold]
pub(super) fn overflows(state: &mut Shard, id: SocketId, descriptor: i32) -> bool {
    state.pipe(id).is_some_and(|pipe| pipe.way() == Way::Pipe && pipe.has_free_third())
        && state.may_pipe_overflow(id)
        && shadow::events(descriptor) & libc::POLLOUT != 0
}

pub(super) fn from_poll(told: i16) -> Readiness {
    let mut ready = Readiness::NONE;
    for (event, bit) in [
        (libc::POLLIN, Readiness::IN),
        (libc::POLLOUT, Readiness::OUT),
        (libc::POLLRDHUP, Readiness::RDHUP),
        (libc::POLLHUP, Readiness::HUP),
        (libc::POLLERR, Readiness::ERR),
        (libc::POLLPRI, Readiness::PRI),
    ] {
        if told & event != 0 {
            ready.insert(bit);
        }
    }
    if ready.contains(Readiness::ERR) {
        // A reset: the kernel notes the error first and the rest a moment later.
        for bit in [Readiness::IN, Readiness::OUT, Readiness::RDHUP, Readiness::HUP] {
            ready.insert(bit);
        }
    }
    ready
}

/// FIONREAD.
pub fn unread(state: &mut Shard, id: SocketId) -> Option<i32> {
    state.poll();
    let descriptor = state.socket(id)?.1.shadow();
    super::attend_to_shadow(state, id);
    gather(state, id, descriptor);
    let pipe = state.pipe(id)?;
    Some(i32::try_from(pipe.readable_with(|| shadow::unread(descriptor))).unwrap_or(i32::MAX))
}

/// SO_ERROR. The kernel and the pipe both learn of a reset, which is told once.
pub fn take_error(state: &mut Shard, id: SocketId) -> Option<i32> {
    state.poll();
    let descriptor = state.socket(id)?.1.shadow();
    let pipe = state.pipe(id)?;
    let kernels = crate::sys::shadow::int_option(descriptor, libc::SOL_SOCKET, libc::SO_ERROR)?;
    let resets = kernels == libc::ECONNRESET;
    if resets && let Some(error) = pipe.tell_kernels_reset() {
        return Some(error);
    }
    Some(pipe.take_fault().unwrap_or(if resets { 0 } else { kernels }))
}

/// The state of the connection, if the kernel has not been told of its ends. None: it knows.
pub fn tcp_state(state: &mut Shard, id: SocketId) -> Option<TcpState> {
    state.poll();
    let pipe = state.pipe(id)?;
    match (pipe.is_shut() && !pipe.is_end_the_kernels(), pipe.is_finished()) {
        _ if pipe.is_over() => None,
        (false, false) => None,
        (true, false) => Some(TcpState::FinWait2),
        (false, true) => Some(TcpState::CloseWait),
        (true, true) => Some(TcpState::Closed),
    }
}
