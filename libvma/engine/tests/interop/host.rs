//! A host that runs the engine: IP packets in, IP packets out, one connection, and a program that
//! writes a pattern and reads another.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use libvma_engine::tcp::connection::{own_mss, window_scale};
use libvma_engine::tcp::isn::Secret;
use libvma_engine::tcp::listen::{Context, ListenSettings, Listener, Verdict};
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::{
    Connection, EcnField, Error, Events, Info, Link, Outgoing, Path, Piece, SendFlags, Settings,
    State, reset_for,
};
use libvma_engine::time::Instant;
use libvma_engine::wire::checksum::Sum;
use libvma_engine::wire::ipv4::{self, protocol};
use libvma_engine::wire::tcp::{Flags, Header};
use libvma_engine::wire::udp::PartialChecksum;

/// Where the engine is, and where the other one.
pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const PORT: u16 = 7000;

/// The byte at a place of the stream that the engine sends (0) or receives (1).
pub fn byte(stream: u8, at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9).wrapping_add(usize::from(stream) * 77) >> 13) as u8
}

pub fn pattern(stream: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(stream, at)).collect()
}

/// Losses that follow from a seed.
pub struct Losses {
    state: u64,
    per_mille: u32,
    pub lost: u32,
}

impl Losses {
    pub fn new(seed: u64, per_mille: u32) -> Losses {
        Losses { state: seed, per_mille, lost: 0 }
    }

    pub fn hits(&mut self) -> bool {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let hits = (self.state >> 33) % 1000 < u64::from(self.per_mille);
        self.lost += u32::from(hits);
        hits
    }
}

/// What the program on the engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Shuts down after its last byte, reads to the end, closes.
    ShutsDown,
    /// Reads to the end first, then closes.
    ClosesAfterPeer,
    /// Leaves the connection open.
    Stays,
    /// Resets after its last byte.
    Aborts,
}

pub struct Host {
    pub connection: Option<Connection<Vec<u8>>>,
    listener: Option<Listener>,
    settings: Settings,
    pub path: Path,
    secret: Secret,
    /// Bytes to write in all, and those written.
    pub to_write: usize,
    pub written: usize,
    pub read: usize,
    pub end: End,
    pub saw_end: bool,
    closed: bool,
    pub error: Option<Error>,
    /// The last byte it writes is urgent.
    pub urgent: bool,
    /// Urgent bytes that arrived.
    pub urgent_bytes: Vec<u8>,
    pub sent: VecDeque<Vec<u8>>,
    pub losses: Losses,
    /// What was known when the connection was last alive.
    pub info: Option<Info>,
    live: usize,
}

struct Port<'a> {
    path: Path,
    key: FlowKey,
    sent: &'a mut VecDeque<Vec<u8>>,
    live: &'a mut usize,
}

impl Link<Vec<u8>> for Port<'_> {
    fn emit(&mut self, segment: &Outgoing<'_>) -> bool {
        let payload = segment.payload.concat();
        let size = segment.segment_size as usize;
        assert!(payload.len() <= size.max(self.path.segmentation_limit as usize));
        let mut at = 0;
        loop {
            let len = (payload.len() - at).min(size);
            let last = at + len == payload.len();
            let mut header = segment.header;
            header.seq = header.seq.wrapping_add(at as u32);
            if !last {
                header.flags = header.flags.without(Flags::FIN.with(Flags::PSH));
            }
            if at > 0 {
                header.flags = header.flags.without(Flags::CWR);
            }
            self.sent.push_back(packet(
                self.key,
                header,
                &payload[at..at + len],
                if segment.ecn_capable { 2 } else { 0 },
            ));
            at += len;
            if last {
                return true;
            }
        }
    }

    fn release(&mut self, _: Vec<u8>) {
        *self.live -= 1;
    }
}

/// An IP packet with this segment, and this in the two bits of ECN.
pub fn packet(key: FlowKey, header: Header, payload: &[u8], ecn: u8) -> Vec<u8> {
    let (src, dst) = (key.local, key.remote);
    let header = header.checksummed(src, dst, Sum::of(payload), payload.len());
    let tcp = header.header_len();
    let mut ip = ipv4::Header::new(src, dst, protocol::TCP, tcp + payload.len()).unwrap();
    ip.tos = ecn;
    ip.dont_fragment = true;
    let mut bytes = vec![0; ipv4::HEADER_LEN + tcp + payload.len()];
    ip.emit((&mut bytes[..ipv4::HEADER_LEN]).try_into().unwrap());
    header.emit(&mut bytes[ipv4::HEADER_LEN..]);
    bytes[ipv4::HEADER_LEN + tcp..].copy_from_slice(payload);
    bytes
}

impl Host {
    pub fn new(path: Path, settings: Settings, to_write: usize, end: End) -> Host {
        Host {
            connection: None,
            listener: None,
            settings,
            path,
            secret: Secret::new([7; 32]),
            to_write,
            written: 0,
            read: 0,
            end,
            saw_end: false,
            closed: false,
            error: None,
            urgent: false,
            urgent_bytes: Vec::new(),
            sent: VecDeque::new(),
            losses: Losses::new(1, 0),
            info: None,
            live: 0,
        }
    }

    pub fn connect(&mut self, now: Instant, local_port: u16, remote_port: u16) {
        let key = FlowKey { local: OURS, local_port, remote: THEIRS, remote_port };
        let iss = self.secret.initial_sequence(now, &key);
        let offset = self.secret.timestamp_offset(&key);
        let settings = self.settings.clone();
        self.connection = Some(Connection::connect(key, iss, offset, self.path, settings, now));
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
        self.listener = Some(Listener::new(settings, 8, 3, now));
    }

    fn call<R>(
        &mut self,
        call: impl FnOnce(&mut Connection<Vec<u8>>, &mut Port<'_>) -> R,
    ) -> Option<R> {
        let connection = self.connection.as_mut()?;
        let (path, key) = (connection.path(), connection.key());
        let mut port = Port { path, key, sent: &mut self.sent, live: &mut self.live };
        Some(call(connection, &mut port))
    }

    /// An IP packet has arrived; others than TCP's for us are none of our business.
    pub fn receive(&mut self, now: Instant, bytes: &[u8]) {
        let Ok(ip) = ipv4::Header::parse(bytes, bytes.len()) else { return };
        if ip.protocol != protocol::TCP || ip.dst != OURS || self.losses.hits() {
            return;
        }
        let segment = &bytes[ip.header_len()..ip.total_len()];
        let (header, len) = Header::parse(segment, segment.len()).expect("a TCP header");
        header
            .verify(ip.src, ip.dst, [segment], segment.len(), PartialChecksum::Accept)
            .expect("a right checksum");
        let payload = &segment[len..];
        let key = FlowKey {
            local: ip.dst,
            local_port: header.dst_port,
            remote: ip.src,
            remote_port: header.src_port,
        };
        let is_mine = self.connection.as_ref().is_some_and(|it| it.key() == key);
        let ecn = EcnField::of(ip.tos);
        if !is_mine && !self.open(now, key, &header, payload.len() as u32, ecn) {
            return;
        }
        if self.connection.as_ref().is_some_and(Connection::is_closed) {
            if let Some(reset) = reset_for(key, &header, payload.len() as u32) {
                self.sent.push_back(packet(key, reset, &[], 0));
            }
            return;
        }
        let len = payload.len() as u32;
        let piece = (len > 0).then(|| Piece { body: payload.to_vec(), offset: 0, len });
        self.live += usize::from(piece.is_some());
        let events = self.call(|it, port| it.input(now, &header, piece, ecn, port));
        if events.is_some_and(|events| events.contains(Events::URGENT)) {
            assert!(self.call(|it, _| it.has_urgent()).unwrap_or(false));
        }
    }

    /// A segment for no connection: true if it makes one.
    fn open(
        &mut self,
        now: Instant,
        key: FlowKey,
        header: &Header,
        payload: u32,
        ecn: EcnField,
    ) -> bool {
        let verdict = match &mut self.listener {
            Some(listener) if self.connection.is_none() => {
                let our_mss = own_mss(self.path, &self.settings) as u16;
                let context =
                    Context { secret: &self.secret, our_mss, accept_queue_full: false, ecn };
                listener.on_segment(now, key, header, payload, &context)
            }
            _ => Verdict::NotMine,
        };
        match verdict {
            Verdict::Drop(_) => false,
            Verdict::Reply(reply) | Verdict::Reset(reply) => {
                self.sent.push_back(packet(key, reply, &[], 0));
                false
            }
            Verdict::NotMine => {
                if let Some(reset) = reset_for(key, header, payload) {
                    self.sent.push_back(packet(key, reset, &[], 0));
                }
                false
            }
            Verdict::Established(request) => {
                let settings = self.settings.clone();
                self.connection = Some(Connection::accept(&request, self.path, settings, now));
                true
            }
        }
    }

    /// Timers, the program, and what leaves.
    pub fn run(&mut self, now: Instant) {
        if let Some(listener) = &mut self.listener {
            let sent = &mut self.sent;
            listener.on_timer(now, |key, header| sent.push_back(packet(key, header, &[], 0)));
        }
        self.call(|it, port| it.output(now, port));
        self.call(|it, port| it.on_timer(now, port));
        self.program(now);
        self.call(|it, port| it.output(now, port));
        let losses = &mut self.losses;
        self.sent.retain(|_| !losses.hits());
        if let Some(connection) = &self.connection
            && connection.state() != State::Closed
        {
            self.info = Some(connection.info(now));
        }
    }

    fn program(&mut self, now: Instant) {
        if self.closed {
            return;
        }
        let Some(connection) = &mut self.connection else { return };
        if let Some(error) = connection.take_error() {
            self.error = Some(error);
        }
        let writes = matches!(connection.state(), State::Established | State::CloseWait);
        if writes && self.written < self.to_write {
            let most = (self.to_write - self.written).min(100_000);
            let data: Vec<u8> = (self.written..self.written + most).map(|at| byte(0, at)).collect();
            let urgent = self.urgent && self.written + most == self.to_write;
            let flags = SendFlags { more: false, urgent };
            self.written += connection.send(now, [&data[..]], flags).unwrap_or(0);
        }
        self.read_all(now);
        let Some(connection) = &mut self.connection else { return };
        self.saw_end |= connection.is_at_end() && connection.state() != State::SynSent;
        let wrote_all = self.written == self.to_write && writes;
        let ends = match self.end {
            End::ShutsDown => {
                if wrote_all {
                    let _ = connection.shutdown_write();
                }
                self.saw_end && self.written == self.to_write
            }
            End::ClosesAfterPeer => self.saw_end && self.written == self.to_write,
            End::Stays => false,
            End::Aborts => {
                if wrote_all {
                    connection.abort();
                }
                wrote_all
            }
        };
        if ends || connection.state() == State::Closed {
            self.closed = true;
            self.call(|it, port| it.close(now, port));
        }
    }

    fn read_all(&mut self, now: Instant) {
        let Some(connection) = &mut self.connection else { return };
        let mut read = Vec::new();
        while connection.queued() > 0 {
            let hidden = connection.is_at_hidden_mark();
            let take = if hidden { 1 } else { connection.readable() };
            let mut left = take as usize;
            for piece in connection.pieces() {
                let bytes = &piece.body[piece.offset as usize..][..piece.len as usize];
                let bytes = &bytes[..bytes.len().min(left)];
                left -= bytes.len();
                if hidden {
                    self.urgent_bytes.extend_from_slice(bytes);
                } else {
                    read.extend_from_slice(bytes);
                }
            }
            let (path, key) = (connection.path(), connection.key());
            let mut port = Port { path, key, sent: &mut self.sent, live: &mut self.live };
            connection.consume(now, take, &mut port);
        }
        for got in read {
            assert_eq!(got, byte(1, self.read), "byte {} that the engine read", self.read);
            self.read += 1;
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        let connection = self.connection.as_ref().and_then(Connection::deadline);
        let listener = self.listener.as_ref().and_then(Listener::deadline);
        [connection, listener].into_iter().flatten().min()
    }

    pub fn state(&self) -> State {
        self.connection.as_ref().map_or(State::Closed, Connection::state)
    }

    /// The connection has come and gone.
    pub fn is_over(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_closed)
    }

    /// All memory of received data is back.
    pub fn check_memory(&mut self) {
        self.call(|it, port| it.drain(port));
        assert_eq!(self.live, 0, "bodies");
    }
}

pub fn ethernet() -> Path {
    Path { mtu: 1500, segmentation_limit: 0 }
}

/// Settings for tests: TIME-WAIT is short.
pub fn settings() -> Settings {
    Settings { time_wait_millis: 300, ..Settings::default() }
}
