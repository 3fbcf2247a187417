//! The system calls on the socket that is installed into. Each names itself in its error.

use core::ffi::c_int;
use core::mem::size_of;
use std::net::SocketAddrV4;

use super::Error;
use super::steps::Target;
use crate::sys::shadow;
use crate::sys::wait::raw_syscall;

impl Target {
    pub fn choose(&self, queue: Queue) -> Result<(), Error> {
        let queue = queue as c_int;
        self.set_int("TCP_REPAIR_QUEUE", libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue)
    }

    /// Writes all of the pieces, many in a call.
    ///
    /// Each call makes one buffer in the kernel's receive queue, whose size counts: so not one for
    /// each piece, and none that is hard to find memory for.
    pub fn write(&self, call: &'static str, pieces: &[&[u8]]) -> Result<(), Error> {
        const MOST_PIECES: usize = 64;
        const MOST_BYTES: usize = 1 << 15;
        let mut pieces = pieces.iter().copied();
        let mut piece: &[u8] = &[];
        loop {
            // From `piece` on, which is what the last call left of its last piece.
            let mut vector =
                [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; MOST_PIECES];
            let (mut count, mut bytes) = (0, 0);
            let mut rest = pieces.clone();
            let mut next = Some(piece);
            for slot in &mut vector {
                let Some(part) = next else { break };
                let len = part.len().min(MOST_BYTES - bytes);
                *slot = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: len };
                (count, bytes) = (count + 1, bytes + len);
                next = rest.next();
            }
            if bytes == 0 {
                match pieces.next() {
                    Some(following) => piece = following,
                    None => return Ok(()),
                }
                continue;
            }
            let mut written = self.sendmsg(call, vector.get_mut(..count).unwrap_or_default())?;
            while written >= piece.len() {
                written -= piece.len();
                match pieces.next() {
                    Some(following) => piece = following,
                    None => return Ok(()),
                }
            }
            piece = piece.get(written..).unwrap_or_default();
        }
    }

    fn sendmsg(&self, call: &'static str, vector: &mut [libc::iovec]) -> Result<usize, Error> {
        let message = libc::msghdr {
            msg_name: core::ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: vector.as_mut_ptr(),
            msg_iovlen: vector.len(),
            msg_control: core::ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        };
        // The buffers are large enough; should the kernel think otherwise, it shall say so.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let at = core::ptr::from_ref(&message) as usize;
        let arguments = [self.fd as usize, at, flags as usize, 0, 0, 0];
        // SAFETY: `message` outlives the call, and its vector points to slices that do; sendmsg only
        // reads them.
        let result = unsafe { raw_syscall(libc::SYS_sendmsg, arguments) };
        check(call, result)
    }

    pub fn shut_down(&self, how: c_int) -> Result<(), Error> {
        let arguments = [self.fd as usize, how as usize, 0, 0, 0, 0];
        // SAFETY: shutdown takes no pointer.
        let result = unsafe { raw_syscall(libc::SYS_shutdown, arguments) };
        check("shutdown", result).map(|_| ())
    }

    pub fn bind_to(&self, local: SocketAddrV4) -> Result<(), Error> {
        shadow::bind(self.fd, local).map_err(|errno| Error { call: "bind", errno })
    }

    pub fn connect_to(&self, remote: SocketAddrV4) -> Result<(), Error> {
        shadow::connect(self.fd, remote).map_err(|errno| Error { call: "connect", errno })
    }

    /// Ends the connection, in repair mode without a word to the peer.
    pub fn disconnect(&self) -> Result<(), Error> {
        let nobody = libc::sockaddr_in {
            sin_family: libc::AF_UNSPEC as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        };
        let at = core::ptr::from_ref(&nobody) as usize;
        let arguments = [self.fd as usize, at, size_of::<libc::sockaddr_in>(), 0, 0, 0];
        // SAFETY: `nobody` outlives the call, with its size; connect only reads it.
        let result = unsafe { raw_syscall(libc::SYS_connect, arguments) };
        check("connect", result).map(|_| ())
    }

    /// TCP_QUEUE_SEQ of the queue that is chosen: the sequence number behind its last byte, a received
    /// FIN included.
    pub fn queue_sequence(&self) -> Result<u32, Error> {
        let mut word = [0; 4];
        self.get("TCP_QUEUE_SEQ", libc::TCP_QUEUE_SEQ, &mut word)?;
        Ok(u32::from_ne_bytes(word))
    }

    pub fn repair_window(&self) -> Result<RepairWindow, Error> {
        let mut words = [[0; 4]; 5];
        self.get("TCP_REPAIR_WINDOW", libc::TCP_REPAIR_WINDOW, words.as_flattened_mut())?;
        let words = words.map(u32::from_ne_bytes);
        let [update_sequence, send_window, largest_send_window, receive_window, receive_update] =
            words;
        Ok(RepairWindow {
            update_sequence,
            send_window,
            largest_send_window,
            receive_window,
            receive_update,
        })
    }

    /// Makes the kernel assume that the peer knows the window of `known` only, so that it announces the next one. Not
    /// if a segment has arrived since: its acknowledgment has told the peer of a window.
    pub fn expect_window_update(&self, known: &RepairWindow) {
        let Ok(now) = self.repair_window() else { return };
        if now.receive_update == known.receive_update {
            let receive_window = known.receive_window;
            let window = RepairWindow { receive_window, ..now };
            let name = libc::TCP_REPAIR_WINDOW;
            let _ = self.set("TCP_REPAIR_WINDOW", libc::IPPROTO_TCP, name, &window);
        }
    }

    /// An option of TCP's that is exactly so long.
    fn get(&self, call: &'static str, name: c_int, value: &mut [u8]) -> Result<(), Error> {
        let len = shadow::option(self.fd, libc::IPPROTO_TCP, name, value);
        // The errno is not told; in repair mode none is expected.
        if len == Some(value.len()) { Ok(()) } else { Err(Error { call, errno: libc::EINVAL }) }
    }

    pub fn set_int(
        &self,
        call: &'static str,
        level: c_int,
        name: c_int,
        value: c_int,
    ) -> Result<(), Error> {
        self.set(call, level, name, &value)
    }

    pub fn set<T: Copy>(
        &self,
        call: &'static str,
        level: c_int,
        name: c_int,
        value: &T,
    ) -> Result<(), Error> {
        let at = core::ptr::from_ref(value) as usize;
        let arguments = [self.fd as usize, level as usize, name as usize, at, size_of::<T>(), 0];
        // SAFETY: `value` outlives the call, with its size; setsockopt only reads it.
        let result = unsafe { raw_syscall(libc::SYS_setsockopt, arguments) };
        check(call, result).map(|_| ())
    }
}

pub fn check(call: &'static str, result: isize) -> Result<usize, Error> {
    usize::try_from(result).map_err(|_| Error { call, errno: -result as c_int })
}

/// The values of TCP_REPAIR_QUEUE (an enum of the kernel's, from 0 on).
#[derive(Clone, Copy)]
pub enum Queue {
    None,
    Receive,
    Send,
}

/// `struct tcp_repair_opt` of linux/tcp.h: an option by its number on the wire.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RepairOption {
    pub kind: u32,
    pub value: u32,
}

/// `struct tcp_repair_window` of linux/tcp.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RepairWindow {
    pub update_sequence: u32,
    pub send_window: u32,
    pub largest_send_window: u32,
    pub receive_window: u32,
    pub receive_update: u32,
}
