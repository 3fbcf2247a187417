//! bpf(2): the commands that steering programs and their maps need.

use core::ffi::CStr;
use core::mem::size_of;

use rustix::io::Errno;

use crate::sys::Fd;
use crate::sys::fd::own;
use crate::sys::locked_memory::Raised;
use crate::sys::wait::raw_syscall;

const MAP_CREATE: usize = 0;
const MAP_UPDATE_ELEM: usize = 2;
const MAP_DELETE_ELEM: usize = 3;
const PROG_LOAD: usize = 5;
const PROG_TEST_RUN: usize = 10;
const PROG_GET_FD_BY_ID: usize = 13;
const OBJ_GET_INFO_BY_FD: usize = 15;
const PROG_QUERY: usize = 16;
const MAP_DELETE_BATCH: usize = 27;
const LINK_CREATE: usize = 28;
const LINK_UPDATE: usize = 29;
const PROGRAM_TYPE_SCHED_CLS: u32 = 3;
const PROGRAM_TYPE_XDP: u32 = 6;
/// BPF_F_XDP_HAS_FRAGS: the program copes with packets in several buffers.
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// BPF_F_TEST_XDP_LIVE_FRAMES: what the program passes goes on to the network stack (Linux 5.18).
const LIVE_FRAMES: u32 = 1 << 1;
const ATTACH_TYPE_XDP: u32 = 37;
const ATTACH_TYPE_TCX_INGRESS: u32 = 46;
/// BPF_F_BEFORE: in front of what is attached already.
const BEFORE: u32 = 1 << 3;

/// The names of our programs at the tc ingress hook, as bpftool(8) shows them: the one that steers, and the one that takes
/// its place when its process ends.
const INGRESS_NAME: [u8; 16] = *b"vma_ingress\0\0\0\0\0";
const LEFT_NAME: [u8; 16] = *b"vma_left\0\0\0\0\0\0\0\0";

/// Where a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// With XDP_FLAGS_* of <linux/if_link.h>.
    Xdp(u32),
    /// The tc ingress hook, as the first program there (tcx, Linux 6.6).
    Ingress,
    /// The same hook, for the program that answers for connections which the kernel's listener is to take.
    Establish,
    /// The same hook, for the program that takes the place of a steering program whose process ends.
    Left,
}

/// A key or value of a map: plain bytes without padding.
///
/// # Safety
/// The type has no padding and no pointers.
pub unsafe trait Plain: Copy {}

// SAFETY: integers have no padding.
unsafe impl Plain for u32 {}
// SAFETY: no padding.
unsafe impl Plain for u64 {}

#[repr(C)]
struct MapElement {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct MapBatch {
    _before: [u64; 2],
    keys: u64,
    _values: u64,
    count: u32,
    map: u32,
    _flags: [u64; 2],
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    _rest: [u32; 11],
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
    _rest: [u64; 8],
}

#[repr(C)]
struct ProgramQuery {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    _rest: [u32; 9],
}

/// So many programs at one hook are looked at; the kernel allows 64 (BPF_MPROG_MAX).
const MOST_PROGRAMS: usize = 64;

#[repr(C)]
struct ProgramById {
    id: u32,
    _rest: [u32; 3],
}

#[repr(C)]
struct InfoByFd {
    descriptor: u32,
    len: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
struct ProgramInfo {
    _before: [u64; 8],
    name: [u8; 16],
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    _rest: [u64; 6],
}

#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    _rest: [u64; 7],
}

#[repr(C)]
struct ProgramRun {
    program: u32,
    _result: u32,
    data_size: u32,
    _data_size_out: u32,
    data: u64,
    _data_out: u64,
    repeat: u32,
    _duration: u32,
    context_size: u32,
    _context_size_out: u32,
    context: u64,
    _context_out: u64,
    flags: u32,
    _cpu: u32,
    batch_size: u32,
    _rest: u32,
}

/// struct xdp_md of <linux/bpf.h>.
#[repr(C)]
struct XdpContext {
    data: u32,
    data_end: u32,
    data_meta: u32,
    interface: u32,
    queue: u32,
    egress_interface: u32,
}

/// BPF_MAP_CREATE.
pub fn map_create(kind: u32, sizes: (u32, u32), max_entries: u32, flags: u32) -> Result<Fd, Errno> {
    let mut attributes = MapCreate {
        kind,
        key_size: sizes.0,
        value_size: sizes.1,
        max_entries,
        flags,
        _rest: [0; 11],
    };
    let raw = bpf(MAP_CREATE, &mut attributes)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Fd::adopt(unsafe { own(raw as i32) })
}

/// BPF_PROG_LOAD of a program for a hook, given as instructions of 8 bytes. The verifier's words go to
/// `log` if it refuses.
pub fn program_load<I>(
    hook: Hook,
    instructions: &[I],
    license: &CStr,
    log: &mut [u8],
) -> Result<Fd, Errno> {
    const { assert!(size_of::<I>() == 8) };
    let (name, kind, flags, attach_type) = match hook {
        Hook::Xdp(_) => {
            (*b"vma_steer\0\0\0\0\0\0\0", PROGRAM_TYPE_XDP, XDP_HAS_FRAGS, ATTACH_TYPE_XDP)
        }
        Hook::Ingress => (INGRESS_NAME, PROGRAM_TYPE_SCHED_CLS, 0, ATTACH_TYPE_TCX_INGRESS),
        Hook::Establish => {
            (*b"vma_establish\0\0\0", PROGRAM_TYPE_SCHED_CLS, 0, ATTACH_TYPE_TCX_INGRESS)
        }
        Hook::Left => (LEFT_NAME, PROGRAM_TYPE_SCHED_CLS, 0, ATTACH_TYPE_TCX_INGRESS),
    };
    let address = |pointer: *const u8| pointer.expose_provenance() as u64;
    let mut attributes = ProgramLoad {
        kind,
        instruction_count: instructions.len() as u32,
        instructions: address(instructions.as_ptr().cast()),
        license: address(license.as_ptr().cast()),
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags,
        name,
        interface: 0,
        expected_attach_type: attach_type,
        _rest: [0; 8],
    };
    let mut result = bpf(PROG_LOAD, &mut attributes);
    if result == Err(Errno::INVAL) && flags != 0 {
        // Linux before 5.18 does not know the flag; its packets have one buffer.
        attributes.flags = 0;
        result = bpf(PROG_LOAD, &mut attributes);
    }
    // Where programs count as locked memory the maps may have left no room for this one.
    let raised = if result == Err(Errno::PERM) { Raised::new() } else { None };
    if raised.is_some() {
        result = bpf(PROG_LOAD, &mut attributes);
    }
    if result.is_err() && !log.is_empty() {
        attributes.log_level = 1;
        attributes.log_size = log.len() as u32;
        attributes.log = address(log.as_mut_ptr().cast_const());
        result = bpf(PROG_LOAD, &mut attributes);
    }
    // SAFETY: the kernel has just made this descriptor for us.
    result.and_then(|raw| Fd::adopt(unsafe { own(raw as i32) }))
}

/// BPF_MAP_UPDATE_ELEM: inserts or replaces.
pub fn map_update<K: Plain, V: Plain>(map: &Fd, key: &K, value: &V) -> Result<(), Errno> {
    element(MAP_UPDATE_ELEM, map, key, core::ptr::from_ref(value).expose_provenance(), 0)
}

/// The same if the key is not there. EEXIST: it is.
pub fn map_insert<K: Plain, V: Plain>(map: &Fd, key: &K, value: &V) -> Result<(), Errno> {
    const BPF_NOEXIST: u64 = 1;
    element(MAP_UPDATE_ELEM, map, key, core::ptr::from_ref(value).expose_provenance(), BPF_NOEXIST)
}

/// BPF_MAP_DELETE_ELEM.
pub fn map_delete<K: Plain>(map: &Fd, key: &K) -> Result<(), Errno> {
    element(MAP_DELETE_ELEM, map, key, 0, 0)
}

/// Deletes the elements of these keys, as far as they are there.
pub fn map_delete_all<K: Plain>(map: &Fd, mut keys: &[K]) {
    // BPF_MAP_DELETE_BATCH, Linux 5.6, ends at a key that is not there, and says how many were.
    while keys.len() > 1 {
        let mut attributes = MapBatch {
            _before: [0; 2],
            keys: keys.as_ptr().expose_provenance() as u64,
            _values: 0,
            count: keys.len() as u32,
            map: map.raw() as u32,
            _flags: [0; 2],
        };
        match bpf(MAP_DELETE_BATCH, &mut attributes) {
            Ok(_) => return,
            Err(Errno::NOENT) => {
                keys = keys.get(attributes.count as usize + 1..).unwrap_or_default();
            }
            Err(_) => break,
        }
    }
    for key in keys {
        let _ = map_delete(map, key);
    }
}

fn element<K: Plain>(
    command: usize,
    map: &Fd,
    key: &K,
    value: usize,
    flags: u64,
) -> Result<(), Errno> {
    let mut attributes = MapElement {
        map: map.raw() as u32,
        _pad: 0,
        key: core::ptr::from_ref(key).expose_provenance() as u64,
        value: value as u64,
        flags,
    };
    bpf(command, &mut attributes).map(|_| ())
}

/// BPF_LINK_CREATE: the attachment lives as long as the descriptor.
pub fn link_create(program: &Fd, interface: u32, hook: Hook) -> Result<Fd, Errno> {
    let (attach_type, flags) = match hook {
        Hook::Xdp(flags) => (ATTACH_TYPE_XDP, flags),
        Hook::Ingress | Hook::Establish | Hook::Left => (ATTACH_TYPE_TCX_INGRESS, BEFORE),
    };
    let mut attributes = LinkCreate {
        program: program.raw() as u32,
        target: interface,
        attach_type,
        flags,
        _rest: [0; 6],
    };
    let raw = bpf(LINK_CREATE, &mut attributes)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Fd::adopt(unsafe { own(raw as i32) })
}

/// BPF_LINK_UPDATE: from now on another program runs at the attachment. The kernel waits for no grace period.
pub fn link_update(link: &Fd, program: &Fd) -> Result<(), Errno> {
    let mut attributes =
        LinkUpdate { link: link.raw() as u32, program: program.raw() as u32, _rest: [0; 7] };
    bpf(LINK_UPDATE, &mut attributes).map(|_| ())
}

/// The programs at the tc ingress hook of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtIngress {
    /// All of them, whosever they are.
    pub all: u32,
    /// Steering programs of this library, of any process. None if the process may not ask for names
    /// (CAP_SYS_ADMIN).
    pub ours: Option<u32>,
    /// Programs of processes that have ended, which the kernel is about to close; 0 if names are not told.
    pub left: u32,
}

/// BPF_PROG_QUERY of the tc ingress hook.
pub fn programs_at_ingress(interface: u32) -> Result<AtIngress, Errno> {
    let mut ids = [0u32; MOST_PROGRAMS];
    let mut attributes = ProgramQuery {
        target: interface,
        attach_type: ATTACH_TYPE_TCX_INGRESS,
        query_flags: 0,
        attach_flags: 0,
        programs: ids.as_mut_ptr().expose_provenance() as u64,
        count: ids.len() as u32,
        _rest: [0; 9],
    };
    match bpf(PROG_QUERY, &mut attributes) {
        // More programs than were asked for; the first ones are told.
        Ok(_) | Err(Errno::NOSPC) => {}
        Err(errno) => return Err(errno),
    }
    let told = ids.iter().take(attributes.count as usize);
    let (mut ours, mut left) = (Some(0), 0);
    for id in told {
        match name_of(*id) {
            Ok(INGRESS_NAME) => ours = ours.map(|count| count + 1),
            Ok(LEFT_NAME) => left += 1,
            Err(Errno::PERM) => ours = None,
            // Another program, or one that was detached meanwhile.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(AtIngress { all: attributes.count, ours, left })
}

/// The name of a loaded program.
fn name_of(id: u32) -> Result<[u8; 16], Errno> {
    let mut by_id = ProgramById { id, _rest: [0; 3] };
    let raw = bpf(PROG_GET_FD_BY_ID, &mut by_id)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let program = Fd::adopt(unsafe { own(raw as i32) })?;
    let mut info = ProgramInfo { _before: [0; 8], name: [0; 16] };
    let mut attributes = InfoByFd {
        descriptor: program.raw() as u32,
        len: size_of::<ProgramInfo>() as u32,
        info: core::ptr::from_mut(&mut info).expose_provenance() as u64,
    };
    bpf(OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(info.name)
}

/// BPF_PROG_TEST_RUN of an XDP program on a frame, as one that has just come by an interface.
pub fn program_run_live(program: &Fd, interface: u32, frame: &[u8]) -> Result<(), Errno> {
    let len = u32::try_from(frame.len()).map_err(|_| Errno::MSGSIZE)?;
    let context = XdpContext {
        data: 0,
        data_end: len,
        data_meta: 0,
        interface,
        queue: 0,
        egress_interface: 0,
    };
    let mut attributes = ProgramRun {
        program: program.raw() as u32,
        _result: 0,
        data_size: len,
        _data_size_out: 0,
        data: frame.as_ptr().expose_provenance() as u64,
        _data_out: 0,
        repeat: 1,
        _duration: 0,
        context_size: size_of::<XdpContext>() as u32,
        _context_size_out: 0,
        context: core::ptr::from_ref(&context).expose_provenance() as u64,
        _context_out: 0,
        flags: LIVE_FRAMES,
        _cpu: 0,
        batch_size: 1,
        _rest: 0,
    };
    bpf(PROG_TEST_RUN, &mut attributes).map(|_| ())
}

fn bpf<A>(command: usize, attributes: &mut A) -> Result<isize, Errno> {
    let address = core::ptr::from_mut(attributes).expose_provenance();
    // SAFETY: `attributes` is one of the structures above, of the size told, ours alone, and outlives the
    // call; the pointers in it are to values that their callers keep alive.
    let result = unsafe { raw_syscall(libc::SYS_bpf, [command, address, size_of::<A>(), 0, 0, 0]) };
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result) }
}
