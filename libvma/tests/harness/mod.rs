//! The bench on which integration tests lay a program: two network namespaces joined by a veth
//! pair, programs in either with the library or without it, and the counters that tell which way
//! the traffic went.
//!
//! ```text
//!    side A (10.99.0.1, veth-a)  <------ cable ------>  side B (10.99.0.2, veth-b)
//!    by convention the library's                        by convention the kernel's
//! ```
//!
//! * [`Namespaces`] makes the pair and removes it, with every process in it, when dropped, so also
//!   when a test fails. Its directory is the tests' only place for files.
//! * [`Namespaces::socket`] is a kernel socket of the test itself in one of the namespaces.
//! * [`Namespaces::program`] runs a program to its end or beside the test ([`program::Running`]).
//! * [`Puppet`] is a Python program that does, line by line, what the test tells it. Most tests
//!   use it: each step is over when [`Puppet::run`] returns, so nothing has to sleep.
//! * [`Namespaces::watch`] fails a test whose traffic fell back to the kernel in silence;
//!   [`Namespaces::watch_tcp`] does it for TCP.
//! * [`Ends`] is a server and its clients, one or both under the library.
//! * [`Sandbox`] is another bench: one namespace with `lo` alone, without any privilege, for traffic
//!   within one host; it needs no root.
//! * [`Relay::splice`] puts faults in the cable: loss, duplicates, reordering, delay, corruption.
//!
//! The library under test is `<target>/release/libvma.so`, which `cargo build --release -p libvma`
//! makes; `LIBVMA=<path>` names another one.

#![allow(dead_code, reason = "each test binary uses its part")]

mod allocations;
mod compiled;
mod ends;
mod net;
mod program;
mod puppet;
mod relay;
mod sandbox;
mod stats;
mod tcp_watch;

#[allow(unused_imports, reason = "each test binary uses its part")]
pub use allocations::compile_counting;
#[allow(unused_imports, reason = "each test binary uses its part")]
pub use compiled::{compile, compile_in, compile_once};
pub use ends::{Ends, Library, Shown, installed};
pub use net::{Hook, Namespaces, Offload, Side, kernel_version};
pub use program::{Output, Program, Running};
pub use puppet::{BURSTS, Puppet};
pub use relay::{Faults, Relay};
pub use sandbox::{Counters, Sandbox, Watch};
pub use stats::Traffic;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How long a condition may take to come true before a test gives up. Far beyond what it takes:
/// the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Python, by its real path: a version manager's wrapper would be a shell script.
pub const PYTHON: &str = "/usr/bin/python3";

/// Polls until `condition` yields something; panics after [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = condition() {
            return result;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Does `work` for each item, so many at the same time. For work that sleeps most of the time, each item in namespaces of
/// its own.
pub fn at_once<T: Sync>(at_most: usize, items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..at_most.min(items.len()) {
            scope.spawn(worker);
        }
        worker();
    });
}

/// Is this `ci/test --long`? Then tests with draws, repetitions or directions take all of theirs.
pub fn is_long() -> bool {
    std::env::var_os("LIBVMA_LONG").is_some_and(|value| value != "0")
}

/// The path of the library under test. Panics if it is missing or older than its sources.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("LIBVMA") {
            return std::fs::canonicalize(&path)
                .unwrap_or_else(|error| panic!("LIBVMA={}: {error}", path.display()));
        }
        // Cargo's scratch folder of integration tests is <target>/tmp.
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let target = scratch.parent().expect("<target>/tmp has a parent");
        let library = target.join("release/libvma.so");
        let built = modified(&library).unwrap_or_else(|| {
            panic!("no {}: run `cargo build --release -p libvma` first", library.display())
        });
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        if let Some((source, changed)) = newest(&package.join("src"))
            && changed > built
        {
            panic!(
                "{} is older than {}: run `cargo build --release -p libvma` first",
                library.display(),
                source.display()
            );
        }
        library
    })
}

/// The path of a program of the workspace, which lies beside the library under test.
pub fn tool(name: &str) -> PathBuf {
    let path = library().with_file_name(name);
    let path_shown = path.display();
    assert!(path.exists(), "no {path_shown}: run `cargo build --release --workspace` first");
    path
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

/// The file below a folder that changed last.
fn newest(folder: &Path) -> Option<(PathBuf, SystemTime)> {
    let entries = std::fs::read_dir(folder).ok()?;
    let files = entries.flatten().filter_map(|entry| {
        let path = entry.path();
        if path.is_dir() { newest(&path) } else { modified(&path).map(|time| (path, time)) }
    });
    files.max_by_key(|(_, time)| *time)
}
