//! The directory where every library has a socket for its answers and an empty file that it holds
//! open: made, kept in order, and tidied of files whose process is dead.
//!
//! Everybody may write there, so no name in it is trusted: files are removed only after a look at what
//! they are and whose, and by the directory's descriptor.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use libvma_dev::agent;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use crate::endpoint::is_served;

pub struct NotifyDir {
    directory: OwnedFd,
    path: PathBuf,
}

impl NotifyDir {
    /// Opens the directory, made if it is missing (not its parents), with mode 01777. The sticky bit
    /// is more than the original's 0777: with it a user cannot remove or replace files of others.
    ///
    /// An existing one that all may write is put in the same order: a user may have made it before the
    /// daemon came. One that only some may write is never opened to more, as it may be a mistake.
    pub fn open(path: &Path) -> anyhow::Result<NotifyDir> {
        let what = || format!("failed to create folder {}", path.display());
        let made = match rustix::fs::mkdir(path, OPEN_TO_ALL) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error).with_context(what),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())
            .with_context(|| format!("cannot open folder {}", path.display()))?;
        let status = rustix::fs::fstat(&directory).with_context(what)?;
        let mode = Mode::from_raw_mode(status.st_mode);
        if made {
            // mkdir's mode was cut by the umask.
            rustix::fs::fchmod(&directory, OPEN_TO_ALL).with_context(what)?;
        } else if !mode.contains(Mode::WOTH) {
            let path = path.display();
            log::warn!("folder {path} is not open to all: other users' processes cannot be served");
        } else {
            let what = || format!("cannot put folder {} in order", path.display());
            if status.st_uid != 0 && status.st_uid != geteuid().as_raw() {
                log::info!("folder {} was of user {}", path.display(), status.st_uid);
                rustix::fs::fchown(&directory, Some(geteuid()), None).with_context(what)?;
            }
            if !mode.contains(Mode::SVTX) {
                rustix::fs::fchmod(&directory, OPEN_TO_ALL).with_context(what)?;
            }
        }
        Ok(NotifyDir { directory, path: path.to_owned() })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The file's name, if it lies in this very directory by its path.
    pub fn name_of<'a>(&self, file: &'a Path) -> Option<&'a std::ffi::OsStr> {
        if file.parent() == Some(self.path.as_path()) { file.file_name() } else { None }
    }

    /// Removes both files of a process that is dead, if they were that user's.
    pub fn remove(&self, pid: i32, uid: u32) {
        for path in [agent::pid_file(Path::new(""), pid), agent::socket_file(Path::new(""), pid)] {
            self.remove_if(&path, |status| status.st_uid == uid);
        }
    }

    /// Removes what processes left behind while no daemon ran. A process of another pid namespace has
    /// a number that says nothing here, so a socket is dead if nobody has it open, and the other file
    /// if there is neither a socket nor such a process.
    pub fn tidy(&self) -> anyhow::Result<()> {
        let what = || format!("cannot read folder {}", self.path.display());
        let mut processes: Vec<i32> = Vec::new();
        for entry in fs::read_dir(&self.path).with_context(what)? {
            let name = entry.with_context(what)?.file_name();
            processes.extend(name.to_str().and_then(agent::pid_of_file));
        }
        processes.sort_unstable();
        processes.dedup();
        for pid in processes {
            let socket = agent::socket_file(&self.path, pid);
            if is_served(&socket).unwrap_or(true) || !self.is_old(&socket) {
                continue;
            }
            let had_socket = self.remove_if(&agent::socket_file(Path::new(""), pid), |_| true);
            if had_socket || !is_alive(pid) {
                self.remove_if(&agent::pid_file(Path::new(""), pid), is_old);
            }
        }
        Ok(())
    }

    /// True also if there is no such file.
    fn is_old(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default();
        let status = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        status.map_or(true, |status| is_old(&status))
    }

    /// Removes a file or socket for which `condition` holds; whether it did. Nobody but its owner can
    /// replace it between the look and the removal, as the directory is sticky.
    fn remove_if(&self, name: &Path, condition: impl Fn(&Stat) -> bool) -> bool {
        let removed = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|status| {
                let kind = FileType::from_raw_mode(status.st_mode);
                let right = matches!(kind, FileType::RegularFile | FileType::Socket);
                if !right || !condition(&status) {
                    return Err(Errno::PERM);
                }
                rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())
            });
        match removed {
            Ok(()) => log::debug!("removed {}", self.path.join(name).display()),
            Err(Errno::NOENT) => {}
            Err(error) => {
                log::debug!("left {}: {error}", self.path.join(name).display());
            }
        }
        removed.is_ok()
    }
}

const OPEN_TO_ALL: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO).union(Mode::SVTX);

/// A library that starts makes one file after the other; it is not disturbed at that.
const YOUNG: Duration = Duration::from_secs(10);

fn is_old(status: &Stat) -> bool {
    let changed = u64::try_from(status.st_mtime).unwrap_or(0);
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(changed);
    // A time in the future is no reason to keep it.
    changed.elapsed().map_or(true, |age| age >= YOUNG)
}

fn is_alive(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(_) => true,
        Err(error) => io::Error::from(error).raw_os_error() != Some(Errno::SRCH.raw_os_error()),
    })
}
