//! Threads of one process that wait, and another process's link to it.

use rustix::fd::BorrowedFd;

use super::*;
use crate::device::shm::Rank;
use crate::shard::{LinkId, Segment, Shard, Side};
use crate::sys::Fd;
use crate::sys::wait::poll_now;

#[test]
fn a_set_is_one_threads_until_it_has_changed_hands_a_few_times() {
    let mut waiters = Waiters::default();
    assert!(!waiters.change(SleeperId(1)) && !waiters.change(SleeperId(1)));
    // The thread that made it hands it to a worker.
    assert!(waiters.change(SleeperId(2)) && waiters.is_only(SleeperId(2)));
    // Another one that sleeps there still: the last one's next sleep would be no change.
    assert!(!waiters.is_only(SleeperId(1)) && !waiters.change(SleeperId(2)));
    assert!(waiters.change(SleeperId(1)) && waiters.change(SleeperId(2)));
    assert!(!waiters.is_only(SleeperId(2)) && !waiters.change(SleeperId(1)));
}

/// The connection that the peer sends data of.
const CONNECTION: u32 = 3;

struct Pair {
    peer: Shard<()>,
    to_own: LinkId,
    own: Shard<()>,
    to_peer: LinkId,
}

fn duplicate(fd: BorrowedFd<'_>) -> Fd {
    Fd::adopt(rustix::io::dup(fd).unwrap()).unwrap()
}

fn pair() -> Pair {
    let (peer, own) = (Shard::default(), Shard::default());
    peer.open_local_ring().unwrap();
    own.open_local_ring().unwrap();
    let made = Segment::create().unwrap();
    let taken = Segment::take(duplicate(made.fd())).unwrap();
    let (here, there) = (duplicate(made.bell()), duplicate(taken.bell()));
    let link = |shard: &Shard<()>, segment, side, bell| {
        shard.lock().unwrap().local_ring().unwrap().link(segment, side, bell).unwrap()
    };
    let to_own = link(&peer, made, Side::Maker, there);
    let to_peer = link(&own, taken, Side::Taker, here);
    Pair { peer, to_own, own, to_peer }
}

impl Pair {
    /// A sleeper of the calling thread, with a bell, and the descriptor of its waker.
    fn sleeper_with_bell(&self) -> (SleeperId, i32) {
        let mut state = self.own.lock().unwrap();
        let (sleeper, waker) = state.new_sleeper().unwrap();
        state.sleepers[sleeper.0 as usize].has_bells = true;
        state.arm_own_bells(sleeper, &mut |_| ());
        let ring = state.local_ring().unwrap();
        assert!(ring.wants_bells());
        let (_, number, bell) = ring.make_bell().unwrap();
        let mut peer = self.peer.lock().unwrap();
        let bell = duplicate(bell.as_fd());
        peer.local_ring().unwrap().take_bell(self.to_own, number, bell);
        (sleeper, waker)
    }

    fn set_reader(&self, reader: Reader) {
        self.own.lock().unwrap().local_ring().unwrap().set_reader(self.to_peer, CONNECTION, reader);
    }

    /// A message that means nothing.
    fn send_data(&self) {
        let mut peer = self.peer.lock().unwrap();
        let ring = peer.local_ring().unwrap();
        ring.send_message(self.to_own, 0x70, [0; 3], 0, Rank::Usual, |_| ()).unwrap();
        ring.address(self.to_own, CONNECTION);
        ring.kick();
    }
}

/// Another thread begins to sleep; what it sleeps on.
fn another_sleeps(own: &Shard<()>) -> (SleeperId, Vec<i32>) {
    let sleeps = || {
        let mut state = own.lock().unwrap();
        let (sleeper, waker) = state.new_sleeper().unwrap();
        let mut on = vec![waker];
        state.guard_rings(sleeper, |fd| on.push(fd));
        (sleeper, on)
    };
    std::thread::scope(|scope| scope.spawn(sleeps).join().unwrap())
}

fn is_woken(on: &[i32]) -> bool {
    on.iter().any(|fd| poll_now(*fd, libc::POLLIN) != 0)
}

fn bell_number(sleeper: SleeperId) -> u32 {
    number(sleeper) as u32
}

#[test]
fn what_rang_a_thread_that_leaves_without_a_look_wakes_another() {
    let pair = pair();
    let (sleeper, _) = pair.sleeper_with_bell();
    let (_, guard) = another_sleeps(&pair.own);
    pair.set_reader(Reader::First(bell_number(sleeper)));
    let mut state = pair.own.lock().unwrap();
    state.guard_rings(sleeper, |_| ());
    drop(state);
    pair.send_data();
    assert!(!is_woken(&guard));
    // A time-out, or a signal.
    let mut state = pair.own.lock().unwrap();
    state.end_sleeper(sleeper);
    state.hand_over_rings();
    drop(state);
    assert!(is_woken(&guard));
}

#[test]
fn a_sleep_that_a_thread_has_left_hears_nothing() {
    let pair = pair();
    let (sleeper, _) = pair.sleeper_with_bell();
    let (_, guard) = another_sleeps(&pair.own);
    pair.set_reader(Reader::First(bell_number(sleeper)));
    let mut state = pair.own.lock().unwrap();
    state.guard_rings(sleeper, |_| ());
    // By longjmp out of a signal handler; then it sleeps elsewhere.
    let (inner, waker) = state.new_sleeper().unwrap();
    assert_ne!(inner, sleeper);
    state.guard_rings(inner, |_| ());
    drop(state);
    pair.send_data();
    assert!(is_woken(&guard) || is_woken(&[waker]));
}

#[test]
fn the_internal_thread_is_woken_for_data_that_was_left_to_a_thread() {
    let pair = pair();
    let (sleeper, _) = pair.sleeper_with_bell();
    pair.set_reader(Reader::Alone(bell_number(sleeper)));
    let mut state = pair.own.lock().unwrap();
    state.guard_rings(sleeper, |_| ());
    state.end_sleeper(sleeper);
    let mut on = Vec::new();
    state.sleep_on_all(|fd| on.push(fd));
    drop(state);
    assert!(!is_woken(&on));
    pair.send_data();
    assert!(is_woken(&on));
}

#[test]
fn the_internal_thread_is_woken_at_once_for_data_that_is_there() {
    let pair = pair();
    let (sleeper, _) = pair.sleeper_with_bell();
    pair.set_reader(Reader::Alone(bell_number(sleeper)));
    let mut state = pair.own.lock().unwrap();
    state.guard_rings(sleeper, |_| ());
    state.end_sleeper(sleeper);
    drop(state);
    pair.send_data();
    let mut on = Vec::new();
    pair.own.lock().unwrap().sleep_on_all(|fd| on.push(fd));
    assert!(is_woken(&on));
}

#[test]
fn a_record_that_a_receiver_takes_itself_has_woken_nobody_for_what_comes_later() {
    let pair = pair();
    let mut state = pair.own.lock().unwrap();
    let socket = state.attach((), 9);
    drop(state);
    let (guard, _) = another_sleeps(&pair.own);
    pair.send_data();
    let mut state = pair.own.lock().unwrap();
    let mut room = [0; 9];
    let out = &mut [std::io::IoSliceMut::new(&mut room)];
    assert!(state.take_from_links(socket, out).is_none());
    assert!(!state.is_rung_for(guard));
}

#[test]
fn a_thread_that_lacks_a_bell_is_said_to_once() {
    let pair = pair();
    let mut state = pair.own.lock().unwrap();
    let (sleeper, _) = state.new_sleeper().unwrap();
    state.guard_rings(sleeper, |_| ());
    assert!(!state.lacks_bells(), "it waits for no connection");
    state.sleepers[sleeper.0 as usize].has_bells = true;
    state.arm_own_bells(sleeper, &mut |_| ());
    assert!(state.lacks_bells() && !state.lacks_bells());
}

#[test]
fn a_sleep_below_a_handler_that_slept_looks_again() {
    let pair = pair();
    let (outer, waker) = pair.sleeper_with_bell();
    let mut state = pair.own.lock().unwrap();
    state.guard_rings(outer, |_| ());
    // The handler runs between this and the system call.
    let (inner, _) = state.new_sleeper().unwrap();
    state.guard_rings(inner, |_| ());
    state.end_sleeper(inner);
    state.hand_over_rings();
    drop(state);
    assert!(is_woken(&[waker]));
}

#[test]
fn a_look_that_a_change_of_readers_owes_is_not_forgotten() {
    let pair = pair();
    let (reader, _) = pair.sleeper_with_bell();
    pair.set_reader(Reader::Alone(bell_number(reader)));
    let (_, guard) = another_sleeps(&pair.own);
    let mut state = pair.own.lock().unwrap();
    state.guard_rings(reader, |_| ());
    state.end_sleeper(reader);
    drop(state);
    pair.send_data();
    assert!(!is_woken(&guard), "it is left to the reader");
    let mut state = pair.own.lock().unwrap();
    let ring = state.local_ring().unwrap();
    assert!(ring.set_reader(pair.to_peer, CONNECTION, Reader::Unknown));
    // Whoever was woken for that leaves without a look.
    state.hand_over_rings();
    drop(state);
    assert!(is_woken(&guard));
}

#[test]
fn the_common_bell_of_a_guard_that_was_replaced_rings_no_more() {
    let pair = pair();
    let (guard, _) = another_sleeps(&pair.own);
    let (sleeper, waker) = pair.sleeper_with_bell();
    let mut state = pair.own.lock().unwrap();
    let mut on = vec![waker];
    state.guard_rings(sleeper, |fd| on.push(fd));
    state.replace_listener();
    state.end_sleeper(guard);
    state.hand_over_rings();
    drop(state);
    pair.send_data();
    assert!(is_woken(&on));
}
