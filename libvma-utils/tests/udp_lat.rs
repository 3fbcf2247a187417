//! udp_lat's command line: its usage and its errors, before any socket is made. What it measures is
//! tested in namespaces, in libvma/tests/integration/udp_lat.rs.

use std::process::{Command, Output};

/// Exit status, what went to stdout, and to stderr.
fn udp_lat(arguments: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_udp_lat"));
    let Output { status, stdout, stderr } =
        command.args(arguments.split_whitespace()).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

// covers: TOOL-06
#[test]
fn help_goes_to_stdout_and_names_every_option() {
    let (status, out, error) = udp_lat("--help");
    assert_eq!((status, error.as_str()), (Some(0), ""));
    for part in [
        "Usage: udp_lat [OPTIONS] <--server|--client>",
        "-s, --server",
        "-c, --client",
        "-i, --ip <ADDRESS>",
        "-p, --port <PORT>",
        "[default: 11111]",
        "-m, --msg-size <BYTES>",
        "-t, --time <SECONDS>",
        "--timeout <MILLISECONDS>",
        "-F, --iomux-type <CALL>",
        "[possible values: recvfrom, select, poll, epoll]",
        "--mc-rx-if <INTERFACE>",
        "--mc-tx-if <INTERFACE>",
        "--mc-ttl <HOPS>",
        "--mc-loopback-enable",
        "Exit status:",
    ] {
        assert!(out.contains(part), "no {part} in\n{out}");
    }
}

#[test]
fn the_version_is_the_products() {
    let (status, out, _) = udp_lat("--version");
    assert_eq!(status, Some(0));
    assert_eq!(out, concat!("udp_lat ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_wrong_call_names_option_and_value_and_ends_with_2() {
    for (arguments, parts) in [
        ("", &["--server", "--client"][..]),
        ("-c", &["--ip"]),
        ("-c -i example", &["--ip", "example"]),
        ("-c -i 10.0.0.1 -m 70000", &["--msg-size", "70000"]),
        ("-s -i 10.0.0.1 --mc-ttl 3", &["--mc-ttl", "10.0.0.1"]),
        ("-s -i 224.1.1.1 --mc-tx-if no-such-if0", &["--mc-tx-if", "no-such-if0"]),
    ] {
        let (status, out, error) = udp_lat(arguments);
        assert_eq!((status, out.as_str()), (Some(2), ""), "{arguments}");
        for part in parts {
            assert!(error.contains(part), "{arguments}: no {part} in\n{error}");
        }
    }
}
