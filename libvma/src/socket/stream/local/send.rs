//! send() and its kin: into the pipe, or to the kernel where the bytes go its way.

use std::io::IoSlice;

use super::super::send::outcome;
use super::super::wait::{Call, Manner, Step, Watches, until, until_or_partly};
use super::super::{Guard, Outcome, Stack, View, WhyOs};
use super::{Shard, promise, ready, shadow};
use crate::shard::pipe::{Pipe, Way};
use crate::shard::{Direction, SocketId};
use crate::sys::user::{self, Copied};

/// Sends without a look at the link in between: one that only sends would not see the peer close.
const BLIND: u32 = 16;

/// Sends what it can. `Errno(EPIPE)`: the caller raises SIGPIPE unless MSG_NOSIGNAL.
pub fn send<'a>(
    stack: &'a Stack,
    mut state: Guard<'a>,
    id: SocketId,
    view: &View,
    data: &[IoSlice<'_>],
    flags: i32,
) -> Outcome<usize> {
    if flags & libc::MSG_OOB != 0 && state.pipe(id).is_some_and(|pipe| !pipe.is_shut()) {
        return Outcome::Os(WhyOs::Arguments);
    }
    let Some((_, socket)) = state.socket(id) else { return Outcome::Os(WhyOs::NotOurs) };
    let mut look_first = socket.order.may_be_readable();
    let mut timeout = None;
    if let Some(stream) = socket.stream.as_mut() {
        timeout = stream.send_timeout;
        stream.sends = stream.sends.wrapping_add(1);
        look_first |= stream.sends.is_multiple_of(BLIND);
    }
    let blocking = !view.nonblocking && flags & libc::MSG_DONTWAIT == 0;
    let manner =
        Manner { blocking, timeout, watches: Watches::Pipe { writing: true }, call: Call::Send };
    let total: usize = data.iter().map(|piece| piece.len()).sum();
    if look_first || state.pipe(id).is_some_and(|pipe| pipe.way() != Way::Pipe) {
        state.poll();
        super::attend_to_shadow(&mut state, id);
    }
    if blocking && total > SMALL {
        state = match await_pipe(stack, state, id) {
            Some(state) => state,
            None => return Outcome::Os(WhyOs::Reentered),
        };
    }
    let (mut sent, mut has_polled) = (0, false);
    let ended = until_or_partly(stack, state, id, manner, |state| {
        let mut moved = transfer(state, id, data, sent, total, flags, blocking);
        if moved == Ok(Copied::default()) && total > 0 && has_polled {
            moved = Ok(promise::keep(state, id, data, sent, total));
        }
        has_polled = true;
        match moved {
            Ok(Copied { bytes, fault }) => {
                sent += bytes;
                if fault {
                    return Step::Done(Err(libc::EFAULT));
                }
            }
            Err(errno) => return Step::Done(Err(errno)),
        }
        match sent {
            _ if sent == total => Step::Done(Ok(())),
            0 => Step::Nothing,
            _ => Step::Part,
        }
    });
    outcome(stack, id, ended, sent)
}

/// So much may go by the kernel while the pipe is being agreed upon, and at once while the link is full.
const SMALL: usize = 16 * 1024;
/// How long a large send waits for the server to take the connection up.
const PATIENCE_NANOS: u64 = 10_000_000;

/// The client sends much at once: by the pipe, if the server is about to read. Once per connection.
#[cold]
fn await_pipe<'a>(stack: &'a Stack, mut state: Guard<'a>, id: SocketId) -> Option<Guard<'a>> {
    let pending = |state: &mut Guard<'_>| {
        let pipe = state.pipe(id)?;
        let waits = pipe.is_pending() && pipe.is_established() && !pipe.is_apart();
        waits.then_some(pipe.since)
    };
    let Some(since) = pending(&mut state) else { return Some(state) };
    let end = since.saturating_add(PATIENCE_NANOS);
    while crate::shard::clock::now().as_nanos() < end && pending(&mut state).is_some() {
        drop(state);
        crate::sys::thread::nap_micros(20);
        state = stack.shard.lock().ok()?;
        state.poll();
    }
    Some(state)
}

/// Sends what there is room for now.
#[inline]
fn transfer(
    state: &mut Shard,
    id: SocketId,
    data: &[IoSlice<'_>],
    sent: usize,
    total: usize,
    flags: i32,
    blocking: bool,
) -> Result<Copied, i32> {
    let Some(pipe) = state.pipe(id) else { return Err(libc::EPIPE) };
    match pipe.way() {
        Way::Pipe => {
            let Copied { bytes: mut count, mut fault } = write(state, id, data, sent, total);
            if count < total - sent && !fault {
                super::attend_to_shadow(state, id);
                let more = overflow(state, id, data, sent + count, total, flags, blocking);
                count += more.bytes;
                fault = more.fault;
                if count == 0 && state.pipe(id).is_some_and(|pipe| pipe.way() != Way::Pipe) {
                    // It ended in between.
                    return transfer(state, id, data, sent, total, flags, blocking);
                }
                if count == 0 && !fault {
                    // The link may have got room in between, whose notice is spent. If not, this asks for one.
                    return Ok(write(state, id, data, sent, total));
                }
            }
            Ok(Copied { bytes: count, fault })
        }
        Way::Shut if sent > 0 => Err(libc::EPIPE),
        Way::Shut if pipe.take_reset_to_send() => Err(libc::ECONNRESET),
        Way::Shut => {
            let error = super::take_kept(state, id).or_else(|| kernels_error(state, id));
            Err(error.unwrap_or(libc::EPIPE))
        }
        Way::Kernel | Way::Nowhere => {
            let sent = send_by_kernel(state, id, data, sent, flags);
            sent.map(|bytes| Copied { bytes, fault: false })
        }
    }
}

/// The error of a connection of which the kernel alone has a say. As on Linux (sk_stream_error()) it comes before EPIPE.
#[cold]
fn kernels_error(state: &mut Shard, id: SocketId) -> Option<i32> {
    let is_over = state.pipe(id)?.is_over();
    let error = is_over.then(|| ready::take_error(state, id)).flatten()?;
    (error != 0).then_some(error)
}

#[inline]
fn write(
    state: &mut Shard,
    id: SocketId,
    data: &[IoSlice<'_>],
    sent: usize,
    total: usize,
) -> Copied {
    let copied = state.pipe_write(id, data, sent, total);
    note_sent(state, id, data, sent, copied.bytes);
    copied
}

/// So long a blocking call waits for room in the link before it sends by the kernel.
const ROOM_NANOS: u64 = 10_000;

/// The link is full. If that is not this connection's doing the bytes go by the kernel, which has room
/// for them.
#[cold]
fn overflow(
    state: &mut Shard,
    id: SocketId,
    data: &[IoSlice<'_>],
    sent: usize,
    total: usize,
    flags: i32,
    blocking: bool,
) -> Copied {
    if blocking && total > SMALL {
        // A bulk transfer waits for the link.
        return Copied::default();
    }
    let mut count = 0;
    let now = || crate::shard::clock::now().as_nanos();
    let end = now().saturating_add(if blocking { ROOM_NANOS } else { 0 });
    loop {
        let way = state.pipe(id).map(|pipe| pipe.way());
        if sent + count == total || way != Some(Way::Pipe) || !state.may_pipe_overflow(id) {
            return Copied { bytes: count, fault: false };
        }
        if now() >= end {
            break;
        }
        state.poll();
        let Copied { bytes, fault } = write(state, id, data, sent + count, total);
        count += bytes;
        if fault {
            return Copied { bytes: count, fault };
        }
    }
    // What waits in the kernel for more would hold up what comes by the pipe.
    let flags = flags & !(libc::MSG_MORE | libc::MSG_DONTWAIT);
    let (more, failed) = write_to_kernel(state, id, data, sent + count, SMALL, flags);
    if let Some(pipe) = state.pipe(id).filter(|_| more > 0) {
        pipe.note_overflow(total - sent - count);
    }
    Copied { bytes: count + more, fault: note_failure(state, id, failed) }
}

/// The kernel took no more for that reason. True if the reason is the program's memory.
pub(super) fn note_failure(state: &mut Shard, id: SocketId, failed: Option<i32>) -> bool {
    let fault = failed == Some(libc::EFAULT);
    if let Some(errno) = failed.filter(|errno| !fault && !shadow::is_passing(*errno)) {
        // The connection is over, which the shadow tells.
        if let Some((_, socket)) = state.socket(id) {
            socket.order.note_readable();
        }
        super::keep_error(state, id, errno);
        super::attend_to_shadow(state, id);
    }
    fault
}

#[cold]
fn send_by_kernel(
    state: &mut Shard,
    id: SocketId,
    data: &[IoSlice<'_>],
    skip: usize,
    flags: i32,
) -> Result<usize, i32> {
    super::flush(state, id);
    super::settle_handshake(state, id);
    if skip == 0
        && let Some(errno) = super::take_kept(state, id)
    {
        return Err(errno);
    }
    if state.pipe(id).is_none_or(|pipe| pipe.way() != Way::Kernel) {
        return Ok(0);
    }
    // What waits in the kernel for more would hold up what comes by the pipe.
    let held_back = if state.pipe(id).is_some_and(|pipe| pipe.is_pending()) {
        libc::MSG_MORE | libc::MSG_DONTWAIT
    } else {
        libc::MSG_DONTWAIT
    };
    let (count, failed) = write_to_kernel(state, id, data, skip, usize::MAX, flags & !held_back);
    match failed {
        Some(libc::ECONNRESET) if count == 0 => {
            // Told once, by whoever knows first.
            Err(state.pipe(id).and_then(Pipe::tell_kernels_reset).unwrap_or(libc::EPIPE))
        }
        Some(errno) if count == 0 && errno != libc::EAGAIN => Err(errno),
        Some(errno) => {
            super::keep_error(state, id, errno);
            Ok(count)
        }
        None => Ok(count),
    }
}

/// So many buffers the kernel gets at a time.
const BATCH: usize = 64;

/// Counts bytes that the program has sent, and captures them: `count` of the pieces behind the first `skip`.
#[inline]
pub(super) fn note_sent(
    state: &mut Shard,
    id: SocketId,
    data: &[IoSlice<'_>],
    skip: usize,
    count: usize,
) {
    if state.is_captured() {
        let pieces = data.iter().map(|piece| &piece[..]);
        super::capture(state, id, Direction::Out, pieces, skip, count);
    }
    if let Some((endpoint, _)) = state.socket(id) {
        endpoint.counters.tx_bytes += count as u64;
    }
}

/// Sends what the kernel takes at once: how much, and why not more. Buffers leave together, as those of sendmsg(2): Nagle's
/// algorithm holds the second of two small sends back until the first is acknowledged.
pub(super) fn write_to_kernel(
    state: &mut Shard,
    id: SocketId,
    data: &[IoSlice<'_>],
    mut skip: usize,
    most: usize,
    flags: i32,
) -> (usize, Option<i32>) {
    let Some(descriptor) = state.socket(id).map(|(_, socket)| socket.shadow()) else {
        return (0, Some(libc::EBADF));
    };
    // Several buffers are one portion to the kernel.
    if data.len() > 1 && user::gives(data, skip, most.min(SMALL)).fault {
        return (0, Some(libc::EFAULT));
    }
    let mut left = most;
    let mut pieces = data
        .iter()
        .filter_map(|piece| {
            let here = skip.min(piece.len());
            skip -= here;
            let rest = piece.get(here..)?;
            let rest = rest.get(..left).unwrap_or(rest);
            left -= rest.len();
            (!rest.is_empty()).then(|| IoSlice::new(rest))
        })
        .peekable();
    let mut count = 0;
    let mut failed = None;
    while pieces.peek().is_some() {
        let mut batch = [IoSlice::new(&[]); BATCH];
        let (mut used, mut len) = (0, 0);
        for (slot, piece) in batch.iter_mut().zip(pieces.by_ref()) {
            used += 1;
            len += piece.len();
            *slot = piece;
        }
        let batch = batch.get(..used).unwrap_or_default();
        // The buffers behind this batch belong to the same segment.
        let more = if pieces.peek().is_some() { libc::MSG_MORE } else { 0 };
        match shadow::send_all(descriptor, batch, flags | more) {
            Ok(gone) => {
                count += gone;
                if gone < len {
                    break;
                }
            }
            Err(errno) => {
                failed = Some(errno);
                break;
            }
        }
    }
    if let Some(pipe) = state.pipe(id) {
        pipe.kernel_sent(count as u64);
    }
    if count > 0
        && let Some((endpoint, _)) = state.socket(id)
    {
        endpoint.counters.tx_os_packets += 1;
        endpoint.counters.tx_os_bytes += count as u64;
    }
    (count, failed)
}

/// The kernel's connection takes so much when it is writable, however small its send buffer is.
pub(super) const KERNEL_ROOM: usize = 2048;

/// How much a send call would take now; waits until that is something.
pub fn wait_for_room(stack: &Stack, id: SocketId, nonblocking: bool) -> Outcome<usize> {
    let manner = Manner {
        blocking: !nonblocking,
        timeout: None,
        watches: Watches::Pipe { writing: true },
        call: Call::Other,
    };
    let ended = until(stack, id, manner, |state| {
        super::flush(state, id);
        super::settle_handshake(state, id);
        super::attend_to_shadow(state, id);
        let shadow = state.socket(id)?.1.shadow();
        let Some(pipe) = state.pipe(id) else { return Some(Err(libc::EPIPE)) };
        match pipe.way() {
            Way::Shut => Some(Err(libc::EPIPE)),
            Way::Nowhere => Some(promise::room(state, id)).filter(|room| *room > 0).map(Ok),
            Way::Pipe => {
                let room = match state.pipe_room(id) {
                    0 if ready::overflows(state, id, shadow) => KERNEL_ROOM,
                    room => room,
                };
                let room = if room > 0 { room } else { promise::room(state, id) };
                if room == 0 {
                    state.pipe(id)?.want_room();
                }
                (room > 0).then_some(Ok(room))
            }
            Way::Kernel => (shadow::events(shadow) & libc::POLLOUT != 0).then_some(Ok(KERNEL_ROOM)),
        }
    });
    match ended {
        Ok(Ok(room)) => Outcome::Ours(room),
        Ok(Err(errno)) => Outcome::Errno(errno),
        Err(ended) => Outcome::Errno(ended.errno()),
    }
}
