//! Questions to the kernel about a descriptor of the program: the shadow of an offloaded socket.
//!
//! Raw system calls on a number that the program may close at any moment; the kernel then answers
//! EBADF, and the caller treats it as "no answer".

use core::ffi::c_int;
use core::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, SocketAddrV4};

use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};

use super::Fd;
use super::wait::raw_syscall;

/// The address a socket is bound to; None if it is not an IPv4 socket.
pub fn local_address(fd: c_int) -> Option<SocketAddrV4> {
    address(libc::SYS_getsockname, fd)
}

/// The address a socket is connected to, if it is.
pub fn peer_address(fd: c_int) -> Option<SocketAddrV4> {
    address(libc::SYS_getpeername, fd)
}

fn address(call: libc::c_long, fd: c_int) -> Option<SocketAddrV4> {
    let mut address = MaybeUninit::<libc::sockaddr_in>::zeroed();
    let mut len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let arguments = [
        fd as usize,
        address.as_mut_ptr() as usize,
        core::ptr::from_mut(&mut len) as usize,
        0,
        0,
        0,
    ];
    // SAFETY: both pointers are to locals that outlive the call; the kernel writes at most `len`.
    if unsafe { raw_syscall(call, arguments) } < 0 {
        return None;
    }
    // SAFETY: zeroed, and whatever the kernel wrote over it is a valid sockaddr_in (integers).
    let address = unsafe { address.assume_init() };
    from_sockaddr(&address)
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

/// The bytes of a `sockaddr_in`.
pub fn to_bytes(address: SocketAddrV4) -> [u8; size_of::<libc::sockaddr_in>()] {
    let [f, g] = (libc::AF_INET as libc::sa_family_t).to_ne_bytes();
    let [p, q] = address.port().to_be_bytes();
    let [a, b, c, d] = address.ip().octets();
    [f, g, p, q, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0]
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
    let at = core::ptr::from_ref(&value) as usize;
    let arguments = [fd as usize, level as usize, name as usize, at, size_of::<c_int>(), 0];
    // SAFETY: `value` outlives the call, with its size.
    unsafe { raw_syscall(libc::SYS_setsockopt, arguments) };
}

/// Binds a socket to a free port of any address, as its first send would.
pub fn bind_any(fd: c_int) -> Result<(), c_int> {
    let any = to_sockaddr(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
    let arguments =
        [fd as usize, core::ptr::from_ref(&any) as usize, size_of::<libc::sockaddr_in>(), 0, 0, 0];
    // SAFETY: `any` is a sockaddr_in that outlives the call, with its size.
    let result = unsafe { raw_syscall(libc::SYS_bind, arguments) };
    if result < 0 { Err(-result as c_int) } else { Ok(()) }
}

/// Sends a datagram from a socket, unless that would wait.
pub fn send_to(fd: c_int, payload: &[u8], to: SocketAddrV4) {
    let to = to_sockaddr(to);
    let arguments = [
        fd as usize,
        payload.as_ptr() as usize,
        payload.len(),
        (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize,
        core::ptr::from_ref(&to) as usize,
        size_of::<libc::sockaddr_in>(),
    ];
    // SAFETY: `payload` and `to` outlive the call, with their sizes.
    unsafe { raw_syscall(libc::SYS_sendto, arguments) };
}

/// Sends a datagram from an address of this host that nobody has at the moment. False if somebody has.
pub fn send_as(from: SocketAddrV4, payload: &[u8], to: SocketAddrV4) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
    socket.and_then(Fd::adopt).is_ok_and(|socket| {
        net::bind(&socket, &from).is_ok()
            && net::sendto(&socket, payload, SendFlags::empty(), &to).is_ok()
    })
}

/// The status flags of a descriptor (O_NONBLOCK ...).
pub fn status_flags(fd: c_int) -> c_int {
    let arguments = [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0];
    // SAFETY: F_GETFL takes no pointer.
    let result = unsafe { raw_syscall(libc::SYS_fcntl, arguments) };
    result.max(0) as c_int
}
