//! One connection: the state machine of RFC 9293.
//!
//! The caller's duties: give monotonic time; after [`Connection::input`] and after commands of the
//! program call [`Connection::output`] (once for a batch of segments is enough); call
//! [`Connection::on_timer`] when [`Connection::deadline`] is reached; drop a connection only after
//! [`Connection::drain`], so that received bodies go back to their device.
//!
//! - `input` is the arrival of a segment in the order of section 3.10.7, `text` its data and FIN,
//!   `ack` what its acknowledgment says of ours, `recovery` what follows from losses;
//! - `output` decides what leaves and when, `window` what is announced and acknowledged;
//! - `timers` is what happens when nothing arrives;
//! - `program` holds the calls of the program, `info` what can be asked;
//! - `resume` begins with a connection that another stack has led so far;
//! - `segment` puts a segment together.

mod ack;
mod info;
mod input;
#[cfg(any(test, fuzzing))]
mod invariant;
mod output;
mod program;
mod recovery;
mod rehearsal;
mod resume;
mod segment;
mod text;
mod timers;
mod window;

pub use info::{Info, Transplant};
#[cfg(test)]
pub use input::PREDICTS;
pub use program::SendFlags;
pub use resume::Resumed;

use core::time::Duration;

use super::congestion::Congestion;
use super::isn::timestamp_clock;
use super::listen::Request;
use super::lookup::FlowKey;
use super::prr::Prr;
use super::rack::Rack;
use super::reassembly::Reassembly;
use super::receive_queue::ReceiveQueue;
use super::rtt::RttEstimator;
use super::scoreboard::Scoreboard;
use super::send_buffer::SendBuffer;
use super::seq::Seq;
use super::{Error, Events, Link, Path, Settings};
use crate::time::Instant;
use crate::translation::default_mss;
use crate::wire::tcp::{MAX_WINDOW_SCALE, SackBlock};
use timers::{Timer, Timers};
use window::{Announcement, Tuning};

/// States of RFC 9293 section 3.3.2; LISTEN is [`super::listen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

impl State {
    /// Both SYNs are acknowledged.
    #[inline]
    pub fn is_synchronized(self) -> bool {
        !matches!(self, State::Closed | State::SynSent | State::SynReceived)
    }

    /// The peer's FIN has not been reached.
    #[inline]
    fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Our FIN is not acknowledged: data may be on its way.
    #[inline]
    fn may_send(self) -> bool {
        use State::{CloseWait, Closing, Established, FinWait1, LastAck};
        matches!(self, Established | FinWait1 | CloseWait | Closing | LastAck)
    }
}

/// RFC 5681's view of the sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The peer has echoed congestion: proportional rate reduction, until more than [`Ecn::until`] is acknowledged.
    Reduction,
    /// Fast recovery (RFC 6675, RFC 6582), until `recover` is acknowledged.
    Recovery,
    /// After a retransmission timeout, until `recover` is acknowledged.
    Loss,
}

impl Phase {
    /// Is something lost, or held to be?
    #[inline]
    fn repairs(self) -> bool {
        matches!(self, Phase::Recovery | Phase::Loss)
    }

    /// Does proportional rate reduction say what may leave?
    #[inline]
    fn reduces(self) -> bool {
        matches!(self, Phase::Reduction | Phase::Recovery)
    }
}

/// Do full segments get through, where no ICMP says that they do not (RFC 2923 section 2.1)?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BlackHole {
    #[default]
    Unsuspected,
    /// Smaller segments are tried.
    Suspected,
    /// They got through, but the path may just have been down for a while: full segments, from this
    /// sequence number on, will tell.
    Doubted(Seq),
    /// The segments stay small.
    Known,
}

/// ECN of a connection (RFC 3168 section 6.1).
#[derive(Debug, Default)]
struct Ecn {
    enabled: bool,
    /// CE was received: ECE goes out until CWR comes.
    echo: bool,
    /// A segment came with the field set: the peer sets it in new data (Linux: TCP_ECN_SEEN).
    seen: bool,
    /// CWR goes out with the next new data.
    reduced: bool,
    /// The window is reduced for what left before this one: no second time before more is acknowledged.
    until: Option<Seq>,
}

/// Time stamps of a connection (RFC 7323 section 3).
#[derive(Debug, Default)]
struct Stamps {
    enabled: bool,
    offset: u32,
    /// TS.Recent, and when it was set.
    recent: u32,
    recent_at: Instant,
}

/// Urgent data (RFC 6093, and Linux's reading of it: one byte, the last urgent one).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Urgent {
    /// The urgent byte that the peer announced and the program has not passed.
    mark: Option<Seq>,
    /// By MSG_OOB.
    was_read: bool,
}

pub struct Connection<B> {
    key: FlowKey,
    state: State,
    settings: Settings,
    /// With the MTU as far as it is known.
    path: Path,
    /// The MTU that the route has.
    route_mtu: u32,
    timers: Timers,

    // Sending (RFC 9293 section 3.3.1).
    iss: Seq,
    snd_una: Seq,
    snd_nxt: Seq,
    snd_wnd: u32,
    snd_wl1: Seq,
    /// MAX.SND.WND.
    max_snd_wnd: u32,
    snd_scale: u8,
    /// MSS option of the peer.
    peer_mss: u32,
    /// Payload of a full segment: what path, peer and options leave.
    mss: u32,
    black_hole: BlackHole,
    buffer: SendBuffer,
    /// The sequence number of the first byte in the buffer.
    buffer_start: Seq,
    /// The program sends no more: FIN follows the data.
    fin_queued: bool,
    /// MSG_MORE: the last bytes wait for more.
    more_follows: bool,
    /// The last partial segment ends here (Nagle as modified by Minshall).
    small_end: Seq,
    /// SND.UP: the byte after the urgent one.
    snd_up: Option<Seq>,
    board: Scoreboard,
    rack: Rack,
    rtt: RttEstimator,
    congestion: Congestion,
    prr: Prr,
    phase: Phase,
    recover: Seq,
    duplicate_acks: u8,
    /// What they stand for, a segment each, and no acknowledgment has covered yet (without SACK).
    duplicate_credit: u32,
    /// A part of what was out when this recovery began is acknowledged (without SACK).
    partial_ack_seen: bool,
    /// The last loss probe ends here (TLP.end_seq of RFC 8985).
    probe_end: Option<Seq>,
    /// The length of the data outstanding when the probe left, in sequence numbers. In CLOSED, where no probe is out: what was not
    /// acknowledged when the connection ended, which the program may ask for (SIOCOUTQ). A connection has no room for both.
    probe_flight: u32,
    /// When the first retransmission of this episode left, on the clock of the time stamps.
    retransmission_stamp: Option<u32>,
    /// Data waits for more room, and `output` is limited by the congestion window.
    is_cwnd_limited: bool,
    /// When nothing was in flight for the last time, or something left.
    last_sent: Instant,
    /// The timeout's own retransmission has not left; no window holds it back.
    timeout_due: bool,
    /// When the segment left that was not acknowledged in time.
    stalled_since: Option<Instant>,
    /// Keep-alive or window probes without an answer.
    probes: u8,
    sack: bool,
    /// How often our SYN had to be sent again.
    syn_retransmissions: u8,

    // Receiving.
    irs: Seq,
    rcv_nxt: Seq,
    rcv_scale: u8,
    /// The scale that our SYN announces; RCV.WND's if the peer agrees to scaling.
    own_scale: u8,
    queue: ReceiveQueue<B>,
    reassembly: Reassembly<B>,
    announced: Announcement,
    tuning: Tuning,
    stamps: Stamps,
    ecn: Ecn,
    urgent: Urgent,
    /// To be reported in the next ACK (RFC 2883).
    duplicate: Option<SackBlock>,
    /// The sequence number of the peer's FIN, out of order.
    fin_waiting: Option<Seq>,
    /// The FIN is what came last of all that waits.
    fin_is_latest: bool,
    last_received: Instant,
    /// When the last ACK left that answered an unacceptable segment.
    last_challenge: Instant,

    // The program's side.
    /// The peer's FIN was reached.
    peer_closed: bool,
    /// SHUT_RD.
    reading_ended: bool,
    /// No descriptor of the program refers to it any more.
    orphan: bool,
    error: Option<Error>,
    /// Of a destination that may come back (ICMP); told when the connection times out.
    soft_error: Option<Error>,
    /// The buffer was full when the program wrote: tell when there is room.
    wants_room: bool,
    /// A RST waits to be sent.
    reset_due: bool,
    counters: Counters,
}

/// What TCP_INFO and the statistics tell. 64 bits do not run over in the life of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub segments_in: u64,
    pub segments_out: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub retransmissions: u64,
    pub out_of_order: u64,
    pub timeouts: u64,
}

impl<B> Connection<B> {
    /// An active open: SYN-SENT. [`Connection::output`] sends the SYN.
    pub fn connect(
        key: FlowKey,
        iss: Seq,
        timestamp_offset: u32,
        path: Path,
        settings: Settings,
        now: Instant,
    ) -> Connection<B> {
        let mut connection = Connection::new(key, iss, timestamp_offset, path, settings, now);
        connection.state = State::SynSent;
        connection.stamps.enabled = connection.settings.timestamps;
        connection.sack = connection.settings.sack;
        connection.ecn.enabled = connection.settings.ecn;
        // The scale that the SYN announces stays in force if the buffer is changed before the answer.
        connection.own_scale = window_scale(&connection.settings);
        connection
    }

    /// A passive open whose handshake has reached its third segment: SYN-RECEIVED. The segment is
    /// to be given to [`Connection::input`] next. Until [`Connection::begin_service`] or the first read the connection takes no
    /// more than its SYN-ACK announced.
    pub fn accept(
        request: &Request,
        path: Path,
        settings: Settings,
        now: Instant,
    ) -> Connection<B> {
        let iss = request.iss;
        let offset = request.timestamp_offset;
        let mut connection = Connection::new(request.key, iss, offset, path, settings, now);
        connection.state = State::SynReceived;
        connection.snd_nxt = iss.plus(1);
        connection.board.push(iss, iss.plus(1), request.created);
        connection.irs = request.irs;
        connection.rcv_nxt = request.irs.plus(1);
        connection.peer_mss = u32::from(request.peer_mss);
        connection.sack = request.sack_permitted;
        connection.stamps.enabled = request.timestamps;
        connection.stamps.recent = request.recent_timestamp;
        connection.stamps.recent_at = now;
        connection.ecn.enabled = request.ecn;
        connection.set_scales(request.window_scale, request.our_window_scale);
        connection.snd_wnd = u32::from(request.window);
        connection.max_snd_wnd = connection.snd_wnd;
        connection.snd_wl1 = request.irs;
        connection.announced = Announcement::new(connection.rcv_nxt, request.announced_window);
        if connection.settings.first_ack_waits {
            connection.announced.await_request();
        }
        let limit = connection.settings.receive_buffer.limit.min(request.announced_window);
        connection.tuning = Tuning::new(limit, now);
        connection.update_mss();
        connection.congestion = Congestion::new(connection.settings.congestion, connection.mss);
        if request.retransmissions > 0 || request.is_from_cookie || request.was_ignored() {
            // Which SYN-ACK is acknowledged nobody knows (Karn).
            connection.board.retransmit(iss, iss.plus(1), request.created);
            connection.syn_retransmissions = request.retransmissions;
        }
        connection.timers.set(Timer::Retransmission, now.plus_nanos(connection.rto_nanos()));
        connection
    }

    fn new(
        key: FlowKey,
        iss: Seq,
        timestamp_offset: u32,
        path: Path,
        settings: Settings,
        now: Instant,
    ) -> Connection<B> {
        let mut connection = Connection {
            key,
            state: State::Closed,
            congestion: Congestion::new(settings.congestion, default_mss(key.remote).into()),
            tuning: Tuning::new(settings.receive_buffer.limit, now),
            settings,
            path,
            route_mtu: path.mtu,
            timers: Timers::default(),
            iss,
            snd_una: iss,
            snd_nxt: iss,
            snd_wnd: 0,
            snd_wl1: Seq::default(),
            max_snd_wnd: 0,
            snd_scale: 0,
            peer_mss: default_mss(key.remote).into(),
            mss: default_mss(key.remote).into(),
            black_hole: BlackHole::default(),
            buffer: SendBuffer::default(),
            buffer_start: iss.plus(1),
            fin_queued: false,
            more_follows: false,
            small_end: iss,
            snd_up: None,
            board: Scoreboard::default(),
            rack: Rack::new(iss),
            rtt: RttEstimator::new(),
            prr: Prr::default(),
            phase: Phase::Open,
            recover: iss,
            duplicate_acks: 0,
            duplicate_credit: 0,
            partial_ack_seen: false,
            probe_end: None,
            probe_flight: 0,
            retransmission_stamp: None,
            is_cwnd_limited: false,
            last_sent: now,
            timeout_due: false,
            stalled_since: None,
            probes: 0,
            sack: false,
            syn_retransmissions: 0,
            irs: Seq::default(),
            rcv_nxt: Seq::default(),
            rcv_scale: 0,
            own_scale: 0,
            queue: ReceiveQueue::default(),
            reassembly: Reassembly::default(),
            announced: Announcement::default(),
            stamps: Stamps { offset: timestamp_offset, ..Stamps::default() },
            ecn: Ecn::default(),
            urgent: Urgent::default(),
            duplicate: None,
            fin_waiting: None,
            fin_is_latest: false,
            last_received: now,
            last_challenge: Instant::default(),
            peer_closed: false,
            reading_ended: false,
            orphan: false,
            error: None,
            soft_error: None,
            wants_room: false,
            reset_due: false,
            counters: Counters::default(),
        };
        connection.update_mss();
        connection
    }

    /// The peer's window scale option, if it sent one, decides about both directions (RFC 7323
    /// section 2.2).
    fn set_scales(&mut self, peer: Option<u8>, own: u8) {
        match peer {
            Some(scale) => {
                self.snd_scale = scale.min(MAX_WINDOW_SCALE);
                self.rcv_scale = own;
            }
            None => {
                self.snd_scale = 0;
                self.rcv_scale = 0;
            }
        }
    }

    /// The payload of a full segment, from the path's MTU, the peer's MSS and the options that
    /// every segment carries (RFC 9293 section 3.7.1, RFC 6691).
    fn update_mss(&mut self) {
        let most = own_mss(self.path, &self.settings).min(self.peer_mss.max(LEAST_MSS));
        let options = if self.stamps.enabled { TIMESTAMPS_LEN } else { 0 };
        self.mss = most.saturating_sub(options).max(LEAST_MSS.saturating_sub(options));
        self.black_hole = BlackHole::default();
        self.congestion.set_mss(self.mss);
    }

    /// Everything ends here: the program learns `error` from its next call.
    fn fail(&mut self, error: Error) -> Events {
        self.error = Some(error);
        self.finish();
        Events::ERROR.union(Events::READABLE).union(Events::WRITABLE).union(Events::CLOSED)
    }

    /// CLOSED: nothing more is sent or awaited; what was received stays readable.
    fn finish(&mut self) {
        if self.state != State::Closed {
            self.probe_flight = self.unacknowledged();
        }
        self.state = State::Closed;
        self.timers.clear();
        self.board.clear();
        self.buffer = SendBuffer::default();
        self.fin_queued = false;
        self.announced.forget();
    }

    /// Gives all received payload back. Before the connection is dropped.
    pub fn drain(&mut self, link: &mut impl Link<B>) {
        self.queue.clear(link);
        self.reassembly.clear(link);
    }

    #[inline]
    pub fn key(&self) -> FlowKey {
        self.key
    }

    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    #[inline]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && !self.reset_due
    }

    /// When [`Connection::on_timer`] is to be called; it may find that it is too early, and then
    /// there is another deadline.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The sequence number after the last byte that the program wrote.
    #[inline]
    fn data_end(&self) -> Seq {
        self.buffer_start.plus(self.buffer.len() as u32)
    }

    /// The sequence number after the last one that is to be sent: that of the FIN, if the program has closed.
    #[inline]
    fn sending_end(&self) -> Seq {
        self.data_end().plus(u32::from(self.fin_queued))
    }

    /// Was the FIN sent?
    #[inline]
    fn fin_sent(&self) -> bool {
        self.fin_queued && self.snd_nxt > self.data_end()
    }
}

/// No peer is believed to take less (Linux: TCP_MIN_MSS).
const LEAST_MSS: u32 = 88;
const IP_AND_TCP: u32 = 40;
const TIMESTAMPS_LEN: u32 = 12;

/// The MSS to announce: what the interface takes, less if TCP_MAXSEG says so.
pub fn own_mss(path: Path, settings: &Settings) -> u32 {
    let most = path.mtu.saturating_sub(IP_AND_TCP).clamp(LEAST_MSS, 65_495);
    settings.max_segment.map_or(most, |max| most.min(u32::from(max)).max(LEAST_MSS))
}

/// The window scale to announce: enough for the largest window that the buffer may grow to. Of one that
/// grows by itself the kernel counts the overhead, too.
pub fn window_scale(settings: &Settings) -> u8 {
    if !settings.window_scaling {
        return 0;
    }
    let buffer = &settings.receive_buffer;
    let most = if buffer.automatic {
        buffer.most.max(buffer.limit).max(settings.largest_receive_buffer)
    } else {
        buffer.limit
    };
    let most = most.min(settings.window_clamp);
    let bits = u32::BITS.saturating_sub(most.leading_zeros());
    (bits.saturating_sub(16) as u8).min(MAX_WINDOW_SCALE)
}

/// The tick of [`timestamp_clock`].
const STAMP_TICK: Duration = Duration::from_millis(1);

/// TSval of a segment that leaves now.
#[inline]
fn stamp_clock(now: Instant, offset: u32) -> u32 {
    timestamp_clock(now).wrapping_add(offset)
}
