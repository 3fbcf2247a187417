use super::*;
use crate::shard::Shard;

/// One call that finds `ours` while it polls, or having slept, and returns `result`.
fn call(calls: &Calls, ours: usize, sleeps: bool, result: Result<usize, i32>) {
    let shard: Shard<Socket> = Shard::default();
    let state = shard.lock().unwrap();
    let mut counting = Counting::begin(calls, 77);
    counting.found_ours(&state, 0);
    counting.missed();
    if sleeps {
        counting.sleeps();
        counting.wakes();
    }
    counting.found_ours(&state, ours);
    counting.end(&result);
}

// covers: STAT-25, STAT-38
#[test]
fn every_way_that_a_call_ends_is_counted_once() {
    let calls = Calls::default();
    let counted = |ours, sleeps, result| {
        calls.zero();
        call(&calls, ours, sleeps, result);
        let Multiplexer { poll_hits, poll_misses, timeouts, errors, ready, ready_os, .. } =
            calls.statistics();
        ([poll_hits, poll_misses, timeouts, errors], [ready, ready_os])
    };
    assert_eq!(counted(2, false, Ok(2)), ([1, 0, 0, 0], [2, 0]));
    assert_eq!(counted(2, true, Ok(2)), ([0, 1, 0, 0], [2, 0]));
    // The kernel's descriptors, alone and with ours.
    assert_eq!(counted(0, false, Ok(3)), ([1, 0, 0, 0], [0, 3]));
    assert_eq!(counted(0, true, Ok(3)), ([0, 1, 0, 0], [0, 3]));
    assert_eq!(counted(1, false, Ok(3)), ([1, 0, 0, 0], [1, 2]));
    assert_eq!(counted(0, false, Ok(0)), ([0, 0, 1, 0], [0, 0]));
    assert_eq!(counted(0, true, Ok(0)), ([0, 1, 1, 0], [0, 0]));
    assert_eq!(counted(0, true, Err(libc::EINTR)), ([0, 1, 0, 1], [0, 0]));
    assert_eq!(calls.statistics().thread, 77);
}

#[test]
fn a_call_that_sleeps_twice_missed_once() {
    let calls = Calls::default();
    let mut counting = Counting::begin(&calls, 1);
    for _ in 0..2 {
        counting.sleeps();
        counting.wakes();
    }
    counting.end(&Ok(0));
    assert_eq!(calls.statistics().poll_misses, 1);
}

// covers: STAT-42
#[test]
fn the_share_of_polling_is_that_of_the_last_full_second() {
    let polling = Polling::default();
    let start = 1000 * SECOND;
    assert_eq!(polling.share(start), 0);
    // The first call begins a second, 70 % of which is spent.
    polling.add(start, 0);
    for tenth in 1..=10 {
        polling.add(start + tenth * SECOND / 10, SECOND / 100 * 7);
    }
    let second = start + SECOND;
    assert_eq!(polling.share(second), 70);
    // In the one that runs nothing is told yet.
    polling.add(second + SECOND / 2, SECOND / 2);
    assert_eq!(polling.share(second + SECOND * 3 / 4), 70);
    polling.add(second + SECOND, SECOND / 2);
    assert_eq!(polling.share(second + SECOND), 100);
    // Nobody calls any more.
    assert_eq!(polling.share(second + 3 * SECOND), 0);
}

#[test]
fn of_two_threads_the_share_is_the_sum() {
    let polling = Polling::default();
    let start = 1000 * SECOND;
    polling.add(start, 0);
    polling.add(start + SECOND / 2, SECOND / 2);
    polling.add(start + SECOND / 2, SECOND / 2);
    polling.add(start + SECOND, SECOND / 2);
    polling.add(start + SECOND, SECOND / 2);
    // The second that is over has three halves; the last half belongs to the next.
    assert_eq!(polling.share(start + SECOND), 150);
}

#[test]
fn counts_of_many_threads_add_up() {
    let shard: Shard<Socket> = Shard::default();
    let calls = Calls::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let mut counting = Counting::begin(&calls, 1);
                    counting.found_ours(&shard.lock().unwrap(), 1);
                    counting.end(&Ok(2));
                }
            });
        }
    });
    let told = calls.statistics();
    assert_eq!((told.poll_hits, told.ready, told.ready_os), (4000, 4000, 4000));
}
