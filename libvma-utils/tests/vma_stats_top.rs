//! The live view as a person sees it: the real program in a pseudo-terminal, watching a process whose
//! statistics this test writes.

#[allow(dead_code, reason = "other tests use the rest of it")]
mod fake;

use std::io::{Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fake::{Fake, scratch};
use libvma_dev::stats::{
    Control, Drop as Dropped, OFFLOADED, POOL_RX, POOL_TX, Pool, RING_XDP, Ring, Snapshot, Socket,
    Tcp, text,
};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

const SECOND: u64 = 1_000_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// What there is after so many seconds of the same: one passes with each answer, by its clock.
fn tell(_: &Control, answers: u32) -> (Snapshot, Vec<Socket>) {
    let seconds = u64::from(answers);
    let place = Socket { used: 1, local: [10, 0, 0, 1], ..Socket::default() };
    let mut fast = Socket { descriptor: 5, kind: 2, flags: OFFLOADED, local_port: 5000, ..place };
    (fast.counters.rx_packets, fast.counters.rx_bytes) = (200_000 * seconds, 12_800_000 * seconds);
    let mut bulk = Socket { descriptor: 6, kind: 1, flags: OFFLOADED, local_port: 6000, ..place };
    (bulk.tcp_state, bulk.peer, bulk.peer_port) = (1, [10, 0, 0, 2], 45_000);
    (bulk.counters.tx_packets, bulk.counters.tx_bytes) =
        (90_000 * seconds, 1_300_000_000 * seconds);
    bulk.tcp = Tcp { round_trip: 42, ..Tcp::default() };
    let mut kernel = Socket { descriptor: 7, kind: 2, local_port: 7000, ..place };
    kernel.reason = text("a rule of libvma.conf says so");
    kernel.counters.rx_os_packets = 3 * seconds;
    kernel.counters.rx_dropped_packets = 2 * seconds;

    let mut snapshot = Snapshot { taken: SECOND * seconds, sockets_open: 3, ..Snapshot::default() };
    snapshot.totals = fast.counters;
    snapshot.totals.add(&bulk.counters);
    snapshot.totals.add(&kernel.counters);
    snapshot.poll.polling_cpu = 64;
    snapshot.rings[0] = Ring {
        kind: RING_XDP,
        name: text("eth0"),
        rx_packets: 200_000 * seconds,
        rx_bytes: 12_800_000 * seconds,
        buffers: 2048,
        ..Ring::default()
    };
    snapshot.pools =
        [(POOL_RX, 4000), (POOL_TX, 500)].map(|(kind, free)| Pool { kind, free, no_buffers: 0 });
    snapshot.drops[0] = Dropped { reason: text("socket_buffer_full"), count: 2 * seconds };
    (snapshot, vec![fast, bulk, kernel])
}

/// The program in its terminal.
struct Top {
    terminal: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    program: Box<dyn Child + Send + Sync>,
    screen: Arc<Mutex<vt100::Parser>>,
    /// The terminal's settings before.
    settings: String,
}

impl Top {
    fn start(directory: &Path) -> Top {
        let size = PtySize { rows: 24, cols: 80, ..PtySize::default() };
        let pair = native_pty_system().openpty(size).unwrap();
        let settings = format!("{:?}", pair.master.get_termios());
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_vma_stats"));
        command.env("TERM", "xterm-256color");
        command.args(["--top", "-i", "1", "-k"]);
        command.arg(directory);
        let program = pair.slave.spawn_command(command).unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(lines(24), lines(80), 0)));
        let mut output = pair.master.try_clone_reader().unwrap();
        let parser = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                parser.lock().unwrap().process(&bytes[..count]);
            }
        });
        let keys = pair.master.take_writer().unwrap();
        Top { terminal: pair.master, keys, program, screen, settings }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Until the screen is as wanted, and drawn to the end.
    fn wait(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        let mut last = String::new();
        loop {
            let text = self.text();
            if fits(&text) && text == last {
                return text;
            }
            assert!(Instant::now() < end, "{what} did not come:\n{text}");
            last = text;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn wait_for(&self, words: &str) -> String {
        self.wait(words, |text| text.contains(words))
    }

    /// It ended by itself, and left the terminal as it was.
    fn ended(mut self) {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.program.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "it does not end:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status:?}");
        self.wait("the former screen", |text| text.trim().is_empty());
        let screen = self.screen.lock().unwrap();
        assert!(!screen.screen().alternate_screen() && !screen.screen().hide_cursor());
        assert_eq!(format!("{:?}", self.terminal.get_termios()), self.settings);
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn lines(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}

/// Descriptors in the order of the table.
fn order(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| !line.contains(" FD "));
    lines.skip(1).take(3).filter_map(|line| line.split_whitespace().nth(1)).collect()
}

// covers: STAT-42
#[test]
fn the_screen_of_a_process_and_its_keys() {
    let directory = scratch("top-keys");
    let fake = Fake::new(&directory, tell);
    let mut top = Top::start(&directory);
    let text = top.wait_for("200k");
    let id = fake.process();
    let name = text.lines().nth(2).unwrap().split_whitespace().next().unwrap().to_owned();
    let expected = SCREEN
        .replace("{name:16}", &format!("{name:16}"))
        .replace("{name:10}", &format!("{name:10}"))
        .replace("{name:12}", &format!("{name:12}"))
        .replace("{name}", &name)
        .replace("{id:8}", &format!("{id:8}"))
        .replace("{id}", &id.to_string());
    let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    assert_eq!(trimmed(&text), trimmed(&expected), "\n{text}");

    assert_eq!(order(&text), ["5", "6", "7"]);
    top.press("b");
    assert_eq!(order(&top.wait_for("by bytes")), ["6", "5", "7"]);
    top.press("d");
    assert_eq!(order(&top.wait_for("by drops")), ["7", "5", "6"]);
    top.wait_for("Carried by the kernel: a rule of libvma.conf says so");
    top.press("nr");
    assert_eq!(order(&top.wait_for("by name, reversed")), ["7", "6", "5"]);
    // Down, as xterm says it.
    top.press("\x1b[B");
    top.wait_for("fd 6 TCP 10.0.0.1:6000 -> 10.0.0.2:45000 ESTABLISHED");
    top.wait_for("Round trip: 42 us");
    top.press(" ");
    top.wait_for("PAUSED");
    top.press(" h");
    let help = top.wait_for("share of the time spent polling");
    assert!(!help.contains("PAUSED"), "{help}");
    top.press("hq");
    top.ended();
}

#[test]
fn a_terminal_that_changes_its_size_is_filled() {
    let directory = scratch("top-size");
    let _fake = Fake::new(&directory, tell);
    let mut top = Top::start(&directory);
    top.wait_for("PEER (or *LOCAL)");
    top.screen.lock().unwrap().screen_mut().set_size(lines(40), lines(160));
    top.terminal.resize(PtySize { rows: 40, cols: 160, ..PtySize::default() }).unwrap();
    let text = top.wait_for("ESTABLISHED offload");
    assert!(text.contains("trip us"), "{text}");
    top.press("\x03");
    top.ended();
}

#[test]
fn a_signal_gives_the_terminal_back() {
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let directory = scratch(&format!("top-signal-{}", signal.as_raw()));
        let _fake = Fake::new(&directory, tell);
        let top = Top::start(&directory);
        top.wait_for("200k");
        let id = top.program.process_id().unwrap() as i32;
        rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), signal).unwrap();
        top.ended();
    }
}

#[test]
fn it_says_that_the_last_process_has_ended() {
    let directory = scratch("top-end");
    let mut fake = Fake::new(&directory, tell);
    let mut top = Top::start(&directory);
    top.wait_for("200k");
    fake.end();
    let text = top.wait_for("The last process has ended.");
    assert!(text.contains("0 processes") && !text.contains("eth0"), "{text}");
    top.press("q");
    top.ended();
}

#[test]
fn without_a_terminal_it_says_so() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_vma_stats")).args(["--top", "-k", "/"]).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("needs a terminal"), "{text}");
}

const SCREEN: &str = "\
vma_stats  1 process, 3 sockets  by packets  every 1 s
PROCESS               PID sockets pkt/s  MB/s drops/s poll CPU    free recv/sent
{name:16} {id:8}       3  290k  1313    2.00      64%          4000/500
                                                    recv  recv  sent  sent drops
PROCESS      FD PRO PEER (or *LOCAL)       WHERE   pkt/s  MB/s pkt/s  MB/s    /s
{name:10}    5 UDP *10.0.0.1:5000         offload  200k  12.8     0     0     0
{name:10}    6 TCP 10.0.0.2:45000         offload     0     0 90.0k  1300     0
{name:10}    7 UDP *10.0.0.1:7000         kernel   3.00     0     0     0  2.00








-- chosen socket ---------------------------------------------------------------
{name}[{id}] fd 5 UDP 10.0.0.1:5000
Carried by the device, past the kernel.
To be read: 0 packets in 0 bytes.  Not acknowledged: 0 bytes.  Drops: 0/s
Polls that found something: -
RING OF           PID kind  interface  recv/s  MB/s sent/s  MB/s drops/s frames
{name:12} {id:8} xdp   eth0         200k  12.8      0     0       0   2048
p packets  b bytes  d drops  n name  r reverse  space pause  h help  q quit";
