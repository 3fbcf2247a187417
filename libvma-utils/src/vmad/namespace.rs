//! Network namespaces of the processes that the daemon serves: held open, so that they outlive their
//! last process until the daemon is done in them, and entered for a moment.
//!
//! What the daemon's loop does inside a namespace must be short. Sockets made inside stay
//! in the namespace where they were made (network_namespaces(7)), so only their making needs to be
//! done there. What is done inside lives elsewhere (`resets`, `traffic`).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::rc::{Rc, Weak};

use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The namespaces in use, each once.
#[derive(Default)]
pub struct Namespaces(HashMap<Identity, Weak<Namespace>>);

/// A network namespace, held open by a descriptor.
pub struct Namespace {
    file: File,
    identity: Identity,
}

/// What tells namespaces apart: device and inode of the file in nsfs (namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Namespaces {
    pub fn new() -> Self {
        Self::default()
    }

    /// The namespace that process `pid` is in now; the same [`Rc`] as long as somebody holds it.
    ///
    /// To be asked while the process lives: that of a zombie is gone.
    ///
    /// # Errors
    /// ENOENT or ESRCH if there is no such process, EACCES without CAP_SYS_PTRACE for a process of
    /// another user.
    pub fn of(&mut self, pid: Pid) -> io::Result<Rc<Namespace>> {
        let namespace = Namespace::of(pid)?;
        if let Some(known) = self.0.get(&namespace.identity).and_then(Weak::upgrade) {
            return Ok(known);
        }
        self.0.retain(|_, held| held.strong_count() > 0);
        let namespace = Rc::new(namespace);
        self.0.insert(namespace.identity, Rc::downgrade(&namespace));
        Ok(namespace)
    }
}

impl Namespace {
    /// The one that process `pid` is in now, for a thread of its own: [`Namespaces::of`] says when to ask, and what may fail.
    ///
    /// # Errors
    /// As there.
    pub fn of(pid: Pid) -> io::Result<Namespace> {
        Namespace::open(&format!("/proc/{}/ns/net", pid.as_raw_nonzero()))
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Is it the one that this file of nsfs stands for?
    ///
    /// # Errors
    /// Of fstat(2).
    pub fn is_that_of(&self, file: &File) -> io::Result<bool> {
        let metadata = file.metadata()?;
        Ok(self.identity == Identity { device: metadata.dev(), inode: metadata.ino() })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Does `work` with this thread inside the namespace.
    ///
    /// If the thread cannot come back, the process aborts: everything that it did from then on would
    /// happen to the wrong network.
    ///
    /// # Errors
    /// Of setns(2): EPERM without CAP_SYS_ADMIN here and in the namespace's user namespace. Nothing
    /// was done then.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let home = Self::open("/proc/thread-self/ns/net")?;
        if home.identity == self.identity {
            return Ok(work());
        }
        enter(&self.file)?;
        let back = Back(home.file);
        let result = work();
        drop(back);
        Ok(result)
    }

    fn open(path: &str) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok(Self { file, identity: Identity { device: metadata.dev(), inode: metadata.ino() } })
    }
}

/// Goes back when dropped, so also when the work panics.
struct Back(File);

impl Drop for Back {
    fn drop(&mut self) {
        if let Err(error) = enter(&self.0) {
            log::error!("cannot return to the daemon's own network namespace: {error}; aborting");
            std::process::abort();
        }
    }
}

fn enter(namespace: &File) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// Namespaces for tests.
#[cfg(test)]
#[path = "../../tests/network/mod.rs"]
pub mod network;
