use super::*;
use crate::control::NotOffloadable;
use crate::extra::Verdict;
use crate::socket::fixture::{ANY_PORT, Linked, Udp, callback, stack_with_plane, with_socket};
use crate::socket::outstanding::Outstanding;
use crate::socket::{CachedRoute, Outcome, Socket};
use crate::sys::shadow;

/// The datagrams in the kernel's socket, one after the other.
fn read_all(udp: &Udp) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut room = [0; 100];
    let flags = rustix::net::RecvFlags::DONTWAIT;
    while let Ok((len, _)) = rustix::net::recv(&udp.shadow, &mut room[..], flags) {
        all.push(room[..len].to_vec());
    }
    all
}

/// A reason that may pass leaves the socket ours, to be looked at again.
#[test]
fn a_reason_passes_if_an_interface_may_come() {
    for (why, passes) in [
        (WhyOs::NoInterface, true),
        (WhyOs::Attaching, true),
        (WhyOs::Interface(NotOffloadable::Down), true),
        (WhyOs::Interface(NotOffloadable::NoInterface), true),
        (WhyOs::Interface(NotOffloadable::Loopback), false),
        (WhyOs::Interface(NotOffloadable::NotListed), false),
        (WhyOs::RingRefused, false),
        (WhyOs::FlowRefused, false),
        (WhyOs::NoControlPlane, false),
        (WhyOs::Ipv6, false),
    ] {
        assert_eq!(may_pass(why), passes, "{why}");
    }
}

#[test]
fn a_socket_within_the_host_is_served_without_any_interface() {
    let udp = Udp::named(stack_with_plane(&[]));
    assert_eq!(udp.state(), State::Offloaded);
    assert!(udp.with(|_, socket| socket.posted.is_some()), "others find it");
    let alone = Udp::named(stack_with_plane(&[("VMA_LOCAL", "0")]));
    let refused = WhyOs::Interface(NotOffloadable::Loopback);
    assert_eq!(alone.state(), State::Os(refused), "nothing can come to it by the library");
    let lost = Udp::named(crate::socket::fixture::stack());
    assert_eq!(lost.state(), State::Os(WhyOs::NoControlPlane));
}

#[test]
fn a_rule_about_the_peer_makes_a_connected_socket_the_kernels() {
    for (rule, is_kernels) in
        [("use os udp_connect 127.0.0.1:9", true), ("use os udp_connect 127.0.0.1:10", false)]
    {
        let stack = stack_with_plane(&[]);
        assert!(stack.config.rules.add(rule));
        let udp = Udp::of(stack, Family::Ipv4);
        shadow::connect(udp.raw(), SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9)).unwrap();
        refresh(&udp.stack, udp.id);
        let state = udp.state();
        assert_eq!(matches!(state, State::Os(WhyOs::Rule(_))), is_kernels, "{rule} {state:?}");
    }
}

/// Resolvers open a socket for each question.
#[test]
fn a_socket_like_many_that_were_short_lived_is_the_kernels() {
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
    let connected = |is_short: bool, has_callback: bool| {
        let udp = Udp::of(stack_with_plane(&[]), Family::Ipv4);
        // A time to come: so none of them is too old however long the rest takes.
        let now = clock::now().as_nanos() + 1_000_000_000;
        for _ in 0..if is_short { 64 } else { 0 } {
            udp.stack.short_datagrams.note(to, true, now);
        }
        // The first of them is a sample.
        udp.stack.short_datagrams.expects(to, now);
        if has_callback {
            let callback = callback(udp.raw(), |_, _| Verdict::Receive);
            udp.stack.extra.callbacks.set(udp.id, callback, false);
        }
        shadow::connect(udp.raw(), to).unwrap();
        refresh(&udp.stack, udp.id);
        udp.state()
    };
    assert_eq!(connected(true, false), State::Os(WhyOs::Short));
    assert_ne!(connected(false, false), State::Os(WhyOs::Short));
    assert_ne!(connected(true, true), State::Os(WhyOs::Short), "a callback may be registered");
}

/// connect() to AF_UNSPEC gives an automatic port back.
#[test]
fn a_socket_that_loses_its_address_is_undecided_again() {
    let udp = Udp::of(stack_with_plane(&[]), Family::Ipv4);
    let peer = Udp::named(stack_with_plane(&[]));
    shadow::connect(udp.raw(), peer.address()).unwrap();
    refresh(&udp.stack, udp.id);
    assert_eq!(udp.state(), State::Offloaded);
    assert_eq!(udp.with(|_, socket| socket.peer), Some(peer.address()));
    rustix::net::connect_unspec(&udp.shadow).unwrap();
    refresh(&udp.stack, udp.id);
    assert_eq!(udp.state(), State::Undecided);
    assert_eq!(udp.with(|_, socket| (socket.local, socket.peer)), (None, None));
}

#[test]
fn what_is_queued_on_a_socket_goes_to_the_kernels_in_order() {
    let linked = Linked::new();
    linked.send(b"one");
    linked.send(b"two");
    // Two are queued, and the third is still in the ring.
    linked.server.stack.shard.lock().unwrap().catch_up();
    linked.send(b"three");
    un_offload(&linked.server.stack, linked.server.id, WhyOs::Arguments);
    assert_eq!(linked.server.state(), State::Os(WhyOs::Arguments));
    // The client, whose address they come from, sends them once more.
    linked.client.stack.shard.lock().unwrap().catch_up();
    assert_eq!(read_all(&linked.server), [&b"one"[..], b"two", b"three"]);
    assert!(linked.server.with(|endpoint, socket| {
        !endpoint.is_readable() && socket.posted.is_none() && socket.order.may_be_readable()
    }));
    un_offload(&linked.server.stack, linked.server.id, WhyOs::Passed);
    assert_eq!(linked.server.state(), State::Os(WhyOs::Arguments), "the first reason counts");
    refresh(&linked.server.stack, linked.server.id);
    assert_eq!(linked.server.state(), State::Os(WhyOs::Arguments), "for good");
}

/// A packet goes either to the rings or to the kernel, whichever socket it is for.
#[test]
fn sockets_that_share_a_flow_share_its_fate() {
    let flow = |port| {
        let destination = Ipv4Addr::new(10, 0, 0, 1);
        (RingId::nowhere(), Flow::ThreeTuple { protocol: protocol::UDP, destination, port })
    };
    for (why, is_shared) in [(WhyOs::Arguments, true), (WhyOs::Ipv6, false)] {
        let udp = Udp::named(stack_with_plane(&[]));
        let other = |port| {
            let mut socket = Socket::new(-1, true, &udp.stack.config);
            (socket.state, socket.flows) = (State::Offloaded, vec![flow(port)]);
            udp.stack.shard.lock().unwrap().attach(socket, 0)
        };
        let (sibling, stranger) = (other(7), other(8));
        udp.with(|_, socket| socket.flows = vec![flow(7)]);
        un_offload(&udp.stack, udp.id, why);
        let state = |id| with_socket(&udp.stack, id, |_, socket| socket.state);
        assert_eq!(state(sibling) == State::Os(why), is_shared, "{why}");
        assert_eq!(state(stranger), State::Offloaded);
        assert!(udp.with(|_, socket| socket.flows.is_empty()));
    }
}

/// SO_VMA_SHUTDOWN_RX.
#[test]
fn a_socket_that_leaves_receiving_to_the_kernel_still_sends() {
    let linked = Linked::new();
    linked.send(b"first");
    leave_receiving(&linked.client.stack, linked.client.id);
    assert!(linked.client.with(|_, socket| socket.posted.is_none()), "answers are the kernel's");
    assert_eq!(linked.client.state(), State::Offloaded);
    post(&linked.client.stack, linked.client.id);
    assert!(linked.client.with(|_, socket| socket.posted.is_none()));
    let sent = linked.client.send(b"second", linked.to());
    assert!(matches!(sent, Outcome::Ours(_)), "{sent:?}");
}

#[test]
fn only_a_served_socket_without_a_device_is_posted() {
    let posted = |change: fn(&mut Socket)| {
        let udp = Udp::named(stack_with_plane(&[]));
        udp.with(|_, socket| {
            socket.posted = None;
            change(socket);
        });
        post(&udp.stack, udp.id);
        udp.with(|_, socket| socket.posted.is_some())
    };
    assert!(posted(|_| {}));
    assert!(!posted(|socket| socket.state = State::Undecided));
    assert!(!posted(|socket| socket.local = None));
    assert!(!posted(|socket| socket.options.bound_device = core::num::NonZeroU32::new(1)));
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 1, 1, 1), 7);
    let udp = Udp::named(stack_with_plane(&[]));
    udp.with(|_, socket| (socket.posted, socket.local) = (None, Some(group)));
    post(&udp.stack, udp.id);
    assert!(udp.with(|_, socket| socket.posted.is_none()), "links carry no groups");
}

#[test]
fn a_named_socket_with_an_automatic_port_is_remembered_as_such() {
    for automatic in [false, true] {
        let udp = Udp::of(stack_with_plane(&[]), Family::Ipv4);
        shadow::bind(udp.raw(), ANY_PORT).unwrap();
        name(&udp.stack, udp.id, automatic);
        let key = udp.with(|_, socket| socket.brevity_key());
        assert_eq!(key, automatic.then_some(brevity::AUTOMATIC));
        assert!(udp.with(|_, socket| socket.named));
    }
}

/// No message of the kernel tells that another process listens to a group, or has the library.
#[test]
fn routes_that_change_without_a_word_are_asked_for_again() {
    let group = Ipv4Addr::new(239, 1, 1, 1);
    let unicast = Ipv4Addr::new(192, 0, 2, 1);
    for (destination, why, is_looped, is_kept) in [
        (group, WhyOs::Route, true, false),
        (group, WhyOs::Route, false, true),
        (unicast, WhyOs::LocalDestination, true, false),
        (unicast, WhyOs::Neighbour, true, true),
    ] {
        let udp = Udp::new();
        udp.with(|_, socket| {
            socket.options.multicast.is_looped = is_looped;
            socket.route = Some(Box::new(CachedRoute {
                by_kernel: 0,
                destination,
                source: None,
                answers: 0,
                port: None,
                epoch: 0,
                via: Via::Os(why),
                outstanding: Outstanding::default(),
                envelope: None,
            }));
        });
        void_doubtful_routes(&mut udp.stack.shard.lock().unwrap());
        let kept = udp.with(|_, socket| socket.route.is_some());
        assert_eq!(kept, is_kept, "{destination} {why}");
    }
}

#[test]
fn a_socket_hears_the_interfaces_of_its_address() {
    let stack = stack_with_plane(&[]);
    let plane = stack.plane.lock().unwrap();
    let control = &plane.as_ref().unwrap().control;
    let loopback = Ipv4Addr::LOCALHOST;
    assert_eq!(interfaces(control, loopback, None), [1]);
    assert_eq!(interfaces(control, loopback, Some(9)), [9], "it is bound to that one");
    assert_eq!(interfaces(control, Ipv4Addr::new(192, 0, 2, 77), None), [0; 0]);
    let all = interfaces(control, Ipv4Addr::UNSPECIFIED, None);
    assert!(all.contains(&1));
    assert_eq!(interfaces(control, Ipv4Addr::new(239, 1, 1, 1), None), all);
}

#[test]
fn a_flow_that_no_ring_has_is_not_held() {
    let udp = Udp::named(stack_with_plane(&[]));
    let destination = Ipv4Addr::new(10, 0, 0, 1);
    let flow = Flow::ThreeTuple { protocol: protocol::UDP, destination, port: 7 };
    let entry = (RingId::nowhere(), flow);
    let exchange = |wanted| exchange_flows(&mut udp.stack.shard.lock().unwrap(), udp.id, wanted);
    assert!(exchange(Vec::new()), "nothing was wanted");
    assert!(!exchange(vec![entry]));
    assert!(udp.with(|_, socket| socket.flows.is_empty()));
    // A flow that is there already is kept without a question.
    udp.with(|_, socket| socket.flows = vec![entry]);
    assert!(exchange(vec![entry]));
    assert_eq!(udp.with(|_, socket| socket.flows.len()), 1);
    assert!(exchange(Vec::new()));
    assert!(udp.with(|_, socket| socket.flows.is_empty()));
}

/// A destructor that runs after the library's may connect, or send.
#[test]
fn interfaces_serve_nothing_new_once_the_process_has_left_them() {
    let stack = stack_with_plane(&[]);
    let mut plane = stack.plane.lock().unwrap();
    let plane = plane.as_mut().unwrap();
    plane.rings.insert(1, Ok(RingId::nowhere()));
    let found = |plane: &mut Plane| {
        [
            ring(&stack, plane, 1, Need::Socket),
            stream_ring(&stack, plane, 1, Need::Connection),
            open_ring(&stack, plane, 1, 0),
        ]
    };
    assert_eq!(found(plane), [Ok(RingId::nowhere()); 3]);
    let epoch = || stack.shard.lock().unwrap().epoch();
    let before = epoch();
    crate::socket::leave_interfaces(&stack);
    assert_eq!(found(plane), [Err(WhyOs::ProcessEnds); 3]);
    assert_ne!(epoch(), before, "routes by a ring are void");
}
