//! Programs that count what a call allocates: `allocations.h` before their source.

use std::path::PathBuf;
use std::process::Command;

use super::{Namespaces, Program, compile, library};

/// As [`compile`], with the counters before the source.
#[track_caller]
pub fn compile_counting(net: &Namespaces, name: &str, source: &str) -> PathBuf {
    let source = format!("{}\n{source}", include_str!("allocations.h"));
    compile(net, name, &source, &["-rdynamic"])
}

impl Program<'_> {
    /// Tells the program where in the thread's memory the library under test counts.
    #[track_caller]
    pub fn counting(self) -> Self {
        let symbols = Command::new("nm").arg(library()).output().expect("nm");
        let symbols = String::from_utf8(symbols.stdout).expect("symbols");
        let is_counter = |line: &&str| line.contains("3vma3sys6thread5LOCAL");
        let counter = symbols.lines().find(is_counter).expect("a library with its symbols");
        let place = counter.split(' ').next().expect("an address");
        self.env("LIBVMA_COUNTER", place)
    }
}
