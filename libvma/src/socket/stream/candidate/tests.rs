use super::*;
use crate::socket::fixture::{KEY, Tcp, Udp};

fn connecting(tcp: &Tcp) -> Candidate {
    tcp.with(|_, socket| Candidate::connecting(socket)).unwrap()
}

#[test]
fn of_an_option_that_is_set_again_the_last_value_counts() {
    let tcp = Tcp::new();
    let mut candidate = connecting(&tcp);
    let copy = candidate.clone();
    assert!(candidate.is_as(&copy));
    candidate.note_option(1, 2, &[3]);
    candidate.note_option(1, 3, &[4]);
    candidate.note_option(1, 2, &[5]);
    let changes: Vec<_> =
        candidate.changes().iter().map(|it| (it.level, it.name, it.value[0])).collect();
    assert_eq!(changes, [(1, 3, 4), (1, 2, 5)]);
    assert!(!candidate.is_as(&copy), "an attempt that has begun is void");
}

#[test]
fn an_epoll_instance_is_noted_once() {
    let mut candidate = connecting(&Tcp::new());
    let copy = candidate.clone();
    for instance in [5, 7, 5] {
        candidate.note_instance(instance);
    }
    assert_eq!(candidate.watched_by, [5, 7]);
    assert!(!candidate.is_as(&copy));
}

#[test]
fn a_connection_that_is_taken_over_is_a_connected_socket_that_holds_its_port() {
    let tcp = Tcp::new();
    tcp.set_number(libc::IPPROTO_IP, libc::IP_TOS, 0x10);
    tcp.with_stream(|stream| stream.low_water = 7);
    let candidate = connecting(&tcp);
    assert_eq!(candidate.origin, Origin::Connected);
    assert!(!candidate.is_shared() && !candidate.is_of_many);
    let descriptors = [tcp.raw(), i32::MAX];
    let socket = candidate.socket(&tcp.stack, &descriptors, false, &KEY).unwrap();
    assert_eq!(socket.descriptors, descriptors);
    assert_eq!((socket.state, socket.nonblocking), (State::Offloaded, false));
    assert_eq!(
        (socket.local, socket.peer),
        (Some(KEY.local_endpoint()), Some(KEY.remote_endpoint()))
    );
    assert_eq!(socket.options.tos, 0x10);
    let stream = socket.stream.unwrap();
    assert_eq!((stream.phase, stream.low_water), (Phase::Connected, 7));
    assert!(stream.holds_port && !stream.unbound);
    assert!(candidate.socket(&tcp.stack, &[], false, &KEY).is_none(), "the program has closed it");
}

/// ipv6(7), IPV6_ADDRFORM: the program may have changed the family while the connection was the kernel's.
#[test]
fn the_family_is_that_of_the_kernels_socket_by_now() {
    let (four, six) = (Tcp::new(), Tcp::of(crate::socket::fixture::stack(), Family::Ipv6));
    let candidate = connecting(&six);
    let socket = candidate.socket(&six.stack, &[four.raw()], true, &KEY).unwrap();
    assert_eq!(socket.stream.unwrap().family, Family::Ipv4);
}

#[test]
fn only_a_listener_is_a_model_for_others() {
    for phase in [Phase::Fresh, Phase::Connecting, Phase::Connected] {
        assert!(Tcp::in_phase(phase).with(|_, socket| Model::of_listener(socket)).is_none());
    }
    let listener = Tcp::listening();
    let model = listener.with(|_, socket| Model::of_listener(socket)).unwrap();
    assert_eq!(model.family(), Family::Ipv4);
    let of_many = Candidate::of_listener(Arc::new(model));
    assert!(of_many.is_of_many, "it must end with this process");
    assert_eq!(of_many.origin, Origin::Accepted);
    let accepted = Candidate::accepted(&listener.stack, listener.id).unwrap();
    assert!(!accepted.is_of_many && accepted.origin == Origin::Accepted);
    let udp = Udp::new();
    assert!(Candidate::accepted(&udp.stack, udp.id).is_none());
    assert!(udp.with(|_, socket| Candidate::connecting(socket)).is_none());
}
