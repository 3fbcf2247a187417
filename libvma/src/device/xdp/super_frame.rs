//! Segmentation offload: TCP segments larger than the MTU ("super-frames") and trains of UDP datagrams,
//! out through an AF_PACKET socket with a virtio-net header (packet(7), PACKET_VNET_HDR).
//!
//! AF_XDP moves a virtual interface's frames one by one; the kernel's own TCP hands 64 KiB at once
//! to the peer. This is how the library does the same. Whoever takes the packet at last, a kernel
//! or a ring of ours, gets it whole; a device on the way that cannot carry it has the kernel cut
//! it into segments and sum them. Receiving needs nothing of this: super-frames of a peer come
//! through the RX ring as chains.

use core::mem::size_of;
use std::io::IoSlice;

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType};

use crate::device::Interface;
use crate::sys::Fd;
use crate::sys::wait::raw_syscall;

/// TCP payload of the largest super-frame: 45 segments of the usual 1448 bytes. The frame must stay
/// below 65536 bytes with its Ethernet header, or the kernel cuts it up before the device sees it
/// (GSO_LEGACY_MAX_SIZE), and the longest headers have 14 + 60 + 60 bytes.
pub const LIMIT: usize = 65_160;

/// PACKET_VNET_HDR of <linux/if_packet.h>: a `struct virtio_net_hdr` precedes each packet.
pub(super) const VNET_HDR: libc::c_int = 15;

/// Several super-frames may wait in a device that is not a mere cable (tap).
const SEND_BUFFER: usize = 4 << 20;

const ETHERNET_HEADER: u16 = 14;
const IPV4_HEADER: u16 = 20;
const IPV6_HEADER: u16 = 40;
/// Where the checksum stands in a TCP header (RFC 9293 section 3.1), and in UDP's (RFC 768).
const CHECKSUM_OFFSET: u16 = 16;
const UDP_CHECKSUM_OFFSET: u16 = 6;

/// VIRTIO_NET_HDR_F_NEEDS_CSUM: the checksum field holds the pseudo-header's sum only.
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// VIRTIO_NET_HDR_GSO_UDP_L4 (Linux 6.2): datagrams, not fragments.
const GSO_UDP: u8 = 5;
/// VIRTIO_NET_HDR_GSO_ECN: only the first segment keeps CWR (RFC 3168 section 6.1.2).
const GSO_ECN: u8 = 0x80;

/// Where the control bits stand in a TCP header, and CWR among them (RFC 9293 section 3.1).
const CONTROL_BITS: usize = 13;
const CWR: u8 = 0x80;
/// Where the protocol stands in the headers (RFC 791 section 3.1, RFC 8200 section 3).
const PROTOCOL: usize = 14 + 9;
const NEXT_HEADER: usize = 14 + 6;
const ETHERTYPE: usize = 12;
const UDP: u8 = 17;

/// `struct virtio_net_hdr`, in the host's byte order.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct VirtioHeader {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

pub(super) const VIRTIO_HEADER: usize = 10;
const _: () = assert!(size_of::<VirtioHeader>() == VIRTIO_HEADER);

impl VirtioHeader {
    fn to_bytes(self) -> [u8; VIRTIO_HEADER] {
        let [h0, h1] = self.header_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.checksum_start.to_ne_bytes();
        let [o0, o1] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }
}

/// The way out for super-frames of one interface.
pub enum SuperFrames {
    /// Opened by the first super-frame: most processes send none.
    Closed {
        interface: u32,
    },
    Open(Socket),
    /// The interface has no segmentation offload, or the kernel refused it.
    Unavailable,
}

impl SuperFrames {
    pub fn new(interface: &Interface) -> SuperFrames {
        // A physical interface's driver has room of its own in which these would overtake, or be
        // overtaken by, what AF_XDP sends.
        if interface.is_virtual {
            SuperFrames::Closed { interface: interface.index }
        } else {
            SuperFrames::Unavailable
        }
    }

    pub fn limit(&self) -> usize {
        if matches!(self, SuperFrames::Unavailable) { 0 } else { LIMIT }
    }

    /// As [`Socket::send`]; false if it did not leave now. Then [`SuperFrames::limit`], of UDP
    /// [`SuperFrames::carries_trains`], tells whether another try has any sense.
    #[inline]
    pub fn send(&mut self, headers: &[u8], payload: [&[u8]; 2], segment_size: u16) -> bool {
        if let SuperFrames::Closed { interface } = *self {
            self.open(interface);
        }
        let SuperFrames::Open(socket) = self else { return false };
        match socket.send(headers, payload, segment_size) {
            Sent::Yes => true,
            Sent::Later => false,
            Sent::Never if is_udp(headers) => {
                let len: usize = payload.iter().map(|piece| piece.len()).sum();
                // Beyond that the kernel refuses this train only (UDP_MAX_SEGMENTS before Linux 6.9).
                socket.refuses_trains |= len <= 64 * usize::from(segment_size);
                false
            }
            Sent::Never => {
                *self = SuperFrames::Unavailable;
                false
            }
        }
    }

    /// Does the kernel cut UDP, too, as far as is known?
    pub fn carries_trains(&self) -> bool {
        match self {
            SuperFrames::Closed { .. } => true,
            SuperFrames::Open(socket) => !socket.refuses_trains,
            SuperFrames::Unavailable => false,
        }
    }

    #[cold]
    fn open(&mut self, interface: u32) {
        *self = Socket::open(interface).map_or(SuperFrames::Unavailable, SuperFrames::Open);
    }
}

/// What became of a super-frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Yes,
    /// No room now, or the link is down: try again later.
    Later,
    /// The kernel does not take super-frames here.
    Never,
}

/// A socket that sends super-frames on one interface and receives nothing.
pub struct Socket {
    fd: Fd,
    /// The kernel refused a train: it is too old to cut UDP.
    refuses_trains: bool,
}

fn is_udp(headers: &[u8]) -> bool {
    let place = if is_ipv6(headers) { NEXT_HEADER } else { PROTOCOL };
    headers.get(place) == Some(&UDP)
}

fn is_ipv6(headers: &[u8]) -> bool {
    headers.get(ETHERTYPE) == Some(&0x86)
}

impl Socket {
    fn open(interface: u32) -> Result<Socket, Errno> {
        // Protocol 0: the kernel never hands a packet to this socket.
        let socket = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let socket = Fd::adopt(socket)?;
        // PACKET_QDISC_BYPASS stays off: it saves nothing where there is no queueing discipline
        // (veth), and it drops what the kernel would have to cut up.
        enable(&socket, VNET_HDR)?;
        roomy(&socket);
        rustix::net::bind(&socket, &LinkAddress { interface, protocol: 0 })?;
        Ok(Socket { fd: socket, refuses_trains: false })
    }

    /// Sends `headers` (Ethernet, IPv4 or IPv6 without options, TCP or UDP) and `payload` as one packet that is
    /// to be cut, at the latest on the wire, into segments with `segment_size` bytes of payload.
    #[inline]
    fn send(&self, headers: &[u8], payload: [&[u8]; 2], segment_size: u16) -> Sent {
        let [first, second] = payload;
        let udp = is_udp(headers);
        let whole = first.len() + second.len() <= usize::from(segment_size);
        let (ip_header, gso_tcp) = match is_ipv6(headers) {
            true => (IPV6_HEADER, GSO_TCPV6),
            false => (IPV4_HEADER, GSO_TCPV4),
        };
        let checksum_start = ETHERNET_HEADER + ip_header;
        let gso_type = match headers.get(usize::from(checksum_start) + CONTROL_BITS) {
            _ if whole => GSO_NONE,
            _ if udp => GSO_UDP,
            Some(bits) if bits & CWR != 0 => gso_tcp | GSO_ECN,
            _ => gso_tcp,
        };
        let virtio = VirtioHeader {
            flags: NEEDS_CHECKSUM,
            gso_type,
            // What the kernel keeps in one piece; the payload goes to whole pages.
            header_len: headers.len() as u16,
            gso_size: if whole { 0 } else { segment_size },
            checksum_start,
            checksum_offset: if udp { UDP_CHECKSUM_OFFSET } else { CHECKSUM_OFFSET },
        }
        .to_bytes();
        let pieces = [
            IoSlice::new(&virtio),
            IoSlice::new(headers),
            IoSlice::new(first),
            IoSlice::new(second),
        ];
        let mut nothing = SendAncillaryBuffer::default();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            return match rustix::net::sendmsg(&self.fd, &pieces, &mut nothing, flags) {
                Ok(_) => Sent::Yes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Sent::Later,
                Err(Errno::NETDOWN | Errno::NXIO | Errno::BUSY) => Sent::Later,
                // One segment that the MTU, which has just shrunk, no longer lets pass: lost, as
                // on any narrow link.
                Err(Errno::MSGSIZE) => Sent::Yes,
                Err(_) => Sent::Never,
            };
        }
    }
}

/// Gives a socket a send buffer that a device may keep packets of for a while.
pub(super) fn roomy(socket: &Fd) {
    if set_socket_send_buffer_size_force(socket, SEND_BUFFER).is_err() {
        // Without CAP_NET_ADMIN as much as there may be.
        let _ = set_socket_send_buffer_size(socket, SEND_BUFFER);
    }
}

/// Turns on an option of AF_PACKET.
pub(super) fn enable(socket: &Fd, option: libc::c_int) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    let arguments = [
        socket.raw() as usize,
        libc::SOL_PACKET as usize,
        option as usize,
        core::ptr::from_ref(&on).expose_provenance(),
        size_of::<libc::c_int>(),
        0,
    ];
    // SAFETY: the pointer is to an int of the size told, which outlives the call.
    let result = unsafe { raw_syscall(libc::SYS_setsockopt, arguments) };
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) }
}

/// An interface as the address of an AF_PACKET socket, and the EtherType to receive.
pub(super) struct LinkAddress {
    pub interface: u32,
    pub protocol: u16,
}

// SAFETY: the closure gets a pointer to a live sockaddr_ll and its size.
unsafe impl SocketAddrArg for LinkAddress {
    unsafe fn with_sockaddr<R>(
        &self,
        call: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: self.protocol.to_be(),
            sll_ifindex: self.interface as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of::<libc::sockaddr_ll>() as SocketAddrLen;
        call(core::ptr::from_ref(&address).cast(), len)
    }
}

#[cfg(test)]
pub(super) mod tests;
