//! The user and groups of a process that has connected, by the kernel's word: as they were then, whatever program it has become since.

#![allow(unsafe_code, reason = "getsockopt(2) of SO_PEERGROUPS; no crate of ours has a safe one")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

pub struct Who {
    pub pid: i32,
    pub uid: u32,
    /// Effective and supplementary.
    groups: Vec<u32>,
}

impl Who {
    /// # Errors
    /// Of getsockopt(2).
    pub fn of(connection: &OwnedFd) -> anyhow::Result<Who> {
        let credentials = getsockopt(connection, PeerCredentials)?;
        let mut groups = groups_of(connection)?;
        groups.push(credentials.gid());
        Ok(Who { pid: credentials.pid(), uid: credentials.uid(), groups })
    }

    /// Whether it acts for this group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.groups.contains(&gid)
    }
}

/// As many as a process can have (NGROUPS_MAX).
const MOST: usize = 65536;

fn groups_of(connection: &OwnedFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; MOST];
    let mut len = libc::socklen_t::try_from(size_of_val(groups.as_slice())).unwrap_or(0);
    // SAFETY: the kernel writes at most `len` bytes, all of them the vector's, and says in `len` how many it has written.
    let asked = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if asked < 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(len as usize / size_of::<u32>());
    Ok(groups)
}
