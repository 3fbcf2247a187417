//! Bells of threads, between two rings of one process.

use std::sync::Arc;

use rustix::fd::{AsFd, AsRawFd};

use super::super::lane::{BELLS, COMMON, Reader};
use super::super::own_bells::RESEND_NANOS;
use super::*;
use crate::sys::wait::poll_now;

/// Descriptors on which a thread of `ring` sleeps, and whether nothing has come; None if it lacks a bell.
fn arm(ring: &mut Ring, number: usize) -> Option<(Vec<i32>, bool)> {
    let mut bells = Vec::new();
    let arming = ring.arm_own_bell(number, |bell| bells.push(bell.as_fd().as_raw_fd()));
    arming.hears_all.then_some((bells, arming.is_quiet))
}

fn rings(bells: &[i32]) -> bool {
    bells.iter().any(|bell| poll_now(*bell, libc::POLLIN) != 0)
}

/// Gives `b`'s threads their bells, as the rendezvous does.
fn give_bells(a: &mut Ring, b: &mut Ring, to_b: LinkId, numbers: &[usize]) {
    for number in numbers {
        assert!(arm(b, *number).is_none());
        assert!(b.wants_bells());
    }
    while let Some((_, number, bell)) = b.make_bell() {
        a.take_bell(to_b, number, duplicate(bell.as_fd()));
    }
    assert!(!b.wants_bells());
}

fn send_data(ring: &mut Ring, link: LinkId, connection: u32) {
    send_message(ring, link, 1, 8).expect("room");
    ring.address(link, connection);
    ring.kick();
}

fn take(ring: &mut Ring) {
    match ring.receive() {
        Some(Arrival::Message { payload, .. }) => {
            if let Some(received) = payload {
                ring.release(received.frame);
            }
        }
        other => panic!("a message, not {other:?}"),
    }
}

#[test]
fn data_wakes_the_thread_that_reads_it_and_all_else_the_one_that_guards() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1, 2]);
    b.set_reader(to_a, 7, Reader::Alone(1));
    b.set_reader(to_a, 8, Reader::First(2));
    for _ in 0..3 {
        let (first, second) = (arm(&mut b, 1).unwrap(), arm(&mut b, 2).unwrap());
        assert!(first.1 && second.1, "quiet");
        b.settle();
        assert!(!rings(&first.0) && !rings(&second.0) && !is_rung(&b));
        send_data(&mut a, to_b, 7);
        assert!(rings(&first.0) && !rings(&second.0) && !is_rung(&b));
        send_data(&mut a, to_b, 8);
        assert!(rings(&second.0) && !is_rung(&b));
        // The first one is awake: data for it wakes nobody, data that others read, too, the guard.
        send_data(&mut a, to_b, 7);
        assert!(!is_rung(&b));
        send_data(&mut a, to_b, 9);
        assert!(is_rung(&b));
        (0..4).for_each(|_| take(&mut b));
        b.disarm_own_bell(1);
        b.disarm_own_bell(2);
    }
}

#[test]
fn a_thread_hears_all_while_none_guards() {
    let Pair { mut a, mut b, to_b, .. } = pair();
    give_bells(&mut a, &mut b, to_b, &[3]);
    b.settle();
    let (bells, _) = arm(&mut b, 3).unwrap();
    b.silence_common_bell();
    assert!(send_packet(&mut a, to_b, 1, 60));
    a.kick();
    assert!(rings(&bells) && !is_rung(&b));
    assert!(b.has_waiting() && !arm(&mut b, 3).unwrap().1, "it is not to sleep");
}

#[test]
fn a_bell_that_rang_is_silent_in_the_next_sleep() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    b.set_reader(to_a, 0, Reader::Alone(1));
    for _ in 0..5 {
        let (bells, quiet) = arm(&mut b, 1).unwrap();
        assert!(quiet && !rings(&bells));
        send_data(&mut a, to_b, 0);
        assert!(rings(&bells));
        let arrival = b.receive().expect("a message");
        // While the record is dealt with it is known what it has rung.
        assert!(!b.has_rung(1));
        b.begin_arrival(&arrival);
        assert!(b.has_rung(1) && !b.has_rung(2) && b.has_rung(COMMON as usize));
        b.end_arrival();
        assert!(!b.has_rung(1));
        if let Arrival::Message { payload: Some(received), .. } = arrival {
            b.release(received.frame);
        }
        b.disarm_own_bell(1);
    }
}

#[test]
fn a_thread_that_got_anothers_number_has_none_of_its_connections() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    b.set_reader(to_a, 5, Reader::Alone(1));
    b.forget_own_bell(1);
    b.settle();
    send_data(&mut a, to_b, 5);
    assert!(is_rung(&b));
}

#[test]
fn the_only_readers_data_is_found_when_another_thread_reads_from_now_on() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    assert!(!b.set_reader(to_a, 5, Reader::Alone(1)));
    arm(&mut b, 1).expect("a bell");
    b.disarm_own_bell(1);
    b.settle();
    send_data(&mut a, to_b, 5);
    assert!(!is_rung(&b));
    assert!(b.set_reader(to_a, 5, Reader::Unknown), "somebody is to be woken");
}

#[test]
fn numbers_beyond_the_last_bell_are_nobodys() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    assert!(arm(&mut b, BELLS).is_none() && arm(&mut b, usize::MAX).is_none());
    b.set_reader(to_a, 1, Reader::Alone(u32::MAX));
    b.set_reader(to_a, u32::MAX, Reader::Alone(1));
    b.settle();
    send_data(&mut a, to_b, 1);
    assert!(is_rung(&b));
    let bell = || Bell::make().expect("a bell").rings;
    for number in [COMMON, BELLS as u32, u32::MAX] {
        assert!(a.take_bell(to_b, number, bell()).is_some(), "it is given back");
    }
    let (read, _) = rustix::pipe::pipe().expect("a pipe");
    assert!(check_bell(&Fd::adopt(read).expect("a number")).is_err());
}

#[test]
fn with_many_links_threads_sleep_on_the_common_bell() {
    let Pair { mut a, mut b, to_b, .. } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    assert!(arm(&mut b, 1).is_some());
    b.disarm_own_bell(1);
    let mut peers: Vec<Ring> = (0..4).map(|_| Ring::open().expect("a ring")).collect();
    for peer in &mut peers {
        connect(peer, &mut b);
    }
    assert!(arm(&mut b, 1).is_none() && !b.wants_bells());
}

#[test]
fn the_only_reader_without_a_bell_leaves_its_data_to_the_guard() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    // No bell was ever made, or the peer has not said that it can ring it.
    b.set_reader(to_a, 7, Reader::Alone(1));
    assert!(arm(&mut b, 1).is_none());
    b.settle();
    send_data(&mut a, to_b, 7);
    assert!(is_rung(&b), "bell 1 was never armed");
    take(&mut b);
    let lost = b.make_bell();
    assert!(lost.is_some());
    assert!(arm(&mut b, 1).is_none());
    b.settle();
    send_data(&mut a, to_b, 7);
    assert!(is_rung(&b), "bell 1 was lost on its way");
}

#[test]
fn with_more_links_than_bells_the_only_reader_leaves_its_data_to_the_guard() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    b.set_reader(to_a, 7, Reader::Alone(1));
    assert!(arm(&mut b, 1).is_some());
    b.disarm_own_bell(1);
    let mut peers: Vec<Ring> = (0..4).map(|_| Ring::open().expect("a ring")).collect();
    for peer in &mut peers {
        connect(peer, &mut b);
    }
    assert!(arm(&mut b, 1).is_none());
    b.settle();
    send_data(&mut a, to_b, 7);
    assert!(is_rung(&b));
}

#[test]
fn a_full_link_wakes_a_thread_whoever_reads_what_is_in_it() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    b.set_reader(to_a, 7, Reader::Alone(1));
    arm(&mut b, 1).expect("a bell");
    send_data(&mut a, to_b, 7);
    b.disarm_own_bell(1);
    // Another thread guards the ring. The reader computes, and takes nothing.
    take(&mut b);
    b.settle();
    send_data(&mut a, to_b, 7);
    assert!(!is_rung(&b));
    while send_message(&mut a, to_b, 1, 8).is_ok() {
        a.address(to_b, 7);
    }
    assert!(is_rung(&b), "nothing more can be sent");
}

#[test]
fn a_link_that_is_half_full_wakes_a_thread() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    b.set_reader(to_a, 7, Reader::Alone(1));
    arm(&mut b, 1).expect("a bell");
    b.disarm_own_bell(1);
    b.settle();
    let sent = (0..1024).take_while(|_| {
        send_data(&mut a, to_b, 7);
        !is_rung(&b)
    });
    let sent = sent.count();
    assert!((400..600).contains(&sent), "{sent}");
}

#[test]
fn on_a_link_with_a_bell_a_thread_finds_what_was_left_to_it_though_another_link_has_none() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    b.set_reader(to_a, 7, Reader::Alone(1));
    arm(&mut b, 1).expect("a bell");
    b.disarm_own_bell(1);
    let mut another = Ring::open().expect("a ring");
    let (to_b_too, to_another) = connect(&mut another, &mut b);
    b.set_reader(to_another, 7, Reader::Alone(1));
    b.settle();
    send_data(&mut a, to_b, 7);
    assert!(!is_rung(&b), "it attends");
    let arming = b.arm_own_bell(1, |_| {});
    assert!(!arming.hears_all && !arming.is_quiet, "it was to look");
    take(&mut b);
    // The link without a bell rings the guard.
    send_data(&mut another, to_b_too, 7);
    assert!(is_rung(&b));
}

#[test]
fn a_thread_that_sleeps_without_its_bell_finds_what_was_left_to_it() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    b.set_reader(to_a, 7, Reader::Alone(1));
    arm(&mut b, 1).expect("a bell");
    b.disarm_own_bell(1);
    b.settle();
    send_data(&mut a, to_b, 7);
    assert!(!is_rung(&b));
    let mut peers: Vec<Ring> = (0..4).map(|_| Ring::open().expect("a ring")).collect();
    for peer in &mut peers {
        connect(peer, &mut b);
    }
    assert!(!b.arm_own_bell(1, |_| {}).is_quiet);
    take(&mut b);
    send_data(&mut a, to_b, 7);
    assert!(is_rung(&b), "it attends no more");
}

#[test]
fn a_bell_that_did_not_arrive_is_sent_again() {
    let Pair { mut a, mut b, to_b, .. } = pair();
    assert!(arm(&mut b, 1).is_none() && b.wants_bells());
    let (_, _, lost) = b.make_bell().expect("a bell");
    assert!(b.make_bell().is_none());
    assert!(arm(&mut b, 1).is_none() && !b.wants_bells(), "not at once");
    std::thread::sleep(core::time::Duration::from_nanos(RESEND_NANOS));
    assert!(arm(&mut b, 1).is_none() && b.wants_bells());
    let (_, number, again) = b.make_bell().expect("a bell");
    assert!(Arc::ptr_eq(&lost, &again));
    for bell in [&again, &lost] {
        a.take_bell(to_b, number, duplicate(bell.as_fd()));
    }
    let (bells, _) = arm(&mut b, 1).expect("a bell");
    b.silence_common_bell();
    assert!(send_packet(&mut a, to_b, 1, 60));
    a.kick();
    assert!(rings(&bells));
}

#[test]
fn what_was_left_to_a_thread_is_found_when_its_number_is_anothers() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    b.set_reader(to_a, 7, Reader::Alone(1));
    assert!(!b.forget_own_bell(1), "nothing has come");
    b.set_reader(to_a, 7, Reader::Alone(1));
    arm(&mut b, 1).expect("a bell");
    b.disarm_own_bell(1);
    b.settle();
    send_data(&mut a, to_b, 7);
    assert!(!is_rung(&b));
    assert!(b.forget_own_bell(1), "somebody is to be woken");
}

#[test]
fn a_bell_that_rang_is_unseen_until_the_ring_was_found_empty() {
    let Pair { mut a, mut b, to_b, to_a } = pair();
    give_bells(&mut a, &mut b, to_b, &[1]);
    b.set_reader(to_a, 7, Reader::First(1));
    b.settle();
    arm(&mut b, 1).expect("a bell");
    b.disarm_own_bell(1);
    assert!(!b.has_unseen());
    arm(&mut b, 1).expect("a bell");
    send_data(&mut a, to_b, 7);
    assert!(!is_rung(&b) && !b.has_unseen());
    // The thread's time is up: it leaves without a look.
    b.disarm_own_bell(1);
    assert!(b.has_unseen());
    take(&mut b);
    assert!(b.receive().is_none() && !b.has_unseen());
    send_data(&mut a, to_b, 7);
    assert!(is_rung(&b) && !b.has_unseen(), "it has rung the guard");
}
