//! Reading a process's statistics, and asking it for things.

use std::fs::OpenOptions;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use super::layout::{
    CONTROL_AT, Control, Header, MAGIC, NAMED, SNAPSHOT_AT, SOCKETS_AT, Snapshot, Socket, VERSION,
    size,
};

/// VMA_STATS_FD_NUM is at most that.
const MOST_SOCKETS: u32 = 1024;

/// A process's file.
#[derive(Debug)]
pub struct File {
    file: std::fs::File,
    path: PathBuf,
    header: Header,
}

/// The counters of one instant.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub snapshot: Snapshot,
    /// Those in use only, in the order of their places.
    pub sockets: Vec<Socket>,
}

/// What can be asked for.
#[derive(Clone, Debug)]
pub enum Request<'a> {
    LogLevel(i32),
    LogDetails(i32),
    /// All lines about a descriptor (0: about all) to the log, at this level.
    Dump {
        descriptor: i32,
        level: i32,
    },
    /// Counters to zero: of these sockets, or of everything.
    Zero(&'a [i32]),
}

/// Why a file cannot be used.
#[derive(Debug)]
pub enum Problem {
    /// There is none.
    Missing,
    Io(io::Error),
    /// Not ours, cut short ...
    Foreign(&'static str),
    /// Of another version.
    Version(u32),
    /// The process does not write: it is stopped, or was killed.
    Silent,
    /// What runs in the process now is not what wrote the file: another program took the place of that
    /// one (exec).
    Left,
    /// Of another user than the process: anybody can put files into a directory like /tmp.
    Owner {
        file: u32,
        process: u32,
    },
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::Missing => f.write_str("no such file"),
            Problem::Io(error) => error.fmt(f),
            Problem::Foreign(what) => write!(f, "not a statistics file of libvma: {what}"),
            Problem::Version(theirs) => {
                write!(f, "version {theirs} of the statistics file; this tool reads {VERSION}")
            }
            Problem::Silent => f.write_str("the process does not answer"),
            Problem::Left => f.write_str("the program that wrote it does not run any more"),
            Problem::Owner { file, process } => write!(
                f,
                "the file is of user {file} and the process of user {process}, so it is not \
                 the process's own"
            ),
        }
    }
}

impl std::error::Error for Problem {}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        match error.kind() {
            io::ErrorKind::NotFound => Problem::Missing,
            io::ErrorKind::UnexpectedEof => Problem::Foreign("it is cut short"),
            _ => Problem::Io(error),
        }
    }
}

impl File {
    pub fn path_of(directory: &Path, process: u32) -> PathBuf {
        directory.join(format!("vmastat.{process}"))
    }

    /// The file of a process.
    pub fn open(directory: &Path, process: u32) -> Result<File, Problem> {
        let path = File::path_of(directory, process);
        // Whoever may write to the directory could have put something else there.
        let flags = libc_flags::NOFOLLOW | libc_flags::NONBLOCK;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path)?;
        let status = file.metadata()?;
        if !status.is_file() {
            return Err(Problem::Foreign("it is no regular file"));
        }
        let mut header = Header::default();
        file.read_exact_at(header.as_mut_bytes(), 0)?;
        if header.magic != MAGIC {
            return Err(Problem::Foreign("it begins otherwise"));
        }
        if header.version != VERSION {
            return Err(Problem::Version(header.version));
        }
        if header.sockets > MOST_SOCKETS || status.size() != size(header.sockets) {
            return Err(Problem::Foreign("its size is not what it says"));
        }
        if let Some(users) = users(process) {
            let owner = status.uid();
            if owner != 0 && !users.contains(&owner) {
                let process = users.first().copied().unwrap_or_default();
                return Err(Problem::Owner { file: owner, process });
            }
            if !is_held(&file) {
                return Err(Problem::Left);
            }
        }
        Ok(File { file, path, header })
    }

    /// Does the program that wrote it run? Its lock goes with it, also when another program takes its place in
    /// the process.
    pub fn is_held(&self) -> bool {
        is_held(&self.file)
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn control(&self) -> Result<Control, Problem> {
        let mut control = Control::default();
        self.file.read_exact_at(control.as_mut_bytes(), CONTROL_AT)?;
        Ok(control)
    }

    /// Asks for something; the process sees it within a tenth of a second.
    pub fn ask(&self, request: &Request<'_>) -> Result<(), Problem> {
        let control = self.control()?;
        match request {
            Request::LogLevel(level) => self.put(offset_of!(Control, log_level), level)?,
            Request::LogDetails(details) => self.put(offset_of!(Control, log_details), details)?,
            Request::Dump { descriptor, level } => {
                self.put(offset_of!(Control, dump_descriptor), descriptor)?;
                self.put(offset_of!(Control, dump_level), level)?;
                self.put(offset_of!(Control, dumps), &control.dumps.wrapping_add(1))?;
            }
            Request::Zero(sockets) => {
                let sockets = sockets.get(..sockets.len().min(NAMED)).unwrap_or_default();
                self.put(offset_of!(Control, zero_list), sockets)?;
                self.put(offset_of!(Control, zero_count), &(sockets.len() as u32))?;
                self.put(offset_of!(Control, zeroings), &control.zeroings.wrapping_add(1))?;
            }
        }
        Ok(())
    }

    fn put<T: IntoBytes + zerocopy::Immutable + ?Sized>(
        &self,
        offset: usize,
        value: &T,
    ) -> Result<(), Problem> {
        Ok(self.file.write_all_at(value.as_bytes(), CONTROL_AT + offset as u64)?)
    }

    /// The counters as they are now: asks for them and waits for the answer.
    pub fn take(&self, patience: Duration) -> Result<Taken, Problem> {
        let wanted = self.control()?.requests.wrapping_add(1);
        self.put(offset_of!(Control, requests), &wanted)?;
        let end = Instant::now() + patience;
        let mut nap = Duration::from_micros(200);
        loop {
            if let Some(taken) = self.last()? {
                // Another reader may have asked meanwhile: theirs is newer.
                let ahead = taken.snapshot.answered.wrapping_sub(wanted) as i32;
                if ahead >= 0 {
                    return Ok(taken);
                }
            }
            if Instant::now() >= end {
                return Err(Problem::Silent);
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(5));
        }
    }

    /// The snapshot that was written last; None while one is being written.
    pub fn last(&self) -> Result<Option<Taken>, Problem> {
        for _ in 0..100 {
            let before = self.sequence()?;
            if before % 2 != 0 {
                std::thread::yield_now();
                continue;
            }
            let mut snapshot = Snapshot::default();
            self.file.read_exact_at(snapshot.as_mut_bytes(), SNAPSHOT_AT)?;
            // As many as the file is long.
            let mut places = vec![Socket::default(); self.header.sockets as usize];
            self.file.read_exact_at(places.as_mut_slice().as_mut_bytes(), SOCKETS_AT)?;
            if self.sequence()? == before {
                places.retain(|socket| socket.used == 1);
                places.iter_mut().for_each(Socket::end_queues_below_zero);
                return Ok(Some(Taken { snapshot, sockets: places }));
            }
        }
        Ok(None)
    }

    fn sequence(&self) -> Result<u64, Problem> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, SNAPSHOT_AT)?;
        Ok(u64::read_from_bytes(&bytes).unwrap_or(1))
    }
}

/// A file in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub process: u32,
    pub path: PathBuf,
    /// Such a process runs, and may have written it.
    pub alive: bool,
}

/// All statistics files of a directory.
pub fn find_all(directory: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix("vmastat."));
        let Some(process) = process.and_then(|digits| digits.parse().ok()) else { continue };
        let path = entry.path();
        let alive = Path::new(&format!("/proc/{process}")).exists() && !is_left(&path);
        found.push(Found { process, path, alive });
    }
    found.sort_by_key(|found| found.process);
    Ok(found)
}

/// The users that a process acts for, the effective one first; None if there is no such process, or it
/// has ended and nobody has waited for it yet.
fn users(process: u32) -> Option<Vec<u32>> {
    // Fields of proc_pid_status(5): real, effective, saved, and for files.
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    if field("State:")?.trim_start().starts_with(['Z', 'X']) {
        return None;
    }
    let line = field("Uid:")?;
    let mut users: Vec<u32> = line.split_whitespace().filter_map(|id| id.parse().ok()).collect();
    if users.len() > 1 {
        users.swap(0, 1);
    }
    Some(users)
}

/// A process holds the lock of its file as long as the program runs. Where files cannot be locked,
/// nobody can tell.
fn is_held(file: &std::fs::File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            let _ = file.unlock();
            false
        }
        Err(_) => true,
    }
}

/// A whole file of ours whose program does not run any more.
fn is_left(path: &Path) -> bool {
    let flags = libc_flags::NOFOLLOW | libc_flags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.is_ok_and(|file| {
        // The lock comes before the header.
        let mut magic = [0; MAGIC.len()];
        file.metadata().is_ok_and(|status| status.is_file())
            && file.read_exact_at(&mut magic, 0).is_ok()
            && magic == MAGIC
            && !is_held(&file)
    })
}

/// open(2)'s, the same on all of Linux but a few architectures that nobody runs this on.
mod libc_flags {
    pub const NONBLOCK: i32 = 0o4000;
    #[cfg(any(target_arch = "x86_64", target_arch = "x86", target_arch = "riscv64"))]
    pub const NOFOLLOW: i32 = 0o400000;
    #[cfg(any(target_arch = "aarch64", target_arch = "arm", target_arch = "powerpc64"))]
    pub const NOFOLLOW: i32 = 0o100000;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("vma-stats-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// More than Linux has.
    const NOBODY: u32 = 4_194_305;

    fn write(path: &Path, sockets: u32, answered: u32) -> std::fs::File {
        let header = Header { magic: MAGIC, version: VERSION, sockets, ..Header::default() };
        let snapshot = Snapshot { answered, ..Snapshot::default() };
        let file = std::fs::File::create(path).unwrap();
        file.set_len(size(sockets)).unwrap();
        file.write_all_at(header.as_bytes(), 0).unwrap();
        file.write_all_at(snapshot.as_bytes(), SNAPSHOT_AT).unwrap();
        let socket = Socket { used: 1, descriptor: 7, ..Socket::default() };
        file.write_all_at(socket.as_bytes(), SOCKETS_AT + size_of::<Socket>() as u64).unwrap();
        file
    }

    #[test]
    fn what_was_written_is_read() {
        let directory = scratch("read");
        let path = File::path_of(&directory, NOBODY);
        let file = write(&path, 3, 1);
        let opened = File::open(&directory, NOBODY).unwrap();
        let taken = opened.take(Duration::ZERO).unwrap();
        assert_eq!(taken.sockets.iter().map(|s| s.descriptor).collect::<Vec<_>>(), [7]);
        assert!(matches!(opened.take(Duration::from_millis(1)), Err(Problem::Silent)));
        // While it is being written.
        file.write_all_at(&1u64.to_ne_bytes(), SNAPSHOT_AT).unwrap();
        assert!(opened.last().unwrap().is_none());
        opened.ask(&Request::Dump { descriptor: 5, level: 3 }).unwrap();
        opened.ask(&Request::Zero(&[3, 4])).unwrap();
        let control = opened.control().unwrap();
        assert_eq!((control.requests, control.dumps, control.dump_descriptor), (2, 1, 5));
        assert_eq!((control.zeroings, control.zero_count, control.zero_list[1]), (1, 2, 4));
        std::fs::remove_dir_all(directory).unwrap();
    }

    // covers: STAT-39, FIX-25
    #[test]
    fn a_queue_below_zero_is_read_as_empty() {
        let directory = scratch("below-zero");
        let file = write(&File::path_of(&directory, NOBODY), 3, 1);
        let socket = Socket {
            used: 1,
            ready_packets: u64::MAX,
            ready_bytes: 0u64.wrapping_sub(1448),
            unsent_bytes: u64::MAX,
            zero_copy_packets: 1 << 63,
            zero_copy_bytes: 5,
            ..Socket::default()
        };
        file.write_all_at(socket.as_bytes(), SOCKETS_AT).unwrap();
        let taken = File::open(&directory, NOBODY).unwrap().take(Duration::ZERO).unwrap();
        let told = &taken.sockets[0];
        let packets = (told.ready_packets, told.zero_copy_packets);
        let bytes = (told.ready_bytes, told.unsent_bytes, told.zero_copy_bytes);
        assert_eq!((packets, bytes), ((0, 0), (0, 0, 5)));
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let directory = scratch("refuse");
        assert!(matches!(File::open(&directory, NOBODY), Err(Problem::Missing)));
        let path = File::path_of(&directory, NOBODY);
        let says = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            File::open(&directory, NOBODY).unwrap_err().to_string()
        };
        assert!(says(b"").contains("cut short"));
        assert!(says(&[7; 9000]).contains("begins otherwise"));
        let header = Header { magic: MAGIC, version: 9, ..Header::default() };
        assert!(says(header.as_bytes()).contains("version 9"));
        let header = Header { magic: MAGIC, version: VERSION, sockets: 1, ..Header::default() };
        assert!(says(header.as_bytes()).contains("size"));
        // Cut short while it is open.
        let file = write(&path, 3, 1);
        let opened = File::open(&directory, NOBODY).unwrap();
        file.set_len(100).unwrap();
        assert!(matches!(opened.last(), Err(Problem::Foreign(_))));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(File::open(&directory, NOBODY).is_err());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_is_believed_while_its_lock_is_held() {
        let directory = scratch("held");
        let own = std::process::id();
        let file = write(&File::path_of(&directory, own), 3, 1);
        let alive =
            || find_all(&directory).unwrap().iter().map(|one| one.alive).collect::<Vec<_>>();
        assert!(matches!(File::open(&directory, own), Err(Problem::Left)));
        assert_eq!(alive(), [false]);
        file.lock().unwrap();
        let opened = File::open(&directory, own).unwrap();
        assert!(opened.is_held());
        assert_eq!(alive(), [true]);
        drop(file);
        assert!(!opened.is_held());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn only_the_processs_own_user_or_root_is_believed() {
        let directory = scratch("owner");
        let own = std::process::id();
        let mine = std::fs::metadata("/proc/self").unwrap().uid();
        assert_eq!(users(own).unwrap().first(), Some(&mine));
        assert_eq!(users(NOBODY), None);
        let path = File::path_of(&directory, own);
        let file = write(&path, 3, 1);
        file.lock().unwrap();
        assert!(File::open(&directory, own).is_ok());
        // Only root can give a file away.
        if std::os::unix::fs::chown(&path, Some(mine + 7), None).is_ok() {
            let problem = File::open(&directory, own).unwrap_err();
            let said = format!("user {} and the process of user {mine}", mine + 7);
            assert!(problem.to_string().contains(&said), "{problem}");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn only_numbers_of_processes_are_found() {
        let directory = scratch("find");
        let own = std::process::id();
        for name in
            ["vmastat.x", "vmastat.", "other.5", &format!("vmastat.{own}"), "vmastat.4194305"]
        {
            std::fs::write(directory.join(name), b"").unwrap();
        }
        let mut found: Vec<_> =
            find_all(&directory).unwrap().into_iter().map(|f| (f.process, f.alive)).collect();
        found.sort();
        assert_eq!(found, [(own, true), (4_194_305, false)]);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
