//! docs/socket-options.md: every option of `options.h`, tried under the kernel and under the library.
//! `UPDATE=1 cargo nextest run -p libvma --test differential -E 'test(/option_table/)'` writes it.
//!
//! The prober (option_table.c) sets and reads each option on a UDP socket and on a connection; results and bytes
//! must be the kernel's. Then data go both ways, and the kernel's counters tell whether the socket is still served.
//! Whether the library looks at a value that the kernel's socket has taken is read from the library's source.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::prober::{Run, of_kernel, of_kernel_again, plain, probe};
use crate::transcript::{Comparison, Transcript};
use crate::turns::each;

const ROWS: &str = include_str!("options.h");
/// How the library treats an option of a UDP socket.
const OF_DATAGRAMS: &[&str] = &[
    include_str!("../../src/socket/options.rs"),
    include_str!("../../src/socket/multicast.rs"),
    include_str!("../../src/socket/multicast/request.rs"),
];
/// The same of a TCP socket, and what it answers by itself.
const OF_STREAMS: &str = include_str!("../../src/socket/stream/options.rs");
const ANSWERED: &str = include_str!("../../src/socket/stream/tell.rs");

/// Named by the code of TCP, without an effect on what it serves: handed on to accepted sockets, refused once there
/// is a connection, or ignored.
const WITHOUT_EFFECT: &[&str] =
    &["SO_PRIORITY", "TCP_FASTOPEN", "TCP_FASTOPEN_NO_COOKIE", "TCP_QUEUE_SEQ"];

/// A row of `options.h`.
struct Row {
    level: &'static str,
    name: &'static str,
    number: &'static str,
    sentence: &'static str,
}

impl Row {
    /// The prober's name of it: some options of IPv6 are named as those of IPv4.
    fn key(&self) -> String {
        let is_named = self.level != "IPPROTO_IPV6" || self.name.starts_with("IPV6");
        format!("{}{}", if is_named { "" } else { "IPV6_" }, self.name)
    }
}

fn rows() -> Vec<Row> {
    let row = |line: &'static str| {
        let (fields, sentence) = line.strip_prefix("O(")?.split_once('"')?;
        let fields: Vec<&str> = fields.split(", ").collect();
        let &[level, name, number, _, _, ""] = fields.as_slice() else { panic!("{line}") };
        Some(Row { level, name, number, sentence: sentence.strip_suffix("\")")? })
    };
    let rows: Vec<Row> = ROWS.lines().filter_map(row).collect();
    let lines = ROWS.lines().filter(|line| line.starts_with("O(SOL") || line.starts_with("O(IPP"));
    assert_eq!(rows.len(), lines.count(), "a row of options.h that cannot be read");
    let numbers: BTreeSet<_> = rows.iter().map(|row| (row.level, row.number)).collect();
    assert_eq!(numbers.len(), rows.len(), "options.h has a number twice");
    rows
}

/// The results of the prober for an option on a socket of one protocol.
struct Seen {
    can_be_set: bool,
    can_be_read: bool,
    /// That the kernel counted afterwards.
    packets: u64,
}

/// By protocol and name, out of the prober's standard error output.
fn seen(text: &str) -> BTreeMap<(String, String), Seen> {
    let mut seen = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("@ ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[protocol, name, set, read, packets] = words.as_slice() else { panic!("{line}") };
        let packets = packets.parse().expect("a number of packets");
        let one = Seen { can_be_set: set == "1", can_be_read: read == "1", packets };
        seen.insert((protocol.to_owned(), name.to_owned()), one);
    }
    seen
}

/// The constants that code names, without its constant lists and imports: what it makes a decision about.
fn named(source: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut in_constant = false;
    for line in source.lines().take_while(|line| !line.starts_with("#[cfg(test)]")) {
        let code = line.split("//").next().unwrap_or_default();
        in_constant |= code.starts_with("const ");
        if !in_constant {
            let is_name = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
            names.extend(code.split(|byte: char| !is_name(byte)).filter(|name| name.contains('_')));
        }
        in_constant &= !code.trim_end().ends_with(';');
    }
    names
}

/// The class of an option.
fn class(protocol: &str, row: &Row, seen: &Seen) -> &'static str {
    let datagrams: BTreeSet<&str> = OF_DATAGRAMS.iter().flat_map(|source| named(source)).collect();
    let (streams, answered) = (named(OF_STREAMS), named(ANSWERED));
    let is_tcp = protocol == "tcp";
    // The library's names of the same numbers.
    let key = row.key();
    let name = match key.as_str() {
        "TCP_INQ" => "TCP_CM_INQ",
        key if key.starts_with("IPV6_MCAST_") => row.name,
        name => name,
    };
    if seen.packets > 0 {
        return "hands over";
    }
    if !seen.can_be_set && !seen.can_be_read {
        return "refused";
    }
    if is_tcp && answered.contains(name) {
        return "served";
    }
    let acts = if is_tcp {
        streams.contains(name) && !WITHOUT_EFFECT.contains(&name)
    } else {
        datagrams.contains(name)
    };
    match (seen.can_be_set, acts) {
        (true, true) => "mirrored",
        _ => "passed on",
    }
}

const INTRODUCTION: &str = "\
# Socket options

<!-- generated from libvma/tests/differential/options.h and what the prober saw:
UPDATE=1 cargo nextest run -p libvma --test differential -E 'test(/option_table/)' -->

What does libvma do with an option that a program sets? These are the options of UDP and TCP sockets that Linux 6.18
knows; those of the level IPPROTO_IPV6 are tried on sockets of AF_INET6 with an IPv4 peer. A test tries each of them under the library and under the kernel: result, errno and bytes of setsockopt() and
getsockopt() are the same, except where the last column says otherwise. Afterwards data go both ways, and the kernel's
counters tell whether the socket is still served.

Every socket that is served has a kernel's socket of the same number, which is asked first: it knows every error.

| class | what it means |
|---|---|
| served | The library answers or acts by itself; the kernel's socket does not know. |
| mirrored | Set on the kernel's socket, and the library acts on it, too. |
| passed on | Set on, or read from, the kernel's socket only. What the library moves is not affected; what goes by the kernel's socket is, and so is the socket when it is handed over. |
| hands over | The kernel's socket takes over the whole work, with an established connection as it is; the option then acts as it always does. |
| refused | The kernel refuses it on this kind of socket, with the value that was tried, and the library with it. |

`ioctl()` and `fcntl()` are in [interposition.md](interposition.md), differences that remain in
[architecture.md](architecture.md), \"Differences from Linux\".
";

fn document(seen: &BTreeMap<(String, String), Seen>) -> String {
    let mut text = INTRODUCTION.to_owned();
    let mut last = "";
    for row in rows() {
        if row.level != last {
            text += &format!(
                "\n## {}\n\n| option | number | UDP | TCP | what it does |\n|---|---|---|---|---|\n",
                row.level
            );
            last = row.level;
        }
        let of = |protocol: &str| {
            let found = seen.get(&(protocol.to_owned(), row.key()));
            class(protocol, &row, found.unwrap_or_else(|| panic!("{} was not tried", row.name)))
        };
        text += &format!(
            "| {} | {} | {} | {} | {} |\n",
            row.name,
            row.number,
            of("udp"),
            of("tcp"),
            row.sentence
        );
    }
    text
}

// covers: API-21, API-27
#[test]
fn option_table_is_the_kernels_and_its_document_is_current() {
    each(&[plain("option_table")], false, check);
}

fn check(run: &Run<'_>) {
    let kernel = of_kernel(run);
    let unknown = kernel.lines.iter().find(|line| line.contains("not in the table"));
    assert_eq!(
        unknown, None,
        "an option of this kernel; put it into libvma/tests/differential/options.h"
    );
    let errors = Cell::new(String::new());
    Comparison {
        run,
        kernel,
        kernel_again: &|| of_kernel_again(run),
        library: &|| {
            let (output, traffic) = probe(run, true);
            let transcript = Transcript::new(&output, traffic);
            errors.set(output.stderr);
            transcript
        },
        judge: &|_, _| String::new(),
        may_be_late: &|_| false,
    }
    .hold();
    let seen = seen(&errors.take());
    crate::documents::is_current("socket-options.md", &document(&seen), "option_table");
}

/// The reading of source texts: a list is no decision, a comment neither.
#[test]
fn option_table_reads_code_only() {
    let text = "const LIST: &[i32] = &[\n    libc::SO_LISTED,\n];\nconst SO_ONE: i32 = 1;\n\
                fn f() {\n    libc::SO_DONE | SO_TOO => {} // not SO_SAID\n}\n";
    let names = named(text);
    assert!(names.contains("SO_DONE") && names.contains("SO_TOO"), "{names:?}");
    assert!(
        !names.contains("SO_LISTED") && !names.contains("SO_ONE") && !names.contains("SO_SAID")
    );
}
