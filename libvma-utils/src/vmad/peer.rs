//! Who a process is: what the kernel says of the sender of a datagram, against what it claims.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{CapabilitySet, capabilities};

/// A process that cannot be mistaken for a later one of the same number.
pub struct Peer {
    /// In the daemon's pid namespace.
    pid: Pid,
    /// As the process sees itself, and as its files are named.
    own_pid: i32,
    /// Real, effective, saved and of the file system, when it was looked at.
    uids: Vec<u32>,
    /// Readable when the process is dead.
    descriptor: OwnedFd,
}

impl Peer {
    /// The process that has this number now.
    ///
    /// # Errors
    /// ESRCH if it is dead, and of reading /proc.
    pub fn of(pid: i32) -> io::Result<Peer> {
        let pid = (pid > 0)
            .then(|| Pid::from_raw(pid))
            .flatten()
            .ok_or_else(|| io::Error::other("it is in a pid namespace out of sight"))?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
        let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
        let own_pid =
            innermost(&status).ok_or_else(|| io::Error::other("its /proc status has no NSpid"))?;
        let peer = Peer { pid, own_pid, uids: numbers(&status, "Uid:").collect(), descriptor };
        // Read of /proc while it was the same process.
        if peer.is_dead() { Err(rustix::io::Errno::SRCH.into()) } else { Ok(peer) }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn own_pid(&self) -> i32 {
        self.own_pid
    }

    /// Whether it acts for this user.
    pub fn is_of(&self, uid: u32) -> bool {
        self.uids.contains(&uid)
    }

    pub fn is_dead(&self) -> bool {
        let mut wanted = [PollFd::new(&self.descriptor, PollFlags::IN)];
        // Fails for lack of memory only; epoll will tell of the death then.
        poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Whether it may steer packets of the host: CAP_NET_ADMIN, and not only over a user namespace of
    /// its own.
    pub fn may_steer(&self) -> bool {
        let has = capabilities(Some(self.pid))
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
        let user_namespace = |process: &str| {
            let file = fs::metadata(format!("/proc/{process}/ns/user"))?;
            io::Result::Ok((file.dev(), file.ino()))
        };
        let same = match (
            user_namespace(&self.pid.as_raw_nonzero().to_string()),
            user_namespace("self"),
        ) {
            (Ok(theirs), Ok(ours)) => theirs == ours,
            _ => false,
        };
        has && same && !self.is_dead()
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The last number of NSpid in /proc/pid/status (proc_pid_status(5)): the number in the namespace that
/// the process is in.
fn innermost(status: &str) -> Option<i32> {
    let own = numbers(status, "NSpid:").last()?;
    i32::try_from(own).ok()
}

fn numbers<'a>(status: &'a str, name: &str) -> impl Iterator<Item = u32> + use<'a> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_in_the_innermost_namespace_is_the_last() {
        assert_eq!(innermost("Name:\tx\nNSpid:\t4711\t12\nNSpgid:\t1\n"), Some(12));
        assert_eq!(innermost("Name:\tx\nNSpid:\t4711\n"), Some(4711));
        assert_eq!(innermost("Name:\tx\n"), None);
    }

    #[test]
    fn a_process_is_dead_when_it_has_ended_though_nobody_has_waited() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("it runs");
        let pid = i32::try_from(child.id()).expect("a pid");
        let peer = Peer::of(pid).expect("it lives");
        assert_eq!((peer.own_pid(), peer.is_dead()), (pid, false));
        assert!(peer.is_of(rustix::process::getuid().as_raw()));
        assert!(!peer.is_of(u32::MAX));
        child.kill().expect("it is ours");
        let mut wanted = [PollFd::new(&peer, PollFlags::IN)];
        poll(&mut wanted, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).expect("no error");
        assert!(peer.is_dead());
        assert!(Peer::of(pid).is_err(), "a zombie is not registered");
        child.wait().expect("it is ours");
    }

    #[test]
    fn numbers_that_no_process_has_are_refused() {
        assert!(Peer::of(0).is_err());
        assert!(Peer::of(-1).is_err());
    }
}
