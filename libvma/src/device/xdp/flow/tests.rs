//! What the steering program does with frames, over a veth pair in a network namespace of the test's own.

use core::net::Ipv4Addr;
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
    fn new(mode: Mode) -> Cable {
        let ring = open_in(mode, "v0", true);
        Cable { ring, kernel: packet_socket("v0"), peer: packet_socket("v1"), sent: 0 }
    }

    /// Sends a datagram and tells who got it.
    fn who_takes(&mut self, ports: (u16, u16)) -> Taker {
        self.who_takes_from(PEERS, ports)
    }

    fn who_takes_from(&mut self, source: Ipv4Addr, (source_port, port): (u16, u16)) -> Taker {
        self.sent += 1;
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
            .ipv4(source.octets(), OURS.octets(), 64)
            .udp(source_port, port)
            .write(&mut frame, &[self.sent; 16])
            .unwrap();
        rustix::net::send(&self.peer, &frame, SendFlags::empty()).unwrap();
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
                assert_eq!(bytes[..len], frame);
                return Taker::Kernel;
            }
        }
        panic!("neither the ring nor the kernel got it");
    }
}

fn in_both_modes(test: fn(Cable)) {
    MODES.into_iter().for_each(|mode| with_pair(move || test(Cable::new(mode))));
}

/// Sees what comes in by an interface and reaches the kernel's stack, behind the steering program
/// (a socket for all protocols would be before one at the tc hook).
fn packet_socket(interface: &str) -> Fd {
    let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
    let socket = Fd::adopt(socket).unwrap();
    let address = LinkAddress { interface: index(interface), protocol: libc::ETH_P_IP as u16 };
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
            cable.ring.remove_flow(flow);
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
