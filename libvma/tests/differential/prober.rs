//! The prober under the kernel and under the library: how it is compiled and run, and the kernel's
//! transcripts that the tests of one run share.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::harness::{Namespaces, Output, Side, Traffic, compile_once};
use crate::transcript::Transcript;

/// A peer's second address, for what concerns sources.
const SECOND_ADDRESS: &str = "10.99.0.3";

/// Seconds until a prober that hangs is ended, its transcript so far being what it is.
pub const LIMIT: &str = "45";

/// Measurements of a transcript until each of its times is what the prober expects.
pub const TRIES: usize = 3;

/// How the prober is compiled.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    Plain,
    Fortified,
    /// All is over IPv6.
    Ipv6,
    /// Its peer is another process of this host.
    Local,
    /// The same, and streams go over `::1`.
    LocalIpv6,
    /// Datagrams, too.
    LocalDatagramsIpv6,
    /// The same over other addresses of the host.
    OwnIpv6,
}

/// The calls that `over_ipv6.c` puts functions before.
const WRAPPED: &str = "-Wl,--wrap=socket,--wrap=bind,--wrap=connect,--wrap=sendto,--wrap=sendmsg,\
    --wrap=sendmmsg,--wrap=setsockopt,--wrap=getsockopt";

/// One run of a group.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub group: &'a str,
    pub environment: &'a [(&'a str, &'a str)],
    pub build: Build,
    /// Cases that are not compared in this run.
    pub except: &'a [&'a str],
    /// No other run of the same test goes on at the same time. Nor does one beside a run that spins.
    pub apart: bool,
}

pub const fn plain(group: &str) -> Run<'_> {
    Run { group, environment: &[], build: Build::Plain, except: &[], apart: false }
}

/// The prober, compiled once for all test processes.
pub fn program(build: Build) -> PathBuf {
    let (name, options): (_, &[&str]) = match build {
        Build::Plain => ("prober", &["-O1"]),
        Build::Fortified => {
            ("prober-fortified", &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"])
        }
        Build::Ipv6 => ("prober-ipv6", &["-O1", "-DOVER_IPV6", "-DDATAGRAMS_TOO", WRAPPED]),
        Build::Local => ("prober-local", &["-O1", "-DWITHIN_ONE_HOST"]),
        Build::LocalIpv6 => {
            ("prober-local-ipv6", &["-O1", "-DWITHIN_ONE_HOST", "-DOVER_IPV6", WRAPPED])
        }
        Build::LocalDatagramsIpv6 => (
            "prober-local-datagrams-ipv6",
            &["-O1", "-DWITHIN_ONE_HOST", "-DOVER_IPV6", "-DDATAGRAMS_TOO", WRAPPED],
        ),
        Build::OwnIpv6 => (
            "prober-own-ipv6",
            &[
                "-O1",
                "-DWITHIN_ONE_HOST",
                "-DOVER_IPV6",
                "-DDATAGRAMS_TOO",
                "-DOWN_ADDRESSES",
                WRAPPED,
            ],
        ),
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential");
    let files = std::fs::read_dir(&here).expect("the prober's sources").flatten();
    let (mut sources, mut headers) = (Vec::new(), Vec::new());
    for path in files.map(|entry| entry.path()) {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("c") => sources.push(path),
            Some("h") => headers.push(path),
            _ => {}
        }
    }
    // Wrong calls in the cases are wrong on purpose.
    let always = "-g -Wall -Werror -Wno-nonnull -Wno-stringop-overflow -Wno-stringop-overread \
                  -Wno-unused-result -Wno-attribute-warning -Wno-deprecated-declarations \
                  -D_GNU_SOURCE -pthread";
    let options: Vec<&str> = options.iter().copied().chain(always.split_whitespace()).collect();
    compile_once(name, &options, &sources, &headers)
}

/// Runs the prober between the two sides, by itself or under the library.
pub fn probe(run: &Run<'_>, with_library: bool) -> (Output, Traffic) {
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
    if matches!(run.build, Build::Ipv6) {
        add_ipv6(&net);
    }
    let mut command = net
        .program(Side::A, "timeout")
        .args(&format!("-s KILL {LIMIT}"))
        .arg(&program(run.build).to_string_lossy())
        .args(&format!("run /run/netns/{} {}", net.name(Side::B), run.group));
    if with_library {
        command = command.with_library().env("VMA_TRACELEVEL", "warning");
        for (name, value) in run.environment {
            command = command.env(name, value);
        }
    }
    let output = command.run();
    (output, traffic(&net.dir))
}

/// The twins of all that `probe` gives the two sides (`over_ipv6.c`).
fn add_ipv6(net: &Namespaces) {
    let ip = |side, words: &str| net.ip(side, &format!("-6 {words}"));
    for (side, other, last) in [(Side::A, Side::B, 1), (Side::B, Side::A, 2), (Side::B, Side::A, 3)]
    {
        net.add_ipv6(side, format_args!("fd00:99::{last}"));
        ip(
            other,
            &format!(
                "neigh replace fd00:99::{last} lladdr {} nud permanent dev {}",
                side.mac(),
                other.device()
            ),
        );
    }
    net.sysctl(Side::B, "net.ipv6.icmp.ratelimit", "0");
    ip(Side::A, "route add fd00:97::/32 via fd00:99::2");
    net.sysctl(Side::B, "net.ipv6.conf.all.forwarding", "1");
    for (kind, network) in [("blackhole", 1), ("unreachable", 2), ("prohibit", 3)] {
        ip(Side::B, &format!("route add {kind} fd00:97:{network}::/48"));
    }
}

/// The kernel's transcript of the group.
#[track_caller]
pub fn of_kernel(run: &Run<'_>) -> Transcript {
    kept(run, || probe(run, false).0)
}

/// The kernel's transcript, whatever was kept of it.
#[track_caller]
pub fn of_kernel_again(run: &Run<'_>) -> Transcript {
    taken_again(run, || probe(run, false).0)
}

/// The program's output under the library.
pub fn of_library(run: &Run<'_>) -> Transcript {
    let (output, traffic) = probe(run, true);
    Transcript::new(&output, traffic)
}

/// The library's counts in all processes of a run.
pub fn traffic(dir: &Path) -> Traffic {
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

/// The transcript of the kernel that `probe` takes, once for all tests of a nextest run. The file's
/// name has all that a transcript depends on; the folder's name is the run's.
#[track_caller]
pub fn kept(run: &Run<'_>, probe: impl Fn() -> Output) -> Transcript {
    let (file, _lock) = place(run);
    if let Ok(text) = std::fs::read_to_string(&file) {
        return Transcript::of_text(&text);
    }
    take(run, probe, &file)
}

/// What `probe` takes, also if there is one already: it is the one for the tests that follow.
#[track_caller]
pub fn taken_again(run: &Run<'_>, probe: impl Fn() -> Output) -> Transcript {
    let (file, _lock) = place(run);
    take(run, probe, &file)
}

/// Where the kernel's transcript is kept, locked: another test process that wants the same one waits.
fn place(run: &Run<'_>) -> (PathBuf, File) {
    let program = program(run.build);
    let program = program.file_name().expect("it is a file").to_string_lossy();
    let file = folder_of_run().join(format!("{program}-{}", run.group));
    let lock = File::create(file.with_extension("lock")).expect("a lock file");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("flock");
    (file, lock)
}

#[track_caller]
fn take(run: &Run<'_>, probe: impl Fn() -> Output, file: &Path) -> Transcript {
    let mut tried = 0;
    let mut always_early: Option<BTreeSet<String>> = None;
    let (text, transcript) = loop {
        let output = probe();
        let transcript = Transcript::new(&output, Traffic::default());
        transcript.is_reference();
        tried += 1;
        if let Some(late) = transcript.late_line() {
            eprintln!("{}: the kernel's own time is wrong: {late}", run.group);
            assert!(tried < TRIES, "the kernel keeps no time in {TRIES} measurements: {late}");
            continue;
        }
        // A call that is early in two measurements is so by itself; in one, the prober was held up.
        let early: BTreeSet<String> = transcript.early_lines().map(str::to_owned).collect();
        let is_settled = |before: &BTreeSet<String>| early.is_subset(before);
        if early.is_empty() || tried >= TRIES || always_early.as_ref().is_some_and(is_settled) {
            break (output.stdout, transcript);
        }
        eprintln!(
            "{}: measured again, as calls took less time than expected: {early:?}",
            run.group
        );
        always_early = Some(match always_early {
            Some(before) => &before & &early,
            None => early,
        });
    };
    let new = file.with_extension("new");
    std::fs::write(&new, text).expect("the transcript is written");
    std::fs::rename(&new, file).expect("the transcript is put in place");
    transcript
}

/// Transcripts of this run of the tests: of this nextest run, or of this process alone. Those of runs
/// that are a day old are removed.
fn folder_of_run() -> PathBuf {
    const DAY_SECONDS: u64 = 24 * 60 * 60;
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("transcripts");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux has one");
    let run = std::env::var("NEXTEST_RUN_ID");
    let run = run.unwrap_or_else(|_| format!("process-{}", std::process::id()));
    let folder = all.join(format!("{}-{run}", boot.trim()));
    if !folder.exists() {
        for entry in std::fs::read_dir(&all).into_iter().flatten().flatten() {
            let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok();
            let age = changed.and_then(|changed| changed.elapsed().ok());
            if age.is_some_and(|age| age.as_secs() > DAY_SECONDS) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        std::fs::create_dir_all(&folder).expect("a folder for transcripts");
    }
    folder
}
