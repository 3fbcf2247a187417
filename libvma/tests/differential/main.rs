//! An application cannot tell, except by speed: the prober makes the same calls without the library
//! and with it, and every return value, errno and byte must be the same.
//!
//! The prober is a C program (`*.c` beside this file). It runs on side A, its peer, a process of
//! its own with the kernel's sockets, on side B. Each group of cases is a run; its transcript has
//! a line per call. By hand, one case of a group:
//!
//! ```text
//! prober run /run/netns/<side b> <group> <case>
//! ```
//!
//! A transcript says nothing of who moved the datagrams and segments, so after each case the prober
//! also writes what the kernel's UDP and TCP counted: nothing, unless the case is marked as the
//! kernel's too.
//!
//! The same groups run again within one host, and a few more: see [`local`]. What the kernel says of
//! a group is asked once in a run of the tests ([`prober::kept`]).
//!
//! A test whose name has "spinning" has a lane of its own in `.config/nextest.toml`; others run two at
//! a time. Within such a test several probers run at the same time ([`turns`]).
//!
//! What no run compares, because the kernel's behaviour is its own affair:
//!
//! * How many bytes a stream's buffers take (the kernel counts whole segments with their overhead),
//!   so how much a full `send` took; that it took all, a part or nothing is compared.
//! * When a connection gives up behind ICMP: over a veth the answer arrives inside `connect`, which
//!   the kernel then takes for a hint only (`tcp_connect`/`unreachable`).
//! * A blocking `recv` below SO_RCVLOWAT sleeps on in the kernel although enough came in two parts
//!   (`tcp_receive`/`low_water`).
//! * Segment boundaries, the congestion control that is the default, and whether the last
//!   acknowledgement was delayed.

mod calls;
mod documents;
#[path = "../harness/mod.rs"]
#[allow(unused_imports, reason = "each test binary uses its part")]
mod harness;
mod local;
mod option_table;
mod prober;
mod transcript;
mod turns;

use prober::{Build, Run, of_kernel, of_kernel_again, of_library, plain};
use transcript::{Comparison, Kind, fallen_back};
use turns::{each, is_apart};

/// Polls for ever, before every sleep.
const SPINNING: &[(&str, &str)] = &[("VMA_RX_POLL", "-1"), ("VMA_SELECT_POLL", "-1")];
/// Sleeps at once.
const SLEEPING: &[(&str, &str)] = &[("VMA_RX_POLL", "0"), ("VMA_SELECT_POLL", "0")];
/// Asks the kernel in every call. By default that is every tenth when something offloaded is
/// ready: a call may then tell of ordinary descriptors a few calls late.
const ATTENTIVE: &[(&str, &str)] = &[("VMA_SELECT_POLL_OS_RATIO", "1")];

/// Cases where the library is known to be wrong, until it is not: group and case.
const KNOWN: &[(&str, &str)] = &[
    // The shadows of accepted connections are not bound, so the port of a listener that was closed
    // is free, SO_REUSEADDR or not, while connections from it live. Holding it would need the
    // listening socket itself, which a child or another process may share.
    ("tcp_accept", "port_of_closed"),
    // Refused on purpose, as by a kernel that lacks it: programs then copy.
    ("option_table", "tcp_SO_ZEROCOPY"),
    // The peer's name is told to a caller with more room than it needs, whom the kernel refuses.
    ("option_table", "tcp_SO_PEERNAME"),
];

#[track_caller]
fn check(runs: &[Run<'_>]) {
    each(runs, runs.iter().any(is_apart), check_one);
}

#[track_caller]
fn check_one(run: &Run<'_>) {
    Comparison {
        run,
        kernel: of_kernel(run),
        kernel_again: &|| of_kernel_again(run),
        library: &|| of_library(run),
        judge: &|kernel, library| fallen_back(run, kernel, library),
        may_be_late: &|difference| difference.kind == Kind::Time,
    }
    .hold();
}

#[track_caller]
fn alike(group: &str) {
    check(&[plain(group)]);
}

#[track_caller]
fn alike_in(group: &str, environment: &[(&str, &str)]) {
    check(&[Run { environment, ..plain(group) }]);
}

#[track_caller]
fn alike_fortified(groups: &[(&str, &[(&str, &str)])]) {
    let run = |&(group, environment)| Run { environment, build: Build::Fortified, ..plain(group) };
    check(&groups.iter().map(run).collect::<Vec<_>>());
}

// covers: API-01, API-04, API-05, API-16, FIX-10, FIX-21, LIM-34, LIM-79, NET-41
#[test]
fn sockets_have_the_kernels_names_and_peers() {
    alike("names");
}

#[test]
fn calls_on_wrong_descriptors_fail_alike() {
    alike("bad_descriptors");
}

// covers: LIM-45
#[test]
fn pointers_to_nowhere_fail_alike() {
    alike("bad_pointers");
}

// covers: LIM-45
#[test]
fn memory_that_is_not_there_fails_alike() {
    alike("faults");
}

// covers: LIM-45
#[test]
fn faults_of_the_program_are_its_own() {
    alike("fault_handlers");
}

// covers: API-08, API-21, FIX-08, LIM-44, NET-01, NET-23
#[test]
fn datagrams_are_sent_alike() {
    alike("send");
}

// covers: API-10, API-13, NET-01
#[test]
fn datagrams_are_received_alike() {
    alike("receive");
}

// covers: API-10
#[test]
fn datagrams_are_received_alike_asleep() {
    alike_in("receive", SLEEPING);
}

// covers: API-10
#[test]
fn datagrams_are_received_alike_while_spinning() {
    alike_in("receive", SPINNING);
}

// covers: API-12, FIX-12
#[test]
fn fortified_programs_see_the_same() {
    alike_fortified(&[("send", &[]), ("receive", &[]), ("wait", ATTENTIVE)]);
}

// covers: API-25
#[test]
fn control_messages_are_the_same() {
    alike("ancillary");
}

// covers: LIM-23
#[test]
fn ipv6_sockets_have_ipv4_datagrams_alike() {
    check(&["udp_dual", "udp_dual_options"].map(plain));
}

#[test]
fn ipv6_sockets_have_ipv4_datagrams_alike_asleep() {
    check(
        &["udp_dual", "udp_dual_options"]
            .map(|group| Run { environment: SLEEPING, ..plain(group) }),
    );
}

#[test]
fn trains_of_datagrams_are_the_same() {
    alike("trains");
}

// covers: API-21, API-38
#[test]
fn options_are_kept_and_told_alike() {
    alike("options");
}

/// The group sends 2000 datagrams before it looks; a ring loses what it has no frame for, uncounted.
const LIMITS: Run<'_> =
    Run { environment: &[("VMA_RX_WRE", "4096")], apart: true, ..plain("limits") };

// covers: API-15
#[test]
fn a_socket_holds_as_much() {
    check(&[LIMITS]);
}

// covers: API-17, API-18, API-19, API-20, API-41, LIM-12, LIM-14, NET-02, NET-11
#[test]
fn multicast_is_the_same() {
    alike("multicast");
}

// covers: INS-33, MUX-01, MUX-02, MUX-12, LIM-18
#[test]
fn poll_and_select_tell_the_same() {
    alike_in("wait", ATTENTIVE);
}

/// Each group in each environment.
#[track_caller]
fn alike_in_each(groups: &[&str], except: &[&str], environments: &[&[(&str, &str)]]) {
    let mut runs = Vec::new();
    for group in groups {
        runs.extend(environments.iter().map(|environment| Run {
            environment,
            except,
            ..plain(group)
        }));
    }
    check(&runs);
}

// covers: MUX-04
#[test]
fn poll_and_select_tell_the_same_asleep() {
    alike_in_each(&["wait"], &["poll_mixed", "select_mixed"], &[SLEEPING]);
}

// covers: MUX-07
#[test]
fn poll_and_select_tell_the_same_while_spinning() {
    alike_in_each(&["wait"], &["poll_mixed", "select_mixed"], &[SPINNING]);
}

// covers: MUX-03, MUX-10, MUX-11, LIM-31
#[test]
fn epoll_tells_the_same() {
    alike_in("epoll", ATTENTIVE);
}

// covers: MUX-04
#[test]
fn epoll_tells_the_same_by_default_and_asleep() {
    alike_in_each(&["epoll"], &["mixed"], &[&[], SLEEPING]);
}

// covers: MUX-07
#[test]
fn epoll_tells_the_same_while_spinning() {
    alike_in_each(&["epoll"], &["mixed"], &[SPINNING]);
}

// covers: API-39, FIX-09
#[test]
fn signals_interrupt_alike() {
    alike("signals");
}

// covers: API-39
#[test]
fn signals_interrupt_alike_asleep() {
    alike_in("signals", SLEEPING);
}

// covers: API-39
#[test]
fn signals_interrupt_alike_while_spinning() {
    alike_in("signals", SPINNING);
}

// covers: API-39
#[test]
fn a_handler_may_jump_out_of_a_call() {
    alike_in_each(&["longjmp"], &[], &[&[], SLEEPING]);
}

// covers: API-39
#[test]
fn a_handler_may_jump_out_of_a_spinning_call() {
    alike_in("longjmp", SPINNING);
}

// covers: API-13, API-36, API-37, LIM-11, LIM-54
#[test]
fn descriptors_are_copied_and_closed_alike() {
    alike("descriptors");
}

// covers: API-34, API-35, FIX-26, LIM-22
#[test]
fn processes_share_sockets_alike() {
    alike("processes");
}

#[test]
fn threads_share_sockets_alike() {
    alike("threads");
}

#[test]
fn streams_connect_alike() {
    alike("tcp_connect");
}

#[test]
fn streams_are_accepted_alike() {
    alike("tcp_accept");
}

// covers: API-02, API-05, API-07
#[test]
fn ipv6_streams_to_ipv4_peers_are_alike() {
    alike("tcp_dual");
}

// covers: API-26, LIM-48
#[test]
fn streams_are_sent_alike() {
    alike("tcp_send");
}

#[test]
fn streams_are_received_alike() {
    alike("tcp_receive");
}

#[test]
fn urgent_data_is_the_same() {
    alike("tcp_urgent");
}

// covers: API-32
#[test]
fn streams_end_alike() {
    alike("tcp_close");
}

#[test]
fn processes_share_streams_alike() {
    alike("tcp_processes");
}

// covers: API-31, MUX-13, LIM-47
#[test]
fn poll_and_select_tell_the_same_of_streams() {
    alike_in("tcp_ready", ATTENTIVE);
}

// covers: LIM-27, MUX-09
#[test]
fn epoll_tells_the_same_of_streams() {
    alike_in("tcp_epoll", ATTENTIVE);
}

#[track_caller]
fn streams_are_alike(environment: &[(&str, &str)]) {
    check(
        &["tcp_send", "tcp_receive", "tcp_urgent"].map(|group| Run { environment, ..plain(group) }),
    );
}

#[test]
fn streams_are_alike_asleep() {
    streams_are_alike(SLEEPING);
}

#[test]
fn streams_are_alike_while_spinning() {
    streams_are_alike(SPINNING);
}

#[track_caller]
fn streams_begin_and_end_alike(environment: &[(&str, &str)]) {
    let run = |group| Run { environment, apart: true, ..plain(group) };
    check(&["tcp_connect", "tcp_accept", "tcp_close"].map(run));
}

#[test]
fn streams_begin_and_end_alike_asleep() {
    streams_begin_and_end_alike(SLEEPING);
}

#[test]
fn streams_begin_and_end_alike_while_spinning() {
    streams_begin_and_end_alike(SPINNING);
}

#[test]
fn waiting_for_streams_is_alike_by_default_and_asleep() {
    alike_in_each(&["tcp_ready", "tcp_epoll"], &["mixed"], &[&[], SLEEPING]);
}

#[test]
fn waiting_for_streams_is_alike_while_spinning() {
    alike_in_each(&["tcp_ready", "tcp_epoll"], &["mixed"], &[SPINNING]);
}

// covers: API-27, FIX-02
#[test]
fn options_of_streams_are_kept_and_told_alike() {
    alike("tcp_options");
}

// covers: API-27
#[test]
fn options_of_streams_work_on_connections_alike() {
    alike("tcp_options_live");
}

#[test]
fn streams_within_the_host_are_alike() {
    alike_in("tcp_local", ATTENTIVE);
}

#[test]
fn threads_are_cancelled_alike() {
    alike_in_each(&["cancel"], &[], &[&[], SLEEPING]);
}

#[test]
fn spinning_threads_are_cancelled_alike() {
    alike_in("cancel", SPINNING);
}

#[test]
fn unusual_calls_are_alike() {
    alike("calls");
}

#[test]
fn fortified_programs_see_the_same_streams() {
    alike_fortified(&[("calls", &[]), ("tcp_send", &[]), ("tcp_receive", &[])]);
}

#[track_caller]
fn alike_over_ipv6<'a>(
    groups: &[&'a str],
    environment: &'a [(&'a str, &'a str)],
    except: &'a [&'a str],
) {
    let run = |group: &&'a str| Run { environment, build: Build::Ipv6, except, ..plain(group) };
    check(&groups.iter().map(run).collect::<Vec<_>>());
}

// covers: NET-03
#[test]
fn datagrams_over_ipv6_are_sent_and_received_alike() {
    alike_over_ipv6(&["send", "receive", "ancillary", "trains"], SLEEPING, &[]);
}

// covers: NET-03
#[test]
fn multicast_over_ipv6_is_alike() {
    alike_over_ipv6(&["multicast"], &[], &[]);
}

#[test]
fn names_and_options_over_ipv6_are_alike() {
    alike_over_ipv6(&["names", "options"], &[], &[]);
    check(&[Run { build: Build::Ipv6, ..LIMITS }]);
}

#[test]
fn waiting_over_ipv6_is_alike() {
    alike_over_ipv6(&["wait", "epoll"], ATTENTIVE, &[]);
}

#[test]
fn processes_and_threads_share_sockets_over_ipv6_alike() {
    alike_over_ipv6(&["processes", "threads", "descriptors"], &[], &[]);
}

fn alone_over_ipv6(group: &str) -> Run<'_> {
    Run { build: Build::Ipv6, apart: true, ..plain(group) }
}

// covers: NET-03
#[test]
fn streams_over_ipv6_begin_alike() {
    check(&["tcp_connect", "tcp_accept"].map(alone_over_ipv6));
}

#[test]
fn streams_over_ipv6_are_sent_and_received_alike() {
    alike_over_ipv6(&["tcp_send", "tcp_receive"], SLEEPING, &[]);
}

#[test]
fn streams_over_ipv6_end_alike() {
    check(&[alone_over_ipv6("tcp_close")]);
}

#[test]
fn processes_share_streams_over_ipv6_alike() {
    alike_over_ipv6(&["tcp_processes"], &[], &[]);
}

#[test]
fn waiting_for_streams_over_ipv6_is_alike() {
    alike_over_ipv6(&["tcp_ready", "tcp_epoll"], ATTENTIVE, &[]);
}

#[test]
fn options_of_streams_over_ipv6_are_alike() {
    alike_over_ipv6(&["tcp_options", "tcp_options_live"], &[], &[]);
}

#[test]
fn interrupted_calls_over_ipv6_are_alike() {
    alike_over_ipv6(&["signals", "cancel", "longjmp", "tcp_urgent"], &[], &[]);
}
