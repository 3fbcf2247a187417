//! The file `<VMA_STATS_SHMEM_DIR>/vmastat.<pid>`: made, written, removed.
//!
//! It is written by pwrite(2), never mapped: whoever cuts it short must not end the program. To be
//! called by the internal thread only, whose signals are blocked: a write beyond RLIMIT_FSIZE raises
//! one that kills.

use std::mem::size_of;
use std::path::Path;

use libvma_dev::stats::{
    CONTROL_AT, Control, File, Header, MAGIC, SNAPSHOT_AT, SOCKETS_AT, Snapshot, Socket, VERSION,
    size,
};
use zerocopy::IntoBytes;

use crate::log::log_line;
use crate::sys::time::{monotonic_nanos, realtime_nanos};
use crate::sys::{self, Fd, fd};

/// The file of this process.
pub struct Publisher {
    file: Fd,
    path: String,
    /// When it was made, in nanoseconds.
    made: u64,
    /// As in the file: odd while the rest is being written.
    sequence: u64,
    /// So many places were ever written.
    written: usize,
    /// That it cannot be written was said.
    failed: bool,
}

impl Publisher {
    /// None if none is wanted, or it cannot be made; then that is said.
    pub fn create(directory: &str, places: u32, control: &Control) -> Option<Publisher> {
        if directory.is_empty() {
            return None;
        }
        let process = sys::thread::process_id();
        let path = File::path_of(Path::new(directory), process as u32);
        let path = fd::absolute(&path.to_string_lossy());
        let made = fd::create_private(&path, size(places)).and_then(|file| {
            let header = header(process, places);
            // The header last: without it the file is nobody's.
            let written = fd::write_at(&file, control.as_bytes(), CONTROL_AT)
                .and_then(|()| fd::write_at(&file, header.as_bytes(), 0));
            written.inspect_err(|_| fd::remove_own(&file, &path)).map(|()| file)
        });
        match made {
            Ok(file) => {
                let made = monotonic_nanos();
                Some(Publisher { file, path, made, sequence: 0, written: 0, failed: false })
            }
            Err(errno) => {
                log_line!(
                    Warning,
                    "{path} could not be made: {errno}; vma_stats will not see this process \
                     (VMA_STATS_SHMEM_DIR)"
                );
                None
            }
        }
    }

    /// The nanoseconds since the file was made.
    pub fn age(&self) -> u64 {
        monotonic_nanos().saturating_sub(self.made)
    }

    /// Removes the files of programs that were killed: nobody else might.
    pub fn tidy(&self) {
        let Some((directory, own)) = self.path.rsplit_once('/') else { return };
        for name in fd::names_in(directory) {
            let digits = name.strip_prefix("vmastat.").unwrap_or_default();
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty();
            if is_number && name != own {
                fd::remove_left(&format!("{directory}/{name}"), &MAGIC);
            }
        }
    }

    /// What readers ask for; None if the file does not tell.
    pub fn control(&self) -> Option<Control> {
        let mut control = Control::default();
        fd::read_at(&self.file, control.as_mut_bytes(), CONTROL_AT).then_some(control)
    }

    /// Writes the counters of one instant. `sockets` are all places up to the last one in use.
    pub fn write(&mut self, snapshot: &mut Snapshot, sockets: &[Socket]) {
        if let Err(errno) = self.try_write(snapshot, sockets)
            && !core::mem::replace(&mut self.failed, true)
        {
            log_line!(Warning, "{}: {errno}; vma_stats will wait in vain", self.path);
        }
    }

    fn try_write(&mut self, snapshot: &mut Snapshot, sockets: &[Socket]) -> rustix::io::Result<()> {
        // After a write that failed it is odd still.
        self.sequence = self.sequence.wrapping_add(1) | 1;
        snapshot.sequence = self.sequence;
        snapshot.taken = monotonic_nanos();
        // With the odd number first: who reads the rest finds it, or an earlier state.
        fd::write_at(&self.file, &self.sequence.to_ne_bytes(), SNAPSHOT_AT)?;
        fd::write_at(&self.file, snapshot.as_bytes(), SNAPSHOT_AT)?;
        fd::write_at(&self.file, sockets.as_bytes(), SOCKETS_AT)?;
        for place in sockets.len()..self.written {
            let at = SOCKETS_AT + (place * size_of::<Socket>()) as u64;
            fd::write_at(&self.file, Socket::default().as_bytes(), at)?;
        }
        self.written = sockets.len();
        self.sequence = self.sequence.wrapping_add(1);
        fd::write_at(&self.file, &self.sequence.to_ne_bytes(), SNAPSHOT_AT)
    }

    /// Takes the file away.
    pub fn remove(self) {
        fd::remove_own(&self.file, &self.path);
    }
}

fn header(process: i32, sockets: u32) -> Header {
    let mut library = [0; 3];
    let version = env!("CARGO_PKG_VERSION").split(['.', '-', '+']);
    for (number, text) in library.iter_mut().zip(version) {
        *number = text.parse().unwrap_or(0);
    }
    Header {
        magic: MAGIC,
        version: VERSION,
        process: process as u32,
        library,
        sockets,
        began: realtime_nanos(),
    }
}

#[cfg(test)]
mod tests;
