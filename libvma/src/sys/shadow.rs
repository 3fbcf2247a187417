//! Questions to the kernel about a descriptor of the program: the shadow of an offloaded socket.
//!
//! Raw system calls on a number that the program may close at any moment; the kernel then answers
//! EBADF, and the caller treats it as "no answer".

use core::ffi::c_int;
use core::mem::size_of;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libvma_dev::{ipv6_loopback, ipv6_stand_ins};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use super::Fd;
use super::sockaddr::{Family, LONGEST, Named, SocketName};
use super::wait::raw_syscall;

/// The IPv4 address a socket is bound to, or the stand-in of an IPv6 one ([`ipv6_stand_ins`]). `None` if it has none: it is another kind
/// of socket, bound to an address that has no stand-in, or takes IPv6 only (IPV6_V6ONLY).
pub fn local_address(fd: c_int) -> Option<SocketAddrV4> {
    match local_name(fd)? {
        Named::Ipv4(address) => Some(address),
        // The wildcard address of both families.
        Named::Ipv6(any) if any.ip().is_unspecified() => {
            let v6_only = int_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)?;
            (v6_only == 0).then(|| SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, any.port()))
        }
        Named::Ipv6(own) => stand_in(own),
    }
}

/// The address a socket is bound to, of either family.
pub fn local_name(fd: c_int) -> Option<Named> {
    name(libc::SYS_getsockname, fd)
}

/// The address a socket is connected to, of either family.
pub fn peer_name(fd: c_int) -> Option<Named> {
    name(libc::SYS_getpeername, fd)
}

/// The IPv4 address a socket is connected to, or the stand-in of an IPv6 one, if it is.
pub fn peer_address(fd: c_int) -> Option<SocketAddrV4> {
    match peer_name(fd)? {
        Named::Ipv4(address) => Some(address),
        Named::Ipv6(address) => stand_in(address),
    }
}

fn stand_in(address: SocketAddrV6) -> Option<SocketAddrV4> {
    Some(SocketAddrV4::new(ipv6_stand_ins::of(*address.ip())?, address.port()))
}

/// Does the connection begin and end at the same address, or the loopback interface's? Others may be within the
/// host, too.
pub fn is_within_host(fd: c_int) -> bool {
    let ends = local_address(fd).zip(peer_address(fd));
    ends.is_some_and(|(own, peer)| own.ip() == peer.ip() || own.ip().is_loopback())
}

fn name(call: libc::c_long, fd: c_int) -> Option<Named> {
    let mut bytes = [0u8; LONGEST];
    let mut len = LONGEST as libc::socklen_t;
    let arguments =
        [fd as usize, bytes.as_mut_ptr() as usize, core::ptr::from_mut(&mut len) as usize, 0, 0, 0];
    // SAFETY: both pointers are to locals that outlive the call; the kernel writes at most `len`.
    if unsafe { raw_syscall(call, arguments) } < 0 {
        return None;
    }
    Named::read(bytes.get(..len as usize)?)
}

/// How a socket names IPv4 addresses.
pub fn family(fd: c_int) -> Family {
    let domain = int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    domain.and_then(Family::of_domain).unwrap_or_default()
}

/// Binds a socket of either family to an IPv4 address; any address is that of both. The errno if that fails.
pub fn bind(fd: c_int, address: SocketAddrV4) -> Result<(), c_int> {
    call_with_name(libc::SYS_bind, fd, address)
}

/// Binds a socket to the address of this name. The errno if that fails.
pub fn bind_as(fd: c_int, name: &SocketName) -> Result<(), c_int> {
    call_as(libc::SYS_bind, fd, name)
}

/// Connects a socket of either family to an IPv4 address. The errno if that fails.
pub fn connect(fd: c_int, address: SocketAddrV4) -> Result<(), c_int> {
    call_with_name(libc::SYS_connect, fd, address)
}

fn call_with_name(call: libc::c_long, fd: c_int, address: SocketAddrV4) -> Result<(), c_int> {
    call_as(call, fd, &SocketName::new(address, family(fd)))
}

/// Connects a socket to the address of this name. The errno if that fails.
pub fn connect_as(fd: c_int, name: &SocketName) -> Result<(), c_int> {
    call_as(libc::SYS_connect, fd, name)
}

fn call_as(call: libc::c_long, fd: c_int, name: &SocketName) -> Result<(), c_int> {
    let bytes = name.bytes();
    let arguments = [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: `call` is bind or connect, which read the name; it outlives the call, with its size.
    let result = unsafe { raw_syscall(call, arguments) };
    if result < 0 { Err(-result as c_int) } else { Ok(()) }
}

/// The address in a `sockaddr_in`, if it is one.
pub fn from_sockaddr(address: &libc::sockaddr_in) -> Option<SocketAddrV4> {
    (address.sin_family == libc::AF_INET as libc::sa_family_t).then(|| {
        let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
        SocketAddrV4::new(ip, u16::from_be(address.sin_port))
    })
}

pub fn to_sockaddr(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

/// An integer option as the kernel has it now.
pub fn int_option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value = [0u8; 4];
    match option(fd, level, name, &mut value)? {
        4 => Some(c_int::from_ne_bytes(value)),
        1 => Some(c_int::from(value[0])),
        _ => None,
    }
}

/// An option's bytes; returns how many there are.
pub fn option(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Option<usize> {
    let mut len = value.len() as libc::socklen_t;
    let arguments = [
        fd as usize,
        level as usize,
        name as usize,
        value.as_mut_ptr() as usize,
        core::ptr::from_mut(&mut len) as usize,
        0,
    ];
    // SAFETY: `value` and `len` outlive the call, and `len` is the size of `value`.
    let result = unsafe { raw_syscall(libc::SYS_getsockopt, arguments) };
    (result >= 0).then_some((len as usize).min(value.len()))
}

/// Throws away so many bytes of a connection; returns how many were there.
pub fn discard(fd: c_int, len: usize) -> usize {
    // tcp(7): bytes that are taken with MSG_TRUNC need no buffer.
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: nothing is written to the buffer, nor an address.
    let taken =
        unsafe { raw_syscall(libc::SYS_recvfrom, [fd as usize, 0, len, flags as usize, 0, 0]) };
    usize::try_from(taken).unwrap_or(0)
}

/// Is a socket filter attached (socket(7), SO_ATTACH_FILTER, SO_ATTACH_BPF)? True if that is unknown.
pub fn has_filter(fd: c_int) -> bool {
    // Without room the kernel tells the number of instructions. It counts the room in those, too.
    let mut len: libc::socklen_t = 0;
    let at = core::ptr::from_mut(&mut len) as usize;
    let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_GET_FILTER as usize);
    // SAFETY: `len` outlives the call; with a length of 0 nothing else is written.
    let result = unsafe { raw_syscall(libc::SYS_getsockopt, [fd as usize, level, name, 0, at, 0]) };
    result < 0 || len > 0
}

/// Sets an integer option.
pub fn set_int_option(fd: c_int, level: c_int, name: c_int, value: c_int) {
    set_option(fd, level, name, &value);
}

/// Sets an option to a value without pointers. False: the kernel has refused it.
pub fn set_option<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &T) -> bool {
    let at = core::ptr::from_ref(value) as usize;
    let arguments = [fd as usize, level as usize, name as usize, at, size_of::<T>(), 0];
    // SAFETY: `value` outlives the call, with its size.
    unsafe { raw_syscall(libc::SYS_setsockopt, arguments) == 0 }
}

/// Binds a socket to a free port of any address, as its first send would.
pub fn bind_any(fd: c_int) -> Result<(), c_int> {
    bind(fd, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))
}

/// Sends a datagram from a socket, from an address of this host of the same family, unless that would wait; or datagrams of
/// `segment` bytes, if that is not 0. False if it failed.
pub fn send_to(fd: c_int, payload: &[u8], segment: u16, from: Ipv4Addr, to: SocketAddrV4) -> bool {
    match ipv6_loopback::real(to) {
        None => {
            let source = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from(from).to_be() },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            let kind = (libc::IPPROTO_IP, libc::IP_PKTINFO);
            let control = SourceAndSegment::new(kind, source, segment);
            send_with(fd, payload, &control, &SocketName::new(to, Family::Ipv4))
        }
        Some(to) => {
            let from = ipv6_loopback::real(SocketAddrV4::new(from, 0)).unwrap_or(to);
            let ipi6_addr = libc::in6_addr { s6_addr: from.ip().octets() };
            let source = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 };
            let kind = (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO);
            let control = SourceAndSegment::new(kind, source, segment);
            send_with(fd, payload, &control, &SocketName::of_ipv6(to))
        }
    }
}

fn send_with<T>(fd: c_int, payload: &[u8], control: &SourceAndSegment<T>, to: &SocketName) -> bool {
    let mut piece =
        libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_name = to.bytes().as_ptr().cast_mut().cast();
    message.msg_namelen = to.bytes().len() as libc::socklen_t;
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = core::ptr::from_ref(control).cast_mut().cast();
    message.msg_controllen = size_of::<SourceAndSegment<T>>();
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    let arguments = [fd as usize, (&raw const message).expose_provenance(), flags, 0, 0, 0];
    // SAFETY: the message, and what it points to, outlives the call, which reads it only.
    unsafe { raw_syscall(libc::SYS_sendmsg, arguments) >= 0 }
}

/// Control messages that say from where the payload is to come, and into how large datagrams it is to be cut: of
/// this one payload, whatever the socket's address and option say. The alignment of a header is what CMSG_ALIGN
/// puts between the two.
#[repr(C)]
struct SourceAndSegment<T> {
    source_header: libc::cmsghdr,
    source: T,
    segment_header: libc::cmsghdr,
    segment: u16,
}

impl<T> SourceAndSegment<T> {
    fn new((level, kind): (c_int, c_int), source: T, segment: u16) -> SourceAndSegment<T> {
        let header = |len, level, kind| libc::cmsghdr {
            cmsg_len: size_of::<libc::cmsghdr>() + len,
            cmsg_level: level,
            cmsg_type: kind,
        };
        SourceAndSegment {
            source_header: header(size_of::<T>(), level, kind),
            source,
            segment_header: header(size_of::<u16>(), libc::IPPROTO_UDP, libc::UDP_SEGMENT),
            segment,
        }
    }
}

/// A TCP socket, to be closed soon, that can have this end: of AF_INET6 if the address is a stand-in.
pub fn stream_for(local: SocketAddrV4) -> rustix::io::Result<Fd> {
    let is_ipv6 = ipv6_loopback::named(local).is_ipv6();
    let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let (flags, tcp) = (SocketFlags::CLOEXEC, Some(net::ipproto::TCP));
    Fd::adopt_briefly(net::socket_with(family, SocketType::STREAM, flags, tcp)?)
}

/// Sends a datagram from an address of this host that nobody has at the moment. False if somebody has.
pub fn send_as(from: SocketAddrV4, payload: &[u8], segment: u16, to: SocketAddrV4) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, name) = match ipv6_loopback::real(from) {
        Some(from) => (AddressFamily::INET6, SocketAddr::from(from)),
        None => (AddressFamily::INET, SocketAddr::from(from)),
    };
    let socket = net::socket_with(family, SocketType::DGRAM, flags, None);
    socket.and_then(Fd::adopt_briefly).is_ok_and(|socket| {
        net::bind(&socket, &name).is_ok() && send_to(socket.raw(), payload, segment, *from.ip(), to)
    })
}

/// The status flags of a descriptor (O_NONBLOCK ...).
pub fn status_flags(fd: c_int) -> c_int {
    let arguments = [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0];
    // SAFETY: F_GETFL takes no pointer.
    let result = unsafe { raw_syscall(libc::SYS_fcntl, arguments) };
    result.max(0) as c_int
}

#[cfg(test)]
mod tests;
