//! That there is one daemon only: the lock file, whose lock ends with the process however it ends, and
//! the file with the process id that everybody may read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Held by the one daemon. Both files go when it is dropped.
pub struct Instance {
    lock_file: PathBuf,
    pid_file: PathBuf,
    /// The record lock goes with the first descriptor of this file that is closed.
    _locked: File,
}

/// Why there is no second one.
#[derive(Debug)]
pub enum Refused {
    /// Another daemon holds the lock.
    Running(String),
    Failed(String),
}

impl Instance {
    /// Takes the lock and writes the process id.
    pub fn take(lock_file: &Path, pid_file: &Path) -> Result<Instance, Refused> {
        let locked = lock(lock_file)?;
        let failed = |file: &Path, error: &io::Error| {
            Refused::Failed(format!("cannot write {}: {error}", file.display()))
        };
        write_pid(&locked).map_err(|error| failed(lock_file, &error))?;
        let instance = Instance {
            lock_file: lock_file.to_owned(),
            pid_file: pid_file.to_owned(),
            _locked: locked,
        };
        open(pid_file, 0o644)
            .and_then(|file| write_pid(&file))
            .map_err(|error| failed(pid_file, &error))?;
        Ok(instance)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.pid_file);
        // While it is locked, so that it is ours.
        let _ = fs::remove_file(&self.lock_file);
    }
}

fn lock(path: &Path) -> Result<File, Refused> {
    loop {
        let file = open(path, 0o640).map_err(|error| {
            Refused::Failed(format!(
                "could not open PID lock file {}, {}",
                path.display(),
                say(&error)
            ))
        })?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(error @ (Errno::AGAIN | Errno::ACCESS)) => {
                return Err(Refused::Running(format!(
                    "could not lock PID lock file {}, {}; vmad already runs{}",
                    path.display(),
                    say(&error.into()),
                    holder(file)
                )));
            }
            Err(error) => {
                return Err(Refused::Failed(format!(
                    "could not lock PID lock file {}, {}",
                    path.display(),
                    say(&error.into())
                )));
            }
        }
        // A daemon that ended in this moment has removed the file that we hold.
        let ours = file.metadata().map(|file| (file.dev(), file.ino())).ok();
        if ours.is_some() && ours == fs::metadata(path).map(|file| (file.dev(), file.ino())).ok() {
            return Ok(file);
        }
    }
}

/// Not by way of a link: the directories of such files are open to many on some systems. What somebody
/// else has put there goes: it could be locked for ever, or be another name of a file of ours.
fn open(path: &Path, mode: u32) -> io::Result<File> {
    if let Ok(there) = fs::symlink_metadata(path)
        && there.is_file()
        && (there.uid() != geteuid().as_raw() || there.nlink() != 1)
    {
        fs::remove_file(path)?;
    }
    let no_links = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(mode).custom_flags(no_links);
    options.open(path)
}

fn write_pid(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes())
}

/// The words of the original, which scripts look for.
fn say(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    format!("errno={} ({text})", error.raw_os_error().unwrap_or_default())
}

/// Whoever holds it, by what it has written there.
fn holder(file: File) -> String {
    let mut text = String::new();
    let read = file.take(16).read_to_string(&mut text);
    match (read, text.lines().next().map(str::parse::<u32>)) {
        (Ok(_), Some(Ok(pid))) => format!(" as process {pid}"),
        _ => String::new(),
    }
}
