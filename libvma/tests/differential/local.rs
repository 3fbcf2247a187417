//! The same within one host: the peer is another process on 127.0.0.2, with the library or without it,
//! and all of it runs in a sandbox without privileges. By hand, in such a sandbox:
//!
//! ```text
//! PEER_PRELOAD=libvma.so LD_PRELOAD=libvma.so prober-local run - <group> <case>
//! ```
//!
//! Whether bytes went past the kernel is for the programs in `integration` to say: a case is over
//! before two processes have found each other, or it is not. Here only what a program sees counts.

use crate::harness::{Output, Sandbox, Traffic};
use crate::prober::{Build, LIMIT, Run, kept, plain, program, taken_again, traffic};
use crate::transcript::{Comparison, Difference, Kind, Transcript, case_of, same};
use crate::turns::{each, is_apart};
use crate::{ATTENTIVE, SLEEPING, SPINNING};

/// Who has the library in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    Neither,
    Both,
    Prober,
    Peer,
}

/// Cases where the library is known to be wrong, until it is not, as in `crate::KNOWN`.
const KNOWN: &[(&str, &str)] = &[
    // Which congestion control an unprivileged process may ask for is the kernel's to say; of a
    // socket that is not connected yet it is not asked.
    ("tcp_options", "congestion"),
    // What a one-shot registration told already is told again when the socket becomes the kernel's.
    ("tcp_epoll", "connecting"),
    // Urgent data is the kernel's: the connection is given back first, and it comes a moment later.
    ("tcp_epoll", "urgent"),
    // A link is a buffer beside the receiver's: more of a burst survives, and what the link cannot
    // take is lost by the sender, so the receiver does not count it.
    ("limits", "buffer_sizes"),
    // What goes into the link of a process that was killed a moment ago is lost without an error.
    ("local", "comes_and_goes"),
    // While the link is made, the internal thread takes low descriptor numbers for a moment.
    ("local_death", "exits_with_unsent_data"),
];

/// What lies in a link is not yet in the receiver's buffer, so of a burst that nobody reads more survives
/// than in the kernel. A count may be larger.
fn forgive_larger_buffers(kernel: &Transcript, library: &mut Transcript) {
    for (theirs, ours) in kernel.lines.iter().zip(&mut library.lines) {
        if let (Some(least), Some(count)) = (counted(theirs), counted(ours))
            && case_of(theirs) == case_of(ours)
            && count >= least
        {
            ours.clone_from(theirs);
        }
    }
}

/// How many datagrams a line says that came.
fn counted(line: &str) -> Option<u32> {
    let text = match line.split_once(" |   peer counts ") {
        Some((_, rest)) => rest.split_once(' ')?.0,
        None => line.split_once(" | ~ of ")?.1.rsplit_once(": ")?.1,
    };
    text.parse().ok()
}

/// While a link is made, the internal thread takes a descriptor number for a moment, and a program's
/// next descriptor may get another one (docs/architecture.md). That does not happen every time.
fn differs_in_numbers_only(kernel: &[String], library: &[String]) -> bool {
    let alike = |(kernel, library): (&String, &String)| {
        same(kernel, library) || unnumbered(kernel) == unnumbered(library)
    };
    kernel.len() == library.len() && kernel.iter().zip(library).all(alike)
}

/// Values that may differ in the next measurement.
fn may_be_late(difference: &Difference) -> bool {
    difference.kind == Kind::Time
        || differs_in_numbers_only(&difference.kernel, &difference.library)
}

/// A line without the descriptor that a call is for or returns.
fn unnumbered(line: &str) -> String {
    let is_digit = |byte: char| byte.is_ascii_digit();
    let masked = match line.split_once('(') {
        Some((call, rest)) if rest.starts_with(is_digit) => {
            format!("{}(fd{}", call.trim_start(), rest.trim_start_matches(is_digit))
        }
        _ => line.trim_start().to_owned(),
    };
    let calls = ["socket(", "accept(", "accept4(", "dup(", "tcp(", "tcp6(", "udp(", "udp6("];
    let makes = calls.iter().any(|call| masked.contains(call));
    match masked.rsplit_once(" = ") {
        Some((call, result)) if makes && result.starts_with(is_digit) => {
            // A class of time may follow.
            format!("{call} = fd{}", result.trim_start_matches(is_digit))
        }
        _ => masked,
    }
}

#[test]
fn a_number_is_not_a_difference_of_behaviour() {
    let difference = |kernel: &str, library: &str| {
        differs_in_numbers_only(&[kernel.to_owned()], &[library.to_owned()])
    };
    assert!(difference("c | recv(5, 10, 0) = 3", "c | recv(6, 10, 0) = 3"));
    assert!(difference("c | accept(fd, NULL, NULL) = 6", "c | accept(fd, NULL, NULL) = 7"));
    assert!(difference("c | tcp6() = 8", "c | tcp6() = 9"));
    assert!(difference("c | accept(fd) = 6, at once", "c | accept(fd) = 7, at once"));
    assert!(!difference("c | accept(fd) = 6, at once", "c | accept(fd) = 7, 90 ms, not 0"));
    assert!(!difference("c | recv(5, 10, 0) = 3", "c | recv(5, 10, 0) = 4"));
    assert!(!difference(
        "c | accept(fd, NULL, NULL) = 6",
        "c | accept(fd, NULL, NULL) = -1 EMFILE"
    ));
    assert!(!differs_in_numbers_only(&["c | recv(5, 10, 0) = 3".to_owned()], &[]));
}

fn probe(run: &Run<'_>, under: Under) -> (Output, Traffic) {
    let sandbox = Sandbox::new();
    let copy = sandbox.file("prober");
    std::fs::copy(program(run.build), &copy).expect("a copy of the prober");
    let mut command = sandbox
        .program("timeout")
        .args(&format!("-s KILL {LIMIT}"))
        .arg(&copy.to_string_lossy())
        .args(&format!("run - {}", run.group));
    let library = sandbox.library();
    if matches!(under, Under::Both | Under::Peer) {
        command = command.env("PEER_PRELOAD", &library.to_string_lossy());
    }
    if under != Under::Neither {
        command = command.env("VMA_TRACELEVEL", "warning");
        for (name, value) in run.environment {
            command = command.env(name, value);
        }
    }
    if matches!(under, Under::Both | Under::Prober) {
        command = command.with_library();
    }
    let output = command.run();
    (output, traffic(&sandbox.dir))
}

#[track_caller]
fn check(runs: &[(Run<'_>, Under)]) {
    each(runs, runs.iter().any(|(run, _)| is_apart(run)), |(run, under)| check_one(run, *under));
}

#[track_caller]
fn check_one(run: &Run<'_>, under: Under) {
    let known = KNOWN.iter().filter(|(group, _)| *group == run.group).map(|(_, case)| *case);
    let except: Vec<&str> = known.chain(run.except.iter().copied()).collect();
    let run = &Run { except: &except, ..*run };
    let of_kernel = || probe(run, Under::Neither).0;
    Comparison {
        run,
        kernel: kept(run, of_kernel),
        kernel_again: &|| taken_again(run, of_kernel),
        library: &|| {
            println!("{}: the library at {under:?}", run.group);
            let (output, traffic) = probe(run, under);
            Transcript::new(&output, traffic)
        },
        judge: &|kernel, library| {
            forgive_larger_buffers(kernel, library);
            String::new()
        },
        may_be_late: &may_be_late,
    }
    .hold();
}

/// Groups with the library in other places than at both ends.
#[track_caller]
fn alike_at(build: Build, groups: &[&str], places: &[Under]) {
    let mut runs = Vec::new();
    for group in groups {
        runs.extend(places.iter().map(|under| (Run { build, ..plain(group) }, *under)));
    }
    check(&runs);
}

const EVERYWHERE: &[Under] = &[Under::Both, Under::Prober, Under::Peer];
const AT_ONE_END: &[Under] = &[Under::Prober, Under::Peer];

/// With the library at both ends.
#[track_caller]
fn alike(groups: &[&str], environments: &[&[(&str, &str)]]) {
    alike_in(Build::Local, groups, environments);
}

#[track_caller]
fn alike_in(build: Build, groups: &[&str], environments: &[&[(&str, &str)]]) {
    let mut runs = Vec::new();
    for group in groups {
        let run = |&environment| (Run { environment, build, ..plain(group) }, Under::Both);
        runs.extend(environments.iter().map(run));
    }
    check(&runs);
}

// covers: API-06, LIM-17
#[test]
fn the_hosts_own_rules_are_the_same() {
    alike_at(Build::Local, &["local"], EVERYWHERE);
    alike(&["local"], &[SLEEPING]);
}

// covers: API-06
#[test]
fn the_hosts_own_rules_are_the_same_while_spinning() {
    alike(&["local"], &[SPINNING]);
}

// covers: API-34, API-35
#[test]
fn processes_die_and_hand_on_alike() {
    alike_at(Build::Local, &["local_death"], EVERYWHERE);
    alike(&["local_death"], &[SLEEPING]);
}

// covers: API-34, API-35
#[test]
fn spinning_processes_die_and_hand_on_alike() {
    alike(&["local_death"], &[SPINNING]);
}

#[test]
fn ends_with_bytes_unread_are_alike() {
    alike_at(Build::Local, &["local_ends"], EVERYWHERE);
    alike(&["local_ends"], &[SLEEPING]);
}

#[test]
fn local_sockets_have_the_kernels_names() {
    alike(&["names", "bad_descriptors", "bad_pointers", "faults", "options"], &[&[]]);
}

#[test]
fn local_datagrams_are_sent_and_received_alike() {
    alike(&["send", "receive", "ancillary", "trains", "limits"], &[&[]]);
    alike(&["receive"], &[SLEEPING]);
}

#[test]
fn local_datagrams_are_received_alike_while_spinning() {
    alike(&["receive"], &[SPINNING]);
}

#[test]
fn waiting_for_local_datagrams_is_alike() {
    alike(&["wait", "epoll"], &[ATTENTIVE]);
}

#[test]
fn signals_interrupt_alike_within_the_host() {
    alike(&["signals"], &[&[], SLEEPING]);
}

#[test]
fn signals_interrupt_alike_within_the_host_while_spinning() {
    alike(&["signals"], &[SPINNING]);
}

#[test]
fn processes_and_threads_share_local_sockets_alike() {
    alike(&["descriptors", "processes", "threads"], &[&[]]);
}

#[test]
fn threads_are_cancelled_alike_within_the_host() {
    alike(&["cancel"], &[&[], SLEEPING]);
}

#[test]
fn spinning_threads_are_cancelled_alike_within_the_host() {
    alike(&["cancel"], &[SPINNING]);
}

#[test]
fn local_streams_begin_alike() {
    alike(&["tcp_connect", "tcp_accept"], &[&[], SLEEPING]);
}

#[test]
fn local_ipv6_sockets_have_ipv4_datagrams_alike() {
    alike(&["udp_dual", "udp_dual_options"], &[&[], SLEEPING]);
}

#[test]
fn local_ipv6_streams_to_ipv4_peers_are_alike() {
    alike(&["tcp_dual"], &[&[], SLEEPING]);
}

#[test]
fn local_streams_begin_alike_while_spinning() {
    alike(&["tcp_connect", "tcp_accept"], &[SPINNING]);
}

#[test]
fn local_streams_are_sent_and_received_alike() {
    alike(&["tcp_send", "tcp_receive", "tcp_urgent"], &[&[], SLEEPING]);
}

#[test]
fn local_streams_are_sent_and_received_alike_while_spinning() {
    alike(&["tcp_send", "tcp_receive", "tcp_urgent"], &[SPINNING]);
}

#[test]
fn local_streams_end_alike() {
    alike(&["calls"], &[&[]]);
    alike(&["tcp_close", "tcp_local"], &[&[], SLEEPING]);
}

#[test]
fn local_streams_end_alike_while_spinning() {
    alike(&["tcp_close", "tcp_local"], &[SPINNING]);
}

#[test]
fn processes_share_local_streams_alike() {
    alike(&["tcp_processes"], &[&[]]);
}

#[test]
fn waiting_for_local_streams_is_alike() {
    alike(&["tcp_ready", "tcp_epoll"], &[ATTENTIVE]);
}

#[test]
fn options_of_local_streams_are_alike() {
    alike(&["tcp_options", "tcp_options_live"], &[&[]]);
}

/// The library at one end only: nothing that the end sees may change, nor what its peer sees.
#[test]
fn streams_to_plain_processes_of_the_host_are_alike() {
    alike_at(
        Build::Local,
        &["tcp_connect", "tcp_accept", "tcp_send", "tcp_receive", "tcp_close"],
        AT_ONE_END,
    );
}

#[test]
fn datagrams_to_plain_processes_of_the_host_are_alike() {
    alike_at(Build::Local, &["names", "send", "receive", "trains"], AT_ONE_END);
    let limits = Run { build: Build::Local, apart: true, ..plain("limits") };
    check(&[(limits, Under::Prober), (limits, Under::Peer)]);
}

// covers: API-02, API-07
#[test]
fn streams_over_the_loopback_address_of_ipv6_begin_alike() {
    alike_in(Build::LocalIpv6, &["tcp_connect", "tcp_accept"], &[&[]]);
}

#[test]
fn streams_over_the_loopback_address_of_ipv6_are_sent_and_received_alike() {
    alike_in(Build::LocalIpv6, &["tcp_send", "tcp_receive"], &[SLEEPING]);
}

#[test]
fn streams_over_the_loopback_address_of_ipv6_end_alike() {
    alike_in(Build::LocalIpv6, &["tcp_close"], &[&[]]);
}

#[test]
fn processes_share_streams_over_the_loopback_address_of_ipv6_alike() {
    alike_in(Build::LocalIpv6, &["tcp_processes"], &[&[]]);
}

#[test]
fn waiting_for_streams_over_the_loopback_address_of_ipv6_is_alike() {
    alike_in(Build::LocalIpv6, &["tcp_ready", "tcp_epoll"], &[ATTENTIVE]);
}

#[test]
fn options_of_streams_over_the_loopback_address_of_ipv6_are_alike() {
    alike_in(Build::LocalIpv6, &["tcp_options", "tcp_options_live"], &[&[]]);
}

// covers: LIM-52
#[test]
fn datagrams_over_the_loopback_address_of_ipv6_are_sent_and_received_alike() {
    let build = Build::LocalDatagramsIpv6;
    alike_in(build, &["send", "receive", "ancillary"], &[SLEEPING]);
    // How many datagrams a receiver that comes late has to read from the kernel first is not known of trains.
    let run = Run { build, environment: SLEEPING, except: &["said_wrongly"], ..plain("trains") };
    check(&[(run, Under::Both)]);
}

#[test]
fn datagrams_over_the_loopback_address_of_ipv6_are_received_alike_while_spinning() {
    alike_in(Build::LocalDatagramsIpv6, &["receive"], &[SPINNING]);
}

#[test]
fn the_hosts_own_rules_over_the_loopback_address_of_ipv6_are_the_same() {
    alike_at(Build::LocalDatagramsIpv6, &["local"], EVERYWHERE);
    alike_in(Build::LocalDatagramsIpv6, &["local"], &[SLEEPING]);
}

#[test]
fn options_of_datagrams_over_the_loopback_address_of_ipv6_are_alike() {
    alike_in(Build::LocalDatagramsIpv6, &["options", "limits"], &[&[]]);
}

#[test]
fn datagrams_over_the_loopback_address_of_ipv6_to_plain_processes_are_alike() {
    alike_at(Build::LocalDatagramsIpv6, &["names", "send", "receive", "trains"], AT_ONE_END);
}

#[test]
fn waiting_for_datagrams_over_the_loopback_address_of_ipv6_is_alike() {
    alike_in(Build::LocalDatagramsIpv6, &["wait", "epoll"], &[ATTENTIVE]);
}

#[test]
fn processes_share_sockets_at_the_loopback_address_of_ipv6_alike() {
    let groups = ["processes", "threads", "names", "descriptors"];
    alike_in(Build::LocalDatagramsIpv6, &groups, &[&[]]);
}

/// Whatever is the same code as over `::1` is proven there.
#[test]
fn streams_over_the_hosts_own_addresses_of_ipv6_are_alike() {
    alike_in(Build::OwnIpv6, &["tcp_connect", "tcp_accept", "tcp_processes"], &[&[]]);
    alike_at(Build::OwnIpv6, &["tcp_connect"], AT_ONE_END);
}

#[test]
fn datagrams_over_the_hosts_own_addresses_of_ipv6_are_alike() {
    let build = Build::OwnIpv6;
    alike_in(build, &["receive", "ancillary", "names", "local"], &[SLEEPING]);
    alike_at(build, &["receive"], AT_ONE_END);
}
