//! From a datagram to a message that cannot be wrong, and back. What is refused is named.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use zerocopy::byteorder::native_endian;
use zerocopy::{FromBytes, IntoBytes};

use super::VERSION;
use super::layout::{FlowWire, Header, InitWire, StateWire, code};

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
    pub local: SocketAddrV4,
    /// Zeros while not known.
    pub peer: SocketAddrV4,
    pub state: TcpState,
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

    /// The answer: the request with the bit of an acknowledgement and the daemon's version.
    pub fn answer(self) -> InitWire {
        let mut wire = self.to_wire();
        wire.header.code |= code::ACK;
        wire.header.version = VERSION;
        wire
    }

    /// Whether `datagram` answers an INIT of process `pid`; the version that the daemon speaks.
    pub fn accepts(datagram: &[u8], pid: i32) -> Option<u8> {
        let wire = InitWire::read_from_bytes(datagram).ok()?;
        let fits = wire.header.code == code::INIT | code::ACK && wire.header.pid.get() == pid;
        fits.then_some(wire.header.version)
    }
}

impl State {
    /// The datagram that says it.
    pub fn to_wire(self) -> StateWire {
        StateWire {
            header: header(code::STATE, self.pid),
            fd: self.fd.into(),
            local_address: self.local.ip().octets(),
            peer_address: self.peer.ip().octets(),
            local_port: self.local.port().into(),
            peer_port: self.peer.port().into(),
            kind: STREAM,
            state: self.state as u8,
        }
    }

    fn from_wire(wire: &StateWire) -> Result<Self, Malformed> {
        if wire.kind != STREAM {
            return Err(Malformed::SocketKind(wire.kind));
        }
        Ok(Self {
            pid: wire.header.pid.get(),
            fd: wire.fd.get(),
            local: SocketAddrV4::new(Ipv4Addr::from(wire.local_address), wire.local_port.get()),
            peer: SocketAddrV4::new(Ipv4Addr::from(wire.peer_address), wire.peer_port.get()),
            state: TcpState::from_number(wire.state).ok_or(Malformed::TcpState(wire.state))?,
        })
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
    Header { code, version: VERSION, status: 0, reserved: 0, pid: native_endian::I32::new(pid) }
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

    #[test]
    fn an_init_is_answered_with_itself() {
        let init = Init { pid: 5, version: 2, status: 0, library: 0x9854 };
        let answer = init.answer();
        assert_eq!(&answer.as_bytes()[..4], [0x81, 3, 0, 0]);
        assert_eq!(Init::accepts(answer.as_bytes(), 5), Some(3));
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
        fn what_is_understood_says_the_same_bytes(datagram in proptest::collection::vec(any::<u8>(), 0..40)) {
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
