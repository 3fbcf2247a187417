//! The words of the answers.

use std::net::SocketAddrV4;

use libvma_dev::ipv6_stand_ins::is_multicast;
use libvma_dev::rules::{Moment, Protocol, Query, Role, RuleSet, Ruling, Section, Target};

/// When the rules of a role are asked about an address.
pub fn query(role: Role, first: SocketAddrV4, second: Option<SocketAddrV4>) -> Query {
    let moment = match role {
        Role::TcpServer => Moment::Listen,
        Role::TcpClient => Moment::Connect,
        Role::UdpReceiver if is_multicast(*first.ip()) => Moment::Join,
        Role::UdpReceiver => Moment::Bind,
        Role::UdpSender => Moment::Send,
        Role::UdpConnect => Moment::UdpConnect,
    };
    Query { moment, first, also: None, second }
}

/// Who serves the socket, and which rule says so.
pub fn decision(rules: &RuleSet, file: &str, (program, id): (&str, &str), query: &Query) -> String {
    let protocol = match query.moment {
        Moment::Listen | Moment::Connect => Protocol::Tcp,
        _ => Protocol::Udp,
    };
    let mut text = String::new();
    if rules.leaves_sockets(program, id, protocol) {
        text += "kernel: rules for every address leave all such sockets to it\n";
    }
    let ruling = rules.decide(program, id, query);
    let who = if ruling.is_kernels(query.moment) { "kernel" } else { "libvma" };
    text += &match ruling {
        Ruling::NoSection => format!("{who}: no section of {file} is for this program\n"),
        Ruling::NoRule(section) => {
            format!("{who}: no rule of {} is for this address\n", name_of(section))
        }
        Ruling::By(section, rule) => {
            format!("{who}: {file}:{}: {rule} ({})\n", rule.line, name_of(section))
        }
    };
    text
}

fn name_of(section: &Section) -> String {
    format!("application-id {} {}", section.program, section.id)
}

/// What the file has for a program; for any of them if the program is `*`.
pub fn summary(rules: &RuleSet, file: &str, (program, id): (&str, &str)) -> String {
    let count: usize = rules.sections.iter().map(|section| section.rules.len()).sum();
    let mut text = format!(
        "{file}: {} and {}\n",
        plural(rules.sections.len(), "section"),
        plural(count, "rule")
    );
    for section in &rules.sections {
        let idle =
            section.rules.iter().filter(|one| matches!(one.target, Target::Sdp | Target::Sa));
        for rule in idle {
            text += &format!("{file}:{}: {rule}: never in force\n", rule.line);
        }
    }
    if program != "*" {
        text += &match rules.sections_for(program, id).next() {
            Some(section) => format!("{program} obeys {section}"),
            None => format!("{program} obeys no section: everything is offloaded\n"),
        };
    }
    text
}

fn plural(count: usize, word: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {word}{ending}")
}
