//! vma_conf: is a libvma.conf right, and which of its rules decides?
//!
//! The grammar and the decision are libvma_dev's, as the library uses them; here are the command
//! line, the file and the words of the answer.

mod explain;

use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use libvma_dev::rules::{self, Role};
use libvma_dev::{ipv6_loopback, ipv6_stand_ins};

/// Checks a libvma.conf and tells which rule decides.
///
/// Mistakes are told as FILE:LINE:COLUMN; the library passes over the rest of such a line and obeys
/// all others. With a role and an address the answer is whether the library or the kernel serves the
/// socket, and by which rule.
///
/// Exit status: 0 the file is right, 1 it has mistakes, 2 it cannot be read or the call is wrong.
#[derive(Parser)]
#[command(version, verbatim_doc_comment)]
struct Arguments {
    /// The file, such as /etc/libvma.conf
    #[arg(long, value_name = "FILE")]
    check: PathBuf,
    /// The program, by the name it is called by, without directory
    #[arg(long, value_name = "NAME", default_value = "*")]
    program: String,
    /// What VMA_APPLICATION_ID is set to
    #[arg(long, value_name = "ID", default_value = "VMA_DEFAULT_APPLICATION_ID")]
    application_id: String,
    /// tcp_server, tcp_client, udp_receiver, udp_sender or udp_connect
    #[arg(long, value_parser = role, requires = "address")]
    role: Option<Role>,
    /// The bound address of a server or receiver, or a group that it joins; else the peer's
    #[arg(long, value_name = "IP:PORT", value_parser = end, requires = "role")]
    address: Option<SocketAddrV4>,
    /// The local address of tcp_client and udp_connect
    #[arg(long, value_name = "IP:PORT", value_parser = end, requires = "role")]
    local: Option<SocketAddrV4>,
}

fn role(word: &str) -> Result<Role, String> {
    let words = Role::ALL.map(Role::word);
    let found = Role::ALL.into_iter().find(|role| role.word() == word);
    found.ok_or_else(|| format!("one of {}", words.join(", ")))
}

/// One end of a socket, as the rules are asked about it: an address of IPv6 by its stand-in.
fn end(text: &str) -> Result<SocketAddrV4, String> {
    let form = "an address and a port are 10.0.0.1:80 or [2001:db8::1]:80";
    match text.parse().map_err(|_| form.to_owned())? {
        SocketAddr::V4(end) => Ok(end),
        SocketAddr::V6(end) if *end.ip() == Ipv6Addr::LOCALHOST => {
            Ok(ipv6_loopback::end(end.port()))
        }
        SocketAddr::V6(end) if end.ip().is_unspecified() => {
            Ok(SocketAddrV4::new(ipv6_stand_ins::ANY, end.port()))
        }
        SocketAddr::V6(end) => {
            let ip = *end.ip();
            let stand_in = ip.to_ipv4_mapped().or_else(|| ipv6_stand_ins::of(ip));
            let stand_in = stand_in.ok_or_else(|| format!("the kernel serves {ip} in any case"))?;
            Ok(SocketAddrV4::new(stand_in, end.port()))
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let file = arguments.check.display().to_string();
    let text = match std::fs::read(&arguments.check) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => {
            eprintln!("vma_conf: {file}: {error}");
            return ExitCode::from(2);
        }
    };
    let parsed = rules::parse(&text);
    for problem in &parsed.problems {
        eprintln!("{file}:{problem}");
    }
    let (program, id) = (&arguments.program, &arguments.application_id);
    let answer = match (arguments.role, arguments.address) {
        (Some(role), Some(address)) => {
            let query = explain::query(role, address, arguments.local);
            explain::decision(&parsed.rules, &file, (program, id), &query)
        }
        _ => explain::summary(&parsed.rules, &file, (program, id)),
    };
    // A reader that has seen enough is no mistake of the file's.
    let _ = std::io::stdout().write_all(answer.as_bytes());
    ExitCode::from(u8::from(!parsed.problems.is_empty()))
}
