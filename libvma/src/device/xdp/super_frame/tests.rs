//! Super-frames over a veth pair in a network namespace of the test's own: `v0` has a ring of ours,
//! `v1` is the peer. They need root and iproute2, and leave nothing behind.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::net::RecvFlags;
use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::*;
use crate::device::Flow;
use crate::device::xdp::{Limits, Mode, Ring};

const MSS: u16 = 1448;
const HEADERS: usize = 14 + 20 + 32;
pub(in crate::device::xdp) const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(in crate::device::xdp) const PEERS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Runs a test with a veth pair, on a thread and in a namespace of its own.
pub(in crate::device::xdp) fn with_pair(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        // SAFETY: only this thread's network changes; it shares no descriptor of a socket.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace needs root");
        // No IPv6 addresses: nothing but the test's own packets is on the cable.
        ip("link add v0 type veth peer name v1\n\
            link set v0 address 02:00:00:00:00:01 addrgenmode none up\n\
            link set v1 address 02:00:00:00:00:02 addrgenmode none up\n");
        wait_until_up();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The kernel takes note of a carrier late; until then it loses what is sent.
fn wait_until_up() {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let shown = Command::new("ip").args(["-o", "link", "show", "up"]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        if shown.matches("qdisc noqueue state UP").count() == 2 {
            return;
        }
        assert!(Instant::now() < deadline, "no carrier: {shown}");
    }
}

pub(in crate::device::xdp) fn ip(lines: &str) {
    let mut child =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("iproute2");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "ip failed on: {lines}");
}

pub(in crate::device::xdp) fn index(name: &str) -> u32 {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    name_to_index(socket, name).unwrap()
}

/// How a virtual interface is served, first as it is by itself.
pub(in crate::device::xdp) const MODES: [Mode; 2] = [Mode::Tc, Mode::Generic];

pub(in crate::device::xdp) fn open(name: &str, is_virtual: bool) -> Ring {
    open_in(Mode::Auto, name, is_virtual)
}

pub(in crate::device::xdp) fn open_in(mode: Mode, name: &str, is_virtual: bool) -> Ring {
    let interface = end_of_pair(name, is_virtual);
    let ring =
        Ring::open(interface, mode, LIMITS, |mode, error| panic!("{mode:?}: {error}")).unwrap();
    if mode != Mode::Auto {
        assert_eq!(ring.mode(), mode);
    }
    ring
}

pub(in crate::device::xdp) fn end_of_pair(name: &str, is_virtual: bool) -> Interface {
    let last = if name == "v0" { 1 } else { 2 };
    Interface {
        index: index(name),
        name: name.into(),
        mac: [2, 0, 0, 0, 0, last],
        address: Ipv4Addr::new(10, 0, 0, last),
        mtu: 1500,
        rx_queues: 1,
        is_virtual,
        is_veth: is_virtual,
        has_local_peers: is_virtual,
    }
}

pub(in crate::device::xdp) const LIMITS: Limits =
    Limits { rx_frames: 4096, rx_posted: 4096, tx_frames: 256, patience_nanos: 0, most_sharers: 1 };

/// The peer's end as the wire sees it: every packet with its virtio-net header.
struct Capture(Fd);

impl Capture {
    fn start() -> Capture {
        let kind = (AddressFamily::PACKET, SocketType::RAW);
        let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None);
        let socket = Fd::adopt(socket.unwrap()).unwrap();
        enable(&socket, VNET_HDR).unwrap();
        set_socket_recv_buffer_size_force(&socket, 8 << 20).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(5))).unwrap();
        let address = LinkAddress { interface: index("v1"), protocol: libc::ETH_P_IP as u16 };
        rustix::net::bind(&socket, &address).unwrap();
        Capture(socket)
    }

    fn next(&self) -> (VirtioHeader, Vec<u8>) {
        let mut bytes = vec![0u8; 1 << 17];
        let (_, len) = rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty()).unwrap();
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let header = VirtioHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            header_len: word(2),
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        };
        (header, bytes[VIRTIO_HEADER..len].to_vec())
    }
}

fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |byte| u32::from(*byte)))
        .sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The folded pseudo-header sum of a TCP segment (RFC 9293 section 3.1).
fn pseudo_sum(source: Ipv4Addr, destination: Ipv4Addr, tcp_len: usize) -> u16 {
    fold(sum(&source.octets()) + sum(&destination.octets()) + 6 + tcp_len as u32)
}

/// Headers of a super-frame with `len` bytes, from `v0` (or from `v1`) to the other end.
pub(in crate::device::xdp) fn headers(from_us: bool, len: usize) -> Vec<u8> {
    let ours = (OURS, [2, 0, 0, 0, 0, 1]);
    let peers = (PEERS, [2, 0, 0, 0, 0, 2]);
    let ((source, source_mac), (destination, destination_mac)) =
        if from_us { (ours, peers) } else { (peers, ours) };
    let mut out = Vec::new();
    out.extend::<[u8; 6]>(destination_mac);
    out.extend::<[u8; 6]>(source_mac);
    out.extend([8, 0]);
    let mut ipv4 = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ipv4[2..4].copy_from_slice(&((20 + 32 + len) as u16).to_be_bytes());
    ipv4[12..16].copy_from_slice(&source.octets());
    ipv4[16..20].copy_from_slice(&destination.octets());
    let checksum = !fold(sum(&ipv4));
    ipv4[10..12].copy_from_slice(&checksum.to_be_bytes());
    out.extend(ipv4);
    // Ports 12345 to 5001, sequence number 1000, ACK, timestamps.
    out.extend([0x30, 0x39, 0x13, 0x89, 0, 0, 0x03, 0xe8, 0, 0, 0, 1, 0x80, 0x10, 0xff, 0xff]);
    out.extend(pseudo_sum(source, destination, 32 + len).to_be_bytes());
    out.extend([0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(out.len(), HEADERS);
    out
}

pub(in crate::device::xdp) fn payload(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) % 251) as u8).collect()
}

/// Sends `data` as one super-frame from two places in memory.
pub(in crate::device::xdp) fn send(ring: &mut Ring, from_us: bool, data: &[u8]) -> bool {
    let (first, second) = data.split_at(data.len() / 3);
    ring.transmit_segmented(&headers(from_us, data.len()), [first, second], MSS)
}

/// ETHTOOL_S* of one flag by SIOCETHTOOL.
fn ethtool_off(name: &str, command: u32) {
    let value = [command, 0];
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    let at = core::ptr::from_ref(&value).expose_provenance();
    request[16..24].copy_from_slice(&at.to_ne_bytes());
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    let socket = Fd::adopt(socket).unwrap();
    const SIOCETHTOOL: usize = 0x8946;
    let request = request.as_ptr().expose_provenance();
    let arguments = [socket.raw() as usize, SIOCETHTOOL, request, 0, 0, 0];
    // SAFETY: a struct ifreq whose data points to a struct ethtool_value; both outlive the call.
    assert_eq!(unsafe { raw_syscall(libc::SYS_ioctl, arguments) }, 0);
}

#[test]
fn a_super_frame_crosses_the_cable_whole() {
    with_pair(|| {
        let capture = Capture::start();
        let mut ring = open("v0", true);
        assert_eq!(ring.segmentation_limit(), LIMIT);
        let data = payload(LIMIT, 0);
        assert!(send(&mut ring, true, &data));
        let (virtio, packet) = capture.next();
        assert_eq!(
            (virtio.flags, virtio.gso_type, virtio.gso_size),
            (NEEDS_CHECKSUM, GSO_TCPV4, MSS)
        );
        assert_eq!((virtio.checksum_start, virtio.checksum_offset), (34, 16));
        assert_eq!(packet[..HEADERS], headers(true, LIMIT));
        assert!(packet[HEADERS..] == data);
    });
}

#[test]
fn where_the_device_has_no_offload_the_kernel_cuts_and_sums() {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    const ETHTOOL_STSO: u32 = 0x1f;
    with_pair(|| {
        ethtool_off("v0", ETHTOOL_STSO);
        ethtool_off("v0", ETHTOOL_STXCSUM);
        let capture = Capture::start();
        let mut ring = open("v0", true);
        let data = payload(10_000, 7);
        assert!(send(&mut ring, true, &data));
        let mut arrived = Vec::new();
        while arrived.len() < data.len() {
            let (virtio, packet) = capture.next();
            assert_eq!((virtio.flags & NEEDS_CHECKSUM, virtio.gso_type), (0, GSO_NONE));
            let tcp = &packet[34..];
            assert!(packet.len() <= 1514);
            let pseudo = pseudo_sum(OURS, PEERS, tcp.len());
            assert_eq!(fold(u32::from(pseudo) + sum(tcp)), 0xffff, "TCP checksum");
            let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
            assert_eq!(sequence as usize, 1000 + arrived.len());
            arrived.extend_from_slice(&packet[HEADERS..]);
        }
        assert!(arrived == data);
    });
}

#[test]
fn a_super_frame_with_cwr_says_so() {
    with_pair(|| {
        let capture = Capture::start();
        let mut ring = open("v0", true);
        let data = payload(5000, 0);
        let mut headers = headers(true, data.len());
        headers[34 + CONTROL_BITS] |= CWR;
        assert!(ring.transmit_segmented(&headers, [&data, &[]], MSS));
        let (virtio, packet) = capture.next();
        assert_eq!(virtio.gso_type, GSO_TCPV4 | GSO_ECN);
        assert_eq!(packet[..HEADERS], headers);
    });
}

#[test]
fn one_segment_leaves_as_a_plain_frame() {
    with_pair(|| {
        let capture = Capture::start();
        let mut ring = open("v0", true);
        for len in [0, 1, usize::from(MSS)] {
            let data = payload(len, len);
            assert!(send(&mut ring, true, &data));
            let (virtio, packet) = capture.next();
            assert_eq!((virtio.flags, virtio.gso_type), (NEEDS_CHECKSUM, GSO_NONE));
            assert_eq!(packet[HEADERS..], data);
        }
    });
}

#[test]
fn super_frames_and_queued_frames_keep_their_order() {
    with_pair(|| {
        let capture = Capture::start();
        let mut ring = open("v0", true);
        let small = headers(true, 0);
        for _ in 0..40 {
            let frame = ring.allocate(small.len()).unwrap();
            ring.write(&frame, |_, bytes| bytes.copy_from_slice(&small));
            ring.transmit(frame);
        }
        assert!(send(&mut ring, true, &payload(5000, 0)));
        assert_eq!(ring.unsent(), 0);
        let lengths: Vec<usize> = (0..41).map(|_| capture.next().1.len()).collect();
        assert!(lengths[..40].iter().all(|len| *len == HEADERS));
        assert_eq!(lengths[40], HEADERS + 5000);
    });
}

#[test]
fn a_link_that_is_down_takes_nothing_and_recovers() {
    with_pair(|| {
        let mut ring = open("v0", true);
        let data = payload(5000, 0);
        assert!(send(&mut ring, true, &data));
        ip("link set v0 down\n");
        assert!(!send(&mut ring, true, &data));
        assert_eq!(ring.segmentation_limit(), LIMIT);
        ip("link set v0 up\n");
        assert!(send(&mut ring, true, &data));
    });
}

#[test]
fn a_physical_interface_has_no_super_frames() {
    with_pair(|| {
        let mut ring = open("v0", false);
        assert_eq!(ring.segmentation_limit(), 0);
        assert!(!send(&mut ring, true, &payload(5000, 0)));
    });
}

#[test]
fn a_megabyte_of_a_peers_super_frames_arrives_as_chains() {
    MODES.into_iter().for_each(|mode| with_pair(move || a_megabyte_arrives(mode)));
}

fn a_megabyte_arrives(mode: Mode) {
    let mut ring = open_in(mode, "v0", true);
    assert!(ring.takes_chains());
    ring.add_flow(Flow::ThreeTuple { protocol: 6, destination: OURS, port: 5001 }).unwrap();
    let mut peer = open("v1", true);
    // Two rounds over all frames of the ring, some held back meanwhile.
    for round in 0..8 {
        let lengths: Vec<usize> = (0..40).map(|at| LIMIT - at * 911 - round).collect();
        for len in &lengths {
            assert!(send(&mut peer, false, &payload(*len, *len)));
        }
        for len in &lengths {
            let deadline = Instant::now() + Duration::from_secs(5);
            let received = loop {
                if let Some(received) = ring.receive() {
                    break received;
                }
                assert!(Instant::now() < deadline, "nothing more came");
            };
            assert_eq!(received.len as usize, HEADERS + len);
            let bytes: Vec<u8> =
                ring.pieces(&received.frame).flat_map(|piece| piece.iter().copied()).collect();
            assert_eq!(bytes[..HEADERS], headers(false, *len));
            assert!(bytes[HEADERS..] == payload(*len, *len));
            ring.release(received.frame);
        }
    }
}

/// Headers of a train with `len` bytes, from `v1` to port 5001 at the other end.
fn train_headers(len: usize) -> Vec<u8> {
    let mut out = headers(false, len)[..34].to_vec();
    out[16..18].copy_from_slice(&((20 + 8 + len) as u16).to_be_bytes());
    out[23] = UDP;
    out[24..26].copy_from_slice(&[0, 0]);
    let checksum = !fold(sum(&out[14..34]));
    out[24..26].copy_from_slice(&checksum.to_be_bytes());
    let udp_len = (8 + len) as u16;
    let pseudo = sum(&PEERS.octets()) + sum(&OURS.octets()) + u32::from(UDP) + u32::from(udp_len);
    out.extend([0x30, 0x39, 0x13, 0x89]);
    out.extend(udp_len.to_be_bytes());
    out.extend(fold(pseudo).to_be_bytes());
    out
}

#[test]
fn a_train_crosses_the_cable_whole_and_tells_its_size() {
    with_pair(|| {
        let mut ring = open_in(Mode::Tc, "v0", true);
        ring.add_flow(Flow::ThreeTuple { protocol: UDP, destination: OURS, port: 5001 }).unwrap();
        let mut peer = open("v1", true);
        assert!(peer.carries_trains());
        for (len, size) in [(14_000, 1400), (65_000, 1472), (128, 1), (1000, 700)] {
            let (data, headers) = (payload(len, len), train_headers(len));
            let (first, second) = data.split_at(len / 3);
            assert!(peer.transmit_segmented(&headers, [first, second], size));
            let deadline = Instant::now() + Duration::from_secs(5);
            let received = loop {
                match ring.receive() {
                    Some(received) => break received,
                    None => assert!(Instant::now() < deadline, "{len} bytes in {size}"),
                }
            };
            assert_eq!((received.len as usize, received.segment), (headers.len() + len, size));
            let bytes: Vec<u8> =
                ring.pieces(&received.frame).flat_map(|piece| piece.iter().copied()).collect();
            assert_eq!(bytes[..headers.len()], headers);
            assert!(bytes[headers.len()..] == data);
            ring.release(received.frame);
        }
        // A checksum that is not the pseudo-header's: not for us to cut. A segment that leaves no room for UDP's
        // header, neither.
        let mut odd = train_headers(4000);
        odd[41] ^= 1;
        assert!(peer.transmit_segmented(&odd, [&payload(4000, 0), &[]], 1400));
        assert!(peer.transmit_segmented(&train_headers(4000), [&payload(4000, 0), &[]], 1480));
        assert!(peer.transmit_segmented(&train_headers(3), [&[1, 2, 3], &[]], 2));
        let deadline = Instant::now() + Duration::from_secs(5);
        let received = loop {
            match ring.receive() {
                Some(received) => break received,
                None => assert!(Instant::now() < deadline, "nothing came"),
            }
        };
        assert_eq!((received.len, received.segment), (42 + 3, 2));
    });
}

#[test]
fn a_hundred_thousand_connections_can_be_steered() {
    with_pair(|| {
        let mut ring = open("v0", true);
        let flow = |number: u32| Flow::FiveTuple {
            protocol: 6,
            source: Ipv4Addr::from_bits(0x0a01_0000 + number / 50_000),
            source_port: (number % 50_000) as u16 + 1,
            destination: OURS,
            port: 80,
        };
        (0..100_000).for_each(|number| ring.add_flow(flow(number)).unwrap());
        ring.remove_flows((0..100_000).map(flow));
    });
}
