//! Writing a line for people to a descriptor that may be anything by now: it never waits, never
//! raises SIGPIPE, and never lands in a socket of the program that took the number over.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::wait::{poll_now, raw_syscall};
use super::{fd, thread};

/// Which socket standard error is (services have one): device and file number, 0 for none.
static SOCKET: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Remembers which socket the descriptor is, if it is one of the local kind: lines may go there.
pub fn trust_socket(raw: RawFd) {
    let local = |fd: BorrowedFd<'_>| {
        let domain = rustix::net::sockopt::socket_domain(fd).ok()?;
        fstat(fd).ok().filter(|_| domain == rustix::net::AddressFamily::UNIX)
    };
    let (device, file) =
        fd::with_borrowed(raw, local).flatten().map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
    SOCKET[0].store(device, Ordering::Relaxed);
    SOCKET[1].store(file, Ordering::Relaxed);
}

/// Writes a line if that is possible at once. Async-signal-safe.
pub fn write_line(raw: RawFd, line: &[u8]) {
    let Some(Ok(stat)) = fd::with_borrowed(raw, |fd| fstat(fd)) else { return };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => fd::write_fully(raw, line),
        FileType::Socket => {
            let trusted = SOCKET[0].load(Ordering::Relaxed) == stat.st_dev
                && SOCKET[1].load(Ordering::Relaxed) == stat.st_ino;
            if trusted {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                // A full or closed socket loses the line.
                fd::with_borrowed(raw, |fd| rustix::net::send(fd, line, flags).is_ok());
            }
        }
        // A pipe with a byte of room has room for a line, which is less than PIPE_BUF.
        _ if poll_now(raw, libc::POLLOUT) == libc::POLLOUT => {
            // A line is lost, no more.
            fd::with_borrowed(raw, |fd| write_without_signal(fd, line).is_ok());
        }
        _ => {}
    }
}

/// Writes, and takes the SIGPIPE away that a pipe without a reader raises: the reader may go at any time.
pub fn write_without_signal(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    let saved = thread::block_signals();
    let waited = thread::is_pending(libc::SIGPIPE);
    let result = rustix::io::write(fd, bytes);
    if result == Err(Errno::PIPE) && !waited {
        let set: u64 = 1 << (libc::SIGPIPE - 1);
        let now = [0u64; 2];
        let arguments = [(&raw const set).addr(), 0, now.as_ptr().addr(), size_of::<u64>(), 0, 0];
        // SAFETY: the kernel's signal set of 8 bytes and a timespec of zeros outlive the call,
        // which takes the one pending SIGPIPE, if it is there, and does not wait.
        unsafe { raw_syscall(libc::SYS_rt_sigtimedwait, arguments) };
    }
    thread::restore_signals(&saved);
    result
}

/// Does a program read what is written there, as far as that can be told? A pipe ends in one, and so does a
/// socket, unless it is the journal's, which systemd says (JOURNAL_STREAM of systemd.exec(5)).
pub fn is_read_by_program(raw: RawFd, journal: Option<&str>) -> bool {
    let Some(Ok(stat)) = fd::with_borrowed(raw, |fd| fstat(fd)) else { return false };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo => true,
        FileType::Socket => journal != Some(&*format!("{}:{}", stat.st_dev, stat.st_ino)),
        _ => false,
    }
}

/// Is it a terminal?
pub fn is_terminal(raw: RawFd) -> bool {
    fd::with_borrowed(raw, |fd| rustix::termios::isatty(fd)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn pipes_and_sockets_but_the_journals_are_read_by_programs() {
        let (_reader, pipe) = std::io::pipe().expect("a pipe");
        let (_other, socket) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let file = std::fs::File::open("/proc/self/stat").expect("a file");
        let null = std::fs::File::open("/dev/null").expect("a device");
        let raws = [pipe.as_raw_fd(), socket.as_raw_fd(), file.as_raw_fd(), null.as_raw_fd()];
        assert_eq!(raws.map(|raw| is_read_by_program(raw, None)), [true, true, false, false]);
        let stat = fstat(&socket).expect("its numbers");
        let journal = format!("{}:{}", stat.st_dev, stat.st_ino);
        assert!(!is_read_by_program(socket.as_raw_fd(), Some(&journal)));
        assert!(is_read_by_program(socket.as_raw_fd(), Some("1:1")));
    }

    #[test]
    fn a_full_pipe_loses_the_line_and_does_not_wait() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let line = [b'x'; 1000];
        for _ in 0..200 {
            write_line(writer.as_raw_fd(), &line);
        }
        drop(writer);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).expect("what was written");
        assert!(all.len() > 10_000 && all.len() < 200_000, "{}", all.len());
    }

    #[test]
    fn a_pipe_without_a_reader_raises_no_signal() {
        // std ignores SIGPIPE; here it must be deadly, as it is in most programs.
        // SAFETY: the default action of one signal, restored below.
        let old = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        write_line(writer.as_raw_fd(), b"gone\n");
        fd::with_borrowed(writer.as_raw_fd(), |fd| write_without_signal(fd, b"gone\n").is_ok());
        assert!(!thread::is_pending(libc::SIGPIPE));
        // SAFETY: what it was before.
        unsafe { libc::signal(libc::SIGPIPE, old) };
    }

    #[test]
    fn a_socket_that_took_the_number_over_stays_clean() {
        let (ours, mut other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        write_line(ours.as_raw_fd(), b"not for you\n");
        trust_socket(ours.as_raw_fd());
        write_line(ours.as_raw_fd(), b"a line\n");
        drop(ours);
        let mut text = String::new();
        other.read_to_string(&mut text).expect("what was sent");
        assert_eq!(text, "a line\n");
        trust_socket(-1);
    }

    #[test]
    fn a_closed_descriptor_and_a_full_disk_cost_the_line_only() {
        write_line(-1, b"x\n");
        write_line(100_000, b"x\n");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        write_line(full.as_raw_fd(), b"x\n");
        assert!(!is_terminal(full.as_raw_fd()));
    }
}
