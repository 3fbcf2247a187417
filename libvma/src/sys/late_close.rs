//! Files that the kernel closes after the process has ended.
//!
//! The last close of a packet socket, of an AF_XDP socket and of a tcx link waits for a grace period of RCU each, some
//! 10 ms. A process that ends closes its descriptors one after the other, and its parent waits for that. So the files
//! are sent, as SCM_RIGHTS, to a Unix socket that is sent with them to itself: when the process has ended, the message
//! lies in the queue of a socket that only the message refers to. The kernel's garbage collector of Unix sockets finds
//! that when the other end of the pair is closed (`unix_release_sock()` of net/unix/af_unix.c), and a kernel thread of
//! its own closes the files. Not so before Linux 6.9: the collector may run in the process that ends, which takes as
//! long as without this, and `unix_gc()` passes over what is sent to it while it collects, so that the files might stay
//! open until anybody closes the next Unix socket.

use core::mem::{ManuallyDrop, MaybeUninit};
use std::io::IoSlice;

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

use super::{Fd, fd, fork_gate, release, shadow};

/// Descriptors of one message, that of the receiving socket among them; the kernel takes 253 (SCM_MAX_FD).
const MOST: usize = 250;

/// Has the kernel close these files after the end of the process, and the library's packet and AF_XDP sockets. They
/// stay open until then. An error says that they are closed with the process.
pub fn leave(others: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    if !release::is_since(6, 9) {
        return Err(Errno::OPNOTSUPP);
    }
    // In this order the kernel closes them. A successor waits for the AF_XDP socket.
    let mut files = Vec::new();
    for wanted in [libc::AF_XDP, libc::AF_PACKET] {
        fd::internal::each(|number| {
            if domain(number) == Some(wanted) {
                // SAFETY: a descriptor of the library, which is not -1. Should another thread close it meanwhile, the
                // kernel refuses the message, and it is sent without it. Should that thread have opened another file
                // under the number by then, which the program may do by dup2(), the kernel takes that one along: it
                // lives some 40 ms longer than the process.
                files.push(unsafe { fd::borrow(number) });
            }
        });
    }
    files.extend_from_slice(others);
    if files.is_empty() { Ok(()) } else { send_away(&files) }
}

/// If this fails the process has all of them, and nobody else.
fn send_away(files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    // A forked child closes its copies.
    let _shut = fork_gate::shut();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (from, to) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let (from, to) = (Fd::adopt_briefly(from)?, Fd::adopt_briefly(to)?);
    for some in files.chunks(MOST - 1) {
        match send(&from, &to, some) {
            // Another thread has closed one of them since they were looked for.
            Err(Errno::BADF) => {
                let is_open = |file: &BorrowedFd<'_>| rustix::io::fcntl_getfd(file).is_ok();
                let open: Vec<_> = some.iter().copied().filter(is_open).collect();
                send(&from, &to, &open)?;
            }
            result => result?,
        }
    }
    // The end of the process closes them: if only one end were open, any collection would close the files too early.
    let _ = (ManuallyDrop::new(from), ManuallyDrop::new(to));
    Ok(())
}

fn send(from: &Fd, to: &Fd, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut all = vec![to.as_fd()];
    all.extend_from_slice(files);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&all)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(from.as_fd(), &[IoSlice::new(&[0])], &mut control, flags).map(|_| ())
}

/// SO_DOMAIN of a socket; None for another file.
fn domain(number: i32) -> Option<i32> {
    let mut value = [0; size_of::<i32>()];
    shadow::option(number, libc::SOL_SOCKET, libc::SO_DOMAIN, &mut value)?;
    Some(i32::from_ne_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that another thread has closed does not keep the others.
    #[test]
    fn files_are_sent_without_those_that_are_closed() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // SAFETY: no process has this number, and the kernel says so.
        let closed = unsafe { fd::borrow(i32::MAX) };
        send_away(&[closed, writer.as_fd()]).unwrap();
        drop(writer);
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let read = rustix::io::read(&reader, &mut [0; 1]);
        assert_eq!(read, Err(Errno::AGAIN), "the message holds the other end");
    }
}
