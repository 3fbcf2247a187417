use std::io::{Write, pipe};
use std::os::fd::AsRawFd;

use super::*;

fn calm() -> bool {
    false
}

/// The steps of a wait after so many misses.
fn after(wait: &mut Wait, misses: usize) -> Vec<Next> {
    let load = Load::unknown();
    (0..misses).map(|_| wait.after_miss(&load, calm)).collect()
}

#[test]
fn minus_one_is_for_ever_and_the_longest_time_does_not_wrap() {
    assert!(Patience::loops(-1).is_endless() && Patience::micros(-1).is_endless());
    assert!(matches!(Patience::loops(7), Patience::Loops(7)));
    assert!(matches!(Patience::micros(7), Patience::Nanos(7000)));
    assert!(matches!(Patience::micros(i64::MAX), Patience::Nanos(u64::MAX)));
    assert!(matches!(Patience::Nanos(5).without_polling(), Patience::Loops(0)));
    assert!(Patience::Endless.without_polling().is_endless(), "it was told to poll");
}

#[test]
fn a_wait_polls_so_often_and_then_sleeps() {
    let mut wait = Wait::new(Patience::Loops(3), None, false);
    assert_eq!(after(&mut wait, 3), [Next::PollAgain, Next::PollAgain, Next::Sleep]);
    let mut none = Wait::new(Patience::Loops(0), None, false);
    assert_eq!(after(&mut none, 1), [Next::Sleep]);
    let mut timed = Wait::new(Patience::Nanos(0), None, false);
    let polled = after(&mut timed, FIRST_LOOK as usize);
    assert_eq!(polled.last(), Some(&Next::Sleep), "the clock is read at the first look");
}

#[test]
fn a_deadline_that_is_over_outweighs_the_sleep() {
    let mut wait = Wait::new(Patience::Loops(1), Some(0), false);
    assert_eq!(after(&mut wait, 1), [Next::TimedOut]);
    let mut long = Wait::new(Patience::Loops(1), Some(u64::MAX), false);
    assert_eq!(after(&mut long, 1), [Next::Sleep], "it does not wrap");
}

/// signal(7): the handler may have run at any moment since the call began.
#[test]
fn a_handler_that_has_run_ends_the_wait_before_anything_else() {
    let now = thread::interruptions(false);
    let mut wait = Wait::new(Patience::Loops(1), Some(0), false).since(now.wrapping_sub(1));
    assert_eq!(after(&mut wait, 1), [Next::Interrupted]);
    let set = &mut PollSet::default();
    assert_eq!(wait.sleep(set, None, None), Next::Interrupted, "without a system call");
}

/// The thread that is waited for may need this very CPU.
#[test]
fn a_wait_for_a_thread_without_a_cpu_sleeps_at_the_next_look() {
    let mut wait = Wait::new(Patience::Loops(u64::MAX), None, false);
    let load = Load::unknown();
    let next: Vec<Next> = (0..FIRST_LOOK).map(|_| wait.after_miss(&load, || true)).collect();
    let (last, before) = next.split_last().unwrap();
    assert_eq!(*last, Next::Sleep);
    assert!(before.iter().all(|next| *next == Next::PollAgain), "the question costs a load");
}

/// A thread that wakes for what others wait for would poll after each wake-up.
#[test]
fn sleeps_in_vain_end_the_polling_but_not_if_it_is_to_be_endless() {
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(b"x").unwrap();
    for (patience, expected) in
        [(Patience::Loops(1000), Next::Sleep), (Patience::Endless, Next::PollAgain)]
    {
        let mut wait = Wait::new(patience, None, false);
        for sleep in 0..SLEEPS_IN_VAIN {
            assert_eq!(after(&mut wait, 1), [Next::PollAgain], "{sleep}");
            let set = &mut PollSet::default();
            set.add_readable(reader.as_raw_fd());
            assert_eq!(wait.sleep(set, None, None), Next::PollAgain);
        }
        assert_eq!(after(&mut wait, 1), [expected], "{patience:?}");
    }
}

#[test]
fn a_timer_of_a_connection_is_no_timeout_of_the_call() {
    let (reader, _writer) = pipe().unwrap();
    let past = clock::now().as_nanos();
    let sleep = |timeout: Option<u64>, bound: Option<u64>| {
        let mut wait = Wait::new(Patience::Loops(1000), timeout, false);
        let set = &mut PollSet::default();
        set.add_readable(reader.as_raw_fd());
        let next = wait.sleep(set, None, bound);
        (next, wait.sleeps_in_vain)
    };
    assert_eq!(sleep(None, Some(past)), (Next::PollAgain, 0));
    assert_eq!(sleep(Some(0), None).0, Next::TimedOut);
    assert_eq!(sleep(Some(u64::MAX), Some(past)), (Next::PollAgain, 0));
}

/// A wait that gives turns and sleeps all the same is slower than one that sleeps at once.
#[test]
fn turns_in_vain_let_the_next_waits_sleep_at_once_and_paid_ones_do_not() {
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(b"x").unwrap();
    let with_a_turn = || {
        let mut wait = Wait::new(Patience::Loops(1000), None, false);
        wait.is_crowded = true;
        assert_eq!(wait.give_turn(), Next::PollAgain);
        wait
    };
    let in_vain = || {
        let set = &mut PollSet::default();
        set.add_readable(reader.as_raw_fd());
        with_a_turn().sleep(set, None, None);
    };
    for _ in 0..3 {
        in_vain();
    }
    with_a_turn().found();
    for _ in 0..3 {
        in_vain();
    }
    assert_eq!(contention::pause_of_turns(), 0, "three of them are chance");
    in_vain();
    let pause = contention::pause_of_turns();
    assert!(pause > 0);
    let mut next = Wait::new(Patience::Loops(1000), None, false);
    let began = clock::now().as_nanos();
    let said = next.give_turn();
    let is_late = clock::now().as_nanos() - began > pause / 2;
    assert!(said == Next::Sleep || is_late, "it sleeps at once");
    next.turns = TURNS - 1;
    next.found();
    assert!(contention::pause_of_turns() < pause);
}
