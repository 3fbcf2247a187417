//! Connections whose bytes go through a pipe: two processes, each with its end.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use libvma_engine::tcp::State as TcpState;
use libvma_engine::wire::ipv4::protocol;

use super::super::super::rehearsal::rehearse;
use super::super::super::shutdown::{close, shutdown};
use super::super::super::{Outcome, Phase, WhyOs, listen, peer_address, receive, send, tell};
use super::super::{accept, end, ready, shadow as kernel};
use crate::shard::{Interest, Readiness, SocketId};
use crate::socket::fixture::{ANY_PORT, Tcp, await_input, stack, with_socket};
use crate::socket::shadow_news::{self, Kind, Shadows};
use crate::socket::{Stack, State, local};
use crate::sys::shadow;
use crate::sys::sockaddr::Family;

/// A client and the server's socket for it.
struct Piped {
    listener: Tcp,
    client: Tcp,
    /// The server's socket, which is in the listener's process.
    accepted: SocketId,
    shadow: OwnedFd,
}

/// An end of such a connection.
#[derive(Clone, Copy)]
struct End<'a> {
    stack: &'a Stack,
    id: SocketId,
    shadow: i32,
}

impl Piped {
    fn new() -> Piped {
        Piped::between(stack(), stack())
    }

    /// One that the server's process has not used yet.
    fn unread(client: Stack, server: Stack) -> Piped {
        let listener = Tcp::of(server, Family::Ipv4);
        shadow::bind(listener.raw(), ANY_PORT).unwrap();
        rustix::net::listen(&listener.shadow, 8).unwrap();
        listen::listen(&listener.stack, listener.id, 8);
        listener.with(|_, socket| socket.options.tos = 0x10);
        let client = Tcp::of(client, Family::Ipv4);
        let to = shadow::local_address(listener.raw()).unwrap();
        let from = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        local::find(&client.stack, protocol::TCP, from, to);
        local::serve(&listener.stack);
        local::serve(&client.stack);
        let connected = super::super::super::connect::connect(&client.stack, client.id, to);
        assert_eq!(connected, Outcome::Ours(()));
        let shadow = rustix::net::accept(&listener.shadow).unwrap();
        let accepted = accept::adopt(&listener.stack, listener.id, shadow.as_raw_fd(), true);
        Piped { accepted: accepted.unwrap(), listener, client, shadow }
    }

    fn between(client: Stack, server: Stack) -> Piped {
        let piped = Piped::unread(client, server);
        // The client's bytes go by the kernel until the server's process uses the connection.
        for end in [piped.server(), piped.client()] {
            assert_eq!(end.receive(1, 0), Err(libc::EAGAIN));
        }
        piped
    }

    fn client(&self) -> End<'_> {
        End { stack: &self.client.stack, id: self.client.id, shadow: self.client.raw() }
    }

    fn server(&self) -> End<'_> {
        let shadow = self.shadow.as_raw_fd();
        End { stack: &self.listener.stack, id: self.accepted, shadow }
    }
}

fn result<T>(outcome: Outcome<T>) -> Result<T, i32> {
    match outcome {
        Outcome::Ours(value) => Ok(value),
        Outcome::Errno(errno) => Err(errno),
        Outcome::Os(why) => panic!("the kernel's: {why}"),
    }
}

impl End<'_> {
    fn send(&self, bytes: &[u8]) -> Result<usize, i32> {
        result(send::send(self.stack, self.id, &[IoSlice::new(bytes)], libc::MSG_DONTWAIT))
    }

    fn receive(&self, room: usize, flags: i32) -> Result<Vec<u8>, i32> {
        let mut room = vec![0; room];
        let buffers = &mut [IoSliceMut::new(&mut room)];
        let flags = flags | libc::MSG_DONTWAIT;
        let len = result(receive::receive(self.stack, self.id, buffers, flags))?;
        room.truncate(len);
        Ok(room)
    }

    fn ready(&self, bits: &[Readiness]) -> Vec<bool> {
        let mut state = self.stack.shard.lock().unwrap();
        state.poll();
        let ready = ready::readiness(&mut state, self.id).unwrap();
        bits.iter().map(|bit| ready.contains(*bit)).collect()
    }

    fn tcp_state(&self) -> Option<TcpState> {
        ready::tcp_state(&mut self.stack.shard.lock().unwrap(), self.id)
    }

    fn shut(&self, how: i32) -> Outcome<()> {
        shutdown(self.stack, self.id, how)
    }

    /// Bytes that the kernel has carried.
    fn by_kernel(&self) -> u64 {
        with_socket(self.stack, self.id, |endpoint, _| {
            endpoint.counters.tx_os_bytes + endpoint.counters.rx_os_bytes
        })
    }
}

#[test]
fn bytes_go_by_the_pipe_in_both_directions() {
    let piped = Piped::new();
    for (from, to) in [(piped.client(), piped.server()), (piped.server(), piped.client())] {
        assert_eq!((from.send(b"one "), from.send(b"two")), (Ok(4), Ok(3)));
        assert_eq!(to.receive(5, 0), Ok(b"one t".to_vec()));
        assert_eq!(to.receive(9, 0), Ok(b"wo".to_vec()));
        assert_eq!(to.receive(9, 0), Err(libc::EAGAIN));
    }
    assert_eq!((piped.client().by_kernel(), piped.server().by_kernel()), (0, 0));
}

fn watched() -> Stack {
    Stack { shadows: Shadows::open(), ..stack() }
}

/// How often a program that waits for these events as edges is told when the kernel's socket has told its news.
fn edges(end: End<'_>, events: i32) -> usize {
    let interest = Interest {
        descriptor: end.shadow,
        events: events as u32,
        data: 0,
        spent: false,
        in_kernel: false,
        news: false,
        about: u32::MAX,
    };
    let lock = || end.stack.shard.lock().unwrap();
    let set = lock().new_set(9);
    lock().watch(set, end.id, interest);
    shadow_news::hear(end.stack, Kind::Streams);
    lock().listed(set)
}

/// The kernel's socket has room as soon as the connection is made, and says so as an edge.
#[test]
fn room_at_the_kernel_is_no_news_to_a_program_that_may_write() {
    let piped = Piped::between(watched(), watched());
    for end in [piped.client(), piped.server()] {
        assert_eq!(edges(end, libc::EPOLLOUT), 0);
    }
    kernel::shutdown(piped.client.raw(), libc::SHUT_WR);
    await_input(&piped.shadow);
    assert_eq!(edges(piped.server(), libc::EPOLLRDHUP), 1, "what else the kernel tells is");
}

/// The bytes go by the kernel until the server reads, and it tells of the pipe before it reads the kernel's.
#[test]
fn room_at_the_kernel_is_news_to_a_program_that_was_refused() {
    let piped = Piped::unread(watched(), watched());
    let (client, server) = (piped.client(), piped.server());
    assert_eq!(edges(client, libc::EPOLLOUT), 0, "what the connection began with is told");
    let mut sent = 0;
    while let Ok(count) = client.send(&[7; 60_000]) {
        sent += count;
    }
    assert!(client.by_kernel() as usize >= sent && sent > 0);
    let mut got = server.receive(1, 0).unwrap().len();
    // The client hears of the pipe, and only then of the kernel's room.
    client.ready(&[Readiness::OUT]);
    while let Ok(bytes) = server.receive(100_000, 0) {
        got += bytes.len();
    }
    assert_eq!(got, sent);
    assert_eq!(edges(client, libc::EPOLLOUT), 1);
}

#[test]
fn an_accepted_socket_takes_after_its_listener() {
    let piped = Piped::new();
    let client = piped.client.with(|_, socket| socket.state);
    assert_eq!((client, piped.client.phase()), (State::Offloaded, Phase::Connected));
    with_socket(&piped.listener.stack, piped.accepted, |_, socket| {
        assert_eq!((socket.state, socket.options.tos), (State::Offloaded, 0x10));
        assert_eq!(socket.peer, shadow::local_address(piped.client.raw()));
        assert_eq!(socket.stream.as_ref().map(|stream| stream.phase), Some(Phase::Connected));
    });
}

#[test]
fn a_peek_leaves_the_bytes_and_a_discard_takes_them() {
    let piped = Piped::new();
    piped.client().send(b"abcdef").unwrap();
    let server = piped.server();
    assert_eq!(server.receive(3, libc::MSG_PEEK), Ok(b"abc".to_vec()));
    assert_eq!(server.receive(3, libc::MSG_PEEK), Ok(b"abc".to_vec()));
    let discarded = receive::discard(server.stack, server.id, 2, libc::MSG_TRUNC);
    assert_eq!(discarded, Outcome::Ours(2));
    assert_eq!(server.receive(9, 0), Ok(b"cdef".to_vec()));
}

#[test]
fn what_can_be_read_is_counted_and_told_above_the_low_water_mark() {
    let piped = Piped::new();
    let server = piped.server();
    let bits = [Readiness::IN, Readiness::OUT];
    assert_eq!(server.ready(&bits), [false, true]);
    piped.client().send(b"abc").unwrap();
    assert_eq!(server.ready(&bits), [true, true]);
    assert_eq!(tell::ioctl(server.stack, server.id, libc::FIONREAD), Some(Ok(3)));
    with_socket(server.stack, server.id, |_, socket| {
        socket.stream.as_mut().unwrap().low_water = 4;
    });
    assert_eq!(server.ready(&bits), [false, true]);
    piped.client().send(b"d").unwrap();
    assert_eq!(server.ready(&bits), [true, true]);
    // The end is told whatever the mark is.
    server.receive(2, 0).unwrap();
    assert_eq!(server.ready(&bits), [false, true]);
    piped.client().shut(libc::SHUT_WR);
    assert_eq!(server.ready(&bits), [true, true]);
}

/// The kernel's sockets still think that the connection is whole.
#[test]
fn each_end_is_told_by_the_pipe() {
    let piped = Piped::new();
    let (client, server) = (piped.client(), piped.server());
    client.send(b"last").unwrap();
    assert_eq!(client.shut(libc::SHUT_WR), Outcome::Ours(()));
    assert_eq!(client.send(b"x"), Err(libc::EPIPE));
    assert_eq!(server.receive(9, 0), Ok(b"last".to_vec()));
    assert_eq!(server.receive(9, 0), Ok(Vec::new()));
    let bits = [Readiness::IN, Readiness::RDHUP, Readiness::HUP];
    assert_eq!(server.ready(&bits), [true, true, false]);
    assert_eq!(client.tcp_state(), Some(TcpState::FinWait2));
    assert_eq!(server.tcp_state(), Some(TcpState::CloseWait));
    assert_eq!(server.send(b"answer"), Ok(6));
    assert_eq!(client.receive(9, 0), Ok(b"answer".to_vec()));
    assert_eq!(server.shut(libc::SHUT_RDWR), Outcome::Ours(()));
    assert_eq!(client.receive(9, 0), Ok(Vec::new()));
    assert_eq!(server.ready(&bits), [true; 3]);
    assert_eq!(client.shut(libc::SHUT_RD), Outcome::Errno(libc::ENOTCONN));
    assert_eq!(peer_address(client.stack, client.id), Some(Err(libc::ENOTCONN)));
}

/// RFC 2525 section 2.17: data that nobody has read makes the end a reset.
#[test]
fn a_close_with_unread_bytes_resets_the_connection() {
    for unread in [false, true] {
        let piped = Piped::new();
        if unread {
            piped.client().send(b"unread").unwrap();
        }
        close(&piped.listener.stack, piped.accepted, piped.shadow.as_raw_fd());
        let Piped { client, shadow, listener: _listener, .. } = piped;
        // The caller of close() does that, too.
        drop(shadow);
        let client = End { stack: &client.stack, id: client.id, shadow: client.raw() };
        let expected = if unread { Err(libc::ECONNRESET) } else { Ok(Vec::new()) };
        assert_eq!(client.receive(9, 0), expected);
        assert_eq!(client.receive(9, 0), Ok(Vec::new()), "the error is told once");
    }
}

#[test]
fn a_full_pipe_takes_more_when_the_peer_has_read() {
    let piped = Piped::new();
    let (client, server) = (piped.client(), piped.server());
    let mut sent = 0;
    let errno = loop {
        match client.send(&[7; 60_000]) {
            Ok(count) => sent += count,
            Err(errno) => break errno,
        }
    };
    assert_eq!((errno, client.ready(&[Readiness::OUT])), (libc::EAGAIN, vec![false]));
    let mut got = 0;
    while let Ok(bytes) = server.receive(100_000, 0) {
        got += bytes.len();
        client.receive(1, 0).unwrap_err();
    }
    assert_eq!(got, sent);
    assert_eq!(client.ready(&[Readiness::OUT]), [true]);
    assert_eq!(client.send(b"more"), Ok(4));
    assert_eq!(server.receive(9, 0), Ok(b"more".to_vec()));
}

#[test]
fn urgent_bytes_need_the_kernels_connection() {
    let piped = Piped::new();
    let client = piped.client();
    let urgent = |end: End<'_>| send::send(end.stack, end.id, &[IoSlice::new(b"!")], libc::MSG_OOB);
    assert_eq!(urgent(client), Outcome::Os(WhyOs::Arguments));
    let mut room = [0; 1];
    let buffers = &mut [IoSliceMut::new(&mut room)];
    let received = receive::receive(client.stack, client.id, buffers, libc::MSG_OOB);
    assert_eq!(received, Outcome::Os(WhyOs::Arguments));
    client.shut(libc::SHUT_WR);
    assert_eq!(urgent(client), Outcome::Errno(libc::EPIPE), "nothing is sent any more");
}

#[test]
fn a_send_is_rehearsed_while_the_pipe_is_open() {
    let piped = Piped::new();
    let client = piped.client();
    let try_it = || rehearse(client.stack, client.id, &[IoSlice::new(b"four")], 0);
    assert_eq!(try_it(), Ok(4));
    assert_eq!(piped.server().receive(9, 0), Err(libc::EAGAIN), "nothing has left");
    client.shut(libc::SHUT_WR);
    assert_eq!(try_it(), Err(libc::EAGAIN));
}

/// Two ends stop, and give back to each other by the kernel the bytes that the other one has not read.
#[test]
fn a_connection_that_is_given_back_has_every_byte_in_the_kernel() {
    let piped = Piped::new();
    let (client, server) = (piped.client(), piped.server());
    client.send(b"to the server").unwrap();
    server.send(b"to the client").unwrap();
    std::thread::scope(|scope| {
        let giving = scope
            .spawn(|| end::give_back_to(server.stack, server.id, server.shadow, WhyOs::Passed));
        let attend = || {
            let mut state = client.stack.shard.lock().unwrap();
            state.poll();
            super::super::flush_all(&mut state);
        };
        while !giving.is_finished() {
            attend();
            // Leaves the other thread the processor, if there is one only.
            std::thread::sleep(core::time::Duration::from_micros(100));
        }
        assert!(giving.join().unwrap());
        attend();
    });
    let state = with_socket(server.stack, server.id, |_, socket| socket.state);
    assert_eq!(state, State::Os(WhyOs::Passed));
    let mut room = [0; 20];
    let (len, _) =
        rustix::net::recv(&piped.shadow, &mut room[..], rustix::net::RecvFlags::DONTWAIT).unwrap();
    assert_eq!(&room[..len], b"to the server");
    assert_eq!(client.receive(20, 0), Ok(b"to the client".to_vec()));
    // The rest of the conversation is the kernel's.
    let before = client.by_kernel();
    assert_eq!(client.send(b"later"), Ok(5));
    await_input(&piped.shadow);
    let (len, _) =
        rustix::net::recv(&piped.shadow, &mut room[..], rustix::net::RecvFlags::DONTWAIT).unwrap();
    assert_eq!(&room[..len], b"later");
    assert_eq!(client.by_kernel(), before + 5);
}
