//! libc's own definitions of the interposed functions: the next ones in the search order, so that
//! another preloaded library behind us gets its turn.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::errno;
use super::fork::Handler;
use super::symbols::with_symbols;

macro_rules! declare {
    ($($name:ident,)*) => {
        /// A row of `symbols`.
        #[allow(non_camel_case_types, reason = "they are C names")]
        #[allow(dead_code, reason = "two names have no definition in libc that we call")]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub enum Symbol { $($name,)* }

        const NAMES: &[&CStr] = &[$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a Rust identifier holds no NUL"),
            },
        )*];
    };
}
with_symbols!(declare);

static ADDRESSES: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

/// Finds all of them; done by the constructor, because dlsym() takes the loader's lock, which is no
/// thing to do in a signal handler or a forked child.
pub fn resolve_all() {
    for index in 0..NAMES.len() {
        resolve(index);
    }
}

/// The address of a function; null if libc lacks it.
#[inline]
pub fn address(symbol: Symbol) -> *mut c_void {
    let found = ADDRESSES[symbol as usize].load(Ordering::Relaxed);
    if found.is_null() { resolve(symbol as usize) } else { found }
}

/// The address of `syscall` once more, by a name that assembly can reach.
pub static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

#[cold]
fn resolve(index: usize) -> *mut c_void {
    // SAFETY: RTLD_NEXT and a NUL-terminated name, as dlsym(3) wants.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, NAMES[index].as_ptr()) };
    if let Some(slot) = ADDRESSES.get(index) {
        slot.store(found, Ordering::Relaxed);
    }
    if index == Symbol::syscall as usize {
        SYSCALL.store(found, Ordering::Relaxed);
    }
    found
}

macro_rules! real {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty;)*) => {$(
        /// libc's definition; -1 with ENOSYS if there is none.
        ///
        /// # Safety
        /// As the C function of this name.
        #[allow(non_snake_case, reason = "they are C names")]
        #[inline]
        pub unsafe fn $name($($arg: $type),*) -> $ret {
            let address = address(Symbol::$name);
            if address.is_null() {
                errno::set(libc::ENOSYS);
                return MINUS_ONE as $ret;
            }
            type Function = unsafe extern "C" fn($($type),*) -> $ret;
            // SAFETY: the address is that of the C function of this name, whose type this is.
            let function = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
            // SAFETY: the caller's promise.
            unsafe { function($($arg),*) }
        }
    )*};
}

const MINUS_ONE: isize = -1;

type SockAddr = *const libc::sockaddr;
type SockAddrOut = *mut libc::sockaddr;
type Len = *mut libc::socklen_t;

real! {
    fn _exit(status: c_int) -> c_int;
    fn capset(header: *mut c_void, sets: *const c_void) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
    fn seteuid(user: libc::uid_t) -> c_int;
    fn setresuid(user: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t) -> c_int;
    fn setreuid(user: libc::uid_t, effective: libc::uid_t) -> c_int;
    fn setuid(user: libc::uid_t) -> c_int;
    fn posix_spawn(id: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, old: c_int, new: c_int) -> c_int;
    fn posix_spawnp(id: *mut libc::pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn _Fork() -> libc::pid_t;
    fn aio_read(block: *mut c_void) -> c_int;
    fn aio_read64(block: *mut c_void) -> c_int;
    fn aio_write(block: *mut c_void) -> c_int;
    fn aio_write64(block: *mut c_void) -> c_int;
    fn backtrace_symbols_fd(buffer: *const *mut c_void, size: c_int, fd: c_int) -> c_int;
    fn bindresvport(fd: c_int, address: *mut libc::sockaddr_in) -> c_int;
    fn lio_listio(mode: c_int, list: *const *const c_void, count: c_int, event: *mut c_void) -> c_int;
    fn lio_listio64(mode: c_int, list: *const *const c_void, count: c_int, event: *mut c_void) -> c_int;
    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    fn pidfd_spawn(id: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn pidfd_spawnp(id: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn preadv2(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize;
    fn pwritev2(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize;
    fn setipv4sourcefilter(fd: c_int, interface: libc::in_addr, group: libc::in_addr, mode: u32, count: u32, sources: *const libc::in_addr) -> c_int;
    fn setsourcefilter(fd: c_int, interface: u32, group: SockAddr, group_len: libc::socklen_t, mode: u32, count: u32, sources: *const libc::sockaddr_storage) -> c_int;
    fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    fn wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int;
    fn __register_atfork(prepare: Handler, parent: Handler, child: Handler, library: *mut c_void) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    fn accept(fd: c_int, address: SockAddrOut, len: Len) -> c_int;
    fn accept4(fd: c_int, address: SockAddrOut, len: Len, flags: c_int) -> c_int;
    fn bind(fd: c_int, address: SockAddr, len: libc::socklen_t) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn connect(fd: c_int, address: SockAddr, len: libc::socklen_t) -> c_int;
    fn creat(path: *const c_char, mode: libc::mode_t) -> c_int;
    fn daemon(nochdir: c_int, noclose: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(old: c_int, new: c_int) -> c_int;
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    fn epoll_pwait(epfd: c_int, events: *mut libc::epoll_event, max: c_int, timeout: c_int, mask: *const libc::sigset_t) -> c_int;
    fn epoll_pwait2(epfd: c_int, events: *mut libc::epoll_event, max: c_int, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    fn epoll_wait(epfd: c_int, events: *mut libc::epoll_event, max: c_int, timeout: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void;
    fn fork() -> libc::pid_t;
    fn getpeername(fd: c_int, address: SockAddrOut, len: Len) -> c_int;
    fn getsockname(fd: c_int, address: SockAddrOut, len: Len) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: Len) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    fn pipe(fds: *mut c_int) -> c_int;
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    fn pselect(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize;
    fn readv(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize;
    fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    fn recvfrom(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int, address: SockAddrOut, address_len: Len) -> isize;
    fn recvmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec) -> c_int;
    fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize;
    fn select(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, timeout: *mut libc::timeval) -> c_int;
    fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize;
    fn sendfile(out: c_int, input: c_int, offset: *mut libc::off_t, count: usize) -> isize;
    fn sendfile64(out: c_int, input: c_int, offset: *mut libc::off64_t, count: usize) -> isize;
    fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize;
    fn sendto(fd: c_int, buffer: *const c_void, len: usize, flags: c_int, address: SockAddr, address_len: libc::socklen_t) -> isize;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: libc::socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn sockatmark(fd: c_int) -> c_int;
    fn sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn siginterrupt(number: c_int, interrupts: c_int) -> c_int;
    fn signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn sigset(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int;
    fn splice(input: c_int, input_offset: *mut c_void, out: c_int, out_offset: *mut c_void, len: usize, flags: c_uint) -> isize;
    fn system(command: *const c_char) -> c_int;
    fn write(fd: c_int, buffer: *const c_void, len: usize) -> isize;
    fn writev(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize;
    fn __poll_chk(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int, len: usize) -> c_int;
    fn __ppoll_chk(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: *const libc::timespec, mask: *const libc::sigset_t, len: usize) -> c_int;
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: usize, size: usize) -> isize;
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: usize, size: usize, flags: c_int) -> isize;
    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, len: usize, size: usize, flags: c_int, address: SockAddrOut, address_len: Len) -> isize;
    fn __sysv_signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    fn __res_iclose(state: *mut c_void, free_addresses: bool) -> usize;
}

/// libc's variadic `syscall`, with its arguments in registers.
///
/// # Safety
/// As syscall(2).
pub unsafe fn syscall(number: c_long, a: [usize; 6]) -> c_long {
    let address = address(Symbol::syscall);
    if address.is_null() {
        errno::set(libc::ENOSYS);
        return -1;
    }
    type Function =
        unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    // SAFETY: the address is that of libc's `syscall`; on this ABI a variadic call with register
    // arguments is the same as this one.
    let function: Function = unsafe { core::mem::transmute(address) };
    // SAFETY: the caller's promise.
    unsafe { function(number, a[0], a[1], a[2], a[3], a[4], a[5]) }
}
