//! The engine's time lines (`src/tcp/tests/timelines`), played against the kernel of this
//! machine: it must send the same segments in the same order, at the same times.
//!
//! The lines are read out of the sources, as far as they are literals. The kernel's timers are late by up
//! to an eighth (its timer wheel) and some milliseconds, and a loaded machine delays what the peer sends;
//! so a line may be late, and a time line has some attempts.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::wire::ipv4;
use libvma_engine::wire::tcp::{Flags, Header, Options, SackBlock, Timestamps};

use crate::host::{OURS, PORT, THEIRS, packet};
use crate::tun::{Tun, enter, in_namespace};

const SOURCES: [&str; 7] = [
    include_str!("../../src/tcp/tests/timelines/closing.rs"),
    include_str!("../../src/tcp/tests/timelines/congestion.rs"),
    include_str!("../../src/tcp/tests/timelines/handshake.rs"),
    include_str!("../../src/tcp/tests/timelines/probes.rs"),
    include_str!("../../src/tcp/tests/timelines/receiving.rs"),
    include_str!("../../src/tcp/tests/timelines/recovery.rs"),
    include_str!("../../src/tcp/tests/timelines/sending.rs"),
];

/// What Linux does otherwise (docs/tcp-conformance.md, "Differences from Linux"), or the kernel does not
/// have: a device that is full, no congestion control.
const OTHERWISE: [&str; 18] = [
    // The engine's device.
    "a_probe_that_cannot_leave_leaves_the_timeout_alone",
    "a_device_that_cuts_gets_a_run",
    "a_device_without_room_delays_only",
    "a_device_that_cuts_segments_holds_back_nothing_in_a_recovery",
    // New data is its probe.
    "the_probe_is_the_last_segment_also_if_there_is_new_data",
    // Small segments are counted, not their bytes.
    "a_segments_worth_of_small_ones_is_a_single_one",
    // tcp_retries2, TCP_USER_TIMEOUT.
    "data_is_given_up_after_the_retries",
    "an_orphan_is_given_up_after_its_retries",
    "the_user_timeout_counts_from_the_original",
    "a_user_timeout_below_the_timeout_repeats_nothing",
    // The acknowledgment that ends a recovery opens the window.
    "congestion_avoidance_adds_a_segment_a_round_trip",
    "cubic_grows_as_reno_at_short_round_trips",
    // Silly windows, window probes.
    "a_rest_of_the_window_is_not_used",
    "half_of_a_tiny_window_is_used",
    "a_closed_window_is_asked_about",
    // A crossing SYN that comes again.
    "the_answer_to_a_crossing_syn_is_repeated",
    // The corked segment leaves at RTO.
    "cork_holds_back_for_200_ms",
    // The reordering timer of Linux is coarser.
    "a_segment_that_one_report_overtook_is_late_after_a_quarter_of_the_round_trip",
];

/// Lines after this are not waited for.
const LONGEST_MILLIS: f64 = 4000.0;
const ATTEMPTS: usize = 4;
const IRS: u32 = 5000;

const TCP_RTO_MAX_MS: i32 = 44;
const TCP_RTO_MIN_US: i32 = 45;
const TCP_DELACK_MAX_US: i32 = 46;

/// A time line as the sources have it.
struct TimeLine {
    name: &'static str,
    connects: bool,
    settings: &'static str,
    lines: Vec<(f64, &'static str)>,
}

#[test]
fn linux_follows_the_time_lines() {
    let lines: Vec<TimeLine> = SOURCES.iter().flat_map(|source| time_lines(source)).collect();
    assert!(lines.len() > 80, "{} time lines found", lines.len());
    for name in OTHERWISE {
        assert!(lines.iter().any(|line| line.name == name), "no time line {name}");
    }
    let wanted = std::env::var("TIME_LINE").ok();
    let fits = |line: &&TimeLine| match &wanted {
        Some(name) => line.name == name,
        None => !OTHERWISE.contains(&line.name),
    };
    let queue = Mutex::new(lines.iter().filter(fits).collect::<Vec<_>>());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let Some(line) = queue.lock().unwrap().pop() else { break };
                    let result = (0..ATTEMPTS).find_map(|attempt| match line.play() {
                        Ok(()) => Some(Ok(())),
                        Err(error) => (attempt + 1 == ATTEMPTS).then_some(Err(error)),
                    });
                    if let Some(Err(error)) = result {
                        wrong.lock().unwrap().push(format!("{}:\n{error}", line.name));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "Linux does otherwise:\n{}", wrong.join("\n"));
}

/// The time lines of a source file whose lines are one literal each.
fn time_lines(source: &'static str) -> Vec<TimeLine> {
    let mut found = Vec::new();
    for test in source.split("#[test]\nfn ").skip(1) {
        let Some((name, body)) = test.split_once("() {\n") else { continue };
        let body = body.split("\n}\n").next().unwrap_or_default();
        for call in body.split("\n    );") {
            let call = call.trim_start();
            let connects = call.starts_with("connect(\n");
            let Some(rest) =
                call.strip_prefix("established(\n").or(call.strip_prefix("connect(\n"))
            else {
                continue;
            };
            let Some((settings, rest)) = rest.split_once('"') else { continue };
            let Some((text, _)) = rest.split_once('"') else { continue };
            let lines = text.lines().filter_map(line).collect();
            let known = ["ecn:", "buffer(", "Algorithm::None"];
            if !known.iter().any(|other| settings.contains(other)) {
                found.push(TimeLine { name, connects, settings, lines });
            }
        }
    }
    found
}

fn line(text: &'static str) -> Option<(f64, &'static str)> {
    let text = text.split('#').next()?.trim();
    let (time, what) = text.split_once(char::is_whitespace)?;
    Some((time.parse().expect("a time"), what.trim()))
}

/// A segment that the kernel sent: when, and what.
type Sent = (f64, String);

/// The kernel's socket and its peer.
struct Peer {
    tun: Tun,
    socket: Option<OwnedFd>,
    key: FlowKey,
    iss: Option<u32>,
    /// What the kernel's time stamps begin with.
    stamp: u32,
    start: Instant,
    sent: Vec<Sent>,
}

impl TimeLine {
    fn has(&self, setting: &str) -> bool {
        let is_default = self.settings.contains("Settings::default()");
        let selective = setting == "sack" && self.settings.contains("selective()");
        let bases = ["timestamps: true", "window_scaling: true", "sack"];
        selective || is_default && bases.contains(&setting) || self.settings.contains(setting)
    }

    fn number_of(&self, setting: &str) -> Option<i32> {
        let (_, rest) = self.settings.split_once(setting)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }

    /// Plays it in a namespace of its own.
    fn play(&self) -> Result<(), String> {
        in_namespace(|| {
            let tun = enter(1500);
            self.set_system();
            let mut peer = Peer::new(tun, self);
            if !self.connects {
                peer.handshake(self);
            }
            self.follow(&mut peer)
        })
    }

    fn set_system(&self) {
        let set = |name: &str, value: i32| {
            let path = format!("/proc/sys/net/ipv4/{name}");
            std::fs::write(&path, value.to_string()).unwrap_or_else(|it| panic!("{path}: {it}"));
        };
        set("tcp_sack", i32::from(self.has("sack")));
        set("tcp_timestamps", i32::from(self.has("timestamps: true")));
        set("tcp_window_scaling", i32::from(self.has("window_scaling: true")));
        set("tcp_syn_linear_timeouts", 0);
        if let Some(retries) = self.number_of("syn_retries: ") {
            set("tcp_syn_retries", retries);
        }
    }

    fn follow(&self, peer: &mut Peer) -> Result<(), String> {
        let mut expected: Vec<Sent> = Vec::new();
        let mut wrong = String::new();
        for (at, what) in self.lines.iter().filter(|(at, _)| *at <= LONGEST_MILLIS) {
            if let Some(segment) = what.strip_prefix('>') {
                expected.extend(every(segment).map(|text| (*at, text)));
                continue;
            }
            peer.wait_until(*at);
            match what.strip_prefix('<') {
                Some(segment) => peer.send(segment),
                None => {
                    wrong += &peer.call(what).map_or(String::new(), |it| format!("{at} {it}\n"))
                }
            }
            peer.receive();
        }
        let last = self.lines.iter().map(|(at, _)| *at).fold(0.0, f64::max).min(LONGEST_MILLIS);
        peer.wait_until(last + allowance(last));
        // What follows after the end is not what the time line is about.
        let known = peer.sent.len().min(expected.len());
        let early = peer.sent.iter().skip(known).any(|(at, _)| *at <= last);
        let matches = |(one, other): (&Sent, &Sent)| {
            one.1 == other.1 && other.0 >= one.0 - 4.0 && other.0 <= one.0 + allowance(one.0)
        };
        let is_same = peer.sent.len() >= expected.len()
            && !early
            && expected.iter().zip(&peer.sent).all(matches);
        if is_same && wrong.is_empty() {
            return Ok(());
        }
        let show = |sent: &[Sent]| {
            sent.iter().map(|(at, text)| format!("  {at:.1} {text}\n")).collect::<String>()
        };
        Err(format!("{wrong} expected\n{} Linux\n{}", show(&expected), show(&peer.sent)))
    }
}

/// How late a segment may be, in milliseconds.
fn allowance(at: f64) -> f64 {
    15.0 + at / 7.0
}

/// The segments of a line: `1+1460*3` is three.
fn every(line: &str) -> impl Iterator<Item = String> {
    let text = plain_text(line);
    let repeated = text.split_whitespace().find_map(|word| {
        let (numbers, count) = word.split_once('*')?;
        Some((word.to_owned(), pair(numbers, '+'), number(count)))
    });
    let count = repeated.as_ref().map_or(1, |(_, _, count)| *count);
    (0..count).map(move |n| match &repeated {
        Some((word, (seq, len), _)) => text.replace(word, &format!("{}+{len}", seq + n * len)),
        None => text.clone(),
    })
}

/// A line's segment without what is not compared: PSH, the urgent pointer, options.
fn plain_text(segment: &str) -> String {
    let words = segment.split_whitespace().enumerate().filter_map(|(n, word)| match n {
        0 => Some(word.replace('P', "")),
        1 => Some(word.into()),
        _ => (word.starts_with('a') || word.starts_with('[')).then(|| word.into()),
    });
    words.collect::<Vec<String>>().join(" ")
}

fn number(text: &str) -> u32 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

fn pair(text: &str, between: char) -> (u32, u32) {
    let (one, other) = text.split_once(between).unwrap_or_else(|| panic!("no pair: {text}"));
    (number(one), number(other))
}

impl Peer {
    fn new(tun: Tun, line: &TimeLine) -> Peer {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, kind, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just opened, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let key = FlowKey { local: OURS, local_port: PORT, remote: THEIRS, remote_port: 0 };
        let (start, sent) = (Instant::now(), Vec::new());
        let peer = Peer { tun, socket: Some(socket), key, iss: None, stamp: 0, start, sent };
        peer.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 1 << 20);
        let tcp = libc::IPPROTO_TCP;
        if line.has("nodelay: true") {
            peer.set(tcp, libc::TCP_NODELAY, 1);
        }
        if line.has("keep_alive()") {
            peer.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
            peer.set(tcp, libc::TCP_KEEPIDLE, 10);
        }
        let millis = "Millis::from_millis(";
        for (setting, name, factor) in [
            ("least_rto: ", TCP_RTO_MIN_US, 1000),
            ("most_rto: ", TCP_RTO_MAX_MS, 1),
            ("most_ack_delay: ", TCP_DELACK_MAX_US, 1000),
        ] {
            if let Some(value) = line.number_of(&format!("{setting}{millis}")) {
                peer.set(tcp, name, value * factor);
            }
        }
        if line.has("reset_on_close: true") {
            peer.linger_zero();
        }
        let name: &[u8] = if line.has("NewReno") { b"reno" } else { b"cubic" };
        peer.set_bytes(tcp, libc::TCP_CONGESTION, name);
        peer
    }

    fn fd(&self) -> i32 {
        self.socket.as_ref().expect("the socket is open").as_raw_fd()
    }

    fn set(&self, level: i32, name: i32, value: i32) {
        self.set_bytes(level, name, &value.to_ne_bytes());
    }

    fn set_bytes(&self, level: i32, name: i32, value: &[u8]) {
        let (pointer, len) = (value.as_ptr().cast(), value.len() as u32);
        // SAFETY: the pointer is to so many bytes.
        let result = unsafe { libc::setsockopt(self.fd(), level, name, pointer, len) };
        assert_eq!(result, 0, "option {name}: {}", std::io::Error::last_os_error());
    }

    fn linger_zero(&self) {
        let bytes = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
        self.set_bytes(libc::SOL_SOCKET, libc::SO_LINGER, &bytes);
    }

    fn connect(&mut self) {
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: PORT.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(OURS).to_be() },
            sin_zero: [0; 8],
        };
        let len = size_of::<libc::sockaddr_in>() as u32;
        // SAFETY: the pointer is to an address of that size.
        let result = unsafe { libc::connect(self.fd(), (&raw const address).cast(), len) };
        let error = std::io::Error::last_os_error();
        assert!(result == 0 || error.raw_os_error() == Some(libc::EINPROGRESS), "{error}");
    }

    /// A round trip of 10 ms, whose end is the time 0.
    fn handshake(&mut self, line: &TimeLine) {
        self.connect();
        self.wait_until(10.0);
        let mut answer = "SA 0+0 a1 mss=1460".to_owned();
        for (setting, option) in [
            ("sack", " sackok"),
            ("window_scaling: true", " ws=7"),
            ("timestamps: true", " ts=1000000/10000"),
        ] {
            if line.has(setting) {
                answer += option;
            }
        }
        self.send(&answer);
        self.start = Instant::now();
        self.receive();
        self.sent.clear();
    }

    fn millis(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1000.0
    }

    fn wait_until(&mut self, at: f64) {
        loop {
            self.receive();
            let left = at - self.millis();
            if left <= 0.0 {
                return;
            }
            self.tun.wait_for(Duration::from_micros((left * 1000.0) as u64));
        }
    }

    /// Takes what the kernel has sent.
    fn receive(&mut self) {
        let mut buffer = [0; 2048];
        loop {
            match self.tun.read(&mut buffer) {
                Ok(len) => self.note(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("reading the TUN device: {error}"),
            }
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        let Ok(ip) = ipv4::Header::parse(bytes, bytes.len()) else { return };
        let segment = &bytes[ip.header_len()..ip.total_len()];
        let Ok((header, len)) = Header::parse(segment, segment.len()) else { return };
        if self.iss.is_none() {
            self.iss = Some(header.seq);
            self.key.remote_port = header.src_port;
            self.stamp = header.options.timestamps.map_or(0, |stamps| stamps.value);
        }
        if header.src_port != self.key.remote_port {
            return;
        }
        let names = [
            (Flags::SYN, 'S'),
            (Flags::FIN, 'F'),
            (Flags::RST, 'R'),
            (Flags::ACK, 'A'),
            (Flags::URG, 'U'),
        ];
        let flags = names.iter().filter(|(flag, _)| header.flags.contains(*flag));
        let mut text: String = flags.map(|(_, name)| *name).collect();
        let seq = header.seq.wrapping_sub(self.iss.unwrap_or_default());
        text += &format!(" {seq}+{}", segment.len() - len);
        if header.flags.contains(Flags::ACK) {
            text += &format!(" a{}", header.ack.wrapping_sub(IRS));
        }
        for block in header.options.sack() {
            let relative = |number: u32| number.wrapping_sub(IRS);
            text += &format!(" [{}-{}]", relative(block.left), relative(block.right));
        }
        self.sent.push((self.millis(), text));
    }

    /// Sends a segment as its line has it.
    fn send(&mut self, text: &str) {
        let iss = self.iss.expect("the kernel's SYN");
        let mut words = text.split_whitespace();
        let mut flags = Flags::NONE;
        for letter in words.next().unwrap_or_default().chars() {
            flags = flags.with(match letter {
                'S' => Flags::SYN,
                'F' => Flags::FIN,
                'R' => Flags::RST,
                'P' => Flags::PSH,
                'A' => Flags::ACK,
                'U' => Flags::URG,
                '.' => Flags::NONE,
                _ => panic!("no flag: {letter}"),
            });
        }
        let (seq, len) = pair(words.next().unwrap_or_default(), '+');
        let (mut ack, mut window, mut urgent) = (0, 60_000, 0);
        let mut options = Options::default();
        for word in words {
            match word.split_once('=') {
                Some(("w", value)) => window = number(value) as u16,
                Some(("mss", value)) => options.mss = Some(number(value) as u16),
                Some(("ws", value)) => options.window_scale = Some(number(value) as u8),
                Some(("u", value)) => urgent = number(value) as u16,
                Some(("ts", value)) => {
                    let (value, echo) = pair(value, '/');
                    // The engine's clock begins with 10 000.
                    let echo = echo.wrapping_sub(10_000).wrapping_add(self.stamp);
                    options.timestamps = Some(Timestamps { value, echo });
                }
                Some(_) => panic!("no option: {word}"),
                // Without ECN the mark means nothing.
                None if word == "ce" => {}
                None if word == "sackok" => options.sack_permitted = true,
                None if word.starts_with('[') => {
                    let (left, right) = pair(word.trim_matches(['[', ']']), '-');
                    let absolute = |number: u32| iss.wrapping_add(number);
                    options.push_sack(SackBlock { left: absolute(left), right: absolute(right) });
                }
                None => ack = number(&word[1..]),
            }
        }
        let ack = if flags.contains(Flags::ACK) { iss.wrapping_add(ack) } else { 0 };
        let header = Header {
            src_port: PORT,
            dst_port: self.key.remote_port,
            seq: IRS.wrapping_add(seq),
            ack,
            flags,
            window,
            urgent,
            options,
            ..Header::default()
        };
        let sent = packet(self.key, header, &vec![7; len as usize], false);
        self.tun.write(&sent);
    }

    /// A call of the program. Some: something was to be found that is not there.
    fn call(&mut self, what: &str) -> Option<String> {
        let words: Vec<&str> = what.split_whitespace().collect();
        let tcp = libc::IPPROTO_TCP;
        match words[..] {
            ["connect"] => self.connect(),
            ["write", len] => self.write(number(len), 0),
            ["write", len, "more"] => self.write(number(len), libc::MSG_MORE),
            ["write", len, _] => self.write(number(len), libc::MSG_OOB),
            ["read", len] => self.read(number(len)),
            ["shutdown"] => {
                // SAFETY: no pointers.
                unsafe { libc::shutdown(self.fd(), libc::SHUT_WR) };
            }
            ["close"] => self.socket = None,
            ["abort"] => {
                self.linger_zero();
                self.socket = None;
            }
            ["cork"] => self.set(tcp, libc::TCP_CORK, 1),
            ["uncork"] => self.set(tcp, libc::TCP_CORK, 0),
            ["nodelay"] => self.set(tcp, libc::TCP_NODELAY, 1),
            ["quickack"] => self.set(tcp, libc::TCP_QUICKACK, 1),
            ["pingpong"] => self.set(tcp, libc::TCP_QUICKACK, 0),
            ["error", error] => return self.check_error(error),
            // The window is not the same in Linux's terms, and a state is shown by what leaves.
            ["state" | "cwnd" | "ssthresh" | "queued" | "window", _] | ["end"] => {}
            _ => return Some(format!("no such call of the kernel: {what}")),
        }
        None
    }

    fn write(&self, len: u32, flags: i32) {
        let data = vec![7u8; len as usize];
        // SAFETY: the pointer is to so many bytes.
        let sent = unsafe { libc::send(self.fd(), data.as_ptr().cast(), data.len(), flags) };
        assert_eq!(sent, data.len() as isize, "{}", std::io::Error::last_os_error());
    }

    fn read(&self, len: u32) {
        let mut data = vec![0u8; len as usize];
        // SAFETY: the pointer is to so many bytes.
        unsafe { libc::recv(self.fd(), data.as_mut_ptr().cast(), data.len(), 0) };
    }

    fn check_error(&self, expected: &str) -> Option<String> {
        let mut error = 0i32;
        let (pointer, mut len) = ((&raw mut error).cast(), size_of::<i32>() as u32);
        let (level, name) = (libc::SOL_SOCKET, libc::SO_ERROR);
        // SAFETY: the pointers are to integers of that size.
        unsafe { libc::getsockopt(self.fd(), level, name, pointer, &raw mut len) };
        let found = match error {
            0 => "none",
            libc::ECONNRESET => "Reset",
            libc::ECONNREFUSED => "Refused",
            libc::EPIPE => "BrokenPipe",
            libc::ETIMEDOUT => "TimedOut",
            _ => "another one",
        };
        (found != expected).then(|| format!("error {found} and not {expected}"))
    }
}
