use std::cell::{Cell, RefCell};

use super::*;
use crate::socket::fixture::{ANY_PORT, Tcp, Udp, stack_with_plane, with_socket};

/// The kernel's socket: says these one after the other, and then EAGAIN.
#[derive(Default)]
struct Kernel {
    answers: RefCell<Vec<Result<i32, i32>>>,
    asked: Cell<usize>,
}

impl Kernel {
    fn says(answers: &[Result<i32, i32>]) -> Kernel {
        Kernel { answers: RefCell::new(answers.to_vec()), asked: Cell::new(0) }
    }
}

/// Accepts without waiting.
fn accept_once(tcp: &Tcp, kernel: &Kernel) -> Outcome<Found> {
    let mut ask = || {
        kernel.asked.set(kernel.asked.get() + 1);
        let mut answers = kernel.answers.borrow_mut();
        if answers.is_empty() { Err(libc::EAGAIN) } else { answers.remove(0) }
    };
    accept(&tcp.stack, tcp.id, false, &mut ask)
}

/// The port of the client, or minus the descriptor of the kernel's.
fn accepted(tcp: &Tcp, kernel: &Kernel) -> Result<i32, i32> {
    match accept_once(tcp, kernel) {
        Outcome::Ours(Found::Ours(accepted)) => Ok(i32::from(accepted.key.remote_port)),
        Outcome::Ours(Found::Os(descriptor)) => Ok(-descriptor),
        Outcome::Errno(errno) => Err(errno),
        Outcome::Os(why) => panic!("the kernel's: {why}"),
    }
}

fn nothing() -> Kernel {
    Kernel::default()
}

#[test]
fn only_a_listener_accepts() {
    for phase in [Phase::Fresh, Phase::Connecting, Phase::Connected] {
        let tcp = Tcp::in_phase(phase);
        assert_eq!(accepted(&tcp, &nothing()), Err(libc::EINVAL), "{phase:?}");
    }
    let udp = Udp::new();
    let mut ask = || panic!("the kernel is asked by the caller");
    let outcome = accept(&udp.stack, udp.id, false, &mut ask);
    assert!(matches!(outcome, Outcome::Os(WhyOs::NotOurs)));
}

#[test]
fn a_call_that_does_not_wait_takes_ours_and_then_the_kernels() {
    let tcp = Tcp::listening();
    tcp.put_client(1000, b"");
    tcp.put_client(1001, b"");
    let os = Kernel::says(&[Ok(77), Err(libc::EMFILE)]);
    let all: Vec<_> = (0..5).map(|_| accepted(&tcp, &os)).collect();
    let expected = [Ok(1000), Ok(1001), Ok(-77), Err(libc::EMFILE), Err(libc::EAGAIN)];
    assert_eq!(all, expected);
}

/// A client of the kernel's listener must not wait for ever behind those that come by the rings.
#[test]
fn after_a_row_of_ours_the_kernels_client_is_taken() {
    let tcp = Tcp::listening();
    let all = 2 * u16::from(MOST_IN_ROW);
    (0..all).for_each(|port| tcp.put_client(1000 + port, b""));
    let os = Kernel::says(&[Ok(77)]);
    let got: Vec<i32> = (0..=all).map(|_| accepted(&tcp, &os).unwrap()).collect();
    assert_eq!(got.iter().position(|one| *one == -77), Some(MOST_IN_ROW.into()));
    assert_eq!(os.asked.get(), 1, "each row has one turn");
    let ours: Vec<i32> = (1000..1000 + i32::from(all)).collect();
    assert_eq!(got.into_iter().filter(|one| *one > 0).collect::<Vec<_>>(), ours);
}

#[test]
fn an_error_of_the_kernels_turn_ends_the_call() {
    let tcp = Tcp::listening();
    tcp.put_client(1000, b"");
    tcp.with_stream(|stream| stream.ours_in_row = MOST_IN_ROW);
    let os = Kernel::says(&[Err(libc::ECONNABORTED)]);
    assert_eq!(accepted(&tcp, &os), Err(libc::ECONNABORTED));
    assert_eq!(accepted(&tcp, &os), Ok(1000));
}

#[test]
fn a_client_without_a_descriptor_waits_on_in_its_place() {
    let tcp = Tcp::listening();
    tcp.put_client(1000, b"");
    tcp.put_client(1001, b"");
    let Outcome::Ours(Found::Ours(first)) = accept_once(&tcp, &nothing()) else { panic!() };
    put_back(&tcp.stack, tcp.id, first);
    assert_eq!(accepted(&tcp, &nothing()), Ok(1000));
}

/// accept(2), Linux: what the new socket has of its listener is what the queue kept of it with the client.
#[test]
fn an_accepted_socket_has_what_was_kept_of_its_listener() {
    let tcp = Tcp::listening();
    tcp.set_number(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 30);
    tcp.set(libc::SOL_SOCKET, libc::SO_LINGER, [1, 0, 0, 0, 9, 0, 0, 0]);
    tcp.with_stream(|stream| stream.send_timeout = Some(5));
    update(&tcp.stack, tcp.id);
    tcp.put_client(1000, b"hello");
    tcp.set_number(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60);
    let Outcome::Ours(Found::Ours(accepted)) = accept_once(&tcp, &nothing()) else { panic!() };
    assert_eq!(family_of(&accepted), Family::Ipv4);
    let adopted = adopt(&tcp.stack, accepted, -1, true).unwrap();
    let options: Vec<_> = adopted.inherited.iter().map(|it| (it.level, it.name)).collect();
    let expected = [(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), (libc::SOL_SOCKET, libc::SO_LINGER)];
    assert_eq!(options, expected);
    with_socket(&tcp.stack, adopted.id, |_, socket| {
        assert_eq!(socket.state, State::Offloaded);
        assert!(socket.nonblocking, "of the call, not of the listener");
        assert_eq!(socket.peer.map(|peer| peer.port()), Some(1000));
        let stream = socket.stream.as_ref().unwrap();
        assert_eq!((stream.phase, stream.linger), (Phase::Connected, NonZeroU32::new(9)));
        assert_eq!(stream.send_timeout, Some(5));
        assert_eq!(stream.settings.keep_idle, libvma_engine::tcp::Millis::from_secs(30));
    });
    let mut room = [0; 9];
    let buffers = &mut [std::io::IoSliceMut::new(&mut room)];
    let got = super::super::receive::receive(&tcp.stack, adopted.id, buffers, 0);
    assert_eq!((got, &room[..5]), (Outcome::Ours(5), &b"hello"[..]));
}

#[test]
fn a_client_of_which_nothing_is_known_is_reset() {
    let tcp = Tcp::listening();
    tcp.put_client(1000, b"");
    let Outcome::Ours(Found::Ours(mut accepted)) = accept_once(&tcp, &nothing()) else { panic!() };
    accepted.inherited_state = None;
    let key = accepted.key;
    assert!(adopt(&tcp.stack, accepted, -1, true).is_none());
    assert!(!tcp.stack.shard.lock().unwrap().has_connection(&key));
}

/// listen(2): a second call changes the backlog.
#[test]
fn a_listener_that_listens_again_stays_as_it_was() {
    let tcp = Tcp::listening();
    tcp.put_client(1000, b"");
    listen(&tcp.stack, tcp.id, 3);
    assert_eq!(tcp.phase(), Phase::Listening { steered: true });
    assert_eq!(tcp.with_stream(|stream| stream.backlog), 3);
    assert_eq!(accepted(&tcp, &nothing()), Ok(1000));
    undo(&tcp.stack, tcp.id);
    assert_eq!(tcp.phase(), Phase::Fresh);
}

#[test]
fn a_listener_is_made_as_the_host_and_the_program_say() {
    let tcp = Tcp::listening();
    let spec = || {
        let mut state = tcp.stack.shard.lock().unwrap();
        spec(&tcp.stack, &mut state, tcp.id).unwrap()
    };
    let system = system::of(&tcp.stack);
    let most = system.listening(&tcp.stack).somaxconn;
    assert_eq!(spec().backlog, 16);
    for (backlog, expected) in [(0, 0), (-1, most), (i32::MAX, most)] {
        tcp.with_stream(|stream| stream.backlog = backlog);
        assert_eq!(spec().backlog, expected, "{backlog}");
    }
    assert!(!spec().takes_ipv6 && spec().listen.defer_accept.is_none());
    tcp.with_stream(|stream| {
        (stream.defer_accept, stream.family) = (Some(7), Family::Ipv6);
        stream.settings.sack = false;
    });
    tcp.with(|_, socket| (socket.options.ttl, socket.options.ipv6_hops) = (Some(9), Some(8)));
    let spec = spec();
    assert!(spec.takes_ipv6 && !spec.listen.sack);
    assert_eq!(spec.listen.defer_accept, Some(Duration::from_secs(7)));
    assert_eq!(spec.envelopes.map(|(ttl, _)| ttl), [9, 8], "IPv4, then IPv6");
}

/// The interface of a listener was refused.
#[test]
fn a_refused_listener_is_the_kernels_unless_others_still_come_to_it() {
    let tcp = Tcp::listening();
    assert!(refuse(&tcp.stack, tcp.id, WhyOs::RingRefused));
    assert!(!tcp.stack.shard.lock().unwrap().is_listening(tcp.id));

    let not_waited_on = Tcp::listening();
    not_waited_on.with_stream(|stream| {
        stream.phase = Phase::Listening { steered: false };
        stream.ahead = true;
    });
    assert!(!refuse(&not_waited_on.stack, not_waited_on.id, WhyOs::RingRefused));
    assert!(!not_waited_on.with_stream(|stream| stream.ahead), "it is judged when one waits");

    let stack = stack_with_plane(&[]);
    let posted = Tcp::of(stack, Family::Ipv4);
    shadow::bind(posted.raw(), ANY_PORT).unwrap();
    rustix::net::listen(&posted.shadow, 16).unwrap();
    listen(&posted.stack, posted.id, 16);
    assert!(other_processes::is_posted(&posted.stack, posted.id));
    posted.with_stream(|stream| stream.phase = Phase::Listening { steered: true });
    assert!(!refuse(&posted.stack, posted.id, WhyOs::RingRefused));
}

#[test]
fn a_listener_without_a_way_is_the_kernels_when_a_thread_waits() {
    let tcp = Tcp::listening();
    tcp.with_stream(|stream| stream.phase = Phase::Listening { steered: false });
    assert_eq!(steer(&tcp.stack, tcp.id), Err(WhyOs::NoControlPlane));
    assert!(!tcp.stack.shard.lock().unwrap().is_listening(tcp.id));
    // A listener that other processes find is served for them.
    let posted = Tcp::of(stack_with_plane(&[]), Family::Ipv4);
    shadow::bind(posted.raw(), ANY_PORT).unwrap();
    rustix::net::listen(&posted.shadow, 16).unwrap();
    listen(&posted.stack, posted.id, 16);
    posted.stack.hold.begin();
    assert!(posted.stack.hold.is_on());
    assert_eq!(steer(&posted.stack, posted.id), Ok(()));
    assert_eq!(posted.phase(), Phase::Listening { steered: true });
    assert!(!posted.stack.hold.is_on(), "clients wait no longer");
    let may_be_readable = posted.with(|_, socket| socket.order.may_be_readable());
    assert!(may_be_readable, "clients of the kernel may wait already");
}

/// A server that forks its workers leaves its listener to them, unless it has clients that only it can accept.
#[test]
fn before_a_fork_listeners_that_nobody_has_waited_on_are_given_up() {
    for (phase, has_client, is_given_up) in [
        (Phase::Listening { steered: false }, false, true),
        (Phase::Listening { steered: false }, true, false),
        (Phase::Listening { steered: true }, false, false),
    ] {
        let tcp = Tcp::listening();
        if has_client {
            tcp.put_client(1000, b"");
        }
        tcp.with_stream(|stream| (stream.phase, stream.ahead) = (phase, true));
        tcp.stack.hold.begin();
        assert!(tcp.stack.hold.is_on());
        give_up_ahead(&tcp.stack);
        let ahead = tcp.with_stream(|stream| stream.ahead);
        // Without a plane there is no ring whose flows could be given up.
        let plane = tcp.stack.plane.lock().unwrap().is_some();
        assert_eq!(ahead, !is_given_up, "{phase:?} {has_client} {plane}");
        assert!(!tcp.stack.hold.is_on());
    }
}

#[test]
fn a_thread_that_comes_back_from_the_kernels_accept_lets_others_ask_it() {
    let tcp = Tcp::listening();
    tcp.with_stream(|stream| stream.os_accepting = true);
    tcp.with(|_, socket| socket.order.note_empty());
    end_os_accept(&tcp.stack, tcp.id);
    assert!(!tcp.with_stream(|stream| stream.os_accepting));
    assert!(tcp.with(|_, socket| socket.order.may_be_readable()), "there may be more");
}

#[test]
fn a_connection_that_the_kernel_accepts_is_modelled_on_its_listener() {
    let tcp = Tcp::listening();
    tcp.with_stream(|stream| {
        (stream.low_water, stream.linger, stream.backlog) = (7, NonZeroU32::new(3), 99);
        stream.ahead = true;
    });
    let model = tcp.with(|_, socket| model(&socket.options, socket.stream.as_ref().unwrap()));
    let stream = model.stream;
    assert_eq!(
        (stream.phase, stream.low_water, stream.linger),
        (Phase::Connected, 7, NonZeroU32::new(3))
    );
    assert!(!stream.ahead && stream.backlog == 0, "a connection does not listen");
}
