//! One host: a connection or a listener, its program, and the checks of what it sends.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

use super::Rng;
use super::program::{Plan, Program};
use super::wire::{Ecn, Packet};
use crate::tcp::connection::{own_mss, window_scale};
use crate::tcp::isn::Secret;
use crate::tcp::listen::{Context, ListenSettings, Listener, Verdict};
use crate::tcp::lookup::FlowKey;
use crate::tcp::seq::Seq;
use crate::tcp::{
    Connection, EcnField, Events, Link, Outgoing, Path, Piece, Settings, State, reset_for,
};
use crate::time::Instant;
use crate::wire::checksum::Sum;
use crate::wire::tcp::{Flags, Header};
use crate::wire::udp::PartialChecksum;

/// Received payload, which must be given back before it is dropped.
#[derive(Debug)]
pub struct Body {
    pub bytes: Vec<u8>,
    /// Bodies that exist.
    live: Rc<Cell<usize>>,
    returned: bool,
}

impl Body {
    fn new(bytes: Vec<u8>, live: &Rc<Cell<usize>>) -> Body {
        live.set(live.get() + 1);
        Body { bytes, live: Rc::clone(live), returned: false }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.live.set(self.live.get() - 1);
        assert!(self.returned || std::thread::panicking(), "a body was dropped, not given back");
    }
}

/// What a connection sends through, with the checks of it.
pub struct Port<'a> {
    key: FlowKey,
    path: Path,
    sent: &'a mut Vec<Packet>,
    /// The furthest window that the peer has told us of.
    edge: Option<Seq>,
    /// Nothing is taken.
    full: bool,
    refused: bool,
    coalesce: bool,
}

impl Link<Body> for Port<'_> {
    fn emit(&mut self, segment: &Outgoing<'_>) -> bool {
        if self.full {
            self.refused = true;
            return false;
        }
        let payload = segment.payload.concat();
        let size = segment.segment_size as usize;
        let is_super = payload.len() > size;
        if is_super {
            let limit = self.path.segmentation_limit as usize;
            assert!(
                payload.len() <= limit,
                "{} bytes for a device that takes {limit}",
                payload.len()
            );
            assert!(!segment.header.flags.intersects(Flags::SYN.with(Flags::RST).with(Flags::URG)));
        }
        let start = Seq::new(segment.header.seq);
        let end = start.plus(payload.len() as u32);
        if let Some(edge) = self.edge {
            assert!(end <= edge, "{} bytes beyond the peer's window", end.since(edge));
        }
        let mut at = 0;
        loop {
            let len = (payload.len() - at).min(size);
            let (first, last) = (at == 0, at + len == payload.len());
            let mut header = segment.header;
            header.seq = start.plus(at as u32).raw();
            if !last {
                header.flags = header.flags.without(Flags::FIN.with(Flags::PSH));
            }
            if !first {
                header.flags = header.flags.without(Flags::CWR);
            }
            self.put(header, &payload[at..at + len], segment.ecn_capable);
            at += len;
            if last {
                return true;
            }
        }
    }

    fn release(&mut self, mut body: Body) {
        body.returned = true;
    }

    fn coalesce(&mut self, tail: &mut Piece<Body>, next: Piece<Body>) -> Option<Piece<Body>> {
        if !self.coalesce || tail.offset + tail.len != tail.body.bytes.len() as u32 {
            return Some(next);
        }
        let (from, len) = (next.offset as usize, next.len as usize);
        tail.body.bytes.extend_from_slice(&next.body.bytes[from..from + len]);
        tail.len += next.len;
        self.release(next.body);
        None
    }
}

impl Port<'_> {
    fn put(&mut self, header: Header, payload: &[u8], ecn_capable: bool) {
        let (src, dst) = (self.key.local, self.key.remote);
        let header = header.checksummed(src, dst, Sum::of(payload), payload.len());
        let mut bytes = vec![0; header.header_len() + payload.len()];
        let len = header.emit(&mut bytes);
        assert_eq!(len, header.header_len());
        bytes[len..].copy_from_slice(payload);
        assert!(bytes.len() + 20 <= self.path.mtu as usize, "{} bytes of packet", bytes.len() + 20);
        let ecn = if ecn_capable { Ecn::Capable } else { Ecn::NotCapable };
        self.sent.push(Packet { bytes, ecn });
    }
}

/// One host.
pub struct Side {
    pub key: FlowKey,
    pub path: Path,
    pub settings: Settings,
    pub connection: Option<Connection<Body>>,
    pub listener: Option<Listener>,
    pub program: Program,
    /// What leaves in this step.
    pub sent: Vec<Packet>,
    /// Bodies of received payload that exist.
    pub bodies: Rc<Cell<usize>>,
    /// So many calls to send, per million, find no room.
    pub refusals: u32,
    pub coalesce: bool,
    /// What the peer sends is what it means.
    pub trusts: bool,
    /// The connection was dropped after its end.
    was_over: bool,
    pub events: Events,
    pub timer_calls: u64,
    pub segments: u64,
    secret: Secret,
    rng: Rng,
    edge: Option<Seq>,
    scale: Option<u8>,
    /// When to try again after there was no room to send.
    retry: Option<Instant>,
    /// Segments came since the last output.
    touched: bool,
}

/// How soon there is room again.
const RETRY: Duration = Duration::from_micros(50);

impl Side {
    pub fn new(number: u8, path: Path, settings: Settings, plan: Plan, mut rng: Rng) -> Side {
        let address = |n| Ipv4Addr::new(10, 0, 0, n);
        let (local, remote) = if number == 0 { (1, 2) } else { (2, 1) };
        let ports = |n| if n == 1 { 40_000 } else { 80 };
        let key = FlowKey {
            local: address(local),
            local_port: ports(local),
            remote: address(remote),
            remote_port: ports(remote),
        };
        let mut secret = [0; 32];
        secret.fill_with(|| rng.below(256) as u8);
        Side {
            key,
            path,
            settings,
            connection: None,
            listener: None,
            program: Program::new(plan, number, rng.fork()),
            sent: Vec::new(),
            bodies: Rc::default(),
            refusals: 0,
            coalesce: rng.chance(500_000),
            trusts: true,
            was_over: false,
            events: Events::NONE,
            timer_calls: 0,
            segments: 0,
            secret: Secret::new(secret),
            rng,
            edge: None,
            scale: None,
            retry: None,
            touched: false,
        }
    }

    pub fn connect(&mut self, now: Instant) {
        // Initial numbers near the end of the sequence space, half of the time.
        let iss = if self.rng.chance(500_000) {
            Seq::new(u32::MAX - self.rng.below(100_000) as u32)
        } else {
            self.secret.initial_sequence(now, &self.key)
        };
        let offset = self.secret.timestamp_offset(&self.key);
        let settings = self.settings.clone();
        self.connection =
            Some(Connection::connect(self.key, iss, offset, self.path, settings, now));
        self.call(now, |connection, port| connection.output(now, port));
    }

    pub fn listen(&mut self, now: Instant) {
        let settings = ListenSettings {
            window: self.settings.receive_buffer.limit,
            our_window_scale: window_scale(&self.settings),
            sack: self.settings.sack,
            timestamps: self.settings.timestamps,
            window_scaling: self.settings.window_scaling,
            ..ListenSettings::default()
        };
        self.listener = Some(Listener::new(settings, 4, 7, now));
    }

    /// A call of the connection, and the checks after it.
    pub fn call<R>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Connection<Body>, &mut Port<'_>) -> R,
    ) -> Option<R> {
        let connection = self.connection.as_mut()?;
        let before = connection.info(now);
        let mut port = Port {
            key: self.key,
            path: connection.path(),
            sent: &mut self.sent,
            edge: self.edge.filter(|_| self.trusts),
            full: self.rng.chance(self.refusals),
            refused: false,
            coalesce: self.coalesce,
        };
        let result = call(connection, &mut port);
        let refused = port.refused;
        if refused && connection.wants_output() {
            self.retry = Some(now.saturating_add(RETRY));
        }
        let info = connection.info(now);
        // New data leaves within the congestion window; beyond it two segments of limited
        // transmit, one probe and a FIN.
        let flight = info.unacknowledged - info.sacked - info.to_retransmit;
        let before_flight = before.unacknowledged - before.sacked - before.to_retransmit;
        let slack = 3 * info.snd_mss.max(before.snd_mss) + 1;
        let sent_new = info.unacknowledged > before.unacknowledged;
        if self.trusts && sent_new && info.state.is_synchronized() {
            let most = info.cwnd.max(before.cwnd).max(before_flight) + slack;
            assert!(flight <= most, "{flight} in flight, of {most}: {info:?}");
        }
        Some(result)
    }

    /// Does something with a connection that is not yet the side's.
    pub fn put(
        &mut self,
        connection: &mut Connection<Body>,
        call: impl FnOnce(&mut Connection<Body>, &mut Port<'_>),
    ) {
        let mut port = Port {
            key: self.key,
            path: self.path,
            sent: &mut self.sent,
            edge: None,
            full: false,
            refused: false,
            coalesce: self.coalesce,
        };
        call(connection, &mut port);
        assert!(self.sent.is_empty(), "it has sent something");
    }

    /// A body of received payload.
    pub fn body(&self, bytes: Vec<u8>) -> Body {
        Body::new(bytes, &self.bodies)
    }

    /// A packet has arrived.
    pub fn receive(&mut self, now: Instant, packet: &Packet) {
        let (bytes, len) = (&packet.bytes[..], packet.bytes.len());
        let Ok((header, header_len)) = Header::parse(bytes, len) else { return };
        let (src, dst) = (self.key.remote, self.key.local);
        if header.verify(src, dst, [bytes], len, PartialChecksum::Reject).is_err() {
            return;
        }
        if header.src_port != self.key.remote_port || header.dst_port != self.key.local_port {
            return;
        }
        self.note_edge(&header);
        let ecn = match packet.ecn {
            Ecn::NotCapable => EcnField::NotCapable,
            Ecn::Capable => EcnField::Capable,
            Ecn::CongestionExperienced => EcnField::Congestion,
        };
        self.segment(now, &header, &bytes[header_len..], ecn);
    }

    fn note_edge(&mut self, header: &Header) {
        if header.flags.contains(Flags::SYN) {
            self.scale = header.options.window_scale;
        }
        if header.flags.contains(Flags::ACK) {
            let syn = header.flags.contains(Flags::SYN);
            let scaled = self.settings.window_scaling && !syn;
            let scale = if !scaled { 0 } else { self.scale.unwrap_or(0).min(14) };
            let edge = Seq::new(header.ack).plus(u32::from(header.window) << scale);
            self.edge = Some(self.edge.map_or(edge, |known| known.max(edge)));
        }
    }

    fn segment(&mut self, now: Instant, header: &Header, payload: &[u8], ecn: EcnField) {
        // A closed one stays until its program has read what came.
        let waits = self.connection.as_ref().filter(|it| it.state() == State::TimeWait);
        let replaced = waits.is_some_and(|it| it.may_be_replaced_by(header, now));
        if replaced || self.is_over() {
            self.was_over = self.is_over();
            self.drop_connection();
        }
        if self.connection.as_ref().is_some_and(Connection::is_closed) {
            // The program has not taken leave yet, but nobody else finds the connection.
            if let Some(reset) = reset_for(self.key, header, payload.len() as u32) {
                self.reply(reset);
            }
            return;
        }
        if self.connection.is_none() && !self.open(now, header, payload.len() as u32, ecn) {
            return;
        }
        let live = Rc::clone(&self.bodies);
        let len = payload.len() as u32;
        let piece = (len > 0 || self.rng.chance(100_000)).then(|| Piece {
            body: Body::new(payload.to_vec(), &live),
            offset: 0,
            len,
        });
        self.touched = true;
        let events = self.call(now, |it, port| it.input(now, header, piece, ecn, port));
        self.events.insert(events.unwrap_or(Events::NONE));
    }

    /// A segment for no connection: true if it makes one.
    fn open(&mut self, now: Instant, header: &Header, payload: u32, ecn: EcnField) -> bool {
        let key = self.key;
        let Some(listener) = &mut self.listener else {
            if let Some(reset) = reset_for(key, header, payload) {
                self.reply(reset);
            }
            return false;
        };
        let context = Context {
            secret: &self.secret,
            our_mss: own_mss(self.path, &self.settings) as u16,
            accept_queue_full: false,
            ecn,
        };
        match listener.on_segment(now, key, header, payload, &context) {
            Verdict::Drop(_) => false,
            Verdict::Reply(reply) | Verdict::Reset(reply) => {
                self.reply(reply);
                false
            }
            Verdict::NotMine => {
                if let Some(reset) = reset_for(key, header, payload) {
                    self.reply(reset);
                }
                false
            }
            Verdict::Established(request) => {
                let settings = self.settings.clone();
                self.edge = None;
                self.note_edge(header);
                self.connection = Some(Connection::accept(&request, self.path, settings, now));
                true
            }
        }
    }

    /// Sends what no connection sends.
    fn reply(&mut self, header: Header) {
        let sent = &mut self.sent;
        let (key, path) = (self.key, self.path);
        let mut port =
            Port { key, path, sent, edge: None, full: false, refused: false, coalesce: false };
        port.put(header, &[], false);
    }

    /// The next thing to do by itself.
    pub fn next(&self) -> Option<Instant> {
        let listener = self.listener.as_ref().and_then(Listener::deadline);
        let connection = self.connection.as_ref();
        let deadline = connection.and_then(Connection::deadline);
        let program = connection.and_then(|it| self.program.wakes(it));
        [listener, deadline, program, self.retry].into_iter().flatten().min()
    }

    /// Timers and the program.
    pub fn run(&mut self, now: Instant) {
        if let Some(listener) = &mut self.listener {
            let mut replies = Vec::new();
            listener.on_timer(now, |_, header| replies.push(header));
            replies.into_iter().for_each(|header| self.reply(header));
        }
        // As the shard: after segments, after a refusal, and after calls that make something due.
        let retries = self.retry.take_if(|at| *at <= now).is_some();
        if core::mem::take(&mut self.touched) || retries {
            self.call(now, |it, port| it.output(now, port));
        }
        if self.connection.as_ref().and_then(Connection::deadline).is_some_and(|at| at <= now) {
            self.timer_calls += 1;
            let events = self.call(now, |it, port| it.on_timer(now, port));
            self.events.insert(events.unwrap_or(Events::NONE));
            let late = self.connection.as_ref().and_then(Connection::deadline);
            assert!(late.is_none_or(|at| at > now), "a timer is due again at once");
        }
        // Once in a call: what it does may make more possible, but a program sleeps between.
        let Some(connection) = &mut self.connection else { return };
        let mut port = Port {
            key: self.key,
            path: connection.path(),
            sent: &mut self.sent,
            edge: self.edge.filter(|_| self.trusts),
            full: false,
            refused: false,
            coalesce: self.coalesce,
        };
        self.program.compares = self.trusts;
        if self.program.run(now, connection, &mut port) && connection.wants_output() {
            self.call(now, |it, port| it.output(now, port));
        }
        if self.retry.is_none()
            && let Some(forgotten) = self.connection.as_ref().and_then(Connection::is_forgotten)
        {
            panic!("{forgotten}: {:?}", self.connection.as_ref().map(|it| it.info(now)));
        }
    }

    /// Nothing is left of the connection.
    pub fn is_over(&self) -> bool {
        let is_closed = self.connection.as_ref().is_some_and(Connection::is_closed);
        self.was_over || self.program.closed && is_closed
    }

    pub fn state(&self) -> State {
        self.connection.as_ref().map_or(State::Closed, Connection::state)
    }

    pub fn drop_connection(&mut self) {
        let now = Instant::default();
        self.call(now, |it, port| it.drain(port));
        self.connection = None;
    }
}

/// An MTU of Ethernet, and a device that cuts nothing.
pub fn ethernet() -> Path {
    Path { mtu: 1500, segmentation_limit: 0 }
}

/// Settings for tests: TIME-WAIT is short.
pub fn settings() -> Settings {
    Settings { time_wait_millis: 4000, ..Settings::default() }
}
