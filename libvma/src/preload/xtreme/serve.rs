//! Serves a member of the ring: takes a packet, a connection, or other events.

use core::ffi::{c_int, c_ulong};

use libvma_dev::extra::{
    Completion, EVENT_NEW_CONNECTION, EVENT_PACKET, PacketDescriptor, SocketAddress, Timespec,
};

use super::super::{Found, errno, find, made, passed, real, receive, socket, stream};
use super::{after_accept, pointer};
use crate::extra::{After, Lent, Role, Work};
use crate::process::Process;
use crate::socket::receive::has_more;
use crate::sys::wait::poll_now;

const OUT: u32 = libc::EPOLLOUT as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;

/// The outcome of serving a member.
pub enum Served {
    Told(Completion),
    Nothing,
    /// It could not be served now, and has something still.
    Later(Work),
}

/// Serves a member that has news.
pub fn serve(process: &'static Process, work: Work) -> Served {
    match work.member.role {
        Role::Datagrams => datagram(process, work),
        Role::Listener => connection(process, work),
        Role::Connecting | Role::Accepted => stream_news(process, work),
    }
}

/// A completion of a member, with nothing in it.
fn completion(work: &Work, events: u64) -> Completion {
    let packet = PacketDescriptor {
        buffers: 0,
        total_len: 0,
        list: core::ptr::null_mut(),
        hardware_stamp: Timespec::default(),
    };
    let (user_data, source) = (work.member.user_data, work.member.peer.unwrap_or_default());
    Completion { packet, events, user_data, source, listener: 0 }
}

/// The member was served; the program is told of the events, and of a packet.
fn done(process: &Process, work: Work, after: After, events: u32, packet: Option<usize>) -> Served {
    let mut told = completion(&work, events.into());
    let extra = &process.stack.extra;
    if let Some(Lent { list, buffers, len }) =
        extra.xtreme.done(&extra.held.pool, work, after, packet)
    {
        told.events |= EVENT_PACKET;
        told.packet.buffers = buffers;
        told.packet.total_len = len as u16;
        told.packet.list = pointer(list);
    }
    if told.events == 0 { Served::Nothing } else { Served::Told(told) }
}

/// Receives into the work's memory without waiting. Returns the bytes, and the source if there is one.
fn receive_into(work: &mut Work) -> Result<(usize, Option<SocketAddress>), c_int> {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut name: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    let mut slices = work.room.slices();
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // An IoSliceMut is an iovec by its contract.
    message.msg_iov = slices.as_mut_ptr().cast();
    message.msg_iovlen = slices.len() as _;
    // SAFETY: a message of living buffers.
    let result =
        unsafe { receive::recvmsg(work.member.descriptor, &mut message, libc::MSG_DONTWAIT) };
    let len = usize::try_from(result).map_err(|_| errno::get())?;
    Ok((len, (message.msg_namelen > 0).then(|| address(&name))))
}

/// An address as completions have it: of IPv4 or, of an IPv6 peer, its family and port.
fn address(name: &libc::sockaddr_storage) -> SocketAddress {
    let bytes = core::ptr::from_ref(name);
    let none = SocketAddress { family: name.ss_family, ..SocketAddress::default() };
    match c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: a sockaddr_storage has room for every address, and is aligned for it.
            let four = unsafe { bytes.cast::<libc::sockaddr_in>().read() };
            SocketAddress { port: four.sin_port, address: four.sin_addr.s_addr, ..none }
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let six = unsafe { bytes.cast::<libc::sockaddr_in6>().read() };
            let ip = core::net::Ipv6Addr::from(six.sin6_addr.s6_addr);
            let four = ip.to_ipv4_mapped().map(|ip| u32::from_ne_bytes(ip.octets()));
            let family = if four.is_some() { libc::AF_INET as u16 } else { none.family };
            SocketAddress { family, port: six.sin6_port, address: four.unwrap_or(0), ..none }
        }
        _ => none,
    }
}

/// Does the descriptor name no socket any more?
fn is_gone(error: c_int) -> bool {
    matches!(error, libc::EBADF | libc::ENOTSOCK | libc::EOPNOTSUPP)
}

fn datagram(process: &'static Process, mut work: Work) -> Served {
    match receive_into(&mut work) {
        // The kernel's socket was shut down.
        Ok((0, None)) => {
            let events = if work.member.ended { 0 } else { RDHUP };
            work.member.ended = true;
            done(process, work, After::Idle, events, None)
        }
        Ok((len, source)) => {
            work.member.peer = source;
            // Else what comes next is news.
            let may_have_more = work.member.must_drain
                || work.member.socket.is_none_or(|id| has_more(&process.stack, id));
            let after = if may_have_more { After::Again } else { After::Idle };
            done(process, work, after, 0, Some(len))
        }
        Err(libc::EAGAIN) => done(process, work, After::Idle, 0, None),
        Err(libc::EINTR) => Served::Later(work),
        Err(error) if is_gone(error) => done(process, work, After::Gone, 0, None),
        // ECONNREFUSED and its like, told as they come; there may be datagrams behind them.
        Err(_) => done(process, work, After::Again, ERR, None),
    }
}

fn connection(process: &'static Process, work: Work) -> Served {
    let (accepted, peer) = match accept(process, work.member.descriptor) {
        Ok(accepted) => accepted,
        Err(libc::EAGAIN) => return done(process, work, After::Idle, 0, None),
        Err(error) if is_gone(error) || error == libc::EINVAL => {
            return done(process, work, After::Gone, 0, None);
        }
        // Those that wait are accepted when the program has a descriptor to spare.
        Err(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            return Served::Later(work);
        }
        // accept(2): errors of the connection that is already over; the next one may be good.
        Err(_) => return Served::Later(work),
    };
    after_accept(accepted);
    let user_data = process.stack.extra.xtreme.user_data(accepted).unwrap_or(accepted as u64);
    let told = Completion {
        user_data,
        source: peer,
        listener: work.member.descriptor,
        ..completion(&work, EVENT_NEW_CONNECTION)
    };
    done(process, work, After::Again, 0, None);
    Served::Told(told)
}

/// accept(2) without waiting, also from a listener that blocks.
fn accept(process: &'static Process, fd: c_int) -> Result<(c_int, SocketAddress), c_int> {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut name: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let to: (*mut libc::sockaddr, *mut libc::socklen_t) = ((&raw mut name).cast(), &mut len);
    let accepted = match find(fd) {
        // SAFETY: room for an address, and its length.
        Found::Stream(_, id) => unsafe { stream::accept_now(process, id, fd, to) },
        _ if poll_now(fd, libc::POLLIN) == 0 => return Err(libc::EAGAIN),
        // SAFETY: as above.
        _ => passed::accepted(fd, made(|| unsafe { real::accept4(fd, to.0, to.1, 0) })),
    };
    if accepted < 0 { Err(errno::get()) } else { Ok((accepted, address(&name))) }
}

fn stream_news(process: &'static Process, mut work: Work) -> Served {
    let seen = work.member.events;
    let mut tell = 0;
    if seen & OUT != 0 && seen & ERR == 0 && work.member.told & OUT == 0 {
        tell |= OUT;
    }
    let mut after = After::Idle;
    let mut packet = None;
    // The error of a connection without bytes stays for SO_ERROR.
    if seen & ERR != 0 && !work.member.ended && bytes_waiting(work.member.descriptor) == 0 {
        work.member.ended = true;
    }
    if !work.member.ended {
        match receive_into(&mut work) {
            Ok((0, _)) => {
                tell |= RDHUP;
                work.member.ended = true;
            }
            Ok((len, _)) => {
                packet = Some(len);
                after = After::Again;
            }
            Err(libc::EAGAIN | libc::ENOTCONN) => {}
            Err(libc::EINTR) => return Served::Later(work),
            Err(error) if is_gone(error) => after = After::Gone,
            Err(_) => {
                tell |= ERR | HUP;
                work.member.ended = true;
            }
        }
    }
    if work.member.ended {
        tell |= seen & (RDHUP | HUP | ERR);
    }
    tell &= !work.member.told;
    work.member.told |= tell;
    if work.member.peer.is_none() && packet.is_some() {
        work.member.peer = peer(work.member.descriptor);
    }
    done(process, work, after, tell, packet)
}

fn bytes_waiting(fd: c_int) -> c_int {
    let mut count: c_int = 0;
    let argument = core::ptr::from_mut(&mut count).expose_provenance();
    // SAFETY: FIONREAD writes an int.
    unsafe { socket::ioctl(fd, libc::FIONREAD as c_ulong, argument) };
    count
}

fn peer(fd: c_int) -> Option<SocketAddress> {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut name: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: room for an address, and its length.
    let result = unsafe { socket::getpeername(fd, (&raw mut name).cast(), &mut len) };
    (result == 0).then(|| address(&name))
}
