//! A process's state for the tests of this layer: sockets whose shadows are sockets of the kernel on the loopback interface.
//!
//! No interface is attached ([`stack_with_plane`] switches that off), so a test needs no rights. A test makes the segments of a
//! TCP peer itself ([`Tcp::arrive`]), and what the engine sends is lost. Datagrams between two processes go by a real link
//! ([`Linked`]).

use core::ffi::{c_int, c_void};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use libvma_dev::extra::{Info, IoVec};
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::{Settings as TcpSettings, State as TcpState};
use libvma_engine::wire::tcp::{Flags, Header};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketType};

use super::brevity::Brevity;
use super::receive::{self, Received};
use super::stream::{self, Phase, Stream};
use super::{Outcome, Plane, Socket, Stack, State, WhyOs, attach, egress, local, options};
use crate::config::Config;
use crate::config::settings::Settings;
use crate::control::Control;
use crate::extra::{Callback, Packet, Verdict};
use crate::shard::tcp::fixture::resumed;
pub use crate::shard::tcp::fixture::{RECEIVE_START, SEND_START};
use crate::shard::tcp::{Opening, Resumption};
use crate::shard::{Endpoint, NextHop, RingId, Shard, SocketId};
use crate::stats::StatsFile;
use crate::sys::load::Load;
use crate::sys::lock::Lock;
use crate::sys::shadow;
use crate::sys::sockaddr::Family;

/// A process with these parameters, whose internal thread answers others but watches nothing.
pub fn stack_with(environment: &[(&str, &str)]) -> Stack {
    let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let config = Config::new(&Settings::read(environment));
    let local = local::Local::new();
    local.set_served(true);
    Stack {
        shard: Shard::default(),
        drained: Default::default(),
        hold: Default::default(),
        short_streams: Brevity::of_streams(),
        short_datagrams: Brevity::of_datagrams(),
        attaching: Default::default(),
        plane: Lock::new(None),
        shadows: Default::default(),
        internal_waker: None,
        load: Load::unknown(),
        local,
        stats: StatsFile::new(&config.stats_file),
        ended: Lock::new(Default::default()),
        extra: Default::default(),
        kernels: Default::default(),
        passed: Lock::new(Default::default()),
        system: Default::default(),
        starts: OnceLock::new(),
        watch: stream::watch::Watch::new("", None, None),
        config,
    }
}

pub fn stack() -> Stack {
    stack_with(&[])
}

/// The same with this host's routes and addresses; none of its interfaces may be attached.
pub fn stack_with_plane(environment: &[(&str, &str)]) -> Stack {
    let stack = stack_with(&[environment, &[("VMA_XDP", "off")]].concat());
    let (control, _) = Control::open(&stack.config).unwrap();
    let plane = Plane { control, rings: Default::default(), wanted: Default::default() };
    *stack.plane.lock().unwrap() = Some(plane);
    stack
}

/// A loopback address that no other test of this host has at the moment, so that a port of it which was given up is vacant.
pub fn own_loopback() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id().wrapping_mul(31) + NEXT.fetch_add(1, Ordering::Relaxed);
    // 127.128.0.0 and above: 23 bits are free.
    Ipv4Addr::from_bits(0x7f80_0000 | number & 0x007f_ffff)
}

pub const ANY_PORT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

fn kernels_socket(family: Family, kind: SocketType) -> OwnedFd {
    let family = match family {
        Family::Ipv4 => AddressFamily::INET,
        Family::Ipv6 => AddressFamily::INET6,
    };
    rustix::net::socket(family, kind, None).unwrap()
}

/// Waits until a socket of the kernel has something: by the loopback interface it comes soon, and not always at once.
pub fn await_input(socket: &impl AsFd) {
    let events = PollFlags::IN | PollFlags::ERR;
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let found = rustix::event::poll(&mut [PollFd::new(socket, events)], Some(&limit));
    assert_eq!(found, Ok(1), "nothing comes");
}

/// Calls `with` on a socket of the stack.
pub fn with_socket<T>(
    stack: &Stack,
    id: SocketId,
    with: impl FnOnce(&mut Endpoint, &mut Socket) -> T,
) -> T {
    let mut state = stack.shard.lock().unwrap();
    let (endpoint, socket) = state.socket(id).unwrap();
    with(endpoint, socket)
}

/// A UDP socket of a process.
pub struct Udp {
    pub stack: Stack,
    pub id: SocketId,
    pub shadow: OwnedFd,
}

impl Udp {
    /// As socket(2) leaves it.
    pub fn new() -> Udp {
        Udp::of(stack(), Family::Ipv4)
    }

    pub fn of(stack: Stack, family: Family) -> Udp {
        let shadow = kernels_socket(family, SocketType::DGRAM);
        let id = super::open(&stack, shadow.as_raw_fd(), true, family).unwrap();
        Udp { stack, id, shadow }
    }

    /// Bound to the loopback address; other processes may find it.
    pub fn named(stack: Stack) -> Udp {
        let udp = Udp::of(stack, Family::Ipv4);
        shadow::bind(udp.raw(), ANY_PORT).unwrap();
        attach::name(&udp.stack, udp.id, false);
        udp
    }

    pub fn raw(&self) -> i32 {
        self.shadow.as_raw_fd()
    }

    pub fn address(&self) -> SocketAddrV4 {
        shadow::local_address(self.raw()).unwrap()
    }

    pub fn with<T>(&self, with: impl FnOnce(&mut Endpoint, &mut Socket) -> T) -> T {
        with_socket(&self.stack, self.id, with)
    }

    pub fn state(&self) -> State {
        self.with(|_, socket| socket.state)
    }

    /// setsockopt(2) of the program, which the kernel accepts.
    pub fn set<const N: usize>(&self, level: i32, name: i32, value: [u8; N]) -> Result<(), i32> {
        let accepted = shadow::set_option(self.raw(), level, name, &value);
        assert!(accepted, "the kernel refuses {level} {name} {value:?}");
        options::after_set(&self.stack, self.id, level, name, &value)
    }

    /// The same, of an option that the kernel refuses to a test without privileges.
    pub fn set_privileged(&self, level: i32, name: i32, value: i32) {
        shadow::set_option(self.raw(), level, name, &value);
        let value = value.to_ne_bytes();
        assert_eq!(options::after_set(&self.stack, self.id, level, name, &value), Ok(()));
    }

    pub fn set_number(&self, level: i32, name: i32, value: i32) {
        assert_eq!(self.set(level, name, value.to_ne_bytes()), Ok(()));
    }

    pub fn send(&self, payload: &[u8], to: SocketAddrV4) -> Outcome<(usize, RingId)> {
        self.send_with(payload, Some(to), 0, None)
    }

    pub fn send_with(
        &self,
        payload: &[u8],
        to: Option<SocketAddrV4>,
        flags: i32,
        control: Option<&[u8]>,
    ) -> Outcome<(usize, RingId)> {
        let payload = &[IoSlice::new(payload)];
        let named = Family::Ipv4;
        let request = egress::Request { payload, to, named, flags, control, more_follow: false };
        egress::send(&self.stack, self.id, &request)
    }

    /// A receive call with so much room that does not wait, and what it has put there. The kernel's socket has nothing.
    pub fn receive(&self, room: usize, flags: i32) -> (Outcome<Received>, Vec<u8>) {
        let mut room = vec![0; room];
        let buffers = &mut [IoSliceMut::new(&mut room)];
        let os = &mut |_| Err(libc::EAGAIN);
        let request = receive::Request { buffers, flags, control: None, os };
        let outcome = receive::receive(&self.stack, self.id, request);
        if let Outcome::Ours(Received::Datagram { len, .. }) = outcome {
            room.truncate(len);
        }
        (outcome, room)
    }
}

/// Two processes of this host with a UDP socket each, of which the client has found the server.
pub struct Linked {
    pub server: Udp,
    pub client: Udp,
}

impl Linked {
    pub fn new() -> Linked {
        Linked::with(&[])
    }

    pub fn with(environment: &[(&str, &str)]) -> Linked {
        let server = Udp::named(stack_with_plane(environment));
        let client = Udp::named(stack_with_plane(environment));
        let linked = Linked { server, client };
        let first = linked.client.send(b"", linked.to());
        assert_eq!(first, Outcome::Os(WhyOs::LocalDestination), "the server has not answered yet");
        local::serve(&linked.server.stack);
        local::serve(&linked.client.stack);
        linked
    }

    pub fn to(&self) -> SocketAddrV4 {
        self.server.address()
    }

    /// Sends by the link.
    pub fn send(&self, payload: &[u8]) {
        let sent = self.client.send(payload, self.to());
        assert!(matches!(sent, Outcome::Ours((len, _)) if len == payload.len()), "{sent:?}");
    }
}

/// A receive callback that judges this way; the function at the C edge is not called.
pub fn callback(descriptor: i32, call: fn(&Callback, &mut Packet<'_>) -> Verdict) -> Callback {
    extern "C" fn never(_: c_int, _: usize, _: *mut IoVec, _: *mut Info, _: *mut c_void) -> c_int {
        panic!("the judgement is the test's")
    }
    Callback { function: never, context: 0, descriptor, call }
}

/// The addresses of [`Tcp::connected`].
pub const KEY: FlowKey = FlowKey {
    local: Ipv4Addr::new(10, 0, 0, 1),
    local_port: 4000,
    remote: Ipv4Addr::new(10, 0, 0, 2),
    remote_port: 80,
};

/// A TCP socket of a process.
pub struct Tcp {
    pub stack: Stack,
    pub id: SocketId,
    pub shadow: OwnedFd,
    /// The sequence number of the peer's next byte, and its acknowledgment number.
    next: Cell<u32>,
    acknowledged: Cell<u32>,
}

impl Tcp {
    /// As socket(2) leaves it, but that its calls do not wait.
    pub fn new() -> Tcp {
        Tcp::of(stack(), Family::Ipv4)
    }

    pub fn of(stack: Stack, family: Family) -> Tcp {
        let shadow = kernels_socket(family, SocketType::STREAM);
        let id = stream::open(&stack, shadow.as_raw_fd(), true, family).unwrap();
        let (next, acknowledged) = (Cell::new(RECEIVE_START), Cell::new(SEND_START));
        Tcp { stack, id, shadow, next, acknowledged }
    }

    /// The library says that it is there; no connection is behind it.
    pub fn in_phase(phase: Phase) -> Tcp {
        let tcp = Tcp::new();
        tcp.with_stream(|stream| stream.phase = phase);
        tcp
    }

    /// With a connection of the engine's to a peer that the test plays.
    pub fn connected() -> Tcp {
        Tcp::connected_as(TcpState::Established, b"")
    }

    /// The same, in this state and with bytes that have not been read.
    pub fn connected_as(state: TcpState, unread: &[u8]) -> Tcp {
        let tcp = Tcp::in_phase(Phase::Connected);
        tcp.resume(state, unread);
        tcp
    }

    /// In an attempt: the SYN has left, and no answer has come.
    pub fn connecting() -> Tcp {
        let tcp = Tcp::in_phase(Phase::Connecting);
        let settings = tcp.with_stream(|stream| stream.settings.clone());
        tcp.with(|_, socket| socket.state = State::Offloaded);
        let (hop, flows, ttl, tos) = (Some(NextHop::nowhere()), vec![], 64, 0);
        let opening = Opening { key: KEY, hop, ttl, tos, settings, flows, start: None };
        let mut state = tcp.stack.shard.lock().unwrap();
        state.open_connection(tcp.id, opening).unwrap();
        state.run_tcp();
        drop(state);
        tcp
    }

    /// The handshake of [`Tcp::connecting`] ends well.
    pub fn resume_after_handshake(&self) {
        self.stack.shard.lock().unwrap().forget_connection(self.id);
        self.resume(TcpState::Established, b"");
        self.with_stream(|stream| stream.phase = Phase::Connecting);
    }

    /// Gives the socket its connection.
    pub fn resume(&self, state: TcpState, unread: &[u8]) {
        let mut guard = self.stack.shard.lock().unwrap();
        let (_, socket) = guard.socket(self.id).unwrap();
        socket.state = State::Offloaded;
        (socket.local, socket.peer) = (Some(KEY.local_endpoint()), Some(KEY.remote_endpoint()));
        let stream = socket.stream.as_deref_mut().unwrap();
        stream.phase = Phase::Connected;
        let resumption = resumption(KEY, stream.settings.clone(), state, unread);
        guard.take_over_connection(self.id, resumption).unwrap();
        guard.run_tcp();
    }

    /// A listener on the loopback address that a thread has waited on, and of which no other process knows.
    pub fn listening() -> Tcp {
        let tcp = Tcp::of(stack_with(&[("VMA_LOCAL", "0")]), Family::Ipv4);
        shadow::bind(tcp.raw(), ANY_PORT).unwrap();
        rustix::net::listen(&tcp.shadow, 16).unwrap();
        stream::listen::listen(&tcp.stack, tcp.id, 16);
        tcp.with(|_, socket| socket.state = State::Offloaded);
        tcp.with_stream(|stream| stream.phase = Phase::Listening { steered: true });
        let mut state = tcp.stack.shard.lock().unwrap();
        let spec = stream::listen::spec(&tcp.stack, &mut state, tcp.id).unwrap();
        state.listen(tcp.id, spec);
        drop(state);
        tcp
    }

    /// A client from this port waits for accept(), and has sent these bytes.
    pub fn put_client(&self, remote_port: u16, unread: &[u8]) {
        let local = shadow::local_address(self.raw()).unwrap();
        let key = FlowKey { local_port: local.port(), remote_port, ..KEY };
        let settings = self.with_stream(|stream| stream.settings.clone());
        let stand_in = Socket::new(-1, true, &self.stack.config);
        let mut state = self.stack.shard.lock().unwrap();
        let resumption = resumption(key, settings, TcpState::Established, unread);
        state.put_client(self.id, stand_in, resumption);
    }

    /// A segment of the peer's, which acknowledges what [`Tcp::acknowledge`] has said.
    pub fn arrive(&self, flags: Flags, payload: &[u8]) {
        let header = Header { flags: flags.with(Flags::ACK), ..self.header() };
        self.arrive_as(&header, payload);
    }

    /// The next segment of the peer's, without flags.
    pub fn header(&self) -> Header {
        Header {
            src_port: KEY.remote_port,
            dst_port: KEY.local_port,
            seq: self.next.get(),
            ack: self.acknowledged.get(),
            window: 50_000,
            ..Header::default()
        }
    }

    pub fn arrive_as(&self, header: &Header, payload: &[u8]) {
        let end = u32::from(header.flags.intersects(Flags::FIN));
        self.next.set(self.next.get() + payload.len() as u32 + end);
        let mut state = self.stack.shard.lock().unwrap();
        state.arrive(KEY, header, payload);
        state.run_tcp();
    }

    /// The peer acknowledges so many bytes more.
    pub fn acknowledge(&self, bytes: u32) {
        self.acknowledged.set(self.acknowledged.get() + bytes);
        self.arrive(Flags::NONE, b"");
    }

    pub fn raw(&self) -> i32 {
        self.shadow.as_raw_fd()
    }

    pub fn with<T>(&self, with: impl FnOnce(&mut Endpoint, &mut Socket) -> T) -> T {
        with_socket(&self.stack, self.id, with)
    }

    pub fn with_stream<T>(&self, with: impl FnOnce(&mut Stream) -> T) -> T {
        self.with(|_, socket| with(socket.stream.as_deref_mut().unwrap()))
    }

    pub fn phase(&self) -> Phase {
        self.with_stream(|stream| stream.phase)
    }

    /// The state of the engine's connection.
    pub fn tcp_state(&self) -> Option<TcpState> {
        let mut state = self.stack.shard.lock().unwrap();
        state.connection(self.id).map(|connection| connection.state())
    }

    /// Bytes of a receive call that does not wait.
    pub fn receive(&self, room: usize, flags: i32) -> Outcome<Vec<u8>> {
        let mut room = vec![0; room];
        let buffers = &mut [IoSliceMut::new(&mut room)];
        match stream::receive::receive(&self.stack, self.id, buffers, flags) {
            Outcome::Ours(len) => Outcome::Ours(room[..len.min(room.len())].to_vec()),
            Outcome::Errno(errno) => Outcome::Errno(errno),
            Outcome::Os(why) => Outcome::Os(why),
        }
    }

    pub fn send(&self, payload: &[u8], flags: i32) -> Outcome<usize> {
        stream::send::send(&self.stack, self.id, &[IoSlice::new(payload)], flags)
    }

    /// setsockopt(2) of the program, which the kernel accepts.
    pub fn set<const N: usize>(&self, level: i32, name: i32, value: [u8; N]) -> Option<WhyOs> {
        let accepted = shadow::set_option(self.raw(), level, name, &value);
        assert!(accepted, "the kernel refuses {level} {name} {value:?}");
        match stream::options::after_set(&self.stack, self.id, level, name, &value) {
            stream::options::Effect::Done => None,
            stream::options::Effect::Os(why) => Some(why),
        }
    }

    pub fn set_number(&self, level: i32, name: i32, value: i32) -> Option<WhyOs> {
        self.set(level, name, value.to_ne_bytes())
    }
}

/// A connection in this state, to go on with.
pub fn resumption(
    key: FlowKey,
    settings: TcpSettings,
    state: TcpState,
    unread: &[u8],
) -> Resumption<'_> {
    let parts = resumed(state);
    let (hop, flows, ttl, tos) = (Some(NextHop::nowhere()), vec![], 64, 0);
    Resumption { key, hop, ttl, tos, settings, flows, parts, unread, is_accepted: false }
}
