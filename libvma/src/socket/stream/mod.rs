//! TCP sockets: the calls of the program on connections and listeners of the shard.
//!
//! A stream socket is undecided until connect() or listen(). What cannot be offloaded then is the
//! kernel's for good ([`Outcome::Os`]: the caller forgets the socket). An offloaded one is served
//! here; its shadow reserves the port, holds the options and, if it listens, accepts what comes by
//! other ways than our rings.
//!
//! `connect` and `listen` open connections, `send` and `receive` move bytes, `shutdown` ends them,
//! `options` sets and `tell` tells, `route` finds the way, `wait` blocks, `give_back` ends our part,
//! `local` serves connections with processes of this host, `exceptions` is what never was ours, `inherited` a listener that a child takes over, `system` is what
//! the host's settings say, `stranded` what becomes of connections whose interface is gone, `watch` what the daemon is told.

pub mod candidate;
pub mod connect;
pub mod exceptions;
pub mod gate;
pub mod give_back;
pub mod hold;
pub mod inherited;
pub mod listen;
mod listener_flows;
pub mod local;
pub mod options;
pub mod path;
pub mod receive;
pub mod rehearsal;
mod route;
pub mod send;
pub mod shutdown;
pub mod stranded;
pub mod system;
pub mod take_over;
pub mod tell;
mod unaccepted;
mod wait;
pub mod watch;

pub use inherited::{leave_listener, leave_wire};
pub use shutdown::close;
pub use system::Known as KnownSystem;
pub use unaccepted::hand_over as hand_over_unaccepted;

use core::num::NonZeroU32;
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::is_stand_in;
use libvma_engine::tcp::{Connection, Error, Settings};

use super::block::Guard;
use super::filter::Judgement;
use super::{Outcome, Socket, Stack, WhyOs};
use crate::shard::tcp::Body;
use crate::shard::{self, SocketId};
use crate::sys::sockaddr::{Family, SocketName};
use crate::sys::{loopback_end, shadow};

/// What only a stream socket has.
#[derive(Clone)]
pub struct Stream {
    pub phase: Phase,
    /// Of the program's socket and of its shadow. The engine knows IPv4 only.
    pub family: Family,
    /// What options have set, until a connection takes it over; of a listener for those it accepts.
    pub settings: Settings,
    /// The shadow is as socket(2) made it: no call that may give it an address has come since.
    pub unbound: bool,
    /// The program left its port to the kernel.
    pub any_port: bool,
    /// The shadow is bound to the connection's port.
    pub holds_port: bool,
    /// The program did not bind it, we did, for a connection.
    pub bound_by_us: bool,
    /// SHUT_RD while it was not connected, which the program sees nevertheless.
    pub reading_shut: bool,
    /// SO_LINGER with a time that is not 0, in seconds.
    pub linger: Option<NonZeroU32>,
    /// SO_SNDTIMEO in nanoseconds.
    pub send_timeout: Option<u64>,
    /// SO_RCVLOWAT.
    pub low_water: u32,
    /// SO_PEEK_OFF: where the next MSG_PEEK starts.
    pub peek_offset: Option<u32>,
    /// TCP_DEFER_ACCEPT in seconds.
    pub defer_accept: Option<u32>,
    /// A thread accepts from the shadow: others that tried would block in the kernel.
    pub os_accepting: bool,
    /// Connections of ours that were accepted one after the other.
    pub ours_in_row: u8,
    /// Sends, to look at the link or the rings after so many.
    pub sends: u32,
    /// listen()'s, as the program said it.
    pub backlog: i32,
    /// A listener's flows were installed at listen(), before anybody waited.
    pub ahead: bool,
    /// A listener that other processes accept from, too: new connections are the kernel's.
    pub left: bool,
    /// A listener that this process inherited: how often its parent had forked by then. If it
    /// forked again, another child may accept, too.
    pub inherited_at: Option<u32>,
    /// Whether receive calls may read what it has, if it has a receive callback.
    pub judgement: Judgement,
    /// CLOCK_REALTIME nanoseconds when the first of the bytes were found that the callback is to judge; 0: none yet.
    pub arrival: u64,
    /// Options set so far: a socket that accept() makes inherits them.
    pub inherited: Vec<Inherited>,
    /// What the program has set on this very socket.
    pub own: options::Own,
}

/// An option that the kernel accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    pub level: i32,
    pub name: i32,
    pub value: Vec<u8>,
}

/// Where a stream socket is in its life, as socket(7) sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Neither connected nor listening.
    Fresh,
    /// connect() was called and has not said how it ended.
    Connecting,
    /// It was connected at least once.
    Connected,
    /// It listens; `steered` once somebody has waited for connections, so that they must come to us.
    Listening { steered: bool },
}

impl Phase {
    pub fn is_waited_on(self) -> bool {
        self == Phase::Listening { steered: true }
    }
}

impl Stream {
    /// SO_LINGER as the program has set it; None is off.
    pub fn linger_seconds(&self) -> Option<u32> {
        self.linger.map(NonZeroU32::get).or(self.settings.reset_on_close.then_some(0))
    }

    /// Has the program set this option, to whatever value?
    pub fn has_set(&self, level: i32, name: i32) -> bool {
        self.inherited.iter().any(|known| (known.level, known.name) == (level, name))
    }

    pub fn new(settings: Settings, family: Family) -> Stream {
        Stream {
            phase: Phase::Fresh,
            family,
            settings,
            unbound: false,
            any_port: false,
            holds_port: false,
            bound_by_us: false,
            reading_shut: false,
            linger: None,
            send_timeout: None,
            low_water: 1,
            peek_offset: None,
            defer_accept: None,
            os_accepting: false,
            ours_in_row: 0,
            sends: 0,
            backlog: 0,
            ahead: false,
            left: false,
            inherited_at: None,
            judgement: Judgement::None,
            arrival: 0,
            inherited: Vec::new(),
            own: options::Own::default(),
        }
    }
}

/// VMA_TCP_NODELAY, for a new shadow: the program may ask for the option, and so may whoever inherits the socket.
pub fn begin_as_configured(stack: &Stack, descriptor: i32) {
    if stack.config.tcp_nodelay {
        shadow::set_int_option(descriptor, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    }
}

/// A new stream socket of the program; `nonblocking` from SOCK_NONBLOCK.
pub fn open(stack: &Stack, descriptor: i32, nonblocking: bool, family: Family) -> Option<SocketId> {
    let system = system::of(stack);
    begin_as_configured(stack, descriptor);
    let mut socket = Socket::new(descriptor, nonblocking, &stack.config);
    let stream =
        Stream { unbound: true, any_port: true, ..Stream::new(system.settings.clone(), family) };
    socket.stream = Some(Box::new(stream));
    let mut state = stack.shard.lock().ok()?;
    state.enable_tcp(|| system::setup(stack));
    Some(state.attach(socket, 0))
}

/// Frees the ports of connections that are over, which are kept some milliseconds longer than the kernel keeps its own.
pub fn free_ports(stack: &Stack) {
    if let Ok(mut state) = stack.shard.lock() {
        state.free_ports();
    }
}

/// bind() is about to give it an address.
pub fn before_bind(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    if let Some(stream) = state.socket(id).and_then(|(_, socket)| socket.stream.as_mut()) {
        (stream.unbound, stream.any_port) = (false, false);
    }
}

/// The kernel has chosen the port for a successful bind().
pub fn note_any_port(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    if let Some(stream) = state.socket(id).and_then(|(_, socket)| socket.stream.as_mut()) {
        stream.any_port = true;
    }
}

/// What a call sees of its socket first.
pub struct View {
    pub phase: Phase,
    pub nonblocking: bool,
    pub shadow: i32,
    /// Its peer is a process of this host.
    pub has_pipe: bool,
}

/// None: it is gone, or a UDP socket.
pub fn view(state: &mut Guard<'_>, id: SocketId) -> Option<View> {
    let (endpoint, socket) = state.socket(id)?;
    let has_pipe = endpoint.has_pipe();
    let stream = socket.stream.as_ref()?;
    Some(View {
        phase: stream.phase,
        nonblocking: socket.nonblocking,
        shadow: socket.descriptors.first().copied().unwrap_or(-1),
        has_pipe,
    })
}

/// How the program's socket names its addresses.
pub fn family(stack: &Stack, id: SocketId) -> Family {
    let Ok(mut state) = stack.shard.lock() else { return Family::default() };
    family_of(&mut state, id)
}

fn family_of(state: &mut Guard<'_>, id: SocketId) -> Family {
    let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
    stream.map_or(Family::default(), |stream| stream.family)
}

/// Does the listener take no IPv4 connections, because it is an IPv6 socket that is bound to an IPv6 address, or has IPV6_V6ONLY, and
/// do processes of this host not find it either?
pub fn serves_no_family(stack: &Stack, id: SocketId) -> bool {
    let shadow = {
        let Ok(mut state) = stack.shard.lock() else { return false };
        let Some((_, socket)) = state.socket(id) else { return false };
        let family = socket.stream.as_ref().map(|stream| stream.family);
        if family != Some(Family::Ipv6) {
            return false;
        }
        if socket.posted.is_some() {
            return false;
        }
        socket.shadow()
    };
    loopback_end::listening(shadow).is_none_or(|local| is_stand_in(*local.ip()))
}

/// Neither connected nor listening?
pub fn is_fresh(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    view(&mut state, id).is_some_and(|view| view.phase == Phase::Fresh)
}

/// Was it given to the kernel lately?
pub fn has_departed(stack: &Stack, id: SocketId) -> bool {
    stack.shard.lock().is_ok_and(|state| state.has_departed(id))
}

pub fn is_listening(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    view(&mut state, id).is_some_and(|view| matches!(view.phase, Phase::Listening { .. }))
}

/// Is it connected, or was it, or will it be? Then it cannot be bound and cannot listen.
pub fn is_connected(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    view(&mut state, id)
        .is_some_and(|view| matches!(view.phase, Phase::Connecting | Phase::Connected))
}

/// Is it connected, or was it? A non-blocking connect() may never have been asked how it ended.
fn is_established(state: &mut Guard<'_>, id: SocketId) -> bool {
    use libvma_engine::tcp::State::{Closed, SynReceived, SynSent};
    match view(state, id).map(|view| view.phase) {
        Some(Phase::Connected) => true,
        Some(Phase::Connecting) if local::has_pipe(state, id) => local::is_established(state, id),
        Some(Phase::Connecting) => state.connection(id).is_some_and(|connection| {
            !matches!(connection.state(), Closed | SynReceived | SynSent)
        }),
        _ => false,
    }
}

fn set_phase(state: &mut shard::State<Socket>, id: SocketId, phase: Phase) {
    if let Some((_, socket)) = state.socket(id)
        && let Some(stream) = socket.stream.as_mut()
    {
        stream.phase = phase;
    }
}

/// The address of this end, for getsockname(): None if the shadow knows.
pub fn local_address(stack: &Stack, id: SocketId) -> Option<SocketName> {
    let mut state = stack.shard.lock().ok()?;
    let family = family_of(&mut state, id);
    if let Some(connection) = state.connection(id) {
        return Some(SocketName::new(connection.key().local_endpoint(), family));
    }
    let (_, socket) = state.socket(id)?;
    let stream = socket.stream.as_ref()?;
    let open = stream.bound_by_us && stream.phase == Phase::Fresh;
    let bound = shadow::local_address(socket.shadow()).filter(|_| open)?;
    // As Linux after an attempt that failed: the address is open again, the port still to be seen.
    Some(SocketName::new(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, bound.port()), family))
}

/// The address of the other end; ENOTCONN while there is none. None: the shadow knows.
pub fn peer_address(stack: &Stack, id: SocketId) -> Option<Result<SocketName, i32>> {
    let mut state = stack.shard.lock().ok()?;
    state.poll_well();
    if state.pipe(id).is_some_and(|pipe| pipe.has_ended()) {
        return Some(Err(libc::ENOTCONN));
    }
    let family = family_of(&mut state, id);
    let connection = state.connection(id)?;
    Some(peer_of(connection).map(|peer| SocketName::new(peer, family)))
}

fn peer_of(connection: &Connection<Body>) -> Result<SocketAddrV4, i32> {
    // On Linux a socket in TIME-WAIT is a closed one.
    use libvma_engine::tcp::State::{Closed, SynReceived, SynSent, TimeWait};
    match connection.state() {
        Closed | SynSent | SynReceived | TimeWait => Err(libc::ENOTCONN),
        _ => Ok(connection.key().remote_endpoint()),
    }
}

/// What a socket that is not connected (any more) has to tell, once.
fn pending_error(state: &mut Guard<'_>, id: SocketId) -> Option<i32> {
    let (_, socket) = state.socket(id)?;
    Some(core::mem::take(&mut socket.pending_error)).filter(|error| *error != 0)
}

/// The errno of an error of the engine.
pub fn errno(error: Error) -> i32 {
    match error {
        Error::Refused => libc::ECONNREFUSED,
        Error::Reset => libc::ECONNRESET,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::HostUnreachable => libc::EHOSTUNREACH,
        Error::NetworkUnreachable => libc::ENETUNREACH,
        Error::Prohibited => libc::EACCES,
        Error::ProtocolUnreachable => libc::ENOPROTOOPT,
        Error::BrokenPipe => libc::EPIPE,
        Error::NotConnected => libc::ENOTCONN,
    }
}

/// F_SETFL, FIONBIO: the open file description's flags changed. True if it is signal-driven now,
/// which only the kernel's socket can be.
pub fn after_flags(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((_, socket)) = state.socket(id) else { return false };
    let flags = shadow::status_flags(socket.shadow());
    socket.nonblocking = flags & libc::O_NONBLOCK != 0;
    flags & libc::O_ASYNC != 0
}

#[cfg(test)]
mod tests;
