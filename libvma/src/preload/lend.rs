//! recvfrom_zcopy(): a receive call whose bytes lie in memory of the library until the program gives them back.
//!
//! The memory is not the frame itself but a buffer, into which the bytes were copied: the program may keep it as long as it likes
//! without taking frames from the ring.

use core::ffi::{c_int, c_void};
use std::io::IoSliceMut;

use libvma_dev::extra::{IoVec, MSG_ZCOPY, MSG_ZCOPY_FORCE, Packet, Packets};

use super::extra::pointer;
use super::receive::{Reception, receive, recvfrom};
use super::{Found, cancel, convert, errno, find, real, stream};
use crate::extra::{Buffer, Origin};
use crate::fd::Object;
use crate::process::{self, Process};
use crate::socket::receive::Received;
use crate::socket::{Outcome, SocketId, stream as streams};

/// A datagram's fragments may be left out, a stream's may not.
const ROOM_FOR_DATAGRAM: usize = size_of::<Packets>() + size_of::<Packet>();
const ROOM_FOR_STREAM: usize = ROOM_FOR_DATAGRAM + size_of::<IoVec>();

/// The arguments of the program.
struct Call {
    socket: c_int,
    buffer: *mut c_void,
    len: usize,
    /// Without the flags of the Extra API.
    flags: c_int,
    from: *mut libc::sockaddr,
    from_len: *mut libc::socklen_t,
}

/// A cancellation point, as recvfrom(2) is one.
///
/// # Safety
/// As recvfrom(2), with a pointer to the flags.
pub unsafe extern "C" fn recvfrom_zcopy(
    socket: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: *mut c_int,
    from: *mut c_void,
    from_len: *mut u32,
) -> c_int {
    // SAFETY: as promised.
    cancel::point(|| unsafe { lend(socket, buffer, len, flags, from, from_len) })
}

/// # Safety
/// As [`recvfrom_zcopy`].
unsafe fn lend(
    socket: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: *mut c_int,
    from: *mut c_void,
    from_len: *mut u32,
) -> c_int {
    if !convert::can_read(flags, size_of::<c_int>()) {
        errno::set(libc::EFAULT);
        return -1;
    }
    // SAFETY: an int by the contract of the function; perhaps not aligned.
    let asked = unsafe { flags.read_unaligned() };
    let call = Call {
        socket,
        buffer,
        len,
        flags: asked & !(MSG_ZCOPY | MSG_ZCOPY_FORCE),
        from: from.cast(),
        from_len,
    };
    let forced = asked & MSG_ZCOPY_FORCE != 0;
    // A packet that stays in the queue cannot be lent.
    let found = if asked & libc::MSG_PEEK != 0 { Found::Kernel } else { find(socket) };
    let lent = match found {
        // SAFETY: the program's arguments.
        Found::Datagram(process, id) => unsafe { datagram(process, id, &call, forced) },
        // SAFETY: the program's arguments.
        Found::Stream(process, id) => unsafe { stream_bytes(process, id, &call) },
        Found::Kernel | Found::Counted => None,
    };
    let (result, told) = match lent {
        Some(Lent::Packet(len)) => (len as isize, MSG_ZCOPY),
        Some(Lent::Plain(result)) => (result, 0),
        // SAFETY: the program's arguments.
        None if forced && is_kernels_datagram(socket) => (unsafe { call.refuse() }, 0),
        // SAFETY: the program's arguments.
        None => (unsafe { call.plainly() }, 0),
    };
    if !convert::can_write(flags, size_of::<c_int>()) {
        errno::set(libc::EFAULT);
        return -1;
    }
    // SAFETY: as above.
    unsafe { flags.write_unaligned(asked & !MSG_ZCOPY | told) };
    result as c_int
}

/// Is it a UDP socket that the kernel serves? What it has can be copied only.
fn is_kernels_datagram(fd: c_int) -> bool {
    match process::current().and_then(|process| process.fds.get(fd)) {
        Some(Object::Kernels(id)) => !id.is_stream(),
        Some(Object::Socket(_)) => true,
        Some(Object::Stream(_) | Object::Epoll(_)) | None => false,
    }
}

enum Lent {
    /// The buffer tells of a packet with so many bytes.
    Packet(usize),
    /// A result as recvfrom(2) has them.
    Plain(isize),
}

fn failed(error: i32) -> Option<Lent> {
    errno::set(error);
    Some(Lent::Plain(-1))
}

impl Call {
    /// # Safety
    /// The arguments are those of a recvfrom(2).
    unsafe fn plainly(&self) -> isize {
        // SAFETY: as promised.
        unsafe {
            recvfrom(self.socket, self.buffer, self.len, self.flags, self.from, self.from_len)
        }
    }

    /// Waits for a datagram of the kernel's, which stays where an ordinary call gets it.
    ///
    /// # Safety
    /// As [`Call::plainly`].
    unsafe fn refuse(&self) -> isize {
        let flags = self.flags | libc::MSG_PEEK;
        // SAFETY: nothing is written.
        let result = unsafe { real::recv(self.socket, core::ptr::null_mut(), 0, flags) };
        if result >= 0 {
            errno::set(libc::EIO);
        }
        -1
    }

    /// The errno if the buffer does not hold so many bytes.
    fn check_room(&self, least: usize) -> Result<(), i32> {
        match self.len {
            len if len < least => Err(libc::ENOBUFS),
            len if !convert::is_plausible(self.buffer, len) => Err(libc::EFAULT),
            _ => Ok(()),
        }
    }

    /// Writes what the program gets of a packet: as many fragments as find room. Returns how many bytes these are, or EFAULT.
    ///
    /// # Safety
    /// The buffer is the program's, and [`Call::check_room`] was good.
    unsafe fn tell(
        &self,
        process: &Process,
        origin: Origin,
        mut bytes: Buffer,
        len: usize,
    ) -> Option<Lent> {
        let held = &process.stack.extra.held;
        let fragment = IoVec { base: bytes.as_mut_ptr().cast(), len };
        let fits = self.len >= ROOM_FOR_STREAM;
        if !convert::can_write(self.buffer, if fits { ROOM_FOR_STREAM } else { ROOM_FOR_DATAGRAM })
        {
            held.pool.give(bytes);
            return failed(libc::EFAULT);
        }
        let packets: *mut Packets = self.buffer.cast();
        let packet: *mut Packet = packets.wrapping_add(1).cast();
        // SAFETY: there is room for it, as promised.
        unsafe { packets.write_unaligned(Packets { count: 1 }) };
        let number = held.lend(origin, bytes, len);
        let head = Packet { id: pointer(number), fragments: fits.into() };
        // SAFETY: as above.
        unsafe { packet.write_unaligned(head) };
        if fits {
            // SAFETY: as just found.
            unsafe { packet.wrapping_add(1).cast::<IoVec>().write_unaligned(fragment) };
        }
        Some(Lent::Packet(if fits { fragment.len } else { 0 }))
    }
}

/// None: the socket is the kernel's.
///
/// # Safety
/// The arguments are those of a recvfrom(2).
unsafe fn datagram(
    process: &'static Process,
    id: SocketId,
    call: &Call,
    forced: bool,
) -> Option<Lent> {
    if let Err(error) = call.check_room(ROOM_FOR_DATAGRAM) {
        return failed(error);
    }
    let mut scratch = process.stack.extra.held.pool.scratch();
    let now = Call { flags: call.flags | libc::MSG_DONTWAIT, ..*call };
    let os = || match forced {
        // SAFETY: the same call, without blocking.
        true => unsafe { now.refuse() },
        // SAFETY: the same call, without blocking.
        false => unsafe {
            let (from, from_len) = (now.from, now.from_len);
            real::recvfrom(now.socket, now.buffer, now.len, now.flags, from, from_len)
        },
    };
    let mut buffers = [IoSliceMut::new(scratch.bytes())];
    let reception = receive(process, id, &mut buffers, call.flags & !libc::MSG_TRUNC, None, os);
    match reception {
        Reception::Done(Received::FromOs(taken)) => Some(Lent::Plain(taken.bytes as isize)),
        Reception::Done(Received::Datagram { len, source, family, .. }) => {
            // SAFETY: the program's address buffer, by the contract of the call.
            let named = unsafe { convert::put_address(source, family, call.from, call.from_len) };
            if let Err(error) = named {
                return failed(error);
            }
            let origin = Origin { socket: id, descriptor: call.socket, is_stream: false };
            // SAFETY: there is room.
            unsafe { call.tell(process, origin, scratch.keep(len), len) }
        }
        Reception::Failed => Some(Lent::Plain(-1)),
        Reception::Pass => None,
    }
}

/// None: the socket is the kernel's, or not connected.
///
/// # Safety
/// The arguments are those of a recvfrom(2).
unsafe fn stream_bytes(process: &'static Process, id: SocketId, call: &Call) -> Option<Lent> {
    // An urgent byte is a value, not a packet.
    if call.flags & (libc::MSG_OOB | libc::MSG_TRUNC) != 0 {
        return None;
    }
    if let Err(error) = call.check_room(ROOM_FOR_STREAM) {
        return failed(error);
    }
    let mut scratch = process.stack.extra.held.pool.scratch();
    // It takes what is there.
    let flags = call.flags & !libc::MSG_WAITALL;
    let before = errno::get();
    let mut buffers = [IoSliceMut::new(scratch.bytes())];
    match streams::receive::receive(&process.stack, id, &mut buffers, flags) {
        Outcome::Ours(len) => {
            errno::set(before);
            // SAFETY: the program's address buffer, by the contract of the call.
            let named = unsafe { stream::no_source(len as isize, call.from, call.from_len) };
            if named <= 0 {
                return Some(Lent::Plain(named));
            }
            let origin = Origin { socket: id, descriptor: call.socket, is_stream: true };
            // SAFETY: there is room.
            unsafe { call.tell(process, origin, scratch.keep(len), len) }
        }
        Outcome::Errno(error) => failed(error),
        Outcome::Os(_) => None,
    }
}
