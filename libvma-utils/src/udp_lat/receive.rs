//! One datagram, by a call that waits in recvfrom, or in select, poll or epoll before it.
//!
//! The calls are libc's and not the kernel's: only those can be another library's.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use clap::ValueEnum;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::select::{FdSet, select};
use nix::sys::time::{TimeVal, TimeValLike};

/// The call that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Call {
    #[default]
    #[value(alias = "r")]
    Recvfrom,
    #[value(alias = "s")]
    Select,
    #[value(alias = "p")]
    Poll,
    #[value(alias = "e")]
    Epoll,
}

/// A socket, and how one waits for what it receives.
pub struct Receiver {
    pub socket: UdpSocket,
    wait: Wait,
    /// In milliseconds, at least 1.
    patience: i32,
}

enum Wait {
    InRecvfrom,
    Select,
    Poll,
    Epoll(Epoll),
}

impl Receiver {
    /// Waits at most so long; counted in whole milliseconds, at least one.
    pub fn new(socket: UdpSocket, call: Call, patience: Duration) -> io::Result<Receiver> {
        let patience = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX).max(1);
        // After the other calls, too: what they told of may be gone, as a datagram with a bad checksum.
        let limit = Duration::from_millis(u64::from(patience.unsigned_abs()));
        socket.set_read_timeout(Some(limit))?;
        let wait = match call {
            Call::Recvfrom => Wait::InRecvfrom,
            Call::Select => Wait::Select,
            Call::Poll => Wait::Poll,
            Call::Epoll => {
                let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
                epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
                Wait::Epoll(epoll)
            }
        };
        Ok(Receiver { socket, wait, patience })
    }

    /// Its length and who sent it. None if the time is over or a signal came.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        match self.is_ready() {
            Ok(true) => {}
            Ok(false) | Err(Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        match self.socket.recv_from(buffer) {
            Ok(received) => Ok(Some(received)),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn is_ready(&self) -> nix::Result<bool> {
        let socket = self.socket.as_fd();
        let ready = match &self.wait {
            Wait::InRecvfrom => return Ok(true),
            Wait::Select => {
                let mut set = FdSet::new();
                set.insert(socket);
                let mut limit = TimeVal::milliseconds(self.patience.into());
                select(None, &mut set, None, None, &mut limit)?
            }
            Wait::Poll => {
                let limit = PollTimeout::try_from(self.patience).unwrap_or(PollTimeout::MAX);
                poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], limit)?
            }
            Wait::Epoll(epoll) => {
                let limit = EpollTimeout::try_from(self.patience).unwrap_or(EpollTimeout::MAX);
                let count = epoll.wait(&mut [EpollEvent::empty()], limit)?;
                i32::from(count > 0)
            }
        };
        Ok(ready > 0)
    }
}
