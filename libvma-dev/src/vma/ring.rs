//! Completions: what happens on all sockets of a process, from one ring (socketXtreme).

use core::ffi::{c_int, c_uint};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::packet::{bytes, whole};
use super::{Vma, address};
use crate::extra::{
    self, Buffer, EVENT_NEW_CONNECTION, EVENT_PACKET, PacketDescriptor, SocketAddress, Timespec,
    function,
};

pub(super) type Poll = unsafe extern "C" fn(c_int, *mut extra::Completion, c_uint, c_int) -> c_int;
pub(super) type Free = unsafe extern "C" fn(*mut PacketDescriptor, c_int) -> c_int;
pub(super) type Rings = unsafe extern "C" fn(c_int, *mut c_int, c_int) -> c_int;

/// Bits of epoll(7).
const OUT: u64 = 0x4;
const ERR: u64 = 0x8;
const HUP: u64 = 0x10;
const RDHUP: u64 = 0x2000;

/// One look takes at most so many.
const AT_ONCE: usize = 16;

const NOTHING: extra::Completion = extra::Completion {
    packet: PacketDescriptor {
        buffers: 0,
        total_len: 0,
        list: core::ptr::null_mut(),
        hardware_stamp: Timespec { seconds: 0, nanoseconds: 0 },
    },
    events: 0,
    user_data: 0,
    source: SocketAddress { family: 0, port: 0, address: 0, zero: [0; 8] },
    listener: 0,
};

/// The ring of a process that runs with `VMA_SOCKETXTREME=1`. Threads may share it.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    poll: Poll,
    free: Free,
    descriptor: c_int,
}

impl Vma {
    /// The ring by which news of a socket come, and those of all others of the process.
    ///
    /// [`io::ErrorKind::Unsupported`]: the program runs without `VMA_SOCKETXTREME=1`, or the library does not serve the socket.
    pub fn ring(&self, socket: impl AsFd) -> io::Result<Ring> {
        let functions = function::SOCKETXTREME_POLL
            | function::SOCKETXTREME_FREE_VMA_PACKETS
            | function::GET_SOCKET_RINGS_FDS;
        if !self.supports(functions) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut descriptor = -1;
        // SAFETY: room for one number.
        match unsafe { (self.rings)(socket.as_fd().as_raw_fd(), &raw mut descriptor, 1) } {
            1 => Ok(Ring { poll: self.poll, free: self.free_delivered, descriptor }),
            0 => Err(io::ErrorKind::Unsupported.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Ring {
    /// The completions that are there now, perhaps none: it does not wait.
    ///
    /// ```no_run
    /// # fn main() -> std::io::Result<()> {
    /// use libvma_dev::vma::Vma;
    ///
    /// let socket = std::net::UdpSocket::bind("192.0.2.1:5000")?;
    /// let ring = Vma::get().expect("libvma").ring(&socket)?;
    /// loop {
    ///     for completion in ring.poll()? {
    ///         if let (Some(packet), Some(source)) = (completion.packet, completion.source) {
    ///             socket.send_to(&packet.bytes(), source)?;
    ///         }
    ///     }
    /// }
    /// # }
    /// ```
    pub fn poll(&self) -> io::Result<Completions> {
        let mut list = [NOTHING; AT_ONCE];
        // SAFETY: an array of so many entries.
        let count =
            unsafe { (self.poll)(self.descriptor, list.as_mut_ptr(), AT_ONCE as c_uint, 0) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        Ok(Completions { free: self.free, list, at: 0, count })
    }
}

/// The completions of one look. Packets and connections of those that are not taken are given back and closed.
pub struct Completions {
    free: Free,
    list: [extra::Completion; AT_ONCE],
    at: usize,
    count: usize,
}

// SAFETY: packets that are the program's, and that every thread may use.
unsafe impl Send for Completions {}

impl Iterator for Completions {
    type Item = Completion;

    fn next(&mut self) -> Option<Completion> {
        let raw = self.list.get(..self.count)?.get(self.at)?;
        self.at += 1;
        let packet = (raw.events & EVENT_PACKET != 0)
            .then_some(Delivered { free: self.free, packet: raw.packet });
        let accepted = (raw.events & EVENT_NEW_CONNECTION != 0).then(|| Accepted {
            // SAFETY: a connection whose number the library has just made, and told nobody else.
            connection: unsafe { OwnedFd::from_raw_fd(raw.user_data as RawFd) },
            listener: raw.listener,
        });
        Some(Completion {
            user_data: raw.user_data,
            packet,
            accepted,
            source: address(raw.source),
            events: raw.events,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.count.saturating_sub(self.at);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Completions {}

impl Drop for Completions {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Completions").field("left", &self.len()).finish_non_exhaustive()
    }
}

/// The events of a socket; several may be set.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The socket: its descriptor, or the value of `SO_VMA_USER_DATA`.
    pub user_data: u64,
    /// A packet came.
    pub packet: Option<Delivered>,
    /// A listener has a new connection, which is `user_data`'s.
    pub accepted: Option<Accepted>,
    /// The packet's sender, or the connection's peer, if it has an address of IPv4.
    pub source: Option<SocketAddrV4>,
    events: u64,
}

impl Completion {
    /// A connection can be written to: a connect() is done, or there is room again.
    pub fn is_writable(&self) -> bool {
        self.events & OUT != 0
    }

    /// The peer has sent all that it sends, or the connection is over.
    pub fn is_end(&self) -> bool {
        self.events & (RDHUP | HUP) != 0
    }

    /// The connection, or a send on the socket, failed.
    pub fn is_error(&self) -> bool {
        self.events & ERR != 0
    }
}

/// A connection that a listener accepted.
#[derive(Debug)]
pub struct Accepted {
    pub connection: OwnedFd,
    /// The listener's descriptor.
    pub listener: RawFd,
}

/// A packet of a completion, in memory of the library. Dropping it gives the memory back, and opens a connection's window. It
/// outlives its socket, and any thread may have it.
pub struct Delivered {
    free: Free,
    packet: PacketDescriptor,
}

// SAFETY: the memory is the program's alone and read only; the library takes packets back from every thread.
unsafe impl Send for Delivered {}
// SAFETY: as above; a shared packet can only be read.
unsafe impl Sync for Delivered {}

impl Delivered {
    /// Its buffers, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut next: *const Buffer = self.packet.list;
        core::iter::from_fn(move || {
            if next.is_null() {
                return None;
            }
            // SAFETY: a buffer of a packet that is the program's as long as `self` lives.
            let Buffer { next: behind, payload, len } = unsafe { next.read() };
            next = behind;
            // SAFETY: as above; nobody writes there.
            Some(unsafe { bytes(payload.cast_const().cast(), len.into()) })
        })
    }

    /// Its payload: a copy only if it has several buffers.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        whole(self.parts())
    }

    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.packet.total_len.into()
    }

    /// Has it no payload?
    pub fn is_empty(&self) -> bool {
        self.packet.total_len == 0
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        // SAFETY: a packet that is the program's, and is given back here alone.
        unsafe { (self.free)(&raw mut self.packet, 1) };
    }
}

impl fmt::Debug for Delivered {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Delivered").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static FREED: Cell<usize> = const { Cell::new(0) };
    }

    unsafe extern "C" fn free(_packets: *mut PacketDescriptor, count: c_int) -> c_int {
        FREED.set(FREED.get() + count as usize);
        0
    }

    /// One with two packets, each of "one" and "two".
    unsafe extern "C" fn poll(
        ring: c_int,
        entries: *mut extra::Completion,
        count: c_uint,
        _flags: c_int,
    ) -> c_int {
        assert!(ring == 7 && count >= 2);
        for at in 0..2 {
            let buffer = |next, text: &'static str| {
                let payload = text.as_ptr().cast_mut().cast();
                Box::leak(Box::new(Buffer { next, payload, len: text.len() as u16 }))
            };
            let second: *mut Buffer = buffer(core::ptr::null_mut(), "two");
            let list: *mut Buffer = buffer(second, "one");
            let packet = PacketDescriptor { buffers: 2, total_len: 6, list, ..NOTHING.packet };
            let events = EVENT_PACKET | if at == 1 { RDHUP } else { 0 };
            let one = extra::Completion { packet, events, user_data: at, ..NOTHING };
            let entry = entries.wrapping_add(at as usize);
            // SAFETY: there is room for two.
            unsafe { entry.write(one) };
        }
        2
    }

    #[test]
    fn packets_are_given_back_whether_they_are_taken_or_not() {
        let ring = Ring { poll, free, descriptor: 7 };
        let mut completions = ring.poll().expect("completions");
        assert_eq!(completions.len(), 2);
        let first = completions.next().expect("one");
        assert!(!first.is_end() && !first.is_error() && !first.is_writable());
        let packet = first.packet.expect("a packet");
        assert_eq!(packet.bytes(), &b"onetwo"[..]);
        assert_eq!((packet.len(), packet.is_empty(), packet.parts().count()), (6, false, 2));
        drop(completions);
        assert_eq!(FREED.get(), 1);
        assert_eq!(packet.bytes(), &b"onetwo"[..]);
        drop(packet);
        assert_eq!(FREED.get(), 2);
        let ends: Vec<bool> = ring.poll().expect("completions").map(|one| one.is_end()).collect();
        assert_eq!((ends, FREED.get()), (vec![false, true], 4));
    }
}
