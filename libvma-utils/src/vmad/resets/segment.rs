//! The few segments that are sent in a dead connection's name, and what is understood of the answers.
//! Bytes only.

use std::net::SocketAddrV4;

use etherparse::{IpNumber, Ipv4Header, TcpHeader, TcpSlice};

use super::Connection;

/// What our segments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With a random sequence number: a SYN is answered whatever it has.
    Syn,
    /// FIN and ACK with random numbers. That it lies in the peer's window by chance and is taken
    /// for the end of the stream needs both numbers to fit, less than once in 2^40.
    Probe,
    /// With the number the peer expects, the only one it accepts at once (RFC 5961 section 3.2).
    Rst(u32),
}

/// What a peer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub content: Content,
    pub acknowledges: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Rst,
    SynAck,
    Ack,
}

/// The IPv4 packet of a segment from `connection.local`. Its IPv4 checksum is the kernel's to fill in
/// (raw(7)).
pub fn packet(connection: &Connection, kind: Kind) -> Vec<u8> {
    let (source, destination) = (connection.local.ip().octets(), connection.peer.ip().octets());
    let sequence = match kind {
        Kind::Syn | Kind::Probe => fastrand::u32(..),
        Kind::Rst(expected) => expected,
    };
    let mut tcp = TcpHeader::new(connection.local.port(), connection.peer.port(), sequence, 0);
    match kind {
        Kind::Syn => tcp.syn = true,
        Kind::Rst(_) => tcp.rst = true,
        Kind::Probe => {
            tcp.fin = true;
            tcp.ack = true;
            tcp.acknowledgment_number = fastrand::u32(..);
        }
    }
    let ip = Ipv4Header {
        total_len: Ipv4Header::MIN_LEN_U16 + tcp.header_len_u16(),
        dont_fragment: true,
        time_to_live: 64,
        protocol: IpNumber::TCP,
        source,
        destination,
        ..Ipv4Header::default()
    };
    tcp.checksum = tcp
        .calc_checksum_ipv4_raw(source, destination, &[])
        .expect("a header without payload is never too long");
    [ip.to_bytes().as_slice(), tcp.to_bytes().as_slice()].concat()
}

/// Reads a packet that begins with its IPv4 header: which connection it is about, from our side,
/// and what it says. `None` if it is nothing that a notification cares for.
pub fn answer(packet: &[u8]) -> Option<(Connection, Answer)> {
    let (ip, rest) = Ipv4Header::from_slice(packet).ok()?;
    if ip.protocol != IpNumber::TCP || ip.is_fragmenting_payload() {
        return None;
    }
    let tcp = TcpSlice::from_slice(rest).ok()?;
    let content = match (tcp.rst(), tcp.syn(), tcp.ack()) {
        (true, _, _) => Content::Rst,
        (_, true, true) => Content::SynAck,
        (_, false, true) => Content::Ack,
        (_, _, false) => return None,
    };
    let connection = Connection {
        local: SocketAddrV4::new(ip.destination.into(), tcp.destination_port()),
        peer: SocketAddrV4::new(ip.source.into(), tcp.source_port()),
    };
    Some((connection, Answer { content, acknowledges: tcp.acknowledgment_number() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Connection {
        Connection {
            local: "10.0.0.1:8080".parse().expect("an address"),
            peer: "10.0.0.2:40000".parse().expect("an address"),
        }
    }

    fn turned() -> Connection {
        Connection { local: connection().peer, peer: connection().local }
    }

    #[test]
    fn a_syn_has_a_random_number_and_a_good_checksum() {
        let syn = packet(&connection(), Kind::Syn);
        assert_eq!(syn.len(), 40);
        let (ip, rest) = Ipv4Header::from_slice(&syn).expect("IPv4");
        let tcp = TcpHeader::from_slice(rest).expect("TCP").0;
        assert!(ip.dont_fragment && ip.total_len == 40 && ip.time_to_live == 64);
        assert!(tcp.syn && !tcp.ack && !tcp.rst && !tcp.fin && tcp.window_size == 0);
        assert_eq!(tcp.calc_checksum_ipv4(&ip, &[]).expect("short"), tcp.checksum);
        assert_ne!(packet(&connection(), Kind::Syn)[24..28], syn[24..28]);
        assert_eq!(answer(&syn), None, "a SYN is no answer");
    }

    #[test]
    fn a_rst_has_the_number_that_is_expected() {
        let rst = packet(&connection(), Kind::Rst(0x0102_0304));
        assert_eq!(rst[24..28], [1, 2, 3, 4]);
        assert_eq!(rst[33], 0x04, "RST and nothing else");
        let heard = answer(&rst).expect("an answer to the other end");
        assert_eq!(heard, (turned(), Answer { content: Content::Rst, acknowledges: 0 }));
    }

    #[test]
    fn what_is_cut_short_or_a_fragment_is_nothing() {
        let mut probe = packet(&connection(), Kind::Probe);
        assert_eq!(
            answer(&probe).map(|(who, said)| (who, said.content)),
            Some((turned(), Content::Ack))
        );
        for length in 0..probe.len() {
            assert_eq!(answer(&probe[..length]), None);
        }
        probe[7] = 1;
        assert_eq!(answer(&probe), None);
    }
}
