//! Receiving into memory that the library lends.

use core::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd};

use super::{Free, Packet, Vma, address};
use crate::extra::{self, IoVec, MSG_ZCOPY, MSG_ZCOPY_FORCE, Packets, SocketAddress, function};

/// `MSG_DONTWAIT` of Linux.
const MSG_DONTWAIT: c_int = 0x40;

/// Flags of a receive call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    flags: c_int,
}

impl Options {
    /// It waits until something is there, unless the socket does not.
    pub fn new() -> Options {
        Options::default()
    }

    /// Nothing there is an error, [`io::ErrorKind::WouldBlock`].
    pub fn nonblocking(self) -> Options {
        Options { flags: self.flags | MSG_DONTWAIT }
    }

    /// A datagram that would have to be copied, because it came by the kernel, is an error (EIO) and stays where an ordinary
    /// receive call gets it.
    pub fn never_copy(self) -> Options {
        Options { flags: self.flags | MSG_ZCOPY_FORCE }
    }
}

/// The result of a receive call.
#[derive(Debug)]
pub struct Received<'b> {
    /// The sender of a datagram.
    pub source: Option<SocketAddrV4>,
    pub data: Data<'b>,
}

#[derive(Debug)]
pub enum Data<'b> {
    /// Packets in memory of the library: one datagram, or parts of a stream.
    Lent(Lent<'b>),
    /// Bytes in the buffer of the call, because they came by the kernel. None at the end of a stream.
    Copied(&'b [u8]),
}

impl Vma {
    /// Receives without a copy into memory of the program, if that can be: see [`Data`]. A buffer needs 40 bytes at least, and
    /// as much as an ordinary call would for what comes by the kernel.
    pub fn receive<'b>(&self, socket: impl AsFd, buffer: &'b mut [u8]) -> io::Result<Received<'b>> {
        self.receive_with(socket, buffer, Options::new())
    }

    /// As [`Vma::receive`].
    pub fn receive_with<'b>(
        &self,
        socket: impl AsFd,
        buffer: &'b mut [u8],
        options: Options,
    ) -> io::Result<Received<'b>> {
        if !self.supports(function::RECVFROM_ZCOPY | function::FREE_PACKETS) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let socket = socket.as_fd().as_raw_fd();
        let mut flags = options.flags;
        let mut source = SocketAddress::default();
        let mut source_len = size_of::<SocketAddress>() as u32;
        let (room, from) = (buffer.as_mut_ptr(), (&raw mut source).cast());
        // SAFETY: a buffer and its length, and locals.
        let count = unsafe {
            (self.receive)(socket, room.cast(), buffer.len(), &mut flags, from, &mut source_len)
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let named = source_len as usize == size_of::<SocketAddress>();
        let source = if named { address(source) } else { None };
        let data = match flags & MSG_ZCOPY {
            0 => Data::Copied(buffer.get(..count).unwrap_or_default()),
            // SAFETY: the flag says that there are packets, which are the program's from now on.
            _ => Data::Lent(unsafe { Lent::new(self.free, socket, buffer) }),
        };
        Ok(Received { source, data })
    }
}

/// The packets of one call. Those that are not taken are given back.
pub struct Lent<'b> {
    free: Free,
    socket: c_int,
    /// The next record, and how many there are.
    at: *const u8,
    left: usize,
    _buffer: PhantomData<&'b [u8]>,
}

// SAFETY: records in a buffer that is borrowed, and packets that may be used by every thread.
unsafe impl Send for Lent<'_> {}

impl Lent<'_> {
    /// # Safety
    /// recvfrom_zcopy() has written packets of the socket to the buffer, and they are given back here alone.
    unsafe fn new(free: Free, socket: c_int, buffer: &[u8]) -> Lent<'_> {
        let packets = buffer.as_ptr().cast::<Packets>();
        // SAFETY: the head of the packets, as promised.
        let Packets { count } = unsafe { packets.read_unaligned() };
        let at = packets.wrapping_add(1).cast();
        Lent { free, socket, at, left: count, _buffer: PhantomData }
    }
}

impl Iterator for Lent<'_> {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        self.left = self.left.checked_sub(1)?;
        let record = self.at.cast::<extra::Packet>();
        // SAFETY: there is one more, as `new` was promised; perhaps not aligned.
        let extra::Packet { id, fragments } = unsafe { record.read_unaligned() };
        let first = record.wrapping_add(1).cast::<IoVec>();
        self.at = first.wrapping_add(fragments).cast();
        // SAFETY: so many fragments follow the record; perhaps not aligned.
        let fragments =
            (0..fragments).map(|number| unsafe { first.wrapping_add(number).read_unaligned() });
        // SAFETY: the packet is the program's, as `new` was promised, and its record is passed by.
        Some(unsafe { Packet::new(self.free, self.socket, id, fragments) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Lent<'_> {}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl std::fmt::Debug for Lent<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Lent").field("packets", &self.left).finish_non_exhaustive()
    }
}
