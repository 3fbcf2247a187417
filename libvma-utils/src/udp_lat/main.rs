//! udp_lat: how long does a datagram take from one machine to the other?
//!
//! The synthetic latency test of the manual of 2008, appendix A. It knows nothing of the library:
//! plain sockets, made through libc, so that the same program is measured with LD_PRELOAD and without.
//!
//! * `options`: the command line.
//! * `interface`: the words that name a network interface.
//! * `socket`: bound, and a member of its group.
//! * `receive`: one datagram, by recvfrom alone or after select, poll or epoll.
//! * `message`: what the two ends say to each other.
//! * `server` and `client`: the two ends.
//! * `report`: the client's numbers in the manual's words.
//! * `interrupt`: Ctrl-C.

mod client;
mod interface;
mod interrupt;
mod message;
mod options;
mod receive;
mod report;
mod server;
mod socket;

use std::io::Write;
use std::process::ExitCode;

use interrupt::Interrupt;
use options::{Mode, Options};

fn main() -> ExitCode {
    // Tells what is wrong with the command line, and ends with 2.
    let options = Options::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match run(&options) {
        Ok(code) => code,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::new()?;
    match &options.mode {
        Mode::Server => server::run(options, &interrupt),
        Mode::Client(course) => client::run(options, course, &interrupt),
    }
}

/// A line to stdout. If nobody reads it any more, nobody can be told either.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A line about trouble, to stderr.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "udp_lat: {line}");
}
