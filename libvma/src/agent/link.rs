//! The socket by which the daemon is told: an AF_UNIX datagram socket, connected to the daemon's, so that
//! nobody else's datagrams get in, and with a name of its own, for the answers.
//!
//! Nothing here waits: a call that cannot be done at once says EAGAIN.

use std::path::Path;

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    recv, send, socket_with,
};

use crate::sys::Fd;

/// Tells the file of a socket from that of the next daemon, which has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    made: (i64, i64),
}

/// The file of the daemon's socket; None if there is none. A daemon that was killed leaves its file.
pub fn find(daemon: &Path) -> Option<Identity> {
    let stat = rustix::fs::stat(daemon).ok()?;
    // Unsigned or not: rustix's two backends differ.
    let made = (stat.st_mtime, stat.st_mtime_nsec as i64);
    Some(Identity { device: stat.st_dev, inode: stat.st_ino, made })
}

pub struct Link(Fd);

impl Link {
    pub fn open() -> Result<Link, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Fd::adopt(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?).map(Link)
    }

    /// Talks to this daemon from now on: ECONNREFUSED if it left only its file.
    pub fn call(&self, daemon: &Path) -> Result<(), Errno> {
        connect(&self.0, &SocketAddrUnix::new(daemon)?)
    }

    /// Takes a name in the file system; EADDRINUSE if there is something, be it a symbolic link.
    pub fn take_name(&self, path: &Path) -> Result<(), Errno> {
        bind(&self.0, &SocketAddrUnix::new(path)?)
    }

    /// EAGAIN: the daemon has not read what it got before.
    pub fn send(&self, message: &[u8]) -> Result<(), Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match send(self.0.as_fd(), message, flags) {
                Err(Errno::INTR) => {}
                // Memory for it comes back as room does.
                Err(Errno::NOBUFS) => return Err(Errno::AGAIN),
                sent => return sent.map(|_| ()),
            }
        }
    }

    /// One message, cut to the length of `buffer`.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        loop {
            match recv(self.0.as_fd(), &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
                Ok((_, len)) => return Ok(buffer.get(..len).unwrap_or_default()),
            }
        }
    }

    pub fn raw(&self) -> i32 {
        self.0.raw()
    }
}
