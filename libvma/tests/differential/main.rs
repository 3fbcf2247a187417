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
//! The same groups run again within one host, and a few more: see [`local`].
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
#[path = "../harness/mod.rs"]
#[allow(unused_imports, reason = "each test binary uses its part")]
mod harness;
mod local;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use harness::{Namespaces, Output, Side, Traffic};

/// A peer's second address, for what concerns sources.
const SECOND_ADDRESS: &str = "10.99.0.3";

/// Seconds until a prober that hangs is ended, its transcript so far being what it is.
const LIMIT: &str = "45";

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
];

/// Groups measure time and have two processors: one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// One run of a group.
struct Run<'a> {
    group: &'a str,
    environment: &'a [(&'a str, &'a str)],
    build: Build,
    /// Cases that are not compared in this run.
    except: &'a [&'a str],
}

/// What the kernel's UDP and TCP did during a case.
struct Counters {
    case: String,
    datagrams: u64,
    /// May the kernel have some of them?
    datagrams_shared: bool,
    segments: u64,
    segments_shared: bool,
}

/// What a run of the prober wrote.
struct Transcript {
    lines: Vec<String>,
    counters: Vec<Counters>,
    /// What ended it otherwise than well, and stderr.
    trouble: String,
    traffic: Traffic,
}

impl Transcript {
    fn new(output: &Output, traffic: Traffic) -> Transcript {
        let (lines, counters) = Transcript::parse(&output.stdout);
        let trouble = if output.status.success() {
            String::new()
        } else {
            format!("ended with {}, behind {:?}\n{}", output.status, lines.last(), output.stderr)
        };
        Transcript { lines, counters, trouble, traffic }
    }

    /// Panics unless it is one of a prober that was not under the library and went well.
    #[track_caller]
    fn is_reference(&self) {
        assert!(self.trouble.is_empty(), "without the library: {}", self.trouble);
        assert!(self.cases().last() == Some(&"end"), "the prober ended early");
        let failed = self.lines.iter().find(|line| line.contains(" | ! "));
        assert_eq!(failed, None, "the prober failed");
    }

    fn parse(text: &str) -> (Vec<String>, Vec<Counters>) {
        let mut lines = Vec::new();
        let mut counters = Vec::new();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("# ") else {
                lines.push(line.to_owned());
                continue;
            };
            let words: Vec<&str> = rest.split_whitespace().collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
            counters.push(Counters {
                case: words[0].to_owned(),
                datagrams: number(1) + number(2),
                datagrams_shared: words[3] == "kernel_too",
                segments: number(4) + number(5),
                segments_shared: words[6] != "offloaded",
            });
        }
        (lines, counters)
    }

    fn cases(&self) -> Vec<&str> {
        let mut cases: Vec<&str> = Vec::new();
        for line in &self.lines {
            let case = case_of(line);
            if cases.last() != Some(&case) {
                cases.push(case);
            }
        }
        cases
    }

    fn of_case(&self, case: &str) -> Vec<&str> {
        self.lines.iter().map(String::as_str).filter(|line| case_of(line) == case).collect()
    }
}

fn case_of(line: &str) -> &str {
    line.split_once(" | ").map_or(line, |(case, _)| case)
}

/// How the prober is compiled.
#[derive(Clone, Copy)]
enum Build {
    Plain,
    Fortified,
    /// Its peer is another process of this host.
    Local,
}

/// The prober, compiled once for all tests of a run.
fn prober(build: Build) -> &'static Path {
    static PLAIN: OnceLock<PathBuf> = OnceLock::new();
    static FORTIFIED: OnceLock<PathBuf> = OnceLock::new();
    static LOCAL: OnceLock<PathBuf> = OnceLock::new();
    let (slot, name, options): (_, _, &[&str]) = match build {
        Build::Plain => (&PLAIN, "prober", &["-O1"]),
        Build::Fortified => {
            (&FORTIFIED, "prober-fortified", &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"])
        }
        Build::Local => (&LOCAL, "prober-local", &["-O1", "-DWITHIN_ONE_HOST"]),
    };
    slot.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential");
        let program =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let sources = std::fs::read_dir(&here).expect("the prober's sources").flatten();
        let sources: Vec<PathBuf> = sources
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
            .collect();
        let output = Command::new("cc")
            .args(options)
            // What the cases do wrong, they do on purpose.
            .args(["-g", "-Wall", "-Werror", "-Wno-nonnull", "-Wno-stringop-overflow"])
            .args(["-Wno-stringop-overread", "-Wno-unused-result", "-Wno-attribute-warning"])
            .args(["-Wno-deprecated-declarations", "-D_GNU_SOURCE", "-pthread", "-o"])
            .arg(&program)
            .args(&sources)
            .output()
            .expect("a C compiler is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    })
}

fn probe(run: &Run<'_>, with_library: bool) -> Transcript {
    let net = Namespaces::new();
    net.ip(Side::B, &format!("address add {SECOND_ADDRESS}/24 dev {}", Side::B.device()));
    net.ip(
        Side::A,
        &format!(
            "neigh replace {SECOND_ADDRESS} lladdr {} nud permanent dev {}",
            Side::B.mac(),
            Side::A.device()
        ),
    );
    // Every datagram to a closed port is answered.
    net.sysctl(Side::B, "net.ipv4.icmp_ratelimit", "0");
    // B as a router to nowhere: one that says nothing, two that say so.
    net.ip(Side::A, &format!("route add 10.97.0.0/16 via {}", Side::B.ip()));
    net.sysctl(Side::B, "net.ipv4.ip_forward", "1");
    for (kind, network) in [("blackhole", 1), ("unreachable", 2), ("prohibit", 3)] {
        net.ip(Side::B, &format!("route add {kind} 10.97.{network}.0/24"));
    }
    let mut program = net
        .program(Side::A, "timeout")
        .args(&format!("-s KILL {LIMIT}"))
        .arg(&prober(run.build).to_string_lossy())
        .args(&format!("run /run/netns/{} {}", net.name(Side::B), run.group));
    if with_library {
        program = program.with_library().env("VMA_TRACELEVEL", "warning");
        for (name, value) in run.environment {
            program = program.env(name, value);
        }
    }
    let output = program.run();
    Transcript::new(&output, traffic(&net.dir))
}

/// What the library counted in all processes of a run.
fn traffic(dir: &Path) -> Traffic {
    let mut sum = Traffic::default();
    for entry in std::fs::read_dir(dir).expect("the test's files").flatten() {
        if entry.file_name().to_string_lossy().starts_with("stats.") {
            let one = Traffic::read(&entry.path());
            sum.rx += one.rx;
            sum.tx += one.tx;
        }
    }
    sum
}

/// Are two lines the same? A count marked `~` may differ by 15 % and 2: the kernel counts a
/// buffer by what its driver allocated.
fn same(kernel: &str, library: &str) -> bool {
    if kernel == library {
        return true;
    }
    let split = |line: &str| {
        let (text, number) = line.rsplit_once(": ")?;
        Some((text.to_owned(), number.parse::<i64>().ok()?))
    };
    match (split(kernel), split(library)) {
        (Some((text, expected)), Some((other, found))) if text.contains(" | ~ ") => {
            text == other && (expected - found).abs() <= expected * 15 / 100 + 2
        }
        _ => false,
    }
}

/// What differs, for a reader. Empty if nothing does.
fn difference(run: &Run<'_>, kernel: &Transcript, library: &Transcript) -> String {
    const BEFORE: usize = 3;
    const SHOWN: usize = 8;
    let mut text = String::new();
    for case in kernel.cases() {
        if run.except.contains(&case) || KNOWN.contains(&(run.group, case)) {
            continue;
        }
        let (ours, theirs) = (library.of_case(case), kernel.of_case(case));
        let longest = ours.len().max(theirs.len());
        let first = (0..longest).find(|at| match (theirs.get(*at), ours.get(*at)) {
            (Some(kernel), Some(library)) => !same(kernel, library),
            _ => true,
        });
        let Some(first) = first else { continue };
        let _ = writeln!(text, "--- {}/{case}", run.group);
        for line in theirs.iter().take(first).skip(first.saturating_sub(BEFORE)) {
            let _ = writeln!(text, "  both:    {line}");
        }
        for (who, lines) in [("kernel", &theirs), ("library", &ours)] {
            for line in lines.iter().skip(first).take(SHOWN) {
                let _ = writeln!(text, "  {who:8} {line}");
            }
            if lines.len() <= first {
                let _ = writeln!(text, "  {who:8} (ends)");
            }
        }
    }
    text
}

/// The kernel saw nothing of the cases that are ours alone, and the library did see them.
fn fallen_back(run: &Run<'_>, kernel: &Transcript, library: &Transcript) -> String {
    let mut text = String::new();
    for counters in &library.counters {
        let case = &counters.case;
        if !counters.datagrams_shared && counters.datagrams > 0 {
            let count = counters.datagrams;
            let _ = writeln!(text, "{}/{case}: {count} datagrams by the kernel", run.group);
        }
        if !counters.segments_shared && counters.segments > 0 {
            let count = counters.segments;
            let _ = writeln!(text, "{}/{case}: {count} segments by the kernel", run.group);
        }
    }
    let ours = kernel.counters.iter().filter(|case| !case.datagrams_shared);
    let expected: u64 = ours.map(|case| case.datagrams).sum();
    let offloaded = library.traffic.rx + library.traffic.tx;
    if offloaded < expected {
        let _ = writeln!(
            text,
            "{}: {expected} datagrams without the library, {offloaded} offloaded with it",
            run.group
        );
    }
    text
}

#[track_caller]
fn check(run: &Run<'_>) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut last = String::new();
    // What came late once is measured again; what differs for another reason never is.
    for _ in 0..3 {
        let kernel = probe(run, false);
        kernel.is_reference();
        let library = probe(run, true);
        let mut text = difference(run, &kernel, &library);
        text.push_str(&library.trouble);
        text.push_str(&fallen_back(run, &kernel, &library));
        if text.is_empty() {
            return;
        }
        let late = text.contains(" ms, not ");
        last = text;
        if !late {
            break;
        }
    }
    panic!(
        "with the library (VMA_*: {:?}) the program sees something else:\n{last}",
        run.environment
    );
}

fn plain(group: &str) -> Run<'_> {
    Run { group, environment: &[], build: Build::Plain, except: &[] }
}

#[track_caller]
fn alike(group: &str) {
    check(&plain(group));
}

#[track_caller]
fn alike_in(group: &str, environment: &[(&str, &str)]) {
    check(&Run { environment, ..plain(group) });
}

#[track_caller]
fn alike_fortified(group: &str, environment: &[(&str, &str)]) {
    check(&Run { environment, build: Build::Fortified, ..plain(group) });
}

// covers: API-01, API-04, API-05, API-16, API-30, FIX-10, FIX-21, LIM-34, LIM-79, NET-41
#[test]
fn sockets_have_the_kernels_names_and_peers() {
    alike("names");
}

// covers: API-11
#[test]
fn calls_on_wrong_descriptors_fail_alike() {
    alike("bad_descriptors");
}

// covers: LIM-45
#[test]
fn pointers_to_nowhere_fail_alike() {
    alike("bad_pointers");
}

// covers: API-08, API-21, FIX-08, LIM-44, NET-01, NET-23
#[test]
fn datagrams_are_sent_alike() {
    alike("send");
}

// covers: API-10, API-13, LIM-49, NET-01
#[test]
fn datagrams_are_received_alike() {
    alike("receive");
}

// covers: API-10
#[test]
fn datagrams_are_received_alike_asleep_and_spinning() {
    alike_in("receive", SLEEPING);
    alike_in("receive", SPINNING);
}

// covers: API-12, FIX-12
#[test]
fn fortified_programs_see_the_same() {
    alike_fortified("send", &[]);
    alike_fortified("receive", &[]);
    alike_fortified("wait", ATTENTIVE);
}

// covers: API-25, NET-28
#[test]
fn control_messages_are_the_same() {
    alike("ancillary");
}

// covers: API-21, API-38
#[test]
fn options_are_kept_and_told_alike() {
    alike("options");
}

// covers: API-15
#[test]
fn a_socket_holds_as_much() {
    // It sends 2000 datagrams before it looks; a ring loses what it has no frame for, uncounted.
    alike_in("limits", &[("VMA_RX_WRE", "4096")]);
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

// covers: MUX-04, MUX-07
#[test]
fn poll_and_select_tell_the_same_asleep_and_spinning() {
    for environment in [SLEEPING, SPINNING] {
        check(&Run { environment, except: &["poll_mixed", "select_mixed"], ..plain("wait") });
    }
}

// covers: MUX-03, MUX-10, MUX-11, LIM-31
#[test]
fn epoll_tells_the_same() {
    alike_in("epoll", ATTENTIVE);
}

// covers: MUX-04, MUX-07
#[test]
fn epoll_tells_the_same_by_default_asleep_and_spinning() {
    for environment in [&[], SLEEPING, SPINNING] {
        check(&Run { environment, except: &["mixed"], ..plain("epoll") });
    }
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
    for environment in [&[], SLEEPING, SPINNING] {
        alike_in("longjmp", environment);
    }
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

// covers: THR-14
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

// covers: API-26
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

#[test]
fn streams_end_alike() {
    alike("tcp_close");
}

#[test]
fn processes_share_streams_alike() {
    alike("tcp_processes");
}

#[test]
fn poll_and_select_tell_the_same_of_streams() {
    alike_in("tcp_ready", ATTENTIVE);
}

#[test]
fn epoll_tells_the_same_of_streams() {
    alike_in("tcp_epoll", ATTENTIVE);
}

#[test]
fn streams_are_alike_asleep_and_spinning() {
    for environment in [SLEEPING, SPINNING] {
        for group in ["tcp_send", "tcp_receive", "tcp_urgent"] {
            alike_in(group, environment);
        }
    }
}

#[test]
fn streams_begin_and_end_alike_asleep_and_spinning() {
    for environment in [SLEEPING, SPINNING] {
        for group in ["tcp_connect", "tcp_accept", "tcp_close"] {
            alike_in(group, environment);
        }
    }
}

#[test]
fn waiting_for_streams_is_alike_asleep_and_spinning() {
    for environment in [&[], SLEEPING, SPINNING] {
        for group in ["tcp_ready", "tcp_epoll"] {
            check(&Run { environment, except: &["mixed"], ..plain(group) });
        }
    }
}

// covers: API-27
#[test]
fn options_of_streams_are_kept_and_told_alike() {
    alike("tcp_options");
}

#[test]
fn streams_within_the_host_are_alike() {
    alike_in("tcp_local", ATTENTIVE);
}

#[test]
fn threads_are_cancelled_alike() {
    for environment in [&[], SLEEPING, SPINNING] {
        alike_in("cancel", environment);
    }
}

#[test]
fn unusual_calls_are_alike() {
    alike("calls");
}

#[test]
fn fortified_programs_see_the_same_streams() {
    alike_fortified("calls", &[]);
    alike_fortified("tcp_send", &[]);
    alike_fortified("tcp_receive", &[]);
}
