//! The Extra API's C face: the table that getsockopt() on descriptor -1 gives, and its functions.
//!
//! Every slot holds a function; one that is not offered says EOPNOTSUPP, after the errors that its arguments have.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddrV4;
use std::sync::OnceLock;

use libvma_dev::extra::{
    Api, CMSG_USER_ALLOC, DeviceData, Info, IoVec, ModifyRing, Packet, ReceiveCallback, RingType,
    SO_FLOW_TAG, SO_GET_API, SO_RING_ALLOC_LOGIC, SO_RING_USER_MEMORY, SO_SHUTDOWN_RX,
    SO_USER_DATA, SocketAddress, Timespec, UserAllocator, verdict,
};

use super::lend::recvfrom_zcopy;
use super::xtreme::{
    self, get_socket_rings_fds, get_socket_rings_num, socketxtreme_free_vma_buff,
    socketxtreme_free_vma_packets, socketxtreme_poll, socketxtreme_ref_vma_buff,
};
use super::{Found, convert, errno, find, init};
use crate::extra::{self, Callback, Owner, Verdict};
use crate::log::Level;
use crate::process;
use crate::socket::{WhyOs, attach, filter};
use crate::sys::{self, cancel};

/// The program may write to it, as to the original's.
#[repr(transparent)]
struct Table(UnsafeCell<Api>);

// SAFETY: this library reads and writes nothing of it after its initialization; it only tells the address.
unsafe impl Sync for Table {}

static TABLE: Table = table_of(extra::SUPPORTED);
static TABLE_OF_XTREME: Table = table_of(extra::SUPPORTED | extra::SUPPORTED_BY_XTREME);

const fn table_of(supported: u64) -> Table {
    Table(UnsafeCell::new(Api {
        register_recv_callback,
        recvfrom_zcopy,
        free_packets,
        add_conf_rule,
        thread_offload,
        socketxtreme_poll,
        get_socket_rings_num,
        get_socket_rings_fds,
        get_socket_tx_ring_fd,
        socketxtreme_free_vma_packets,
        socketxtreme_ref_vma_buff,
        socketxtreme_free_vma_buff,
        dump_fd_stats,
        vma_add_ring_profile,
        get_socket_network_header,
        get_ring_direct_descriptors,
        register_memory_on_ring,
        deregister_memory_on_ring,
        vma_modify_ring,
        supported,
        ioctl,
    }))
}

/// getsockopt() that asks for the table; None if it asks for something else.
///
/// # Safety
/// As getsockopt(2).
#[cold]
pub unsafe fn table(
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> Option<c_int> {
    if (level, name) != (libc::SOL_SOCKET, SO_GET_API) || !convert::asked_writable(len, 4) {
        return None;
    }
    // SAFETY: the length of the call, by its contract.
    let room = unsafe { &mut *len };
    if (*room as usize) < size_of::<*const Api>() {
        return None;
    }
    if !convert::asked_writable(value, size_of::<*const Api>()) {
        errno::set(libc::EFAULT);
        return Some(-1);
    }
    /// The same one every time.
    static CHOSEN: OnceLock<bool> = OnceLock::new();
    let chosen = match *CHOSEN.get_or_init(xtreme::is_enabled) {
        true => &TABLE_OF_XTREME,
        false => &TABLE,
    };
    // SAFETY: the room of the call, which holds a pointer; perhaps not aligned.
    unsafe { value.cast::<*mut Api>().write_unaligned(chosen.0.get()) };
    *room = size_of::<*const Api>() as libc::socklen_t;
    Some(0)
}

/// Socket options of the Extra API, level SOL_SOCKET.
pub const OPTIONS: core::ops::RangeInclusive<c_int> = SO_USER_DATA..=SO_SHUTDOWN_RX;

/// setsockopt() of one of them. None: the kernel says that there is none.
///
/// # Safety
/// As setsockopt(2).
#[cold]
pub unsafe fn set_option(
    fd: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> Option<c_int> {
    let found = find(fd);
    let is_there = || convert::asked_readable(value, len as usize);
    let (Found::Datagram(process, id) | Found::Stream(process, id)) = found else {
        if name != SO_USER_DATA || !is_there() {
            return None;
        }
        // SAFETY: memory that was just found to be there.
        let bytes = unsafe { convert::bytes(value.cast(), len as usize) };
        return xtreme::set_user_data(fd, None, bytes).map(|set| set.map_or_else(fail, |()| 0));
    };
    if !is_there() {
        return Some(fail(libc::EFAULT));
    }
    // SAFETY: memory that was just found to be there.
    let bytes = unsafe { convert::bytes(value.cast(), len as usize) };
    match name {
        SO_RING_ALLOC_LOGIC if !extra::is_ring_logic(bytes) => return Some(fail(libc::EINVAL)),
        SO_RING_USER_MEMORY if bytes.len() != size_of::<IoVec>() => {
            return Some(fail(libc::EINVAL));
        }
        SO_USER_DATA | SO_FLOW_TAG | SO_SHUTDOWN_RX => {}
        // The kernel knows no such option: rings are the library's business.
        _ => return None,
    }
    if name == SO_SHUTDOWN_RX {
        match found {
            Found::Datagram(..) => attach::leave_receiving(&process.stack, id),
            // Without what arrives it could not send. It goes on there as it is.
            _ => process.release(id, WhyOs::ShutDown),
        }
        return Some(0);
    }
    let result = process.stack.extra.notes.set(id, name, bytes)?;
    if name == SO_USER_DATA && result.is_ok() {
        xtreme::set_user_data(fd, Some(id), bytes);
    }
    Some(result.map_or_else(fail, |()| 0))
}

/// getsockopt() of one of them. None: the kernel says that there is none.
///
/// # Safety
/// As getsockopt(2).
#[cold]
pub unsafe fn option(
    fd: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> Option<c_int> {
    if !matches!(name, SO_USER_DATA | SO_FLOW_TAG) {
        return None;
    }
    let (process, id) = match find(fd) {
        Found::Datagram(process, id) | Found::Stream(process, id) => (process, Some(id)),
        _ => (process::current()?, None),
    };
    let of_member = xtreme::user_data(fd).filter(|_| name == SO_USER_DATA);
    if id.is_none() && of_member.is_none() {
        return None;
    }
    if !convert::asked_writable(len, size_of::<libc::socklen_t>()) {
        return Some(fail(libc::EFAULT));
    }
    // SAFETY: the length of the call, by its contract.
    let room = unsafe { &mut *len };
    if !convert::is_plausible(value, *room as usize) {
        return Some(fail(libc::EFAULT));
    }
    let found = match (of_member, id) {
        (Some(value), _) if *room == 8 => Ok((value.to_ne_bytes(), 8)),
        (_, Some(id)) => process.stack.extra.notes.get(id, name, fd, *room as usize)?,
        _ => Err(libc::EINVAL),
    };
    let (bytes, count) = match found {
        Ok(found) => found,
        Err(error) => return Some(fail(error)),
    };
    if !convert::asked_writable(value.cast::<u8>(), count) {
        return Some(fail(libc::EFAULT));
    }
    // SAFETY: the program's room, which is at least so many bytes.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), count) };
    *room = count as libc::socklen_t;
    Some(0)
}

fn fail(errno: c_int) -> c_int {
    errno::set(errno);
    -1
}

unsafe extern "C" fn add_conf_rule(line: *const c_char) -> c_int {
    if !convert::asked_readable(line, 1) {
        return 1;
    }
    let before = errno::get();
    // SAFETY: a text that ends with NUL, by the contract of the function.
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy();
    let added =
        init::at_internet_socket().is_some_and(|process| process.stack.config.rules.add(&line));
    errno::set(before);
    c_int::from(!added)
}

unsafe extern "C" fn thread_offload(offload: c_int, thread: usize) -> c_int {
    let before = errno::get();
    let Some(process) = init::at_internet_socket() else { return fail(libc::EAGAIN) };
    process.stack.extra.threads.set(thread, offload != 0);
    errno::set(before);
    0
}

unsafe extern "C" fn dump_fd_stats(fd: c_int, level: c_int) -> c_int {
    let Some(process) = process::current() else { return fail(libc::EINVAL) };
    let before = errno::get();
    process::dump::dump(process, fd, Level::from_number(level).unwrap_or(Level::Info));
    errno::set(before);
    0
}

unsafe extern "C" fn register_recv_callback(
    socket: c_int,
    callback: Option<ReceiveCallback>,
    context: *mut c_void,
) -> c_int {
    let (Found::Datagram(process, id) | Found::Stream(process, id)) = find(socket) else {
        return fail(libc::EINVAL);
    };
    let callback = callback.map(|function| Callback {
        function,
        context: context.expose_provenance(),
        descriptor: socket,
        call: ask,
    });
    match filter::register(&process.stack, id, callback) {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

fn address(of: SocketAddrV4) -> SocketAddress {
    SocketAddress {
        family: libc::AF_INET as u16,
        port: of.port().to_be(),
        address: u32::from_ne_bytes(of.ip().octets()),
        zero: [0; 8],
    }
}

/// Calls a callback of the program. The thread's errno stays what it was.
fn ask(callback: &Callback, packet: &mut extra::Packet<'_>) -> Verdict {
    let before = errno::get();
    let (mut source, mut destination) = (address(packet.source), address(packet.destination));
    let mut fragment =
        IoVec { base: packet.payload.as_mut_ptr().cast(), len: packet.payload.len() };
    let stamp = |nanos: u64| Timespec {
        seconds: (nanos / 1_000_000_000) as i64,
        nanoseconds: (nanos % 1_000_000_000) as i64,
    };
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let mut info = Info {
        size: size_of::<Info>(),
        packet: pointer(packet.number),
        source: &mut source,
        destination: &mut destination,
        payload_len: packet.payload.len(),
        ready_packets: small(packet.waiting.0),
        ready_bytes: small(packet.waiting.1),
        hardware_stamp: Timespec::default(),
        software_stamp: stamp(packet.stamp),
    };
    let context = core::ptr::with_exposed_provenance_mut(callback.context);
    // SAFETY: the program's function, registered with this context; what it gets lives until it returns.
    let verdict = cancel::disabled(|_| unsafe {
        (callback.function)(callback.descriptor, 1, &mut fragment, &mut info, context)
    });
    errno::set(before);
    match verdict {
        verdict::DROP => Verdict::Drop,
        verdict::HOLD => Verdict::Hold,
        // Nothing is lost by a value that means nothing.
        _ => Verdict::Receive,
    }
}

/// The number of a packet, as the program sees it.
pub fn pointer(number: u64) -> *mut c_void {
    core::ptr::without_provenance_mut(number as usize)
}

unsafe extern "C" fn free_packets(socket: c_int, packets: *mut Packet, count: usize) -> c_int {
    let (process, id) = match find(socket) {
        Found::Datagram(process, id) | Found::Stream(process, id) => (process, Some(id)),
        Found::Kernel | Found::Counted => {
            let Some(process) = process::current() else { return fail(libc::EINVAL) };
            (process, None)
        }
    };
    let held = &process.stack.extra.held;
    let owner = Owner { descriptor: socket, socket: id };
    // A descriptor of the kernel's may have packets of the socket that had its number.
    let stranger = if id.is_some() { libc::ENOENT } else { libc::EINVAL };
    if count > held.count() || count == 0 && id.is_none() {
        return fail(stranger);
    }
    let mut at: *const Packet = packets;
    for number in 0..count {
        if !convert::can_read(at, size_of::<Packet>()) {
            return fail(libc::EFAULT);
        }
        // SAFETY: memory that was just read; perhaps not aligned.
        let packet = unsafe { at.read_unaligned() };
        let Some(origin) = held.free(packet.id.addr() as u64, owner) else {
            return fail(if number == 0 { stranger } else { libc::ENOENT });
        };
        let fragments = if origin.is_stream { packet.fragments } else { 0 };
        // Only computed: what is there is read if the program says that there is a packet.
        at = at.wrapping_add(1).cast::<IoVec>().wrapping_add(fragments).cast();
    }
    0
}

// --- rings -----------------------------------------------------------------------------------------

unsafe extern "C" fn get_socket_tx_ring_fd(fd: c_int, to: *mut c_void, _len: u32) -> c_int {
    fail(match find(fd) {
        _ if to.is_null() => libc::EINVAL,
        Found::Kernel | Found::Counted => libc::EINVAL,
        Found::Stream(..) => libc::ENOSYS,
        Found::Datagram(..) => libc::ENODATA,
    })
}

unsafe extern "C" fn vma_add_ring_profile(profile: *mut RingType, key: *mut c_int) -> c_int {
    fail(if profile.is_null() || key.is_null() { libc::EINVAL } else { libc::EOPNOTSUPP })
}

unsafe extern "C" fn get_socket_network_header(
    fd: c_int,
    _header: *mut c_void,
    len: *mut u16,
) -> c_int {
    let is_served = matches!(find(fd), Found::Datagram(..) | Found::Stream(..));
    fail(match () {
        () if len.is_null() || !is_served => libc::EINVAL,
        () if sys::shadow::peer_name(fd).is_none() => libc::ENOTCONN,
        () => libc::EOPNOTSUPP,
    })
}

unsafe extern "C" fn get_ring_direct_descriptors(_ring: c_int, data: *mut DeviceData) -> c_int {
    fail(if data.is_null() { libc::EINVAL } else { libc::EOPNOTSUPP })
}

unsafe extern "C" fn register_memory_on_ring(
    _ring: c_int,
    address: *mut c_void,
    len: usize,
    key: *mut u32,
) -> c_int {
    let good = !address.is_null() && len > 0 && !key.is_null();
    fail(if good { libc::EOPNOTSUPP } else { libc::EINVAL })
}

unsafe extern "C" fn deregister_memory_on_ring(
    _ring: c_int,
    _address: *mut c_void,
    _len: usize,
) -> c_int {
    fail(libc::EOPNOTSUPP)
}

unsafe extern "C" fn vma_modify_ring(change: *mut ModifyRing) -> c_int {
    fail(if change.is_null() { libc::EINVAL } else { libc::EOPNOTSUPP })
}

/// Control messages one after another. There is none that this library acts upon.
unsafe extern "C" fn ioctl(messages: *mut c_void, len: usize) -> c_int {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let mut at = messages.cast::<u8>();
    let mut left = if messages.is_null() { 0 } else { len };
    while left >= HEADER {
        if !convert::asked_readable(at, HEADER) {
            return fail(libc::EFAULT);
        }
        // SAFETY: memory that was just found to be there; perhaps not aligned.
        let header = unsafe { at.cast::<libc::cmsghdr>().read_unaligned() };
        // A length of 0 would never come to an end.
        if header.cmsg_len < HEADER || header.cmsg_len > left {
            return fail(libc::EINVAL);
        }
        if header.cmsg_type == CMSG_USER_ALLOC {
            let is_whole = header.cmsg_len == HEADER + size_of::<UserAllocator>();
            return fail(if is_whole { libc::EOPNOTSUPP } else { libc::EINVAL });
        }
        let step = header.cmsg_len.next_multiple_of(size_of::<usize>());
        at = at.wrapping_add(step);
        left = left.saturating_sub(step);
    }
    0
}
