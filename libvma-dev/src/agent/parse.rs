//! From a datagram to a message that cannot be wrong, and back. What is refused is named.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use zerocopy::byteorder::native_endian;
use zerocopy::{FromBytes, IntoBytes};

use super::VERSION;
use super::layout::{ABILITY_IPV6, FlowWire, Header, InitWire, StateIpv6Wire, StateWire, code};

/// `SOCK_STREAM`, the only kind of socket whose states are told.
const STREAM: u8 = 1;

/// A message from a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    Init(Init),
    State(State),
    Exit { pid: i32 },
    Flow(Flow),
}

/// A library introduces itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    pub pid: i32,
    /// The protocol version it speaks; more than [`VERSION`] is answered, but not registered.
    pub version: u8,
    pub status: u8,
    pub library: u32,
}

/// A connection's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub pid: i32,
    pub fd: u32,
    pub local: SocketAddr,
    /// Zeros while not known.
    pub peer: SocketAddr,
    pub state: TcpState,
}

/// The datagram of a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateBytes {
    Ipv4(StateWire),
    Ipv6(StateIpv6Wire),
}

/// The version and the abilities of a daemon, by its answer to an [`Init`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The protocol version that the daemon speaks.
    pub version: u8,
    /// Whether the daemon wants to be told of connections over IPv6.
    pub takes_ipv6: bool,
}

/// A flow that is to go to a TAP, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub pid: i32,
    /// Whether the library waits for an answer.
    pub wants_answer: bool,
    pub kind: FlowKind,
    pub action: Action,
    pub interface: u32,
    pub tap: u32,
    pub local: SocketAddrV4,
    /// Zeros but in a 5-tuple.
    pub peer: SocketAddrV4,
}

/// States of RFC 9293, section 3.3.2, with the numbers of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TcpState {
    Closed = 0,
    Listen = 1,
    SynSent = 2,
    SynReceived = 3,
    Established = 4,
    FinWait1 = 5,
    FinWait2 = 6,
    CloseWait = 7,
    Closing = 8,
    LastAck = 9,
    TimeWait = 10,
}

/// What a flow matches, with the numbers of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FlowKind {
    /// Everything the TAP sends.
    Egress = 0,
    Udp5Tuple = 1,
    Udp3Tuple = 2,
    Tcp5Tuple = 3,
    Tcp3Tuple = 4,
}

/// What is to happen with a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    Add = 1,
    Delete = 2,
}

/// Why a datagram is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than its message (or than a header): bytes there, bytes needed.
    Short { got: usize, need: usize },
    /// Longer than its message.
    Long { got: usize, need: usize },
    /// A number nobody defined, or an acknowledgement where a request belongs.
    Code(u8),
    /// A process id that no process has.
    Pid(i32),
    /// STATE about something else than a stream.
    SocketKind(u8),
    /// No state of RFC 9293.
    TcpState(u8),
    /// FLOW of a kind nobody defined; who asked for an answer gets a failure.
    FlowKind(u8),
    /// FLOW that neither adds nor deletes; who asked for an answer gets a failure.
    Action(u8),
}

impl Message {
    /// Reads the one message that `datagram` is.
    pub fn parse(datagram: &[u8]) -> Result<Self, Malformed> {
        let header = Header::read_from_prefix(datagram)
            .map_err(|_| Malformed::Short { got: datagram.len(), need: super::HEADER_SIZE })?
            .0;
        let pid = header.pid.get();
        let message = match header.code {
            code::INIT => {
                let wire: InitWire = whole(datagram)?;
                Self::Init(Init {
                    pid,
                    version: header.version,
                    status: header.status,
                    library: wire.library.get(),
                })
            }
            code::STATE => Self::State(State::from_wire(&whole(datagram)?)?),
            code::STATE_IPV6 => Self::State(State::from_ipv6_wire(&whole(datagram)?)?),
            code::EXIT => {
                let _: Header = whole(datagram)?;
                Self::Exit { pid }
            }
            code::FLOW => Self::Flow(Flow::from_wire(&whole(datagram)?)?),
            other => return Err(Malformed::Code(other)),
        };
        if pid <= 0 {
            return Err(Malformed::Pid(pid));
        }
        Ok(message)
    }

    /// The process that says it, as it sees itself.
    pub fn pid(&self) -> i32 {
        match self {
            Self::Init(init) => init.pid,
            Self::State(state) => state.pid,
            Self::Exit { pid } => *pid,
            Self::Flow(flow) => flow.pid,
        }
    }
}

impl Init {
    /// The datagram that says it.
    pub fn to_wire(self) -> InitWire {
        InitWire {
            header: Header {
                version: self.version,
                status: self.status,
                ..header(code::INIT, self.pid)
            },
            library: self.library.into(),
        }
    }

    /// The answer: the request with the bit of an acknowledgement, and the daemon's version and abilities.
    pub fn answer(self) -> InitWire {
        let mut wire = self.to_wire();
        wire.header.code |= code::ACK;
        wire.header.version = VERSION;
        wire.header.abilities = ABILITY_IPV6;
        wire
    }

    /// Whether `datagram` answers an INIT of process `pid`, and what the daemon says of itself.
    pub fn accepts(datagram: &[u8], pid: i32) -> Option<Accepted> {
        let Header { code, version, abilities, pid: of, .. } =
            InitWire::read_from_bytes(datagram).ok()?.header;
        let fits = code == code::INIT | code::ACK && of.get() == pid;
        fits.then_some(Accepted { version, takes_ipv6: abilities & ABILITY_IPV6 != 0 })
    }
}

impl State {
    pub fn is_ipv6(&self) -> bool {
        self.local.is_ipv6() || self.peer.is_ipv6()
    }

    /// The datagram that says it.
    pub fn to_wire(self) -> StateBytes {
        let (fd, state) = (self.fd.into(), self.state as u8);
        let (local_port, peer_port) = (self.local.port().into(), self.peer.port().into());
        if let (IpAddr::V4(local), IpAddr::V4(peer)) = (self.local.ip(), self.peer.ip()) {
            return StateBytes::Ipv4(StateWire {
                header: header(code::STATE, self.pid),
                fd,
                local_address: local.octets(),
                peer_address: peer.octets(),
                local_port,
                peer_port,
                kind: STREAM,
                state,
            });
        }
        StateBytes::Ipv6(StateIpv6Wire {
            header: header(code::STATE_IPV6, self.pid),
            fd,
            local_address: ipv6(self.local).octets(),
            peer_address: ipv6(self.peer).octets(),
            local_port,
            peer_port,
            kind: STREAM,
            state,
        })
    }

    fn from_wire(wire: &StateWire) -> Result<Self, Malformed> {
        let local = (Ipv4Addr::from(wire.local_address), wire.local_port.get());
        let peer = (Ipv4Addr::from(wire.peer_address), wire.peer_port.get());
        State::read(wire.header, wire.fd.get(), (local.into(), peer.into()), wire.kind, wire.state)
    }

    fn from_ipv6_wire(wire: &StateIpv6Wire) -> Result<Self, Malformed> {
        let local = (Ipv6Addr::from(wire.local_address), wire.local_port.get());
        let peer = (Ipv6Addr::from(wire.peer_address), wire.peer_port.get());
        State::read(wire.header, wire.fd.get(), (local.into(), peer.into()), wire.kind, wire.state)
    }

    fn read(
        header: Header,
        fd: u32,
        (local, peer): (SocketAddr, SocketAddr),
        kind: u8,
        state: u8,
    ) -> Result<Self, Malformed> {
        if kind != STREAM {
            return Err(Malformed::SocketKind(kind));
        }
        let state = TcpState::from_number(state).ok_or(Malformed::TcpState(state))?;
        Ok(Self { pid: header.pid.get(), fd, local, peer, state })
    }
}

impl StateBytes {
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Ipv4(wire) => wire.as_bytes(),
            Self::Ipv6(wire) => wire.as_bytes(),
        }
    }
}

/// The address as one of IPv6; one of IPv4 is mapped (RFC 4291 section 2.5.5.2).
fn ipv6(address: SocketAddr) -> Ipv6Addr {
    match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

impl Flow {
    /// The datagram that says it.
    pub fn to_wire(self) -> FlowWire {
        FlowWire {
            header: Header { status: u8::from(self.wants_answer), ..header(code::FLOW, self.pid) },
            kind: self.kind as u8,
            action: self.action as u8,
            interface: self.interface.into(),
            tap: self.tap.into(),
            local_address: self.local.ip().octets(),
            local_port: self.local.port().into(),
            peer_address: self.peer.ip().octets(),
            peer_port: self.peer.port().into(),
        }
    }

    fn from_wire(wire: &FlowWire) -> Result<Self, Malformed> {
        Ok(Self {
            pid: wire.header.pid.get(),
            wants_answer: wire.header.status == 1,
            kind: FlowKind::from_number(wire.kind).ok_or(Malformed::FlowKind(wire.kind))?,
            action: match wire.action {
                1 => Action::Add,
                2 => Action::Delete,
                other => return Err(Malformed::Action(other)),
            },
            interface: wire.interface.get(),
            tap: wire.tap.get(),
            local: SocketAddrV4::new(Ipv4Addr::from(wire.local_address), wire.local_port.get()),
            peer: SocketAddrV4::new(Ipv4Addr::from(wire.peer_address), wire.peer_port.get()),
        })
    }

    /// The answer to a FLOW of process `pid`.
    pub fn answer(pid: i32, done: bool) -> Header {
        Header { status: u8::from(!done), ..header(code::FLOW | code::ACK, pid) }
    }
}

/// The datagram by which process `pid` says that it ends.
pub fn exit(pid: i32) -> Header {
    header(code::EXIT, pid)
}

impl TcpState {
    const ALL: [Self; 11] = [
        Self::Closed,
        Self::Listen,
        Self::SynSent,
        Self::SynReceived,
        Self::Established,
        Self::FinWait1,
        Self::FinWait2,
        Self::CloseWait,
        Self::Closing,
        Self::LastAck,
        Self::TimeWait,
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for TcpState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Closed => "CLOSED",
            Self::Listen => "LISTEN",
            Self::SynSent => "SYN_SENT",
            Self::SynReceived => "SYN_RCVD",
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN_WAIT_1",
            Self::FinWait2 => "FIN_WAIT_2",
            Self::CloseWait => "CLOSE_WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST_ACK",
            Self::TimeWait => "TIME_WAIT",
        })
    }
}

impl FlowKind {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Egress, Self::Udp5Tuple, Self::Udp3Tuple, Self::Tcp5Tuple, Self::Tcp3Tuple]
            .get(usize::from(number))
            .copied()
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { got, need } => write!(out, "{got} bytes where the message has {need}"),
            Self::Long { got, need } => {
                write!(out, "{got} bytes where the message has only {need}")
            }
            Self::Code(code) => write!(out, "unknown message 0x{code:02x}"),
            Self::Pid(pid) => write!(out, "no process has the id {pid}"),
            Self::SocketKind(kind) => {
                write!(out, "state of a socket of type {kind}, not of a stream")
            }
            Self::TcpState(state) => write!(out, "unknown TCP state {state}"),
            Self::FlowKind(kind) => write!(out, "unknown kind of flow {kind}"),
            Self::Action(action) => write!(out, "unknown action {action} on a flow"),
        }
    }
}

impl std::error::Error for Malformed {}

fn header(code: u8, pid: i32) -> Header {
    Header { code, version: VERSION, status: 0, abilities: 0, pid: native_endian::I32::new(pid) }
}

/// The datagram as exactly one `T`.
fn whole<T: FromBytes + IntoBytes>(datagram: &[u8]) -> Result<T, Malformed> {
    T::read_from_bytes(datagram).map_err(|_| {
        let (got, need) = (datagram.len(), size_of::<T>());
        if got < need { Malformed::Short { got, need } } else { Malformed::Long { got, need } }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state() -> State {
        State {
            pid: 4711,
            fd: 17,
            local: "10.0.0.1:8080".parse().expect("an address"),
            peer: "10.0.0.2:40000".parse().expect("an address"),
            state: TcpState::Established,
        }
    }

    // covers: DMN-02
    #[test]
    fn a_state_lies_in_the_datagram_as_the_protocol_says() {
        let wire = state().to_wire();
        let bytes = wire.as_bytes();
        assert_eq!(&bytes[..4], [2, 3, 0, 0]);
        assert_eq!(bytes[4..8], 4711_i32.to_ne_bytes());
        assert_eq!(bytes[8..12], 17_u32.to_ne_bytes());
        assert_eq!(&bytes[12..], [10, 0, 0, 1, 10, 0, 0, 2, 0x1F, 0x90, 0x9C, 0x40, 1, 4]);
        assert_eq!(Message::parse(bytes), Ok(Message::State(state())));
    }

    // covers: DMN-02
    #[test]
    fn a_state_of_ipv6_is_a_message_of_its_own() {
        let state = State {
            local: "[fd00:98::1]:8080".parse().expect("an address"),
            peer: "[2001:db8::2]:40000".parse().expect("an address"),
            ..state()
        };
        assert!(state.is_ipv6());
        let wire = state.to_wire();
        let bytes = wire.as_bytes();
        assert_eq!(&bytes[..4], [0x12, 3, 0, 0]);
        assert_eq!(bytes[4..8], 4711_i32.to_ne_bytes());
        assert_eq!(bytes[8..12], 17_u32.to_ne_bytes());
        let address = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
        assert_eq!(bytes[12..28], address("fd00:98::1"));
        assert_eq!(bytes[28..44], address("2001:db8::2"));
        assert_eq!(&bytes[44..], [0x1F, 0x90, 0x9C, 0x40, 1, 4]);
        assert_eq!(Message::parse(bytes), Ok(Message::State(state)));
        assert_eq!(Message::parse(&bytes[..26]), Err(Malformed::Short { got: 26, need: 50 }));
        // One end of each family is told as IPv6.
        let mixed = State { peer: "10.0.0.2:1".parse().expect("an address"), ..state };
        let told = Message::parse(mixed.to_wire().as_bytes());
        let peer = "[::ffff:10.0.0.2]:1".parse().expect("an address");
        assert_eq!(told, Ok(Message::State(State { peer, ..mixed })));
    }

    #[test]
    fn the_original_and_its_libraries_do_not_notice_the_extension() {
        // The library sends INIT as the original's, and a daemon that echoes it says nothing of IPv6.
        let init = Init { pid: 5, version: 3, status: 0, library: 0x9854 };
        let mut echo = init.to_wire();
        assert_eq!(echo.header.abilities, 0);
        echo.header.code |= code::ACK;
        let accepted = Accepted { version: 3, takes_ipv6: false };
        assert_eq!(Init::accepts(echo.as_bytes(), 5), Some(accepted));
        // An old library reads the number, the version and the process id of an answer.
        let answer = init.answer();
        assert_eq!((answer.as_bytes().len(), &answer.as_bytes()[..3]), (12, &[0x81, 3, 0][..]));
        // A library without IPv6 to tell of sends what it always did.
        assert_eq!(state().to_wire().as_bytes().len(), 26);
    }

    #[test]
    fn an_init_is_answered_with_itself() {
        let init = Init { pid: 5, version: 2, status: 0, library: 0x9854 };
        let answer = init.answer();
        assert_eq!(&answer.as_bytes()[..4], [0x81, 3, 0, ABILITY_IPV6]);
        let accepted = Accepted { version: 3, takes_ipv6: true };
        assert_eq!(Init::accepts(answer.as_bytes(), 5), Some(accepted));
        assert_eq!(Init::accepts(answer.as_bytes(), 6), None);
        assert_eq!(Init::accepts(init.to_wire().as_bytes(), 5), None);
    }

    #[test]
    fn a_flow_that_failed_says_so() {
        assert_eq!(Flow::answer(5, false).as_bytes()[..4], [0x84, 3, 1, 0]);
        assert_eq!(Flow::answer(5, true).as_bytes()[..4], [0x84, 3, 0, 0]);
    }

    #[test]
    fn what_is_no_message_is_named() {
        let wire = state().to_wire();
        let bytes = wire.as_bytes();
        assert_eq!(Message::parse(&bytes[..7]), Err(Malformed::Short { got: 7, need: 8 }));
        assert_eq!(Message::parse(&bytes[..25]), Err(Malformed::Short { got: 25, need: 26 }));
        let mut long = bytes.to_vec();
        long.push(0);
        assert_eq!(Message::parse(&long), Err(Malformed::Long { got: 27, need: 26 }));
        let with = |at: usize, value: u8| {
            let mut changed = bytes.to_vec();
            changed[at] = value;
            Message::parse(&changed)
        };
        assert_eq!(with(0, 9), Err(Malformed::Code(9)));
        assert_eq!(with(0, 0x82), Err(Malformed::Code(0x82)));
        assert_eq!(with(24, 2), Err(Malformed::SocketKind(2)));
        assert_eq!(with(25, 11), Err(Malformed::TcpState(11)));
        assert_eq!(
            with(7, 0x80),
            Err(Malformed::Pid(i32::from_ne_bytes([bytes[4], bytes[5], 0, 0x80])))
        );
    }

    proptest! {
        #[test]
        fn what_is_understood_says_the_same_bytes(datagram in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(message) = Message::parse(&datagram) {
                let again = match message {
                    Message::Init(init) => Message::parse(init.to_wire().as_bytes()),
                    Message::State(state) => Message::parse(state.to_wire().as_bytes()),
                    Message::Exit { pid } => Message::parse(exit(pid).as_bytes()),
                    Message::Flow(flow) => Message::parse(flow.to_wire().as_bytes()),
                };
                prop_assert_eq!(again, Ok(message));
            }
        }
    }
}
