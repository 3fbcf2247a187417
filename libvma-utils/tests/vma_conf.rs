//! vma_conf as it is called: what it prints and its exit status.

use std::process::{Command, Output};

/// Runs it on a file with this text; `FILE` in the arguments is its path.
fn vma_conf(name: &str, text: &str, arguments: &str) -> (Option<i32>, String, String) {
    let file = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&file, text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vma_conf"));
    command.args(["--check", &file]).args(arguments.split_whitespace());
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text").replace(&file, "FILE");
    (status.code(), text(stdout), text(stderr))
}

const RULES: &str = "application-id sock* *\nuse vma udp_sender 10.0.0.1:*\nuse os udp_sender 10.0.0.0/8:*\n\
                     application-id * *\nuse os udp_connect *:53\nuse sdp tcp_client *:1\n";

#[test]
fn a_file_without_mistakes_is_right() {
    let (status, out, error) = vma_conf("right", RULES, "");
    assert_eq!((status, error.as_str()), (Some(0), ""));
    assert_eq!(
        out,
        "FILE: 2 sections and 4 rules\nFILE:6: use sdp tcp_client *:1: never in force\n"
    );
}

#[test]
fn mistakes_are_told_with_their_place() {
    let (status, out, error) = vma_conf("wrong", "use os\nuse os tcp_client *:99999\n", "");
    assert_eq!(status, Some(1));
    let second = "FILE:2:21: 99999 is more than 65535\n";
    assert!(
        error.starts_with("FILE:1:7: expected tcp_server, ") && error.ends_with(second),
        "{error}"
    );
    assert_eq!(out, "FILE: 0 sections and 0 rules\n");
}

// covers: CONF-19, CONF-20, CONF-21
#[test]
fn the_rule_that_decides_is_named() {
    for (arguments, answer) in [
        (
            "--program sockperf --role udp_sender --address 10.9.9.9:5",
            "kernel: FILE:3: use os udp_sender 10.0.0.0/8:* (application-id sock* *)\n",
        ),
        (
            "--program sockperf --role udp_sender --address 10.0.0.1:5",
            "libvma: FILE:2: use vma udp_sender 10.0.0.1:* (application-id sock* *)\n",
        ),
        (
            "--program sockperf --role udp_connect --address 8.8.8.8:53",
            "libvma: no rule of application-id sock* * is for this address\n",
        ),
        (
            "--program curl --role udp_connect --address 8.8.8.8:53",
            "kernel: FILE:5: use os udp_connect *:53 (application-id * *)\n",
        ),
    ] {
        let (status, out, error) = vma_conf("deciding", RULES, arguments);
        assert_eq!((status, out.as_str(), error.as_str()), (Some(0), answer, ""), "{arguments}");
    }
    let none = vma_conf(
        "for-another",
        "application-id x *\n",
        "--program y --role tcp_server --address 0.0.0.0:80",
    );
    assert_eq!(none.1, "libvma: no section of FILE is for this program\n");
    let all = "use os tcp_server *:*\nuse os tcp_client *:*\n";
    let born = vma_conf("from-birth", all, "--program y --role tcp_client --address 1.1.1.1:80");
    assert!(born.1.starts_with("kernel: rules for every address"), "{born:?}");
    let section = vma_conf("section", RULES, "--program curl");
    assert!(
        section.1.contains("curl obeys application-id * *\nuse os udp_connect *:53\n"),
        "{section:?}"
    );
}

#[test]
fn what_cannot_be_read_or_understood_is_refused() {
    let missing =
        Command::new(env!("CARGO_BIN_EXE_vma_conf")).args(["--check", "/nowhere"]).output();
    assert_eq!(missing.expect("it runs").status.code(), Some(2));
    let role = vma_conf("role", RULES, "--role tcp --address 1.1.1.1:1");
    assert_eq!(role.0, Some(2), "{role:?}");
    assert!(role.2.contains("tcp_server, tcp_client"), "{role:?}");
}

// covers: CONF-19
#[test]
fn addresses_of_ipv6_are_in_brackets() {
    let rules = "use os tcp_client [2001:db8::]/32:80\nuse os tcp_server [::1]:22\n";
    for (arguments, answer) in [
        ("--role tcp_client --address [2001:db8:1::1]:80", "kernel: FILE:1:"),
        ("--role tcp_client --address [2001:db9::1]:80", "libvma: no rule"),
        ("--role tcp_server --address [::1]:22", "kernel: FILE:2:"),
        ("--role tcp_server --address [::]:22", "libvma: no rule"),
        ("--role tcp_server --address [::ffff:10.0.0.1]:22", "libvma: no rule"),
    ] {
        let (status, out, _) = vma_conf("ipv6", rules, arguments);
        assert_eq!(status, Some(0));
        assert!(out.contains(answer), "{arguments}: {out}");
    }
    for (address, told) in [
        ("2001:db8::1:80", "an address and a port are 10.0.0.1:80 or [2001:db8::1]:80"),
        ("[fe80::1]:80", "the kernel serves fe80::1 in any case"),
    ] {
        let arguments = format!("--role tcp_client --address {address}");
        let (status, _, error) = vma_conf("ipv6-wrong", rules, &arguments);
        assert_eq!(status, Some(2));
        assert!(error.contains(told), "{error}");
    }
}
