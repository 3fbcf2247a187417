//! The registrations of an epoll instance, as the kernel tells them in /proc (proc_pid_fdinfo(5)).

use super::{EDGE, EXCLUSIVE, ONESHOT, UNASKED};
use crate::shard::Interest;
use crate::sys::fd::read_file;

const WAKEUP: u32 = libc::EPOLLWAKEUP as u32;

/// Is it an epoll instance, and does the kernel tell what it watches?
pub fn are_told(instance: i32) -> bool {
    // Others have no such lines; one that watches nothing has none, either.
    read_file(&format!("/proc/self/fdinfo/{instance}"))
        .is_ok_and(|text| text.windows(4).any(|word| word == b"tfd:"))
}

/// The registrations of the file with this inode. None if the kernel does not tell.
pub fn of(instance: i32, inode: u64) -> Option<Vec<Interest>> {
    let text = read_file(&format!("/proc/self/fdinfo/{instance}")).ok()?;
    let text = core::str::from_utf8(&text).ok()?;
    let lines = text.lines().filter(|line| line.starts_with("tfd:"));
    // A line that is not understood makes it all None.
    let all: Option<Vec<_>> = lines.map(|line| parse(line, inode)).collect();
    Some(all?.into_iter().flatten().collect())
}

/// `tfd:        5 events:       19 data:                5  pos:0 ino:9d23 sdev:8`, hexadecimal but for the
/// descriptor. Outer None: the line is not understood; inner: it is another file's.
fn parse(line: &str, inode: u64) -> Option<Option<Interest>> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let descriptor = words.next()?.parse().ok()?;
    let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
    let data = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    let theirs = words.find_map(|word| word.strip_prefix("ino:"))?;
    if u64::from_str_radix(theirs, 16).ok()? != inode {
        return Some(None);
    }
    // The kernel takes all events away from a one-shot registration that has fired.
    let spent = events & ONESHOT != 0 && events & !(ONESHOT | EDGE | EXCLUSIVE | WAKEUP) == 0;
    let (events, in_kernel, news) = (events | UNASKED, false, false);
    Some(Some(Interest { descriptor, events, data, spent, in_kernel, news, about: u32::MAX }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = "tfd:        5 events: 8000001d data: cafe00000005  pos:0 ino:9d23 sdev:8";
        let found = parse(line, 0x9d23).unwrap().unwrap();
        assert_eq!(
            (found.descriptor, found.events, found.data),
            (5, 0x8000_001d, 0xcafe_0000_0005)
        );
        assert!(!found.spent && !found.in_kernel);
        assert!(parse(line, 1).unwrap().is_none());
        assert!(parse("tfd: x", 1).is_none());
    }

    #[test]
    fn a_one_shot_registration_that_has_fired_is_spent() {
        let line = "tfd: 5 events: 40000000 data: 5 pos:0 ino:1 sdev:8";
        assert!(parse(line, 1).unwrap().unwrap().spent);
        let line = "tfd: 5 events: 40000019 data: 5 pos:0 ino:1 sdev:8";
        assert!(!parse(line, 1).unwrap().unwrap().spent);
    }

    #[test]
    fn the_kernel_tells_what_is_registered() {
        use rustix::event::epoll;
        use std::os::fd::AsRawFd;
        let (one, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let inode = crate::sys::fd::inode(one.as_raw_fd());
        assert_eq!(of(instance.as_raw_fd(), inode).map(|all| all.len()), Some(0));
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&instance, &one, epoll::EventData::new_u64(77), events).unwrap();
        let all = of(instance.as_raw_fd(), inode).unwrap();
        assert_eq!(all.len(), 1);
        let (kernels, expected) = (all[0].events, events.bits() | UNASKED);
        assert_eq!((all[0].descriptor, all[0].data, kernels), (one.as_raw_fd(), 77, expected));
    }
}
