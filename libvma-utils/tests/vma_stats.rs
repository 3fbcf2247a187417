//! vma_stats as it is called: what it prints of processes, what it asks of them, and its exit status.

mod fake;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use fake::{Fake, scratch, write};
use libvma_dev::stats::{
    BLOCKING, Control, Counters, MULTICAST_LOOP, Multiplexer, OFFLOADED, RING_XDP, Ring, Snapshot,
    Socket, VERSION,
};

fn command(directory: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vma_stats"));
    command.arg("-k").arg(directory).args(arguments.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Exit status, what went to stdout, and to stderr.
fn vma_stats(directory: &Path, arguments: &str) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        command(directory, arguments).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// Two sockets, one of which has received 1000 packets more with each answer.
fn traffic(control: &Control, answers: u32) -> (Snapshot, Vec<Socket>) {
    let times = if control.zeroings > 0 { 0 } else { u64::from(answers) };
    let calls = Multiplexer {
        ready: 20 * times,
        ready_os: 10 * times,
        poll_hits: times,
        polling_cpu: 70,
        ..Multiplexer::default()
    };
    let mut snapshot = Snapshot { select: calls, ..Snapshot::default() };
    snapshot.rings[0] = Ring { kind: RING_XDP, rx_packets: 7 * times, ..Ring::default() };
    let counters = Counters {
        rx_packets: 1000 * times,
        rx_bytes: 2048 * 1000 * times,
        rx_poll_hits: times,
        ..Counters::default()
    };
    let mut busy = Socket {
        used: 1,
        descriptor: 14,
        inode: 33_679_757,
        kind: 2,
        flags: OFFLOADED | BLOCKING | MULTICAST_LOOP,
        local_port: 11_111,
        counters,
        group_count: 1,
        ..Socket::default()
    };
    busy.groups[0] = std::net::Ipv4Addr::new(224, 7, 7, 7).to_ipv6_mapped().octets();
    let listener = Socket {
        used: 1,
        descriptor: 15,
        inode: 9,
        kind: 1,
        tcp_state: 10,
        local: [127, 0, 0, 1],
        local_port: 80,
        ..Socket::default()
    };
    (snapshot, vec![busy, listener])
}

const HEADERS: &str = concat!(
    " fd      ------------ total offloaded -------------   --------- total os ----------\n",
    "                pkt   Kbyte   eagain   error  poll%     pkt   Kbyte  eagain   error\n",
);
const LISTENER: &str = concat!(
    " 15  Rx:          0       0        0       0    0.0       0       0       0       0\n",
    "     Tx:          0       0        0       0              0       0       0       0\n",
);
const IDLE: &str =
    "     Tx:          0       0        0       0              0       0       0       0\n";
const DASHES: &str =
    "-------------------------------------------------------------------------------\n";

fn stats_for(process: u32) -> String {
    format!("vmastat: stats for application: sleep with pid: {process}\n")
}

// covers: STAT-01, STAT-02, STAT-06, STAT-07, STAT-08, STAT-30
#[test]
fn view_1_prints_so_many_reports() {
    let directory = scratch("view-1");
    let fake = Fake::new(&directory, traffic);
    let process = fake.process();
    let (status, out, error) = vma_stats(&directory, &format!("-p {process} -c 2 -i 0"));
    let row = |packets, kilobytes| {
        format!(
            " 14  Rx: {packets:>10} {kilobytes:>7}        0       0  100.0       0       0       \
             0       0\n"
        )
    };
    let select = |os, ready| {
        format!(
            "select     Rx Ready:{os}/{ready} [os/offload] Timeouts:0     Errors:0    Poll:100.00%   \
             Polling CPU:70%\n"
        )
    };
    let reports = [
        row(1000, 2000) + IDLE + LISTENER + &select(10, 20) + DASHES,
        row(2000, 4000) + IDLE + LISTENER + &select(20, 40) + DASHES,
    ];
    assert_eq!(out, stats_for(process) + HEADERS + &reports.concat());
    assert_eq!((status, error.as_str()), (Some(0), ""));
}

// covers: STAT-13, STAT-27, STAT-28
#[test]
fn deltas_are_what_came_since_the_report_before() {
    let directory = scratch("deltas");
    let fake = Fake::new(&directory, traffic);
    let (status, out, _) = vma_stats(&directory, "-d 2 -c 2 -i 0 -s 14");
    let report =
        " 14  Rx:       1000    2000        0       0  100.0       0       0       0       \
                  0\n"
        .to_owned()
            + IDLE
            + "select  /s Rx Ready:10/20 [os/offload] Timeouts:0     Errors:0    Poll:100.00%   \
           Polling CPU:70%\n"
            + DASHES;
    let headers = concat!(
        " fd      --------------- offloaded ----------------         ---------- os ---------\n",
        "              pkt/s Kbyte/s eagain/s error/s  poll%   pkt/s Kbyte/s eagain/s error/s\n",
    );
    let expected = stats_for(fake.process()) + headers + &report.repeat(2);
    assert_eq!((status, out), (Some(0), expected));
}

// covers: STAT-09, STAT-10, STAT-11, STAT-31, STAT-32
#[test]
fn the_other_views_of_one_process() {
    let directory = scratch("views");
    let fake = Fake::new(&directory, traffic);
    let process = fake.process();
    let run = |arguments: &str| {
        let (status, out, error) = vma_stats(&directory, &format!("-p {process} {arguments}"));
        assert_eq!((status, error.as_str()), (Some(0), ""), "{arguments}");
        out
    };
    let view = run("-v 2 -c 1");
    assert!(view.starts_with(&(stats_for(process) + " fd      -----------------------")), "{view}");
    assert!(view.contains("poll%   ---- queue pkt -----     pkt"), "{view}");
    let view = run("-v 3 -c 1");
    let block = "- UDP, Blocked, MC Loop Enabled \n- Local Address   = [0.0.0.0:11111]\n- Member of \
                 = [224.7.7.7]\nRx Offload: 4000 / 2000 / 0 / 0 [kilobytes/packets/eagains/errors]\n";
    assert!(view.contains(block), "{view}");
    assert!(view.contains("\tRING_ETH=[0]\n") && view.ends_with(DASHES), "{view}");
    let view = run("-v 4");
    let expected = "\nVMA Group Memberships Information\nGroup                fd number\n\
                    ------------------------------\n[224.7.7.7]           14 \n";
    assert_eq!(view, stats_for(process) + expected + DASHES);
}

// covers: STAT-12, STAT-33
#[test]
fn view_5_lists_the_sockets_of_all_processes() {
    let directory = scratch("view-5");
    let header = "Proto Offloaded Recv-Q               Send-Q               Local Address          \
                  Foreign Address       State       Inode      PID/Program name\n";
    assert_eq!(vma_stats(&directory, "-v 5"), (Some(0), header.into(), String::new()));
    let (one, other) = (Fake::new(&directory, traffic), Fake::new(&directory, traffic));
    let lines = |process| {
        format!(
            "udp   Yes       0                    0                    0.0.0.0:11111          \
             0.0.0.0:*                         33679757   {process}/sleep\n\
             tcp   No        0                    0                    127.0.0.1:80           \
             0.0.0.0:*             LISTEN      9          {process}/sleep\n"
        )
    };
    let mut processes = [one.process(), other.process()];
    processes.sort();
    let [first, second] = processes.map(lines);
    let all = header.to_owned() + &first + &second;
    assert_eq!(vma_stats(&directory, "-v 5"), (Some(0), all, String::new()));
    let arguments = format!("-v 5 -p {}", other.process());
    let only = header.to_owned() + &lines(other.process());
    assert_eq!(vma_stats(&directory, &arguments), (Some(0), only, String::new()));
}

// covers: STAT-03, STAT-04
#[test]
fn a_process_is_found_by_its_program_or_by_itself() {
    let directory = scratch("find");
    let named = directory.join("a program");
    std::fs::copy("/bin/sleep", &named).expect("a copy");
    let one = Fake::running(Command::new(&named).arg("1000"), &directory, traffic);
    let other = Fake::new(&directory, traffic);
    let (status, out, _) = vma_stats(&directory, "-v 4 -n sleep");
    assert_eq!((status, out.lines().next()), (Some(0), Some(stats_for(other.process()).trim())));
    let mut by_name = command(&directory, "-v 4");
    let out = by_name.args(["--name", "a program"]).output().expect("it runs").stdout;
    let first = format!("application: a program with pid: {}\n", one.process());
    assert!(String::from_utf8_lossy(&out).contains(&first), "{out:?}");
    let (status, out, error) = vma_stats(&directory, "-n slee");
    assert!(out.starts_with("\nVMA Statistics\nUsage:\n"), "{out}");
    assert_eq!((status, error.as_str()), (Some(1), NO_PROCESS));
    drop(one);
    let (status, out, _) = vma_stats(&directory, "-v 4 --find_pid");
    assert_eq!((status, out.lines().next()), (Some(0), Some(stats_for(other.process()).trim())));
}

const NO_PROCESS: &str =
    "vmastat: Failed to identify process please provide pid of active proccess...\n\n";

// covers: STAT-20
#[test]
fn nobody_to_report_on_is_said() {
    let directory = scratch("nobody");
    let (status, out, error) = vma_stats(&directory, "");
    assert_eq!((status, error.as_str()), (Some(1), NO_PROCESS));
    assert!(out.contains("\n\t-p, --pid=<pid>"), "{out}");
    let (status, out, error) = vma_stats(&directory, "-p 4194305");
    let missing = "vmastat: VMA statistics data for process id 4194305 not found\n\n";
    assert_eq!((status, out.as_str(), error.as_str()), (Some(0), "", missing));
    let (status, _, error) = vma_stats(&directory.join("none"), "");
    let none = directory.join("none");
    let open = format!(
        "vmastat: opendir {} failed\n (errno=2 No such file or directory)\n",
        none.display()
    );
    assert_eq!((status, error), (Some(1), open.repeat(2) + NO_PROCESS));
    let (status, out, _) = vma_stats(&none, "-v 5 -F");
    assert_eq!((status, out.lines().count()), (Some(0), 1));
}

// covers: STAT-05
#[test]
fn files_of_ended_processes_are_deleted_and_no_others() {
    let directory = scratch("stale");
    let fake = Fake::new(&directory, traffic);
    let path = |process: u32| directory.join(format!("vmastat.{process}"));
    let (ended, newer, cut, foreign, link) = (4194305, 4194306, 4194307, 4194308, 4194309);
    write(&path(ended), ended, VERSION);
    write(&path(newer), newer, VERSION + 1);
    std::fs::write(path(cut), "libvmaST").expect("a file");
    std::fs::write(path(foreign), "somebody else's").expect("a file");
    std::fs::write(directory.join("kept"), "libvmaST").expect("a file");
    std::os::unix::fs::symlink(directory.join("kept"), path(link)).expect("a link");
    // A process of another namespace, which has no number here.
    let elsewhere = 4194310;
    let held = write(&path(elsewhere), elsewhere, VERSION);
    held.lock().expect("a lock");
    let all = [ended, newer, cut, foreign, link, fake.process(), elsewhere];
    let there = || all.map(|process| path(process).symlink_metadata().is_ok());
    vma_stats(&directory, "-v 4 -F");
    assert_eq!(there(), [true; 7]);
    vma_stats(&directory, "-v 4");
    assert_eq!(there(), [false, false, false, true, true, true, true]);
    assert!(directory.join("kept").exists());
}

#[test]
fn what_cannot_be_read_is_told() {
    let directory = scratch("broken");
    let own = std::process::id();
    let path = directory.join(format!("vmastat.{own}"));
    let run = || vma_stats(&directory, &format!("-p {own}"));
    let file = write(&path, own, VERSION + 1);
    let version = format!(
        "vmastat: Version {VERSION} is not compatible with stats protocol version {}\n",
        VERSION + 1
    );
    assert_eq!(run(), (Some(0), String::new(), version));
    file.set_len(100).expect("cut");
    std::fs::write(&path, "libvmaST").expect("a file");
    let said = format!(
        "vmastat: VMA statistics of process id {own}: not a statistics file of libvma: it is cut \
         short\n"
    );
    assert_eq!(run(), (Some(1), String::new(), said));
    std::fs::write(&path, [0; 100]).expect("a file");
    let (status, _, error) = run();
    assert!(status == Some(1) && error.contains("it begins otherwise"), "{error}");
    // In a format of several it is passed over.
    let (status, out, error) = vma_stats(&directory, "-v 5");
    assert_eq!((status, out.lines().count()), (Some(0), 1));
    assert!(error.contains("it begins otherwise"), "{error}");
}

// covers: STAT-14
#[test]
fn a_dump_is_asked_for_and_nothing_shown() {
    let directory = scratch("dump");
    let fake = Fake::new(&directory, traffic);
    let run = |arguments: &str| {
        let (status, out, error) = vma_stats(&directory, arguments);
        assert_eq!((status, error.as_str()), (Some(0), ""), "{arguments}");
        let control = fake.control();
        (out, control.dumps, control.dump_descriptor, control.dump_level)
    };
    let says = |line: &str| stats_for(fake.process()) + line;
    let line = "vmastat: Dumping Fd 17 to VMA using log level = DEBUG...\n";
    assert_eq!(run("--fd_dump 17 debug"), (says(line), 1, 17, 5));
    let line = "vmastat: Dumping all Fd's to VMA using log level = INFO...\n";
    assert_eq!(run("-S 0"), (says(line), 2, 0, 3));
    let line = "vmastat: Dumping Fd 5 to VMA using log level = INFO...\n";
    assert_eq!(run("-S5"), (says(line), 3, 5, 3));
}

// covers: STAT-15, STAT-16, STAT-17
#[test]
fn levels_and_zero_are_asked_for_before_the_first_report() {
    let directory = scratch("ask");
    let fake = Fake::new(&directory, traffic);
    let (status, out, _) = vma_stats(&directory, "-z -l fine -D 2 -c 1 -s 14");
    let control = fake.control();
    assert_eq!((control.log_level, control.log_details, control.dumps), (6, 2, 0));
    // Only the sockets that are chosen.
    assert_eq!((control.zeroings, control.zero_count, control.zero_list[0]), (1, 1, 14));
    let row =
        " 14  Rx:          0       0        0       0    0.0       0       0       0       0\n";
    let expected = stats_for(fake.process()) + "vmastat: Zero counters...\n" + HEADERS + row;
    assert_eq!((status, out), (Some(0), expected + IDLE + DASHES));
    vma_stats(&directory, "-z -c 1");
    assert_eq!((fake.control().zeroings, fake.control().zero_count), (2, 0));
    // None that is open: not everything.
    vma_stats(&directory, "-z -c 1 -s 99");
    assert_eq!(fake.control().zeroings, 2);
}

/// Starts it and waits for a line.
fn started(directory: &Path, arguments: &str, line: &str) -> (Child, BufReader<impl Read + use<>>) {
    let mut child = command(directory, arguments).spawn().expect("it runs");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut read = String::new();
    while !read.ends_with(line) {
        assert!(out.read_line(&mut read).expect("text") > 0, "{read}");
    }
    (child, out)
}

fn rest(mut out: BufReader<impl Read>) -> String {
    let mut text = String::new();
    out.read_to_string(&mut text).expect("text");
    text
}

#[test]
fn it_ends_with_the_process() {
    let directory = scratch("ended");
    for details in ["-d 1", "-d 2"] {
        let mut fake = Fake::new(&directory, traffic);
        let arguments = format!("-i 0 -p {} {details}", fake.process());
        let (mut child, out) = started(&directory, &arguments, DASHES);
        // Nobody deletes the file of one who was killed.
        fake.be_silent();
        fake.end();
        let said = format!("vmastat: Proccess {} ended - exiting\n", fake.process());
        let text = rest(out);
        assert!(text.ends_with(&said), "{text}");
        assert_eq!(child.wait().expect("it is ours").code(), Some(0));
    }
}

#[test]
fn ctrl_c_ends_it_between_two_reports() {
    let directory = scratch("interrupt");
    let _fake = Fake::new(&directory, traffic);
    for (arguments, line, said) in [
        ("-i 1000", DASHES, "vmastat: Got Ctrl-C (interrupted by user)\n"),
        ("-i 1000 --openmetrics", "# EOF\n", ""),
    ] {
        let (mut child, out) = started(&directory, arguments, line);
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it is ours");
        assert_eq!(rest(out), said);
        assert_eq!(child.wait().expect("it is ours").code(), Some(0), "{arguments}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    let directory = scratch("pipe");
    let _fake = Fake::new(&directory, traffic);
    let (child, out) = started(&directory, "-i 0", DASHES);
    drop(out);
    let output = child.wait_with_output().expect("it is ours");
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn a_process_that_does_not_answer_is_shown_as_it_was_last() {
    let directory = scratch("silent");
    let mut fake = Fake::new(&directory, traffic);
    vma_stats(&directory, "-c 1");
    fake.be_silent();
    let (status, out, error) = vma_stats(&directory, "-c 3 -i 0");
    assert_eq!(out.matches(" 14  Rx:       1000 ").count(), 3, "{out}");
    let said =
        format!("vmastat: process {} does not answer, this is what it told last\n", fake.process());
    assert_eq!((status, error), (Some(0), said));
}

#[test]
fn json_has_a_document_per_process_and_report() {
    let directory = scratch("json");
    let (one, other) = (Fake::new(&directory, traffic), Fake::new(&directory, traffic));
    let lines = |arguments: &str| -> Vec<serde_json::Value> {
        let (status, out, error) = vma_stats(&directory, arguments);
        assert_eq!((status, error.as_str()), (Some(0), ""));
        out.lines().map(|line| serde_json::from_str(line).expect("a document")).collect()
    };
    assert_eq!(lines("--json -c 2 -i 0").len(), 4);
    let text = lines(&format!("--json -c 1 -p {}", other.process()));
    let [document] = text.as_slice() else { panic!("{text:?}") };
    let text = document.to_string();
    assert!(text.contains(&other.process().to_string()), "{text}");
    assert!(!text.contains(&one.process().to_string()), "{text}");
    // One that is named and is not there.
    let (status, out, error) = vma_stats(&directory, "--json -p 4194305 -c 1");
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(error.contains("process 4194305: no such file"), "{error}");
}

#[test]
fn openmetrics_is_complete_with_and_without_processes() {
    let directory = scratch("openmetrics");
    let (status, out, error) = vma_stats(&directory, "--openmetrics -c 1");
    assert!(out.ends_with("# EOF\n"), "{out}");
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let fake = Fake::new(&directory, traffic);
    let (_, more, _) = vma_stats(&directory, "--openmetrics -c 1");
    assert!(more.contains(&fake.process().to_string()) && more.ends_with("# EOF\n"), "{more}");
}

// covers: STAT-19, STAT-21
#[test]
fn help_version_and_mistakes_have_the_exit_status_that_scripts_know() {
    let directory = scratch("help");
    let usage = "[-p pid] [-k directory] [-v view] [-d details] [-i interval]";
    for (arguments, status, said) in [
        ("-h", 0, ""),
        ("--bogus", 0, ": unrecognized option '--bogus'\n"),
        ("-v 9", 1, "vmastat: '-v' Invalid view val: 9\n"),
    ] {
        let (code, out, error) = vma_stats(&directory, arguments);
        assert!(out.contains(usage), "{out}");
        assert!(code == Some(status) && error.ends_with(said), "{arguments}: {code:?} {error}");
    }
    let (code, out, _) = vma_stats(&directory, "-V");
    let version = concat!("vmastat: Linked with VMA version: ", env!("CARGO_PKG_VERSION"), ".0\n");
    assert!(out.starts_with(&format!("{version}vmastat: Build Date: ")), "{out}");
    assert_eq!((code, out.lines().count()), (Some(0), 2));
}

// covers: STAT-22
#[test]
fn the_number_of_a_process_may_be_a_plain_argument() {
    let directory = scratch("plain");
    let fakes = [Fake::new(&directory, traffic), Fake::new(&directory, traffic)];
    for fake in fakes {
        let (status, out, _) = vma_stats(&directory, &format!("{} -v 4", fake.process()));
        assert!(status == Some(0) && out.starts_with(&stats_for(fake.process())), "{out}");
    }
}

// covers: STAT-05
#[test]
fn what_an_ended_process_told_last_can_be_read() {
    let directory = scratch("legacy");
    let mut fake = Fake::new(&directory, traffic);
    vma_stats(&directory, "-c 1");
    fake.be_silent();
    fake.end();
    let arguments = format!("-F -p {}", fake.process());
    let (status, out, error) = vma_stats(&directory, &arguments);
    let intro = format!("vmastat: stats for proccess with pid: {}\n", fake.process());
    assert!(out.starts_with(&intro) && out.contains(" 14  Rx:       1000 "), "{out}");
    let end = format!("vmastat: Proccess {} ended - exiting\n", fake.process());
    assert!(out.ends_with(&end), "{out}");
    assert_eq!((status, error.as_str()), (Some(0), ""));
}

#[test]
fn names_do_not_reach_the_terminal_as_commands() {
    let directory = scratch("names");
    let named = directory.join("\u{1b}[2Jx");
    std::fs::copy("/bin/sleep", &named).expect("a copy");
    let _fake = Fake::running(Command::new(&named).arg("1000"), &directory, traffic);
    for arguments in ["-v 5", "-v 4"] {
        let (_, out, _) = vma_stats(&directory, arguments);
        assert!(out.contains("?[2Jx") && !out.contains('\u{1b}'), "{out:?}");
    }
}

#[test]
fn the_manual_page_has_every_option() {
    let page = include_str!("../../docs/vma_stats.8").replace('\\', "");
    let directory = scratch("manual");
    let (_, usage, _) = vma_stats(&directory, "-h");
    let words = usage.split(|letter: char| letter.is_whitespace() || "=,[]".contains(letter));
    let options: Vec<&str> = words.filter(|word| word.starts_with('-') && word.len() > 1).collect();
    assert!(options.len() > 30, "{options:?}");
    for option in options {
        assert!(page.contains(option), "{option}");
    }
}
