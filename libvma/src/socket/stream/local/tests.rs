//! Errors of the kernel's half, over real connections: the program is told of each, once, and by its errno.

mod piped;

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use super::super::receive::{read_as_judge, receive};
use super::super::send::send;
use super::*;
use crate::shard::Readiness;
use crate::shard::pipe::Offer;
use crate::socket::State;
use crate::socket::fixture::stack;
use crate::socket::stream::{Outcome, Phase, Stream};
use crate::sys::sockaddr::Family;

/// A connection whose bytes go by the kernel, because its peer has no link.
struct Apart {
    stack: Stack,
    id: SocketId,
    shadow: TcpStream,
    peer: TcpStream,
}

impl Apart {
    fn new() -> Apart {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!("IPv4") };
        let shadow = TcpStream::connect(to).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let stack = stack();
        stack.shard.open_local_ring().unwrap();
        let settings = super::super::system::of(&stack).settings.clone();
        let mut stream = Stream::new(settings, Family::Ipv4);
        stream.phase = Phase::Connected;
        let mut socket = Socket::new(shadow.as_raw_fd(), true, &stack.config);
        socket.state = State::Offloaded;
        socket.stream = Some(Box::new(stream));
        let id = {
            let mut state = stack.shard.lock().unwrap();
            let id = state.attach(socket, 1 << 20);
            let destination = SocketAddrV4::new(Ipv4Addr::LOCALHOST, to.port());
            assert!(state.seek_pipe(id, Offer { socket: 7, destination, limit: 1 << 20 }));
            state.pipe(id).unwrap().set_established();
            // No link will come: all is the kernel's.
            state.withdraw_pipe(id);
            id
        };
        Apart { stack, id, shadow, peer }
    }

    /// The peer sends bytes and resets the connection.
    fn reset_after(&mut self, bytes: &[u8]) {
        self.peer.write_all(bytes).unwrap();
        shadow::set_linger(self.peer.as_raw_fd(), Some(0));
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stand_in = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        drop(core::mem::replace(&mut self.peer, stand_in));
        assert_ne!(shadow::events(self.shadow.as_raw_fd()) & libc::POLLERR, 0);
    }

    fn receive(&self, lens: &[usize]) -> Result<usize, i32> {
        let mut bytes: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
        let mut buffers: Vec<_> = bytes.iter_mut().map(|bytes| IoSliceMut::new(bytes)).collect();
        match receive(&self.stack, self.id, &mut buffers, libc::MSG_DONTWAIT) {
            Outcome::Ours(count) => Ok(count),
            Outcome::Errno(errno) => Err(errno),
            Outcome::Os(why) => panic!("the kernel's: {why}"),
        }
    }

    /// The peer gets these bytes; tells in how many segments.
    fn send(&mut self, pieces: &[&[u8]]) -> u64 {
        let before = segments_with_data(&self.peer);
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let whole = pieces.concat();
        let sent = send(&self.stack, self.id, &slices, libc::MSG_DONTWAIT);
        assert!(matches!(sent, Outcome::Ours(count) if count == whole.len()));
        let mut got = vec![0; whole.len()];
        self.peer.read_exact(&mut got).unwrap();
        assert!(got == whole);
        segments_with_data(&self.peer) - before
    }

    fn readiness(&self) -> Readiness {
        let mut state = self.stack.shard.lock().unwrap();
        super::ready::readiness(&mut state, self.id).unwrap()
    }
}

/// Those that a connection of the kernel's has received (`tcpi_data_segs_in`).
fn segments_with_data(connection: &TcpStream) -> u64 {
    const DATA_SEGMENTS_IN: usize = 152;
    let mut info = [0; 256];
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    let len = crate::sys::shadow::option(connection.as_raw_fd(), level, name, &mut info).unwrap();
    let field = info[..len].get(DATA_SEGMENTS_IN..).and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(*field.unwrap()).into()
}

/// Nagle's algorithm would hold all but the first back until the peer acknowledges that, up to 40 ms later.
#[test]
fn the_buffers_of_one_call_leave_together() {
    let mut apart = Apart::new();
    assert_eq!(apart.send(&[b"length", b"", b"body"]), 1);
    // More than are given to the kernel at once.
    let bytes: Vec<u8> = (0..1000).map(|at| (at % 251) as u8).collect();
    let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(apart.send(&pieces), 1);
}

#[test]
fn an_error_behind_bytes_for_several_buffers_is_told_by_the_next_call() {
    let mut apart = Apart::new();
    apart.reset_after(b"abcd");
    assert_eq!(apart.receive(&[4, 4]), Ok(4));
    assert!(apart.readiness().contains(Readiness::ERR));
    assert_eq!(apart.receive(&[4]), Err(libc::ECONNRESET));
    assert_eq!(apart.receive(&[4]), Ok(0));
}

#[test]
fn an_error_that_a_callback_meets_is_told_to_the_program() {
    let mut apart = Apart::new();
    apart.reset_after(b"ab");
    let judge = |flags| {
        let mut bytes = [0; 8];
        let buffers = &mut [IoSliceMut::new(&mut bytes)];
        read_as_judge(&apart.stack, apart.id, buffers, 8, flags)
    };
    assert_eq!((judge(libc::MSG_PEEK), judge(libc::MSG_TRUNC), judge(0)), (2, 2, 0));
    assert!(apart.readiness().contains(Readiness::ERR));
    assert_eq!(apart.receive(&[8]), Err(libc::ECONNRESET));
    assert_eq!(apart.receive(&[8]), Ok(0));
}

#[test]
fn an_error_that_is_no_reset_keeps_its_errno() {
    let apart = Apart::new();
    let keep = |errno| keep_error(&mut apart.stack.shard.lock().unwrap(), apart.id, errno);
    assert!(!apart.readiness().contains(Readiness::ERR));
    keep(libc::EAGAIN);
    assert!(!apart.readiness().contains(Readiness::ERR));
    keep(libc::ECONNABORTED);
    assert!(
        apart.readiness().contains(Readiness::ERR) && apart.readiness().contains(Readiness::IN)
    );
    assert_eq!(apart.receive(&[8]), Err(libc::ECONNABORTED));
    assert!(!apart.readiness().contains(Readiness::ERR));
    assert_eq!(apart.receive(&[8]), Err(libc::EAGAIN));
}

/// Bytes that wait behind others are counted as the program gave them, and come in their place.
#[test]
fn a_promised_send_takes_what_the_program_gave_though_the_kernel_is_full() {
    let mut apart = Apart::new();
    let send = |apart: &Apart, pieces: &[&[u8]]| {
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        match send(&apart.stack, apart.id, &slices, libc::MSG_DONTWAIT) {
            Outcome::Ours(count) => Ok(count),
            Outcome::Errno(errno) => Err(errno),
            Outcome::Os(why) => panic!("the kernel's: {why}"),
        }
    };
    let mut whole = Vec::new();
    while let Ok(count) = send(&apart, &[&[b'f'; 50_000]]) {
        whole.resize(whole.len() + count, b'f');
    }
    apart.stack.shard.lock().unwrap().pipe(apart.id).unwrap().promise_room();
    assert_eq!(send(&apart, &[b"pro", b"", b"mised"]), Ok(8));
    assert_eq!(send(&apart, &[b"not promised"]), Err(libc::EAGAIN));
    whole.extend_from_slice(b"promised");
    let mut got = vec![0; whole.len()];
    for part in got.chunks_mut(10_000) {
        flush(&mut apart.stack.shard.lock().unwrap(), apart.id);
        apart.peer.read_exact(part).unwrap();
    }
    assert!(got == whole);
    assert_eq!(apart.send(&[b"behind it"]), 1);
}

/// shutdown(2), poll(2): each end by itself, and both together.
#[test]
fn the_ends_of_a_connection_that_the_kernel_has_are_its_own() {
    let mut apart = Apart::new();
    let shut = |apart: &Apart, read, write| {
        end::shutdown(&mut apart.stack.shard.lock().unwrap(), apart.id, read, write)
    };
    let has = |apart: &Apart, bits: &[Readiness]| {
        bits.iter().map(|bit| apart.readiness().contains(*bit)).collect::<Vec<_>>()
    };
    let bits = [Readiness::OUT, Readiness::IN, Readiness::RDHUP, Readiness::HUP];
    assert_eq!(has(&apart, &bits), [true, false, false, false]);
    assert_eq!(shut(&apart, false, true), Outcome::Ours(()));
    let mut got = [0; 1];
    assert_eq!(apart.peer.read(&mut got).unwrap(), 0, "the peer sees the end");
    apart.peer.write_all(b"late").unwrap();
    assert_eq!(apart.receive(&[9]), Ok(4));
    assert_eq!(shut(&apart, true, false), Outcome::Ours(()));
    assert_eq!(has(&apart, &bits), [true; 4]);
    assert_eq!(apart.receive(&[9]), Ok(0));
    apart.peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(shut(&apart, true, true), Outcome::Errno(libc::ENOTCONN), "both have ended");
}

#[test]
fn a_sleep_is_ended_by_the_kernels_socket_where_bytes_go_its_way() {
    let apart = Apart::new();
    let mut state = apart.stack.shard.lock().unwrap();
    let shadow = apart.shadow.as_raw_fd();
    assert_eq!(wakes(&mut state, apart.id, true), Some((shadow, libc::POLLOUT)));
    assert_eq!(wakes(&mut state, apart.id, false), Some((shadow, libc::POLLIN)));
    let plain = state.attach(Socket::new(-1, true, &apart.stack.config), 0);
    assert_eq!(wakes(&mut state, plain, true), None, "it has no pipe");
}

/// SO_RCVBUF: what a program has not set it does not limit.
#[test]
fn as_much_may_lie_unread_as_the_program_has_said() {
    let apart = Apart::new();
    let mut state = apart.stack.shard.lock().unwrap();
    let (_, socket) = state.socket(apart.id).unwrap();
    assert_eq!(limit(socket), LARGEST_WINDOW);
    let settings = &mut socket.stream.as_mut().unwrap().settings;
    settings.receive_buffer.limit = 50_000;
    assert_eq!(limit(socket), LARGEST_WINDOW, "it grows by itself");
    socket.stream.as_mut().unwrap().settings.receive_buffer.automatic = false;
    assert_eq!(limit(socket), 100_000, "the kernel's number, of which half is overhead");
}

#[test]
fn poll_bits_of_a_reset_come_together() {
    let told = |events| ready::from_poll(events);
    let all = [Readiness::IN, Readiness::OUT, Readiness::RDHUP, Readiness::HUP, Readiness::ERR];
    assert!(all.iter().all(|bit| told(libc::POLLERR).contains(*bit)));
    let hup = told(libc::POLLHUP | libc::POLLPRI);
    assert!(hup.contains(Readiness::HUP) && hup.contains(Readiness::PRI));
    assert!(!hup.contains(Readiness::IN) && !hup.contains(Readiness::OUT));
    assert_eq!(told(0), Readiness::NONE);
}

/// The peer of a process that ends brings a descriptor; nobody may slip in another connection's.
#[test]
fn a_half_is_taken_only_if_it_is_the_other_end_of_the_same_connection() {
    let apart = Apart::new();
    let mut state = apart.stack.shard.lock().unwrap();
    let is_other = |state: &mut Shard, half: i32| half::is_other_end(state, apart.id, half);
    assert!(is_other(&mut state, apart.peer.as_raw_fd()));
    assert!(!is_other(&mut state, apart.shadow.as_raw_fd()), "it is the own end");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(!is_other(&mut state, other.as_raw_fd()));
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(!is_other(&mut state, datagrams.as_raw_fd()) && !is_other(&mut state, -1));
}

/// The kernel alone has a say about the state and the error of a connection whose pipe is over.
#[test]
fn the_state_and_the_error_are_the_kernels_when_the_pipe_is_over() {
    let mut apart = Apart::new();
    let ask = |apart: &Apart| {
        let mut state = apart.stack.shard.lock().unwrap();
        (ready::tcp_state(&mut state, apart.id), ready::take_error(&mut state, apart.id))
    };
    assert_eq!(ask(&apart), (None, Some(0)));
    apart.peer.write_all(b"abc").unwrap();
    let unread = ready::unread(&mut apart.stack.shard.lock().unwrap(), apart.id);
    assert_eq!(unread, Some(3));
    apart.reset_after(b"");
    assert_eq!(ask(&apart).1, Some(libc::ECONNRESET));
    assert_eq!(ask(&apart).1, Some(0), "it is told once");
}

#[test]
fn links_carry_connections_between_addresses_of_this_host() {
    let stack = crate::socket::fixture::stack_with_plane(&[]);
    let own = |address: [u8; 4]| connect::is_own(&stack, address.into());
    assert!(own([127, 0, 0, 1]) && own([127, 9, 9, 9]));
    assert!(!own([192, 0, 2, 77]));
    assert!(connect::is_own(&stack, *libvma_dev::ipv6_loopback::end(1).ip()));
    let from = |address: [u8; 4]| connect::likely_source(address.into()).octets();
    assert_eq!(from([127, 9, 9, 9]), [127, 0, 0, 1], "the kernel chooses the first one");
    assert_eq!(from([10, 0, 0, 1]), [10, 0, 0, 1]);
}

/// connect(2): the kernel's socket makes the connection, and a rule or a row of short ones keeps the library out.
#[test]
fn a_connection_within_the_host_is_left_to_the_kernel_where_it_does_not_pay() {
    use crate::socket::fixture::{Tcp, stack_with};
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!("IPv4") };
    let outcome = |stack: Stack, to: SocketAddrV4| {
        let tcp = Tcp::of(stack, Family::Ipv4);
        connect::connect(&tcp.stack, tcp.id, tcp.raw(), to)
    };
    use super::super::WhyOs;
    assert_eq!(outcome(stack(), to), None, "no process with the library is there");
    assert_eq!(outcome(stack(), SocketAddrV4::new(*to.ip(), 0)), None);
    assert_eq!(outcome(stack_with(&[("VMA_LOCAL", "0")]), to), None);
    let ruled = stack();
    assert!(ruled.config.rules.add("use os tcp_client 127.0.0.1:*"));
    assert!(matches!(outcome(ruled, to), Some(Outcome::Os(WhyOs::Rule(_)))));
    let short = stack();
    // A time to come: so the sample is not too old however long the rest takes.
    let now = crate::shard::clock::now().as_nanos() + 1_000_000_000;
    (0..64).for_each(|_| short.short_streams.note(to, true, now));
    // The first one is a sample.
    short.short_streams.expects(to, now);
    assert_eq!(outcome(short, to), Some(Outcome::Os(WhyOs::Short)));
}

/// The kernel's connect(), which is asked again while it is under way.
#[test]
fn an_attempt_within_the_host_ends_as_the_kernels_does() {
    use crate::socket::fixture::{Tcp, own_loopback};
    let listener = TcpListener::bind((own_loopback(), 0)).unwrap();
    let SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!("IPv4") };
    let go_on = |tcp: &Tcp| {
        tcp.with(|_, socket| socket.state = State::Offloaded);
        tcp.with_stream(|stream| stream.phase = Phase::Connecting);
        let outcome = connect::go_on(&tcp.stack, tcp.id, tcp.raw(), to);
        (outcome, tcp.phase(), tcp.with(|_, socket| socket.state))
    };
    let done = (Outcome::Ours(()), Phase::Connected, State::Offloaded);
    assert_eq!(go_on(&Tcp::new()), done);
    drop(listener);
    let refused = (Outcome::Errno(libc::ECONNREFUSED), Phase::Fresh, State::Undecided);
    assert_eq!(go_on(&Tcp::new()), refused);
    let taken = Tcp::in_phase(Phase::Connecting);
    let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::connect(&taken.shadow, &own.local_addr().unwrap()).unwrap();
    let connected = (Outcome::Errno(libc::EISCONN), Phase::Connecting, State::Offloaded);
    assert_eq!(go_on(&taken), connected, "it is not over");
}
