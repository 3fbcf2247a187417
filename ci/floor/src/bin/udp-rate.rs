//! One-way UDP messages by ordinary sockets, on the kernel or on a preloaded library.
//!
//! Every call goes through libc's symbols (`sendto`, `recv`, `sendmmsg`, `recvmmsg`), where
//! `LD_PRELOAD` finds it.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser};
use floor::datagram::MIN_PAYLOAD;
use floor::meter::{self, Meter};
use floor::mmsg::Batch;

#[derive(Parser)]
#[command(about = "One-way UDP messages by ordinary sockets")]
enum Command {
    /// Sends as fast as the socket takes messages
    Send(Send),
    /// Counts, from the first message to the last
    Recv(Recv),
}

#[derive(Args)]
struct Send {
    /// Receiver's address and port
    #[arg(long)]
    dst: SocketAddrV4,
    /// Bytes of payload
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Seconds to send
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    #[command(flatten)]
    calls: Calls,
}

#[derive(Args)]
struct Recv {
    /// Address and port to receive at
    #[arg(long)]
    bind: SocketAddrV4,
    /// Seconds to count, from the first message
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    #[command(flatten)]
    calls: Calls,
}

#[derive(Args)]
struct Calls {
    /// Messages for each call of sendmmsg or recvmmsg; without it sendto and recv
    #[arg(long)]
    mmsg: Option<usize>,
    /// Spin on a non-blocking socket
    #[arg(long)]
    spin: bool,
}

/// A blocking receiver looks up this often, to see that the sender has finished.
const LOOK_UP: Duration = Duration::from_millis(100);

const MAX_DATAGRAM: usize = 65_507;

fn main() -> Result<()> {
    match Command::parse() {
        Command::Send(options) => send(&options),
        Command::Recv(options) => receive(&options),
    }
}

fn send(options: &Send) -> Result<()> {
    let sizes = MIN_PAYLOAD..=MAX_DATAGRAM;
    ensure!(sizes.contains(&options.size), "--size must be in {sizes:?}");
    let socket = open(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0), &options.calls)?;
    let mut outgoing = match options.calls.mmsg {
        None => Outgoing::Sendto(vec![0; options.size]),
        Some(count) => Outgoing::Sendmmsg(Batch::new(count, options.size, Some(options.dst))),
    };

    let time = Duration::from_secs_f64(options.time);
    let (mut sent, mut calls) = (0, 0_u64);
    let started = Instant::now();
    loop {
        match outgoing.send(sent, &socket, options.dst) {
            Ok(more) => sent += more,
            Err(error) if passes(&error) => {}
            Err(error) => return Err(error).context("send"),
        }
        calls += 1;
        if calls.is_multiple_of(meter::MESSAGES_PER_TICK) && started.elapsed() >= time {
            break;
        }
    }
    println!("size={} {}", options.size, meter::sent(sent, started.elapsed()));
    Ok(())
}

/// The call that sends, with its buffers.
enum Outgoing {
    Sendto(Vec<u8>),
    Sendmmsg(Batch),
}

impl Outgoing {
    /// Sends messages numbered from `number`; how many.
    fn send(&mut self, number: u64, socket: &UdpSocket, to: SocketAddrV4) -> io::Result<u64> {
        match self {
            Self::Sendto(message) => {
                set_number(message, number);
                socket.send_to(message, to).map(|_| 1)
            }
            Self::Sendmmsg(batch) => {
                for (message, number) in batch.buffers_mut().zip(number..) {
                    set_number(message, number);
                }
                batch.send(socket).map(|sent| sent as u64)
            }
        }
    }
}

fn receive(options: &Recv) -> Result<()> {
    let socket = open(options.bind, &options.calls)?;
    println!("ready");
    let mut incoming = match options.calls.mmsg {
        None => Incoming::Recv(vec![0; MAX_DATAGRAM]),
        Some(count) => Incoming::Recvmmsg(Batch::new(count, MAX_DATAGRAM, None)),
    };

    // Having waited in vain, a blocking receiver cannot say when the last message came, so it
    // looks at the clock after each.
    let calls_per_tick = if options.calls.spin { meter::MESSAGES_PER_TICK } else { 1 };
    let mut meter = Meter::new(Duration::from_secs_f64(options.time), Instant::now());
    while meter.tick(Instant::now()) {
        for _ in 0..calls_per_tick {
            match incoming.receive(&socket, &mut meter) {
                Ok(()) => {}
                Err(error) if passes(&error) => break,
                Err(error) => return Err(error).context("receive"),
            }
        }
    }
    println!("{meter}");
    Ok(())
}

/// The call that receives, with its buffers.
enum Incoming {
    Recv(Vec<u8>),
    Recvmmsg(Batch),
}

impl Incoming {
    fn receive(&mut self, socket: &UdpSocket, meter: &mut Meter) -> io::Result<()> {
        match self {
            Self::Recv(buffer) => {
                let length = socket.recv(buffer)?;
                note(&buffer[..length], meter);
            }
            Self::Recvmmsg(batch) => {
                batch.receive(socket)?.for_each(|message| note(message, meter));
            }
        }
        Ok(())
    }
}

fn open(address: SocketAddrV4, calls: &Calls) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).with_context(|| format!("bind to {address}"))?;
    socket.set_nonblocking(calls.spin)?;
    socket.set_read_timeout(Some(LOOK_UP))?;
    Ok(socket)
}

fn set_number(message: &mut [u8], number: u64) {
    message[..MIN_PAYLOAD].copy_from_slice(&number.to_be_bytes());
}

fn note(message: &[u8], meter: &mut Meter) {
    if let Some(number) = message.first_chunk() {
        meter.message(u64::from_be_bytes(*number));
    }
}

/// Is this only "not now"?
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        || error.raw_os_error() == Some(libc::ENOBUFS)
}
