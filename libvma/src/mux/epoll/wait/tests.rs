use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::*;
use crate::mux::epoll::Epolls;
use crate::socket::fixture::stack_with;

const SECOND: u64 = 1_000_000_000;

/// The kernel's events of the instance that are there now, all with the data 7.
fn kernels(instance: &OwnedFd, room: &mut [Event]) -> usize {
    let mut found = Vec::with_capacity(room.len());
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    epoll::wait(instance, rustix::buffer::spare_capacity(&mut found), Some(&now)).unwrap();
    room.iter_mut()
        .zip(&found)
        .for_each(|(event, _)| *event = Event { events: libc::EPOLLIN as u32, u64: 7 });
    found.len()
}

// covers: MUX-01
#[test]
fn what_the_kernel_tells_ends_the_sleep_and_is_asked_for_once() {
    // The kernel has no turn of its own.
    let stack = stack_with(&[("VMA_SELECT_POLL_OS_RATIO", "0")]);
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let (mut far, near) = UnixStream::pair().unwrap();
    epoll::add(&instance, &near, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
    let epfd = instance.as_raw_fd();
    let (_, watched) = Epolls::default().add(&stack, vec![epfd]).unwrap();
    let wait_for = |timeout| {
        let mut asked = 0;
        let kernel = &mut |room: &mut [Event]| {
            asked += 1;
            Ok(kernels(&instance, room))
        };
        let call = Call { epfd, timeout: Some(timeout), mask: None, kernel, disarm: &mut |_| {} };
        let mut out = [Event { events: 0, u64: 0 }; 4];
        let found = wait(&stack, &watched, &mut out, call);
        (found, asked)
    };
    assert_eq!(wait_for(1000).0, Ok(0));
    far.write_all(b"x").unwrap();
    let began = Instant::now();
    assert_eq!(wait_for(10 * SECOND), (Ok(1), 1));
    assert_eq!(wait_for(1), (Ok(1), 1), "a wait that is over before it sleeps");
    assert_eq!(wait_for(0), (Ok(1), 1));
    assert!(began.elapsed() < Duration::from_secs(5));
}
