//! System calls that a thread owes others and makes once it holds no lock.
//!
//! A wake-up may hand the caller's CPU to the thread that it wakes, and a kick runs the peer's whole
//! protocol if the peer is on this machine. With the lock held, either keeps every other thread of the
//! process waiting for it, the woken one first of all. So what can wait is noted under the lock, and done
//! when the last lock is given back ([`super::thread::leave_lock`]), before signals are let in: no errand
//! is lost to a handler that does not return.
//!
//! The descriptors of wakers and rings live as long as the process. A link may end meanwhile: its bell is kept until it is rung.

use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::Arc;

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::{Fd, unix_socket};

/// Wake-ups that a thread notes; more are made at once.
const MOST: usize = 8;
/// Bells of other processes that a thread notes; more are rung at once.
const BELLS: usize = 4;
/// Kicks that a thread notes; more are made at once.
pub const RINGS: usize = 8;
/// A device's transmit call handles some frames, then says EAGAIN.
const CALLS: usize = 64;
/// Kicks that are put off after a thread has found a lock taken: where threads meet they meet again
/// soon. Elsewhere a kick is made at once, and the bookkeeping under the lock follows it.
const CROWD: u32 = 256;

/// The errands of a thread; only the thread itself touches them.
struct Errands {
    wakers: [AtomicI32; MOST],
    wakers_len: AtomicU32,
    /// The sockets of transmit rings, or -1.
    kicks: [AtomicI32; RINGS],
    /// Those of links, which may end before the bell is rung. A thread that ends has none: no destructor is needed.
    bells: ManuallyDrop<[Cell<Option<Arc<Fd>>>; BELLS]>,
}

thread_local! {
    static ERRANDS: Errands = const {
        Errands {
            wakers: [const { AtomicI32::new(-1) }; MOST],
            wakers_len: AtomicU32::new(0),
            kicks: [const { AtomicI32::new(-1) }; RINGS],
            bells: ManuallyDrop::new([const { Cell::new(None) }; BELLS]),
        }
    };
}

static CROWDED: AtomicU32 = AtomicU32::new(0);
/// The sockets that threads kick now, each at a place that its number tells: the number plus one, times two, and
/// [`AGAIN`] if another thread has put more on its ring.
static KICKERS: [AtomicU32; KICKS] = [const { AtomicU32::new(IDLE) }; KICKS];
const KICKS: usize = 16;
const IDLE: u32 = 0;
const AGAIN: u32 = 1;
static LEFT_OVER: AtomicBool = AtomicBool::new(false);

/// A thread had to wait for a lock.
pub fn note_contention() {
    CROWDED.store(CROWD, Ordering::Relaxed);
}

/// Is a kick better made without the lock?
#[inline]
pub fn may_put_off_kick() -> bool {
    CROWDED.load(Ordering::Relaxed) != 0
}

/// In a child that fork() made: what other threads of the parent were at does not concern it.
pub fn forget() {
    KICKERS.iter().for_each(|kicker| kicker.store(IDLE, Ordering::Relaxed));
    CROWDED.store(0, Ordering::Relaxed);
}

/// Is a thread about to kick this ring, or at it? It may have to wait for a CPU.
pub fn is_kicked(socket: i32) -> bool {
    let own = (socket as u32 + 1) << 1;
    let kicker = KICKERS.get(socket as usize % KICKS);
    kicker.is_some_and(|kicker| kicker.load(Ordering::Relaxed) & !AGAIN == own)
}

/// Has a thread that kicks this ring now do so once more. False if there is none.
pub fn leave_to_kicker(socket: i32) -> bool {
    let own = (socket as u32 + 1) << 1;
    let Some(kicker) = KICKERS.get(socket as usize % KICKS) else { return false };
    loop {
        let found = kicker.load(Ordering::Relaxed);
        if found & !AGAIN != own {
            return false;
        }
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        if kicker.compare_exchange(found, own | AGAIN, done, failed).is_ok() {
            return true;
        }
    }
}

/// Did a kick leave something behind? Told once.
#[inline]
pub fn take_left_over() -> bool {
    LEFT_OVER.load(Ordering::Relaxed) && LEFT_OVER.swap(false, Ordering::Relaxed)
}

/// Notes that the transmit ring of this socket is to be kicked. False if too many others are noted already.
#[cold]
pub fn note_kick(socket: i32) -> bool {
    let is_noted = ERRANDS.with(|errands| {
        for place in &errands.kicks {
            let noted = place.load(Ordering::Relaxed);
            if noted < 0 {
                place.store(socket, Ordering::Relaxed);
            }
            if noted < 0 || noted == socket {
                return true;
            }
        }
        false
    });
    super::thread::owe_errands();
    is_noted
}

/// Has the thread noted a kick?
#[inline]
pub fn has_kick() -> bool {
    let is_noted = |errands: &Errands| {
        errands.kicks.first().is_some_and(|first| first.load(Ordering::Relaxed) >= 0)
    };
    may_put_off_kick() && ERRANDS.with(is_noted)
}

/// Notes a wake-up. False if too many are noted already.
pub fn note_wake(waker: i32) -> bool {
    let is_noted = ERRANDS.with(|errands| {
        let len = errands.wakers_len.load(Ordering::Relaxed);
        let Some(place) = errands.wakers.get(len as usize) else { return false };
        place.store(waker, Ordering::Relaxed);
        errands.wakers_len.store(len + 1, Ordering::Relaxed);
        true
    });
    super::thread::owe_errands();
    is_noted
}

/// Notes that the bell of another process is to be rung. False if too many are noted already.
pub fn note_bell(bell: &Arc<Fd>) -> bool {
    let is_noted = ERRANDS.with(|errands| {
        for place in errands.bells.iter() {
            match place.take() {
                None => {
                    place.set(Some(bell.clone()));
                    return true;
                }
                noted => place.set(noted),
            }
        }
        false
    });
    super::thread::owe_errands();
    is_noted
}

/// Does what was noted.
#[cold]
pub fn run() {
    ERRANDS.with(|errands| {
        for place in &errands.kicks {
            let socket = place.load(Ordering::Relaxed);
            if socket < 0 {
                break;
            }
            place.store(-1, Ordering::Relaxed);
            kick(socket);
            // Threads that change it at the same time lose a step or two.
            CROWDED.store(CROWDED.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
        for place in errands.bells.iter() {
            let Some(bell) = place.take() else { break };
            unix_socket::ring(&bell);
        }
        let len = errands.wakers_len.swap(0, Ordering::Relaxed);
        for waker in errands.wakers.iter().take(len as usize) {
            // SAFETY: a waker's descriptor is open as long as the process lives.
            let waker = unsafe { BorrowedFd::borrow_raw(waker.load(Ordering::Relaxed)) };
            // A full counter means that a wake-up is pending anyway.
            let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    });
}

/// One thread at a time kicks a ring: its call takes what others have put there meanwhile, and would keep them
/// waiting for a lock of the kernel's.
fn kick(socket: i32) {
    let own = (socket as u32 + 1) << 1;
    let Some(kicker) = KICKERS.get(socket as usize % KICKS) else { return };
    loop {
        match kicker.compare_exchange(IDLE, own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            // That of another ring.
            Err(found) if found & !AGAIN != own => return kick_now(socket),
            Err(_) if leave_to_kicker(socket) => return,
            Err(_) => {}
        }
    }
    loop {
        kick_now(socket);
        if kicker.compare_exchange(own, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
        kicker.swap(own, Ordering::AcqRel);
    }
}

fn kick_now(socket: i32) {
    // SAFETY: a ring's socket is open as long as the process lives.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    for _ in 0..CALLS {
        match rustix::net::send(socket, &[], SendFlags::DONTWAIT) {
            Ok(_) => return,
            Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => {}
            // No memory for a packet now, link down ...
            Err(_) => break,
        }
    }
    LEFT_OVER.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::lock::Lock;
    use crate::sys::wait::Waker;
    use rustix::fd::AsRawFd;

    fn is_awake(waker: &Waker) -> bool {
        let mut fds =
            [crate::sys::wait::PollFd { fd: waker.raw(), events: libc::POLLIN, revents: 0 }];
        crate::sys::wait::ppoll(&mut fds, Some(0), None) == Ok(1)
    }

    #[test]
    fn errands_are_done_when_the_last_lock_is_given_back() {
        let (outer, inner) = (Lock::new(()), Lock::new(()));
        let wakers: Vec<Waker> = (0..MOST + 1).map(|_| Waker::new().unwrap()).collect();
        let first = outer.lock().unwrap();
        let second = inner.lock().unwrap();
        let noted: Vec<bool> = wakers.iter().map(|waker| note_wake(waker.raw())).collect();
        assert_eq!(noted.iter().filter(|noted| **noted).count(), MOST);
        drop(second);
        assert!(!wakers.iter().any(is_awake));
        drop(first);
        assert_eq!(wakers.iter().filter(|waker| is_awake(waker)).count(), MOST);
        // Once.
        assert!(wakers.iter().take(MOST).all(|waker| waker.clear() == 1));
        drop(outer.lock());
        assert!(!wakers.iter().any(is_awake));
    }

    #[test]
    fn rings_are_kicked_by_an_empty_send_each_once() {
        let pairs = [(); RINGS + 1].map(|()| {
            rustix::net::socketpair(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::DGRAM,
                rustix::net::SocketFlags::NONBLOCK,
                None,
            )
            .unwrap()
        });
        let kicks = |theirs| {
            let flags = rustix::net::RecvFlags::empty();
            let mut byte = [0u8; 1];
            (0..3).filter(|_| rustix::net::recv(theirs, &mut byte, flags).is_ok()).count()
        };
        let lock = Lock::new(());
        let guard = lock.lock().unwrap();
        for _ in 0..2 {
            let noted = pairs.iter().map(|(ours, _)| note_kick(ours.as_raw_fd()));
            assert_eq!(noted.collect::<Vec<_>>(), [[true; RINGS].as_slice(), &[false]].concat());
        }
        assert_eq!(pairs.iter().map(|(_, theirs)| kicks(theirs)).sum::<usize>(), 0);
        drop(guard);
        let made = pairs.iter().map(|(_, theirs)| kicks(theirs)).collect::<Vec<_>>();
        assert_eq!(made, [[1; RINGS].as_slice(), &[0]].concat());
        drop(lock.lock());
        assert_eq!(pairs.iter().map(|(_, theirs)| kicks(theirs)).sum::<usize>(), 0);
    }

    #[test]
    fn a_ring_is_left_to_the_thread_that_kicks_it_and_to_no_other() {
        // Numbers that no descriptor has, so that no other test of the process meets them.
        let (socket, other) = (1_000_003, 1_000_003 + KICKS as i32);
        let kicker = &KICKERS[socket as usize % KICKS];
        assert!(!is_kicked(socket) && !leave_to_kicker(socket));
        let own = (socket as u32 + 1) << 1;
        kicker.store(own, Ordering::Relaxed);
        assert!(is_kicked(socket) && !is_kicked(other));
        assert!(!leave_to_kicker(other));
        assert_eq!(kicker.load(Ordering::Relaxed), own);
        assert!(leave_to_kicker(socket) && leave_to_kicker(socket) && is_kicked(socket));
        assert_eq!(kicker.swap(IDLE, Ordering::Relaxed), own | AGAIN);
    }
}
