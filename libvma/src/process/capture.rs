//! The thread that writes what is captured (`VMA_PCAP`), and the capture's end.
//!
//! A forked child has none of it: like everything else it opens a capture of its own with its first Internet
//! socket, in the file of its own name (`%d`). A file that its parent, or another process, is writing to stays theirs.

use std::sync::Arc;

use rustix::io::Errno;

use super::Process;
use crate::capture::{Capture, Progress, Target, Writer};
use crate::config::Config;
use crate::log::log_line;
use crate::sys::lock::Lock;
use crate::sys::thread;
use crate::sys::time::monotonic_nanos;
use crate::sys::wait::{PollFd, ppoll};

/// Packets wait at most so long to be written.
const INTERVAL_NANOS: u64 = 20_000_000;
/// So often a fifo is tried that has no reader. Each time the kernel takes the lowest free descriptor number for a
/// moment, which another thread of the program would miss.
const RETRY_NANOS: u64 = 100_000_000;
/// So long the end of the process waits for the reader of a full fifo.
const PATIENCE_NANOS: u64 = 500_000_000;

pub struct Capturing {
    capture: Arc<Capture>,
    writer: Lock<Writer>,
}

impl Capturing {
    /// None if nothing is to be captured, or nothing can be.
    pub fn open(config: &Config) -> Option<Capturing> {
        let path = &config.capture_file;
        if path.is_empty() {
            return None;
        }
        let target = Target {
            path: path.clone(),
            file_size: config.capture_file_size,
            files: config.capture_files,
        };
        let opened = Capture::new(config.capture_snap_len)
            .and_then(|capture| Ok((capture.clone(), Writer::open(capture, target)?)));
        match opened {
            Ok((capture, writer)) => Some(Capturing { capture, writer: Lock::new(writer) }),
            Err(Errno::BUSY) => {
                log_line!(
                    Warning,
                    "VMA_PCAP={path}: another process captures there; this one captures nothing (%d in the name \
                     gives each process a file)"
                );
                None
            }
            Err(Errno::PERM | Errno::LOOP) => {
                log_line!(
                    Warning,
                    "VMA_PCAP={path}: it exists, and is another user's, has a second name, or is a symbolic link; \
                     nothing is captured"
                );
                None
            }
            Err(errno) => {
                log_line!(Warning, "VMA_PCAP={path}: {errno}; nothing is captured");
                None
            }
        }
    }

    pub fn capture(&self) -> Arc<Capture> {
        self.capture.clone()
    }

    /// Writes what was captured, for another program takes the process over.
    pub fn flush(&self) {
        if let Ok(mut writer) = self.writer.lock() {
            writer.flush();
        }
    }

    /// Writes what was captured and how much is missing. The process ends.
    pub fn finish(&self) {
        let end = monotonic_nanos() + PATIENCE_NANOS;
        loop {
            let Ok(mut writer) = self.writer.lock() else { return };
            if writer.finish() != Progress::Waits || !writer.has_reader() {
                return;
            }
            drop(writer);
            if monotonic_nanos() > end {
                return;
            }
            thread::nap_millis(1);
        }
    }

    /// The same, and leaves the file to the child that goes on.
    pub fn hand_over(&self) {
        self.finish();
        if let Ok(mut writer) = self.writer.lock() {
            writer.end();
        }
    }

    fn run(&self) {
        let mut pause = INTERVAL_NANOS;
        let mut full = -1;
        loop {
            let waker = self.capture.waker.raw();
            let mut fds = [
                PollFd { fd: waker, events: libc::POLLIN, revents: 0 },
                PollFd { fd: full, events: libc::POLLOUT, revents: 0 },
            ];
            let _ = ppoll(&mut fds, Some(pause), None);
            self.capture.waker.clear();
            let Ok(mut writer) = self.writer.lock() else { return };
            if writer.flush() == Progress::Ended {
                return;
            }
            pause = if writer.has_reader() { INTERVAL_NANOS } else { RETRY_NANOS };
            full = writer.full_fifo().unwrap_or(-1);
        }
    }
}

/// Starts the thread, if something is to be captured. Without it all comes with the end of the process.
pub fn start(process: &'static Process) {
    let Some(capturing) = &process.capturing else { return };
    // Signals are the application's: its handlers must not run here.
    let saved = thread::block_signals();
    let spawned = thread::start_own("vma-pcap", || capturing.run());
    thread::restore_signals(&saved);
    if let Err(error) = spawned {
        log_line!(Warning, "the thread that writes VMA_PCAP could not be started: {error}");
    }
}
