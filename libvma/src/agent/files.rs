//! The two files by which the daemon knows a process: the name of its socket, and one that is empty and
//! open as long as the process lives.
//!
//! They lie where everybody may write: nothing is followed, opened or replaced there that is not this
//! user's own.

use std::path::{Path, PathBuf};

use libvma_dev::agent::{pid_file, socket_file};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::link::Link;
use crate::sys::{Fd, fd};

/// Everybody may put files there, and remove his own.
const DIRECTORY_MODE: u32 = 0o1777;
const PID_FILE_MODE: u32 = 0o640;

/// Files of this process, removed by [`Files::remove`].
pub struct Files {
    /// Held open.
    pid_file: Fd,
    pid_path: String,
    socket_path: PathBuf,
    socket: (u64, u64),
}

/// What could not be made, and why.
pub struct Failure {
    pub path: PathBuf,
    pub errno: Errno,
}

impl Files {
    /// Makes the directory if it is not there, and the files of process `pid`; the name is the link's.
    pub fn make(directory: &Path, pid: i32, link: &Link) -> Result<Files, Failure> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |errno| Failure { path, errno }
        };
        make_directory(directory).map_err(failed(directory))?;
        let path = pid_file(directory, pid);
        let pid_path = path.to_string_lossy().into_owned();
        // Locked, so that a process of this number in another namespace is not taken for a dead one.
        let pid_file = fd::create_private(&pid_path, 0).map_err(failed(&path))?;
        let socket_path = socket_file(directory, pid);
        let made = rustix::fs::fchmod(&pid_file, Mode::from_raw_mode(PID_FILE_MODE))
            .map_err(failed(&path))
            .and_then(|()| name(link, &socket_path).map_err(failed(&socket_path)));
        match made {
            Ok(socket) => Ok(Files { pid_file, pid_path, socket_path, socket }),
            Err(failure) => {
                fd::remove_own(&pid_file, &pid_path);
                Err(failure)
            }
        }
    }

    /// Takes both away, unless somebody else's have the names by now.
    pub fn remove(self) {
        if rustix::fs::lstat(&self.socket_path).map(identity) == Ok(self.socket) {
            let _ = rustix::fs::unlink(&self.socket_path);
        }
        fd::remove_own(&self.pid_file, &self.pid_path);
    }
}

fn make_directory(path: &Path) -> Result<(), Errno> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(DIRECTORY_MODE)) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    // Whatever the umask is; and not what somebody put there meanwhile.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = Fd::adopt(rustix::fs::open(path, flags, Mode::empty())?)?;
    rustix::fs::fchmod(&directory, Mode::from_raw_mode(DIRECTORY_MODE))
}

/// Gives the link its name. A socket of the same name is that of a process that is gone: the other file
/// was not locked.
fn name(link: &Link, path: &Path) -> Result<(u64, u64), Errno> {
    match rustix::fs::lstat(path) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            return Err(Errno::EXIST);
        }
        Ok(_) => rustix::fs::unlink(path)?,
        Err(_) => {}
    }
    link.take_name(path)?;
    rustix::fs::lstat(path).map(identity)
}

fn identity(stat: Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
