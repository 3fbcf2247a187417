//! The library's own descriptors.
//!
//! They live high, above 1000 and those that stay above the program's limit ([`above`]), so that a program finds the
//! numbers it expects, are closed by raw system call, and are listed: the program's `closefrom()` must pass over them,
//! and a forked child closes its copies, so that a dying parent's flows really vanish.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::sync::atomic::{AtomicI32, Ordering};

use super::above;

/// The numbers tried below the limit, highest first: a program may run with a small RLIMIT_NOFILE.
pub(super) const FLOORS: [RawFd; 4] = [1000, 512, 200, 100];

/// An owned descriptor of the library itself.
pub struct Fd(RawFd);

impl Fd {
    /// Moves a descriptor up, out of the program's way and above its limit, and takes it over.
    pub fn adopt(fd: OwnedFd) -> rustix::io::Result<Fd> {
        // First to where it is quickly: as long as it has a low number, the program may miss that one.
        Fd::adopt_briefly(fd).map(Fd::above_the_limit)
    }

    /// The second half of [`Fd::adopt`], which takes longer: several descriptors are all moved out of the program's way first.
    pub fn above_the_limit(self) -> Fd {
        let Some(above) = above::copy(self.as_fd()) else { return self };
        internal::add(above);
        Fd(above)
    }

    /// [`Fd::adopt`] for one that is closed soon: it lies below the limit, which is cheap.
    pub fn adopt_briefly(fd: OwnedFd) -> rustix::io::Result<Fd> {
        let low = fd.into_raw_fd();
        // SAFETY: `low` came out of an OwnedFd just now, so it is open and nobody else's.
        let moved = Fd::copy_of(unsafe { BorrowedFd::borrow_raw(low) });
        // SAFETY: as above, `low` is open and ours; it is not used after this line.
        unsafe { rustix::io::close(low) };
        moved
    }

    /// A descriptor of our own for the same file, below the limit if there is room.
    pub fn copy_of(fd: BorrowedFd<'_>) -> rustix::io::Result<Fd> {
        let copy = FLOORS.iter().find_map(|floor| fcntl_dupfd_cloexec(fd, *floor).ok());
        let copy = copy.map(IntoRawFd::into_raw_fd).or_else(|| above::copy(fd));
        let high = copy.ok_or(Errno::MFILE)?;
        internal::add(high);
        Ok(Fd(high))
    }

    pub fn raw(&self) -> RawFd {
        self.0
    }

    /// Gives the file free but keeps the number for ever, for a thread that may still use it: it finds
    /// something harmless there.
    pub fn retire(self) {
        let Ok(harmless) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
            return;
        };
        let _ = above::replace(harmless.as_fd(), self.0);
        core::mem::forget(self);
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self` lives; only Drop closes it.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        internal::remove(self.0);
        // SAFETY: `self.0` is open, owned by `self`, and never used again.
        unsafe { rustix::io::close(self.0) };
    }
}

/// Lends a descriptor number of the program to one system call. If the program closes it
/// meanwhile, the kernel answers EBADF, which is what it would answer the program too.
pub fn with_borrowed<T>(fd: RawFd, call: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
    if fd < 0 {
        return None;
    }
    // SAFETY: not -1; the borrow ends with the call, and a number that is closed meanwhile makes
    // the system call fail, nothing else.
    Some(call(unsafe { BorrowedFd::borrow_raw(fd) }))
}

/// Borrows a descriptor number that the program gave us.
///
/// # Safety
/// The number must stay open for the borrow; the kernel answers EBADF if the program closes it
/// meanwhile, which is what it would answer the program too.
pub unsafe fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: passed on to the caller; `fd` is not -1 because no caller passes a negative number.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Is the descriptor open, and stays so when another program takes over?
pub fn survives_exec(fd: RawFd) -> bool {
    with_borrowed(fd, |fd| rustix::io::fcntl_getfd(fd))
        .and_then(Result::ok)
        .is_some_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
}

/// Writes all bytes to a descriptor number, as far as it takes them without an error. Used for
/// stderr and files that only get whole lines; a full disk or a closed stderr loses the line.
pub fn write_fully(fd: RawFd, mut bytes: &[u8]) {
    if fd < 0 {
        return;
    }
    // SAFETY: the number is only handed to write(2), which answers EBADF if it is closed.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) | Err(_) => return,
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
        }
    }
}

/// Opens a file for appending; for the log and the statistics file.
pub fn open_append(path: &str) -> rustix::io::Result<Fd> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    Fd::adopt(rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?)
}

/// Writes to a file that exists, as those of the kernel do, in one go.
pub fn overwrite(path: &str, bytes: &[u8]) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = Fd::adopt_briefly(rustix::fs::open(path, flags, Mode::empty())?)?;
    rustix::io::write(file.as_fd(), bytes).map(|_| ())
}

/// Is it a file with an end?
pub fn is_regular(path: &str) -> rustix::io::Result<bool> {
    let mode = rustix::fs::stat(path)?.st_mode;
    Ok(rustix::fs::FileType::from_raw_mode(mode).is_file())
}

/// Reads a small file (of /proc) whole.
pub fn read_file(path: &str) -> rustix::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = Fd::adopt_briefly(rustix::fs::open(path, flags, Mode::empty())?)?;
    let mut bytes = Vec::new();
    let mut chunk = [0u8; 4096];
    loop {
        match rustix::io::read(file.as_fd(), &mut chunk)? {
            0 => return Ok(bytes),
            count => bytes.extend_from_slice(chunk.get(..count).unwrap_or_default()),
        }
    }
}

/// Opens a file to be read again and again.
pub fn open_read(path: &str) -> rustix::io::Result<Fd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Fd::adopt(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Reads a file whole, from its beginning, in place of what `bytes` holds.
pub fn read_again(file: &Fd, bytes: &mut Vec<u8>) -> rustix::io::Result<()> {
    bytes.clear();
    let mut chunk = [0u8; 4096];
    loop {
        match rustix::io::pread(file.as_fd(), &mut chunk, bytes.len() as u64)? {
            0 => return Ok(()),
            count => bytes.extend_from_slice(chunk.get(..count).unwrap_or_default()),
        }
    }
}

/// Makes a new file of at least `size` bytes that nobody but this user may open, whatever the umask
/// is, and locks it: as long as this process lives, others see that it does, also from other process
/// id namespaces. What lies there already must be a file of this user, left by a process that is gone:
/// it is replaced.
pub fn create_private(path: &str, size: u64) -> rustix::io::Result<Fd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = Mode::from_raw_mode(0o600);
    let opened = match rustix::fs::open(path, flags, own) {
        Err(Errno::EXIST) => {
            // Readers that look whether it is stale hold it for a moment.
            let mut removed = remove_stale(path);
            for _ in 0..10 {
                if removed != Err(Errno::EXIST) {
                    break;
                }
                super::thread::nap_millis(1);
                removed = remove_stale(path);
            }
            match removed {
                Ok(()) | Err(Errno::NOENT) => rustix::fs::open(path, flags, own)?,
                Err(errno) => return Err(errno),
            }
        }
        opened => opened?,
    };
    let file = Fd::adopt(opened)?;
    // Where files cannot be locked, that does not matter.
    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    let done = rustix::fs::fchmod(&file, own).and_then(|()| rustix::fs::ftruncate(&file, size));
    if let Err(errno) = done {
        remove_own(&file, path);
        return Err(errno);
    }
    Ok(file)
}

/// A link could lead anywhere, and another user's file is none of our business.
fn remove_stale(path: &str) -> rustix::io::Result<()> {
    let found = rustix::fs::lstat(path)?;
    let regular = rustix::fs::FileType::from_raw_mode(found.st_mode).is_file();
    if !regular || found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::EXIST);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = Fd::adopt_briefly(rustix::fs::open(path, flags, Mode::empty())?)?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) {
        // A process of the same number in another namespace.
        return Err(Errno::EXIST);
    }
    rustix::fs::unlink(path)
}

/// Removes a file of this user's that begins so, unless a process holds its lock.
pub fn remove_left(path: &str, beginning: &[u8]) {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(path, flags, Mode::empty()) else { return };
    let Ok(file) = Fd::adopt_briefly(opened) else { return };
    let is_ours = rustix::fs::fstat(&file).is_ok_and(|status| {
        rustix::fs::FileType::from_raw_mode(status.st_mode).is_file()
            && status.st_uid == rustix::process::geteuid().as_raw()
    });
    let mut found = vec![0; beginning.len()];
    let begins_so = is_ours && read_at(&file, &mut found, 0) && found == beginning;
    if begins_so && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        remove_own(&file, path);
    }
}

/// The names in a directory; none if it cannot be read.
pub fn names_in(directory: &str) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty());
    let Ok(entries) = opened.and_then(rustix::fs::Dir::new) else { return Vec::new() };
    let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok().map(str::to_owned);
    entries.filter_map(|entry| entry.ok().and_then(name)).collect()
}

/// Removes a file, unless the name is another one's by now.
pub fn remove_own(file: &Fd, path: &str) {
    let name = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let own = rustix::fs::fstat(file).map(name);
    if own.is_ok() && own == rustix::fs::lstat(path).map(name) {
        let _ = rustix::fs::unlink(path);
    }
}

/// Fills `bytes` from a place of a file; false if it is shorter.
pub fn read_at(file: &Fd, mut bytes: &mut [u8], mut offset: u64) -> bool {
    while !bytes.is_empty() {
        match rustix::io::pread(file, &mut *bytes, offset) {
            Ok(0) => return false,
            Ok(count) => {
                offset += count as u64;
                bytes = bytes.get_mut(count..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Writes all bytes to a place of a file.
pub fn write_at(file: &Fd, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(count) => {
                offset += count as u64;
                bytes = bytes.get(count..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The number of the file behind a descriptor number; 0 if there is none.
pub fn inode(fd: RawFd) -> u64 {
    let stat = with_borrowed(fd, |fd| rustix::fs::fstat(fd));
    stat.and_then(Result::ok).map_or(0, |stat| stat.st_ino)
}

/// The same of a socket; None for anything else.
pub fn socket_inode(fd: RawFd) -> Option<u64> {
    let stat = with_borrowed(fd, |fd| rustix::fs::fstat(fd))?.ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    (kind == rustix::fs::FileType::Socket).then_some(stat.st_ino)
}

/// The same path, whatever directory the process goes to.
pub fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let here = rustix::process::getcwd(Vec::new()).ok().and_then(|here| here.into_string().ok());
    here.map_or_else(|| path.to_owned(), |here| format!("{here}/{path}"))
}

/// Takes ownership of a raw number for the time of a call.
///
/// # Safety
/// The number must be open and owned by nobody else.
pub unsafe fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: passed on to the caller.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The list of the library's descriptors. Fixed size and lock-free, because `close()` asks it
/// from any thread and a forked child walks it in its fork handler.
pub mod internal {
    use super::{AtomicI32, Ordering, RawFd};
    use crate::sys::wait::raw_syscall;

    const MOST: usize = 512;
    static LIST: [AtomicI32; MOST] = [const { AtomicI32::new(-1) }; MOST];
    /// None was ever lower: most numbers that the program asks for are.
    static LOWEST: AtomicI32 = AtomicI32::new(RawFd::MAX);

    pub(super) fn add(fd: RawFd) {
        LOWEST.fetch_min(fd, Ordering::AcqRel);
        for slot in &LIST {
            if slot.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
        // The list is full: the descriptor works all the same, it is merely not protected.
    }

    pub(super) fn remove(fd: RawFd) {
        for slot in &LIST {
            if slot.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Is this number one of the library's own?
    pub fn contains(fd: RawFd) -> bool {
        fd >= LOWEST.load(Ordering::Acquire)
            && LIST.iter().any(|slot| slot.load(Ordering::Acquire) == fd)
    }

    /// The next of our numbers at or above `from`; `close_range()` leaves it out.
    pub fn next_at_or_above(from: RawFd) -> Option<RawFd> {
        LIST.iter().map(|slot| slot.load(Ordering::Acquire)).filter(|fd| *fd >= from).min()
    }

    /// Calls `of` with each of our numbers.
    pub fn each(of: impl FnMut(RawFd)) {
        LIST.iter().map(|slot| slot.load(Ordering::Acquire)).filter(|fd| *fd >= 0).for_each(of);
    }

    /// In a forked child: closes the copies of the parent's descriptors, but for one.
    pub fn close_all_after_fork(keep: RawFd) {
        for slot in &LIST {
            let fd = slot.load(Ordering::Acquire);
            if fd >= 0 && fd != keep {
                slot.store(-1, Ordering::Release);
                // fork() copies descriptors before memory: one that another thread has opened in between is
                // listed and not open.
                //
                // SAFETY: the child inherited this number from the list of the parent's library;
                // no object of the child refers to it, the child starts afresh.
                unsafe { raw_syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
            }
        }
    }
}
