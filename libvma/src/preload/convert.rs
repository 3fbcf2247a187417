//! C arguments to Rust values and back: read once, checked as the manual pages say.

use core::ffi::{c_int, c_uint};
use core::mem::size_of;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::{self, is_stand_in};
use libvma_dev::ipv6_stand_ins;

use super::errno;
use crate::sys::shadow::from_sockaddr;
use crate::sys::sockaddr::{Family, Named, SocketName};
use crate::sys::{loopback_end, user};

/// UIO_MAXIOV.
const MOST_BUFFERS: usize = 1024;
/// Lists up to this long need no allocation.
const INLINE: usize = 16;

/// A destination as a call gives it.
pub enum Destination {
    Absent,
    /// An IPv4 address, and of which family its name is: a mapped one is right for a socket of AF_INET6 only.
    Given(SocketAddrV4, Family),
    /// Another family, or too short: the kernel knows the right answer.
    Foreign,
}

/// Reads a `sockaddr`; of IPv6 the stand-in, which is right for a socket of AF_INET6 only.
///
/// # Safety
/// `address` is null or points to `len` readable bytes.
pub unsafe fn destination(address: *const libc::sockaddr, len: libc::socklen_t) -> Destination {
    if address.is_null() {
        return Destination::Absent;
    }
    // Beyond sockaddr_storage (or negative) the kernel says EINVAL.
    let sane = len as usize <= size_of::<libc::sockaddr_storage>();
    if !sane || !can_read(address, len as usize) || (len as usize) < size_of::<libc::sockaddr_in>()
    {
        return Destination::Foreign;
    }
    // SAFETY: at least that many bytes are readable; the program's pointer may be unaligned.
    let four = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    match from_sockaddr(&four) {
        Some(address) if is_reserved(*address.ip()) => Destination::Foreign,
        Some(address) => Destination::Given(address, Family::Ipv4),
        // SAFETY: as above.
        None => unsafe { ipv6_destination(address, len) },
    }
}

/// # Safety
/// As [`destination`].
#[inline(never)]
unsafe fn ipv6_destination(address: *const libc::sockaddr, len: libc::socklen_t) -> Destination {
    // SAFETY: as promised.
    let to = match unsafe { named_by_ipv6(address, len) } {
        Some(Named::Ipv4(to)) if !is_reserved(*to.ip()) => Some(to),
        // SAFETY: it was just read as a `sockaddr_in6`.
        Some(Named::Ipv6(_)) if unsafe { has_label(address) } => None,
        Some(Named::Ipv6(to)) if to.ip().is_loopback() => Some(ipv6_loopback::end(to.port())),
        Some(Named::Ipv6(to)) => {
            ipv6_stand_ins::of(*to.ip()).map(|ip| SocketAddrV4::new(ip, to.port()))
        }
        _ => None,
    };
    to.map_or(Destination::Foreign, |to| Destination::Given(to, Family::Ipv6))
}

/// Reads the address that a stream of a family is to connect to.
///
/// # Safety
/// As [`destination`].
pub unsafe fn peer(
    family: Family,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Destination {
    match family {
        // SAFETY: as promised.
        Family::Ipv4 => match unsafe { destination(address, len) } {
            Destination::Given(_, Family::Ipv6) => Destination::Foreign,
            peer => peer,
        },
        Family::Ipv6 if address.is_null() => Destination::Absent,
        // SAFETY: as promised.
        Family::Ipv6 => unsafe { ipv6_destination(address, len) },
    }
}

/// Does the address stand for one of IPv6 here? Of itself it is a broadcast address, or no host's: the kernel's to answer for.
#[inline]
fn is_reserved(address: Ipv4Addr) -> bool {
    is_stand_in(address) || ipv6_stand_ins::is_one(address)
}

/// Has the address a flow label, which the connection's packets would have?
///
/// # Safety
/// `address` points to a `sockaddr_in6`, perhaps without the scope.
unsafe fn has_label(address: *const libc::sockaddr) -> bool {
    let label = core::mem::offset_of!(libc::sockaddr_in6, sin6_flowinfo);
    // SAFETY: as promised; the program's pointer may be unaligned.
    unsafe { address.wrapping_byte_add(label).cast::<u32>().read_unaligned() != 0 }
}

/// Is this an address that the IPv6 protocol serves?
///
/// # Safety
/// As [`destination`].
pub unsafe fn is_ipv6(address: *const libc::sockaddr, len: libc::socklen_t) -> bool {
    // SAFETY: as promised.
    matches!(unsafe { named_by_ipv6(address, len) }, Some(Named::Ipv6(_)))
}

/// Does a name for bind() leave the port to the kernel? `::` is no destination, so it is asked here.
///
/// # Safety
/// As [`destination`].
pub unsafe fn is_any_port(address: *const libc::sockaddr, len: libc::socklen_t) -> bool {
    // SAFETY: as promised.
    let port = match unsafe { named_by_ipv6(address, len) } {
        Some(Named::Ipv4(name)) => Some(name.port()),
        Some(Named::Ipv6(name)) => Some(name.port()),
        // SAFETY: as promised.
        None => match unsafe { destination(address, len) } {
            Destination::Given(name, _) => Some(name.port()),
            Destination::Absent | Destination::Foreign => None,
        },
    };
    port == Some(0)
}

/// Reads a `sockaddr_in6`; `None` if the kernel would refuse it.
///
/// # Safety
/// As [`destination`].
unsafe fn named_by_ipv6(address: *const libc::sockaddr, len: libc::socklen_t) -> Option<Named> {
    // SAFETY: as promised.
    if unsafe { self::family(address, len) } != Some(libc::AF_INET6 as libc::sa_family_t) {
        return None;
    }
    // SAFETY: that many bytes are readable, as promised; a `sockaddr` that long is plausible.
    Named::read(unsafe { bytes(address.cast(), len as usize) })
}

/// Does the kernel read an address of this length?
pub fn is_sane(len: libc::socklen_t) -> bool {
    (1..=size_of::<libc::sockaddr_storage>()).contains(&(len as usize))
}

/// The family of a `sockaddr`; None if there is not enough of it, or too much.
///
/// # Safety
/// As [`destination`].
pub unsafe fn family(
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Option<libc::sa_family_t> {
    const FAMILY: usize = size_of::<libc::sa_family_t>();
    let sane = (FAMILY..=size_of::<libc::sockaddr_storage>()).contains(&(len as usize));
    if !sane || !can_read(address, len as usize) {
        return None;
    }
    // SAFETY: that many bytes are readable, as promised; the pointer may be unaligned.
    Some(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() })
}

/// Could this be memory of the program? NULL, small numbers and the kernel's half are not, which
/// catches the bad pointers that programs (and test suites) do pass; the kernel would say EFAULT.
#[inline]
pub fn is_plausible<T>(at: *const T, len: usize) -> bool {
    /// vm.mmap_min_addr, below which nothing is ever mapped.
    const LEAST: usize = 65536;
    at.addr() >= LEAST && is_in_range(at, len)
}

/// Does it lie outside the kernel's half of the addresses?
#[inline]
pub fn is_in_range<T>(at: *const T, len: usize) -> bool {
    const MOST: usize = 1 << 56;
    at.addr().checked_add(len).is_some_and(|end| end <= MOST)
}

/// Is it memory that the program can read? Otherwise the kernel says EFAULT.
#[inline]
pub fn can_read<T>(at: *const T, len: usize) -> bool {
    is_plausible(at, len) && user::is_readable(at, len)
}

/// Is it memory that the program can write? Only for what the call writes in any case, see [`user`].
#[inline]
pub fn can_write<T>(at: *mut T, len: usize) -> bool {
    is_plausible(at, len) && user::is_writable(at, len)
}

/// Tells the program the length of a message of a burst, behind its header. False, with errno, if it cannot be written.
///
/// # Safety
/// An entry of the array of sendmmsg(2) or recvmmsg(2), whose header is there.
pub unsafe fn tell_length(entry: *mut libc::mmsghdr, len: isize) -> bool {
    // SAFETY: nothing is read or written yet.
    let told = unsafe { &raw mut (*entry).msg_len };
    if !can_write(told, size_of::<c_uint>()) {
        errno::set(libc::EFAULT);
        return false;
    }
    // SAFETY: as was asked above.
    unsafe { told.write(len as c_uint) };
    true
}

/// As [`can_read`] at the price of a system call, for the calls that are no send, receive or wait: right also in a thread that
/// blocks SIGSEGV.
pub fn asked_readable<T>(at: *const T, len: usize) -> bool {
    is_plausible(at, len) && user::asked::is_readable(at, len)
}

/// As [`asked_readable`], of memory that the call is about to write.
pub fn asked_writable<T>(at: *mut T, len: usize) -> bool {
    is_plausible(at, len) && user::asked::is_writable(at, len)
}

/// Can lengths and flags be written that recvmsg(2) returns in its header?
#[inline]
pub fn can_answer(header: &mut libc::msghdr) -> bool {
    let named = header.msg_name.is_null() || can_write(&raw mut header.msg_namelen, 4);
    named && can_write(&raw mut header.msg_controllen, 8) && can_write(&raw mut header.msg_flags, 4)
}

/// Writes a source address as recvfrom(2) does: cut to the room, the length always the full one.
/// The errno of a bad length or pointer; the datagram is gone all the same.
///
/// # Safety
/// `out` is null, or `len` points to a length and `out` to that many writable bytes.
pub unsafe fn put_address(
    address: SocketAddrV4,
    family: Family,
    out: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<(), i32> {
    if out.is_null() {
        return Ok(());
    }
    // SAFETY: as promised.
    unsafe { put::<false>(&loopback_end::name(address, family), out, len) }
}

/// Writes the name that a stream has for an address as getsockname(2) does: the length is judged first, and a
/// buffer of no bytes may be anywhere.
///
/// # Safety
/// As [`put_address`].
pub unsafe fn put_name(
    name: &SocketName,
    out: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<(), i32> {
    // SAFETY: as promised.
    unsafe { put::<true>(name, out, len) }
}

/// # Safety
/// As [`put_address`].
#[inline(always)]
unsafe fn put<const ASKS: bool>(
    name: &SocketName,
    out: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<(), i32> {
    let length_is_writable = || if ASKS { asked_writable(len, 4) } else { can_write(len, 4) };
    if !(if ASKS { asked_readable(len, 4) } else { can_read(len, 4) }) {
        return Err(libc::EFAULT);
    }
    let name = name.bytes();
    // SAFETY: not null, as checked; a length by the promise.
    let said = unsafe { len.read() };
    if (said as i32) < 0 {
        return Err(libc::EINVAL);
    }
    let room = (said as usize).min(name.len());
    if room > 0 && !(if ASKS { asked_writable(out, room) } else { can_write(out, room) }) {
        return Err(libc::EFAULT);
    }
    // SAFETY: `room` bytes are readable in `name` and, by the promise, writable at `out`.
    unsafe { core::ptr::copy_nonoverlapping(name.as_ptr(), out.cast::<u8>(), room) };
    if !length_is_writable() {
        return Err(libc::EFAULT);
    }
    // SAFETY: as above.
    unsafe { len.write(name.len() as libc::socklen_t) };
    Ok(())
}

/// The program's buffer as a slice; empty for a null pointer.
///
/// # Safety
/// `base` is null or points to `len` bytes that stay readable for `'a`.
pub unsafe fn bytes<'a>(base: *const u8, len: usize) -> &'a [u8] {
    if base.is_null() || len > isize::MAX as usize {
        return &[];
    }
    // SAFETY: not null, not too long, readable as promised.
    unsafe { core::slice::from_raw_parts(base, len) }
}

/// The program's buffer as a slice to write into; empty for a null pointer.
///
/// # Safety
/// `base` is null or points to `len` bytes that stay writable for `'a` and that nobody else in
/// this call uses.
pub unsafe fn bytes_mut<'a>(base: *mut u8, len: usize) -> &'a mut [u8] {
    if base.is_null() || len > isize::MAX as usize {
        return &mut [];
    }
    // SAFETY: not null, not too long, writable as promised.
    unsafe { core::slice::from_raw_parts_mut(base, len) }
}

/// A list of buffers of the program: to read from (`IoSlice`) or to write into (`IoSliceMut`).
pub struct Buffers<T> {
    inline: [T; INLINE],
    long: Vec<T>,
    count: usize,
}

/// What is wrong with a list of buffers.
pub enum VectorError {
    /// The list itself: the call fails with this errno before it does anything.
    Vector(i32),
    /// A buffer in it: the call fails with EFAULT when it comes to that buffer.
    Buffer,
}

impl<T> Buffers<T> {
    pub fn as_slice(&self) -> &[T] {
        if self.long.is_empty() {
            self.inline.get(..self.count).unwrap_or_default()
        } else {
            &self.long
        }
    }

    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if self.long.is_empty() {
            self.inline.get_mut(..self.count).unwrap_or_default()
        } else {
            &mut self.long
        }
    }

    unsafe fn read(
        vector: *const libc::iovec,
        count: usize,
        make: impl Fn(libc::iovec) -> T,
    ) -> Result<Buffers<T>, VectorError> {
        if count > MOST_BUFFERS {
            return Err(VectorError::Vector(libc::EMSGSIZE));
        }
        if count > 0 && !can_read(vector, count * size_of::<libc::iovec>()) {
            return Err(VectorError::Vector(libc::EFAULT));
        }
        let empty = || make(libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 });
        let mut buffers =
            Buffers { inline: core::array::from_fn(|_| empty()), long: Vec::new(), count };
        let mut total = 0usize;
        for at in 0..count {
            // SAFETY: `vector` points to `count` entries, by the caller's promise.
            let entry = unsafe { vector.add(at) };
            // SAFETY: as above.
            let entry = unsafe { *entry };
            total = total
                .checked_add(entry.iov_len)
                .filter(|sum| *sum <= isize::MAX as usize)
                .ok_or(VectorError::Vector(libc::EINVAL))?;
            if entry.iov_len > 0 && !is_plausible(entry.iov_base, entry.iov_len) {
                return Err(VectorError::Buffer);
            }
            if count > INLINE {
                buffers.long.push(make(entry));
            } else if let Some(slot) = buffers.inline.get_mut(at) {
                *slot = make(entry);
            }
        }
        Ok(buffers)
    }
}

/// Buffers to send from.
///
/// # Safety
/// `vector` points to `count` iovecs, each null or readable for `'a`.
pub unsafe fn sources<'a>(
    vector: *const libc::iovec,
    count: usize,
) -> Result<Buffers<IoSlice<'a>>, VectorError> {
    // SAFETY: as promised.
    let make =
        |entry: libc::iovec| IoSlice::new(unsafe { bytes(entry.iov_base.cast(), entry.iov_len) });
    // SAFETY: as promised.
    unsafe { Buffers::read(vector, count, make) }
}

/// Buffers to receive into. As with those to send from, it is seen when bytes are copied whether the memory is there.
///
/// # Safety
/// `vector` points to `count` iovecs, each null or writable for `'a`. They may overlap only if the
/// program wants garbage there; nothing here reads them.
pub unsafe fn targets<'a>(
    vector: *const libc::iovec,
    count: usize,
) -> Result<Buffers<IoSliceMut<'a>>, VectorError> {
    let make = |entry: libc::iovec| {
        // SAFETY: as promised.
        IoSliceMut::new(unsafe { bytes_mut(entry.iov_base.cast(), entry.iov_len) })
    };
    // SAFETY: as promised.
    unsafe { Buffers::read(vector, count, make) }
}

/// A timeout in milliseconds, negative for ever, as nanoseconds.
pub fn millis(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|millis| millis * 1_000_000)
}

/// A timespec as nanoseconds; null is for ever. EFAULT or EINVAL as the kernel judges it.
///
/// # Safety
/// `timeout` is null or points to a timespec.
pub unsafe fn timespec(timeout: *const libc::timespec) -> Result<Option<u64>, i32> {
    if !timeout.is_null() && !can_read(timeout, size_of::<libc::timespec>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: as promised, and there.
    let Some(timeout) = (unsafe { timeout.as_ref() }) else { return Ok(None) };
    match (u64::try_from(timeout.tv_sec), u64::try_from(timeout.tv_nsec)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => {
            Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanos)))
        }
        _ => Err(libc::EINVAL),
    }
}

/// The signal mask of a call: EFAULT if it cannot be read. The kernel reads a bit for each of its 64 signals.
///
/// # Safety
/// `mask` is null or points to a signal set.
pub unsafe fn signal_set<'a>(
    mask: *const libc::sigset_t,
) -> Result<Option<&'a libc::sigset_t>, i32> {
    if !mask.is_null() && !can_read(mask, size_of::<u64>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: as promised.
    Ok(unsafe { mask.as_ref() })
}
