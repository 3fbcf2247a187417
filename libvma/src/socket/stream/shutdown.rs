//! The end of a socket: shutdown(), close(), SO_LINGER.

use libvma_engine::tcp::State as TcpState;

use super::wait::{Call, Manner, Watches, until};
use super::{Guard, Outcome, Phase, Stack, WhyOs, view};
use crate::shard::SocketId;
use crate::shard::tcp::Attachment;
use crate::socket::{NO_SHADOW, hand_over};
use crate::sys::{Fd, fd};

/// shutdown(2) of a connection.
pub fn shutdown(stack: &Stack, id: SocketId, how: i32) -> Outcome<()> {
    let (read, write) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Outcome::Errno(libc::EINVAL),
    };
    let Ok(mut state) = stack.shard.lock() else { return Outcome::Os(WhyOs::Reentered) };
    // A reset that has come ends the connection before this call does.
    state.poll_well();
    let Some(view) = view(&mut state, id) else { return Outcome::Os(WhyOs::NotOurs) };
    match view.phase {
        Phase::Fresh => {
            if let Some((_, socket)) = state.socket(id)
                && let Some(stream) = socket.stream.as_mut()
            {
                stream.reading_shut |= read;
            }
            state.announce_change(id);
            return Outcome::Os(WhyOs::Unbound);
        }
        Phase::Listening { .. } if !read => return Outcome::Os(WhyOs::Unbound),
        Phase::Listening { .. } => {
            // A listener that is shut down for reading listens no more; the shadow follows.
            super::give_back::end_listening(&mut state, id);
            super::set_phase(&mut state, id, Phase::Fresh);
            state.announce_change(id);
            return Outcome::Os(WhyOs::ShutDown);
        }
        Phase::Connecting | Phase::Connected => {}
    }
    if view.has_pipe {
        return super::local::end::shutdown(&mut state, id, read, write);
    }
    let now = state.connection(id).map(|connection| connection.state());
    if now == Some(TcpState::SynSent) {
        // As Linux: the attempt ends, and another may follow.
        state.forget_connection(id);
        super::set_phase(&mut state, id, Phase::Fresh);
        if let Some((_, socket)) = state.socket(id) {
            socket.pending_error = libc::ECONNRESET;
        }
        state.announce_change(id);
        return Outcome::Ours(());
    }
    let closed = now.is_none_or(|now| matches!(now, TcpState::Closed | TcpState::TimeWait));
    if closed {
        return Outcome::Errno(libc::ENOTCONN);
    }
    let done = state.with_connection(id, |connection, _, _| {
        if read {
            connection.shutdown_read();
        }
        if write { connection.shutdown_write() } else { Ok(()) }
    });
    state.announce_change(id);
    match done {
        Some(Err(error)) => Outcome::Errno(super::errno(error)),
        _ => Outcome::Ours(()),
    }
}

/// The program closed the last descriptor, this one; the caller closes the shadow, unless it is
/// [`NO_SHADOW`].
pub fn close(stack: &Stack, id: SocketId, descriptor: i32) {
    if stack.shard.lock().is_ok_and(|mut state| super::local::has_pipe(&mut state, id)) {
        return super::local::end::close(stack, id, descriptor);
    }
    super::unaccepted::hand_over_shared(stack, id);
    if descriptor != NO_SHADOW && is_shared(stack, id) {
        // A forked child may go on with it; if none does, the kernel ends it.
        super::give_back::give_back_to(stack, id, descriptor, WhyOs::Passed);
    }
    linger(stack, id);
    let Ok(mut state) = stack.shard.lock() else { return };
    super::give_back::end_listening(&mut state, id);
    // Data that was received and not read makes a RST of the FIN. Answers to other connections leave after it: a client that closes
    // when it has its answer would be first otherwise, and keep its port in TIME-WAIT.
    state.take_received();
    if super::local::has_pipe(&mut state, id) {
        // The peer has agreed to the pipe just now, and has perhaps sent data by it.
        state.run_tcp();
        drop(state);
        return super::local::end::close(stack, id, descriptor);
    }
    let counters = crate::socket::last_counters(stack, &mut state, id);
    let kept = port_kept(&mut state, id, descriptor);
    state.orphan_connection(id, kept);
    state.run_tcp();
    state.detach(id);
    let unattended = state.take_unattended();
    drop(state);
    if unattended {
        stack.wake_internal_thread();
    }
    if let Some((counters, limit)) = counters {
        stack.stats.append(descriptor, &counters, limit);
    }
}

/// While a connection goes on without its socket, the kernel must not give its port to another one,
/// whose packets we would get: a copy of the shadow's descriptor holds it.
fn port_kept(state: &mut Guard<'_>, id: SocketId, descriptor: i32) -> Option<Attachment> {
    let (_, socket) = state.socket(id)?;
    if !socket.stream.as_ref()?.holds_port {
        return None;
    }
    if state.connection(id)?.state() == TcpState::Closed {
        return None;
    }
    let copy = fd::with_borrowed(descriptor, Fd::copy_of)?;
    Some(Box::new(copy.ok()?))
}

/// Was the connection there when the process forked?
fn is_shared(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    state.socket(id).is_some_and(|(_, socket)| hand_over::is_shared(socket))
        && super::is_established(&mut state, id)
}

/// SO_LINGER: close() waits until the peer has everything, or the time is over.
fn linger(stack: &Stack, id: SocketId) {
    let time = {
        let Ok(mut state) = stack.shard.lock() else { return };
        let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
        let Some(time) = stream.and_then(|stream| stream.linger) else { return };
        let time = std::time::Duration::from_secs(time.get().into());
        state.poll_well();
        if !super::is_established(&mut state, id) {
            return;
        }
        if state.connection(id).is_some_and(|connection| connection.readable() > 0) {
            // The close resets, there is nothing to wait for.
            return;
        }
        state.with_connection(id, |connection, _, _| connection.shutdown_write());
        time
    };
    let timeout = Some(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let manner = Manner { blocking: true, timeout, watches: Watches::Nothing, call: Call::Other };
    let _ = until(stack, id, manner, |state| {
        let under_way = state.connection(id).is_some_and(|connection| {
            matches!(
                connection.state(),
                TcpState::FinWait1 | TcpState::Closing | TcpState::LastAck | TcpState::CloseWait
            )
        });
        (!under_way).then_some(())
    });
}

#[cfg(test)]
mod tests;
