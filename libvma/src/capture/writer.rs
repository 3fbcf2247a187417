//! Writes captured packets: to a file, a ring of files, or a fifo.
//!
//! A fifo without a reader is no error: it is opened again until there is one, and each reader gets a file of
//! its own from the beginning. A file belongs to one process at a time, which a lock on it says.

use std::sync::Arc;

use rustix::fd::AsFd;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{Capture, Interface, block};
use crate::log::log_line;
use crate::sys::time::realtime_nanos;
use crate::sys::{Fd, fd, output};

/// Bytes that are put together for one call, unless a packet is longer.
const PORTION: usize = 256 << 10;

/// Where captures go, as the parameters say.
#[derive(Clone, Debug)]
pub struct Target {
    pub path: String,
    /// Bytes of one file; 0 is no limit.
    pub file_size: u64,
    /// Files of that size that are kept.
    pub files: u32,
}

/// How far writing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All that was captured is written.
    Done,
    /// The rest must wait: a fifo is full, or has no reader.
    Waits,
    /// Nothing can be written any more.
    Ended,
}

pub struct Writer {
    capture: Arc<Capture>,
    target: Target,
    file: Option<Fd>,
    /// It has an end, and so may be cut and followed by another one.
    is_regular: bool,
    /// Bytes in the file.
    written: u64,
    /// The file has a packet.
    has_packets: bool,
    /// Interfaces that the file tells of, with their counts.
    told: Vec<Interface>,
    interfaces: Vec<Interface>,
    /// Bytes taken from the queue, and how many of them are in `out` already.
    taken: Vec<u8>,
    used: usize,
    /// Bytes to be written to the file next, and how many of them are.
    out: Vec<u8>,
    sent: usize,
    ended: bool,
}

impl Writer {
    /// Opens the file. A fifo without a reader is opened later.
    pub fn open(capture: Arc<Capture>, target: Target) -> rustix::io::Result<Writer> {
        // The program may change its directory.
        let target = Target { path: fd::absolute(&target.path), ..target };
        let mut writer = Writer {
            capture,
            target,
            file: None,
            is_regular: false,
            written: 0,
            has_packets: false,
            told: Vec::new(),
            interfaces: Vec::new(),
            taken: Vec::new(),
            used: 0,
            out: Vec::new(),
            sent: 0,
            ended: false,
        };
        match writer.begin() {
            Ok(()) | Err(Errno::NXIO) => Ok(writer),
            Err(errno) => Err(errno),
        }
    }

    /// Writes what was captured.
    pub fn flush(&mut self) -> Progress {
        loop {
            if self.ended {
                return Progress::Ended;
            }
            if self.sent == self.out.len() {
                match self.prepare() {
                    Ok(true) => {}
                    Ok(false) => return Progress::Done,
                    // No reader; or another process has it for now, such as a parent that is about to end.
                    Err(Errno::NXIO | Errno::BUSY) => return Progress::Waits,
                    Err(errno) => self.give_up(errno),
                }
                continue;
            }
            let Some(file) = &self.file else { return Progress::Waits };
            let rest = self.out.get(self.sent..).unwrap_or_default();
            match output::write_without_signal(file.as_fd(), rest) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Progress::Waits,
                // The reader has gone; the rest of its file is of no use to the next one.
                Err(Errno::PIPE) => {
                    self.close();
                    self.capture.count_lost(self.taken.get(self.used..).unwrap_or_default());
                    self.used = self.taken.len();
                    (self.out, self.sent) = (Vec::new(), 0);
                }
                Err(errno) => self.give_up(errno),
            }
        }
    }

    /// Writes the rest, as far as that is possible at once, and what is missing.
    pub fn finish(&mut self) -> Progress {
        let progress = self.flush();
        if progress == Progress::Done && self.file.is_some() {
            self.tell_counts(|_, _| true);
            return self.flush();
        }
        progress
    }

    /// Is there anything to write to? A fifo has no reader at times.
    pub fn has_reader(&self) -> bool {
        self.file.is_some()
    }

    /// Fills `out` with what comes next. False if there is nothing.
    fn prepare(&mut self) -> rustix::io::Result<bool> {
        (self.sent, self.written) = (0, self.written + self.out.len() as u64);
        self.out.clear();
        if self.file.is_none() {
            self.begin()?;
            return Ok(true);
        }
        if self.used == self.taken.len() {
            self.used = 0;
            self.capture.take(&mut self.taken, &mut self.interfaces);
            self.introduce();
        }
        let limit = if self.is_regular { self.target.file_size } else { 0 };
        let limit = if limit == 0 { u64::MAX } else { limit };
        while self.out.len() < PORTION
            && let Some(len) = block::len_at(self.taken.get(self.used..).unwrap_or_default())
        {
            let size = self.written + (self.out.len() + len) as u64;
            if size > limit && self.has_packets {
                if self.out.is_empty() {
                    self.turn()?;
                }
                return Ok(true);
            }
            let packet = self.taken.get(self.used..self.used + len).unwrap_or_default();
            self.out.extend_from_slice(packet);
            self.used += len;
            self.has_packets = true;
        }
        if self.used == self.taken.len() && self.has_packets {
            self.tell_counts(|told, now| told.dropped != now.dropped);
        }
        Ok(!self.out.is_empty())
    }

    /// Tells the file of interfaces that it does not know.
    fn introduce(&mut self) {
        let snap_len = self.capture.snap_len;
        for interface in self.interfaces.get(self.told.len()..).unwrap_or_default() {
            block::interface(&mut self.out, &interface.name, snap_len);
            self.told.push(Interface { name: interface.name.clone(), ..Interface::default() });
        }
    }

    fn tell_counts(&mut self, wanted: impl Fn(&Interface, &Interface) -> bool) {
        let time = realtime_nanos();
        for (number, (told, now)) in self.told.iter_mut().zip(&self.interfaces).enumerate() {
            if wanted(told, now) {
                let (received, dropped) = (now.received, now.dropped);
                block::statistics(&mut self.out, number as u32, time, received, dropped);
                told.clone_from(now);
            }
        }
    }

    /// Begins a file.
    fn begin(&mut self) -> rustix::io::Result<()> {
        let (file, is_regular) = open(&self.target.path)?;
        (self.file, self.is_regular) = (Some(file), is_regular);
        (self.written, self.has_packets) = (0, false);
        self.told.clear();
        let program = concat!("libvma ", env!("CARGO_PKG_VERSION"));
        block::section(&mut self.out, program);
        self.introduce();
        Ok(())
    }

    /// The file is full: it gets a number, older ones a higher one, the oldest goes.
    fn turn(&mut self) -> rustix::io::Result<()> {
        self.close();
        let path = &self.target.path;
        let numbered = |number| match number {
            0 => path.clone(),
            _ => format!("{path}.{number}"),
        };
        for number in (1..self.target.files).rev() {
            // Most are not there at first.
            let _ = rustix::fs::rename(numbered(number - 1), numbered(number));
        }
        self.begin()
    }

    fn give_up(&mut self, errno: Errno) {
        let path = &self.target.path;
        log_line!(Warning, "VMA_PCAP={path}: {errno}; nothing is captured any more");
        self.end();
    }

    /// Takes nothing any more, and leaves the file to others.
    pub fn end(&mut self) {
        self.ended = true;
        self.close();
        self.capture.end();
    }

    /// Unlocks the file, too: a child that was just forked has a copy of the descriptor.
    fn close(&mut self) {
        if let Some(file) = self.file.take() {
            let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingUnlock);
        }
    }

    /// A fifo that its reader has to empty before more is written.
    pub fn full_fifo(&self) -> Option<i32> {
        let file = self.file.as_ref().filter(|_| self.sent < self.out.len())?;
        Some(file.raw())
    }
}

/// Opens a file to be written from its beginning, and tells whether it has an end.
fn open(path: &str) -> rustix::io::Result<(Fd, bool)> {
    // Without O_CREAT first: in /tmp the kernel refuses it for another user's fifo (fs.protected_fifos).
    let flags =
        OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // Packets are not for everybody.
    let own = Mode::from_raw_mode(0o600);
    let opened = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => rustix::fs::open(path, flags | OFlags::CREATE, own),
        opened => opened,
    };
    let file = Fd::adopt(opened?)?;
    let told = rustix::fs::fstat(&file)?;
    let kind = FileType::from_raw_mode(told.st_mode);
    let is_regular = kind == FileType::RegularFile;
    // In a folder that all may write to, the name can be guessed, and a file be put there by somebody.
    let is_strange = told.st_uid != rustix::process::geteuid().as_raw();
    if (is_regular || kind == FileType::Fifo) && is_strange || is_regular && told.st_nlink != 1 {
        return Err(Errno::PERM);
    }
    if is_regular || kind == FileType::Fifo {
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        // Where files cannot be locked, that does not matter.
        if locked == Err(Errno::AGAIN) {
            return Err(Errno::BUSY);
        }
    }
    if is_regular {
        rustix::fs::fchmod(&file, own)?;
        rustix::fs::ftruncate(&file, 0)?;
    }
    Ok((file, is_regular))
}

#[cfg(test)]
mod tests;
