//! Random time lines: what the engine sends and says must be what the kernel of this machine sends and says.
//!
//! A seed makes a time line (`generator`). The engine plays it in simulated time, the kernel behind a TUN
//! interface in real time. Steps are apart from what any timer does, so that no time has to be compared: each step has
//! what left until the next one, what a call returned, and what the program can ask. A time line ends before it meets
//! what Linux is known to do otherwise (`known`).

mod engine;
mod generator;
mod kernel;
mod known;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::tcp::Settings;
use crate::tun::{Tun, enter, in_namespace};
use engine::Engine;
use generator::Generator;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Opening {
    Active,
    Passive,
}

/// Something happens, and a pause follows.
#[derive(Clone, Debug)]
pub struct Step {
    /// In milliseconds.
    pause: u64,
    /// As in a time line.
    text: String,
}

/// The effects of a step until the next one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    sent: Vec<String>,
    /// Of a call.
    result: String,
    /// The fields below can be asked while the program has the socket.
    state: String,
    poll: String,
    queued: u32,
    unacknowledged: u32,
}

impl Outcome {
    /// Without what tells only that something was received.
    fn without_acknowledgments(&self) -> Outcome {
        let mut outcome = self.clone();
        outcome.sent.retain(|text| {
            !(text.starts_with("A ") || text.starts_with("AE "))
                || !text.contains("+0 ")
                || text.contains('[')
        });
        outcome
    }
}

const SETTINGS: [&str; 7] = [
    "",
    "sack",
    "timestamps: true, window_scaling: true, sack",
    "timestamps: true, sack, nodelay: true",
    "window_scaling: true, sack, ecn: true",
    "timestamps: true, window_scaling: true, sack, ecn: true, nodelay: true",
    "timestamps: true",
];

/// One time line.
#[derive(Clone)]
struct Line {
    opening: Opening,
    settings: &'static str,
    steps: Vec<Step>,
}

fn settings_of(text: &str) -> Settings {
    Settings {
        timestamps: text.contains("timestamps: true"),
        window_scaling: text.contains("window_scaling: true"),
        sack: text.contains("sack"),
        ecn: text.contains("ecn: true"),
        nodelay: text.contains("nodelay: true"),
        largest_receive_buffer: largest_receive_buffer(),
        ..Settings::default()
    }
}

/// The scale of the windows that Linux announces follows from it.
fn largest_receive_buffer() -> u32 {
    let last = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().last().and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let largest: u32 = last("/proc/sys/net/ipv4/tcp_rmem");
    largest.max(last("/proc/sys/net/core/rmem_max"))
}

/// How many bytes were read, and a sum of them.
fn digest(bytes: &[u8]) -> String {
    let sum =
        bytes.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    format!("{}:{sum:x}", bytes.len())
}

impl Line {
    fn of_seed(seed: u64) -> Line {
        let mut random = generator::Random::new(seed ^ 0x5eed);
        let settings_text = random.pick(&SETTINGS);
        let opening = random.pick(&[Opening::Active, Opening::Active, Opening::Passive]);
        let mut generator = Generator::new(seed, opening, settings_text);
        let mut engine = Engine::new(opening, settings_of(settings_text));
        let mut steps = generator.handshake();
        for step in &steps {
            engine.play(step);
        }
        // A handshake that failed is all.
        let mut left = if engine.is_over() { 0 } else { 6 + random.below(10) };
        while left > 0 || generator.has_plan() && !engine.is_over() {
            left = left.saturating_sub(1);
            let mut step = generator.next(&engine);
            // How long is it to be until no timer is near? The step is played once to know.
            let mut line = Line { opening, settings: settings_text, steps: steps.clone() };
            line.steps.push(step.clone());
            step.pause = line.calm_pause();
            engine.play(&step);
            if engine.is_unclear() {
                break;
            }
            steps.push(step);
            if engine.is_over() && (opening == Opening::Passive || random.one_in(3)) {
                break;
            }
        }
        Line { opening, settings: settings_text, steps }
    }

    /// Of the last step.
    fn calm_pause(&self) -> u64 {
        let mut engine = Engine::new(self.opening, settings_of(self.settings));
        let (last, before) = self.steps.split_last().expect("there are steps");
        for step in before {
            engine.play(step);
        }
        engine.act(&last.text);
        engine.calm_pause(last.pause)
    }

    /// The effects of each step, and whether Linux may delay an acknowledgment of it. None: the time line has nothing to compare.
    fn on_engine(&self) -> Option<Vec<(Outcome, bool)>> {
        let mut engine = Engine::new(self.opening, settings_of(self.settings));
        let outcomes =
            self.steps.iter().map(|step| (engine.play(step), engine.may_delay())).collect();
        (!engine.is_unclear()).then_some(outcomes)
    }

    /// The first step that differs, by what each side says.
    fn difference(&self, tun: Tun) -> (Tun, Option<String>) {
        let Some(engine) = self.on_engine() else { return (tun, None) };
        let (tun, linux) = kernel::play(tun, self.opening, self.settings, &self.steps);
        let mut text = format!("{:?}, {}\n", self.opening, self.settings);
        let mut at = 0;
        for ((step, (one, may_delay)), other) in self.steps.iter().zip(&engine).zip(&linux) {
            text += &format!("  {at} {}\n", step.text);
            at += step.pause;
            if one != other {
                if *may_delay && one.without_acknowledgments() == other.without_acknowledgments() {
                    // The rest depends on when the segment leaves.
                    return (tun, None);
                }
                text += &format!("  {at} end\n    engine {one:?}\n    Linux  {other:?}\n");
                return (tun, Some(text));
            }
            for sent in &one.sent {
                text += &format!("      > {sent}\n");
            }
        }
        (tun, None)
    }
}

/// Takes away what does not matter to the difference.
fn shrink(mut line: Line, mut tun: Tun) -> (Tun, String) {
    let mut found = String::new();
    let mut at = line.steps.len();
    while at > 2 {
        at -= 1;
        let mut shorter = line.clone();
        shorter.steps.remove(at);
        let mut differs = true;
        for _ in 0..2 {
            let (back, difference) = shorter.difference(tun);
            tun = back;
            differs &= difference.is_some();
            if !differs {
                break;
            }
            found = difference.unwrap();
        }
        if differs {
            line = shorter;
        }
    }
    let (back, last) = line.difference(tun);
    (back, last.unwrap_or(found))
}

const ATTEMPTS: usize = 4;
/// Lines that are played at the same time. A line sleeps most of the time.
const AT_ONCE: usize = 16;

/// The differences that the time lines of these seeds show.
fn differences(seeds: std::ops::Range<u64>, told: impl Fn(&str) + Sync, shrinks: bool) {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut tun = enter(1500);
        std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1").expect("the setting");
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let line = Line::of_seed(seed);
            let mut found = None;
            for _ in 0..ATTEMPTS {
                (tun, found) = line.difference(tun);
                if found.is_none() {
                    break;
                }
            }
            if let (Some(_), true) = (&found, shrinks) {
                let text;
                (tun, text) = shrink(line, tun);
                found = Some(text);
            }
            if let Some(text) = found {
                told(&format!("seed {seed}: {text}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| in_namespace(work));
        }
    });
}

/// A short look at the same time lines each time. Of what differs, all is known.
#[test]
fn linux_and_the_engine_agree() {
    let wrong = Mutex::new(Vec::new());
    differences(0..1000, |text| wrong.lock().unwrap().push(text.to_owned()), false);
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A longer look: COUNT time lines from SEED on. Differences are made as short as they go.
#[test]
#[ignore = "a search, which takes as long as it is told to"]
fn search() {
    let number = |name: &str, or: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
    };
    let first = number("SEED", 1000);
    differences(first..first + number("COUNT", 1000), |text| println!("{text}"), true);
}

/// Plays the time line of a file on both sides: its settings, and lines as `search` prints them.
#[test]
#[ignore = "plays the file REPLAY"]
fn replay() {
    let path = std::env::var("REPLAY").expect("REPLAY is the path of a file");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let text: &'static str = text.leak();
    let (first, rest) = text.split_once('\n').expect("a line of settings");
    let (opening, settings) = first.split_once(", ").expect("an opening and settings");
    let opening = if opening == "Passive" { Opening::Passive } else { Opening::Active };
    let lines: Vec<(u64, &str)> = rest
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .filter_map(|(at, what)| Some((at.parse().ok()?, what)))
        .collect();
    let ends = lines.iter().skip(1).map(|(at, _)| *at).chain([u64::MAX]);
    let steps = lines.iter().zip(ends).map(|((at, what), end)| Step {
        pause: if end == u64::MAX { 100 } else { end - at },
        text: (*what).to_owned(),
    });
    let line = Line { opening, settings, steps: steps.collect() };
    in_namespace(|| {
        let tun = enter(1500);
        let mut engine = Engine::new(line.opening, settings_of(line.settings));
        let engine: Vec<Outcome> = line.steps.iter().map(|step| engine.play(step)).collect();
        let (_, linux) = kernel::play(tun, line.opening, line.settings, &line.steps);
        for ((step, one), other) in line.steps.iter().zip(&engine).zip(&linux) {
            println!("{} ({})\n    engine {one:?}\n    Linux  {other:?}", step.text, step.pause);
        }
    });
}
