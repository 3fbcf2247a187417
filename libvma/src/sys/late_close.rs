//! Files that the kernel closes after the process has ended.
//!
//! The last close of a packet socket, of an AF_XDP socket and of a tcx link waits for a grace period of RCU each, some
//! 10 ms. A process that ends closes its descriptors one after the other, and its parent waits for that. So the files
//! are sent, as SCM_RIGHTS, to a Unix socket that is sent with them to itself: when the process has ended, the message
//! lies in the queue of a socket that only the message refers to. The kernel's garbage collector of Unix sockets finds
//! that when the other end of the pair is closed (`unix_release_sock()` of net/unix/af_unix.c), and a kernel thread of
//! its own closes the files. The kernels before Linux 6.9 may collect in the process that ends, which takes as long as
//! without this.

use core::mem::{ManuallyDrop, MaybeUninit};
use std::io::IoSlice;

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

use super::{Fd, fd, fork_gate, shadow};

/// Descriptors of one message, that of the receiving socket among them; the kernel takes 253 (SCM_MAX_FD).
const MOST: usize = 250;

/// Has the kernel close these files after the end of the process, and the library's packet and AF_XDP sockets. They
/// stay open until then. An error says that they are closed with the process.
pub fn leave(others: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    // In this order the kernel closes them. A successor waits for the AF_XDP socket.
    let mut files = Vec::new();
    for wanted in [libc::AF_XDP, libc::AF_PACKET] {
        fd::internal::each(|number| {
            if domain(number) == Some(wanted) {
                // SAFETY: a descriptor of the library, which is not -1. Should another thread close it meanwhile, the
                // kernel refuses the message, or takes another file of the process along, which is closed later, too.
                files.push(unsafe { fd::borrow(number) });
            }
        });
    }
    files.extend_from_slice(others);
    if files.is_empty() {
        return Ok(());
    }
    // A forked child closes its copies.
    let _shut = fork_gate::shut();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (from, to) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let (from, to) = (Fd::adopt_briefly(from)?, Fd::adopt_briefly(to)?);
    for some in files.chunks(MOST - 1) {
        send(&from, &to, some)?;
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
