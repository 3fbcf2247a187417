//! How who sleeps is woken: a bell for each link, rung by the peer, and one that is rung only here.
//!
//! Every peer gets a bell of its own, made by who sleeps, of which only one end leaves the process
//! (`sys::unix_socket::bell`). Whatever a peer does to it, nobody waits for it, and other peers
//! still wake us.

use core::mem::MaybeUninit;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::{AsFd, BorrowedFd};

use super::segment::system;
use crate::device::OpenError;
use crate::sys::{Fd, unix_socket};

/// Both ends of the bell of one link.
pub(super) struct Bell {
    pub hears: Fd,
    /// What the peer gets.
    pub rings: Fd,
}

impl Bell {
    pub fn make() -> Result<Bell, OpenError> {
        let (hears, rings) = unix_socket::bell().map_err(system("socketpair"))?;
        Ok(Bell { hears, rings })
    }
}

/// All bells of a ring. No other process has any descriptor of it.
pub(super) struct Bells {
    watcher: Fd,
    own: Fd,
    is_rung: bool,
}

/// Not the index of a link.
const OWN: u64 = u64::MAX;
/// Bells silenced at once.
const AT_ONCE: usize = 16;

impl Bells {
    pub fn open() -> Result<Bells, OpenError> {
        let high = system("fcntl(F_DUPFD_CLOEXEC)");
        let watcher =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        let watcher = Fd::adopt(watcher).map_err(&high)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let own = eventfd(0, flags).map_err(system("eventfd"))?;
        let own = Fd::adopt(own).map_err(&high)?;
        let bells = Bells { watcher, own, is_rung: false };
        bells.watch(&bells.own, OWN)?;
        Ok(bells)
    }

    /// Readable when any bell rings.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.watcher.as_fd()
    }

    /// Listens to the bell of a link.
    pub fn hear(&self, index: u16, bell: &Fd) -> Result<(), OpenError> {
        self.watch(bell, u64::from(index))
    }

    fn watch(&self, bell: &Fd, token: u64) -> Result<(), OpenError> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.watcher, bell.as_fd(), data, epoll::EventFlags::IN)
            .map_err(system("epoll_ctl"))
    }

    /// Closing alone would not do as long as a forked child has a copy.
    pub fn ignore(&self, bell: &Fd) {
        let _ = epoll::delete(&self.watcher, bell.as_fd());
    }

    pub fn ring_own(&mut self) {
        if !core::mem::replace(&mut self.is_rung, true) {
            let _ = rustix::io::write(&self.own, &1u64.to_ne_bytes());
        }
    }

    /// Silences all that ring: the own one here, those of links are named to `hush`.
    pub fn hush(&mut self, links: usize, mut hush: impl FnMut(u16)) {
        if core::mem::take(&mut self.is_rung) {
            let _ = rustix::io::read(&self.own, &mut [0u8; 8]);
        }
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Bounded: some may ring again at once.
        for _ in 0..=links / AT_ONCE {
            let mut events = [const { MaybeUninit::uninit() }; AT_ONCE];
            let Ok((events, _)) = epoll::wait(&self.watcher, &mut events, Some(&at_once)) else {
                return;
            };
            let count = events.len();
            for event in events {
                let data = event.data;
                if let Ok(index) = u16::try_from(data.u64()) {
                    hush(index);
                }
            }
            if count < AT_ONCE {
                return;
            }
        }
    }
}
