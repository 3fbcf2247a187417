//! The functions of SocketXtreme, and what brings sockets into its ring. The state is in `extra::xtreme`.
//!
//! A socket joins when it can have news: a UDP socket when it is made, a stream when it listens, connects, or was accepted.

mod serve;

use core::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use libvma_dev::extra::{Buffer, Completion, PacketDescriptor, SO_USER_DATA};

use super::{convert, errno, made, mux, real};
use crate::config;
use crate::extra::{self, Event, Role, Unknown, Work, Xtreme};
use crate::fd::Object;
use crate::mux::epoll;
use crate::process::{self, Process};
use crate::socket::SocketId;
use crate::sys::{cancel, shadow, thread};

/// One call fills at most so many completions: it ends also while packets come as fast as it takes them.
const MOST_OF_CALL: usize = 1024;
/// Events of the ring that one look takes.
const MOST_EVENTS: usize = 32;

/// Is the program in this mode? Before its first socket the environment says.
pub fn is_enabled() -> bool {
    static SAID: OnceLock<bool> = OnceLock::new();
    match process::current() {
        Some(process) => process.stack.config.socketxtreme,
        None => *SAID.get_or_init(|| config::is_socketxtreme(process::environment())),
    }
}

fn fail(error: c_int) -> c_int {
    errno::set(error);
    -1
}

/// The state of the process in this mode. The error for a function that is not for this program.
fn state(without_sockets: c_int) -> Result<&'static Process, c_int> {
    if !is_enabled() {
        extra::refuse_socketxtreme();
        return Err(libc::EOPNOTSUPP);
    }
    process::current().ok_or(without_sockets)
}

// --- members ---------------------------------------------------------------------------------------

/// A descriptor is a member of the ring from now on, if the program is in this mode.
#[cold]
pub fn join(process: &'static Process, fd: c_int, role: Role) {
    let before = errno::get();
    let socket = socket_of(process, fd);
    let noted = |id| process.stack.extra.notes.get(id, SO_USER_DATA, fd, size_of::<u64>());
    let user_data = match socket.and_then(noted) {
        Some(Ok((bytes, _))) => u64::from_ne_bytes(bytes),
        _ => fd as u64,
    };
    if let Some((event, Some(ring))) = process.stack.extra.xtreme.join(fd, role, socket, user_data)
    {
        register(ring, fd, event);
    }
    errno::set(before);
}

/// connect(2) of a descriptor had this result.
#[inline]
pub fn after_connect(fd: c_int, result: c_int) -> c_int {
    if let Some(process) = process::current()
        && process.stack.config.socketxtreme
        && (result == 0 || errno::get() == libc::EINPROGRESS)
        && is_stream(process, fd)
    {
        join(process, fd, Role::Connecting);
    }
    result
}

/// accept(2) for the program had this result.
#[inline]
pub fn after_accept(accepted: c_int) -> c_int {
    if accepted >= 0
        && let Some(process) = process::current()
        && process.stack.config.socketxtreme
    {
        join(process, accepted, Role::Accepted);
    }
    accepted
}

/// listen(2) on a descriptor has succeeded.
pub fn after_listen(fd: c_int) {
    if let Some(process) = process::current()
        && process.stack.config.socketxtreme
    {
        join(process, fd, Role::Listener);
    }
}

fn is_stream(process: &Process, fd: c_int) -> bool {
    match process.fds.get(fd) {
        Some(Object::Stream(_)) => true,
        Some(Object::Kernels(id)) => id.is_stream(),
        Some(Object::Socket(_) | Object::Epoll(_)) => false,
        None => {
            let protocol = shadow::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
            protocol == Some(libc::IPPROTO_TCP)
        }
    }
}

fn socket_of(process: &Process, fd: c_int) -> Option<SocketId> {
    match process.fds.get(fd) {
        Some(Object::Socket(id) | Object::Stream(id)) => Some(id),
        _ => None,
    }
}

/// A socket that is in the ring already, as one that connects once more, tells anew how it stands.
fn register(ring: c_int, fd: c_int, event: Event) {
    let mut event = libc::epoll_event { events: event.events, u64: event.data };
    for operation in [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD] {
        // SAFETY: an event that outlives the call.
        let result = unsafe { mux::epoll_ctl(ring, operation, fd, &mut event) };
        if result == 0 || errno::get() != libc::EEXIST {
            return;
        }
    }
}

/// SO_VMA_USER_DATA of a member that the library does not serve. False: it is no member.
pub fn set_user_data(fd: c_int, socket: Option<SocketId>, value: &[u8]) -> Option<Result<(), i32>> {
    let process = process::current().filter(|process| process.stack.config.socketxtreme)?;
    let Ok(bytes) = value.try_into() else { return Some(Err(libc::EINVAL)) };
    let value = u64::from_ne_bytes(bytes);
    let is = |other, of| other == fd || socket.is_some() && of == socket;
    process.stack.extra.xtreme.set_user_data(is, value).then_some(Ok(()))
}

/// The same of getsockopt().
pub fn user_data(fd: c_int) -> Option<u64> {
    let process = process::current().filter(|process| process.stack.config.socketxtreme)?;
    process.stack.extra.xtreme.user_data(fd)
}

// --- rings -----------------------------------------------------------------------------------------

/// Is it a socket whose news come by the ring?
fn has_ring(fd: c_int) -> Option<&'static Process> {
    let process = process::current().filter(|process| process.stack.config.socketxtreme)?;
    let object = process.fds.get(fd)?;
    matches!(object, Object::Socket(_) | Object::Stream(_) | Object::Kernels(_)).then_some(process)
}

pub unsafe extern "C" fn get_socket_rings_num(fd: c_int) -> c_int {
    has_ring(fd).is_some().into()
}

pub unsafe extern "C" fn get_socket_rings_fds(fd: c_int, rings: *mut c_int, room: c_int) -> c_int {
    if rings.is_null() || room <= 0 {
        return fail(libc::EINVAL);
    }
    let Some(process) = has_ring(fd) else { return 0 };
    if !convert::asked_writable(rings, size_of::<c_int>()) {
        return fail(libc::EFAULT);
    }
    let before = errno::get();
    let Some(ring) = ring(process) else { return -1 };
    errno::set(before);
    // SAFETY: the program's room for one number, which is there; perhaps not aligned.
    unsafe { rings.write_unaligned(ring) };
    1
}

/// The ring's descriptor. None, with errno: there is none to be had.
fn ring(process: &'static Process) -> Option<c_int> {
    let xtreme = &process.stack.extra.xtreme;
    if let Some(ring) = xtreme.ring() {
        return Some(ring);
    }
    // SAFETY: takes no pointer.
    let made = made(|| unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) });
    if made < 0 {
        return None;
    }
    mux::instance(process, made);
    let ring = xtreme.open_ring(made);
    if ring != made {
        // SAFETY: the descriptor was made above and nobody knows it.
        unsafe { super::file::close(made) };
        return Some(ring);
    }
    xtreme.members().into_iter().for_each(|(fd, event)| register(ring, fd, event));
    Some(ring)
}

// --- completions -----------------------------------------------------------------------------------

pub unsafe extern "C" fn socketxtreme_poll(
    ring: c_int,
    completions: *mut Completion,
    count: c_uint,
    _flags: c_int,
) -> c_int {
    let process = match state(libc::EBADFD) {
        Ok(process) => process,
        Err(error) => return fail(error),
    };
    let xtreme = &process.stack.extra.xtreme;
    if xtreme.ring() != Some(ring) || ring < 0 {
        return fail(libc::EBADFD);
    }
    if completions.is_null() || count == 0 {
        return fail(libc::EINVAL);
    }
    let before = errno::get();
    // A thread that ended in here would leave a member that no other one serves.
    let result = cancel::disabled(|_| {
        look(process, ring);
        // SAFETY: the program's array.
        unsafe { fill(process, completions, MOST_OF_CALL.min(count as usize)) }
    });
    match result {
        Ok(filled) => {
            errno::set(before);
            filled as c_int
        }
        Err(error) => fail(error),
    }
}

/// Notes what the ring tells.
fn look(process: &'static Process, ring: c_int) {
    let Some(Object::Epoll(id)) = process.fds.get(ring) else { return };
    let Some(instance) = process.epolls.get(id) else { return };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST_EVENTS];
    let mut kernel = |room: &mut [epoll::Event]| {
        // SAFETY: a slice of that many events.
        match unsafe { real::epoll_wait(ring, room.as_mut_ptr(), room.len() as c_int, 0) } {
            -1 => Err(errno::get()),
            found => Ok(found as usize),
        }
    };
    let (found, by_kernel) = epoll::glance(&process.stack, &instance, &mut events, &mut kernel);
    for event in events.iter().take(found) {
        process.stack.extra.xtreme.note(event.u64, event.events, by_kernel);
    }
}

/// Serves members with news. Returns how many completions were filled.
///
/// # Safety
/// The array is the program's, of at least so many entries.
unsafe fn fill(
    process: &'static Process,
    completions: *mut Completion,
    count: usize,
) -> Result<usize, c_int> {
    let (xtreme, pool) = (&process.stack.extra.xtreme, &process.stack.extra.held.pool);
    let own = thread::cached_id();
    // Those that can be served by a later call only.
    let mut later: Vec<Work> = Vec::new();
    let mut filled = 0;
    let mut result = Ok(());
    while filled < count
        && let Some(work) = xtreme.next(pool, own)
    {
        let entry = completions.wrapping_add(filled);
        if !convert::can_write(entry, size_of::<Completion>()) {
            later.push(work);
            result = Err(libc::EFAULT);
            break;
        }
        let completion = match serve::serve(process, work) {
            serve::Served::Told(completion) => completion,
            serve::Served::Nothing => continue,
            serve::Served::Later(work) => {
                later.push(work);
                continue;
            }
        };
        // SAFETY: memory that was just found to be writable; perhaps not aligned.
        unsafe { entry.write_unaligned(completion) };
        filled += 1;
    }
    for work in later {
        xtreme.done(pool, work, extra::After::Again, None);
    }
    if filled == 0 { result.map(|()| 0) } else { Ok(filled) }
}

// --- buffers ---------------------------------------------------------------------------------------

fn known<T>(result: Result<T, Unknown>) -> Result<T, c_int> {
    result.map_err(|Unknown| libc::EINVAL)
}

/// Calls with the state, of a buffer of the program's.
fn with_buffer(
    buffer: *mut Buffer,
    call: impl FnOnce(&'static Process, &'static Xtreme, u64) -> Result<u32, Unknown>,
) -> c_int {
    let result = state(libc::EINVAL).and_then(|process| {
        known(call(process, &process.stack.extra.xtreme, buffer.addr() as u64))
    });
    match result {
        Ok(references) => c_int::try_from(references).unwrap_or(c_int::MAX),
        Err(error) => fail(error),
    }
}

pub unsafe extern "C" fn socketxtreme_ref_vma_buff(buffer: *mut Buffer) -> c_int {
    with_buffer(buffer, |_, xtreme, at| xtreme.refer(at))
}

pub unsafe extern "C" fn socketxtreme_free_vma_buff(buffer: *mut Buffer) -> c_int {
    with_buffer(buffer, |process, xtreme, at| {
        xtreme.free_buffer(&process.stack.extra.held.pool, at)
    })
}

pub unsafe extern "C" fn socketxtreme_free_vma_packets(
    packets: *mut PacketDescriptor,
    count: c_int,
) -> c_int {
    let process = match state(libc::EINVAL) {
        Ok(process) => process,
        Err(error) => return fail(error),
    };
    let Ok(count) = usize::try_from(count) else { return fail(libc::EINVAL) };
    if packets.is_null() {
        return fail(libc::EINVAL);
    }
    let (xtreme, pool) = (&process.stack.extra.xtreme, &process.stack.extra.held.pool);
    for at in 0..count {
        let packet = packets.wrapping_add(at).cast_const();
        if !convert::can_read(packet, size_of::<PacketDescriptor>()) {
            return fail(libc::EFAULT);
        }
        // SAFETY: memory that was just read; perhaps not aligned.
        let list = unsafe { packet.read_unaligned() }.list;
        if let Err(error) = known(xtreme.free_packet(pool, list.addr() as u64)) {
            return fail(error);
        }
    }
    0
}

/// The address of a buffer, as the program sees it.
fn pointer<T>(address: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut::<c_void>(address as usize).cast()
}
