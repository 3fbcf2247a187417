use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use libvma_dev::stats::Counters;

use super::*;
use crate::shard::Interest;
use crate::socket::fixture::stack;

/// Receives without blocking; `os` is what the kernel's socket says, if it is to be asked.
fn receive_once(os: Option<Result<isize, i32>>, flags: i32) -> (Outcome<Received>, Counters) {
    let stack = stack();
    let mut socket = Socket::new(-1, true, &stack.config);
    socket.state = State::Offloaded;
    if os.is_some() {
        socket.order.note_readable();
    }
    let id = stack.shard.lock().unwrap().attach(socket, 0);
    let mut ask = || os.unwrap_or(Err(libc::EAGAIN));
    let mut room = [0; 16];
    let mut buffers = [IoSliceMut::new(&mut room)];
    let request = Request { buffers: &mut buffers, flags, control: None, os: &mut ask };
    let outcome = receive(&stack, id, request);
    let mut state = stack.shard.lock().unwrap();
    assert_eq!(state.socket(id).unwrap().0.rx_thread, thread::thread_id() as u32);
    (outcome, state.counters_of(id).unwrap())
}

// covers: STAT-38
#[test]
fn what_the_kernels_socket_says_is_counted_as_its() {
    let none = Counters::default();
    let (outcome, counters) = receive_once(Some(Ok(5)), 0);
    assert!(matches!(outcome, Outcome::Ours(Received::FromOs(5))));
    let got = Counters { rx_os_packets: 1, rx_os_bytes: 5, rx_os_poll_hits: 1, ..none };
    assert_eq!(counters, got);
    // A look takes nothing.
    let (_, counters) = receive_once(Some(Ok(5)), libc::MSG_PEEK);
    assert_eq!(counters, Counters { rx_os_poll_hits: 1, ..none });
    let (outcome, counters) = receive_once(Some(Err(libc::ECONNREFUSED)), 0);
    assert!(matches!(outcome, Outcome::Errno(libc::ECONNREFUSED)));
    assert_eq!(counters, Counters { rx_os_errors: 1, ..none });
}

// covers: STAT-38, STAT-40, FIX-24
#[test]
fn nothing_to_receive_is_a_miss_and_an_eagain() {
    for os in [None, Some(Err(libc::EAGAIN))] {
        let (outcome, counters) = receive_once(os, 0);
        assert!(matches!(outcome, Outcome::Errno(libc::EAGAIN)));
        let expected = Counters { rx_eagain: 1, rx_poll_misses: 1, ..Counters::default() };
        assert_eq!(counters, expected);
    }
}

const INTEREST: Interest = Interest {
    descriptor: 7,
    events: libc::EPOLLIN as u32,
    data: 7,
    spent: false,
    in_kernel: true,
    news: false,
    about: u32::MAX,
};

/// The kernel's word that an epoll call has passed on holds, whatever becomes of the registration before the socket is read.
#[test]
fn the_kernels_word_outlives_the_registration() {
    for end in ["stays", "is taken back", "goes with its instance", "began later"] {
        for asks_for_length in [false, true] {
            let stack = stack();
            let (sender, shadow) = UnixDatagram::pair().unwrap();
            sender.send(b"x").unwrap();
            let mut socket = Socket::new(shadow.as_raw_fd(), true, &stack.config);
            socket.state = State::Offloaded;
            let mut state = stack.shard.lock().unwrap();
            let id = state.attach(socket, 0);
            let set = state.new_set(-1);
            if end != "began later" {
                state.watch(set, id, INTEREST);
            }
            state.raise_os_doubt();
            match end {
                "is taken back" => assert!(state.unwatch(set, id, 7)),
                "goes with its instance" => state.end_set(set),
                _ => {}
            }
            drop(state);
            if asks_for_length {
                let _ = next_len(&stack, id);
                let mut state = stack.shard.lock().unwrap();
                let looked = state.socket(id).unwrap().1.order.may_be_readable();
                assert_eq!(looked, end != "began later", "{end}");
                continue;
            }
            let mut asked = 0;
            for _ in 0..2 {
                let mut ask = || {
                    asked += 1;
                    Err(libc::EAGAIN)
                };
                let mut room = [0; 16];
                let mut buffers = [IoSliceMut::new(&mut room)];
                let request =
                    Request { buffers: &mut buffers, flags: 0, control: None, os: &mut ask };
                assert!(matches!(receive(&stack, id, request), Outcome::Errno(libc::EAGAIN)));
            }
            // Without open rings each call asks once anyhow.
            assert_eq!(asked, 2 + i32::from(end != "began later"), "{end}");
        }
    }
}
