use super::*;
use crate::socket::fixture::{Tcp, Udp, stack_with, with_socket};

fn waiting() -> Tcp {
    let tcp = Tcp::listening();
    tcp.with_stream(|stream| stream.phase = Phase::Listening { steered: false });
    tcp
}

#[test]
fn a_child_inherits_the_listeners_that_nobody_has_waited_on() {
    for (phase, is_found) in [
        (Phase::Fresh, false),
        (Phase::Listening { steered: false }, true),
        (Phase::Listening { steered: true }, false),
        (Phase::Connected, false),
    ] {
        let tcp = Tcp::in_phase(phase);
        assert_eq!(find(&tcp.stack, tcp.id).is_some(), is_found, "{phase:?}");
        let was_listener = matches!(phase, Phase::Listening { .. });
        assert_eq!(super::was_listener(&tcp.stack, tcp.id), was_listener, "{phase:?}");
    }
    let udp = Udp::new();
    assert!(find(&udp.stack, udp.id).is_none() && !super::was_listener(&udp.stack, udp.id));
    // A thread of the parent was at work while the memory was copied.
    let tcp = waiting();
    let _held = tcp.stack.shard.lock().unwrap();
    assert!(find(&tcp.stack, tcp.id).is_none() && !super::was_listener(&tcp.stack, tcp.id));
}

#[test]
fn a_listener_has_one_owner_if_the_parent_forked_once_since_it_was_made() {
    let of = |made_at| {
        let tcp = waiting();
        tcp.with(|_, socket| socket.forks = made_at);
        find(&tcp.stack, tcp.id).unwrap()
    };
    let first = of(0);
    assert!(first.has_one_owner(1) && !first.has_one_owner(0) && !first.has_one_owner(2));
    assert!(of(u32::MAX).has_one_owner(0), "the count begins anew");
}

#[test]
fn an_inherited_listener_listens_in_the_child_with_what_the_parent_had_set() {
    let parent = waiting();
    parent.with_stream(|stream| {
        (stream.ahead, stream.left, stream.low_water) = (true, true, 9);
    });
    parent.with(|_, socket| socket.options.tos = 0x10);
    let listener = find(&parent.stack, parent.id).unwrap();
    assert_eq!(listener.descriptors(), [parent.raw()]);
    let child = stack_with(&[("VMA_LOCAL", "0")]);
    let id = adopt(&child, listener, vec![parent.raw()], 4).unwrap();
    with_socket(&child, id, |_, socket| {
        assert_eq!(socket.options.tos, 0x10);
        let stream = socket.stream.as_ref().unwrap();
        assert_eq!(stream.phase, Phase::Listening { steered: false });
        assert_eq!((stream.backlog, stream.low_water), (16, 9));
        assert_eq!(stream.inherited_at, Some(4));
        assert!(!stream.ahead && !stream.left, "the parent's flows are not the child's");
        assert_eq!(socket.local, parent.with(|_, socket| socket.local));
    });
    let again = find(&parent.stack, parent.id).unwrap();
    assert!(adopt(&child, again, vec![], 4).is_none(), "the child has closed it");
}

/// Several processes accept: the kernel gives new clients to whoever asks first.
#[test]
fn a_listener_that_others_have_too_is_left_and_accepts_the_clients_that_wait() {
    let tcp = Tcp::listening();
    tcp.put_client(1000, b"");
    assert!(leave_listener(&tcp.stack, tcp.id));
    assert!(tcp.with_stream(|stream| stream.left));
    assert!(leave_listener(&tcp.stack, tcp.id), "once more changes nothing");
    let mut state = tcp.stack.shard.lock().unwrap();
    assert_eq!(state.accept(tcp.id).map(|accepted| accepted.key.remote_port), Some(1000));
    drop(state);
    for phase in [Phase::Fresh, Phase::Connected] {
        let tcp = Tcp::in_phase(phase);
        assert!(!leave_listener(&tcp.stack, tcp.id), "{phase:?}");
    }
    let udp = Udp::new();
    assert!(!leave_listener(&udp.stack, udp.id));
}

#[test]
fn only_an_inherited_listener_may_have_got_other_owners() {
    let shared = |inherited_at| {
        let tcp = Tcp::listening();
        tcp.with_stream(|stream| stream.inherited_at = inherited_at);
        is_shared(&mut tcp.stack.shard.lock().unwrap(), tcp.id)
    };
    assert!(!shared(None));
    // The test's process has no parent that would tell that it has not forked again.
    assert!(shared(Some(1)));
}
