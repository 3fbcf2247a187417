//! The program at the tc ingress hook and our side of its ring, over a cable of the test's own. Needs
//! root, as the tests of `super_frame`.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketType};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::*;
use crate::device::xdp::super_frame::tests::{
    OURS, headers, index, ip, open_in, payload, with_pair,
};
use crate::device::xdp::super_frame::{LinkAddress, VIRTIO_HEADER, VNET_HDR, enable};
use crate::device::xdp::{Limits, Mode, Ring};
use crate::device::{Flow, OpenError};

fn ring() -> Ring {
    let mut ring = open_in(Mode::Tc, "v0", true);
    ring.add_flow(Flow::ThreeTuple { protocol: 6, destination: OURS, port: 5001 }).unwrap();
    ring
}

/// A socket that sends what it is given on an interface.
fn packet_socket(interface: &str) -> Fd {
    let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
    let socket = Fd::adopt(socket).unwrap();
    let address = LinkAddress { interface: index(interface), protocol: 0 };
    rustix::net::bind(&socket, &address).unwrap();
    socket
}

fn send(socket: &Fd, frame: &[u8]) {
    rustix::net::send(socket, frame, SendFlags::empty()).unwrap();
}

fn frame(data: &[u8]) -> Vec<u8> {
    [headers(false, data.len()), data.to_vec()].concat()
}

/// The next frame, if one comes in time.
fn receive(ring: &mut Ring, patience: Duration) -> Option<Vec<u8>> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(received) = ring.receive() {
            let bytes: Vec<u8> = ring.pieces(&received.frame).flatten().copied().collect();
            assert_eq!(bytes.len(), received.len as usize);
            ring.release(received.frame);
            return Some(bytes);
        }
        if Instant::now() > deadline {
            return None;
        }
    }
}

const SOON: Duration = Duration::from_secs(5);

fn is_readable(ring: &Ring, patience: Duration) -> bool {
    let mut fds: Vec<PollFd> =
        ring.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
    poll(&mut fds, Some(&patience)).unwrap() > 0
}

#[test]
fn who_sleeps_is_woken_and_by_nothing_twice() {
    with_pair(|| {
        let mut ring = ring();
        let peer = packet_socket("v1");
        let frames = [frame(b"one"), frame(b"two"), frame(b"three")];
        for _ in 0..3 {
            ring.settle();
            assert!(!is_readable(&ring, Duration::ZERO), "nothing has come");
            send(&peer, &frames[0]);
            assert!(is_readable(&ring, SOON), "the bell");
            // Nobody asked for the bell again.
            send(&peer, &frames[1]);
            assert!(is_readable(&ring, Duration::ZERO), "until somebody looks");

            // What is there when somebody falls asleep does not wait for what comes next.
            ring.settle();
            assert!(is_readable(&ring, Duration::ZERO), "two frames");
            assert_eq!(receive(&mut ring, SOON).as_ref(), Some(&frames[0]));
            ring.settle();
            assert!(is_readable(&ring, Duration::ZERO), "one frame");
            assert_eq!(receive(&mut ring, SOON).as_ref(), Some(&frames[1]));
            ring.settle();
            assert!(!is_readable(&ring, Duration::ZERO), "all was taken");
            send(&peer, &frames[2]);
            assert!(is_readable(&ring, SOON), "the bell again");
            assert_eq!(receive(&mut ring, SOON).as_ref(), Some(&frames[2]));
        }
    });
}

/// Sender, number, and bytes that follow from both.
fn numbered(sender: u8, number: u32) -> Vec<u8> {
    let len = 5 + (number as usize * 37) % 6000;
    let mut data = payload(len, number as usize + usize::from(sender));
    data[0] = sender;
    data[1..5].copy_from_slice(&number.to_ne_bytes());
    data
}

#[test]
fn frames_of_two_processors_arrive_whole_and_in_order() {
    const COUNT: u32 = 20_000;
    with_pair(|| {
        ip("link set v0 mtu 9000\nlink set v1 mtu 9000\n");
        let mut ring = ring();
        let mut next = [0u32; 2];
        let came = Cell::new(0u64);
        let mut take = |ring: &mut Ring, patience| {
            let Some(bytes) = receive(ring, patience) else { return false };
            let data = &bytes[headers(false, 0).len()..];
            let sender = data[0];
            let number = u32::from_ne_bytes(data[1..5].try_into().unwrap());
            assert!(bytes == frame(&numbered(sender, number)), "{sender} {number}");
            let next = &mut next[usize::from(sender)];
            assert!(number >= *next, "{number} of {sender} after {next}");
            *next = number + 1;
            came.set(came.get() + 1);
            true
        };
        std::thread::scope(|scope| {
            let senders = [0u8, 1].map(|sender| {
                scope.spawn(move || {
                    let mut cpu = CpuSet::new();
                    cpu.set(usize::from(sender));
                    // Where there is one processor only, they take turns.
                    let _ = sched_setaffinity(None, &cpu);
                    let peer = packet_socket("v1");
                    (0..COUNT).for_each(|number| send(&peer, &frame(&numbered(sender, number))));
                })
            });
            while senders.iter().any(|sender| !sender.is_finished()) {
                take(&mut ring, Duration::ZERO);
            }
        });
        while take(&mut ring, Duration::ZERO) {}
        let (came, lost) = (came.get(), ring.statistics().rx_dropped);
        assert_eq!(came + lost, u64::from(2 * COUNT));
        assert!(came > u64::from(COUNT) / 10, "{came} came, {lost} were lost");
        // Nothing is stuck: the ring takes what fills it anew.
        let peer = packet_socket("v1");
        for number in 0..10_000 {
            send(&peer, &frame(&numbered(0, COUNT + number)));
            assert!(take(&mut ring, SOON));
        }
    });
}

#[test]
fn headers_beside_the_first_buffer_are_read_there() {
    with_pair(|| {
        ip("link set v0 mtu 9000\nlink set v1 mtu 9000\n");
        let mut ring = ring();
        // With a header length of 0 and more than a page, the kernel keeps the Ethernet header alone
        // in the first buffer.
        let peer = packet_socket("v1");
        enable(&peer, VNET_HDR).unwrap();
        for len in [5000, 8000] {
            let frame = frame(&payload(len, len));
            send(&peer, &[vec![0; VIRTIO_HEADER], frame.clone()].concat());
            assert_eq!(receive(&mut ring, SOON), Some(frame));
        }
    });
}

#[test]
fn a_frame_of_a_vlan_is_the_kernels() {
    with_pair(|| {
        let mut ring = ring();
        let peer = packet_socket("v1");
        let plain = frame(b"plain");
        let mut tagged = frame(b"tagged");
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        for _ in 0..3 {
            send(&peer, &tagged);
            send(&peer, &plain);
            assert_eq!(receive(&mut ring, SOON).as_ref(), Some(&plain), "the first that is ours");
        }
        assert_eq!(receive(&mut ring, Duration::ZERO), None);
        assert_eq!(ring.statistics().rx_dropped, 0);
    });
}

#[test]
fn a_ring_that_is_full_loses_whole_frames_and_recovers() {
    with_pair(|| {
        ip("link set v0 mtu 9000\nlink set v1 mtu 9000\n");
        let mut ring = ring();
        let peer = packet_socket("v1");
        for round in 0..5 {
            let mut sent = 0;
            let before = ring.statistics().rx_dropped;
            while ring.statistics().rx_dropped < before + 20 {
                assert!(sent < 100_000, "nothing is lost");
                send(&peer, &frame(&payload(8000, sent)));
                sent += 1;
            }
            let mut came = 0;
            while let Some(bytes) = receive(&mut ring, Duration::ZERO) {
                assert!(bytes == frame(&payload(8000, came)), "round {round}, frame {came}");
                came += 1;
            }
            assert_eq!(came + 20, sent, "round {round}");
        }
    });
}

#[test]
fn a_mode_that_is_refused_is_told_and_the_next_one_tried() {
    with_pair(|| {
        let mut interface = ring().interface().clone();
        interface.index += 1000;
        let limits = Limits {
            rx_frames: 256,
            rx_posted: 256,
            tx_frames: 64,
            patience_nanos: 0,
            most_sharers: 1,
        };
        let cases: [(Mode, &[Mode]); 2] =
            [(Mode::Auto, &[Mode::Tc, Mode::Native]), (Mode::Tc, &[])];
        for (mode, refused_first) in cases {
            let mut told = Vec::new();
            let refused = |mode, _: &OpenError| told.push(mode);
            let error = Ring::open(interface.clone(), mode, limits, refused).err().unwrap();
            assert_eq!(told, refused_first, "{error}");
            // The error is the last one's: the XDP hook's, or the tc hook's.
            let names_tc = error.to_string().contains("PROG_QUERY");
            assert_eq!(names_tc, mode == Mode::Tc, "{error}");
        }
    });
}
