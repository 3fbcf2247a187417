//! The promise of poll(2) and its kin: a socket that was writable takes at least one byte
//! (`shard::pipe::end::promise`).

use std::io::IoSlice;

use super::send::{KERNEL_ROOM, note_failure, note_sent, write_to_kernel};
use super::{Shard, shadow};
use crate::shard::SocketId;
use crate::shard::pipe::Way;
use crate::sys::user::{self, Copied};

/// So many bytes go while there is no usual room: a slot of the link holds them.
const LEAST: usize = 64;
/// So many bytes may wait behind those that come back.
const MOST_BEHIND: usize = 16 * 1024;

/// The call could send nothing, and has looked at the link: sends something if the program was told that it may.
#[cold]
pub fn keep(
    state: &mut Shard,
    id: SocketId,
    data: &[IoSlice<'_>],
    skip: usize,
    total: usize,
) -> Copied {
    let Some(pipe) = state.pipe(id).filter(|pipe| pipe.is_promised()) else {
        return Copied::default();
    };
    if pipe.may_wait_behind() {
        return wait_behind(state, id, data, skip);
    }
    if pipe.way() != Way::Pipe {
        return Copied::default();
    }
    let copied = state.pipe_write_promised(id, data, skip, total);
    note_sent(state, id, data, skip, copied.bytes);
    if copied.bytes > 0 || copied.fault {
        return copied;
    }
    let (bytes, failed) = write_to_kernel(state, id, data, skip, KERNEL_ROOM, 0);
    if let Some(pipe) = state.pipe(id).filter(|_| bytes > 0) {
        pipe.note_overflow(0);
    }
    Copied { bytes, fault: note_failure(state, id, failed) }
}

/// The pipe is being given up, or the kernel has no room for more than came back: the bytes follow that.
fn wait_behind(state: &mut Shard, id: SocketId, data: &[IoSlice<'_>], mut skip: usize) -> Copied {
    let Some(descriptor) = state.socket(id).map(|(_, socket)| socket.shadow()) else {
        return Copied::default();
    };
    let Copied { bytes, fault } = user::gives(data, skip, MOST_BEHIND);
    if bytes == 0 {
        return Copied { bytes, fault };
    }
    note_sent(state, id, data, skip, bytes);
    let Some(pipe) = state.pipe(id) else { return Copied::default() };
    let mut left = bytes;
    for piece in data {
        let rest = piece.get(skip..).unwrap_or_default();
        let rest = rest.get(..left).unwrap_or(rest);
        skip = skip.saturating_sub(piece.len());
        left -= rest.len();
        pipe.wait_behind(rest);
    }
    // However the process ends before they have gone, the peer must not see an end.
    if pipe.arm(true) {
        shadow::set_linger(descriptor, Some(0));
    }
    super::flush(state, id);
    Copied { bytes, fault: false }
}

/// How much a send call would take though there is no usual room.
pub fn room(state: &mut Shard, id: SocketId) -> usize {
    let Some(pipe) = state.pipe(id).filter(|pipe| pipe.is_promised()) else { return 0 };
    // If the link's last slots are taken, too, the bytes go by the kernel.
    let waits_behind = pipe.way() == Way::Nowhere;
    if waits_behind || !holds_on(state, id) { LEAST } else { 0 }
}

/// Was the program told that it may send, and has the kernel no room now?
pub fn holds_on(state: &mut Shard, id: SocketId) -> bool {
    let is_promised = state.pipe(id).is_some_and(|pipe| pipe.is_promised());
    let descriptor = state.socket(id).map(|(_, socket)| socket.shadow());
    is_promised && descriptor.is_some_and(|fd| shadow::events(fd) & libc::POLLOUT == 0)
}
