//! What somebody does first on a fresh Debian 12: installs, starts the service, runs a program over the
//! library and looks at what it counts. No step between.

use std::process::{Child, Stdio};

use packages::{PLAIN, Peer, Root, Run, dist, wait_for};
use serde_json::Value;

const PORT: u16 = 11111;

// covers: INS-01, INS-07, RUN-01
#[test]
fn install_start_run_and_watch_work_in_this_order_with_no_other_step() {
    let root = Root::fresh(&PLAIN);
    let peer = Peer::of(&root);
    let (ours, tools) = (dist::deb("libvma"), dist::deb("libvma-utils"));
    let (ours, tools) = (root.bring(&ours, "/root"), root.bring(&tools, "/root"));

    root.command("dpkg").args(["-i", &ours, &tools]).succeeds();

    root.command("/etc/init.d/vma").arg("start").succeeds();
    root.command("/etc/init.d/vma").arg("status").succeeds();

    let before = root.kernel_datagrams();
    let mut server = server(&root);
    let says = peer
        .command("sockperf")
        .args(["ping-pong", "--time", "2", "--ip", &Peer::ROOT.to_string()])
        .args(["--port", &PORT.to_string()])
        .output_of_success();
    let messages = received(&says);
    assert!(messages > 1000, "{says}");

    let shown = root.command("vma_stats").args(["--json", "--cycles=1"]).succeeds();
    let counted: Value = serde_json::from_str(shown.trim()).expect(&shown);
    assert_eq!(counted["name"], "sockperf", "{shown}");
    let number = |name: &str| counted["totals"][name].as_u64().expect(name);
    assert!(number("rx_packets") >= messages, "{messages} answered: {shown}");
    assert!(number("tx_packets") >= messages, "{messages} answered: {shown}");
    assert_eq!(number("rx_os_packets"), 0, "{shown}");
    let kernel = root.kernel_datagrams() - before;
    assert_eq!(kernel, 0, "datagrams of {messages} that went by the kernel");

    // And as people read it.
    let table = root.command("vma_stats").arg("--cycles=1").succeeds();
    assert!(table.contains("pkt"), "{table}");
    root.command("pkill").args(["-x", "sockperf"]).succeeds();
    server.wait().expect("it is our child");
    root.command("/etc/init.d/vma").arg("stop").succeeds();
    let (code, says) = root.command("/etc/init.d/vma").arg("status").fails();
    assert_eq!(code, 3, "not running, as the LSB counts: {says}");
}

/// A server over the library, ready to answer.
fn server(root: &Root) -> Child {
    let line = format!("LD_PRELOAD=libvma.so exec sockperf server -i {} -p {PORT}", Peer::ROOT);
    let mut command = root.shell(&format!("({line}) >/var/tmp/server.log 2>&1"));
    let server = command.stdout(Stdio::null()).spawn().expect("nsenter is there");
    wait_for("sockperf serves", || {
        let log = root.path("/var/tmp/server.log");
        let says = std::fs::read_to_string(log).unwrap_or_default();
        says.contains("[tid").then_some(())
    });
    server
}

/// `... Total Run: RunTime=2.0 sec; ... ReceivedMessages=1234`: how many answers came.
fn received(says: &str) -> u64 {
    let (_, rest) = says.split_once("ReceivedMessages=").unwrap_or_else(|| panic!("{says}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}
