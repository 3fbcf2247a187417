//! The command line.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgGroup, CommandFactory, Parser, value_parser};

use crate::interface;
use crate::message::{HEADER, LARGEST};
use crate::receive::Call;

/// What both ends need to know.
#[derive(Debug)]
pub struct Options {
    pub mode: Mode,
    /// Where the server listens.
    pub at: SocketAddr,
    /// Set if that is a group.
    pub multicast: Option<Multicast>,
    pub call: Call,
}

#[derive(Debug)]
pub enum Mode {
    Server,
    Client(Course),
}

/// How the client's test goes.
#[derive(Debug)]
pub struct Course {
    /// Of a message, in bytes.
    pub size: usize,
    pub seconds: u32,
    /// How long an answer may take.
    pub patience: Duration,
}

impl Course {
    pub fn time(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// Interfaces by their address; without one the routes decide.
#[derive(Debug, PartialEq, Eq)]
pub struct Multicast {
    pub receive_on: Option<Ipv4Addr>,
    pub send_on: Option<Ipv4Addr>,
    pub ttl: u8,
    pub loopback: bool,
}

/// Measures the latency of UDP between two machines.
///
/// The server, started first, sends back what the client sends. The client sends the next message
/// when it has the answer; half of the mean round trip is the latency. With a multicast group both
/// directions are multicast.
///
/// Exit status: 0 measured, 1 no answers or the network failed, 2 the call is wrong.
#[derive(Parser)]
#[command(name = "udp_lat", version, verbatim_doc_comment)]
#[command(group(ArgGroup::new("mode").args(["server", "client"]).required(true)))]
struct Words {
    /// Send back what comes, until Ctrl-C
    #[arg(short, long)]
    server: bool,
    /// Measure
    #[arg(short, long, requires = "ip")]
    client: bool,
    /// The server's address or a group of IPv4 multicast; the server's default is any IPv4 address of its host
    #[arg(short, long, value_name = "ADDRESS")]
    ip: Option<IpAddr>,
    /// The server's port
    #[arg(short, long, default_value_t = 11111, value_parser = value_parser!(u16).range(1..))]
    port: u16,
    /// Size of a message, 16 to 65507 (client)
    #[arg(short, long, value_name = "BYTES", default_value_t = HEADER as u16, conflicts_with = "server")]
    #[arg(value_parser = value_parser!(u16).range(HEADER as i64..=LARGEST as i64))]
    msg_size: u16,
    /// Duration of the test (client)
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1, conflicts_with = "server")]
    #[arg(value_parser = value_parser!(u32).range(1..=1_000_000))]
    time: u32,
    /// How long to wait for an answer before the next message (client)
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500, conflicts_with = "server")]
    #[arg(value_parser = value_parser!(u32).range(1..=60_000))]
    timeout: u32,
    /// The call that waits; the first letter will do
    #[arg(short = 'F', long, value_name = "CALL", value_enum, default_value_t)]
    iomux_type: Call,
    /// Interface to receive the group on, by name or address; else the routes decide
    #[arg(long, value_name = "INTERFACE", value_parser = interface::address)]
    mc_rx_if: Option<Ipv4Addr>,
    /// Interface to send to the group on, by name or address; else the routes decide
    #[arg(long, value_name = "INTERFACE", value_parser = interface::address)]
    mc_tx_if: Option<Ipv4Addr>,
    /// How many routers multicast may pass, and one more [default: 2]
    #[arg(long, value_name = "HOPS")]
    mc_ttl: Option<u8>,
    /// Let multicast reach programs of the same host
    #[arg(long)]
    mc_loopback_enable: bool,
}

impl Options {
    /// The first word is the program's name.
    pub fn parse<W: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Options, clap::Error> {
        let words = Words::try_parse_from(words)?;
        let ip = words.ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let multicast = words.multicast(ip)?;
        let course = Course {
            size: words.msg_size.into(),
            seconds: words.time,
            patience: Duration::from_millis(words.timeout.into()),
        };
        Ok(Options {
            mode: if words.server { Mode::Server } else { Mode::Client(course) },
            at: SocketAddr::new(ip, words.port),
            multicast,
            call: words.iomux_type,
        })
    }
}

impl Words {
    fn multicast(&self, ip: IpAddr) -> Result<Option<Multicast>, clap::Error> {
        if ip.is_multicast() {
            if ip.is_ipv6() {
                let problem =
                    format!("'--ip {ip}' is a group of IPv6, and only those of IPv4 are measured");
                return Err(Words::command().error(ErrorKind::InvalidValue, problem));
            }
            return Ok(Some(Multicast {
                receive_on: self.mc_rx_if,
                send_on: self.mc_tx_if,
                ttl: self.mc_ttl.unwrap_or(2),
                loopback: self.mc_loopback_enable,
            }));
        }
        let without_use = [
            ("--mc-rx-if", self.mc_rx_if.is_some()),
            ("--mc-tx-if", self.mc_tx_if.is_some()),
            ("--mc-ttl", self.mc_ttl.is_some()),
            ("--mc-loopback-enable", self.mc_loopback_enable),
        ];
        match without_use.into_iter().find(|(_, given)| *given) {
            None => Ok(None),
            Some((option, _)) => {
                let problem = format!("{option} is for multicast, but '--ip {ip}' is no group");
                Err(Words::command().error(ErrorKind::ArgumentConflict, problem))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Options, String> {
        let words = std::iter::once("udp_lat").chain(words.split_whitespace());
        Options::parse(words).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn client(words: &str) -> (Options, Course) {
        let mut options = parse(words).unwrap();
        let Mode::Client(course) = std::mem::replace(&mut options.mode, Mode::Server) else {
            panic!("{words} is a server");
        };
        (options, course)
    }

    // covers: TOOL-03
    #[test]
    fn the_examples_of_the_manual_mean_port_11111_and_a_second() {
        let server = parse("-s -i 224.1.1.1").unwrap();
        assert!(matches!(server.mode, Mode::Server));
        let (client, course) = client("-c -i 224.1.1.1");
        for options in [server, client] {
            assert_eq!(options.at, "224.1.1.1:11111".parse().unwrap());
            let multicast = Multicast { receive_on: None, send_on: None, ttl: 2, loopback: false };
            assert_eq!(options.multicast, Some(multicast));
            assert_eq!(options.call, Call::Recvfrom);
        }
        assert_eq!((course.size, course.seconds), (16, 1));
        assert_eq!(course.patience, Duration::from_millis(500));
    }

    // covers: TOOL-03
    #[test]
    fn every_option_has_its_effect() {
        let (options, course) = client(
            "--client --ip 224.1.1.1 --port 5 --msg-size 65507 --time 7 --timeout 9 --iomux-type epoll \
             --mc-rx-if 10.0.0.1 --mc-tx-if 10.0.0.2 --mc-ttl 0 --mc-loopback-enable",
        );
        assert_eq!(options.at.port(), 5);
        assert_eq!((course.size, course.time()), (65507, Duration::from_secs(7)));
        assert_eq!(course.patience, Duration::from_millis(9));
        assert_eq!(options.call, Call::Epoll);
        let multicast = Multicast {
            receive_on: Some(Ipv4Addr::new(10, 0, 0, 1)),
            send_on: Some(Ipv4Addr::new(10, 0, 0, 2)),
            ttl: 0,
            loopback: true,
        };
        assert_eq!(options.multicast, Some(multicast));
        let (options, course) = client("-ci 10.0.0.1 -p 6 -m 17 -t 8 -F p");
        assert_eq!(options.at, "10.0.0.1:6".parse().unwrap());
        assert_eq!((course.size, course.seconds, options.call), (17, 8, Call::Poll));
        assert_eq!(options.multicast, None);
    }

    #[test]
    fn a_server_listens_on_every_address_unless_told() {
        assert_eq!(parse("-s").unwrap().at, "0.0.0.0:11111".parse().unwrap());
        assert_eq!(parse("-s -i ::").unwrap().at, "[::]:11111".parse().unwrap());
        assert_eq!(client("-c -i fd00::1 -p 6").0.at, "[fd00::1]:6".parse().unwrap());
    }

    #[test]
    fn a_bad_call_is_told_with_option_and_value() {
        for (words, parts) in [
            ("", &["--server", "--client"][..]),
            ("-s -c -i 10.0.0.1", &["--server", "--client", "cannot be used with"]),
            ("-c", &["--ip"]),
            ("-c -i 10.0.0.256", &["--ip", "10.0.0.256"]),
            ("-c -i 10.0.0.1 -p 0", &["--port", "'0'"]),
            ("-c -i 10.0.0.1 -p 65536", &["--port", "65536"]),
            ("-c -i 10.0.0.1 -m 15", &["--msg-size", "15", "16..=65507"]),
            ("-c -i 10.0.0.1 -m 65508", &["--msg-size", "65508", "16..=65507"]),
            ("-c -i 10.0.0.1 -t 0", &["--time", "'0'"]),
            ("-c -i 10.0.0.1 -t 1.5", &["--time", "1.5"]),
            ("-c -i 10.0.0.1 --timeout 0", &["--timeout", "'0'"]),
            ("-c -i 10.0.0.1 -F x", &["--iomux-type", "'x'", "recvfrom, select, poll, epoll"]),
            ("-s -m 100", &["--server", "--msg-size"]),
            ("-s -t 2", &["--server", "--time"]),
            ("-s --timeout 2", &["--server", "--timeout"]),
            ("-c -i ff02::1", &["ff02::1", "IPv6"]),
            ("-s -i 224.1.1.1 --mc-ttl 256", &["--mc-ttl", "256"]),
            ("-s -i 224.1.1.1 --mc-rx-if none", &["--mc-rx-if", "none", "no interface has this"]),
            ("-s -i 10.0.0.1 --mc-ttl 3", &["--mc-ttl", "10.0.0.1", "multicast"]),
            ("-s --mc-loopback-enable", &["--mc-loopback-enable", "0.0.0.0"]),
            ("-s --frobnicate", &["--frobnicate"]),
            ("-s again", &["again"]),
        ] {
            let error = parse(words).expect_err(words);
            for part in parts {
                assert!(error.contains(part), "{words}: no {part} in\n{error}");
            }
        }
    }
}
