use std::fs::File;
use std::io::{PipeWriter, Write, pipe};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::*;
use crate::socket::fixture::stack;
use crate::socket::wait::Patience;
use crate::sys::thread::block_signals;

/// Something to wait for: a descriptor that becomes readable.
struct Pipe {
    descriptor: i32,
    timeout: Option<u64>,
    polls: u64,
    /// At so many of the next registrations there is news.
    missed: u32,
    /// Makes the descriptor readable when the call is about to sleep.
    ends_sleep: Option<PipeWriter>,
    rounds: Vec<Round>,
    asleep: u32,
    sleeps: u32,
    fired: bool,
}

impl Pipe {
    fn new(descriptor: i32, timeout: Option<u64>) -> Pipe {
        let rounds = Vec::new();
        Pipe {
            descriptor,
            timeout,
            polls: 0,
            missed: 0,
            ends_sleep: None,
            rounds,
            asleep: 0,
            sleeps: 0,
            fired: false,
        }
    }

    fn wakes(&self) -> usize {
        self.rounds.iter().filter(|round| **round == Round::Woken).count()
    }
}

impl<'a> Source<'a> for Pipe {
    type Found = ();

    fn look(&mut self, stack: &'a Stack, round: Round) -> Look<'a, ()> {
        self.rounds.push(round);
        assert_eq!(self.asleep, 0, "looked with a registration left");
        match crate::sys::wait::poll_now(self.descriptor, libc::POLLIN) {
            0 => Look::Nothing(stack.shard.lock().ok()),
            _ => Look::Found(()),
        }
    }

    fn wait(&mut self, _: &Stack, state: Option<&mut Guard<'_>>) -> Wait {
        assert!(state.is_some(), "the lock of the look is kept");
        Wait::new(Patience::Loops(self.polls), self.timeout, true)
    }

    fn enlist(&mut self, _: &mut Guard<'_>, _: SleeperId, descriptors: &mut PollSet) -> bool {
        self.asleep += 1;
        descriptors.add_readable(self.descriptor);
        if self.missed > 0 {
            self.missed -= 1;
            return false;
        }
        self.sleeps += 1;
        if let Some(mut writer) = self.ends_sleep.take() {
            writer.write_all(b"x").unwrap();
        }
        true
    }

    fn leave(&mut self, _: &mut Guard<'_>, _: SleeperId, descriptors: &[PollFd]) {
        self.asleep -= 1;
        self.fired |= descriptors.first().is_some_and(|entry| entry.revents != 0);
    }
}

/// Until so many threads sleep, or are about to.
fn until_asleep(stack: &Stack, count: usize) {
    while stack.shard.lock().unwrap().sleeping() < count {
        std::thread::yield_now();
    }
}

const MILLISECOND: u64 = 1_000_000;

/// A descriptor that is readable already.
fn readable() -> File {
    File::open("/dev/zero").unwrap()
}

#[test]
fn what_is_there_ends_the_call_at_the_first_look() {
    let file = readable();
    let mut source = Pipe::new(file.as_raw_fd(), None);
    assert_eq!(block(&stack(), &mut source, None), Ok(()));
    assert_eq!((source.rounds, source.sleeps), (vec![Round::First], 0));
}

#[test]
fn a_descriptor_of_the_source_ends_the_sleep() {
    let (reader, mut writer) = pipe().unwrap();
    let mut source = Pipe::new(reader.as_raw_fd(), None);
    let stack = stack();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| block(&stack, &mut source, None));
        until_asleep(&stack, 1);
        writer.write_all(b"x").unwrap();
        assert_eq!(call.join().unwrap(), Ok(()));
    });
    assert!(source.fired);
    assert_eq!(source.rounds.first(), Some(&Round::First));
    assert_eq!(source.rounds.last(), Some(&Round::Woken));
    assert_eq!(source.asleep, 0);
}

#[test]
fn it_polls_as_long_as_its_patience_lasts_and_then_sleeps() {
    let (reader, _writer) = pipe().unwrap();
    let mut source = Pipe::new(reader.as_raw_fd(), Some(5 * MILLISECOND));
    source.polls = 5;
    assert_eq!(block(&stack(), &mut source, None), Err(Over::TimedOut));
    // A busy processor makes it sleep sooner.
    let again = source.rounds.iter().filter(|round| **round == Round::Again).count();
    assert!((1..=9).contains(&again), "{:?}", source.rounds);
    assert_eq!((source.sleeps, source.fired), (1, false));
}

#[test]
fn it_lasts_as_long_as_the_time_out() {
    let (reader, _writer) = pipe().unwrap();
    let mut source = Pipe::new(reader.as_raw_fd(), Some(30 * MILLISECOND));
    let began = Instant::now();
    assert_eq!(block(&stack(), &mut source, None), Err(Over::TimedOut));
    assert!(began.elapsed() >= Duration::from_millis(30));
    assert_eq!((source.sleeps, source.asleep), (1, 0));
}

#[test]
fn news_at_the_last_moment_is_looked_at_instead_of_slept_over() {
    let (reader, writer) = pipe().unwrap();
    // A time-out might be over before the last of them, on a busy processor.
    let mut source = Pipe::new(reader.as_raw_fd(), None);
    (source.missed, source.ends_sleep) = (3, Some(writer));
    assert_eq!(block(&stack(), &mut source, None), Ok(()));
    // The last one is the end of the sleep.
    assert_eq!((source.wakes(), source.sleeps), (3 + 1, 1));
}

#[test]
fn a_mask_gets_its_sleep_though_the_time_is_up() {
    let (reader, _writer) = pipe().unwrap();
    let mask = block_signals();
    for (mask, sleeps) in [(None, 0), (Some(mask.as_set()), 1)] {
        let mut source = Pipe::new(reader.as_raw_fd(), Some(0));
        assert_eq!(block(&stack(), &mut source, mask), Err(Over::TimedOut));
        assert_eq!(source.sleeps, sleeps);
    }
}

#[test]
fn another_sleeper_takes_the_rings_over_when_the_call_ends() {
    let stack = stack();
    let (reader, writer) = pipe().unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut source = Pipe::new(reader.as_raw_fd(), None);
            block(&stack, &mut source, None)
        });
        until_asleep(&stack, 1);
        let second = scope.spawn(|| {
            let (silent, _writer) = pipe().unwrap();
            let mut source = Pipe::new(silent.as_raw_fd(), Some(300 * MILLISECOND));
            let over = block(&stack, &mut source, None);
            (over, source.wakes())
        });
        until_asleep(&stack, 2);
        drop(writer);
        assert_eq!(first.join().unwrap(), Ok(()));
        let (over, wakes) = second.join().unwrap();
        assert_eq!(over, Err(Over::TimedOut));
        assert!(wakes >= 1);
    });
}
