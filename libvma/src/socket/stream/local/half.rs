//! The kernel's half of a connection without its socket: of one that the program has closed, and of a peer that has ended
//! and left it (`shard::pipe` says why).

use rustix::io::Errno;

use super::{Shard, Stack, shadow};
use crate::log::log_line;
use crate::shard::pipe::Leftover;
use crate::shard::{LinkId, SocketId};
use crate::socket::{hand_over, local};
use crate::sys::time::monotonic_nanos;
use crate::sys::{Fd, fd, loopback_end, thread};

/// The kernel's half of a connection.
pub struct Half(Fd);

impl Half {
    pub fn of(descriptor: i32) -> Option<Half> {
        fd::with_borrowed(descriptor, |fd| Fd::copy_of(fd).ok().map(Half))?
    }
}

impl Leftover for Half {
    fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        match shadow::send(self.0.raw(), bytes, 0) {
            Ok(count) => Some(count),
            Err(errno) if shadow::is_passing(errno) => Some(0),
            Err(_) => None,
        }
    }

    fn arm(&mut self, resets: bool) {
        // A time would hold up the internal thread, which closes it.
        shadow::set_linger(self.0.raw(), resets.then_some(0));
    }

    fn reset(&mut self) {
        shadow::reset(self.0.raw());
    }

    fn shut(&mut self) {
        shadow::shutdown(self.0.raw(), libc::SHUT_WR);
    }

    fn discard(&mut self) {
        while crate::sys::shadow::discard(self.0.raw(), DISCARD) == DISCARD {}
    }

    fn descriptor(&self) -> i32 {
        self.0.raw()
    }
}

/// Thrown away at once.
const DISCARD: usize = 1 << 20;

/// The process ends: peers that have not read everything get the kernel's halves, as far as they take them in time.
pub fn leave_all(stack: &Stack, patience: u64) {
    let Ok(mut state) = stack.shard.lock() else { return };
    // A forked child may go on with a shared one, and who asked for a reset at close() gets it.
    let halves = state.halves_to_leave(
        |socket| {
            let stream = socket.stream.as_ref();
            let resets = stream.is_some_and(|stream| stream.settings.reset_on_close);
            (!resets && !hand_over::is_shared(socket)).then(|| socket.shadow())
        },
        // The end of one with bytes that nobody has read is a reset.
        |half| shadow::unread(half) == 0,
    );
    drop(state);
    for half in halves {
        let left = loop {
            match local::leave_half(stack, half.link, half.connection, half.descriptor) {
                Err(Errno::AGAIN) if monotonic_nanos() < patience => thread::nap_millis(1),
                left => break left,
            }
        };
        if let Err(errno) = left {
            log_line!(Debug, "a peer cannot be left its unread bytes: {errno}");
        }
        if let Ok(mut state) = stack.shard.lock() {
            state.half_is_left(&half, left.is_ok());
        }
    }
}

/// A peer that ends has left its half of a connection.
pub fn inherit(state: &mut Shard, link: LinkId, connection: u64, half: Fd) {
    let Some(id) = state.pipe_owner(link, connection) else { return };
    if is_other_end(state, id, half.raw()) {
        state.take_peers_half(id, Box::new(Half(half)));
        log_line!(Debug, "a peer has ended, and left bytes that are not read");
    }
}

/// No two connections have both addresses and ports alike: whoever has brought it, it is the other end.
pub(super) fn is_other_end(state: &mut Shard, id: SocketId, half: i32) -> bool {
    use crate::sys::shadow::int_option;
    let Some((_, socket)) = state.socket(id) else { return false };
    let own = socket.shadow();
    let ends = |from: i32, to: i32| {
        let local = loopback_end::local(from);
        local.is_some() && local == loopback_end::peer(to)
    };
    int_option(half, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
        && ends(own, half)
        && ends(half, own)
}
