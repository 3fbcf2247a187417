//! UDP ping-pong over raw AF_XDP: the latency that libvma is compared with.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use floor::cpu;
use floor::datagram;
use floor::latency::Latencies;
use floor::source::{Outgoing, Source};
use floor::xsk::{Endpoint, Xsk};

#[derive(Parser)]
#[command(about = "UDP ping-pong over raw AF_XDP")]
enum Command {
    /// Sends every datagram back to its sender until killed
    Server(Endpoint),
    /// Measures round trips; prints half of them, in microseconds
    Client(Outgoing),
}

/// Rounds that go before the measured ones: caches, branch predictors, clock speed.
const WARM_UP: Duration = Duration::from_millis(200);

/// A round without an answer counts as lost after this long.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// More round trips than any machine makes in a second.
const ROUNDS_PER_SECOND: f64 = 2e6;

fn main() -> Result<()> {
    match Command::parse() {
        Command::Server(endpoint) => serve(&endpoint),
        Command::Client(options) => measure(&options),
    }
}

fn serve(endpoint: &Endpoint) -> Result<()> {
    cpu::pin(endpoint.cpu)?;
    let (mut xsk, _) = Xsk::open(endpoint)?;
    println!("ready");
    loop {
        let Some(mut frame) = xsk.receive() else {
            continue;
        };
        if datagram::turn_around(frame.packet()) {
            xsk.queue(frame);
            xsk.kick()?;
        } else {
            xsk.recycle(frame);
        }
        while let Some(frame) = xsk.completed() {
            xsk.recycle(frame);
        }
    }
}

fn measure(options: &Outgoing) -> Result<()> {
    cpu::pin(options.endpoint.cpu)?;
    let mut latencies = Latencies::with_capacity((options.time * ROUNDS_PER_SECOND) as usize);
    let mut source = Source::open(options)?;
    let mut lost = 0;

    let first = Instant::now() + WARM_UP;
    let last = first + Duration::from_secs_f64(options.time);
    loop {
        let number = source.sent();
        let sent = Instant::now();
        source.send(1, false)?;
        let answered = await_answer(&mut source.xsk, number, sent);
        let now = Instant::now();
        source.collect();

        if now >= last {
            break;
        }
        match answered {
            true if sent >= first => latencies.record(now - sent),
            true => {}
            false => lost += 1,
        }
    }
    let percentiles = latencies.half_round_trip().context("no answer from the server")?;
    println!("size={} {percentiles} lost={lost}", options.size);
    Ok(())
}

/// Spins until the answer to message `number` is there; answers to earlier ones are dropped.
#[inline]
fn await_answer(xsk: &mut Xsk, number: u64, sent: Instant) -> bool {
    // Reading the clock costs as much as many looks at the ring.
    const LOOKS_PER_CLOCK: u32 = 1 << 16;
    let mut looks = 0_u32;
    loop {
        if let Some(mut frame) = xsk.receive() {
            let answer = datagram::sequence(frame.packet()) == Some(number);
            xsk.recycle(frame);
            if answer {
                return true;
            }
        }
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS_PER_CLOCK) && sent.elapsed() > ANSWER_TIMEOUT {
            return false;
        }
    }
}
