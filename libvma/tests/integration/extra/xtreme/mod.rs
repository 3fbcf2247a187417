//! SocketXtreme: completions of a ring instead of receive calls. `datagrams` is UDP, `streams` is TCP, `threads` several threads, and counts.

mod datagrams;
mod streams;
mod threads;

use super::compiled;
use crate::harness::{Namespaces, Program, Running, Side};

/// A program of this folder on side A, in the mode.
#[track_caller]
fn program<'a>(net: &'a Namespaces, name: &str, source: &str) -> Program<'a> {
    let source = source.replace("#include \"ring.h\"\n", include_str!("ring.h"));
    let program = net.program(Side::A, compiled(&net.dir, name, &source).to_str().expect("text"));
    program.with_library().env("VMA_SOCKETXTREME", "1")
}

#[track_caller]
fn is_done(running: Running) -> String {
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
    output.stderr
}
