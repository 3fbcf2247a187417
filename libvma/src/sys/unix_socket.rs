//! Sockets between processes of one host and network namespace (unix(7)): SOCK_SEQPACKET under
//! abstract names, which leave no file behind and end with their owner, and bells, by which one
//! process wakes another.
//!
//! Nothing here ever waits: a call that could not be done at once says EAGAIN. Every call says so
//! by itself, because O_NONBLOCK belongs to the open file, and so to everybody who has it.

use core::mem::MaybeUninit;
use std::io::{IoSlice, IoSliceMut};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, recv, recvmsg, sendmsg, socket_with, socketpair, sockopt,
};

use super::{Fd, fork_gate, shadow};

/// Descriptors that one message carries at most; what a sender adds is not taken.
pub const MOST_DESCRIPTORS: usize = 2;

/// What came in one message.
pub struct Received {
    pub len: usize,
    pub descriptors: [Option<Fd>; MOST_DESCRIPTORS],
}

/// Takes a name; EADDRINUSE if somebody has it.
pub fn listen(name: &[u8], backlog: i32) -> Result<Fd, Errno> {
    let _shut = fork_gate::shut();
    let socket = open()?;
    bind(socket.as_fd(), &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(socket.as_fd(), backlog)?;
    Ok(socket)
}

/// The user that callers see is the one of the last listen().
pub fn renew_credentials(listener: &Fd, backlog: i32) -> Result<(), Errno> {
    rustix::net::listen(listener.as_fd(), backlog)
}

/// The next caller; None if there is none now.
pub fn accept(listener: &Fd) -> Result<Option<Fd>, Errno> {
    let _shut = fork_gate::shut();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        match accept_with(listener.as_fd(), flags) {
            Ok(socket) => return Fd::adopt(socket).map(Some),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Calls a name: ECONNREFUSED if nobody has it, EAGAIN if too many wait there already.
pub fn connect(name: &[u8]) -> Result<Fd, Errno> {
    let _shut = fork_gate::shut();
    let socket = open()?;
    rustix::net::connect(socket.as_fd(), &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

/// The same of a path.
pub fn connect_path(path: &str) -> Result<Fd, Errno> {
    let _shut = fork_gate::shut();
    let socket = open()?;
    rustix::net::connect(socket.as_fd(), &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Nothing is said or heard by it any more: the other end hears that at once.
pub fn end(socket: &Fd) {
    let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both);
}

/// The effective user of the other end, when it connected or listened.
pub fn peer_user(socket: &Fd) -> Option<u32> {
    // struct ucred: pid, uid, gid. (For rustix the pid is never 0, which it is in another pid namespace.)
    let mut credentials = [0; size_of::<libc::ucred>()];
    shadow::option(socket.raw(), libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials)
        .filter(|len| *len == credentials.len())?;
    let uid: [u8; 4] = *credentials.get(4..)?.first_chunk()?;
    Some(u32::from_ne_bytes(uid))
}

/// Sends one message whole.
pub fn send(socket: &Fd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_) => return Err(Errno::MSGSIZE),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Takes one message, which is at most as long as `buffer`; longer ones are EMSGSIZE and lost. A
/// length of 0 is the end.
pub fn receive(socket: &Fd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let _shut = fork_gate::shut();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        let mut pieces = [IoSliceMut::new(buffer)];
        match recvmsg(socket.as_fd(), &mut pieces, &mut control, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = [const { None }; MOST_DESCRIPTORS];
    let mut lost = false;
    for received in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = received {
            // All of them are adopted, even if none is wanted: they must be closed by our means.
            for (at, descriptor) in sent.enumerate() {
                match (Fd::adopt_briefly(descriptor), descriptors.get_mut(at)) {
                    (Ok(adopted), Some(place)) => *place = Some(adopted),
                    (Ok(_), None) | (Err(_), _) => lost = true,
                }
            }
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    // All or none.
    let descriptors = descriptors.map(|kept| kept.filter(|_| !lost).map(Fd::above_the_limit));
    Ok(Received { len: message.bytes, descriptors })
}

/// A bell: the end that becomes readable, which nobody else may get, and the end to ring it with.
///
/// Whoever has only the second end can make the first one readable, and nothing else. It can be
/// spoilt for all its holders (shutdown(2), connect(2)), so everybody gets one of his own.
pub fn bell() -> Result<(Fd, Fd), Errno> {
    let _shut = fork_gate::shut();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (hears, rings) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let (hears, rings) = (Fd::adopt_briefly(hears), Fd::adopt_briefly(rings));
    let (hears, rings) = (hears?.above_the_limit(), rings?.above_the_limit());
    // Closing what somebody sends along may take long. Before Linux 6.16 it cannot be kept out.
    super::shadow::set_int_option(hears.raw(), libc::SOL_SOCKET, SO_PASSRIGHTS, 0);
    Ok((hears, rings))
}

/// Is this something that [`ring`] may be called with? Asked of the socket layer alone: a file
/// system of its own could let other questions wait.
pub fn is_bell(socket: &Fd) -> bool {
    sockopt::socket_domain(socket.as_fd()) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket.as_fd()) == Ok(SocketType::DGRAM)
}

/// Rings a bell. If there is no room it rings already, or its owner is gone.
pub fn ring(bell: &Fd) {
    let _ = rustix::net::send(bell.as_fd(), &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Takes one ring off a bell. An honest peer rings once for each sleep as a rule; a bell that was rung more often
/// ends the next sleep at once, and none of the others pays for a second system call.
pub fn hush(bell: &Fd) {
    // Descriptors that came along are closed by the kernel: there is no room for them. An error that the
    // other end caused is told once.
    let _ = recv(bell.as_fd(), &mut [0u8; 1], RecvFlags::DONTWAIT | RecvFlags::TRUNC);
}

/// The user that this process is, if it is only one: not while a daemon does something for
/// somebody, or may become another one again.
pub fn sole_user() -> Option<u32> {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: three places for numbers that outlive the call.
    let result = unsafe { libc::getresuid(&mut real, &mut effective, &mut saved) };
    (result == 0 && real == effective && effective == saved).then_some(effective)
}

/// Since Linux 6.16: may descriptors come with a message?
const SO_PASSRIGHTS: i32 = 83;

fn open() -> Result<Fd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Fd::adopt(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::wait::Waker;
    use rustix::fd::AsRawFd;

    fn name(of: &str) -> Vec<u8> {
        format!("libvma-test/{}/{of}", std::process::id()).into_bytes()
    }

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let listener = listen(&name("whole"), 4).unwrap();
        assert!(accept(&listener).unwrap().is_none());
        let caller = connect(&name("whole")).unwrap();
        let called = accept(&listener).unwrap().unwrap();
        let waker = Waker::new().unwrap();
        let sent = crate::sys::fd::with_borrowed(waker.raw(), |fd| {
            send(&caller, b"hello", &[fd, caller.as_fd()])
        });
        assert_eq!(sent, Some(Ok(())));
        let mut buffer = [0; 16];
        let received = receive(&called, &mut buffer).unwrap();
        assert_eq!(&buffer[..received.len], b"hello");
        let [Some(first), Some(second)] = received.descriptors else { panic!("two came") };
        assert!(first.as_fd().as_raw_fd() >= 100 && second.as_fd().as_raw_fd() >= 100);
        assert!(rustix::io::write(first.as_fd(), &1u64.to_ne_bytes()).is_ok());
        assert_ne!(crate::sys::wait::poll_now(waker.raw(), libc::POLLIN), 0);
        assert_eq!(receive(&called, &mut buffer).err(), Some(Errno::AGAIN));
    }

    #[test]
    fn a_long_message_is_an_error_and_the_next_one_arrives() {
        let listener = listen(&name("long"), 4).unwrap();
        let caller = connect(&name("long")).unwrap();
        let called = accept(&listener).unwrap().unwrap();
        send(&caller, &[7; 64], &[]).unwrap();
        send(&caller, b"short", &[]).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(receive(&called, &mut buffer).err(), Some(Errno::MSGSIZE));
        assert_eq!(receive(&called, &mut buffer).unwrap().len, 5);
        drop(caller);
        assert_eq!(receive(&called, &mut buffer).unwrap().len, 0);
    }

    fn is_readable(bell: &Fd) -> bool {
        crate::sys::wait::poll_now(bell.as_fd().as_raw_fd(), libc::POLLIN) != 0
    }

    fn duplicate(fd: &Fd) -> Fd {
        Fd::adopt(rustix::io::dup(fd.as_fd()).unwrap()).unwrap()
    }

    #[test]
    fn a_bell_rings_until_it_is_hushed() {
        let (hears, rings) = bell().unwrap();
        assert!(is_bell(&rings) && !is_readable(&hears));
        ring(&rings);
        ring(&rings);
        hush(&hears);
        assert!(is_readable(&hears), "rung twice");
        hush(&hears);
        assert!(!is_readable(&hears));
    }

    /// All of it in the only thread: a call that waited would never return.
    #[test]
    fn nothing_that_is_done_to_a_bell_makes_anybody_wait() {
        use rustix::fs::{OFlags, fcntl_setfl};
        let (hears, rings) = bell().unwrap();
        let evil = duplicate(&rings);
        fcntl_setfl(evil.as_fd(), OFlags::empty()).unwrap();
        hush(&hears);
        while rustix::net::send(evil.as_fd(), &[7; 100], SendFlags::DONTWAIT).is_ok() {}
        ring(&rings);
        assert!(is_readable(&hears));
        // All of it must come out again, or it would ring for ever.
        for _ in 0..10_000 {
            hush(&hears);
        }
        assert!(!is_readable(&hears));
        // Nobody reads at that end.
        let nothing = recv(evil.as_fd(), &mut [0u8; 1], RecvFlags::DONTWAIT);
        assert_eq!(nothing.err(), Some(Errno::AGAIN));
        rustix::net::shutdown(evil.as_fd(), rustix::net::Shutdown::Both).unwrap();
        // No SIGPIPE, which would end the test.
        ring(&rings);
        hush(&hears);
        let (hears, rings) = bell().unwrap();
        drop(hears);
        ring(&rings);
    }

    #[test]
    fn other_things_are_no_bells() {
        let waker = Waker::new().unwrap();
        let event = crate::sys::fd::with_borrowed(waker.raw(), |fd| rustix::io::dup(fd).unwrap());
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let others = [event.unwrap(), tcp.into(), udp.into(), read, write];
        for other in others {
            assert!(!is_bell(&Fd::adopt(other).unwrap()));
        }
        assert!(!is_bell(&open().unwrap()), "a connection is none either");
    }

    #[test]
    fn descriptors_do_not_come_with_a_ring() {
        let (hears, rings) = bell().unwrap();
        // Refused since Linux 6.16, dropped before.
        let sent = send(&rings, b"x", &[rings.as_fd()]);
        assert!(matches!(sent, Ok(()) | Err(Errno::PERM)), "{sent:?}");
        hush(&hears);
        assert!(!is_readable(&hears));
    }

    #[test]
    fn a_process_of_one_user_knows_it() {
        let (real, effective) = (rustix::process::getuid(), rustix::process::geteuid());
        let expected = (real == effective).then_some(effective.as_raw());
        assert_eq!(sole_user(), expected);
    }

    #[test]
    fn a_name_is_one_process_s_until_it_closes_it() {
        let listener = listen(&name("once"), 1).unwrap();
        assert_eq!(listen(&name("once"), 1).err(), Some(Errno::ADDRINUSE));
        assert_eq!(
            peer_user(&connect(&name("once")).unwrap()),
            Some(rustix::process::geteuid().as_raw())
        );
        drop(listener);
        assert_eq!(connect(&name("once")).err(), Some(Errno::CONNREFUSED));
    }
}
