//! What the steering program does with frames, over a veth pair in a network namespace of the test's own.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::time::Instant;

use etherparse::PacketBuilder;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

use crate::device::Flow;
use crate::device::xdp::super_frame::LinkAddress;
use crate::device::xdp::super_frame::tests::{MODES, OURS, PEERS, index, open_in, with_pair};
use crate::device::xdp::{Mode, Ring};
use crate::sys::Fd;

const UDP: u8 = 17;
const TCP: u8 = 6;
/// (source port, port). The mirrored pair shares its place in the program's memory.
const PORTS: (u16, u16) = (4000, 5000);
const MIRRORED: (u16, u16) = (5000, 4000);

fn three((_, port): (u16, u16)) -> Flow {
    Flow::ThreeTuple { protocol: UDP, destination: OURS, port }
}

fn five((source_port, port): (u16, u16)) -> Flow {
    Flow::FiveTuple { protocol: UDP, source: PEERS, source_port, destination: OURS, port }
}

#[derive(Debug, PartialEq, Eq)]
enum Taker {
    Ring,
    Kernel,
}

/// `v0`, whose frames our ring or the kernel takes, and the peer's end, which sends them.
struct Cable {
    ring: Ring,
    kernel: Fd,
    peer: Fd,
    sent: u8,
}

impl Cable {
    fn new(mode: Mode, protocol: i32) -> Cable {
        let protocol = protocol as u16;
        let ring = open_in(mode, "v0", true);
        let [kernel, peer] = ["v0", "v1"].map(|name| packet_socket(name, protocol));
        Cable { ring, kernel, peer, sent: 0 }
    }

    /// Sends a datagram and tells who got it.
    fn who_takes(&mut self, ports: (u16, u16)) -> Taker {
        self.who_takes_from(PEERS, ports)
    }

    fn who_takes_from(&mut self, source: Ipv4Addr, ports: (u16, u16)) -> Taker {
        self.who_takes_between(source, OURS, ports)
    }

    fn who_takes_between(
        &mut self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        (source_port, port): (u16, u16),
    ) -> Taker {
        self.sent += 1;
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
            .ipv4(source.octets(), destination.octets(), 64)
            .udp(source_port, port)
            .write(&mut frame, &[self.sent; 16])
            .unwrap();
        self.who_takes_frame(&frame)
    }

    fn who_takes_ipv6(
        &mut self,
        protocol: u8,
        source: Ipv6Addr,
        (source_port, port): (u16, u16),
    ) -> Taker {
        self.sent += 1;
        let mut frame = Vec::new();
        let packet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]).ipv6(
            source.octets(),
            OURS_OF_IPV6.octets(),
            64,
        );
        match protocol {
            UDP => packet.udp(source_port, port).write(&mut frame, &[self.sent; 16]),
            _ => packet.tcp(source_port, port, self.sent.into(), 100).write(&mut frame, &[]),
        }
        .unwrap();
        self.who_takes_frame(&frame)
    }

    /// Of a fragment that begins so, or goes on so.
    fn who_takes_piece(&mut self, ident: u32, place: u16, behind: [u8; 16]) -> Taker {
        self.who_takes_frame(&piece_of_ipv6(OURS_OF_IPV6, UDP, ident, place, behind))
    }

    fn who_takes_frame(&mut self, frame: &[u8]) -> Taker {
        rustix::net::send(&self.peer, frame, SendFlags::empty()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if let Some(received) = self.ring.receive() {
                assert_eq!(self.ring.first_bytes(&received.frame), frame);
                self.ring.release(received.frame);
                return Taker::Ring;
            }
            let mut bytes = [0u8; 2048];
            let taken = rustix::net::recv(&self.kernel, &mut bytes[..], RecvFlags::DONTWAIT);
            if let Ok((_, len)) = taken {
                assert_eq!(&bytes[..len], frame);
                return Taker::Kernel;
            }
        }
        panic!("neither the ring nor the kernel got it");
    }
}

/// A fragment of the peer's.
fn piece_of_ipv6(
    destination: Ipv6Addr,
    protocol: u8,
    ident: u32,
    place: u16,
    behind: [u8; 16],
) -> Vec<u8> {
    let mut frame = Vec::new();
    let packet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]).ipv6(
        PEERS_OF_IPV6.octets(),
        destination.octets(),
        64,
    );
    let header = [&[protocol, 0], &place.to_be_bytes()[..], &ident.to_be_bytes()].concat();
    packet.write(&mut frame, 44.into(), &[&header[..], &behind].concat()).unwrap();
    frame
}

/// The header of a datagram of 200 bytes, and some of them.
fn beginning_of((source_port, port): (u16, u16)) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&source_port.to_be_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[5] = 200;
    bytes
}

fn in_both_modes(test: fn(Cable)) {
    MODES.into_iter().for_each(|mode| with_pair(move || test(Cable::new(mode, libc::ETH_P_IP))));
}

/// Sees what comes in by an interface and reaches the kernel's stack, behind the steering program
/// (a socket for all protocols would be before one at the tc hook).
fn packet_socket(interface: &str, protocol: u16) -> Fd {
    let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
    let socket = Fd::adopt(socket).unwrap();
    let address = LinkAddress { interface: index(interface), protocol };
    rustix::net::bind(&socket, &address).unwrap();
    socket
}

// covers: NET-40
#[test]
fn a_flow_is_the_kernels_again_as_soon_as_it_is_removed() {
    in_both_modes(|mut cable| {
        for flow in [five(PORTS), three(PORTS)] {
            assert_eq!(cable.who_takes(PORTS), Taker::Kernel);
            cable.ring.add_flow(flow).unwrap();
            // Found in the tables, then remembered.
            assert_eq!(cable.who_takes(PORTS), Taker::Ring);
            assert_eq!(cable.who_takes(PORTS), Taker::Ring);
            cable.ring.remove_flows([flow].into_iter());
            assert_eq!(cable.who_takes(PORTS), Taker::Kernel);
        }
    });
}

// covers: NET-40
#[test]
fn an_exception_holds_though_its_flow_was_seen_before() {
    in_both_modes(|mut cable| {
        cable.ring.add_flow(three(PORTS)).unwrap();
        assert_eq!(cable.who_takes(PORTS), Taker::Ring);
        cable.ring.except_flow(five(PORTS)).unwrap();
        assert_eq!(cable.who_takes(PORTS), Taker::Kernel);
        // Other peers of the same port are ours all the time.
        assert_eq!(cable.who_takes((4001, PORTS.1)), Taker::Ring);
        assert_eq!(cable.who_takes(PORTS), Taker::Kernel);
        cable.ring.end_exception(five(PORTS));
        assert_eq!(cable.who_takes(PORTS), Taker::Ring);
    });
}

// covers: NET-40
#[test]
fn a_flow_that_shares_its_place_in_memory_with_ours_is_not_ours() {
    in_both_modes(|mut cable| {
        cable.ring.add_flow(five(PORTS)).unwrap();
        for _ in 0..3 {
            assert_eq!(cable.who_takes(PORTS), Taker::Ring);
            assert_eq!(cable.who_takes(MIRRORED), Taker::Kernel);
            assert_eq!(cable.who_takes_from(Ipv4Addr::new(10, 0, 0, 3), PORTS), Taker::Kernel);
        }
        cable.ring.add_flow(five(MIRRORED)).unwrap();
        for _ in 0..3 {
            assert_eq!(cable.who_takes(PORTS), Taker::Ring);
            assert_eq!(cable.who_takes(MIRRORED), Taker::Ring);
        }
    });
}

const OURS_OF_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xf10, 0, 0, 0, 0, 0, 1);
const PEERS_OF_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xf10, 0, 0, 0, 0, 0, 2);
const OTHERS_OF_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xf10, 0, 0, 0, 0, 0, 3);

// covers: NET-40
#[test]
fn nobody_gets_at_a_flow_of_ipv6_by_its_stand_in() {
    in_both_modes(|mut cable| {
        let stand_in = libvma_dev::ipv6_stand_ins::of(OURS_OF_IPV6).unwrap();
        let flow = Flow::ThreeTuple { protocol: UDP, destination: stand_in, port: PORTS.1 };
        cable.ring.add_flow(flow).unwrap();
        assert_eq!(cable.who_takes_between(PEERS, stand_in, PORTS), Taker::Kernel);
    });
}

// covers: NET-40, LIM-23
#[test]
fn flows_of_ipv6_are_matched_by_their_addresses() {
    let test = |mut cable: Cable, protocol| {
        let [exact, whole] = flows_of_ipv6(protocol);
        let taken = |cable: &mut Cable| {
            [PEERS_OF_IPV6, OTHERS_OF_IPV6]
                .map(|source| cable.who_takes_ipv6(protocol, source, PORTS))
        };
        assert_eq!(taken(&mut cable), [Taker::Kernel, Taker::Kernel]);
        cable.ring.add_flow(exact).unwrap();
        for _ in 0..2 {
            assert_eq!(taken(&mut cable), [Taker::Ring, Taker::Kernel]);
        }
        cable.ring.remove_flows(core::iter::once(exact));
        assert_eq!(taken(&mut cable), [Taker::Kernel, Taker::Kernel]);
        cable.ring.add_flow(whole).unwrap();
        assert_eq!(taken(&mut cable), [Taker::Ring, Taker::Ring]);
        cable.ring.except_flow(exact).unwrap();
        assert_eq!(taken(&mut cable), [Taker::Kernel, Taker::Ring]);
        // The listener's flow goes, and the exception keeps its addresses.
        cable.ring.end_exception(exact);
        assert_eq!(taken(&mut cable), [Taker::Ring, Taker::Ring]);
        cable.ring.remove_flows(core::iter::once(whole));
        assert_eq!(taken(&mut cable), [Taker::Kernel, Taker::Kernel]);
    };
    for (mode, protocol) in MODES.into_iter().flat_map(|mode| [(mode, TCP), (mode, UDP)]) {
        with_pair(move || test(Cable::new(mode, libc::ETH_P_IPV6), protocol));
    }
}

/// The first fragment, which has the ports, decides for all; one that overtakes it has them all go to the kernel.
// covers: NET-40, NET-23
#[test]
fn the_fragments_of_a_datagram_of_ipv6_go_one_way() {
    let test = |mut cable: Cable| {
        let [exact, _] = flows_of_ipv6(UDP);
        cable.ring.add_flow(exact).unwrap();
        let first = beginning_of(PORTS);
        let mut others = first;
        others[3] ^= 1;
        for (ident, begin, taker) in
            [(1, first, Taker::Ring), (2, others, Taker::Kernel), (0x1_0001, first, Taker::Ring)]
        {
            // The first one, one between, that again, the last one.
            for (place, behind) in [(1, begin), (16 | 1, first), (16 | 1, first), (32, others)] {
                assert_eq!(cable.who_takes_piece(ident, place, behind), taker, "{ident} {place}");
            }
        }
        for (place, behind) in [(16 | 1, first), (1, first), (32, first)] {
            assert_eq!(cable.who_takes_piece(3, place, behind), Taker::Kernel, "{place}");
        }
        // In one piece: RFC 6946.
        assert_eq!(cable.who_takes_piece(4, 0, first), Taker::Kernel);
        cable.ring.remove_flows(core::iter::once(exact));
        assert_eq!(cable.who_takes_piece(5, 1, first), Taker::Kernel);
    };
    for mode in MODES {
        with_pair(move || test(Cable::new(mode, libc::ETH_P_IPV6)));
    }
}

/// The identification of a datagram of ours, of which a fragment may have been lost, comes round.
// covers: NET-40, NET-23
#[test]
fn each_first_fragment_of_ipv6_decides_anew() {
    let test = |mut cable: Cable| {
        let [exact, _] = flows_of_ipv6(UDP);
        cable.ring.add_flow(exact).unwrap();
        let first = beginning_of(PORTS);
        let mut others = first;
        others[3] ^= 1;
        let mut without_length = first;
        without_length[4..6].fill(0);
        for (ident, again) in [(9, others), (10, without_length)] {
            assert_eq!(cable.who_takes_piece(ident, 1, first), Taker::Ring);
            assert_eq!(cable.who_takes_piece(ident, 1, again), Taker::Kernel);
            assert_eq!(cable.who_takes_piece(ident, 16, first), Taker::Kernel, "{ident}");
        }
        // Of another protocol.
        assert_eq!(cable.who_takes_piece(11, 1, first), Taker::Ring);
        let strange = piece_of_ipv6(OURS_OF_IPV6, 60, 11, 1, first);
        assert_eq!(cable.who_takes_frame(&strange), Taker::Kernel);
        assert_eq!(cable.who_takes_piece(11, 16, first), Taker::Kernel);
        // It came twice.
        assert_eq!(cable.who_takes_piece(12, 1, first), Taker::Ring);
        assert_eq!(cable.who_takes_piece(12, 1, first), Taker::Ring);
        assert_eq!(cable.who_takes_piece(12, 16, first), Taker::Ring);
    };
    for mode in MODES {
        with_pair(move || test(Cable::new(mode, libc::ETH_P_IPV6)));
    }
}

/// A router has many.
// covers: NET-40, NET-23
#[test]
fn fragments_of_ipv6_that_pass_by_take_the_place_of_none_of_ours() {
    let test = |mut cable: Cable| {
        let [exact, _] = flows_of_ipv6(UDP);
        cable.ring.add_flow(exact).unwrap();
        let first = beginning_of(PORTS);
        assert_eq!(cable.who_takes_piece(1, 1, first), Taker::Ring);
        for ident in 0..20_000 {
            let passing = piece_of_ipv6(OTHERS_OF_IPV6, UDP, ident, 16 | 1, first);
            assert_eq!(cable.who_takes_frame(&passing), Taker::Kernel);
        }
        assert_eq!(cable.who_takes_piece(1, 16, first), Taker::Ring);
    };
    for mode in MODES {
        with_pair(move || test(Cable::new(mode, libc::ETH_P_IPV6)));
    }
}

/// The flow of one peer, and that of all.
fn flows_of_ipv6(protocol: u8) -> [Flow; 2] {
    let [source, destination] = [PEERS_OF_IPV6, OURS_OF_IPV6]
        .map(|address| libvma_dev::ipv6_stand_ins::of(address).unwrap());
    let (source_port, port) = PORTS;
    [
        Flow::FiveTuple { protocol, source, source_port, destination, port },
        Flow::ThreeTuple { protocol, destination, port },
    ]
}

/// Forged addresses are as many as somebody likes.
// covers: NET-40
#[test]
fn nobody_is_lost_if_there_are_too_many_strangers() {
    let test = |mut cable: Cable| {
        let [exact, whole] = flows_of_ipv6(UDP);
        let [_, of_tcp] = flows_of_ipv6(TCP);
        [exact, whole, of_tcp].into_iter().for_each(|flow| cable.ring.add_flow(flow).unwrap());
        let stranger = |n: u32| {
            let [high, low] = [n >> 16, n & 0xffff].map(|half| half as u16);
            Ipv6Addr::new(0xfd00, 0xf11, 0, 0, 0, 0, high, low)
        };
        let know = |cable: &mut Cable, n| {
            cable.ring.program.flows.leave_to_kernel(stranger(n));
            cable.ring.close_to_strangers();
        };
        let taken =
            |cable: &mut Cable, protocol, source| cable.who_takes_ipv6(protocol, source, PORTS);
        for n in 0..65_536 {
            know(&mut cable, n);
            // Another frame of it.
            know(&mut cable, n);
        }
        for protocol in [UDP, TCP] {
            assert_eq!(taken(&mut cable, protocol, stranger(0)), Taker::Kernel);
            assert_eq!(taken(&mut cable, protocol, OTHERS_OF_IPV6), Taker::Ring);
        }
        know(&mut cable, 65_536);
        // Datagrams of peers that no flow names are the kernel's. A segment of the oldest is heard of again.
        assert_eq!(taken(&mut cable, UDP, OTHERS_OF_IPV6), Taker::Kernel);
        assert_eq!(taken(&mut cable, UDP, PEERS_OF_IPV6), Taker::Ring);
        assert_eq!(taken(&mut cable, TCP, OTHERS_OF_IPV6), Taker::Ring);
        // One that was taken before, without a stand-in, is named now.
        let source = libvma_dev::ipv6_stand_ins::of(OTHERS_OF_IPV6).unwrap();
        let Flow::FiveTuple { protocol, source_port, destination, port, .. } = exact else {
            panic!("a flow of one peer")
        };
        let named = Flow::FiveTuple { protocol, source, source_port, destination, port };
        cable.ring.add_flow(named).unwrap();
        assert_eq!(taken(&mut cable, UDP, OTHERS_OF_IPV6), Taker::Ring);
        assert_eq!(taken(&mut cable, TCP, stranger(65_536)), Taker::Kernel);
        assert_eq!(taken(&mut cable, TCP, stranger(0)), Taker::Ring);
        know(&mut cable, 0);
        assert_eq!(taken(&mut cable, TCP, stranger(0)), Taker::Kernel);
    };
    for mode in MODES {
        with_pair(move || test(Cable::new(mode, libc::ETH_P_IPV6)));
    }
}
