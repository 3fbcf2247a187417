//! The TCP engine against other implementations: smoltcp, in simulated time, and the kernel of this
//! machine, over a TUN device in a network namespace (which needs root).
//!
//! The engine's sources are part of this program; the library, which exports libc's names, is not
//! linked. No harness of the compiler's, because with it all unit tests of the engine would be part
//! of this program, too: `main` speaks as much of libtest's language as cargo and nextest need.

#![allow(
    dead_code,
    unused_imports,
    reason = "the whole engine is compiled, unit tests without a harness included; these tests use part of it"
)]

#[path = "../../src/frame/mod.rs"]
pub mod frame;
#[path = "../../src/net/mod.rs"]
pub mod net;

mod against_smoltcp;
mod host;
mod kernel;
mod kernel_failures;
mod time_lines;
mod tun;

use std::panic::catch_unwind;
use std::process::ExitCode;

/// A test: its name and what it does.
pub type Test = (&'static str, fn());

/// Names functions as tests of their module.
#[macro_export]
macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        pub const TESTS: &[$crate::Test] =
            &[$((concat!(module_path!(), "::", stringify!($name)), $name)),+];
    };
}

fn main() -> ExitCode {
    let all: Vec<Test> =
        [against_smoltcp::TESTS, kernel::TESTS, kernel_failures::TESTS, time_lines::TESTS].concat();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if has("--list") {
        // No test is ignored.
        for (name, _) in all.iter().filter(|_| !has("--ignored")) {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let mut filters = Vec::new();
    let mut values = arguments.iter();
    while let Some(argument) = values.next() {
        match argument.as_str() {
            "--format" | "--color" | "--test-threads" | "--skip" | "-Z" => {
                values.next();
            }
            other if other.starts_with('-') => {}
            other => filters.push(other),
        }
    }
    let wanted = |name: &str| {
        let fits =
            |filter: &&str| if has("--exact") { name == *filter } else { name.contains(*filter) };
        filters.is_empty() || filters.iter().any(fits)
    };
    let mut failed = 0;
    for (name, test) in all.into_iter().filter(|(name, _)| wanted(name)) {
        let passed = catch_unwind(test).is_ok();
        failed += u32::from(!passed);
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    }
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
