//! The engine's time lines (`src/tcp/tests/timelines`), played against the kernel of this
//! machine: it must send the same segments in the same order, at the same times.
//!
//! The lines are read out of the sources, as far as they are literals. The kernel's timers are late by up
//! to an eighth (its timer wheel) and some milliseconds, and a loaded machine delays what the peer sends;
//! so a line may be late, and a time line has some attempts.

pub mod peer;

use std::sync::Mutex;

use crate::notation::{number, pair};
use crate::tun::{enter, in_namespace};
use peer::{Peer, Sent};

const SOURCES: [&str; 16] = [
    include_str!("../../src/tcp/tests/timelines/closed_window.rs"),
    include_str!("../../src/tcp/tests/timelines/closing.rs"),
    include_str!("../../src/tcp/tests/timelines/congestion.rs"),
    include_str!("../../src/tcp/tests/timelines/crossing.rs"),
    include_str!("../../src/tcp/tests/timelines/ecn.rs"),
    include_str!("../../src/tcp/tests/timelines/handshake.rs"),
    include_str!("../../src/tcp/tests/timelines/probes.rs"),
    include_str!("../../src/tcp/tests/timelines/receiving.rs"),
    include_str!("../../src/tcp/tests/timelines/recovery.rs"),
    include_str!("../../src/tcp/tests/timelines/repetitions.rs"),
    include_str!("../../src/tcp/tests/timelines/sending.rs"),
    include_str!("../../src/tcp/tests/timelines/small_buffers.rs"),
    include_str!("../../src/tcp/tests/timelines/strays.rs"),
    include_str!("../../src/tcp/tests/timelines/teardown.rs"),
    include_str!("../../src/tcp/tests/timelines/timeouts.rs"),
    include_str!("../../src/tcp/tests/timelines/urgent.rs"),
];

/// What Linux does otherwise (docs/tcp-conformance.md, "Differences from Linux"), or the kernel does not
/// have: a device that is full, no congestion control.
const OTHERWISE: [&str; 25] = [
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
    // PRR rounds up to a segment.
    "data_of_the_peer_sends_nothing_in_a_reduction",
    // Silly windows, window probes.
    "a_rest_of_the_window_is_not_used",
    "half_of_a_tiny_window_is_used",
    "a_closed_window_is_asked_about",
    // Linux counts memory, offers whole segments, and delays acknowledgments when the buffer is half full.
    "half_of_a_small_buffer_opens_the_window",
    "the_window_is_the_whole_buffer",
    "a_buffer_that_fills_up_does_not_delay_acknowledgments",
    // Linux takes all of a segment.
    "a_segment_beyond_a_small_buffer_is_cut_off",
    // Linux keeps the FIN with the data.
    "data_leaves_for_a_window_without_room_for_the_fin",
    // Linux takes the answer for Accurate ECN.
    "a_peer_that_reflects_the_bits_gets_no_ecn",
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
/// Lines that are played at the same time. A line sleeps most of the time.
const AT_ONCE: usize = 16;

/// The beginning of a time line.
#[derive(Clone, Copy, PartialEq)]
enum Opening {
    Established,
    Connect,
    Listen,
}

/// A time line as the sources have it.
pub struct TimeLine {
    name: &'static str,
    opening: Opening,
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
        Some(name) => name.split(',').any(|name| line.name == name),
        None => !OTHERWISE.contains(&line.name),
    };
    let mut chosen: Vec<&TimeLine> = lines.iter().filter(fits).collect();
    // The longest one is begun first.
    chosen.sort_by(|one, other| one.last().total_cmp(&other.last()));
    let queue = Mutex::new(chosen);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
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
            let begins = |(name, opening): (&str, Opening)| {
                call.strip_prefix(name).map(|rest| (opening, rest))
            };
            let openings = [
                ("established(\n", Opening::Established),
                ("connect(\n", Opening::Connect),
                ("listening(\n", Opening::Listen),
            ];
            let Some((opening, rest)) = openings.into_iter().find_map(begins) else { continue };
            let Some((settings, rest)) = rest.split_once('"') else { continue };
            let Some((text, _)) = rest.split_once('"') else { continue };
            let lines = text.lines().filter_map(line).collect();
            let known = [" buffer(", "(buffer(", "Algorithm::None"];
            if !known.iter().any(|other| settings.contains(other)) {
                found.push(TimeLine { name, opening, settings, lines });
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

impl TimeLine {
    /// Without lines: what is played on it is somebody else's concern.
    pub fn of_settings(settings: &'static str) -> TimeLine {
        TimeLine { name: "", opening: Opening::Connect, settings, lines: Vec::new() }
    }

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
            match self.opening {
                Opening::Established => peer.handshake(self),
                Opening::Listen => peer.listen(),
                Opening::Connect => {}
            }
            self.follow(&mut peer)
        })
    }

    pub fn set_system(&self) {
        let set = |name: &str, value: i32| {
            let path = format!("/proc/sys/net/ipv4/{name}");
            std::fs::write(&path, value.to_string()).unwrap_or_else(|it| panic!("{path}: {it}"));
        };
        set("tcp_sack", i32::from(self.has("sack")));
        set("tcp_timestamps", i32::from(self.has("timestamps: true")));
        set("tcp_window_scaling", i32::from(self.has("window_scaling: true")));
        set("tcp_syn_linear_timeouts", 0);
        set("tcp_ecn", if self.has("ecn: true") { 1 } else { 2 });
        if let Some(retries) = self.number_of("syn_retries: ") {
            set("tcp_syn_retries", retries);
        }
        if self.has("of_the_host(") {
            let millis = |name: &str| self.number_of(&format!("{name}: Millis::from_millis("));
            if let Some(least) = millis("least_rto") {
                set("tcp_rto_min_us", least * 1000);
            }
            if let Some(most) = millis("most_rto") {
                set("tcp_rto_max_ms", most);
            }
        }
    }

    /// A segment as its line has it, without what is not compared: PSH, the urgent pointer, most options, and
    /// windows, except where the buffer is small: those of larger ones depend on the memory of the device.
    fn to_be_sent(&self, at: f64, line: &str) -> Sent {
        let has_windows = self.has("rcvbuf(");
        let (mut text, mut more) = (Vec::new(), Vec::new());
        for (n, word) in line.split_whitespace().enumerate() {
            match n {
                0 => text.push(word.replace('P', "")),
                1 => text.push(word.into()),
                _ if word.starts_with('a') || word.starts_with('[') => text.push(word.into()),
                _ if word.starts_with("w=") && !has_windows => {}
                _ if word.starts_with("w=") || ["ect", "noect"].contains(&word) => {
                    more.push(word.into());
                }
                _ => {}
            }
        }
        Sent { at, text: text.join(" "), more }
    }

    /// The time of its last line that is waited for.
    fn last(&self) -> f64 {
        self.lines.iter().map(|(at, _)| *at).fold(0.0, f64::max).min(LONGEST_MILLIS)
    }

    fn follow(&self, peer: &mut Peer) -> Result<(), String> {
        let mut expected: Vec<Sent> = Vec::new();
        let mut wrong = String::new();
        for (at, what) in self.lines.iter().filter(|(at, _)| *at <= LONGEST_MILLIS) {
            if let Some(segment) = what.strip_prefix('>') {
                let segments = every(segment);
                expected.extend(segments.map(|text| self.to_be_sent(*at, &text)));
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
        let last = self.last();
        peer.wait_until(last + allowance(last));
        // What follows after the end is not what the time line is about.
        let known = peer.sent.len().min(expected.len());
        let early = peer.sent.iter().skip(known).any(|sent| sent.at <= last);
        let matches = |(one, other): (&Sent, &Sent)| {
            one.text == other.text
                && one.more.iter().all(|word| other.more.contains(word))
                && other.at >= one.at - 4.0
                && other.at <= one.at + allowance(one.at)
        };
        let is_same = peer.sent.len() >= expected.len()
            && !early
            && expected.iter().zip(&peer.sent).all(matches);
        if is_same && wrong.is_empty() {
            return Ok(());
        }
        let show = |sent: &[Sent]| {
            let line = |it: &Sent| format!("  {:.1} {} {}\n", it.at, it.text, it.more.join(" "));
            sent.iter().map(line).collect::<String>()
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
    let text = line.to_owned();
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
