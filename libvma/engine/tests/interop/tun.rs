//! A network namespace with a TUN device, behind which the engine is the whole network.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libvma_engine::time::Instant;

use crate::host::{Host, THEIRS};

/// The end of the TUN device that is no network interface.
pub struct Tun {
    file: File,
    start: std::time::Instant,
}

/// `struct ifreq`, as far as TUNSETIFF looks at it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

const NAME: &str = "engine0";

/// Moves the calling thread, and those that it starts, into a new network namespace with a TUN
/// device of this MTU. Both are gone when the threads and the device are.
pub fn enter(mtu: u32) -> Tun {
    // SAFETY: no pointers; only this thread's namespace changes.
    let left = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(left, 0, "a network namespace needs root: {}", std::io::Error::last_os_error());
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the path is a string with its terminator.
    let fd = unsafe { libc::open(c"/dev/net/tun".as_ptr(), flags) };
    assert!(fd >= 0, "/dev/net/tun: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened, and nobody else has it.
    let file = unsafe { File::from_raw_fd(fd) };
    let mut request =
        Request { name: [0; 16], flags: (libc::IFF_TUN | libc::IFF_NO_PI) as i16, rest: [0; 22] };
    request.name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, whose size and layout `Request` has.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(made, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    ip(&["link", "set", "lo", "up"]);
    ip(&["address", "add", &format!("{THEIRS}/24"), "dev", NAME]);
    ip(&["link", "set", NAME, "mtu", &mtu.to_string(), "up"]);
    Tun { file, start: std::time::Instant::now() }
}

/// Changes the MTU of the device.
pub fn set_mtu(mtu: u32) {
    ip(&["link", "set", NAME, "mtu", &mtu.to_string()]);
}

/// Runs `ip` in the namespace of the calling thread.
pub fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("ip of iproute2");
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
}

impl Tun {
    pub fn now(&self) -> Instant {
        // Not zero, and far from where a clock of 32 bits wraps.
        Instant::from_nanos(1_000_000_000 + self.start.elapsed().as_nanos() as u64)
    }

    /// Runs the engine until `done` says so. Panics after `most`.
    pub fn run(&mut self, host: &mut Host, most: Duration, done: impl Fn(&Host) -> bool) {
        let end = self.now().saturating_add(most);
        let mut buffer = vec![0; 70_000];
        while !done(host) {
            let now = self.now();
            assert!(now < end, "not done after {most:?}: {:?}, {:?}", host.state(), host.info);
            let mut idle = true;
            // As many as a poll of a device takes.
            for _ in 0..64 {
                match self.file.read(&mut buffer) {
                    Ok(len) => host.receive(now, &buffer[..len]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("reading the TUN device: {error}"),
                }
                idle = false;
            }
            host.run(now);
            while let Some(packet) = host.sent.pop_front() {
                match self.file.write(&packet) {
                    Ok(_) => idle = false,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("writing {} bytes: {error}", packet.len()),
                }
            }
            if idle {
                self.wait(host.deadline());
            }
        }
    }

    /// A packet that the kernel has sent.
    pub fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.file.read(buffer)
    }

    /// A packet for the kernel.
    pub fn write(&mut self, packet: &[u8]) {
        let len = self.file.write(packet).expect("the TUN device takes it");
        assert_eq!(len, packet.len());
    }

    /// Until a packet comes, or so much time has passed.
    pub fn wait_for(&self, time: Duration) {
        let left = time.min(Duration::from_millis(500));
        self.poll(left.as_nanos() as i64);
    }

    /// Until a packet comes, a timer is due, or a moment has passed.
    fn wait(&self, deadline: Option<Instant>) {
        let left = deadline.map_or(1_000_000, |at| {
            at.saturating_duration_since(self.now()).as_nanos().min(1_000_000) as i64
        });
        self.poll(left);
    }

    fn poll(&self, nanos: i64) {
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: nanos };
        let mut poll = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, and a time that lives as long as the call.
        unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) };
    }
}

/// Runs a test in a thread of its own, because threads are what namespaces are entered by.
pub fn in_namespace<R: Send>(test: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| match scope.spawn(test).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Is set when a program on the kernel's side is done.
#[derive(Default)]
pub struct Done(AtomicBool);

impl Done {
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
