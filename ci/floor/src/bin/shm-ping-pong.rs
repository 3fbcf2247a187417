//! Ping-pong over two cache lines: the latency that libvma's way between processes of one host is
//! compared with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use floor::cpu;
use floor::latency::Latencies;

#[derive(Parser)]
#[command(about = "Ping-pong over two cache lines")]
struct Options {
    /// Seconds to measure
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// CPUs of the two sides
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
}

/// Rounds that go before the measured ones: caches, branch predictors, clock speed.
const WARM_UP: Duration = Duration::from_millis(200);

/// More round trips than any machine makes in a second.
const ROUNDS_PER_SECOND: f64 = 2e7;

/// The number of the round that ends the other side.
const END: u64 = u64::MAX;

/// Alone on its cache line, and on the one that the prefetcher takes along.
#[repr(align(128))]
struct Line(AtomicU64);

static PING: Line = Line(AtomicU64::new(0));
static PONG: Line = Line(AtomicU64::new(0));

fn main() -> Result<()> {
    let options = Options::parse();
    let other = options.cpus.get(1).copied();
    let answering = thread::spawn(move || answer(other));
    let measured = measure(&options);
    PING.0.store(END, Ordering::Release);
    answering.join().map_err(|_| anyhow!("the answering side panicked"))??;
    println!("{}", measured?.half_round_trip().context("no round was made")?);
    Ok(())
}

fn answer(cpu: Option<usize>) -> Result<()> {
    cpu::pin(cpu)?;
    let mut last = 0;
    loop {
        let round = PING.0.load(Ordering::Acquire);
        if round == END {
            return Ok(());
        }
        if round != last {
            last = round;
            PONG.0.store(round, Ordering::Release);
        }
    }
}

fn measure(options: &Options) -> Result<Latencies> {
    cpu::pin(options.cpus.first().copied())?;
    let mut latencies = Latencies::with_capacity((options.time * ROUNDS_PER_SECOND) as usize);
    let first = Instant::now() + WARM_UP;
    let last = first + Duration::from_secs_f64(options.time);
    let mut sent = Instant::now();
    for round in 1.. {
        PING.0.store(round, Ordering::Release);
        while PONG.0.load(Ordering::Acquire) != round {}
        // One look at the clock for each round: it is the end of this one and the start of the next.
        let now = Instant::now();
        if now >= last {
            break;
        }
        if sent >= first {
            latencies.record(now - sent);
        }
        sent = now;
    }
    Ok(latencies)
}
