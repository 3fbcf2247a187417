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
    // Longer than a thread of a busy host waits for a processor: one that is late does not block.
    let timeout = blocking.then_some(20_000_000);
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

/// Besides the rings the shadow ends the sleep of a call, where it may have something for the call.
#[test]
fn the_shadow_is_listened_to_where_it_may_have_something() {
    let tcp = crate::socket::fixture::Tcp::listening();
    let listened = |watches| {
        let mut state = tcp.stack.shard.lock().unwrap();
        let manner = Manner { blocking: true, timeout: None, watches, call: Call::Other };
        let check = |_: &mut Guard<'_>| Step::<()>::Nothing;
        let (id, own_number, handled) = (tcp.id, 0, 0);
        let mut calling =
            Calling { id, manner, check, held: None, handled, own_number, partly: false };
        let mut set = PollSet::default();
        let (sleeper, _) = state.new_sleeper().unwrap();
        assert!(calling.enlist(&mut state, sleeper, &mut set));
        set.as_mut_slice().first().map(|entry| (entry.fd, entry.events))
    };
    assert_eq!(listened(Watches::Listener), Some((tcp.raw(), libc::POLLIN)));
    // A thread that is in the kernel's accept() wakes the others.
    tcp.with_stream(|stream| stream.os_accepting = true);
    assert_eq!(listened(Watches::Listener).map(|(fd, _)| fd), Some(-1));
    assert_eq!(listened(Watches::Nothing).map(|(fd, _)| fd), Some(-1));
    assert_eq!(listened(Watches::Pipe { writing: true }).map(|(fd, _)| fd), Some(-1));
}

/// A socket that is given to the kernel, or closed, while a call waits.
#[test]
fn a_call_on_a_socket_that_has_left_says_where_it_went() {
    let look = |leave: &dyn Fn(&crate::socket::fixture::Tcp)| {
        let tcp = crate::socket::fixture::Tcp::new();
        leave(&tcp);
        let manner =
            Manner { blocking: false, timeout: None, watches: Watches::Nothing, call: Call::Other };
        until(&tcp.stack, tcp.id, manner, |_| None::<()>)
    };
    let kernels = crate::socket::WhyOs::Passed;
    assert_eq!(look(&|_| {}), Err(Ended::WouldBlock));
    assert_eq!(look(&|tcp| tcp.with(|_, it| it.state = State::Os(kernels))), Err(Ended::Departed));
    let detach = |tcp: &crate::socket::fixture::Tcp| {
        tcp.stack.shard.lock().unwrap().detach(tcp.id);
    };
    assert_eq!(look(&detach), Err(Ended::Gone));
    let depart = |tcp: &crate::socket::fixture::Tcp| {
        let mut state = tcp.stack.shard.lock().unwrap();
        state.depart(tcp.id);
        state.detach(tcp.id);
    };
    assert_eq!(look(&depart), Err(Ended::Departed));
}
