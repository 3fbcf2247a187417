//! The client: sends a message, waits for its answer, sends the next, as long as the test runs.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::interrupt::{Interrupt, TICK};
use crate::message::{Header, Kind, LARGEST};
use crate::options::{Course, Options};
use crate::receive::Receiver;
use crate::report::{self, Length, Tally};
use crate::{complain, socket, tell};

pub fn run(options: &Options, course: &Course, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let receiver =
        Receiver::new(socket::of_client(options)?, options.call, slice(course.patience))?;
    let (ip, port) = (options.at.ip(), options.at.port());
    tell(&format!("udp_lat: [CLIENT] send on: {ip} port {port}"));
    tell("udp_lat: Client Start sending ...");

    let mut test = Test {
        options,
        course,
        receiver,
        // By chance another one than every other client's of the group.
        client: fastrand::u32(..),
        question: vec![0; course.size],
        answer: vec![0; LARGEST],
        tally: Tally::default(),
    };
    let (length, trouble) = test.run(interrupt);
    let tally = &test.tally;
    if let Some(line) = report::result(tally, length) {
        tell(&line);
    } else if trouble.is_none() {
        complain(report::NOTHING);
        complain(&report::advice(options));
    }
    for line in report::remarks(tally, course.patience) {
        complain(&line);
    }
    match trouble {
        Some(error) => Err(error),
        None if tally.answered == 0 => Ok(ExitCode::FAILURE),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// A part of the patience that one call may wait.
fn slice(patience: Duration) -> Duration {
    let slices = patience.as_millis().div_ceil(TICK.as_millis()).max(1);
    patience / u32::try_from(slices).unwrap_or(u32::MAX)
}

struct Test<'a> {
    options: &'a Options,
    course: &'a Course,
    receiver: Receiver,
    client: u32,
    question: Vec<u8>,
    answer: Vec<u8>,
    tally: Tally,
}

/// What became of a question.
enum Fate {
    Answered,
    Lost,
    /// The test was interrupted meanwhile.
    Open,
}

impl Test<'_> {
    /// How long it ran, and why it could not go on.
    fn run(&mut self, interrupt: &Interrupt) -> (Length, Option<anyhow::Error>) {
        let began = Instant::now();
        let mut now = began;
        for number in 1.. {
            if interrupt.came() || now - began >= self.course.time() {
                break;
            }
            let fate = match self.ask(number, now, interrupt) {
                Ok(fate) => fate,
                Err(error) => return (Length::Cut(now - began), Some(error)),
            };
            let asked = std::mem::replace(&mut now, Instant::now());
            match fate {
                // From answer to answer, as the manual divides all of the time by all of the messages.
                Fate::Answered => {
                    self.tally.answered += 1;
                    self.tally.measured += now - asked;
                }
                Fate::Lost => self.tally.lost += 1,
                Fate::Open => {}
            }
        }
        let ran = now - began;
        let whole = ran >= self.course.time();
        (if whole { Length::Whole(self.course.seconds) } else { Length::Cut(ran) }, None)
    }

    fn ask(&mut self, number: u64, now: Instant, interrupt: &Interrupt) -> anyhow::Result<Fate> {
        let header = Header { kind: Kind::Question, client: self.client, number };
        header.write(&mut self.question);
        let to = self.options.at;
        self.receiver
            .socket
            .send_to(&self.question, to)
            .with_context(|| format!("cannot send to {} port {}", to.ip(), to.port()))?;
        loop {
            let received = self.receiver.receive(&mut self.answer).context("cannot receive")?;
            if let Some((length, _)) = received
                && self.is_answer(length, number)
            {
                return Ok(Fate::Answered);
            }
            if interrupt.came() {
                return Ok(Fate::Open);
            }
            if now.elapsed() >= self.course.patience {
                return Ok(Fate::Lost);
            }
        }
    }

    /// Counts those to questions before this one.
    fn is_answer(&mut self, length: usize, number: u64) -> bool {
        let Some(header) = Header::read(&self.answer[..length]) else { return false };
        if header.kind != Kind::Answer || header.client != self.client {
            return false;
        }
        self.tally.out_of_turn += u64::from(header.number < number);
        header.number == number && length == self.question.len()
    }
}
