//! One of the two processes is killed, or ends, at any step: the other reads a beginning of what was sent, a
//! clean end only behind all of it, and is told of bytes of its own that nobody has read.

use proptest::prelude::*;

use super::host::{Host, hosts};

/// A step of one side.
#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Receive(usize),
    /// Takes messages, and does not come to what follows from them in the kernel.
    Take(usize),
    Deliver(usize),
    Relieve,
    Tend,
    Shut,
    Stop,
    Limit(u64),
    /// So many records find room in its link from now on.
    Room(usize),
    /// The kernel's connection takes so many bytes.
    KernelRoom(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop_oneof![Just(1usize), 1..100usize, 1..3000usize].prop_map(Step::Send),
        5 => (1..4000usize).prop_map(Step::Receive),
        4 => (1..5usize).prop_map(Step::Take),
        4 => (1..5usize).prop_map(Step::Deliver),
        1 => Just(Step::Relieve),
        2 => Just(Step::Tend),
        1 => Just(Step::Shut),
        1 => Just(Step::Stop),
        1 => (0..20_000u64).prop_map(Step::Limit),
        1 => (9..64usize).prop_map(Step::Room),
        1 => prop_oneof![Just(usize::MAX), 1..2000usize].prop_map(Step::KernelRoom),
    ]
}

/// Ways to end.
#[derive(Clone, Copy, Debug)]
enum Way {
    Killed,
    Exits,
    /// It has time to leave its half of the kernel's connection.
    Leaves,
}

/// Beginnings of a connection.
#[derive(Clone, Copy, Debug)]
enum Beginning {
    Offered,
    /// The offer comes after accept().
    Late,
}

fn take_step(host: &mut Host, step: &Step, side: u8) {
    match *step {
        Step::Send(count) if !host.shut => {
            let at = host.sent.len();
            let bytes = (at..at + count).map(|at| (at % 253) as u8 ^ side).collect::<Vec<_>>();
            host.send(&bytes);
        }
        Step::Send(_) => {}
        Step::Receive(room) => {
            host.receive(room);
        }
        Step::Take(count) => {
            let _ = (0..count).all(|_| host.take_message());
        }
        Step::Deliver(count) => {
            let _ = (0..count).all(|_| host.deliver());
        }
        Step::Relieve => host.relieve(),
        Step::Tend => {
            host.tend();
        }
        Step::Shut if !host.shut => host.shut(),
        Step::Shut => {}
        Step::Stop => host.stop(),
        Step::Limit(limit) => host.with(|pipe, carrier| pipe.set_limit(carrier, limit)),
        Step::Room(most) => host.carrier.most = most,
        Step::KernelRoom(room) => host.kernel_room = room,
    }
}

fn begin(beginning: Beginning) -> [Host; 2] {
    let (mut client, mut server) = hosts();
    match beginning {
        Beginning::Offered => {
            client.offer(10_000);
            while server.deliver() {}
            assert!(server.accept(10_000));
        }
        Beginning::Late => {
            client.seek(10_000);
            server.accept_early(10_000);
            client.offer_late(10_000);
        }
    }
    [client, server]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_survivor_is_not_deceived(
        late in any::<bool>(),
        before in prop::collection::vec((0..2usize, step()), 0..120),
        victim in 0..2usize,
        way in prop_oneof![Just(Way::Killed), Just(Way::Exits), Just(Way::Leaves)],
        after in prop::collection::vec(step(), 0..20),
        hands_on in any::<bool>(),
    ) {
        let mut hosts = begin(if late { Beginning::Late } else { Beginning::Offered });
        for (side, step) in &before {
            take_step(&mut hosts[*side], step, *side as u8 * 0x55);
        }
        let [one, other] = &mut hosts;
        let (gone, left) = if victim == 0 { (one, other) } else { (other, one) };
        let has_left = match way {
            Way::Killed => {
                gone.kill();
                false
            }
            Way::Exits => {
                gone.exit();
                false
            }
            Way::Leaves => gone.exit_leaving(left),
        };
        for step in &after {
            take_step(left, step, (1 - victim as u8) * 0x55);
        }
        left.lose_link();
        left.kernel_room = usize::MAX;
        left.tend();
        let both_told = gone.knew_both_ends || left.pipe().are_both_told();
        if hands_on {
            left.hand_on();
        }
        let read_out = |left: &mut Host| {
            while left.receive(1000) > 0 {}
            left.receive(1000);
        };
        read_out(left);
        read_out(left);
        prop_assert!(gone.sent.starts_with(&left.got), "not what was sent");
        prop_assert!(left.sent.starts_with(&gone.got), "not what was sent, to the other");
        let place = left.describe();
        prop_assert!(left.at_end || left.sees_reset(), "waits for ever: {place}");
        let all = left.got.len() == gone.sent.len();
        prop_assert!(!left.at_end || all, "an end before the end: {} of {}", left.got.len(), gone.sent.len());
        if has_left && gone.got.len() == left.sent.len() {
            prop_assert!(all && left.at_end, "{} of {}: {place}", left.got.len(), gone.sent.len());
        }
        // Behind both ends nothing is told of them, as on Linux. A process that gets the connection learns when it sends.
        if gone.got.len() < left.sent.len() && !both_told && left.index.is_some() {
            prop_assert!(left.sees_reset(), "bytes are lost, and no error is told: {place}");
        }
    }
}

/// Bytes that wait for room in the link, to be given back, are not forgotten when the kernel's connection ends.
#[test]
fn a_peer_that_is_killed_before_all_was_given_back_makes_no_clean_end() {
    let [mut gone, mut left] = begin(Beginning::Offered);
    gone.receive(1);
    gone.send(&[1]);
    left.send(&[2]);
    left.send(&[3]);
    assert!(gone.take_message());
    gone.send(&[4]);
    gone.stop();
    left.carrier.most = 9;
    assert_eq!(left.receive(1), 1);
    gone.kill();
    left.receive(1);
    left.receive(1);
    assert!(left.failed && !left.at_end, "{} of {}", left.got.len(), gone.sent.len());
}
