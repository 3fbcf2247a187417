//! Sockets that became the kernel's for good. No call on them comes here any more, nor does close():
//! each is told of as long as its descriptor still is that socket.

use libvma_dev::stats::{self, BLOCKING, Counters, Socket as Told};

use super::told_address;
use crate::socket::{SocketId, Stack, State, WhyOs};
use crate::sys::{fd, shadow};

/// One of them.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// What it was here.
    pub id: SocketId,
    descriptor: i32,
    inode: u64,
    is_stream: bool,
    why: WhyOs,
    /// What it had counted by then.
    counters: Counters,
}

/// Of more, the oldest are forgotten.
const MOST: usize = 1024;

/// Is it one? To be asked before it is detached.
pub fn of_socket(stack: &Stack, id: SocketId) -> Option<Kernels> {
    let mut state = stack.shard.lock().ok()?;
    let counters = state.counters_of(id)?;
    let (_, socket) = state.socket(id)?;
    let State::Os(why) = socket.state else { return None };
    if why == WhyOs::ProcessEnds {
        return None;
    }
    let (descriptor, is_stream) = (socket.shadow(), socket.stream.is_some());
    Some(Kernels { id, descriptor, inode: 0, is_stream, why, counters })
}

/// It was detached.
pub fn remember(stack: &Stack, one: Kernels) {
    let inode = fd::inode(one.descriptor);
    if inode != 0
        && let Ok(mut all) = stack.kernels.lock()
    {
        if all.len() >= MOST {
            all.remove(0);
        }
        all.push(Kernels { inode, ..one });
    }
}

/// Those that are still there.
pub fn living(stack: &Stack) -> Vec<Kernels> {
    let Ok(known) = stack.kernels.lock().map(|all| all.clone()) else { return Vec::new() };
    // Without the lock: a number may be a file's by now, on a disk that does not answer.
    let (living, gone): (Vec<Kernels>, Vec<Kernels>) =
        known.into_iter().partition(|one| fd::inode(one.descriptor) == one.inode);
    if let Ok(mut all) = stack.kernels.lock() {
        all.retain(|one| gone.iter().all(|other| other.id != one.id));
    }
    living
}

impl Kernels {
    pub fn is_named(&self, descriptors: &[i32]) -> bool {
        descriptors.is_empty() || descriptors.contains(&self.descriptor)
    }

    pub fn set_to_zero(&mut self) {
        self.counters = Counters::default();
    }

    /// What the kernel says of it.
    pub fn describe(&self) -> Told {
        let descriptor = self.descriptor;
        let (local, local_port) = told_address(shadow::local_address(descriptor));
        let (peer, peer_port) = told_address(shadow::peer_address(descriptor));
        let limit = shadow::int_option(descriptor, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        let blocking = shadow::status_flags(descriptor) & libc::O_NONBLOCK == 0;
        let mut state = [0; 1];
        if self.is_stream {
            // The first byte of struct tcp_info.
            shadow::option(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state);
        }
        Told {
            used: 1,
            descriptor,
            inode: self.inode,
            kind: if self.is_stream { libc::SOCK_STREAM } else { libc::SOCK_DGRAM } as u32,
            tcp_state: u32::from(state[0]),
            flags: if blocking { BLOCKING } else { 0 },
            ready_limit: u64::try_from(limit).unwrap_or(0),
            local,
            local_port,
            peer,
            peer_port,
            counters: self.counters,
            reason: stats::text(&self.why.to_string()),
            ..Told::default()
        }
    }
}
