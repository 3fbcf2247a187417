//! One connection and a script: segments are given to it one by one, and what it sends is compared
//! with what is written down.
//!
//! Sequence numbers are relative: ours to ISS, the peer's to IRS, so that the first byte of data has
//! number 1. A segment is written as its flags, `sequence+length`, `a` with the acknowledgment, and
//! what else is worth saying: `A 1+0 a6 w100`.

use core::fmt::Write;
use core::net::Ipv4Addr;
use core::time::Duration;
use std::sync::LazyLock;

use crate::tcp::isn::Secret;
use crate::tcp::listen::{Context, ListenSettings, Listener, Verdict};
use crate::tcp::lookup::FlowKey;
use crate::tcp::seq::Seq;
use crate::tcp::{
    Connection, EcnField, Events, Info, Link, Outgoing, Path, Piece, SendFlags, Settings, State,
};
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header, Options, SackBlock, Timestamps};

pub const ISS: u32 = 0xffff_fff0;
pub const IRS: u32 = 5000;
/// The window that the peer offers, unless it says otherwise.
pub const WINDOW: u16 = 60_000;

pub const KEY: FlowKey = FlowKey {
    local: Ipv4Addr::new(10, 0, 0, 1),
    local_port: 40_000,
    remote: Ipv4Addr::new(10, 0, 0, 2),
    remote_port: 80,
};

/// A segment of the peer's, in relative numbers.
#[derive(Clone, Debug)]
pub struct Segment {
    pub flags: Flags,
    pub seq: u32,
    pub ack: u32,
    pub len: u32,
    pub window: u16,
    pub urgent: u16,
    pub options: Options,
    /// None: data is capable of ECN, nothing else is.
    pub ecn: Option<EcnField>,
}

pub const ACK: Flags = Flags::ACK;

/// A segment with these flags, numbers and length.
pub fn segment(flags: Flags, seq: u32, ack: u32, len: u32) -> Segment {
    let options = Options::default();
    Segment { flags, seq, ack, len, window: WINDOW, urgent: 0, options, ecn: None }
}

impl Segment {
    pub fn window(self, window: u16) -> Segment {
        Segment { window, ..self }
    }

    pub fn urgent(self, urgent: u16) -> Segment {
        Segment { urgent, flags: self.flags.with(Flags::URG), ..self }
    }

    /// Reports these ranges, in our relative numbers.
    pub fn sack(mut self, blocks: &[(u32, u32)]) -> Segment {
        for (left, right) in blocks {
            let absolute = |number: &u32| ISS.wrapping_add(*number);
            self.options.push_sack(SackBlock { left: absolute(left), right: absolute(right) });
        }
        self
    }

    pub fn stamps(mut self, value: u32, echo: u32) -> Segment {
        self.options.timestamps = Some(Timestamps { value, echo });
        self
    }

    pub fn ecn_field(&self) -> EcnField {
        let usual = if self.len > 0 { EcnField::Capable } else { EcnField::NotCapable };
        self.ecn.unwrap_or(usual)
    }

    pub fn congested(self) -> Segment {
        Segment { ecn: Some(EcnField::Congestion), ..self }
    }
}

/// A segment that the connection sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub header: Header,
    pub payload: Vec<u8>,
    pub ecn_capable: bool,
    pub at: Instant,
}

impl Sent {
    pub fn seq(&self) -> u32 {
        self.header.seq.wrapping_sub(ISS)
    }

    pub fn ack(&self) -> u32 {
        self.header.ack.wrapping_sub(IRS)
    }

    pub fn has(&self, flags: Flags) -> bool {
        self.header.flags.contains(flags)
    }

    /// As the module's description has it, without the window.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let names = [
            (Flags::SYN, 'S'),
            (Flags::FIN, 'F'),
            (Flags::RST, 'R'),
            (Flags::PSH, 'P'),
            (Flags::ACK, 'A'),
            (Flags::URG, 'U'),
            (Flags::ECE, 'E'),
            (Flags::CWR, 'C'),
        ];
        text.extend(names.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| *name));
        write!(text, " {}+{}", self.seq(), self.payload.len()).unwrap();
        if self.has(Flags::ACK) {
            write!(text, " a{}", self.ack()).unwrap();
        }
        if self.has(Flags::URG) {
            write!(text, " u{}", self.header.urgent).unwrap();
        }
        for block in self.header.options.sack() {
            let relative = |number: u32| number.wrapping_sub(IRS);
            write!(text, " [{}-{}]", relative(block.left), relative(block.right)).unwrap();
        }
        text
    }
}

/// What the connection sends through.
#[derive(Default)]
pub struct Outbox {
    sent: Vec<Sent>,
    now: Instant,
    /// Bodies that are not given back.
    live: i32,
    pub full: bool,
}

impl Link<Vec<u8>> for Outbox {
    fn emit(&mut self, segment: &Outgoing<'_>) -> bool {
        if self.full {
            return false;
        }
        self.sent.push(Sent {
            header: segment.header,
            payload: segment.payload.concat(),
            ecn_capable: segment.ecn_capable,
            at: self.now,
        });
        true
    }

    fn release(&mut self, _: Vec<u8>) {
        self.live -= 1;
    }
}

/// The connection, the time, and what it has sent.
pub struct Script {
    /// Of a passive open: what answers before there is a connection, and the ISS that it has chosen.
    listener: Option<(Listener, u32)>,
    pub connection: Connection<Vec<u8>>,
    pub outbox: Outbox,
    pub now: Instant,
    pub events: Events,
}

pub fn path() -> Path {
    Path { mtu: 1500, segmentation_limit: 0 }
}

/// Options that change nothing about a segment: no time stamps, no window scaling, no SACK.
pub fn plain() -> Settings {
    Settings { timestamps: false, window_scaling: false, sack: false, ..Settings::default() }
}

/// The same with SACK.
pub fn selective() -> Settings {
    Settings { sack: true, ..plain() }
}

impl Script {
    /// An active open: the SYN has left.
    pub fn connecting(settings: Settings) -> Script {
        let mut script = Script::starting(settings);
        script.output();
        script
    }

    /// An active open: the SYN is about to leave.
    pub fn starting(settings: Settings) -> Script {
        let now = Script::epoch();
        let connection = Connection::connect(KEY, Seq::new(ISS), 0, path(), settings, now);
        let outbox = Outbox { now, ..Outbox::default() };
        Script { listener: None, connection, outbox, now, events: Events::NONE }
    }

    /// A passive open: the SYN is about to arrive. What [`Script::starting`] makes says nothing until then.
    pub fn listening(settings: Settings) -> Script {
        let listener = Listener::new(listen_settings(&settings), 8, 1, Script::epoch());
        let mut script = Script::starting(settings);
        script.listener = Some((listener, ISS));
        script
    }

    /// Is there no connection yet?
    #[allow(dead_code, reason = "the interoperability tests ask")]
    pub fn is_listening(&self) -> bool {
        self.listener.is_some()
    }

    /// A segment for the listener, which has an ISS of its own. True: there is a connection, which gets the
    /// segment, too.
    fn listen(&mut self, header: &Header, payload: u32, ecn: EcnField) -> bool {
        let Some((mut listener, iss)) = self.listener.take() else { return true };
        let difference = iss.wrapping_sub(ISS);
        let header = Header { ack: header.ack.wrapping_add(difference), ..*header };
        let verdict =
            listener.on_segment(self.now, KEY, &header, payload, &Context { ecn, ..context() });
        match verdict {
            Verdict::Reply(header) => {
                self.listener = Some((listener, header.seq));
                let header = Header { seq: ISS, ..header };
                let sent = Sent { header, payload: Vec::new(), ecn_capable: false, at: self.now };
                self.outbox.sent.push(sent);
                false
            }
            Verdict::Established(mut request) => {
                request.iss = Seq::new(ISS);
                let settings = self.connection.settings().clone();
                self.connection = Connection::accept(&request, path(), settings, self.now);
                true
            }
            Verdict::Reset(header) => {
                let header = Header { seq: header.seq.wrapping_sub(difference), ..header };
                let sent = Sent { header, payload: Vec::new(), ecn_capable: false, at: self.now };
                self.outbox.sent.push(sent);
                self.listener = Some((listener, iss));
                false
            }
            Verdict::Drop(_) => {
                self.listener = Some((listener, iss));
                false
            }
            Verdict::NotMine => panic!("a segment for no connection"),
        }
    }

    /// The SYN-ACK that answers with the same options.
    pub fn answer(settings: &Settings) -> Segment {
        let mut answer = segment(Flags::SYN.with(ACK), 0, 1, 0);
        answer.options.mss = Some(1460);
        answer.options.sack_permitted = settings.sack;
        answer.options.window_scale = settings.window_scaling.then_some(7);
        if settings.timestamps {
            answer = answer.stamps(1_000_000, 10_000);
        }
        answer
    }

    /// An active open that was answered 10 ms later, with nothing left to send.
    pub fn established(settings: Settings) -> Script {
        let mut script = Script::connecting(settings.clone());
        script.pass(10);
        script.give(Script::answer(&settings));
        assert_eq!(script.connection.state(), State::Established);
        script.sent();
        script
    }

    /// A passive open, by way of a listener; the handshake's third segment has arrived.
    pub fn accepted(settings: Settings) -> Script {
        let mut script = Script::listening(settings);
        let mut syn = segment(Flags::SYN, 0, 0, 0);
        let scales = script.connection.settings().window_scaling;
        syn.options.window_scale = scales.then_some(0);
        script.give(syn);
        script.pass(10);
        script.give(segment(ACK, 1, 1, 0));
        script.sent();
        script
    }

    /// Time passes, and timers do what is due.
    pub fn pass(&mut self, millis: u64) {
        self.pass_for(Duration::from_millis(millis));
    }

    pub fn pass_for(&mut self, time: Duration) {
        let end = self.now.saturating_add(time);
        while let Some(at) = self.connection.deadline().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.outbox.now = self.now;
            let events = self.connection.on_timer(self.now, &mut self.outbox);
            self.events.insert(events);
            let next = self.connection.deadline();
            assert!(next.is_none_or(|at| at > self.now), "a timer is due again at once");
        }
        self.now = end;
        self.outbox.now = end;
    }

    /// A segment arrives, and what follows leaves.
    pub fn give(&mut self, segment: Segment) -> Events {
        let events = self.give_silently(segment);
        self.output();
        events
    }

    /// A segment arrives; another one follows before anything leaves.
    pub fn give_silently(&mut self, segment: Segment) -> Events {
        let header = Header {
            src_port: KEY.remote_port,
            dst_port: KEY.local_port,
            seq: IRS.wrapping_add(segment.seq),
            ack: ISS.wrapping_add(segment.ack),
            flags: segment.flags,
            window: segment.window,
            urgent: segment.urgent,
            options: segment.options,
            checksum: 0,
        };
        let body = (0..segment.len).map(|at| segment.seq.wrapping_add(at) as u8).collect();
        let piece = (segment.len > 0).then_some(Piece { body, offset: 0, len: segment.len });
        self.outbox.live += i32::from(piece.is_some());
        let ecn = segment.ecn_field();
        if !self.listen(&header, segment.len, ecn) {
            return Events::NONE;
        }
        let (now, link) = (self.now, &mut self.outbox);
        let events = self.connection.input(now, &header, piece, ecn, link);
        self.events.insert(events);
        events
    }

    pub fn output(&mut self) {
        if self.listener.is_some() {
            return;
        }
        self.connection.output(self.now, &mut self.outbox);
    }

    /// The program writes so many bytes.
    pub fn write(&mut self, len: usize) -> usize {
        self.write_with(len, SendFlags::default())
    }

    pub fn write_with(&mut self, len: usize, flags: SendFlags) -> usize {
        let data = vec![7; len];
        let taken = self.connection.send(self.now, [&data[..]], flags).expect("may write");
        self.output();
        taken
    }

    /// The program reads so many bytes.
    pub fn read(&mut self, len: u32) {
        self.connection.consume(self.now, len, &mut self.outbox);
        self.output();
    }

    pub fn shutdown(&mut self) {
        let _ = self.connection.shutdown_write();
        self.output();
    }

    pub fn close(&mut self) {
        self.connection.close(self.now, &mut self.outbox);
        self.output();
    }

    /// What was sent since the last question, as text.
    pub fn sent(&mut self) -> Vec<String> {
        self.outbox.sent.drain(..).map(|sent| sent.text()).collect()
    }

    /// The same, as it is.
    pub fn segments(&mut self) -> Vec<Sent> {
        core::mem::take(&mut self.outbox.sent)
    }

    /// When segments left since the last question, in milliseconds from now.
    pub fn times_since(&mut self, start: Instant) -> Vec<u64> {
        let since = |sent: Sent| sent.at.saturating_duration_since(start).as_millis() as u64;
        self.outbox.sent.drain(..).map(since).collect()
    }

    /// When scripts start.
    pub fn epoch() -> Instant {
        Instant::from_nanos(10_000_000_000)
    }

    pub fn state(&self) -> State {
        self.connection.state()
    }

    pub fn info(&self) -> Info {
        self.connection.info(self.now)
    }
}

fn listen_settings(settings: &Settings) -> ListenSettings {
    ListenSettings {
        sack: settings.sack,
        timestamps: settings.timestamps,
        window_scaling: settings.window_scaling,
        ..ListenSettings::default()
    }
}

fn context() -> Context<'static> {
    static SECRET: LazyLock<Secret> = LazyLock::new(|| Secret::new([1; 32]));
    Context { secret: &SECRET, our_mss: 1460, accept_queue_full: false, ecn: EcnField::NotCapable }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.connection.drain(&mut self.outbox);
        assert!(self.outbox.live == 0 || std::thread::panicking(), "{} bodies", self.outbox.live);
    }
}
