//! A segment of the peer's, made here and received by the kernel from the loopback interface.
//!
//! A raw socket may send any source address to an address of the host's own; such a packet keeps
//! the route it was sent by, so no reverse-path check sees it (needs CAP_NET_RAW).

use std::net::SocketAddrV4;

use libvma_dev::ipv6_loopback::named;
use libvma_dev::ipv6_stand_ins::real;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with,
};

use super::{Error, Snapshot, received_data};
use crate::sys::Fd;

/// What else there is in the segment, which acknowledges SND.UNA in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    Acknowledgment,
    Fin,
    Reset,
}

/// Has the kernel receive the last segment of the peer's once more, with the peer's window and TS.Recent.
pub fn send(snapshot: &Snapshot<'_>, segment: Segment) -> Result<(), Error> {
    let mut room = [0u8; MOST];
    let packet = build(snapshot, segment, &mut room);
    let failed = |call| move |errno: rustix::io::Errno| Error { call, errno: errno.raw_os_error() };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Of IPv6 such a socket, too, sends packets with their headers (raw(7), IPV6_HDRINCL).
    let destination = named(SocketAddrV4::new(*snapshot.local.ip(), 0));
    let family = if destination.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))
        .and_then(Fd::adopt_briefly)
        .map_err(failed("socket"))?;
    sendto(&socket, packet, SendFlags::empty(), &destination).map_err(failed("sendto"))?;
    Ok(())
}

const MOST: usize = IPV6 + TCP + TIMESTAMPS;
const IPV6: usize = 40;
const TCP: usize = 20;
/// Two NOPs and the option, as everybody has them (RFC 7323 appendix A).
const TIMESTAMPS: usize = 12;

fn build<'r>(snapshot: &Snapshot<'_>, segment: Segment, room: &'r mut [u8; MOST]) -> &'r [u8] {
    const FIN: u8 = 0x01;
    const RST: u8 = 0x04;
    const ACK: u8 = 0x10;
    let mut packet = Writer { room, len: 0 };
    let options = if snapshot.timestamps.is_some() { TIMESTAMPS } else { 0 };
    packet.put_ip_header(snapshot, TCP + options);
    let start = packet.len;
    let flags = match segment {
        Segment::Reset => RST | ACK,
        Segment::Fin => FIN | ACK,
        Segment::Acknowledgment => ACK,
    };
    let shift = snapshot.window_scale.map_or(0, |scale| u32::from(scale.send));
    let window = snapshot.send_window.checked_shr(shift).unwrap_or(0).min(u32::from(u16::MAX));
    packet.put(&snapshot.remote.port().to_be_bytes());
    packet.put(&snapshot.local.port().to_be_bytes());
    packet.put(&received_data(snapshot).to_be_bytes());
    packet.put(&snapshot.send_unacknowledged.to_be_bytes());
    packet.put(&[(((TCP + options) / 4) << 4) as u8, flags]);
    packet.put(&(window as u16).to_be_bytes());
    packet.put(&[0; 4]);
    if let Some(timestamps) = snapshot.timestamps {
        packet.put(&[1, 1, 8, 10]);
        packet.put(&timestamps.recent.to_be_bytes());
        packet.put(&timestamps.value.to_be_bytes());
    }
    let Writer { room, len } = packet;
    // Of IPv6, too, for stand-ins have the sums of their addresses.
    let sum = checksum(snapshot.remote, snapshot.local, room.get(start..len).unwrap_or_default());
    if let Some(field) = room.get_mut(start + 16..start + 18) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
    room.get(..len).unwrap_or_default()
}

struct Writer<'r> {
    room: &'r mut [u8; MOST],
    len: usize,
}

impl Writer<'_> {
    /// From the peer. TTL 255: the program may demand it (IP_MINTTL).
    fn put_ip_header(&mut self, snapshot: &Snapshot<'_>, payload: usize) {
        let (from, to) = (*snapshot.remote.ip(), *snapshot.local.ip());
        match (real(from), real(to)) {
            (Some(src), Some(dst)) => {
                self.put(&[0x60, 0, 0, 0]);
                self.put(&(payload as u16).to_be_bytes());
                self.put(&[6, 255]);
                self.put(&src.octets());
                self.put(&dst.octets());
            }
            _ => {
                // The kernel fills in the total length, the identification and the checksum.
                self.put(&[0x45, 0, 0, 0, 0, 0, 0, 0, 255, 6, 0, 0]);
                self.put(&from.octets());
                self.put(&to.octets());
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if let Some(slot) = self.room.get_mut(self.len..end) {
            slot.copy_from_slice(bytes);
            self.len = end;
        }
    }
}

/// RFC 9293 section 3.1, with the pseudo-header.
fn checksum(source: SocketAddrV4, destination: SocketAddrV4, segment: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum()
    };
    let mut sum = words(&source.ip().octets())
        + words(&destination.ip().octets())
        + 6
        + segment.len() as u32
        + words(segment);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
