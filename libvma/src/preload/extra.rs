//! The Extra API's C face: the table that getsockopt() on descriptor -1 gives, and its functions.
//!
//! Every slot holds a function; one that is not offered says EOPNOTSUPP, after the errors that its arguments have.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libvma_dev::extra::{
    Api, Buffer, Completion, DeviceData, ModifyRing, Packet, PacketDescriptor, ReceiveCallback,
    RingType, SO_GET_API,
};

use super::{convert, errno, init};
use crate::extra;
use crate::log::Level;
use crate::process;

/// The program may write to it, as to the original's.
#[repr(transparent)]
struct Table(UnsafeCell<Api>);

// SAFETY: this library reads and writes nothing of it after its initialization; it only tells the address.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new(Api {
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
    supported: extra::SUPPORTED,
    ioctl,
}));

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
    if (level, name) != (libc::SOL_SOCKET, SO_GET_API) || !convert::is_plausible(len, 4) {
        return None;
    }
    // SAFETY: the length of the call, by its contract.
    let room = unsafe { &mut *len };
    if (*room as usize) < size_of::<*const Api>() {
        return None;
    }
    if !convert::is_plausible(value, size_of::<*const Api>()) {
        errno::set(libc::EFAULT);
        return Some(-1);
    }
    // SAFETY: the room of the call, which holds a pointer; perhaps not aligned.
    unsafe { value.cast::<*mut Api>().write_unaligned(TABLE.0.get()) };
    *room = size_of::<*const Api>() as libc::socklen_t;
    Some(0)
}

fn fail(errno: c_int) -> c_int {
    errno::set(errno);
    -1
}

unsafe extern "C" fn add_conf_rule(line: *const c_char) -> c_int {
    if !convert::is_plausible(line, 1) {
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
    _socket: c_int,
    _callback: Option<ReceiveCallback>,
    _context: *mut c_void,
) -> c_int {
    fail(libc::EOPNOTSUPP)
}

unsafe extern "C" fn recvfrom_zcopy(
    _socket: c_int,
    _buffer: *mut c_void,
    _len: usize,
    _flags: *mut c_int,
    _from: *mut c_void,
    _from_len: *mut u32,
) -> c_int {
    fail(libc::EOPNOTSUPP)
}

unsafe extern "C" fn free_packets(_socket: c_int, _packets: *mut Packet, _count: usize) -> c_int {
    fail(libc::EOPNOTSUPP)
}

// --- SocketXtreme ----------------------------------------------------------------------------------

fn no_socketxtreme() -> c_int {
    let enabled = std::env::var("VMA_SOCKETXTREME").is_ok_and(|value| value.trim() == "1");
    extra::refuse_socketxtreme(enabled);
    fail(libc::EOPNOTSUPP)
}

unsafe extern "C" fn socketxtreme_poll(
    _ring: c_int,
    _completions: *mut Completion,
    _count: c_uint,
    _flags: c_int,
) -> c_int {
    no_socketxtreme()
}

unsafe extern "C" fn socketxtreme_free_vma_packets(
    _packets: *mut PacketDescriptor,
    _count: c_int,
) -> c_int {
    no_socketxtreme()
}

unsafe extern "C" fn socketxtreme_ref_vma_buff(_buffer: *mut Buffer) -> c_int {
    no_socketxtreme()
}

unsafe extern "C" fn socketxtreme_free_vma_buff(_buffer: *mut Buffer) -> c_int {
    no_socketxtreme()
}

// --- rings -----------------------------------------------------------------------------------------

unsafe extern "C" fn get_socket_rings_num(_fd: c_int) -> c_int {
    fail(libc::EOPNOTSUPP)
}

unsafe extern "C" fn get_socket_rings_fds(_fd: c_int, rings: *mut c_int, room: c_int) -> c_int {
    fail(if rings.is_null() || room <= 0 { libc::EINVAL } else { libc::EOPNOTSUPP })
}

unsafe extern "C" fn get_socket_tx_ring_fd(_fd: c_int, to: *mut c_void, _len: u32) -> c_int {
    fail(if to.is_null() { libc::EINVAL } else { libc::EOPNOTSUPP })
}

unsafe extern "C" fn vma_add_ring_profile(profile: *mut RingType, key: *mut c_int) -> c_int {
    fail(if profile.is_null() || key.is_null() { libc::EINVAL } else { libc::EOPNOTSUPP })
}

unsafe extern "C" fn get_socket_network_header(
    _fd: c_int,
    _header: *mut c_void,
    len: *mut u16,
) -> c_int {
    fail(if len.is_null() { libc::EINVAL } else { libc::EOPNOTSUPP })
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

unsafe extern "C" fn ioctl(_messages: *mut c_void, _len: usize) -> c_int {
    fail(libc::EOPNOTSUPP)
}
