//! What takes a descriptor is decided, all of it: `src/preload/calls.list` against the C library and the kernel's
//! headers of this machine. docs/interposition.md is that list for readers:
//! `UPDATE=1 cargo nextest run -p libvma --test differential -E 'test(/interposition/)'` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const LIST: &str = include_str!("../../src/preload/calls.list");
const SYMBOLS: &str = include_str!("../../src/preload/symbols.rs");
const BY_NUMBER: &str = include_str!("../../src/preload/syscall.rs");

/// Names with one decision, and what docs/interposition.md says of them.
struct Group {
    kind: &'static str,
    decision: &'static str,
    sentence: String,
    names: Vec<&'static str>,
}

fn groups() -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut section = None;
    let mut sentence = String::new();
    for line in LIST.lines().filter(|line| !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = header.split_once(' ');
            sentence.clear();
        } else if let Some(words) = line.strip_prefix("> ") {
            // A sentence may take several lines; names end it.
            let goes_on = groups.last().is_some_and(|group| group.names.is_empty());
            if !goes_on {
                sentence.clear();
            }
            sentence = format!("{sentence} {words}").trim().to_owned();
            let Some((kind, decision)) = section else { continue };
            if goes_on {
                groups.pop();
            }
            groups.push(Group { kind, decision, sentence: sentence.clone(), names: Vec::new() });
        } else if let Some((kind, decision)) = section
            && !line.is_empty()
        {
            let same =
                groups.last().is_some_and(|last| (last.kind, last.decision) == (kind, decision));
            if !same {
                groups.push(Group { kind, decision, sentence: String::new(), names: Vec::new() });
            }
            let last = groups.last_mut().expect("there is one now");
            last.names.extend(line.split_whitespace());
        }
    }
    groups
}

/// The names of one kind, each with its decision.
fn decided(kind: &str) -> BTreeMap<&'static str, &'static str> {
    let mut decided = BTreeMap::new();
    for group in groups().iter().filter(|group| group.kind == kind) {
        for name in &group.names {
            let other = decided.insert(*name, group.decision);
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

// covers: API-11
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

// covers: API-11
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

/// The kernel of this machine has no system call that is newer than those of the list.
#[test]
fn the_running_kernel_has_no_newer_system_call() {
    // file_setattr, the last one of Linux 6.17 and 6.18; those after it have the next numbers.
    const LAST: u32 = 469;
    assert!(decided("syscall").contains_key("file_setattr"));
    // Arguments that every call refuses.
    let program = format!(
        "import ctypes, errno\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         bad = [ctypes.c_long(-1)] * 6\n\
         for number in range({LAST} + 1, 512):\n\
         \x20   libc.syscall(ctypes.c_long(number), *bad)\n\
         \x20   if ctypes.get_errno() != errno.ENOSYS: print(number, end=' ')\n"
    );
    let output = Command::new("python3").args(["-c", &program]).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let newer = String::from_utf8_lossy(&output.stdout);
    assert!(
        newer.is_empty(),
        "the kernel has system calls that nobody has decided about, by their numbers: {newer}\n\
         Put their names into libvma/src/preload/calls.list, and the last number here."
    );
}

const INTRODUCTION: &str = "\
# Interposition

<!-- generated from libvma/src/preload/calls.list:
UPDATE=1 cargo nextest run -p libvma --test differential -E 'test(/interposition/)' -->

Which calls of a program does libvma see, and what does it do with the descriptor? Every function of the C library (glibc
2.36 and later) and every system call (Linux 6.18 and earlier) that takes or makes a descriptor stands here. What is not
here takes none. A test compares the list behind this page with the C library, the kernel's headers and the kernel of the
machine that it runs on, and fails if a call is missing.

A socket that is served in user space has a *kernel's socket* of the same number. It reserves the port, holds the options
and receives what does not come by the library. *Handed over* means that the kernel's socket takes the whole work from then
on; an established connection moves there as it is, and neither the program nor its peer notices.
";

/// Sections of the document: title, what it is about, and the decisions in it.
const FUNCTIONS: &[(&str, &str, &[&str])] = &[
    (
        "Functions that the library does not define but hears of",
        "The C library tells of them.",
        &["noted"],
    ),
    (
        "Functions that may be called on a served socket, and go to the kernel's",
        "They are not interposed, because the kernel's socket gives the right answer.",
        &["shadow", "refused"],
    ),
    (
        "Functions that have nothing to do with a served socket",
        "They are not interposed, because their descriptors never are sockets that the library serves.",
        &["not-watched", "inside-libc"],
    ),
    (
        "Functions that must not be called on a served socket",
        "They are not interposed, and would use the kernel's socket behind the library's back.",
        &["unserved"],
    ),
];

fn names(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ")
}

/// The document that the list amounts to.
fn interposition() -> String {
    let groups = groups();
    let is_named = |group: &&Group| !matches!(group.decision, "none" | "newer");
    for group in groups.iter().filter(is_named) {
        let names = group.names.join(" ");
        assert!(!group.sentence.is_empty(), "calls.list has no sentence (> ...) above {names}");
    }
    let of = |kind: &'static str, decision: &'static str| {
        groups.iter().filter(move |group| (group.kind, group.decision) == (kind, decision))
    };
    let by_number = decided("syscall");
    let served = |name: &&&str| by_number.get(**name) == Some(&"served");
    let mut text = INTRODUCTION.to_owned();
    text += "\n## Functions that the library defines\n\n\
             The second column names the calls that are treated so when a program makes them by `syscall()`, too.\n\n\
             | functions | by syscall() | what the library does |\n|---|---|---|\n";
    for group in of("function", "interposed") {
        let calls: Vec<&str> = group.names.iter().filter(served).copied().collect();
        let (functions, calls) = (names(&group.names), names(&calls));
        text += &format!("| {functions} | {calls} | {} |\n", group.sentence);
    }
    for (title, about, decisions) in FUNCTIONS {
        text += &format!("\n## {title}\n\n{about}\n\n| functions | what happens |\n|---|---|\n");
        for group in decisions.iter().flat_map(|decision| of("function", decision)) {
            text += &format!("| {} | {} |\n", names(&group.names), group.sentence);
        }
    }
    text += "\n## System calls by number\n\n\
             What `syscall()` of the C library does. A system call that a program makes without the C library (a static\n\
             program, Go, an instruction of its own) goes to the kernel's socket, and the library does not know.\n\n\
             | decision | system calls | what happens |\n|---|---|---|\n";
    for (decision, word) in [
        ("served", "interposed"),
        ("shadow", "the kernel's socket"),
        ("refused", "the kernel's socket"),
        ("not-watched", "no served socket"),
        ("unserved", "not to be made on a served socket"),
    ] {
        for group in of("syscall", decision) {
            text += &format!("| {word} | {} | {} |\n", names(&group.names), group.sentence);
        }
    }
    text
}

#[test]
fn the_document_of_interposition_is_current() {
    let known = ["interposed", "served", "none", "newer"];
    let shown = |decision: &str| {
        known.contains(&decision) || FUNCTIONS.iter().any(|(_, _, all)| all.contains(&decision))
    };
    let forgotten = groups().into_iter().map(|group| group.decision).find(|one| !shown(one));
    assert_eq!(forgotten, None, "a decision that the document does not show");
    crate::documents::is_current("interposition.md", &interposition(), "interposition");
}
