use libvma_dev::stats::Counters;

use super::*;
use crate::socket::Socket;
use crate::socket::fixture::stack;

/// A call that finds nothing, or a part each time it looks. What was counted then.
fn counted(call: Call, blocking: bool, partly: bool) -> (Result<(), Ended>, Counters) {
    let stack = stack();
    let mut state = stack.shard.lock().unwrap();
    let socket = Socket::new(-1, false, &stack.config);
    let id = state.attach(socket, 0);
    let timeout = blocking.then_some(1_000_000);
    let manner = Manner { blocking, timeout, watches: Watches::Nothing, call };
    let ended = until_or_partly(&stack, state, id, manner, |_| match partly {
        true => Step::Part,
        false => Step::<()>::Nothing,
    });
    let mut state = stack.shard.lock().unwrap();
    let (endpoint, _) = state.socket(id).unwrap();
    let own = thread::thread_id() as u32;
    let threads = match call {
        Call::Receive => (own, 0),
        Call::Send => (0, own),
        Call::Other => (0, 0),
    };
    assert_eq!((endpoint.rx_thread, endpoint.tx_thread), threads);
    (ended, state.counters_of(id).unwrap())
}

// covers: STAT-38, STAT-40, FIX-24
#[test]
fn a_call_that_would_block_is_counted_on_its_side() {
    let none = Counters::default();
    let receive = Counters { rx_eagain: 1, rx_poll_misses: 1, ..none };
    let send = Counters { tx_eagain: 1, ..none };
    for (call, expected) in [(Call::Receive, receive), (Call::Send, send), (Call::Other, none)] {
        assert_eq!(counted(call, false, false), (Err(Ended::WouldBlock), expected));
        assert_eq!(counted(call, true, false), (Err(Ended::TimedOut), expected));
        // What did a part of its work does not say EAGAIN.
        assert_eq!(counted(call, false, true), (Err(Ended::WouldBlock), none));
        // But it slept.
        let slept = Counters { rx_poll_misses: expected.rx_poll_misses, ..none };
        assert_eq!(counted(call, true, true), (Err(Ended::TimedOut), slept));
    }
}

// covers: STAT-38
#[test]
fn a_call_that_fails_is_counted_on_its_side() {
    let stack = stack();
    let socket = Socket::new(-1, false, &stack.config);
    let id = stack.shard.lock().unwrap().attach(socket, 0);
    for call in [Call::Receive, Call::Receive, Call::Send, Call::Other] {
        let outcome: Outcome<()> = failed(&stack, id, call, libc::ECONNRESET);
        assert!(matches!(outcome, Outcome::Errno(libc::ECONNRESET)));
    }
    let counters = stack.shard.lock().unwrap().counters_of(id).unwrap();
    assert_eq!((counters.rx_errors, counters.tx_errors), (2, 1));
}
