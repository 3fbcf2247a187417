//! Signals as events of the loop: SIGTERM and SIGINT end the daemon, SIGHUP makes it read its
//! configuration again. (SIGPIPE is ignored by Rust's start-up code.)

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

pub struct Signals {
    stop: UnixStream,
    reload: UnixStream,
}

impl Signals {
    /// From here on they are caught.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals { stop: caught(&[SIGTERM, SIGINT])?, reload: caught(&[SIGHUP])? })
    }

    /// Readable when there is something to take.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.stop.as_fd(), self.reload.as_fd()]
    }

    pub fn take_stop(&mut self) -> bool {
        take(&mut self.stop)
    }

    pub fn take_reload(&mut self) -> bool {
        take(&mut self.reload)
    }
}

fn caught(signals: &[i32]) -> io::Result<UnixStream> {
    let (here, there) = UnixStream::pair()?;
    here.set_nonblocking(true)?;
    for signal in signals {
        pipe::register(*signal, there.try_clone()?)?;
    }
    Ok(here)
}

/// Several at once are one.
fn take(stream: &mut UnixStream) -> bool {
    let mut taken = false;
    while stream.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {
        taken = true;
    }
    taken
}
