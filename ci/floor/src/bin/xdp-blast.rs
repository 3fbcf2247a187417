//! One-way UDP messages over raw AF_XDP: the message rate that libvma is compared with.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Parser};
use floor::cpu;
use floor::datagram;
use floor::meter::{self, Meter};
use floor::source::{Outgoing, Source};
use floor::xsk::{Endpoint, Xsk};

#[derive(Parser)]
#[command(about = "One-way UDP messages over raw AF_XDP")]
enum Command {
    /// Sends as fast as the interface takes frames
    Send(Send),
    /// Counts, from the first frame to the last
    Recv(Recv),
}

#[derive(Args)]
struct Send {
    #[command(flatten)]
    outgoing: Outgoing,
    /// Frames for each kick
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Copies the payload into each frame, as any program with data of its own has to
    #[arg(long)]
    copy: bool,
}

#[derive(Args)]
struct Recv {
    #[command(flatten)]
    endpoint: Endpoint,
    /// Seconds to count, from the first frame
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// Copies the payload out of each frame, as any program that uses it has to
    #[arg(long)]
    copy: bool,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Send(options) => send(&options),
        Command::Recv(options) => receive(&options),
    }
}

fn send(options: &Send) -> Result<()> {
    cpu::pin(options.outgoing.endpoint.cpu)?;
    let mut source = Source::open(&options.outgoing)?;
    let time = Duration::from_secs_f64(options.outgoing.time);
    let started = Instant::now();
    while started.elapsed() < time {
        source.send(options.batch, options.copy)?;
        source.collect();
    }
    println!("size={} {}", options.outgoing.size, meter::sent(source.sent(), started.elapsed()));
    Ok(())
}

fn receive(options: &Recv) -> Result<()> {
    cpu::pin(options.endpoint.cpu)?;
    let (mut xsk, _) = Xsk::open(&options.endpoint)?;
    println!("ready");
    let mut application = [0; datagram::HEADERS + datagram::MAX_PAYLOAD];
    let mut meter = Meter::new(Duration::from_secs_f64(options.time), Instant::now());
    while meter.tick(Instant::now()) {
        for _ in 0..meter::MESSAGES_PER_TICK {
            let Some(mut frame) = xsk.receive() else {
                break;
            };
            if options.copy {
                let packet = frame.packet();
                let len = packet.len().min(application.len());
                application[..len].copy_from_slice(&packet[..len]);
                black_box(&application);
            }
            if let Some(number) = datagram::sequence(frame.packet()) {
                meter.message(number);
            }
            xsk.recycle(frame);
        }
    }
    println!("{meter}");
    Ok(())
}
