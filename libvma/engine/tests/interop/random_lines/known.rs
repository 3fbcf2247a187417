//! The differences between Linux and the engine that are on purpose, or a matter of time (docs/tcp-conformance.md, "Differences from Linux").
//! A time line that meets it says nothing, and is not compared.

use super::engine::{EARLY_MILLIS, LATE_MILLIS, MILLI};
use crate::script::{IRS, ISS, Script, Segment, Sent};
use crate::tcp::{EcnField, SendFlags, State};
use crate::time::Instant;
use crate::wire::tcp::Flags;

/// Numbers beyond this one are far outside of every window.
const FAR: u32 = 200_000;
/// Data that need no more memory than a socket has, mostly.
const SMALL: u32 = 100;
/// The least segment that does not fit with SACK blocks.
const LARGE: usize = 1401;

/// SND.UNA, SND.NXT and RCV.NXT, in relative numbers.
pub fn numbers(script: &Script) -> (u32, u32, u32) {
    let numbers = script.connection.transplant(script.now);
    let ours = |number: u32| number.wrapping_sub(ISS);
    let received = numbers.rcv_nxt.raw().wrapping_sub(IRS);
    (ours(numbers.snd_una.raw()), ours(numbers.snd_nxt.raw()), received)
}

/// By how much Linux may be late with what is due then, in nanoseconds.
pub fn lateness(script: &Script, at: Instant) -> u64 {
    LATE_MILLIS * MILLI + at.nanos_since(script.now) / 6
}

#[derive(Default)]
pub struct Known {
    /// It was met.
    pub is_met: bool,
    /// Linux may delay an acknowledgment that leaves here in this step.
    pub may_delay: bool,
    closed: bool,
    wrote_urgent: bool,
    wrote_more: bool,
    /// Something came before the first data of the peer.
    overtook_first: bool,
    congested: bool,
    fin_came: bool,
    fin_waited: bool,
    /// Segments with data or a FIN since nothing was outstanding.
    outstanding: usize,
    /// The last pause, in milliseconds.
    paused: u64,
    sent_to: u32,
    /// When the peer's last data arrived.
    received: Instant,
    /// The end of what the peer has sent within the window.
    top: u32,
}

impl Known {
    /// Something waits for what is before it.
    fn reports(&self, script: &Script) -> bool {
        self.top > numbers(script).2
    }

    /// Before a segment arrives.
    pub fn on_segment(&mut self, script: &Script, segment: &Segment) {
        let (una, nxt, next) = numbers(script);
        let info = script.info();
        let end = segment.seq.wrapping_add(segment.len);
        let (has_data, has_fin) = (segment.len > 0, segment.flags.contains(Flags::FIN));
        let is_next = segment.seq == next;
        let is_old = has_data && segment.seq < next;
        if end < FAR {
            self.top = self.top.max(end);
        }
        if has_data {
            self.received = script.now;
        }
        let is_congested = segment.ecn == Some(EcnField::Congestion);
        self.congested |= is_congested;
        self.fin_came |= has_fin;
        self.fin_waited |= has_fin && !is_next;
        // A duplicate with one segment out: Linux then needs a single one the next time.
        self.is_met |= segment.ack == una && self.outstanding == 1 && !info.sack && !has_data;
        // A segment that makes data leave is acknowledged apart here, and the data carry no report of it.
        let is_odd = (has_data || has_fin) && !is_next || segment.ack > nxt;
        self.is_met |= is_odd && script.connection.unsent() > 0;
        // On Linux, a segment of the peer's lets go of the data that MSG_MORE holds if the socket needs more memory for it.
        let is_large = segment.len > SMALL && script.connection.unsent() > 0;
        self.is_met |= is_large && self.wrote_more;
        // It then delays acknowledgments from the beginning.
        self.overtook_first |=
            has_data && !is_next && end < FAR && info.counters.bytes_received == 0;
        // Linux reads an urgent byte ahead of what comes before it.
        self.is_met |= segment.flags.contains(Flags::URG) && !is_next;
        // The acknowledgment of what is old in part is delayed.
        self.is_met |= is_old && end > next && end < FAR && info.counters.out_of_order > 0;
        // CE of the first data takes the place of the acknowledgments at once.
        self.is_met |= is_congested && info.counters.bytes_received == 0;
        match script.state() {
            // Linux answers more, and rarely.
            State::TimeWait => self.is_met |= !(is_next && segment.ack == nxt),
            // And an orphan's FIN-WAIT-2 is a kind of it.
            State::FinWait2 => self.is_met |= self.closed && !(is_next && has_fin),
            // It enters TIME-WAIT, and does not look at the FIN that comes again.
            State::Closing => self.is_met |= is_old || has_fin,
            // Before a FIN that waits for the window, the acknowledgment of the peer's leaves.
            State::FinWait1 => {
                self.is_met |= self.closed && is_old;
                self.is_met |= has_fin && script.connection.unsent() > 0;
            }
            _ => {}
        }
    }

    /// Before a call of the program.
    pub fn on_call(&mut self, script: &Script, call: &str) {
        let info = script.info();
        self.is_met |= info.is_recovering;
        match call {
            // The engine forgets the data that wait, and reports them no more.
            "close" | "abort" => {
                self.is_met |= self.reports(script);
                self.closed = true;
            }
            // tcp(7): all leaves. On Linux Nagle's algorithm still holds it back.
            "uncork" => self.is_met |= info.unacknowledged > 0,
            // Linux acknowledges only if all was read.
            "quickack" => self.is_met |= script.connection.queued() > 0,
            _ => {}
        }
    }

    pub fn on_write(&mut self, script: &Script, flags: SendFlags) {
        // Whether that answers what came is for Linux a matter of 40 ms, or of how fast it came.
        let since = script.now.nanos_since(self.received) / MILLI;
        self.is_met |= (25..80).contains(&since);
        // Acknowledgments of an answer are delayed again, also those with an echo of congestion.
        self.is_met |= self.congested;
        self.wrote_urgent |= flags.urgent;
        self.wrote_more = flags.more;
    }

    /// A pause of so many milliseconds begins.
    pub fn on_pause(&mut self, millis: u64) {
        self.paused = millis;
    }

    /// The next timer is due then; the pause ends before or after it.
    pub fn on_timer(&mut self, script: &Script, at: Instant, end: Instant) {
        if at > end {
            self.is_met |= at <= end.plus_nanos(EARLY_MILLIS * MILLI);
            return;
        }
        self.is_met |= at.plus_nanos(lateness(script, at)) > end;
        // The loss probe, TCP_CORK, window probes.
        self.is_met |= script.connection.unsent() > 0;
        let info = script.info();
        if info.unacknowledged > 0 {
            // Linux joins urgent segments, too, when they leave again, and leaves room for reports. It repeats nothing
            // beyond a window that has shrunk.
            self.is_met |= self.wrote_urgent || self.reports(script);
            self.is_met |= info.unacknowledged > info.snd_wnd;
        }
    }

    /// At any time: is it the congestion window that holds data back?
    pub fn look(&mut self, script: &Script) {
        let info = script.info();
        if info.unacknowledged == 0 {
            self.outstanding = 0;
        }
        let room = info.cwnd.saturating_sub(info.unacknowledged);
        self.is_met |= info.unsent > 0 && room < info.snd_mss;
    }

    /// After the pause: what has left since the step began.
    pub fn on_sent(&mut self, script: &Script, sent: &[Sent]) {
        let connection = &script.connection;
        let info = script.info();
        let reports = self.reports(script);
        let with_data = || sent.iter().filter(|it| !it.payload.is_empty());
        // Linux reports what waits with data as well, for which there is less room then.
        let is_large = with_data().any(|it| it.payload.len() >= LARGE);
        self.is_met |= reports && (is_large || connection.unsent() > 0);
        // How many segments a recovery lets go, and what is acknowledged meanwhile.
        let repeats = with_data().any(|it| it.seq() < self.sent_to);
        let is_special = reports || repeats && sent.len() > 1 || sent.len() > 2 || !info.sack;
        self.is_met |= info.to_retransmit > 0 || info.is_recovering && is_special;
        // The loss probe of several small segments.
        self.outstanding += with_data().count();
        self.outstanding += sent.iter().filter(|it| it.has(Flags::FIN)).count();
        // Its congestion window counts segments, also small ones.
        self.is_met |= self.outstanding as u32 * info.snd_mss >= info.cwnd;
        let is_small = info.unacknowledged > 0 && info.unacknowledged <= info.snd_mss;
        self.is_met |= is_small && self.outstanding > 1 && self.paused > 5 && info.sack;
        // The acknowledgment of what the program does not read.
        let is_unread = connection.queued() > 0 && !connection.is_quick_ack();
        self.may_delay = is_unread || self.overtook_first;
        // The rest of a window leaves as the tail of a run.
        let is_rest = info.unsent > 0 && info.snd_wnd > info.unacknowledged;
        self.is_met |= is_rest && with_data().count() > 0;
        // A FIN among the ranges, and what is reported when it is reached.
        let most = sent.iter().map(|it| it.header.options.sack().len()).max().unwrap_or(0);
        let ended = connection.transplant(script.now).peer_closed;
        self.is_met |= self.fin_came && most > 2;
        self.is_met |= ended && (most > 0 || self.fin_waited && info.sack);
        // Linux takes repetitions for answers.
        let since = script.now.nanos_since(self.received) / MILLI;
        self.is_met |= repeats && since < 80 + self.paused;
        self.is_met |= self.congested && with_data().count() > 0;
        self.sent_to = numbers(script).1;
    }
}
