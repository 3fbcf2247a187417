//! The server: sends back what clients send, until it is interrupted.

use std::process::ExitCode;

use anyhow::Context;

use crate::interrupt::{Interrupt, TICK};
use crate::message::{Header, Kind, LARGEST};
use crate::options::Options;
use crate::receive::Receiver;
use crate::{complain, socket, tell};

/// What became of the datagrams.
#[derive(Default)]
struct Tally {
    answered: u64,
    /// The answer could not be sent.
    failed: u64,
    /// Not from a udp_lat.
    foreign: u64,
}

pub fn run(options: &Options, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let receiver = Receiver::new(socket::of_server(options)?, options.call, TICK)?;
    tell(&format!("udp_lat: [SERVER] listen on: {} port {}", options.at.ip(), options.at.port()));
    let mut tally = Tally::default();
    let result = serve(options, &receiver, interrupt, &mut tally);
    tell(&format!("udp_lat: [SERVER] answered {} messages", tally.answered));
    for (count, what) in [
        (tally.failed, "answers could not be sent"),
        (tally.foreign, "datagrams were not from a udp_lat client"),
    ] {
        if count > 0 {
            complain(&format!("[SERVER] {count} {what}"));
        }
    }
    result.map(|()| ExitCode::SUCCESS)
}

fn serve(
    options: &Options,
    receiver: &Receiver,
    interrupt: &Interrupt,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    // Everybody in the group hears the answer, as they heard the question: so both ways are multicast.
    let group = options.multicast.is_some().then_some(options.at);
    let mut buffer = vec![0; LARGEST];
    while !interrupt.came() {
        let Some((length, from)) = receiver.receive(&mut buffer).context("cannot receive")? else {
            continue;
        };
        let datagram = &mut buffer[..length];
        match Header::read(datagram) {
            Some(header) if header.kind == Kind::Question => {
                Header { kind: Kind::Answer, ..header }.write(datagram);
            }
            // Of another server in the group, or our own by multicast loopback.
            Some(_) => continue,
            None => {
                tally.foreign += 1;
                continue;
            }
        }
        let to = group.unwrap_or(from);
        match receiver.socket.send_to(datagram, to) {
            Ok(_) => tally.answered += 1,
            // The client takes it as lost. Others may still be reached.
            Err(error) => {
                if tally.failed == 0 {
                    complain(&format!("cannot send to {} port {}: {error}", to.ip(), to.port()));
                }
                tally.failed += 1;
            }
        }
    }
    Ok(())
}
