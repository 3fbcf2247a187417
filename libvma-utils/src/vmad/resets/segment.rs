//! The few segments that are sent in a dead connection's name, and what is understood of the answers.
//! Bytes only.

use std::net::{IpAddr, SocketAddr};

use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader, TcpSlice};

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

/// The packet of a segment from `connection.local`. The checksum of a header of IPv4 is the kernel's to fill in
/// (raw(7)). `None` if the ends are of two families.
pub fn packet(connection: &Connection, kind: Kind) -> Option<Vec<u8>> {
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
    let (ip, checksum) = match (connection.local.ip(), connection.peer.ip()) {
        (IpAddr::V4(local), IpAddr::V4(peer)) => {
            let (source, destination) = (local.octets(), peer.octets());
            let ip = Ipv4Header {
                total_len: Ipv4Header::MIN_LEN_U16 + tcp.header_len_u16(),
                dont_fragment: true,
                time_to_live: 64,
                protocol: IpNumber::TCP,
                source,
                destination,
                ..Ipv4Header::default()
            };
            (ip.to_bytes().to_vec(), tcp.calc_checksum_ipv4_raw(source, destination, &[]))
        }
        (IpAddr::V6(local), IpAddr::V6(peer)) => {
            let (source, destination) = (local.octets(), peer.octets());
            let ip = Ipv6Header {
                traffic_class: 0,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: tcp.header_len_u16(),
                next_header: IpNumber::TCP,
                hop_limit: 64,
                source,
                destination,
            };
            (ip.to_bytes().to_vec(), tcp.calc_checksum_ipv6_raw(source, destination, &[]))
        }
        _ => return None,
    };
    tcp.checksum = checksum.expect("a header without payload is never too long");
    Some([ip.as_slice(), tcp.to_bytes().as_slice()].concat())
}

/// Reads a packet that begins with its IP header: which connection it is about, from our side,
/// and what it says. `None` if it is nothing that a notification cares for.
pub fn answer(packet: &[u8]) -> Option<(Connection, Answer)> {
    let (source, destination, rest) = addresses(packet)?;
    let tcp = TcpSlice::from_slice(rest).ok()?;
    let content = match (tcp.rst(), tcp.syn(), tcp.ack()) {
        (true, _, _) => Content::Rst,
        (_, true, true) => Content::SynAck,
        (_, false, true) => Content::Ack,
        (_, _, false) => return None,
    };
    let connection = Connection {
        local: SocketAddr::new(destination, tcp.destination_port()),
        peer: SocketAddr::new(source, tcp.source_port()),
    };
    Some((connection, Answer { content, acknowledges: tcp.acknowledgment_number() }))
}

/// Where a packet of TCP comes from and goes to, and what is behind its IP header. Peers answer without extension headers.
fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    if packet.first()? >> 4 == 4 {
        let (ip, rest) = Ipv4Header::from_slice(packet).ok()?;
        let is_tcp = ip.protocol == IpNumber::TCP && !ip.is_fragmenting_payload();
        return is_tcp.then(|| (ip.source.into(), ip.destination.into(), rest));
    }
    let (ip, rest) = Ipv6Header::from_slice(packet).ok()?;
    let is_tcp = ip.next_header == IpNumber::TCP;
    is_tcp.then(|| (ip.source.into(), ip.destination.into(), rest))
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

    fn bytes(kind: Kind) -> Vec<u8> {
        packet(&connection(), kind).expect("one family")
    }

    fn turned() -> Connection {
        Connection { local: connection().peer, peer: connection().local }
    }

    #[test]
    fn a_syn_has_a_random_number_and_a_good_checksum() {
        let syn = bytes(Kind::Syn);
        assert_eq!(syn.len(), 40);
        let (ip, rest) = Ipv4Header::from_slice(&syn).expect("IPv4");
        let tcp = TcpHeader::from_slice(rest).expect("TCP").0;
        assert!(ip.dont_fragment && ip.total_len == 40 && ip.time_to_live == 64);
        assert!(tcp.syn && !tcp.ack && !tcp.rst && !tcp.fin && tcp.window_size == 0);
        assert_eq!(tcp.calc_checksum_ipv4(&ip, &[]).expect("short"), tcp.checksum);
        assert_ne!(bytes(Kind::Syn)[24..28], syn[24..28]);
        assert_eq!(answer(&syn), None, "a SYN is no answer");
    }

    #[test]
    fn a_rst_has_the_number_that_is_expected() {
        let rst = bytes(Kind::Rst(0x0102_0304));
        assert_eq!(rst[24..28], [1, 2, 3, 4]);
        assert_eq!(rst[33], 0x04, "RST and nothing else");
        let heard = answer(&rst).expect("an answer to the other end");
        assert_eq!(heard, (turned(), Answer { content: Content::Rst, acknowledges: 0 }));
    }

    #[test]
    fn segments_of_ipv6_have_a_good_checksum_and_are_understood() {
        let local = "[2001:db8::ffff:1]:8080".parse().expect("an address");
        let peer = "[fd00:98::2]:40000".parse().expect("an address");
        let (connection, turned) =
            (Connection { local, peer }, Connection { local: peer, peer: local });
        for (kind, content) in [
            (Kind::Syn, None),
            (Kind::Probe, Some(Content::Ack)),
            (Kind::Rst(0x0102_0304), Some(Content::Rst)),
        ] {
            let mut bytes = packet(&connection, kind).expect("one family");
            assert_eq!(bytes.len(), 60);
            let (ip, rest) = Ipv6Header::from_slice(&bytes).expect("IPv6");
            let tcp = TcpHeader::from_slice(rest).expect("TCP").0;
            assert_eq!((ip.payload_length, ip.hop_limit), (20, 64));
            assert_eq!(tcp.calc_checksum_ipv6(&ip, &[]).expect("short"), tcp.checksum);
            let heard = answer(&bytes);
            let expected = content.map(|content| (turned, content));
            assert_eq!(heard.map(|(who, said)| (who, said.content)), expected);
            for length in 0..bytes.len() {
                assert_eq!(answer(&bytes[..length]), None);
            }
            bytes[6] = 44;
            assert_eq!(answer(&bytes), None, "a fragment");
        }
    }

    #[test]
    fn what_is_cut_short_or_a_fragment_is_nothing() {
        let mut probe = bytes(Kind::Probe);
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
