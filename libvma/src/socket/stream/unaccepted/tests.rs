use super::*;
use crate::socket::fixture::Tcp;

#[test]
fn a_listener_may_be_shared_if_it_came_from_a_parent_or_went_to_a_child() {
    let shared = |change: fn(&mut super::super::Stream), forks: u32| {
        let tcp = Tcp::listening();
        tcp.with_stream(change);
        tcp.with(|_, socket| socket.forks = socket.forks.wrapping_add(forks));
        may_be_shared(&mut tcp.stack.shard.lock().unwrap(), tcp.id)
    };
    assert!(!shared(|_| {}, 0));
    assert!(shared(|stream| stream.left = true, 0));
    assert!(shared(|stream| stream.inherited_at = Some(3), 0));
    assert!(shared(|_| {}, 1), "the process has forked since it was made");
}

/// Without an interface the kernel cannot be given a connection: it is to be accepted here.
#[test]
fn clients_that_cannot_be_handed_over_are_kept() {
    let tcp = Tcp::listening();
    tcp.put_client(1000, b"");
    hand_over_shared(&tcp.stack, tcp.id);
    assert!(!tcp.with_stream(|stream| stream.left), "nobody else has the listener");
    hand_over(&tcp.stack, tcp.id);
    assert!(tcp.with_stream(|stream| stream.left), "new clients are the kernel's");
    assert!(tcp.stack.shard.lock().unwrap().has_clients(tcp.id));
    // A socket without waiting clients has nothing to hand over, and nothing to leave.
    for other in [Tcp::listening(), Tcp::connected()] {
        hand_over(&other.stack, other.id);
        assert!(!other.with_stream(|stream| stream.left));
    }
}

#[test]
fn a_step_that_the_kernel_does_not_take_is_repeated_so_often() {
    for (succeeds_at, expected) in [(1, Some(1)), (3, Some(3)), (TRIES + 1, None)] {
        let mut count = 0;
        let done = repeat(|| {
            count += 1;
            count == succeeds_at
        });
        assert_eq!(done.then_some(count), expected);
        assert!(count <= TRIES);
    }
}
