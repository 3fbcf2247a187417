//! A live connection and whatever may happen to it: arbitrary segments, calls of the program,
//! messages of the network, time. It does not panic, does not talk without end, its timers are
//! never due again at once, and it gives back every body it was given.
#![no_main]

use core::net::Ipv4Addr;
use core::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use libvma_engine::tcp::congestion::Algorithm;
use libvma_engine::tcp::isn::Secret;
use libvma_engine::tcp::listen::{Context, ListenSettings, Listener, Verdict};
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::seq::Seq;
use libvma_engine::tcp::{Buffer, Connection, EcnField, Error, Link, Millis, Outgoing, Path, Piece, SendFlags, Settings};
use libvma_engine::time::Instant;
use libvma_engine::wire::tcp::{Flags, Header, Options, SackBlock, Timestamps};

/// What may happen.
#[derive(Arbitrary, Debug)]
enum Step {
    /// A segment with numbers near those that are expected.
    Segment(Segment),
    /// Any segment at all.
    Raw(Vec<u8>),
    Write {
        len: u16,
        more: bool,
        urgent: bool,
    },
    Read(u16),
    TakeUrgent,
    Shutdown,
    ShutdownRead,
    Close,
    Abort,
    Push,
    QuickAck(bool),
    Pass {
        millis: u16,
        seconds: bool,
    },
    TooBig {
        mtu: u16,
        behind: i8,
    },
    Unreachable {
        behind: i8,
    },
    Path {
        mtu: u16,
        limit: u16,
    },
    Change(Choices),
    Full(bool),
}

#[derive(Arbitrary, Debug)]
struct Segment {
    flags: u8,
    seq: i16,
    ack: i16,
    /// Counts from SND.NXT, not from SND.UNA.
    ack_from_next: bool,
    len: u16,
    window: u16,
    urgent: u16,
    stamp: Option<(i16, i16)>,
    sack: Vec<(u16, u16)>,
    tos: u8,
    /// What follows from it waits for the next one.
    batched: bool,
}

/// Options of sockets.
#[derive(Arbitrary, Debug, Clone, Copy)]
struct Choices {
    bits: u16,
    algorithm: u8,
    send_buffer: u16,
    receive_buffer: u16,
    max_segment: Option<u16>,
    clamp: Option<u16>,
    user_timeout: Option<u16>,
}

impl Choices {
    fn apply(self, settings: &mut Settings) {
        let on = |bit: u16| self.bits & 1 << bit != 0;
        settings.nodelay = on(0);
        settings.cork = on(1);
        settings.always_quick_ack = on(2);
        settings.keep_alive = on(3);
        settings.keep_idle = Millis::from_secs(3);
        settings.keep_interval = Millis::from_secs(1);
        settings.reset_on_close = on(4);
        settings.urgent_inline = on(5);
        settings.fin_timeout = on(6).then_some(Duration::from_secs(5));
        settings.congestion = match self.algorithm % 3 {
            0 => Algorithm::NewReno,
            1 => Algorithm::Cubic,
            _ => Algorithm::None,
        };
        let buffer = |limit: u16, automatic: bool| Buffer {
            limit: u32::from(limit),
            most: 1 << 20,
            automatic,
        };
        settings.send_buffer = buffer(self.send_buffer, on(7));
        settings.receive_buffer = buffer(self.receive_buffer, on(8));
        settings.window_clamp = self.clamp.map_or(u32::MAX, u32::from);
        settings.user_timeout = self.user_timeout.map(|it| Duration::from_millis(u64::from(it)));
    }

    /// Those that are agreed upon when a connection opens.
    fn open(self) -> Settings {
        let on = |bit: u16| self.bits & 1 << bit != 0;
        let mut settings = Settings {
            ecn: on(9),
            timestamps: on(10),
            window_scaling: on(11),
            sack: on(12),
            max_segment: self.max_segment,
            ..Settings::default()
        };
        self.apply(&mut settings);
        settings
    }
}

#[derive(Arbitrary, Debug)]
struct Case {
    choices: Choices,
    passive: bool,
    mtu: u16,
    limit: u16,
    /// The handshake is completed first, as it should be.
    established: bool,
    steps: Vec<Step>,
}

/// What the connection sends through.
#[derive(Default)]
struct Outbox {
    full: bool,
    sent: u32,
    live: i64,
}

impl Link<Vec<u8>> for Outbox {
    fn emit(&mut self, segment: &Outgoing<'_>) -> bool {
        if self.full {
            return false;
        }
        let [first, second] = segment.payload;
        let len = first.len() + second.len();
        assert!(len < 1 << 17);
        assert!(segment.segment_size > 0);
        self.sent += 1;
        true
    }

    fn release(&mut self, _: Vec<u8>) {
        self.live -= 1;
    }
}

const KEY: FlowKey = FlowKey {
    local: Ipv4Addr::new(10, 0, 0, 1),
    local_port: 1000,
    remote: Ipv4Addr::new(10, 0, 0, 2),
    remote_port: 2000,
};
const ISS: Seq = Seq::new(0xffff_fe00);
const IRS: u32 = 0xffff_ff00;

struct World {
    connection: Connection<Vec<u8>>,
    outbox: Outbox,
    now: Instant,
}

fuzz_target!(|case: Case| {
    let now = Instant::from_nanos(5_000_000_000);
    let path = Path { mtu: u32::from(case.mtu), segmentation_limit: u32::from(case.limit) };
    let settings = case.choices.open();
    let connection = if case.passive {
        accept(path, settings, now)
    } else {
        Connection::connect(KEY, ISS, 7, path, settings, now)
    };
    let mut world = World { connection, outbox: Outbox::default(), now };
    world.connection.output(now, &mut world.outbox);
    if case.established {
        world.establish(case.passive);
    }
    for step in case.steps {
        world.step(step);
    }
    world.connection.close(world.now, &mut world.outbox);
    world.pass(Duration::from_secs(3600));
    world.connection.drain(&mut world.outbox);
    assert_eq!(world.outbox.live, 0);
});

fn accept(path: Path, settings: Settings, now: Instant) -> Connection<Vec<u8>> {
    let listen = ListenSettings {
        sack: settings.sack,
        timestamps: settings.timestamps,
        window_scaling: settings.window_scaling,
        ..ListenSettings::default()
    };
    let mut listener = Listener::new(listen, 8, 1, now);
    let secret = Secret::new([1; 32]);
    let context = Context { secret: &secret, our_mss: 1460, accept_queue_full: false, ecn: EcnField::NotCapable };
    let options = Options {
        sack_permitted: true,
        window_scale: Some(3),
        timestamps: Some(Timestamps { value: 1, echo: 0 }),
        ..Options::default()
    };
    let syn = Header { flags: Flags::SYN, seq: IRS, window: 9000, options, ..Header::default() };
    let Verdict::Reply(reply) = listener.on_segment(now, KEY, &syn, 0, &context) else {
        unreachable!("a SYN is answered");
    };
    let third = Header {
        flags: Flags::ACK,
        seq: IRS.wrapping_add(1),
        ack: reply.seq.wrapping_add(1),
        options: Options { timestamps: Some(Timestamps { value: 2, echo: 0 }), ..options },
        ..syn
    };
    let Verdict::Established(request) = listener.on_segment(now, KEY, &third, 0, &context) else {
        unreachable!("an ACK establishes");
    };
    Connection::accept(&request, path, settings, now)
}

impl World {
    fn establish(&mut self, passive: bool) {
        let known = self.connection.transplant(self.now);
        let mut header = Header {
            flags: if passive { Flags::ACK } else { Flags::SYN.with(Flags::ACK) },
            seq: if passive { known.rcv_nxt.raw() } else { IRS },
            ack: known.snd_nxt.raw(),
            window: 9000,
            ..Header::default()
        };
        header.options.timestamps = Some(Timestamps { value: 2, echo: 0 });
        if !passive {
            header.options.window_scale = Some(3);
            header.options.sack_permitted = true;
        }
        self.input(&header, 0, 0);
        self.output();
    }

    fn input(&mut self, header: &Header, len: u16, tos: u8) {
        let piece = (len > 0 || header.urgent == 1).then(|| Piece {
            body: vec![3; usize::from(len)],
            offset: 0,
            len: u32::from(len),
        });
        self.outbox.live += i64::from(piece.is_some());
        self.connection.input(self.now, header, piece, EcnField::of(tos), &mut self.outbox);
    }

    fn output(&mut self) {
        self.outbox.sent = 0;
        self.connection.output(self.now, &mut self.outbox);
        // A buffer of a megabyte in the smallest segments.
        assert!(self.outbox.sent < 40_000, "{} segments at once", self.outbox.sent);
        if !self.outbox.full {
            assert_eq!(self.connection.is_forgotten(), None);
        }
    }

    /// Time passes; timers do what is due.
    fn pass(&mut self, time: Duration) {
        let end = self.now.saturating_add(time);
        let mut calls = 0u64;
        while let Some(at) = self.connection.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.connection.on_timer(self.now, &mut self.outbox);
            let next = self.connection.deadline();
            assert!(next.is_none_or(|next| next > self.now), "due again at once");
            calls += 1;
            assert!(calls < 2000 + time.as_secs() * 50, "{calls} timers in {time:?}");
        }
        self.now = end;
    }

    fn step(&mut self, step: Step) {
        let now = self.now;
        let (connection, outbox) = (&mut self.connection, &mut self.outbox);
        match step {
            Step::Segment(segment) => {
                let header = self.header(&segment);
                self.input(&header, segment.len, segment.tos);
                if segment.batched {
                    return;
                }
            }
            Step::Raw(bytes) => {
                let Ok((header, len)) = Header::parse(&bytes, bytes.len()) else { return };
                self.input(&header, (bytes.len() - len).min(2000) as u16, 0);
            }
            Step::Write { len, more, urgent } => {
                let data = vec![5; usize::from(len)];
                let _ = connection.send(now, [&data[..]], SendFlags { more, urgent });
            }
            Step::Read(len) => {
                let most = connection.readable();
                connection.consume(now, most.min(u32::from(len)), outbox);
                let total: u32 = connection.pieces().map(|piece| piece.len).sum();
                assert_eq!(total, connection.queued());
            }
            Step::TakeUrgent => connection.take_urgent(),
            Step::Shutdown => drop(connection.shutdown_write()),
            Step::ShutdownRead => connection.shutdown_read(),
            Step::Close => connection.close(now, outbox),
            Step::Abort => connection.abort(),
            Step::Push => connection.push(now, outbox),
            Step::QuickAck(quick) => connection.set_quick_ack(quick),
            Step::Pass { millis, seconds } => {
                let unit = if seconds { 1000 } else { 1 };
                self.pass(Duration::from_millis(u64::from(millis) * unit));
            }
            Step::TooBig { mtu, behind } => {
                let una = connection.transplant(now).snd_una;
                let quoted = Seq::new(una.raw().wrapping_add(behind as u32));
                connection.on_packet_too_big(u32::from(mtu), quoted, now);
            }
            Step::Unreachable { behind } => {
                let una = connection.transplant(now).snd_una;
                let quoted = Seq::new(una.raw().wrapping_add(behind as u32));
                connection.on_unreachable(Error::HostUnreachable, quoted);
            }
            Step::Path { mtu, limit } => {
                let (mtu, segmentation_limit) = (u32::from(mtu), u32::from(limit));
                connection.set_path(Path { mtu, segmentation_limit });
            }
            Step::Change(choices) => connection.set(now, |settings| choices.apply(settings)),
            Step::Full(full) => outbox.full = full,
        }
        let _ = self.connection.readiness();
        self.output();
    }

    fn header(&self, segment: &Segment) -> Header {
        let known = self.connection.transplant(self.now);
        let from = if segment.ack_from_next { known.snd_nxt } else { known.snd_una };
        let mut header = Header {
            flags: Flags::from_bits(segment.flags),
            seq: known.rcv_nxt.raw().wrapping_add(segment.seq as u32),
            ack: from.raw().wrapping_add(segment.ack as u32),
            window: segment.window,
            urgent: segment.urgent,
            ..Header::default()
        };
        let stamp = |base: u32, offset: i16| base.wrapping_add(offset as u32);
        header.options.timestamps = segment.stamp.map(|(value, echo)| Timestamps {
            value: stamp(known.recent_timestamp, value),
            echo: stamp(known.timestamp.unwrap_or(0), echo),
        });
        for (left, len) in segment.sack.iter().take(4) {
            let left = known.snd_una.raw().wrapping_add(u32::from(*left));
            let right = left.wrapping_add(u32::from(*len));
            header.options.push_sack(SackBlock { left, right });
        }
        header
    }
}
