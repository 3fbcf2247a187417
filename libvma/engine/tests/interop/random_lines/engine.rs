//! The engine's side of a random time line, in simulated time.

use super::known::{Known, lateness, numbers};
use super::{Opening, Outcome, Step};
use crate::notation::{number, parse};
use crate::script::{Script, Sent};
use crate::tcp::{Connection, Error, Readiness, SendFlags, Settings, State};
use crate::time::Instant;

/// A timer of Linux is late by up to an eighth (its timer wheel), and by what the machine has to do.
pub const LATE_MILLIS: u64 = 20;
/// What is due so soon may be due at once.
pub const EARLY_MILLIS: u64 = 8;
pub const MILLI: u64 = 1_000_000;

/// One connection, and what the program still has of it.
pub struct Engine {
    pub script: Script,
    known: Known,
    closed: bool,
    /// Has the program a connection?
    accepted: bool,
    /// Where its segments ended.
    ends: Vec<u32>,
}

impl Engine {
    pub fn new(opening: Opening, settings: Settings) -> Engine {
        let script = match opening {
            Opening::Active => Script::starting(settings),
            Opening::Passive => Script::listening(settings),
        };
        let (known, accepted) = (Known::default(), opening == Opening::Active);
        Engine { script, known, closed: false, accepted, ends: Vec::new() }
    }

    /// Milliseconds since the beginning.
    pub fn millis(&self) -> u64 {
        self.script.now.saturating_duration_since(Script::epoch()).as_millis() as u64
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    pub fn is_over(&self) -> bool {
        self.script.state() == State::Closed
    }

    pub fn is_established(&self) -> bool {
        !self.closed && self.script.state() == State::Established
    }

    /// Something happened that is not to be compared.
    pub fn is_unclear(&self) -> bool {
        self.known.is_met
    }

    /// Linux may delay an acknowledgment that left in the last step.
    pub fn may_delay(&self) -> bool {
        self.known.may_delay
    }

    pub fn numbers(&self) -> (u32, u32, u32) {
        numbers(&self.script)
    }

    /// Ends of segments that may be acknowledged next.
    pub fn ends(&self) -> Vec<u32> {
        let (una, nxt, _) = self.numbers();
        self.ends.iter().copied().filter(|end| *end > una && *end < nxt).collect()
    }

    /// The pause of at least so many milliseconds after which no timer is about to expire, so that
    /// Linux's, which are late, have expired as well.
    pub fn calm_pause(&mut self, least: u64) -> u64 {
        let start = self.script.now;
        let mut end = start.plus_nanos(least * MILLI);
        for _ in 0..6 {
            let Some(at) = self.script.connection.deadline() else { break };
            if at > end.plus_nanos(EARLY_MILLIS * MILLI) {
                break;
            }
            end = end.max(at.plus_nanos(lateness(&self.script, at)));
            self.pass_to(at);
        }
        end.nanos_since(start).div_ceil(MILLI)
    }

    fn pass_to(&mut self, at: Instant) {
        self.script.pass_for(at.saturating_duration_since(self.script.now));
    }

    /// Plays a step, and the pause after it.
    pub fn play(&mut self, step: &Step) -> Outcome {
        let result = self.act(&step.text);
        self.pause(step.pause);
        self.outcome(result)
    }

    fn pause(&mut self, millis: u64) {
        self.known.on_pause(millis);
        self.known.look(&self.script);
        let end = self.script.now.plus_nanos(millis * MILLI);
        while let Some(at) = self.script.connection.deadline() {
            self.known.on_timer(&self.script, at, end);
            if at > end {
                break;
            }
            self.pass_to(at);
            self.known.look(&self.script);
        }
        self.pass_to(end);
    }

    /// Does the step itself; returns the result of its call.
    pub fn act(&mut self, text: &str) -> String {
        match text.strip_prefix("< ") {
            Some(segment) => {
                let segment = parse(segment);
                self.known.on_segment(&self.script, &segment);
                self.script.give(segment);
                String::new()
            }
            None if self.closed || self.script.is_listening() => String::new(),
            None => {
                self.accepted = true;
                self.known.on_call(&self.script, text);
                self.call(text)
            }
        }
    }

    fn outcome(&mut self, result: String) -> Outcome {
        let sent = self.script.segments();
        self.known.on_sent(&self.script, &sent);
        self.ends.extend(sent.iter().map(|it| it.seq().wrapping_add(it.payload.len() as u32)));
        let sent = sent.iter().map(told).collect();
        if self.closed || !self.accepted {
            return Outcome { sent, result, ..Outcome::default() };
        }
        let connection = &self.script.connection;
        Outcome {
            sent,
            result,
            state: name(connection.state()).into(),
            poll: ready(connection.readiness()),
            queued: unread(connection),
            unacknowledged: match connection.state() {
                State::SynSent | State::SynReceived => 0,
                // Linux counts the SYN that was refused.
                State::Closed if self.numbers().1 == 1 && self.numbers().0 == 0 => 1,
                _ => connection.unacknowledged(),
            },
        }
    }

    fn call(&mut self, text: &str) -> String {
        let words: Vec<&str> = text.split_whitespace().collect();
        let now = self.script.now;
        match words[..] {
            ["connect"] => self.script.output(),
            ["write", len] => return self.write(number(len), SendFlags::default()),
            ["write", len, how] => {
                let flags = SendFlags { more: how == "more", urgent: how == "oob" };
                return self.write(number(len), flags);
            }
            ["read", len] => return self.read(number(len)),
            ["error"] => {
                let error = self.script.connection.take_error();
                return error.map_or("0".into(), |error| errno(error).into());
            }
            ["shutdown"] => {
                let state = self.script.state();
                if matches!(state, State::Closed | State::TimeWait | State::SynSent) {
                    return "ENOTCONN".into();
                }
                self.script.shutdown();
            }
            ["shutrd"] => {
                if matches!(self.script.state(), State::Closed | State::TimeWait) {
                    return "ENOTCONN".into();
                }
                self.script.connection.shutdown_read();
            }
            ["close"] => {
                self.script.close();
                self.closed = true;
            }
            ["abort"] => {
                self.script.connection.set(now, |settings| settings.reset_on_close = true);
                self.script.close();
                self.closed = true;
            }
            ["cork"] => self.script.connection.set(now, |settings| settings.cork = true),
            ["uncork"] => {
                self.script.connection.set(now, |settings| settings.cork = false);
                self.push();
            }
            ["nodelay"] => {
                self.script.connection.set(now, |settings| settings.nodelay = true);
                self.push();
            }
            ["quickack"] => {
                self.script.connection.set_quick_ack(true);
                self.script.output();
            }
            ["pingpong"] => self.script.connection.set_quick_ack(false),
            _ => panic!("no such call: {text}"),
        }
        String::new()
    }

    fn push(&mut self) {
        self.script.connection.push(self.script.now, &mut self.script.outbox);
        self.script.output();
    }

    fn write(&mut self, len: u32, flags: SendFlags) -> String {
        self.known.on_write(&self.script, flags);
        let data = vec![7; len as usize];
        let result = self.script.connection.send(self.script.now, [&data[..]], flags);
        self.script.output();
        match result {
            Ok(taken) => taken.to_string(),
            Err(error) => errno(error).into(),
        }
    }

    /// As `socket/stream/receive.rs` of the library reads.
    fn read(&mut self, len: u32) -> String {
        let connection = &self.script.connection;
        if connection.state() == State::SynSent {
            return "EAGAIN".into();
        }
        if connection.is_at_hidden_mark() && connection.queued() > 0 {
            self.script.read(1);
        }
        let connection = &mut self.script.connection;
        let take = if connection.is_at_hidden_mark() { 0 } else { connection.readable().min(len) };
        if take > 0 {
            let mut bytes = Vec::new();
            for piece in connection.pieces() {
                bytes.extend_from_slice(&piece.body[piece.offset as usize..][..piece.len as usize]);
            }
            bytes.truncate(take as usize);
            self.script.read(take);
            return super::digest(&bytes);
        }
        if connection.is_at_end() {
            return "0".into();
        }
        if let Some(error) = connection.take_error() {
            return errno(error).into();
        }
        if connection.state() == State::Closed { "0".into() } else { "EAGAIN".into() }
    }
}

/// A segment as a time line has it, as far as it is compared.
fn told(sent: &Sent) -> String {
    let mut text = sent.text();
    if let Some(at) = text.find('P') {
        text.remove(at);
    }
    if text.starts_with("RAE") {
        text.remove(2);
    }
    if sent.header.seq == 0 && text.starts_with("RA") {
        text = text.replace(&format!(" {}+", sent.seq()), " zero+");
    }
    if let Some((before, after)) = text.split_once(" u") {
        let (_, after) = after.split_once(' ').unwrap_or_default();
        text = format!("{before} {after}").trim_end().to_owned();
    }
    text += if sent.ecn_capable { " ect" } else { "" };
    match sent.header.options.timestamps {
        Some(stamps) => format!("{text} te={}", stamps.echo),
        None => text,
    }
}

/// TIME-WAIT is CLOSE for the socket, as Linux has it.
fn name(state: State) -> &'static str {
    match state {
        State::Closed | State::TimeWait => "close",
        State::SynSent => "syn-sent",
        State::SynReceived => "syn-received",
        State::Established => "established",
        State::FinWait1 => "fin-wait-1",
        State::FinWait2 => "fin-wait-2",
        State::CloseWait => "close-wait",
        State::Closing => "closing",
        State::LastAck => "last-ack",
    }
}

/// FIONREAD, as the library answers it.
fn unread(connection: &Connection<Vec<u8>>) -> u32 {
    let all = connection.queued();
    connection.bytes_to_mark().filter(|distance| *distance < all).unwrap_or(all)
}

fn ready(ready: Readiness) -> String {
    let names = [
        (Readiness::IN, "in"),
        (Readiness::PRI, "pri"),
        (Readiness::OUT, "out"),
        (Readiness::RDHUP, "rdhup"),
        (Readiness::ERR, "err"),
        (Readiness::HUP, "hup"),
    ];
    let set = names.iter().filter(|(bit, _)| ready.contains(*bit)).map(|(_, name)| *name);
    set.collect::<Vec<_>>().join(",")
}

fn errno(error: Error) -> &'static str {
    match error {
        Error::Refused => "ECONNREFUSED",
        Error::Reset => "ECONNRESET",
        Error::TimedOut => "ETIMEDOUT",
        Error::BrokenPipe => "EPIPE",
        Error::NotConnected => "EAGAIN",
        _ => "another one",
    }
}
