//! A send call with VMA_SND_FLAGS_DUMMY on a stream.

use std::io::IoSlice;

use super::{Phase, Stack, view};
use crate::shard::SocketId;
use crate::socket::State;

/// Returns the number of bytes that a send would have sent. EINVAL: the socket is the kernel's. EAGAIN: it is not connected, or
/// a send could not leave at once as one segment.
#[cold]
pub fn rehearse(
    stack: &Stack,
    id: SocketId,
    data: &[IoSlice<'_>],
    flags: i32,
) -> Result<usize, i32> {
    let mut state = stack.shard.lock().map_err(|_| libc::EAGAIN)?;
    let view = view(&mut state, id).ok_or(libc::EINVAL)?;
    let (_, socket) = state.socket(id).ok_or(libc::EINVAL)?;
    if matches!(socket.state, State::Os(_)) {
        return Err(libc::EINVAL);
    }
    let [payload] = data else { return Err(libc::EAGAIN) };
    let wrong_phase = matches!(view.phase, Phase::Fresh | Phase::Listening { .. });
    if wrong_phase || payload.is_empty() || flags & (libc::MSG_MORE | libc::MSG_OOB) != 0 {
        return Err(libc::EAGAIN);
    }
    let possible = if view.has_pipe {
        state.pipe(id).is_some_and(|pipe| pipe.is_established() && !pipe.is_shut())
    } else {
        state.rehearse_stream(id, payload).unwrap_or(false)
    };
    if !possible {
        return Err(libc::EAGAIN);
    }
    if let Some((endpoint, _)) = state.socket(id) {
        endpoint.counters.tx_dummy = endpoint.counters.tx_dummy.saturating_add(1);
    }
    Ok(payload.len())
}
