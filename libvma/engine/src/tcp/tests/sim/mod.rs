//! A simulated world: two hosts, a path between them, a program on each, and a clock that jumps
//! from one thing to do to the next. Everything random follows from one seed.

mod program;
mod side;
mod wire;

pub use program::{End, Plan};
pub use side::{Side, ethernet, settings};
pub use wire::{Conditions, Packet};

use core::ops::Range;
use core::time::Duration;

use crate::tcp::congestion::Algorithm;
use crate::tcp::seq::Seq;
use crate::tcp::{Path, Settings};
use crate::time::Instant;
use crate::wire::tcp::Header;
use wire::Wire;

/// Random numbers that follow from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `count`, which is not 0.
    pub fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// A number of the range, its end included.
    pub fn between(&mut self, range: &Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start + 1)
    }

    /// True so many times in a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Another source of random numbers.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next())
    }
}

/// How the connection comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Side 0 connects to side 1.
    Passive,
    /// Both connect at once.
    Simultaneous,
}

/// A side's part of a scenario.
#[derive(Clone, Debug)]
pub struct Part {
    pub settings: Settings,
    pub path: Path,
    pub plan: Plan,
    /// What happens to packets that this side sends.
    pub conditions: Conditions,
}

impl Part {
    pub fn bulk(bytes: u64, delay: Duration) -> Part {
        Part {
            settings: settings(),
            path: ethernet(),
            plan: Plan::bulk(bytes),
            conditions: Conditions::perfect(delay),
        }
    }
}

/// The world.
pub struct World {
    pub now: Instant,
    pub sides: [Side; 2],
    pub wires: [Wire; 2],
    /// Everything that left, if it is kept: when, from which side, the bytes.
    pub transcript: Option<Vec<(Instant, usize, Vec<u8>)>>,
    /// Messages about packets that were too large: when they reach which side.
    told: Vec<(Instant, usize, u32, Seq)>,
    /// Steps in which the clock stood still.
    still: u32,
    quiet: Quiet,
    prints: bool,
}

/// What happens although nothing comes of it.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    /// What there was of progress, and when it was last seen.
    progress: u64,
    since: Instant,
    /// Calls of timers and segments at the end of the first second after that.
    before: Option<(u64, u64)>,
}

/// So many calls of timers, or segments, a second are a storm if nothing comes of them.
const TIMER_STORM: u64 = 100;
const SEGMENT_STORM: u64 = 400;

/// Two things in a row at one instant, as often as this, are a loop.
const MOST_STILL: u32 = 200_000;

impl World {
    pub fn new(seed: u64, open: Open, parts: [Part; 2]) -> World {
        let mut rng = Rng::new(seed);
        let start = Instant::from_nanos(3_600_000_000_000 + rng.below(1_000_000_000));
        let [first, second] = &parts;
        let wires = [first, second].map(|part| Wire::new(part.conditions, rng.fork()));
        let mut number = 0;
        let sides = parts.map(|part| {
            number += 1;
            Side::new(number - 1, part.path, part.settings, part.plan, rng.fork())
        });
        let mut world = World {
            now: start,
            sides,
            wires,
            transcript: None,
            told: Vec::new(),
            still: 0,
            quiet: Quiet::default(),
            prints: std::env::var_os("TCP_SIM_TRACE").is_some(),
        };
        match open {
            Open::Passive => world.sides[1].listen(start),
            Open::Simultaneous => world.sides[1].connect(start),
        }
        world.sides[0].connect(start);
        world.carry();
        world
    }

    /// Goes on to the next thing that happens, and lets it happen. False: nothing ever will.
    pub fn step(&mut self) -> bool {
        let wires = self.wires.iter().filter_map(Wire::next);
        let sides = self.sides.iter().filter_map(Side::next);
        let told = self.told.iter().map(|(at, ..)| *at);
        let Some(next) = wires.chain(sides).chain(told).min() else { return false };
        if next > self.now {
            self.now = next;
            self.still = 0;
        }
        self.still += 1;
        assert!(self.still < MOST_STILL, "time stands still");
        let now = self.now;
        for (at, side) in self.sides.iter_mut().enumerate() {
            while let Some(packet) = self.wires[1 - at].receive(now) {
                side.receive(now, &packet);
            }
        }
        self.deliver_told();
        for side in &mut self.sides {
            side.run(now);
        }
        self.carry();
        self.watch_for_storms();
        true
    }

    fn watch_for_storms(&mut self) {
        let (mut progress, mut calls, mut segments) = (0u64, 0u64, 0u64);
        for side in &self.sides {
            calls += side.timer_calls;
            segments += side.segments;
            let Some(connection) = &side.connection else { continue };
            let counters = connection.counters();
            progress += counters.bytes_acked + counters.bytes_received + side.program.read;
            progress += (connection.state() as u64) << 40;
        }
        if progress != self.quiet.progress {
            self.quiet = Quiet { progress, since: self.now, before: None };
            return;
        }
        let seconds = self.now.saturating_duration_since(self.quiet.since).as_secs();
        if seconds > 0 {
            let before = *self.quiet.before.get_or_insert((calls, segments));
            let (calls, segments) = (calls - before.0, segments - before.1);
            assert!(calls <= TIMER_STORM * seconds, "{calls} timers in {seconds} s");
            // Without congestion control all that is lost leaves again at every timeout.
            let is_free = |side: &Side| side.settings.congestion == Algorithm::None;
            let is_bounded = self.sides[0].trusts && !self.sides.iter().any(is_free);
            let is_storm = segments > SEGMENT_STORM * seconds;
            assert!(!is_storm || !is_bounded, "{segments} segments in {seconds} s");
        }
    }

    fn deliver_told(&mut self) {
        let now = self.now;
        let sides = &mut self.sides;
        self.told.retain(|(at, side, mtu, seq)| {
            if *at > now {
                return true;
            }
            sides[*side].call(now, |it, _| it.on_packet_too_big(*mtu, *seq, now));
            false
        });
    }

    /// What was sent goes on the wire.
    pub fn carry(&mut self) {
        for at in 0..2 {
            for packet in core::mem::take(&mut self.sides[at].sent) {
                self.sides[at].segments += 1;
                if self.prints {
                    self.print(at, &packet);
                }
                if let Some(transcript) = &mut self.transcript {
                    transcript.push((self.now, at, packet.bytes.clone()));
                }
                if let Some(packet) = self.wires[at].send(self.now, packet) {
                    let conditions = &self.wires[at].conditions;
                    let seq = packet.bytes[4..8].try_into().unwrap();
                    let seq = Seq::new(u32::from_be_bytes(seq));
                    let when = self.now.saturating_add(conditions.delay);
                    self.told.push((when, at, conditions.mtu, seq));
                }
            }
        }
    }

    fn print(&self, side: usize, packet: &Packet) {
        let Ok((header, len)) = Header::parse(&packet.bytes, packet.bytes.len()) else { return };
        let millis = self.now.as_nanos() as f64 / 1e6 - 3_600_000.0;
        let flags = header.flags.bits();
        println!(
            "{millis:12.3} {side} seq {} len {} ack {} flags {flags:02x} win {} sack {:?} {:?} {:?}",
            header.seq,
            packet.bytes.len() - len,
            header.ack,
            header.window,
            header.options.sack(),
            packet.ecn,
            self.sides[side].state(),
        );
        if let Some(connection) = &self.sides[side].connection {
            let info = connection.info(self.now);
            println!(
                "{:14} out {} sacked {} lost {} cwnd {} ssthresh {} wnd {} recovering {} rto {:?}",
                "",
                info.unacknowledged,
                info.sacked,
                info.to_retransmit,
                info.cwnd,
                info.ssthresh,
                info.snd_wnd,
                info.is_recovering,
                info.rto,
            );
        }
    }

    /// Lets things happen until both connections are over, for so long at most.
    pub fn run(&mut self, most: Duration) {
        let end = self.now.saturating_add(most);
        while !self.is_over() {
            let more = self.step();
            if !more || self.now > end {
                self.dump();
                panic!(
                    "not over after {most:?}, and {}",
                    if more { "busy" } else { "nothing to do" }
                );
            }
        }
    }

    /// Until `done`, for so long at most.
    pub fn run_until(&mut self, most: Duration, done: impl Fn(&World) -> bool) {
        let end = self.now.saturating_add(most);
        while !done(self) {
            let more = self.step();
            if !more || self.now > end {
                self.dump();
                panic!("not done after {most:?}");
            }
        }
    }

    pub fn is_over(&self) -> bool {
        self.sides.iter().all(Side::is_over) && self.wires.iter().all(Wire::is_empty)
    }

    /// Headers are forged: what the sides received and know of each other proves nothing.
    pub fn is_forged(&mut self) {
        self.sides.iter_mut().for_each(|side| side.trusts = false);
    }

    pub fn dump(&self) {
        for (side, wire) in self.sides.iter().zip(&self.wires) {
            let info = side.connection.as_ref().map(|it| it.info(self.now));
            println!("{:?}\n  {:?}\n  {:?}\n", info, side.program, wire.fate);
        }
    }

    /// Each side has everything that the other one wrote, and all memory is back.
    pub fn check_delivered(&mut self) {
        let written = [self.sides[0].program.written, self.sides[1].program.written];
        if self.sides.iter().any(|side| !side.program.saw_end || !side.program.errors.is_empty()) {
            self.dump();
        }
        for (at, side) in self.sides.iter_mut().enumerate() {
            assert_eq!(side.program.written, side.program.plan.bytes, "side {at} wrote");
            assert_eq!(side.program.read, written[1 - at], "side {at} read");
            assert!(side.program.saw_end, "side {at} saw no end");
            assert_eq!(side.program.errors, [], "side {at}");
        }
        self.check_memory();
    }

    pub fn check_memory(&mut self) {
        for (at, side) in self.sides.iter_mut().enumerate() {
            side.drop_connection();
            assert_eq!(side.bodies.get(), 0, "bodies of side {at}");
        }
    }
}
