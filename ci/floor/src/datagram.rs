//! The frames that are sent: Ethernet, IPv4 and UDP headers, then a payload that opens with
//! a sequence number. Checksums are real, as a sockets library has to send them.

use std::net::Ipv4Addr;

/// Bytes before the UDP payload.
pub const HEADERS: usize = ETHERNET + IPV4 + UDP;
/// The largest payload that an MTU of 1500 carries unfragmented.
pub const MAX_PAYLOAD: usize = 1500 - IPV4 - UDP;
/// The smallest payload: the sequence number.
pub const MIN_PAYLOAD: usize = size_of::<u64>();

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const UDP_CHECKSUM: usize = ETHERNET + IPV4 + 6;

pub type Mac = [u8; 6];

/// From where to where. Both ends use the same port, so that one XDP program serves both.
#[derive(Clone, Copy)]
pub struct Path {
    pub src_mac: Mac,
    pub dst_mac: Mac,
    pub src_ip: Ipv4Addr,
    pub dst_ip: Ipv4Addr,
    pub port: u16,
}

/// A frame that lacks nothing but its sequence number and the UDP checksum that follows from it.
pub struct Template {
    frame: Vec<u8>,
    sum: u32, // over the pseudo header and the UDP datagram with sequence number 0
}

impl Template {
    pub fn new(path: &Path, payload: usize) -> Self {
        assert!((MIN_PAYLOAD..=MAX_PAYLOAD).contains(&payload), "payload of {payload} bytes");
        let (src, dst) = (path.src_ip.octets(), path.dst_ip.octets());
        let ip_length = ((IPV4 + UDP + payload) as u16).to_be_bytes();
        let udp_length = ((UDP + payload) as u16).to_be_bytes();
        let port = path.port.to_be_bytes();

        let mut ip = [0; IPV4];
        ip[0] = 0x45; // version 4, five words of header
        ip[2..4].copy_from_slice(&ip_length);
        ip[6] = 0x40; // don't fragment
        ip[8] = 64; // time to live
        ip[9] = PROTOCOL_UDP;
        ip[12..16].copy_from_slice(&src);
        ip[16..20].copy_from_slice(&dst);
        let ip_checksum = !fold(sum(&ip));
        ip[10..12].copy_from_slice(&ip_checksum.to_be_bytes());

        let udp = [port, port, udp_length, [0, 0]].concat();
        let text: Vec<u8> =
            [0; MIN_PAYLOAD].into_iter().chain((MIN_PAYLOAD..payload).map(|i| i as u8)).collect();

        let pseudo_header = [&src[..], &dst, &[0, PROTOCOL_UDP], &udp_length].concat();
        let sum = sum(&pseudo_header) + sum(&udp) + sum(&text);
        let frame = [&path.dst_mac[..], &path.src_mac, &0x0800_u16.to_be_bytes(), &ip, &udp, &text]
            .concat();
        Self { frame, sum }
    }

    /// The whole frame, once; [`stamp`](Self::stamp) makes it ready to send.
    pub fn write(&self, frame: &mut [u8]) {
        frame.copy_from_slice(&self.frame);
    }

    /// Bytes of the frame.
    pub fn size(&self) -> usize {
        self.frame.len()
    }

    /// Numbers a frame that holds this template and completes its UDP checksum.
    #[inline]
    pub fn stamp(&self, frame: &mut [u8], sequence: u64) {
        let number = sequence.to_be_bytes();
        frame[HEADERS..HEADERS + MIN_PAYLOAD].copy_from_slice(&number);
        let checksum = match !fold(self.sum + sum(&number)) {
            0 => 0xffff, // zero on the wire would mean "no checksum"
            checksum => checksum,
        };
        frame[UDP_CHECKSUM..UDP_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The sequence number of a received frame; `None` when the frame is too short to hold one.
#[inline]
pub fn sequence(frame: &[u8]) -> Option<u64> {
    let number = frame.get(HEADERS..)?.first_chunk()?;
    Some(u64::from_be_bytes(*number))
}

/// Makes a received frame an answer to its sender. The checksums stay right: they are sums,
/// and the same words are in them. False when the frame is too short.
#[inline]
pub fn turn_around(frame: &mut [u8]) -> bool {
    let Some(headers) = frame.first_chunk_mut::<HEADERS>() else {
        return false;
    };
    swap::<6>(headers, 0);
    swap::<4>(headers, ETHERNET + 12);
    swap::<2>(headers, ETHERNET + IPV4);
    true
}

/// Exchanges the field of `N` bytes at `offset` with the one behind it.
#[inline]
fn swap<const N: usize>(headers: &mut [u8; HEADERS], offset: usize) {
    let (source, destination) = headers[offset..offset + 2 * N].split_at_mut(N);
    source.swap_with_slice(destination);
}

/// The sum of the 16-bit words, carries not yet folded (RFC 1071). Room for 64 KiB.
#[inline]
fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let rest = rest.first().map_or(0, |&last| u32::from(last) << 8);
    words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum::<u32>() + rest
}

#[inline]
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        src_ip: Ipv4Addr::new(10, 99, 0, 1),
        dst_ip: Ipv4Addr::new(10, 99, 0, 2),
        port: 11111,
    };

    fn frame(payload: usize, sequence: u64) -> Vec<u8> {
        let template = Template::new(&PATH, payload);
        let mut frame = vec![0; template.size()];
        template.write(&mut frame);
        template.stamp(&mut frame, sequence);
        frame
    }

    fn checksums_hold(frame: &[u8]) -> bool {
        let (ip, udp) = frame[ETHERNET..].split_at(IPV4);
        let pseudo_header = sum(&ip[12..20]) + u32::from(PROTOCOL_UDP) + udp.len() as u32;
        fold(sum(ip)) == 0xffff && fold(sum(udp) + pseudo_header) == 0xffff
    }

    #[test]
    fn checksums_hold_for_every_size_and_number() {
        for payload in [8, 9, 64, 65, 1471, 1472] {
            for number in [0, 1, 0xffff, 0x1_0000, u64::MAX, 0x0123_4567_89ab_cdef] {
                let frame = frame(payload, number);
                assert_eq!(frame.len(), HEADERS + payload);
                assert_eq!(sequence(&frame), Some(number));
                assert!(checksums_hold(&frame), "{payload} bytes, number {number}");
            }
        }
    }

    #[test]
    fn turned_around_twice_is_the_same_frame() {
        let original = frame(64, 7);
        let mut answer = original.clone();
        assert!(turn_around(&mut answer));
        assert_eq!(answer[..6], PATH.src_mac);
        assert_eq!(answer[ETHERNET + 16..ETHERNET + 20], PATH.src_ip.octets());
        assert!(checksums_hold(&answer));
        assert!(turn_around(&mut answer));
        assert_eq!(answer, original);
    }

    #[test]
    fn runts_are_refused() {
        assert_eq!(sequence(&[0; HEADERS + 7]), None);
        assert!(!turn_around(&mut [0; HEADERS - 1]));
    }
}
