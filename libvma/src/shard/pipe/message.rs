//! What the ends of a pipe say to each other: a kind and three words, perhaps with bytes behind.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Names a pipe of one process for its whole life; never 0 on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub index: u32,
    pub generation: u32,
}

impl Name {
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub fn from_bits(bits: u64) -> Option<Name> {
        let generation = (bits >> 32) as u32;
        (generation != 0).then_some(Name { index: bits as u32, generation })
    }
}

/// A connection to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The inode of the client's socket. Its address and port are the kernel's connect() to choose: a port that
    /// is reserved ahead of it cannot be one whose last connection is in TIME-WAIT.
    pub socket: u32,
    pub destination: SocketAddrV4,
    /// How many bytes the client takes unread.
    pub limit: u32,
}

/// The way a socket was closed, which is what bytes that it had not read are to their sender. Older versions do not say:
/// `Torn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// Bytes were unread, or came to the closed socket.
    Torn,
    /// All that had come was read: what was on its way came behind the end.
    Whole,
    /// Both ends had been told before.
    Ended,
}

impl Parting {
    fn to_bits(self) -> u64 {
        match self {
            Parting::Torn => 0,
            Parting::Whole => 1,
            Parting::Ended => 2,
        }
    }

    fn from_bits(bits: u64) -> Parting {
        match bits {
            1 => Parting::Whole,
            2 => Parting::Ended,
            _ => Parting::Torn,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Client: I am about to connect; this is my end.
    Offer { from: Name, offer: Offer },
    /// Client: forget the offer; the socket is closed, too, or is not.
    Withdraw { from: Name, closed: bool },
    /// Server: it is forgotten.
    Withdrawn { to: Name },
    /// Server: accepted; this is my end. Its bytes all come by the pipe, unless it accepted before it heard
    /// of the offer: then it is late, and says itself when it switches.
    Confirm { to: Name, from: Name, limit: u32, late: bool },
    /// After so many bytes by the kernel, since the connection began, mine come by the pipe. A client, or a
    /// server that is late, says it when it begins to use the pipe, and may have sent its last byte already.
    /// Either end says it when bytes went by the kernel because the link was full.
    Switch { to: Name, kernel: u64, shut: bool },
    /// Bytes; how many of yours have been read so far; how many of mine, since the connection began, went by
    /// the kernel before these.
    Data { to: Name, read: u64, kernel: u64 },
    /// So many of yours have been read, so many may be unread.
    Credit { to: Name, read: u64, limit: u64 },
    /// I send no more, and so many bytes in all went by the kernel.
    Fin { to: Name, kernel: u64 },
    /// I send nothing by the pipe any more: the kernel shall take over. You do the same. If I used the pipe,
    /// so many bytes in all went by the kernel so far.
    Stop { to: Name, kernel: u64 },
    /// Bytes of yours that were not read: send them by the kernel, before all others.
    Return { to: Name },
    /// All that was not read is returned.
    Stopped { to: Name },
    /// My socket is closed; the kernel has told yours how. So many of your bytes were read; older versions do not say.
    Closed { to: Name, read: Option<u64>, parting: Parting },
}

const OFFER: u8 = 1;
const WITHDRAW: u8 = 2;
const WITHDRAWN: u8 = 3;
const CONFIRM: u8 = 4;
const SWITCH: u8 = 5;
const DATA: u8 = 6;
const CREDIT: u8 = 7;
const FIN: u8 = 8;
const STOP: u8 = 9;
const RETURN: u8 = 10;
const STOPPED: u8 = 11;
const CLOSED: u8 = 12;

impl Message {
    #[inline]
    pub fn encode(self) -> (u8, [u64; 3]) {
        match self {
            Message::Data { to, read, kernel } => (DATA, [to.to_bits(), read, kernel]),
            Message::Credit { to, read, limit } => (CREDIT, [to.to_bits(), read, limit]),
            Message::Offer { from, offer } => {
                let Offer { socket, destination, limit } = offer;
                let ends = pair(socket, destination.ip().to_bits());
                (OFFER, [from.to_bits(), ends, pair(limit, u32::from(destination.port()))])
            }
            Message::Withdraw { from, closed } => {
                (WITHDRAW, [from.to_bits(), u64::from(closed), 0])
            }
            Message::Withdrawn { to } => (WITHDRAWN, [to.to_bits(), 0, 0]),
            Message::Confirm { to, from, limit, late } => {
                (CONFIRM, [to.to_bits(), from.to_bits(), pair(u32::from(late), limit)])
            }
            Message::Switch { to, kernel, shut } => {
                (SWITCH, [to.to_bits(), kernel, u64::from(shut)])
            }
            Message::Fin { to, kernel } => (FIN, [to.to_bits(), kernel, 0]),
            Message::Stop { to, kernel } => (STOP, [to.to_bits(), kernel, 0]),
            Message::Return { to } => (RETURN, [to.to_bits(), 0, 0]),
            Message::Stopped { to } => (STOPPED, [to.to_bits(), 0, 0]),
            Message::Closed { to, read, parting } => {
                let read = read.map_or(0, |read| read.saturating_add(1));
                (CLOSED, [to.to_bits(), read, parting.to_bits()])
            }
        }
    }

    /// None: nothing that this version knows.
    #[inline]
    pub fn decode(kind: u8, [name, one, two]: [u64; 3]) -> Option<Message> {
        let name = Name::from_bits(name)?;
        Some(match kind {
            DATA => Message::Data { to: name, read: one, kernel: two },
            CREDIT => Message::Credit { to: name, read: one, limit: two },
            OFFER => {
                let (socket, ip) = halves(one);
                let (limit, port) = halves(two);
                let destination = SocketAddrV4::new(Ipv4Addr::from(ip), port as u16);
                Message::Offer { from: name, offer: Offer { socket, destination, limit } }
            }
            WITHDRAW => Message::Withdraw { from: name, closed: one != 0 },
            WITHDRAWN => Message::Withdrawn { to: name },
            CONFIRM => {
                let (late, limit) = halves(two);
                Message::Confirm { to: name, from: Name::from_bits(one)?, limit, late: late != 0 }
            }
            SWITCH => Message::Switch { to: name, kernel: one, shut: two != 0 },
            FIN => Message::Fin { to: name, kernel: one },
            STOP => Message::Stop { to: name, kernel: one },
            RETURN => Message::Return { to: name },
            STOPPED => Message::Stopped { to: name },
            CLOSED => {
                let parting = Parting::from_bits(two);
                Message::Closed { to: name, read: one.checked_sub(1), parting }
            }
            _ => return None,
        })
    }
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let name = Name { index: 7, generation: u32::MAX };
        let other = Name { index: u32::MAX, generation: 1 };
        let offer = Offer {
            socket: u32::MAX - 1,
            destination: SocketAddrV4::new(Ipv4Addr::new(255, 1, 2, 3), 80),
            limit: 4 << 20,
        };
        let all = [
            Message::Offer { from: name, offer },
            Message::Withdraw { from: name, closed: true },
            Message::Withdrawn { to: name },
            Message::Confirm { to: name, from: other, limit: u32::MAX, late: true },
            Message::Switch { to: other, kernel: u64::MAX, shut: true },
            Message::Data { to: name, read: 3, kernel: 9 },
            Message::Credit { to: name, read: 4, limit: 5 },
            Message::Fin { to: name, kernel: 6 },
            Message::Stop { to: name, kernel: 7 },
            Message::Return { to: name },
            Message::Stopped { to: name },
            Message::Closed { to: name, read: None, parting: Parting::Torn },
            Message::Closed { to: name, read: Some(0), parting: Parting::Whole },
            Message::Closed { to: name, read: Some(8), parting: Parting::Ended },
        ];
        for message in all {
            let (kind, header) = message.encode();
            assert_eq!(Message::decode(kind, header), Some(message));
            assert!(kind < 0x80);
        }
    }

    #[test]
    fn what_is_no_message_is_none() {
        assert_eq!(Message::decode(DATA, [0, 0, 0]), None);
        assert_eq!(Message::decode(0x7f, [1 << 32, 0, 0]), None);
        assert_eq!(Message::decode(CONFIRM, [1 << 32, 0, 0]), None);
    }
}
