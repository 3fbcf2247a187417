//! Two rings of one process as the two ends of a link.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

mod hostile;
mod own_bells;

pub(super) struct Pair {
    pub a: Ring,
    pub b: Ring,
    /// The link as `a` and as `b` know it.
    pub to_b: LinkId,
    pub to_a: LinkId,
}

/// A second descriptor of the same file.
fn duplicate(fd: BorrowedFd<'_>) -> Fd {
    Fd::adopt(rustix::io::dup(fd).expect("dup")).expect("a high number")
}

fn connect(a: &mut Ring, b: &mut Ring) -> (LinkId, LinkId) {
    let made = Segment::create().expect("a segment");
    let taken = Segment::take(duplicate(made.fd())).expect("the same segment");
    let (bell_of_a, bell_of_b) = (duplicate(made.bell()), duplicate(taken.bell()));
    let to_b = a.link(made, Side::Maker, bell_of_b).expect("a link");
    let to_a = b.link(taken, Side::Taker, bell_of_a).expect("a link");
    (to_b, to_a)
}

pub(super) fn pair() -> Pair {
    let mut a = Ring::open().expect("a ring");
    let mut b = Ring::open().expect("a ring");
    let (to_b, to_a) = connect(&mut a, &mut b);
    Pair { a, b, to_b, to_a }
}

fn byte(seed: usize, at: usize) -> u8 {
    (seed.wrapping_mul(31) ^ at ^ at >> 8) as u8
}

/// Sends a packet of which every byte but the source address follows from `seed`.
fn send_packet(ring: &mut Ring, link: LinkId, seed: usize, len: usize) -> bool {
    let Some(frame) = ring.allocate(link, len) else { return false };
    let mut written = 0;
    ring.write(&frame, |offset, piece| {
        assert_eq!(offset, written);
        written += piece.len();
        for (at, to) in piece.iter_mut().enumerate() {
            *to = byte(seed, offset + at);
        }
    });
    assert_eq!(written, len);
    ring.transmit(frame);
    true
}

fn bytes_of(ring: &Ring, received: &Received) -> Vec<u8> {
    let bytes: Vec<u8> = ring.pieces(&received.frame).flatten().copied().collect();
    assert_eq!(bytes.len(), received.len as usize);
    bytes
}

fn receive_packet(ring: &mut Ring) -> Received {
    match ring.receive() {
        Some(Arrival::Packet(received)) => received,
        other => panic!("a packet, not {other:?}"),
    }
}

fn drop_packet(ring: &mut Ring) {
    let received = receive_packet(ring);
    ring.release(received.frame);
}

fn check_packet(ring: &Ring, link: LinkId, received: &Received, seed: usize) {
    let bytes = bytes_of(ring, received);
    assert_eq!(bytes[6..12], link.mac());
    for (at, found) in bytes.iter().enumerate() {
        assert!((6..12).contains(&at) || *found == byte(seed, at), "byte {at} of {}", bytes.len());
    }
    assert!(ring.first_bytes(&received.frame).len() >= bytes.len().min(54));
}

fn send_message(ring: &mut Ring, link: LinkId, seed: usize, len: usize) -> Result<(), Full> {
    let mut at = 0;
    let header = [seed as u64, len as u64, u64::MAX];
    let result = ring.send_message(link, 7, header, len, Rank::Usual, |piece| {
        for to in piece {
            *to = byte(seed, at);
            at += 1;
        }
    });
    assert!(result.is_err() || at == len);
    result
}

fn is_rung(ring: &Ring) -> bool {
    let mut entry = [PollFd::from_borrowed_fd(ring.bell(), PollFlags::IN)];
    poll(&mut entry, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") == 1
}

#[test]
fn packets_of_every_length_arrive_whole() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    for len in 14..=70_000 {
        // Every length where the shape changes, and a sample of the others.
        if len > 200 && len % 4096 > 60 && len % 97 != 0 {
            continue;
        }
        assert!(send_packet(&mut a, to_b, len, len));
        let received = receive_packet(&mut b);
        check_packet(&b, to_a, &received, len);
        b.release(received.frame);
    }
    assert!(a.allocate(to_b, 13).is_none());
    assert!(a.allocate(to_b, MOST_PACKET + 1).is_none());
    assert!(send_packet(&mut a, to_b, 1, MOST_PACKET));
    let received = receive_packet(&mut b);
    check_packet(&b, to_a, &received, 1);
}

#[test]
fn messages_of_every_length_arrive_whole() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    for len in (0..=70_000).chain([MOST_PAYLOAD]) {
        if len > 200 && len % 4096 > 2 && len % 97 != 0 {
            continue;
        }
        send_message(&mut a, to_b, len, len).expect("room");
        let Some(Arrival::Message { link, kind, header, payload }) = b.receive() else {
            panic!("no message of {len}");
        };
        assert_eq!((link, kind, header), (to_a, 7, [len as u64, len as u64, u64::MAX]));
        assert_eq!(payload.is_some(), len > 0);
        if let Some(payload) = payload {
            let bytes = bytes_of(&b, &payload);
            assert!(bytes.iter().enumerate().all(|(at, found)| *found == byte(len, at)));
            b.release(payload.frame);
        }
    }
    assert_eq!(send_message(&mut a, to_b, 0, MOST_PAYLOAD + 1), Err(Full));
    assert_eq!(a.send_message(to_b, 0, [0; 3], 0, Rank::Usual, |_| {}), Err(Full));
}

#[test]
fn both_directions_go_round_many_times_in_order() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    let (mut sent, mut received) = (0, 0);
    while received < 5000 {
        for _ in 0..1 + sent % 700 {
            if !send_packet(&mut a, to_b, sent, 14 + sent % 300) {
                break;
            }
            sent += 1;
        }
        while let Some(arrival) = b.receive() {
            let Arrival::Packet(packet) = arrival else { continue };
            check_packet(&b, to_a, &packet, received);
            received += 1;
            b.release(packet.frame);
            send_message(&mut b, to_a, received, 20).expect("room for an answer");
            let Some(Arrival::Message { header, payload, .. }) = skip_relief(&mut a) else {
                panic!("no answer");
            };
            assert_eq!(header[0], received as u64);
            a.release(payload.expect("payload").frame);
        }
    }
    assert!(sent >= received && a.counters(to_b).packets_out as usize == sent);
    assert_eq!(b.counters(to_a).packets_in as usize, received);
}

fn skip_relief(ring: &mut Ring) -> Option<Arrival> {
    loop {
        match ring.receive() {
            Some(Arrival::Relief(_)) => {}
            other => return other,
        }
    }
}

#[test]
fn frames_may_be_released_in_any_order() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    let mut held: Vec<(usize, Received)> = Vec::new();
    for seed in 0..3000 {
        assert!(send_packet(&mut a, to_b, seed, 121 + seed * 7 % 9000));
        held.push((seed, receive_packet(&mut b)));
        if held.len() > 100 {
            let (seed, received) = held.swap_remove(seed * 13 % held.len());
            check_packet(&b, to_a, &received, seed);
            b.release(received.frame);
        }
    }
    for (seed, received) in held {
        check_packet(&b, to_a, &received, seed);
        b.release(received.frame);
    }
    assert_eq!(a.room(to_b), MOST_PAYLOAD);
}

#[test]
fn a_full_ring_refuses_and_relieves_once() {
    let Pair { mut a, mut b, to_b, .. } = pair();
    let mut sent = 0;
    while send_message(&mut a, to_b, sent, 1).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 1024 - 64);
    assert_eq!(a.room(to_b), 0);
    assert!(a.allocate(to_b, 60).is_none());
    assert!(a.receive().is_none(), "no relief before anything was received");
    a.settle();
    assert!(!is_rung(&a));
    // Those with a rank have slots of their own.
    for _ in 0..32 {
        assert_eq!(a.send_message(to_b, 9, [0; 3], 0, Rank::Promised, |_| {}), Ok(()));
    }
    assert_eq!(a.send_message(to_b, 9, [0; 3], 0, Rank::Promised, |_| {}), Err(Full));
    for _ in 0..32 {
        assert_eq!(a.send_message(to_b, 9, [0; 3], 0, Rank::Urgent, |_| {}), Ok(()));
    }
    assert_eq!(a.send_message(to_b, 9, [0; 3], 0, Rank::Urgent, |_| {}), Err(Full));
    let mut received = 0;
    while let Some(Arrival::Message { payload, .. }) = b.receive() {
        received += 1;
        if let Some(payload) = payload {
            b.release(payload.frame);
        }
    }
    assert_eq!(received, sent + 64);
    assert!(is_rung(&a), "a sleeping sender is woken");
    assert!(matches!(a.receive(), Some(Arrival::Relief(link)) if link == to_b));
    assert!(a.receive().is_none());
    assert!(send_packet(&mut a, to_b, 0, 60));
    assert_eq!(a.counters(to_b).full, 5);
}

#[test]
fn chunks_run_out_and_come_back() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    let mut held = Vec::new();
    for seed in 0.. {
        if a.room(to_b) < MOST_PAYLOAD {
            break;
        }
        send_message(&mut a, to_b, seed, MOST_PAYLOAD).expect("room");
        let Some(Arrival::Message { payload: Some(payload), .. }) = b.receive() else {
            panic!("no message");
        };
        held.push(payload);
        assert_eq!(b.is_short_of_frames(), held.len() * 32 > 768);
    }
    assert_eq!(held.len(), 32);
    assert_eq!(a.room(to_b), 96);
    assert_eq!(send_message(&mut a, to_b, 0, 97), Err(Full));
    // What needs no chunk still goes.
    assert_eq!(send_message(&mut a, to_b, 0, 96), Ok(()));
    let Some(Arrival::Message { payload: Some(small), .. }) = b.receive() else {
        panic!("no message");
    };
    b.release(small.frame);
    assert!(a.receive().is_none());
    for (seed, payload) in held.into_iter().enumerate() {
        let bytes = bytes_of(&b, &payload);
        assert!(bytes.iter().enumerate().all(|(at, found)| *found == byte(seed, at)));
        b.release(payload.frame);
    }
    assert!(!b.is_short_of_frames());
    assert!(matches!(a.receive(), Some(Arrival::Relief(link)) if link == to_b));
    assert_eq!(a.room(to_b), MOST_PAYLOAD);
    assert_eq!(b.counters(to_a).bells, 1);
}

#[test]
fn a_few_returned_chunks_are_announced_when_the_receiver_has_nothing_to_do() {
    for by_settling in [false, true] {
        let Pair { mut a, mut b, to_b, .. } = pair();
        let mut held = Vec::new();
        while send_message(&mut a, to_b, 0, 30_000).is_ok() {
            let Some(Arrival::Message { payload: Some(payload), .. }) = b.receive() else {
                panic!("no message");
            };
            held.push(payload);
        }
        a.settle();
        b.release(held.pop().expect("a message").frame);
        assert!(!is_rung(&a), "8 chunks are not worth a bell by themselves");
        if by_settling {
            b.settle();
        } else {
            assert!(b.receive().is_none());
        }
        assert!(is_rung(&a));
        assert!(matches!(a.receive(), Some(Arrival::Relief(_))));
        assert_eq!(send_message(&mut a, to_b, 0, 30_000), Ok(()));
    }
}

#[test]
fn a_packet_that_does_not_fit_is_lost_and_nobody_rung() {
    for len in [60, 3000] {
        let Pair { mut a, mut b, to_b, .. } = pair();
        while send_packet(&mut a, to_b, 0, len) {}
        a.settle();
        while let Some(Arrival::Packet(received)) = b.receive() {
            b.release(received.frame);
        }
        b.settle();
        assert!(!is_rung(&a));
        assert!(a.receive().is_none());
        // Who comes a moment later is not lost because others were before.
        std::thread::sleep(std::time::Duration::from_micros(10));
        assert!(send_packet(&mut a, to_b, 0, len));
    }
}

#[test]
fn only_a_sleeping_peer_is_rung_and_only_once() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    let send = |a: &mut Ring| {
        assert!(send_packet(a, to_b, 0, 60));
        assert_eq!(a.unsent(), 1);
        a.kick();
        assert_eq!(a.unsent(), 0);
    };
    send(&mut a);
    assert!(!is_rung(&b), "awake");
    drop_packet(&mut b);
    b.settle();
    assert!(!is_rung(&b));
    send(&mut a);
    assert!(is_rung(&b), "asleep");
    send(&mut a);
    assert_eq!(a.counters(to_b).bells, 1);
    // Falling asleep with something left rings at once.
    drop_packet(&mut b);
    b.settle();
    assert!(is_rung(&b));
    drop_packet(&mut b);
    b.settle();
    assert!(!is_rung(&b));
    assert_eq!(b.counters(to_a).packets_in, 3);
}

#[test]
fn links_take_turns() {
    let mut hub = Ring::open().expect("a ring");
    let mut spokes = Vec::new();
    for _ in 0..5 {
        let mut ring = Ring::open().expect("a ring");
        let (to_hub, from_hub) = connect(&mut ring, &mut hub);
        for seed in 0..10 {
            assert!(send_packet(&mut ring, to_hub, seed, 60));
        }
        spokes.push((ring, from_hub));
    }
    assert_eq!(hub.links().count(), 5);
    for round in 0..10 {
        let mut seen = Vec::new();
        for _ in 0..5 {
            let received = receive_packet(&mut hub);
            let bytes = bytes_of(&hub, &received);
            let mac: [u8; 6] = bytes[6..12].try_into().expect("six bytes");
            let link = LinkId::from_mac(mac).expect("a link's address");
            check_packet(&hub, link, &received, round);
            seen.push(link);
            hub.release(received.frame);
        }
        assert!(spokes.iter().all(|(_, link)| seen.contains(link)));
    }
    assert!(hub.receive().is_none());
}

#[test]
fn held_frames_outlive_their_link() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    for seed in 0..3 {
        assert!(send_packet(&mut a, to_b, seed, 5000));
    }
    let first = receive_packet(&mut b);
    let second = receive_packet(&mut b);
    b.unlink(to_a);
    assert!(!b.has_links() && b.receive().is_none());
    assert_eq!(send_message(&mut b, to_a, 0, 0), Err(Full));
    assert_eq!(b.room(to_a), 0);
    drop(a);
    // Its place is not given away as long as somebody reads there.
    let mut c = Ring::open().expect("a ring");
    let (to_c, _) = connect(&mut b, &mut c);
    assert_ne!(to_c, to_a);
    check_packet(&b, to_a, &second, 1);
    b.release(second.frame);
    check_packet(&b, to_a, &first, 0);
    b.release(first.frame);
    // Now it is, under another name.
    let (again, _) = connect(&mut b, &mut c);
    assert_eq!((again.index, again.generation), (to_a.index, to_a.generation + 1));
    b.unlink(to_a);
    assert_eq!(b.links().count(), 2);
}

#[test]
fn a_frame_that_is_not_sent_costs_nothing() {
    let Pair { mut a, mut b, to_b, .. } = pair();
    for round in 0..200 {
        let frame = a.allocate(to_b, 60_000).expect("room");
        if round % 2 == 0 {
            a.release(frame);
        }
    }
    assert_eq!((a.room(to_b), a.unsent()), (MOST_PAYLOAD, 0));
    assert!(b.receive().is_none());
}

#[test]
fn a_mac_address_names_a_link_and_back() {
    let id = LinkId { index: 0x1234, generation: 0xabcd };
    assert_eq!(LinkId::from_mac(id.mac()), Some(id));
    assert_eq!(LinkId::from_mac([0; 6]), None);
    assert_eq!(LinkId::from_mac([0xff; 6]), None);
}

#[test]
fn only_a_sealed_segment_of_the_right_kind_is_taken() {
    use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let size =
        rustix::fs::fstat(Segment::create().expect("a segment").fd()).expect("fstat").st_size;
    let refusal = |fd: rustix::fd::OwnedFd| {
        let error = Segment::take(Fd::adopt(fd).expect("a high number")).err();
        error.expect("it must be refused").to_string()
    };
    let memfd = |len: i64, seals: SealFlags, content: &[u8]| {
        let fd = memfd_create(c"other", MemfdFlags::ALLOW_SEALING).expect("memfd");
        ftruncate(&fd, len as u64).expect("ftruncate");
        rustix::io::pwrite(&fd, content, 0).expect("pwrite");
        fcntl_add_seals(&fd, seals).expect("seals");
        fd
    };
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let mut header = [0; 24];
    rustix::io::pread(Segment::create().expect("a segment").fd(), &mut header, 0).expect("pread");

    let file = rustix::fs::open("/proc/self/exe", OFlags::RDONLY, 0.into()).expect("open");
    assert!(refusal(file).contains("not a memfd"));
    let (pipe, _) = rustix::pipe::pipe().expect("pipe");
    assert!(refusal(pipe).contains("not a memfd"));
    assert!(refusal(memfd(size, SealFlags::GROW, &header)).contains("not sealed"));
    assert!(refusal(memfd(size - 1, all, &header)).contains("size of a link"));
    assert!(refusal(memfd(size + 1, all, &header)).contains("size of a link"));
    assert!(refusal(memfd(size, all, b"something")).contains("another version"));
    let read_only = memfd(size, all | SealFlags::WRITE, &header);
    assert!(refusal(read_only).contains("mmap"));
    assert!(Segment::take(Fd::adopt(memfd(size, all, &header)).expect("fd")).is_ok());
}

#[test]
fn only_what_a_peer_made_for_it_is_taken_for_a_bell() {
    let mut ring = Ring::open().expect("a ring");
    let (_read, write) = rustix::pipe::pipe().expect("pipe");
    let bell = Fd::adopt(write).expect("a high number");
    assert!(ring.link(Segment::create().expect("a segment"), Side::Maker, bell).is_err());
    assert!(!ring.has_links());
}
