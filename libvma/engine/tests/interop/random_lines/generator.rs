//! Random steps of a time line: mostly what a peer and a program do, now and then what they should not.
//!
//! The generator looks at the engine's numbers, so that what it makes up is near to what matters.

use super::engine::Engine;
use super::{Opening, Step};

/// A small generator of random numbers (splitmix64), so that a seed is a time line.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }

    pub fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

/// A step of an exchange of a request and its answer, which the program composes under TCP_CORK.
#[derive(Clone, Copy)]
enum Exchange {
    Request,
    Read,
    Cork,
    Write,
    Uncork,
}

/// Twice: from the second exchange on acknowledgments ride on answers.
const EXCHANGES: [Exchange; 10] = [
    Exchange::Request,
    Exchange::Read,
    Exchange::Cork,
    Exchange::Write,
    Exchange::Uncork,
    Exchange::Request,
    Exchange::Read,
    Exchange::Cork,
    Exchange::Write,
    Exchange::Uncork,
];

/// How often each kind of step comes in a time line.
#[derive(Debug)]
struct Weights {
    data: u32,
    odd_data: u32,
    acknowledgment: u32,
    write: u32,
    read: u32,
    call: u32,
    end: u32,
    odd: u32,
    exchange: u32,
}

pub struct Generator {
    random: Random,
    opening: Opening,
    settings: &'static str,
    weights: Weights,
    /// The last byte that the peer has sent.
    top: u32,
    /// The number of the peer's FIN.
    fin: Option<u32>,
    acknowledged: u32,
    window: u32,
    ecn: bool,
    wrote: bool,
    /// Steps that are to come next.
    planned: std::slice::Iter<'static, Exchange>,
}

const SIZES: [u32; 8] = [1, 10, 100, 536, 1000, 1400, 1400, 1400];

impl Generator {
    pub fn new(seed: u64, opening: Opening, settings: &'static str) -> Generator {
        let mut random = Random::new(seed);
        let mut weight = |most| random.below(most);
        let weights = Weights {
            data: 1 + weight(8),
            odd_data: weight(8),
            acknowledgment: 1 + weight(8),
            write: 1 + weight(6),
            read: 1 + weight(4),
            call: weight(3),
            end: weight(3),
            odd: weight(3),
            exchange: weight(3),
        };
        let ecn = settings.contains("ecn: true") && random.below(4) > 0;
        Generator {
            random,
            opening,
            settings,
            weights,
            top: 1,
            fin: None,
            acknowledged: 1,
            window: 60_000,
            ecn,
            wrote: false,
            planned: [].iter(),
        }
    }

    fn stamps(&self) -> bool {
        self.settings.contains("timestamps: true")
    }

    fn sack(&self) -> bool {
        self.settings.contains("sack")
    }

    /// The steps of the handshake.
    pub fn handshake(&mut self) -> Vec<Step> {
        let mut options = " mss=1460".to_owned();
        if self.sack() {
            options += " sackok";
        }
        if self.settings.contains("window_scaling: true") {
            options += " ws=0";
        }
        let step = |pause, text: String| Step { pause, text };
        let has_stamps = self.stamps();
        let stamps = |value: u32, echo: u32| {
            if has_stamps { format!(" ts={value}/{echo}") } else { String::new() }
        };
        match self.opening {
            Opening::Active => {
                let flags = if self.ecn { "SAE" } else { "SA" };
                let mut steps = vec![step(10, "connect".into())];
                for _ in 0..self.random.below(8).saturating_sub(5) {
                    steps.push(step(10, self.before_the_answer()));
                }
                steps.push(step(
                    5,
                    format!("< {flags} 0+0 a1{options}{}", stamps(1_000_010, 10_000)),
                ));
                steps
            }
            Opening::Passive => {
                let flags = if self.ecn { "SEC" } else { "S" };
                vec![
                    step(10, format!("< {flags} 0+0{options}{}", stamps(1_000_000, 0))),
                    step(5, format!("< A 1+0 a1{}", stamps(1_000_010, 10_000))),
                ]
            }
        }
    }

    /// Segments that come while the SYN waits for its answer.
    fn before_the_answer(&mut self) -> String {
        let ack = self.random.pick(&[0, 1, 2, 100, 4_294_967_200u32]);
        let seq = self.random.pick(&[0, 1, 4_294_967_295u32, 5000]);
        match self.random.below(10) {
            0 => format!("< A {seq}+0 a{ack}"),
            1 => format!("< A {seq}+100 a{ack}"),
            2 => format!("< SA {seq}+0 a{}", self.random.pick(&[0, 2, 100])),
            3 => format!("< RA {seq}+0 a{}", self.random.pick(&[0, 2, 100])),
            4 => format!("< R {seq}+0"),
            5 => format!("< F {seq}+0"),
            6 => format!("< . {seq}+10"),
            7 if self.random.one_in(2) => format!("< RA {seq}+0 a1"),
            9 => self.random.pick(&["read 100", "error", "nodelay"]).into(),
            _ => format!("< FA {seq}+0 a{ack}"),
        }
    }

    /// The next step, with the least pause after it.
    pub fn next(&mut self, engine: &Engine) -> Step {
        if let Some(step) = self.planned.next() {
            return Step { pause: 4, text: self.exchange(*step, engine) };
        }
        let pause = match self.random.below(16) {
            0..=11 => 4,
            12..=13 => 10,
            14 => 60,
            _ => 330,
        };
        let text = self.text(engine);
        // Linux acknowledges a FIN a bit later.
        let is_fin =
            text.starts_with("< ") && text.split(' ').nth(1).is_some_and(|it| it.contains('F'));
        Step { pause: if is_fin { pause.max(60) } else { pause }, text }
    }

    fn text(&mut self, engine: &Engine) -> String {
        let w = &self.weights;
        let kinds = [
            w.data,
            w.odd_data,
            w.acknowledgment,
            w.write,
            w.read,
            w.call,
            w.end,
            w.odd,
            w.exchange,
        ];
        let mut at = self.random.below(kinds.iter().sum());
        let kind = kinds.iter().position(|weight| {
            let hit = at < *weight;
            at = at.wrapping_sub(*weight);
            hit
        });
        match kind {
            Some(3..=5) if engine.is_closed() => self.acknowledgment(engine),
            Some(0) => self.data(engine),
            Some(1) if engine.script.connection.unsent() == 0 => self.odd_data(engine),
            Some(2) => self.acknowledgment(engine),
            Some(3) => self.write(engine),
            Some(4) => format!("read {}", self.random.pick(&[1, 100, 1400, 5000, 100_000])),
            Some(5) => self.call(),
            Some(6) => self.end(engine),
            Some(8) if self.may_exchange(engine) => {
                self.planned = EXCHANGES.iter();
                "read 100000".into()
            }
            _ => self.odd(engine),
        }
    }

    /// Has the next step been decided?
    pub fn has_plan(&self) -> bool {
        self.planned.len() > 0
    }

    /// Nothing waits for anything.
    fn may_exchange(&self, engine: &Engine) -> bool {
        let (_, _, next) = engine.numbers();
        let (is_open, waits) = (engine.is_established(), self.top > next);
        is_open && !waits && self.fin.is_none() && engine.script.connection.unsent() == 0
    }

    fn exchange(&mut self, step: Exchange, engine: &Engine) -> String {
        let (_, nxt, next) = engine.numbers();
        match step {
            Exchange::Request => {
                let len = self.random.pick(&[1, 100, 1000]);
                self.wrote = true;
                self.acknowledged = nxt;
                self.top = self.top.max(next + len);
                let window = self.window.max(10_000);
                self.window = window;
                let stamp = if self.stamps() {
                    let now = engine.millis() as u32;
                    format!(" ts={}/{}", 1_000_000 + now, 10_000 + now - now.min(10))
                } else {
                    String::new()
                };
                format!("< PA {next}+{len} a{nxt} w={window}{stamp}")
            }
            Exchange::Read => "read 1000".into(),
            Exchange::Cork => "cork".into(),
            Exchange::Write => format!("write {}", self.random.pick(&[1, 100, 1000])),
            Exchange::Uncork => "uncork".into(),
        }
    }

    fn write(&mut self, engine: &Engine) -> String {
        self.wrote = true;
        // With ranges to report Linux's segments are smaller.
        let (_, _, next) = engine.numbers();
        let sizes: &[u32] = if self.top > next {
            &[1, 100, 300]
        } else {
            &[1, 100, 500, 1400, 1448, 1460, 2000, 4000]
        };
        let len = self.random.pick(sizes);
        match self.random.below(12) {
            0 => format!("write {len} more"),
            1 => format!("write {len} oob"),
            _ => format!("write {len}"),
        }
    }

    fn call(&mut self) -> String {
        self.wrote = true;
        self.random
            .pick(&["nodelay", "quickack", "pingpong", "error", "shutrd", "cork", "uncork"])
            .into()
    }

    /// The acknowledgment, the window and the time stamp: the end of each segment's line.
    fn tail(&mut self, engine: &Engine) -> String {
        let (una, nxt, _) = engine.numbers();
        if self.random.below(3) > 0 {
            let known = self.acknowledged.max(una).min(nxt);
            let mut ends = engine.ends();
            ends.push(nxt);
            let middle = self.random.pick(&ends).max(known);
            self.acknowledged = self.random.pick(&[nxt, nxt, middle, known]);
        }
        if self.random.one_in(6) {
            self.window = self.random.pick(&[0, 1, 500, 1400, 3000, 10_000, 60_000, 60_000]);
        }
        let mut tail = format!(" a{}", self.acknowledged);
        if self.window != 60_000 {
            tail += &format!(" w={}", self.window);
        }
        tail + &self.stamp(engine)
    }

    fn stamp(&mut self, engine: &Engine) -> String {
        if !self.stamps() {
            return String::new();
        }
        let now = engine.millis() as u32;
        let value = match self.random.below(24) {
            0 => 1_000_000 + now - now.min(100),
            1 => 900_000,
            2 if !engine.is_closed() && !self.wrote => return String::new(),
            _ => 1_000_000 + now,
        };
        let echo = match self.random.below(24) {
            0 => 0,
            _ => 10_000 + now - now.min(10),
        };
        format!(" ts={value}/{echo}")
    }

    fn flags(&mut self) -> String {
        let mut flags = "A".to_owned();
        if self.random.one_in(3) {
            flags += "P";
        }
        if self.ecn && self.random.one_in(8) {
            flags += "E";
        }
        if self.ecn && self.random.one_in(8) {
            flags += "C";
        }
        flags
    }

    fn segment(&mut self, flags: &str, seq: u32, len: u32, engine: &Engine) -> String {
        let end = seq.wrapping_add(len);
        if end > self.top && end < 100_000 {
            self.top = end;
        }
        let mut text = format!("< {flags} {seq}+{len}{}", self.tail(engine));
        if self.ecn && len > 0 && self.random.one_in(8) {
            text += " ce";
        }
        text
    }

    fn len(&mut self) -> u32 {
        self.random.pick(&SIZES)
    }

    fn data(&mut self, engine: &Engine) -> String {
        let (_, _, next) = engine.numbers();
        let (flags, len) = (self.flags(), self.len());
        // Data behind the peer's FIN resets on Linux.
        let len = self.fin.map_or(len, |fin| len.min(fin.saturating_sub(next)));
        let mut text = self.segment(&flags, next, len, engine);
        if len > 0 && self.fin.is_none() && self.random.one_in(30) {
            text += &format!(" u={}", 1 + self.random.below(len + 2));
        }
        text
    }

    fn odd_data(&mut self, engine: &Engine) -> String {
        let (_, _, next) = engine.numbers();
        let (flags, len) = (self.flags(), self.len());
        let seq = match self.random.below(10) {
            // A hole.
            0..=2 => next + 1400 * (1 + self.random.below(4)),
            3 => next + 1 + self.random.below(3000),
            4 => self.top,
            // Old data, or partly.
            5 => next - self.random.below(next),
            6 if !self.wrote => next - self.random.below(next.min(len)),
            7 => next.saturating_sub(len).max(1),
            // A keep-alive probe, or beyond the window.
            8 if next > 1 => {
                let len = self.random.below(2);
                return self.segment(&flags, next - 1, len, engine);
            }
            _ => next + 9_000_000,
        };
        // Nothing comes behind the FIN.
        let len = match self.fin {
            Some(fin) if seq < 1_000_000 => len.min(fin.saturating_sub(seq)),
            _ => len,
        };
        // The acknowledgment of a part that is old is delayed by Linux.
        let ended = self.fin.is_some_and(|fin| fin < next);
        let len = if (self.wrote || ended) && seq < next { len.min(next - seq) } else { len };
        self.segment(&flags, seq, len, engine)
    }

    fn acknowledgment(&mut self, engine: &Engine) -> String {
        let (una, nxt, next) = engine.numbers();
        let flags = self.flags();
        let mut text = match self.random.below(12) {
            0 => {
                let odd =
                    [nxt + 1, nxt + 100_000, una.wrapping_sub(100), una.wrapping_sub(200_000)];
                format!("< {flags} {next}+0 a{}", self.random.pick(&odd))
            }
            _ => self.segment(&flags, next, 0, engine),
        };
        if self.sack() && nxt > self.acknowledged + 1 && self.random.one_in(3) {
            let mut ends = engine.ends();
            ends.push(nxt);
            let (left, right) = (self.random.pick(&ends), self.random.pick(&ends));
            if self.acknowledged < left && left < right {
                text += &format!(" [{left}-{right}]");
            }
        }
        text
    }

    fn end(&mut self, engine: &Engine) -> String {
        let (_, _, next) = engine.numbers();
        match self.random.below(8) {
            0 | 1 => "shutdown".into(),
            2 => "close".into(),
            3 if self.random.one_in(3) => "abort".into(),
            _ => {
                let len = if self.random.one_in(3) { self.random.pick(&[1, 100, 1400]) } else { 0 };
                let hole = if self.random.one_in(4) { 1400 } else { 0 };
                let place = self.top.max(next) + hole + len;
                let fin = *self.fin.get_or_insert(place);
                let flags = self.flags() + "F";
                self.segment(&flags, fin.saturating_sub(len).max(1), len.min(fin - 1), engine)
            }
        }
    }

    fn odd(&mut self, engine: &Engine) -> String {
        let (una, nxt, next) = engine.numbers();
        let near = [0, 1, u32::MAX, 1000, 9_000_000];
        let seq = next.wrapping_add(self.random.pick(&near));
        let ack = self.random.pick(&[una, nxt, nxt + 5]);
        let stamp = self.stamp(engine);
        match self.random.below(6) {
            0 => format!("< R {seq}+0"),
            1 => format!("< RA {seq}+0 a{ack}{stamp}"),
            2 => format!("< S {seq}+0{stamp}"),
            3 => format!("< SA {seq}+0 a{ack}{stamp}"),
            4 => format!("< . {seq}+{}{stamp}", self.len()),
            _ => format!("< FR {next}+0"),
        }
    }
}
