//! The netlink socket: open, send a request, receive what the kernel says, wait with a limit.
//!
//! Bytes only; `control::netlink` knows what they mean. The socket never blocks in a receive:
//! [`Socket::wait`] is the one place that sleeps, and it has a deadline.

use core::fmt;
use core::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, getsockname, recvfrom, send, socket_with};

use crate::sys::Fd;
use crate::sys::time::monotonic_nanos;

pub use rustix::io::Errno;

/// A call that failed: which one, and the errno it gave.
///
/// `call` is a system call (`bind`) or, when the kernel itself answered with an error, the name of
/// the request (`RTM_GETLINK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    pub call: &'static str,
    pub errno: Errno,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.call, self.errno)
    }
}

impl core::error::Error for Error {}

/// An `AF_NETLINK` socket, of `NETLINK_ROUTE` if nothing else is said, of the network namespace the opening thread was in
/// (netlink(7)).
///
/// It stays in that namespace when the thread moves to another one.
#[doc(alias = "NETLINK_ROUTE")]
pub struct Socket {
    fd: Fd,
    port: u32,
}

/// One datagram, as [`Socket::receive`] found it.
pub enum Received<'b> {
    /// Whole netlink messages, one after the other.
    Messages(&'b [u8]),
    /// The buffer was too small and the datagram is lost; this many bytes would have held it.
    Truncated(usize),
}

impl Socket {
    /// Opens a socket that also receives the multicast `groups`: bit n is group n + 1 (`RTNLGRP_*`,
    /// rtnetlink(7)).
    ///
    /// Groups the running kernel does not know are ignored by it. Needs no capability.
    ///
    /// # Errors
    /// `socket`, `bind` and `getsockname` with their errno (EMFILE, ENFILE, ENOMEM; EPERM or
    /// EAFNOSUPPORT under a seccomp filter that knows no netlink).
    pub fn open(groups: u32) -> Result<Self, Error> {
        // `None` is protocol 0, and that is NETLINK_ROUTE.
        Self::open_for(None, groups)
    }

    /// Opens one that asks about sockets instead (sock_diag(7)).
    ///
    /// # Errors
    /// As [`Socket::open`].
    #[doc(alias = "NETLINK_SOCK_DIAG")]
    pub fn open_diag() -> Result<Self, Error> {
        Self::open_for(Some(rustix::net::netlink::SOCK_DIAG), 0)
    }

    fn open_for(protocol: Option<rustix::net::Protocol>, groups: u32) -> Result<Self, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)
            .map_err(failed("socket"))?;
        let fd = Fd::adopt(fd).map_err(failed("fcntl"))?;
        // Port 0 asks the kernel to pick: the process id is usually taken by the application's own
        // netlink socket.
        bind(fd.as_fd(), &SocketAddrNetlink::new(0, groups)).map_err(failed("bind"))?;
        let own = getsockname(fd.as_fd()).map_err(failed("getsockname"))?;
        let own = SocketAddrNetlink::try_from(own).map_err(failed("getsockname"))?;
        Ok(Self { fd, port: own.pid() })
    }

    /// The port the kernel gave this socket (`nl_pid`); its answers carry it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// For waiting together with other descriptors.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sends one request to the kernel, which executes it before this returns.
    ///
    /// # Errors
    /// `send` with its errno (ENOBUFS, ENOMEM).
    pub fn send(&self, request: &[u8]) -> Result<(), Error> {
        loop {
            match send(self.as_fd(), request, SendFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(Error { call: "send", errno });
                }
            }
        }
    }

    /// Takes the next datagram of the kernel's, or `None` when there is none now, in place of what the buffer
    /// holds and as far as its capacity reaches.
    ///
    /// Datagrams of other processes (`nl_pid` not 0) are thrown away: nobody but the kernel tells
    /// us about routes.
    ///
    /// # Errors
    /// `recvfrom` with its errno; ENOBUFS says that multicast messages were lost.
    pub fn receive<'b>(&self, buffer: &'b mut Vec<u8>) -> Result<Option<Received<'b>>, Error> {
        // TRUNC makes the kernel tell the datagram's true length.
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let length = loop {
            buffer.clear();
            // Memory that was never written to: the kernel's answer is a page or two of the capacity.
            match recvfrom(self.as_fd(), spare_capacity(buffer), flags) {
                Ok((_, length, Some(sender))) => match SocketAddrNetlink::try_from(sender) {
                    Ok(sender) if sender.pid() == 0 => break length,
                    _ => {}
                },
                Ok((_, _, None)) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => {
                    return Err(Error { call: "recvfrom", errno });
                }
            }
        };
        let whole = length == buffer.len();
        Ok(Some(if whole { Received::Messages(buffer) } else { Received::Truncated(length) }))
    }

    /// Sleeps until there is something to receive, an error included.
    ///
    /// # Errors
    /// `poll` with ETIMEDOUT once the deadline has passed, or with its own errno.
    pub fn wait(&self, deadline: Deadline) -> Result<(), Error> {
        loop {
            let left = deadline.left();
            match poll(&mut [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)], Some(&left)) {
                Ok(0) => {
                    return Err(Error { call: "poll", errno: Errno::TIMEDOUT });
                }
                Ok(_) => return Ok(()),
                // A process with an interval timer is interrupted for ever; the deadline ends it,
                // not the signals.
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(Error { call: "poll", errno });
                }
            }
        }
    }
}

/// A moment of `CLOCK_MONOTONIC`, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Deadline(u64);

impl Deadline {
    pub fn after(time: Duration) -> Self {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(monotonic_nanos().saturating_add(time))
    }

    /// What is left until then, zero when it has passed.
    fn left(self) -> Timespec {
        let left = Duration::from_nanos(self.0.saturating_sub(monotonic_nanos()));
        // 2^64 nanoseconds are few enough seconds for any `Timespec`.
        Timespec::try_from(left).unwrap_or_default()
    }
}

fn failed(call: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error { call, errno }
}
