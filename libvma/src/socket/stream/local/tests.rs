//! Errors of the kernel's half, over real connections: the program is told of each, once, and by its errno.

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
