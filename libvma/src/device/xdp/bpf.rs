//! bpf(2): the three commands used after the program is loaded. (Loading is `program.rs`.)

use core::mem::size_of;

use rustix::io::Errno;

use crate::sys::Fd;
use crate::sys::fd::own;
use crate::sys::wait::raw_syscall;

const MAP_UPDATE_ELEM: usize = 2;
const MAP_DELETE_ELEM: usize = 3;
const LINK_CREATE: usize = 28;
const ATTACH_TYPE_XDP: u32 = 37;

/// A key or value of a map: plain bytes without padding.
///
/// # Safety
/// The type has no padding and no pointers.
pub unsafe trait Plain: Copy {}

// SAFETY: integers have no padding.
unsafe impl Plain for u32 {}

#[repr(C)]
struct MapElement {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    _rest: [u64; 6],
}

/// BPF_MAP_UPDATE_ELEM: inserts or replaces.
pub fn map_update<K: Plain, V: Plain>(map: &Fd, key: &K, value: &V) -> Result<(), Errno> {
    element(MAP_UPDATE_ELEM, map, key, core::ptr::from_ref(value).expose_provenance())
}

/// BPF_MAP_DELETE_ELEM.
pub fn map_delete<K: Plain>(map: &Fd, key: &K) -> Result<(), Errno> {
    element(MAP_DELETE_ELEM, map, key, 0)
}

fn element<K: Plain>(command: usize, map: &Fd, key: &K, value: usize) -> Result<(), Errno> {
    let attributes = MapElement {
        map: map.raw() as u32,
        _pad: 0,
        key: core::ptr::from_ref(key).expose_provenance() as u64,
        value: value as u64,
        flags: 0,
    };
    bpf(command, &attributes).map(|_| ())
}

/// BPF_LINK_CREATE for XDP: the attachment lives as long as the descriptor.
pub fn link_create(program: &Fd, interface: u32, flags: u32) -> Result<Fd, Errno> {
    let attributes = LinkCreate {
        program: program.raw() as u32,
        target: interface,
        attach_type: ATTACH_TYPE_XDP,
        flags,
        _rest: [0; 6],
    };
    let raw = bpf(LINK_CREATE, &attributes)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Fd::adopt(unsafe { own(raw as i32) })
}

fn bpf<A>(command: usize, attributes: &A) -> Result<isize, Errno> {
    let address = core::ptr::from_ref(attributes).expose_provenance();
    // SAFETY: `attributes` is one of the structures above, of the size told, and outlives the
    // call; the pointers in it are to values that their callers keep alive.
    let result = unsafe { raw_syscall(libc::SYS_bpf, [command, address, size_of::<A>(), 0, 0, 0]) };
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result) }
}
