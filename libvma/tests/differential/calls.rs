//! What takes a descriptor is decided, all of it: `src/preload/calls.list` against the C library and the kernel's
//! headers of this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const LIST: &str = include_str!("../../src/preload/calls.list");
const SYMBOLS: &str = include_str!("../../src/preload/symbols.rs");
const BY_NUMBER: &str = include_str!("../../src/preload/syscall.rs");

/// The names of one kind, each with its decision.
fn decided(kind: &str) -> BTreeMap<&'static str, &'static str> {
    let mut decided = BTreeMap::new();
    let mut section = None;
    for line in LIST.lines().filter(|line| !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = header.split_once(' ').filter(|(of, _)| *of == kind);
            continue;
        }
        let Some((_, decision)) = section else { continue };
        for name in line.split_whitespace() {
            let other = decided.insert(name, decision);
            assert_eq!(other, None, "calls.list has {kind} {name} twice");
        }
    }
    assert!(decided.len() > 300, "calls.list has no {kind}s");
    decided
}

fn with_decision<'a>(decided: &BTreeMap<&'a str, &str>, wanted: &str) -> BTreeSet<&'a str> {
    decided.iter().filter(|(_, decision)| **decision == wanted).map(|(name, _)| *name).collect()
}

#[track_caller]
fn all_are_decided<'a>(
    kind: &str,
    decided: &BTreeMap<&str, &str>,
    there: impl Iterator<Item = &'a str>,
) {
    let missing: Vec<&str> = there.filter(|name| !decided.contains_key(name)).collect();
    assert!(
        missing.is_empty(),
        "nobody has decided what the library does about these {kind}s: {}\n\
         Read what each does with a descriptor and put it into libvma/src/preload/calls.list, which says how.",
        missing.join(" ")
    );
}

/// The C library that this program runs on.
fn libc_file() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process's mappings");
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    paths.map(str::to_owned).find(|path| path.contains("/libc.so")).expect("it is linked to a libc")
}

#[test]
fn every_function_of_the_c_library_is_decided() {
    let decided = decided("function");
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--with-symbol-versions", &libc_file()])
        .output()
        .expect("nm is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let exported: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().rev();
            let (name, kind) = (fields.next()?, fields.next()?);
            // What only other parts of libc may use is no interface of a program's.
            let public = matches!(kind, "T" | "W" | "i") && !name.ends_with("@GLIBC_PRIVATE");
            public.then(|| name.split('@').next().unwrap_or(name))
        })
        .collect();
    assert!(exported.contains("recvmsg") && exported.len() > 2000, "{} names", exported.len());
    all_are_decided("function", &decided, exported.into_iter());
}

#[test]
fn functions_are_interposed_as_decided() {
    let decided = decided("function");
    let begin = SYMBOLS.find("symbols:begin").expect("the list's begin");
    let end = SYMBOLS.find("// symbols:end").expect("the list's end");
    let listed: BTreeSet<&str> = SYMBOLS[begin..end]
        .lines()
        .skip(1)
        .filter_map(|line| line.trim().split(',').next())
        .filter(|name| !name.is_empty())
        .collect();
    assert_eq!(with_decision(&decided, "interposed"), listed);
}

#[test]
fn every_system_call_is_decided() {
    let header = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"];
    let header = header.iter().find(|path| Path::new(path).exists()).expect("the kernel's headers");
    let text = std::fs::read_to_string(header).expect("it is readable");
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("#define __NR_")?.split_whitespace().next())
        .collect();
    assert!(names.contains(&"recvmsg"), "{names:?}");
    all_are_decided("syscall", &decided("syscall"), names.into_iter());
}

#[test]
fn system_calls_are_served_as_decided() {
    let is_name = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    let handled: BTreeSet<&str> = BY_NUMBER
        .split("libc::SYS_")
        .skip(1)
        .filter_map(|rest| rest.split(|byte: char| !is_name(byte)).next())
        .collect();
    assert_eq!(with_decision(&decided("syscall"), "served"), handled);
}
