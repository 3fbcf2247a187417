//! The examples of the manual's chapter on monitoring (section 11.1.1), each by its own command line
//! on a sockperf that runs. What the reports say is compared with what sockperf says.
//!
//! A report of differences does not begin when the traffic does. So these tests watch from before it
//! until after it, and compare the sum.

use std::fs;

use rustix::process::Signal;

use super::*;
use crate::harness::{Output, Program, Running, Shown};

/// Each end on a CPU of its own, since both spin.
fn sockperf(net: &Namespaces, side: Side) -> Program<'_> {
    let cpu = if side == Side::A { "1" } else { "0" };
    net.program(side, "taskset").arg("-c").arg(cpu).arg("sockperf")
}

/// A server on side A under the library, once it waits for messages.
fn serve(net: &Namespaces, words: &str, environment: &[(&str, &str)]) -> Shown {
    let program = sockperf(net, Side::A).args("server").args(words).with_library();
    let set = environment.iter().fold(program, |program, (name, value)| program.env(name, value));
    let mut server = set.start_shown();
    server.wait_for_text("using ");
    server
}

/// What the client says of its run: messages sent and received.
#[track_caller]
fn sent_and_received(client: &Output) -> (u64, u64) {
    let (sent, received) = (client.number("SentMessages="), client.number("ReceivedMessages="));
    client.says("dropped messages = 0");
    // The run may end between a message and its answer.
    assert!(sent > 100.0 && sent - received <= 1.0, "{}", client.stdout);
    (sent as u64, received as u64)
}

fn vma_stats<'a>(net: &'a Namespaces, words: &str) -> Program<'a> {
    let program = net.program(Side::A, tool("vma_stats").to_str().expect("text"));
    program.arg("-k").arg(net.dir.to_str().expect("text")).args(words)
}

#[track_caller]
fn report(net: &Namespaces, words: &str) -> String {
    let output = vma_stats(net, words).run().ok();
    assert_eq!(output.stderr, "");
    output.stdout
}

fn stats_for(server: &Running) -> String {
    format!("vmastat: stats for application: sockperf with pid: {}\n", server.id())
}

const DASHES: &str =
    "-------------------------------------------------------------------------------\n";

/// Reports of differences, a second each, of a server without traffic at both ends of the time.
struct Watching(Running);

impl Watching {
    #[track_caller]
    fn begin(net: &Namespaces, words: &str) -> Watching {
        let mut running = vma_stats(net, words).start();
        running.wait_for_text(DASHES);
        Watching(running)
    }

    /// All reports; the one after the next one has seen all that was before.
    #[track_caller]
    fn end(self) -> Vec<String> {
        let reports = || self.0.printed().matches(DASHES).count();
        let before = reports();
        wait_for("there are two more reports", || (reports() >= before + 2).then_some(()));
        let output = self.0.interrupt().ok();
        output.says("vmastat: Got Ctrl-C (interrupted by user)\n");
        let mut all: Vec<_> = output.stdout.split(DASHES).map(str::to_owned).collect();
        // What was said at the end.
        all.pop();
        all
    }
}

/// A socket in view 1, summed over all reports.
#[derive(Debug, Default, PartialEq)]
struct Row {
    rx: u64,
    tx: u64,
    rx_kilobytes: u64,
    tx_kilobytes: u64,
    rx_os: u64,
    tx_os: u64,
    /// Errors.
    errors: u64,
    /// Of the reports with packets.
    polls: Vec<f64>,
}

/// The numbers of view 1 by descriptor.
fn rows(reports: &[String]) -> Vec<(i32, Row)> {
    let mut all: Vec<(i32, Row)> = Vec::new();
    for line in reports.iter().flat_map(|report| report.lines()) {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().expect(line);
        match words[..] {
            [descriptor, "Rx:", ..] => {
                let descriptor = descriptor.parse().expect("a descriptor");
                let row = match all.iter().position(|(known, _)| *known == descriptor) {
                    Some(at) => all.remove(at).1,
                    None => Row::default(),
                };
                assert_eq!(words.len(), 11, "{line}");
                all.push((descriptor, row));
                let row = &mut all.last_mut().expect("just put there").1;
                row.rx += number(2);
                row.rx_kilobytes += number(3);
                row.errors += number(5) + number(10);
                row.rx_os += number(7);
                if number(2) > 0 {
                    row.polls.push(words[6].parse().expect(line));
                }
            }
            ["Tx:", ..] => {
                assert_eq!(words.len(), 9, "{line}");
                let row = &mut all.last_mut().expect("below the socket's first line").1;
                row.tx += number(1);
                row.tx_kilobytes += number(2);
                row.errors += number(4) + number(8);
                row.tx_os += number(5);
            }
            _ => {}
        }
    }
    all.sort_by_key(|(descriptor, _)| *descriptor);
    all
}

/// The numbers in a line, whatever is between them.
fn numbers(line: &str) -> Vec<u64> {
    let words = line.split(|letter: char| !letter.is_ascii_digit());
    words.filter(|word| !word.is_empty()).map(|word| word.parse().expect("it fits")).collect()
}

/// Addresses in a file, as words for a sockperf that waits for them by `mux`.
fn feed(net: &Namespaces, name: &str, addresses: &[&str], mux: &str) -> String {
    let file = net.file(name);
    let lines: String = addresses.iter().map(|one| format!("U:{one}\n")).collect();
    fs::write(&file, lines).expect("a file");
    format!("-f {} -F {mux}", file.display())
}

/// View 1 of a server that has answered so many messages: the last one may take it a moment.
#[track_caller]
fn settled(net: &Namespaces, words: &str, sent: u64) -> String {
    wait_for("the server has answered all", || {
        let text = report(net, words);
        let answered = rows(std::slice::from_ref(&text)).iter().map(|(_, row)| row.tx).sum::<u64>();
        (answered >= sent).then_some(text)
    })
}

// covers: STAT-01, STAT-20, STAT-30, STAT-38
#[test]
fn example_1_totals_of_one_socket() {
    let net = Namespaces::new();
    let output = vma_stats(&net, "-c 1").run();
    assert!(!output.status.success());
    assert!(output.stderr.starts_with("vmastat: Failed to identify process"), "{output:?}");
    // One that does not run over the library.
    let own = std::process::id();
    let output = vma_stats(&net, &format!("-p {own} -c 1")).run();
    let missing = format!("vmastat: VMA statistics data for process id {own} not found\n\n");
    assert_eq!((output.stdout.as_str(), output.stderr), ("", missing));

    let server = serve(&net, "-i 10.99.0.1", &[("VMA_RX_POLL", "-1")]);
    let watch = net.watch(Side::A);
    let client = sockperf(&net, Side::B).args("ping-pong -i 10.99.0.1 -m 2048 -t 1");
    let client = client.with_short_sleeps().run().ok();
    let (sent, _) = sent_and_received(&client);
    let words = format!("-p {} -c 1", server.id());
    let text = settled(&net, &words, sent);
    let headers = [
        " fd      ------------ total offloaded -------------   --------- total os ----------\n",
        "                pkt   Kbyte   eagain   error  poll%     pkt   Kbyte  eagain   error\n",
    ];
    assert!(text.starts_with(&(stats_for(&server) + &headers.concat())), "{text}");
    assert!(text.ends_with(DASHES), "{text}");
    let rows = rows(&[text]);
    let [(_, row)] = &rows[..] else { panic!("one socket: {rows:?}") };
    let kilobytes = sent * 2048 / 1024;
    assert_eq!(
        (row.rx, row.tx, row.rx_kilobytes, row.tx_kilobytes),
        (sent, sent, kilobytes, kilobytes)
    );
    assert_eq!((row.rx_os, row.tx_os, row.errors), (0, 0, 0));
    // It never slept, so there was no miss.
    assert_eq!(row.polls, [100.0], "{row:?}");
    watch.still();
    // It is the only one, and found by itself.
    let found = report(&net, "-c 1");
    let [(_, again)] = &self::rows(&[found])[..] else { panic!("one socket") };
    assert_eq!((again.rx, again.tx), (row.rx, row.tx));
}

// covers: STAT-13, STAT-27, STAT-28, STAT-29, STAT-42
#[test]
fn example_2_differences_of_three_sockets_under_select() {
    let net = Namespaces::new();
    let own = ["10.99.0.1:7001", "10.99.0.1:7002"];
    // Whoever sends to it does not run over the library: the kernel serves it.
    let third = "127.0.0.1:7003";
    let environment = [("VMA_CPU_USAGE_STATS", "1"), ("VMA_SELECT_POLL", "-1")];
    let words = feed(&net, "all", &[own[0], own[1], third], "s");
    let server = serve(&net, &words, &environment);
    let watching = Watching::begin(&net, &format!("-p {} -d 2", server.id()));
    let client = sockperf(&net, Side::B).args("ping-pong -t 1 -m 2000");
    let client = client.args(&feed(&net, "own", &own, "s")).with_short_sleeps().start();
    let within = "-c 0 sockperf ping-pong -t 1 -m 1500 -i 127.0.0.1 -p 7003";
    let within = net.program(Side::A, "taskset").args(within).with_short_sleeps().run().ok();
    let client = client.wait().ok();
    let ((sent, _), (sent_within, _)) = (sent_and_received(&client), sent_and_received(&within));
    let reports = watching.end();

    let headers = [
        " fd      --------------- offloaded ----------------         ---------- os ---------\n",
        "              pkt/s Kbyte/s eagain/s error/s  poll%   pkt/s Kbyte/s eagain/s error/s\n",
    ];
    assert!(reports[0].starts_with(&(stats_for(&server) + &headers.concat())), "{reports:?}");
    let rows = rows(&reports);
    let [(_, first), (_, second), (_, third)] = &rows[..] else { panic!("three: {rows:?}") };
    // The client goes from one to the other.
    assert_eq!((first.rx + second.rx, first.tx + second.tx), (sent, sent), "{rows:?}");
    assert!(first.rx.abs_diff(second.rx) <= 1, "{rows:?}");
    assert_eq!((third.rx_os, third.tx_os), (sent_within, sent_within), "{rows:?}");
    assert_eq!(
        (third.rx, third.tx, first.rx_os + second.rx_os, first.tx_os + second.tx_os),
        (0, 0, 0, 0)
    );
    for (row, kilobytes) in [(first, first.rx * 2000 / 1024), (second, second.rx * 2000 / 1024)] {
        let shown = row.rx_kilobytes;
        // Each report leaves out what is no whole one.
        assert!(shown <= kilobytes && shown + reports.len() as u64 >= kilobytes, "{rows:?}");
        assert!(row.polls.iter().all(|share| *share > 0.0), "{rows:?}");
    }
    assert_eq!(first.errors + second.errors + third.errors, 0, "{rows:?}");

    // `select  /s Rx Ready:15185/30372 [os/offload] Timeouts:0 Errors:0 Poll:100.00% Polling CPU:70%`
    let (mut ready, mut busy) = ([0, 0], 0);
    for line in reports.iter().flat_map(|report| report.lines()) {
        let Some(line) = line.strip_prefix("select  /s Rx Ready:") else { continue };
        let [os, offloaded, _timeouts, failures, share, rest, cpu] = numbers(line)[..] else {
            panic!("{line}");
        };
        assert!(
            line.contains(" [os/offload] Timeouts:") && line.contains(" Polling CPU:"),
            "{line}"
        );
        ready = [ready[0] + os, ready[1] + offloaded];
        assert!(failures == 0 && cpu > 0 && cpu <= 100, "{line}");
        if os + offloaded > 0 {
            // It never slept.
            assert_eq!((share, rest), (100, 0), "{line}");
            busy += 1;
        }
    }
    assert_eq!((ready, busy > 0), ([sent_within, sent], true), "{reports:?}");
}

// covers: STAT-10, STAT-31, STAT-36
#[test]
fn example_3_everything_about_a_multicast_receiver() {
    let net = Namespaces::new();
    for side in [Side::A, Side::B] {
        net.ip(side, &format!("route add 224.0.0.0/4 dev {}", side.device()));
    }
    let server = serve(&net, "-i 224.7.7.7 -g", &[]);
    let watching = Watching::begin(&net, &format!("-p {} -v 3 -d 2", server.id()));
    let words = "throughput -i 224.7.7.7 -m 1470 --mps 1000 -t 1 --dontwarmup";
    let client = sockperf(&net, Side::B).args(words).with_short_sleeps().run().ok();
    let sent = client.number("Total of ") as u64;
    let reports = watching.end();
    assert!(sent > 500, "{}", client.stdout);

    let kilobytes = |shown: u64, bytes: u64| {
        let whole = bytes / 1024;
        // Each report leaves out what is no whole one.
        assert!(shown <= whole && shown + reports.len() as u64 >= whole, "{shown} of {whole}");
    };
    let mut socket = [0; 2];
    let mut ring = [0; 2];
    let mut polls = 0;
    for report in &reports {
        let blocks = Blocks(report);
        let own = "- UDP, Blocked, MC Loop Disabled\n- Local Address   = [0.0.0.0:11111]\n\
                   - Member of = [224.7.7.7]\n";
        assert!(blocks.find("Fd=[").contains(own), "{report}");
        if let Some(line) = blocks.line("Fd=[", "Rx Offload: ") {
            let [kilobytes, packets, 0, 0] = numbers(line)[..] else { panic!("{line}") };
            assert!(line.ends_with(" [kilobytes/packets/eagains/errors]/s"), "{line}");
            socket = [socket[0] + kilobytes, socket[1] + packets];
            queue(&blocks);
            let line = blocks.line("Fd=[", "Rx poll: ").expect(report);
            assert_eq!(
                line.split_once(" (").map(|two| two.1),
                Some(&*format!("{}%) [miss/hit]", share(line)))
            );
            polls += numbers(line)[1];
        } else {
            assert!(blocks.find("Fd=[").ends_with("\nRx and Tx where not active\n"), "{report}");
        }
        // It sends nothing, and the kernel delivers nothing.
        let sends = blocks.line("Fd=[", "Tx Offload: ").is_some();
        assert!(!sends && !report.contains("OS info"), "{report}");
        for (label, least, most) in [
            ("Packets dropped:     ", 0, 0),
            ("Packets queue len:   ", 0, 4096),
            ("Drained max:         ", 0, 4096),
            ("Buffer pool size:    ", 1, 65536),
        ] {
            let number = numbers(blocks.line("CQ=[0]", label).expect(report))[0];
            assert!((least..=most).contains(&number), "{label}{number}");
        }
        let line = blocks.line("RING_ETH=[0]", "Rx Offload:          ").expect(report);
        let [kilobytes, packets] = numbers(line)[..] else { panic!("{line}") };
        assert!(line.ends_with(" [kilobytes/packets] /s "), "{line}");
        ring = [ring[0] + kilobytes, ring[1] + packets];
        if let Some(line) = blocks.line("RING_ETH=[0]", "Interrupts:          ") {
            assert!(
                line.ends_with(" [requests/received] /s ") && numbers(line).len() == 2,
                "{line}"
            );
        }
        assert!(blocks.line("RING_ETH=[0]", "Retransmissions:").is_none(), "{report}");
        for pool in ["BUFFER_POOL(RX)=[0]", "BUFFER_POOL(TX)=[1]"] {
            let number = |label| numbers(blocks.line(pool, label).expect(report))[0];
            let (size, errors) = (number("Size:                "), number("No buffers error:    "));
            assert!(size > 0 && errors == 0, "{pool} {size} {errors}");
        }
    }
    // All that was sent was offloaded and read; each packet has 42 bytes of headers.
    assert_eq!((socket[1], polls), (sent, sent), "{reports:?}");
    kilobytes(socket[0], sent * 1470);
    assert!((sent..sent + 20).contains(&ring[1]), "{sent} {ring:?}");
    if ring[1] == sent {
        kilobytes(ring[0], sent * 1512);
    }
}

/// What waits to be read, of what had 1470 bytes each.
fn queue(blocks: &Blocks<'_>) {
    let line = blocks.line("Fd=[", "Rx byte: ").expect(blocks.0);
    let [bytes, bytes_max, dropped, limit] = numbers(line)[..] else { panic!("{line}") };
    let words =
        format!("Rx byte: cur {bytes} / max {bytes_max} / dropped/s {dropped} / limit {limit}");
    assert_eq!((line, dropped), (words.as_str(), 0));
    let line = blocks.line("Fd=[", "Rx pkt : ").expect(blocks.0);
    let [packets, packets_max, dropped] = numbers(line)[..] else { panic!("{line}") };
    let words = format!("Rx pkt : cur {packets} / max {packets_max} / dropped/s {dropped}");
    assert_eq!((line, dropped), (words.as_str(), 0));
    assert!(packets_max > 0 && bytes_max < limit, "{}", blocks.0);
    assert_eq!((bytes, bytes_max), (packets * 1470, packets_max * 1470));
}

/// A report of view 3.
struct Blocks<'a>(&'a str);

impl<'a> Blocks<'a> {
    /// The block under this title.
    #[track_caller]
    fn find(&self, title: &str) -> &'a str {
        let double = "=".repeat(54) + "\n";
        let mut blocks = self.0.split(double.as_str());
        let found =
            blocks.find_map(|block| block.strip_prefix('\t').filter(|b| b.starts_with(title)));
        found.unwrap_or_else(|| panic!("no {title} in\n{}", self.0))
    }

    /// The line of that block with this label.
    #[track_caller]
    fn line(&self, title: &str, label: &str) -> Option<&'a str> {
        self.find(title).lines().find(|line| line.starts_with(label))
    }
}

// covers: STAT-11, STAT-32
#[test]
fn example_4_who_is_member_of_which_group() {
    let net = Namespaces::new();
    net.ip(Side::A, "route add 224.0.0.0/4 dev veth-a");
    let groups = ["224.4.1.3:7001", "224.4.1.2:7002"];
    let server = serve(&net, &feed(&net, "groups", &groups, "e"), &[]);
    let rows = rows(&[report(&net, &format!("-p {} -c 1", server.id()))]);
    let [(first, _), (second, _)] = &rows[..] else { panic!("two sockets: {rows:?}") };
    let expected = [
        &stats_for(&server),
        "\nVMA Group Memberships Information\n",
        "Group                fd number\n",
        "------------------------------\n",
        &format!("[224.4.1.3]           {first} \n"),
        &format!("[224.4.1.2]           {second} \n"),
        DASHES,
    ];
    assert_eq!(report(&net, &format!("-p {} -v 4", server.id())), expected.concat());
}

// covers: STAT-12, STAT-33
#[test]
fn example_5_the_sockets_of_two_processes() {
    let net = Namespaces::new();
    let one = serve(&net, "-p 44522", &[]);
    let other = serve(&net, "--tcp -p 11111", &[]);
    let text = report(&net, "-v 5");
    let header = "Proto Offloaded Recv-Q               Send-Q               Local Address          \
                  Foreign Address       State       Inode      PID/Program name\n";
    assert!(text.starts_with(header) && text.lines().count() == 3, "{text}");
    for (protocol, server, address, state) in
        [("udp", &one, "0.0.0.0:44522", ""), ("tcp", &other, "0.0.0.0:11111", "LISTEN")]
    {
        let process = server.id();
        let line = |inode: u64| {
            format!(
                "{protocol:<5} {:<9} {:<20} {:<20} {address:<22} {:<22}{state:<11} {inode:<10} \
                 {process}/sockperf\n",
                "Yes", 0, 0, "0.0.0.0:*"
            )
        };
        let inodes = inodes(process);
        assert!(inodes.iter().any(|inode| text.contains(&line(*inode))), "{inodes:?} {text}");
    }
}

/// Of all sockets of a process.
fn inodes(process: u32) -> Vec<u64> {
    let all = fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").flatten();
    let inode = |path: std::path::PathBuf| {
        let link = fs::read_link(path).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    all.filter_map(|entry| inode(entry.path())).collect()
}

// covers: STAT-24, STAT-34
#[test]
fn example_6_counters_in_a_file_at_the_end() {
    let net = Namespaces::new();
    let server = serve(&net, "-i 10.99.0.1", &[]);
    let client = sockperf(&net, Side::B).args("ping-pong -i 10.99.0.1 -m 200 -t 1");
    let client = client.with_short_sleeps().run().ok();
    let (sent, _) = sent_and_received(&client);
    let shown = settled(&net, &format!("-p {} -c 1", server.id()), sent);
    let [(descriptor, _)] = rows(&[shown])[..] else { panic!("one socket") };
    let file = net.file(&format!("stats.{}", server.id()));
    server.signal(Signal::INT);
    server.wait().ok();
    let text = fs::read_to_string(file).expect("a file");
    let begin = format!("VMA: [fd={descriptor}] ");
    let lines: Vec<_> = text.lines().map(|line| line.strip_prefix(&begin).expect(&text)).collect();
    let traffic = format!("{} / {sent} / 0 [kilobytes/packets/errors]", sent * 200 / 1024);
    let none = "0 / 0 / 0 [kilobytes/packets/errors]";
    let expected = [
        format!("Tx Offload: {traffic}"),
        format!("Tx OS info: {none}"),
        format!("Rx Offload: {traffic}"),
        format!("Rx OS info: {none}"),
        format!("Rx byte: max 200 / dropped 0 (0.00%) / limit {}", numbers(lines[4])[4]),
        "Rx pkt : max 1 / dropped 0 (0.00%)".to_owned(),
        format!("Rx poll: {} / {sent} ({}%) [miss/hit]", numbers(lines[6])[0], share(lines[6])),
    ];
    assert_eq!(lines, expected);
    assert!(numbers(lines[4])[4] >= 200, "{text}");
}

/// What a line says of the share of hits, if that is what its numbers say.
fn share(line: &str) -> String {
    let numbers = numbers(line);
    format!("{:.2}", numbers[1] as f64 * 100.0 / (numbers[0] + numbers[1]) as f64)
}

// covers: STAT-14, STAT-35
#[test]
fn example_7_a_dump_of_an_established_connection() {
    let net = Namespaces::new();
    let server = sockperf(&net, Side::B).args("server --tcp -i 10.99.0.2 -p 6666");
    let mut server = server.start_shown();
    server.wait_for_text("using ");
    let log = net.file("log");
    let client = sockperf(&net, Side::A).args("ping-pong --tcp -i 10.99.0.2 -p 6666 -t 60");
    let client = client.with_library().env("VMA_LOG_FILE", log.to_str().expect("text"));
    let client = client.start_shown();
    let sent = || match &rows(&[report(&net, &format!("-p {} -c 1", client.id()))])[..] {
        [(descriptor, row)] => Some((*descriptor, row.tx)),
        _ => None,
    };
    wait_for("it runs", || {
        File::open(&net.dir, client.id()).ok()?;
        sent().filter(|(_, sent)| *sent > 100)
    });
    // From now on nothing is acknowledged.
    net.ip(Side::B, "route add blackhole 10.99.0.1/32");
    let same = |before: (i32, u64)| sent().filter(|now| *now == before);
    let (descriptor, waiting) = wait_for("it waits for an answer", || same(sent()?));
    let said = report(&net, &format!("-p {} --fd_dump {descriptor} info", client.id()));
    let line = format!("vmastat: Dumping Fd {descriptor} to VMA using log level = INFO...\n");
    assert_eq!(said, stats_for(&client) + &line);
    let end = "VMA INFO: ==================================================\n".repeat(2);
    let text = wait_for("the dump is in the log", || {
        fs::read_to_string(&log).ok().filter(|text| text.ends_with(&end))
    });

    let line = |name: &str| {
        let begin = format!("VMA INFO: {name} : ");
        let found = text.lines().find_map(|line| line.strip_prefix(&begin));
        found.unwrap_or_else(|| panic!("no {name} in\n{text}"))
    };
    let begin = format!("VMA INFO: ============ DUMPING FD {descriptor} STATISTICS ============\n");
    assert!(text.contains(&begin), "{text}");
    // As the peer's kernel has it.
    let port = net.read_proc(Side::B, "tcp").lines().find_map(|line| {
        let (_, rest) = line.split_once(": 0200630A:1A0A 0100630A:")?;
        u16::from_str_radix(rest.get(..4)?, 16).ok()
    });
    assert_eq!(line("Fd number"), descriptor.to_string());
    assert_eq!(line("Bind info"), format!("10.99.0.1:{}", port.expect("a connection")));
    assert_eq!(line("Connection info"), "10.99.0.2:6666");
    assert_eq!((line("Protocol"), line("Is offloaded")), ("PROTO_TCP", "true"));
    assert_eq!(line("Connection state"), "TCP_CONN_CONNECTED");
    let buffer = line("Receive buffer");
    assert!(buffer.starts_with("m_rcvbuff_current 0, m_rcvbuff_max "), "{buffer}");
    assert!(numbers(buffer)[1] > 0, "{buffer}");
    assert_eq!(line("PCB state"), "ESTABLISHED");
    // TF_WND_SCALE and TF_NODELAY.
    let flags =
        line("PCB flags").strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok());
    assert_eq!(flags.map(|flags| flags & 0x140), Some(0x140), "{text}");
    let scaling = line("Window scaling");
    assert!(
        scaling.starts_with("ENABLED, rcv_scale ") && scaling.contains(", snd_scale "),
        "{text}"
    );
    assert!(numbers(line("Congestion"))[0] >= 1460, "{text}");
    assert_eq!(line("First unsent"), "NULL");
    // A single message of 14 bytes.
    let first = line("First unacked");
    let [number, 14, end] = numbers(first)[..] else { panic!("{first}") };
    assert_eq!(first, format!("seqno {number}, len 14, seqno + len {end}"));
    assert_eq!(end as u32, (number as u32).wrapping_add(14), "{first}");
    assert_eq!(line("Last unacked"), first);
    assert_eq!(line("Acknowledge"), format!("lastack {number}"));

    // Nothing of this has harmed the connection.
    net.ip(Side::B, "route delete blackhole 10.99.0.1/32");
    wait_for("it goes on", || sent().filter(|(_, sent)| *sent > waiting + 100));
}
