//! Two processes' worth of state in one, over real sockets and real shared memory.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use super::*;
use crate::shard::SocketId;
use crate::shard::pipe::{Offer, Pipe};
use crate::socket::Socket;
use crate::socket::fixture::{own_loopback, stack, stack_with};
use crate::sys::shadow;
use crate::sys::wait::poll_now;

fn socket() -> (UdpSocket, SocketAddrV4) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = v4(socket.local_addr().unwrap());
    (socket, address)
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => panic!("IPv4 was asked for"),
    }
}

/// Rises whenever answers given before are void.
fn epoch(stack: &Stack) -> u64 {
    let state = stack.shard.lock().unwrap();
    state.epoch() + state.answers()
}

fn links(stack: &Stack) -> usize {
    let mut state = stack.shard.lock().unwrap();
    state.local_ring().map_or(0, |ring| ring.links().count())
}

/// As after a second: what is known is looked through.
fn review(stack: &Stack) {
    let mut slot = stack.local.finder.lock().unwrap();
    let finder = slot.as_mut().unwrap();
    finder.review(stack, monotonic_nanos() + SECOND);
}

struct Pair {
    server: Stack,
    client: Stack,
    receiver: UdpSocket,
    post: Posted,
    way: (SocketAddrV4, SocketAddrV4),
    _sender: UdpSocket,
}

impl Pair {
    fn find(&self) -> Found {
        find(&self.client, protocol::UDP, self.way.0, self.way.1)
    }
}

fn pair() -> Pair {
    let (server, client) = (stack(), stack());
    let ((receiver, to), (_sender, from)) = (socket(), socket());
    let post = post(&server, protocol::UDP, receiver.as_raw_fd(), to).unwrap();
    Pair { server, client, receiver, post, way: (from, to), _sender }
}

fn linked() -> Pair {
    let pair = pair();
    assert_eq!(pair.find(), Found::Pending);
    let before = epoch(&pair.client);
    serve(&pair.server);
    serve(&pair.client);
    assert!(epoch(&pair.client) > before, "who waits for the answer is told");
    assert!(matches!(pair.find(), Found::Link(..)));
    pair
}

#[test]
fn a_posted_socket_is_found_and_linked() {
    let pair = linked();
    assert_eq!((links(&pair.server), links(&pair.client)), (1, 1));
    assert!(pair.client.shard.is_live() && pair.server.shard.is_live());
}

#[test]
fn a_socket_of_no_library_is_nobody() {
    let client = stack();
    let ((_plain, to), (_sender, from)) = (socket(), socket());
    assert_eq!(find(&client, protocol::UDP, from, to), Found::Nobody);
    assert_eq!(links(&client), 0);
    assert!(client.shard.lock().unwrap().local_ring_id().is_none(), "no memory for nothing");
}

#[test]
fn nothing_is_found_where_it_is_switched_off() {
    let (server, client) = (stack_with(&[("VMA_LOCAL", "0")]), stack_with(&[("VMA_LOCAL", "0")]));
    let ((receiver, to), (_sender, from)) = (socket(), socket());
    assert_eq!(post(&server, protocol::UDP, receiver.as_raw_fd(), to), None);
    assert_eq!(find(&client, protocol::UDP, from, to), Found::Nobody);
    assert_eq!((server.local.descriptor(), client.local.descriptor()), (-1, -1));
}

#[test]
fn the_kernel_s_choice_of_socket_counts() {
    let server = stack();
    let client = stack();
    let any = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = v4(any.local_addr().unwrap()).port();
    // No other socket binds the port of that address when the wildcard socket has gone.
    let to = SocketAddrV4::new(own_loopback(), port);
    let (_sender, from) = socket();
    post(&server, protocol::UDP, any.as_raw_fd(), SocketAddrV4::new([0; 4].into(), port)).unwrap();
    assert_eq!(find(&client, protocol::UDP, from, to), Found::Pending);
    serve(&server);
    serve(&client);
    assert!(matches!(find(&client, protocol::UDP, from, to), Found::Link(..)));
    // Another address of the port is somebody else's; UDP lets nobody in beside a wildcard socket
    // unless both say SO_REUSEADDR, so the wildcard one goes first.
    drop(any);
    let _exact = UdpSocket::bind(to).unwrap();
    review(&client);
    assert_eq!(find(&client, protocol::UDP, from, to), Found::Nobody);
}

/// Anybody can take the name that another user's socket would be found by.
#[test]
fn another_user_s_socket_is_nobody() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give something away.
        return;
    }
    let pair = pair();
    let other = rustix::fs::Uid::from_raw(54_321);
    rustix::fs::fchown(&pair.receiver, Some(other), None).unwrap();
    assert_eq!(pair.find(), Found::Nobody);
    assert_eq!(links(&pair.client), 0);
    let (listener, from) = (TcpListener::bind("127.0.0.1:0").unwrap(), pair.way.0);
    let to = v4(listener.local_addr().unwrap());
    post(&pair.server, protocol::TCP, listener.as_raw_fd(), to).unwrap();
    rustix::fs::fchown(&listener, Some(other), None).unwrap();
    assert_eq!(find(&pair.client, protocol::TCP, from, to), Found::Nobody);
}

/// As when a server hands a client over to a socket that is connected to it.
#[test]
fn a_better_socket_takes_over_when_a_peer_posts_one() {
    let pair = linked();
    let (from, to) = pair.way;
    let reuse = |fd| shadow::set_int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    reuse(pair.receiver.as_raw_fd());
    let better =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    let better = UdpSocket::from(better.unwrap());
    reuse(better.as_raw_fd());
    rustix::net::bind(&better, &to).unwrap();
    better.connect(from).unwrap();
    // Nobody can have told.
    assert!(matches!(pair.find(), Found::Link(..)));
    let before = epoch(&pair.client);
    let (another, at) = socket();
    post(&pair.server, protocol::UDP, another.as_raw_fd(), at).unwrap();
    serve(&pair.client);
    assert!(epoch(&pair.client) > before);
    assert_eq!(pair.find(), Found::Nobody, "the better one is posted by nobody");
}

#[test]
fn a_closed_socket_is_forgotten_at_once() {
    let pair = linked();
    let before = epoch(&pair.client);
    unpost(&pair.server, pair.post);
    serve(&pair.client);
    assert!(epoch(&pair.client) > before);
    // The kernel still knows the socket, and nobody answers for it.
    assert_eq!(pair.find(), Found::Nobody);
    assert_eq!(links(&pair.client), 1);
}

#[test]
fn an_address_that_a_peer_calls_vacant_is_asked_for_again() {
    let pair = linked();
    drop(pair.receiver);
    let way = pair.way;
    let mut slot = pair.client.local.finder.lock().unwrap();
    slot.as_mut().unwrap().mappings.forget(&[way.1]);
    drop(slot);
    assert_eq!(find(&pair.client, protocol::UDP, way.0, way.1), Found::Nobody);
}

#[test]
fn the_end_of_the_other_process_ends_the_link() {
    let Pair { server, client, way, receiver, _sender, .. } = linked();
    drop(server);
    drop(receiver);
    let before = epoch(&client);
    serve(&client);
    assert_eq!(links(&client), 0);
    assert!(!client.shard.is_live());
    assert!(epoch(&client) > before);
    review(&client);
    assert_eq!(find(&client, protocol::UDP, way.0, way.1), Found::Nobody);
}

#[test]
fn an_own_socket_is_left_to_the_kernel() {
    let own = stack();
    let ((receiver, to), (_sender, from)) = (socket(), socket());
    post(&own, protocol::UDP, receiver.as_raw_fd(), to).unwrap();
    assert_eq!(find(&own, protocol::UDP, from, to), Found::Nobody);
}

#[test]
fn a_connection_waits_for_the_answer() {
    let (server, client) = (stack(), stack());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = v4(listener.local_addr().unwrap());
    post(&server, protocol::TCP, listener.as_raw_fd(), to).unwrap();
    let from = SocketAddrV4::new([127, 0, 0, 1].into(), 9);
    let done = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                serve(&server);
            }
        });
        // A busy machine may not let the other thread run within 5 ms.
        let found = (0..100).find_map(|_| {
            let found = find_patiently(&client, protocol::TCP, from, to);
            let found = found.filter(|reach| matches!(reach, Reach::Link(_)));
            if found.is_none() {
                std::thread::sleep(Duration::from_millis(30));
                // An answer that came too late is the internal thread's to read.
                serve(&client);
            }
            found
        });
        done.store(true, Ordering::Relaxed);
        found
    });
    assert!(found.is_some());
}

/// The internal threads of both processes answer and read answers, as fast as they can.
fn serving<T>(stacks: [&Stack; 2], call: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                stacks.iter().for_each(|stack| serve(stack));
            }
        });
        let result = call();
        done.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn an_answer_that_another_thread_reads_ends_the_wait() {
    const ROUNDS: usize = 31;
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..ROUNDS {
        let (server, client) = (stack(), stack());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = v4(listener.local_addr().unwrap());
        post(&server, protocol::TCP, listener.as_raw_fd(), to).unwrap();
        let from = SocketAddrV4::new([127, 0, 0, 1].into(), 9);
        serving([&server, &client], || {
            let start = Instant::now();
            let found = find_patiently(&client, protocol::TCP, from, to);
            assert!(found.is_some());
            took.push(start.elapsed());
        });
        assert!(client.local.waiting.lock().unwrap().is_empty());
    }
    took.sort();
    // Few of them are late on a busy machine.
    assert!(took[ROUNDS / 2] < Duration::from_millis(10), "{took:?}");
}

#[test]
fn every_thread_that_waits_is_woken_by_an_answer() {
    let (server, client) = (stack(), stack());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = v4(listener.local_addr().unwrap());
    post(&server, protocol::TCP, listener.as_raw_fd(), to).unwrap();
    let from = SocketAddrV4::new([127, 0, 0, 1].into(), 9);
    assert_eq!(find(&client, protocol::TCP, from, to), Found::Pending);
    let waiting = [(); 2].map(|()| Waiting::begin(&client.local).unwrap());
    let is_woken = |one: &Waiting| poll_now(one.raw(), libc::POLLIN) != 0;
    serve(&client);
    assert!(!waiting.iter().any(is_woken), "nobody has answered");
    serve(&server);
    serve(&client);
    assert!(waiting.iter().all(is_woken));
}

#[test]
fn a_stopped_process_delays_one_connection_by_milliseconds() {
    let (server, client) = (stack(), stack());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = v4(listener.local_addr().unwrap());
    post(&server, protocol::TCP, listener.as_raw_fd(), to).unwrap();
    let start = Instant::now();
    for port in 1..200 {
        let from = SocketAddrV4::new([127, 0, 0, 1].into(), port);
        let found = find_patiently(&client, protocol::TCP, from, to);
        assert!(matches!(found, Some(Reach::Late(_))), "{found:?}");
    }
    let took = start.elapsed();
    // 200 times 5 ms would be a second.
    assert!(took >= Duration::from_millis(5) && took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn what_is_out_of_use_is_not_asked_for() {
    let pair = linked();
    let mut slot = pair.client.local.finder.lock().unwrap();
    let finder = slot.as_mut().unwrap();
    assert!(!finder.mappings.is_empty());
    finder.review(&pair.client, monotonic_nanos() + 40 * SECOND);
    assert!(finder.mappings.is_empty());
}

#[test]
fn the_internal_thread_knows_when_it_is_wanted() {
    let pair = pair();
    assert_eq!(pair.client.local.patience(), None);
    pair.find();
    assert!(pair.client.local.patience().is_some_and(|left| left <= SECOND));
    assert!(pair.client.local.descriptor() >= 0);
    // The server only waits for callers.
    assert_eq!(pair.server.local.patience(), None);
}

/// A client whose connect() has waited in vain: its connection, which is apart.
fn late() -> (Stack, Stack, TcpListener, SocketId) {
    let (server, client) = (stack(), stack());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = v4(listener.local_addr().unwrap());
    post(&server, protocol::TCP, listener.as_raw_fd(), to).unwrap();
    assert!(!expects_offers(&server), "nobody has called");
    let from = SocketAddrV4::new([127, 0, 0, 1].into(), 9);
    let Some(Reach::Late(key)) = find_patiently(&client, protocol::TCP, from, to) else {
        panic!("nobody answers");
    };
    let offer = Offer { socket: 7, destination: to, limit: 1 << 20 };
    let id = {
        let mut state = client.shard.lock().unwrap();
        let id = state.attach(Socket::new(-1, false, &client.config), 0);
        assert!(state.seek_pipe(id, offer));
        id
    };
    seek(&client, id, key, offer);
    assert!(pipe(&client, id, |pipe| pipe.is_apart()));
    (server, client, listener, id)
}

fn pipe<T>(stack: &Stack, id: SocketId, ask: impl FnOnce(&mut Pipe) -> T) -> T {
    ask(stack.shard.lock().unwrap().pipe(id).unwrap())
}

#[test]
fn a_late_answer_offers_the_connections_that_are_there() {
    let (server, client, _listener, id) = late();
    // The caller is attended to before its connection is accepted.
    assert!(expects_offers(&server));
    serve(&client);
    assert!(pipe(&client, id, |pipe| pipe.is_offered()));
    let mut state = server.shard.lock().unwrap();
    state.catch_up();
    assert!(state.has_offers());
}

#[test]
fn a_connection_whose_peer_does_not_answer_at_all_is_the_kernels() {
    let (_server, client, _listener, id) = late();
    assert!(client.local.patience().is_some_and(|left| left <= SECOND));
    let mut slot = client.local.finder.lock().unwrap();
    let finder = slot.as_mut().unwrap();
    finder.pursue(&client, monotonic_nanos() + SECOND);
    assert!(pipe(&client, id, |pipe| pipe.is_apart()));
    finder.pursue(&client, monotonic_nanos() + 2 * SECOND);
    assert!(pipe(&client, id, |pipe| pipe.is_over()));
    assert_eq!(finder.search_due(), None);
}
