//! libvma's engine, with what a shard puts around it: headers on the wire, the table of flows, the
//! timer wheel. Received payload stays in its packet until the program has read it.

use core::net::Ipv4Addr;
use core::time::Duration;

use libvma_engine::bulk_copy::bulk_copy;
use libvma_engine::tcp::isn::Secret;
use libvma_engine::tcp::listen::{Context, ListenSettings, Listener, Verdict};
use libvma_engine::tcp::lookup::{FlowKey, FlowTable};
use libvma_engine::tcp::{
    Buffer, Connection, EcnField, Link, Outgoing, Path, Piece, SendFlags, Settings, State,
};
use libvma_engine::time::Instant;
use libvma_engine::timer_wheel::TimerWheel;
use libvma_engine::wire::checksum::copy_and_sum;
use libvma_engine::wire::udp::PartialChecksum;
use libvma_engine::wire::{ipv4, tcp};

use crate::packets::{Packet, Pool, Queue, deliver};
use crate::{Contestant, Cycle, MESSAGE_LEN, Setup};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 7;

pub struct Libvma {
    client: Endpoint,
    server: Endpoint,
    now: Instant,
}

impl Contestant for Libvma {
    fn open(setup: &Setup) -> Libvma {
        let now = Instant::from_nanos(1_000_000_000);
        let mut pair = Libvma {
            client: Endpoint::new(setup, CLIENT, SERVER, now),
            server: Endpoint::new(setup, SERVER, CLIENT, now),
            now,
        };
        for index in 0..setup.idle {
            pair.connect(10_000 + index as u16);
        }
        pair.connect(9_999);
        pair
    }

    fn round_trip(&mut self, message: &[u8; MESSAGE_LEN]) -> [u8; MESSAGE_LEN] {
        let mut buffer = [0; MESSAGE_LEN];
        self.pass_time();
        self.client.send(message, self.now);
        self.run_to_server();
        assert_eq!(self.server.recv(&mut buffer, self.now), MESSAGE_LEN);
        self.server.send(&buffer, self.now);
        self.run_to_client();
        assert_eq!(self.client.recv(&mut buffer, self.now), MESSAGE_LEN);
        buffer
    }

    fn bulk(&mut self, source: &[u8], sink: &mut [u8], total: u64) {
        let mut sent = Cycle::new(source.len(), total);
        let mut received = Cycle::new(sink.len(), total);
        while !received.is_done() {
            self.pass_time();
            loop {
                let count = self.client.send(&source[sent.next(usize::MAX)], self.now);
                sent.advance(count);
                if count == 0 {
                    break;
                }
                // A shard does not wait for more, either.
                self.client.output(self.now);
            }
            self.run_to_server();
            loop {
                let count = self.server.recv(&mut sink[received.next(usize::MAX)], self.now);
                received.advance(count);
                if count == 0 {
                    break;
                }
            }
            self.run_to_client();
        }
    }
}

impl Libvma {
    fn pass_time(&mut self) {
        self.now = self.now.saturating_add(Duration::from_micros(1));
        self.client.run_timers(self.now);
        self.server.run_timers(self.now);
    }

    /// What the client has to send goes to the server, whose answers wait for its next turn.
    fn run_to_server(&mut self) {
        self.client.output(self.now);
        deliver(&mut self.client.device.sent, &mut self.server.received);
        self.server.input(self.now);
        self.client.device.pool.give_back(&mut self.server.device.read);
    }

    fn run_to_client(&mut self) {
        self.server.output(self.now);
        deliver(&mut self.server.device.sent, &mut self.client.received);
        self.client.input(self.now);
        self.server.device.pool.give_back(&mut self.client.device.read);
    }

    fn connect(&mut self, port: u16) {
        self.client.connect(port, self.now);
        self.run_to_server();
        self.run_to_client();
        self.run_to_server();
        self.run_to_client();
        for endpoint in [&self.client, &self.server] {
            let last = endpoint.connections.last().expect("a connection");
            assert_eq!(last.state(), State::Established);
        }
    }
}

struct Endpoint {
    address: Ipv4Addr,
    peer: Ipv4Addr,
    path: Path,
    settings: Settings,
    secret: Secret,
    listener: Listener,
    flows: FlowTable<u32>,
    /// The last one is the active one.
    connections: Vec<Connection<Body>>,
    /// The connections that segments arrived for, or whose program did something.
    touched: Vec<u32>,
    /// Packets of the batch that is taken.
    batched: u32,
    wheel: TimerWheel,
    received: Queue,
    device: Device,
}

impl Endpoint {
    fn new(setup: &Setup, address: Ipv4Addr, peer: Ipv4Addr, now: Instant) -> Endpoint {
        let buffer = Buffer { limit: setup.window, most: setup.window, automatic: false };
        let settings = Settings {
            nodelay: true,
            timestamps: setup.timestamps,
            send_buffer: buffer,
            receive_buffer: buffer,
            ..Settings::default()
        };
        let listen_settings = ListenSettings {
            timestamps: setup.timestamps,
            window: setup.window.min(0xffff),
            our_window_scale: (setup.window.ilog2() + 1).saturating_sub(16) as u8,
            ..ListenSettings::default()
        };
        let mut prepared = [0; ipv4::HEADER_LEN];
        let ip = ipv4::Header::new(address, peer, ipv4::protocol::TCP, 0).expect("a short packet");
        ip.emit(&mut prepared);
        Endpoint {
            address,
            peer,
            path: Path { mtu: setup.mtu.into(), segmentation_limit: 0 },
            settings,
            secret: Secret::new([7; 32]),
            listener: Listener::new(listen_settings, 16, 1, now),
            flows: FlowTable::new(1),
            connections: Vec::new(),
            touched: Vec::new(),
            batched: 0,
            wheel: TimerWheel::new(now),
            received: Queue::default(),
            device: Device {
                address,
                peer,
                sent: Queue::default(),
                read: Vec::new(),
                pool: Pool::new(usize::from(setup.mtu)),
                checksums: setup.checksums,
                prepared,
            },
        }
    }

    fn connect(&mut self, local_port: u16, now: Instant) {
        let key = FlowKey { local: self.address, local_port, remote: self.peer, remote_port: PORT };
        let iss = self.secret.initial_sequence(now, &key);
        let connection = Connection::connect(key, iss, 0, self.path, self.settings.clone(), now);
        self.add(key, connection);
    }

    fn add(&mut self, key: FlowKey, connection: Connection<Body>) -> u32 {
        let id = self.connections.len() as u32;
        self.connections.push(connection);
        self.flows.insert(key, id);
        self.touch(id);
        id
    }

    #[inline]
    fn touch(&mut self, id: u32) {
        if self.touched.last() != Some(&id) {
            self.touched.push(id);
        }
    }

    fn send(&mut self, bytes: &[u8], now: Instant) -> usize {
        let Some(active) = self.connections.last_mut() else { return 0 };
        let count = active.send(now, [bytes], SendFlags::default()).expect("an open connection");
        self.touch(self.connections.len() as u32 - 1);
        count
    }

    fn recv(&mut self, bytes: &mut [u8], now: Instant) -> usize {
        let Some(active) = self.connections.last_mut() else { return 0 };
        // One segment that fits, as a reader finds nearly always: in one look, as a shard takes it.
        if active.is_plainly_readable()
            && let Some(piece) = active.only_piece()
            && let Some(target) = bytes.get_mut(..piece.len as usize)
        {
            bulk_copy(target, piece.body.payload(piece));
            let piece = active.take_piece(now).expect("the piece that was looked at");
            self.device.release(piece.body);
            self.touch(self.connections.len() as u32 - 1);
            return piece.len as usize;
        }
        let mut filled = 0;
        for piece in active.pieces() {
            let room = &mut bytes[filled..];
            let payload = piece.body.payload(piece);
            let len = payload.len().min(room.len());
            bulk_copy(room, &payload[..len]);
            filled += len;
        }
        if filled > 0 {
            active.consume(now, filled as u32, &mut self.device);
            self.touch(self.connections.len() as u32 - 1);
        }
        filled
    }

    fn input(&mut self, now: Instant) {
        self.batched = 0;
        while let Some(packet) = self.received.pop_front() {
            self.input_packet(packet, now);
        }
    }

    #[inline]
    fn input_packet(&mut self, packet: Packet, now: Instant) {
        let bytes = packet.bytes();
        let ip = IpFields::read(bytes, self.device.checksums);
        let segment = &bytes[ipv4::HEADER_LEN..ip.total_len];
        let mut header = tcp::Header::default();
        let header_len = header.parse_from(segment, segment.len()).expect("a TCP header");
        if self.device.checksums {
            header
                .verify(ip.src, ip.dst, [segment], segment.len(), PartialChecksum::Reject)
                .expect("a correct checksum");
        }
        let key = FlowKey {
            local: ip.dst,
            local_port: header.dst_port,
            remote: ip.src,
            remote_port: header.src_port,
        };
        let payload_len = (segment.len() - header_len) as u32;
        let Some(id) = self.flows.get(&key) else {
            self.device.read.push(packet);
            return self.input_unknown(key, &header, payload_len, now);
        };
        let piece = if payload_len > 0 {
            let body = Body { payload_at: ipv4::HEADER_LEN + header_len, packet };
            Some(Piece { body, offset: 0, len: payload_len })
        } else {
            self.device.read.push(packet);
            None
        };
        let connection = &mut self.connections[id as usize];
        connection.input(now, &header, piece, EcnField::NotCapable, &mut self.device);
        // As a shard does, in its batches of 32 packets.
        self.batched = self.batched % 32 + 1;
        if self.batched > 1 && self.batched.is_power_of_two() && connection.owes_acknowledgment() {
            connection.output(now, &mut self.device);
        }
        self.touch(id);
    }

    #[cold]
    fn input_unknown(&mut self, key: FlowKey, header: &tcp::Header, len: u32, now: Instant) {
        let context = Context {
            secret: &self.secret,
            our_mss: self.path.mtu as u16 - 40,
            accept_queue_full: false,
            ecn: EcnField::NotCapable,
        };
        match self.listener.on_segment(now, key, header, len, &context) {
            Verdict::Reply(reply) => {
                let segment = Outgoing {
                    header: reply,
                    payload: [&[], &[]],
                    segment_size: u32::MAX,
                    ecn_capable: false,
                };
                self.device.emit(&segment);
            }
            Verdict::Established(request) => {
                let settings = self.settings.clone();
                let connection = Connection::accept(&request, self.path, settings, now);
                let id = self.add(key, connection);
                self.connections[id as usize].input(
                    now,
                    header,
                    None,
                    EcnField::NotCapable,
                    &mut self.device,
                );
            }
            other => panic!("{other:?} for {header:?}"),
        }
    }

    #[inline]
    fn output(&mut self, now: Instant) {
        while let Some(id) = self.touched.pop() {
            let connection = &mut self.connections[id as usize];
            connection.output(now, &mut self.device);
            // A deadline that moves away is found out when the old one is reached.
            if let Some(deadline) = connection.deadline()
                && self.wheel.deadline_of(id).is_none_or(|scheduled| deadline < scheduled)
            {
                self.wheel.schedule(id, deadline);
            }
        }
    }

    #[inline(always)]
    fn run_timers(&mut self, now: Instant) {
        while let Some(id) = self.wheel.pop_due(now) {
            self.run_timer(id, now);
        }
    }

    #[inline(never)]
    fn run_timer(&mut self, id: u32, now: Instant) {
        let connection = &mut self.connections[id as usize];
        connection.on_timer(now, &mut self.device);
        if let Some(deadline) = connection.deadline() {
            self.wheel.schedule(id, deadline);
        }
    }
}

/// A received packet that the program has not read.
#[derive(Debug)]
struct Body {
    packet: Packet,
    payload_at: usize,
}

impl Body {
    #[inline(always)]
    fn payload(&self, piece: &Piece<Body>) -> &[u8] {
        let start = self.payload_at + piece.offset as usize;
        &self.packet.bytes()[start..start + piece.len as usize]
    }
}

struct Device {
    address: Ipv4Addr,
    peer: Ipv4Addr,
    sent: Queue,
    /// Packets received and done with.
    read: Vec<Packet>,
    pool: Pool,
    checksums: bool,
    /// The IPv4 header of all packets, but for length and checksum.
    prepared: [u8; ipv4::HEADER_LEN],
}

/// What is needed of an IPv4 header.
struct IpFields {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    total_len: usize,
}

impl IpFields {
    #[inline]
    fn read(bytes: &[u8], verify: bool) -> IpFields {
        if verify {
            let ip = ipv4::Header::parse(bytes, bytes.len()).expect("an IPv4 header");
            return IpFields { src: ip.src, dst: ip.dst, total_len: ip.total_len() };
        }
        // As ipv4::Header::parse(), without the sum.
        let header = bytes.first_chunk::<{ ipv4::HEADER_LEN }>().expect("an IPv4 header");
        let (&[length, fragment, protocol, src, dst], _) = header.as_chunks::<4>() else {
            unreachable!("five words");
        };
        let [length, fragment, protocol] = [length, fragment, protocol].map(u32::from_be_bytes);
        assert_eq!(length >> 24, 0x45, "a header without options");
        assert_eq!(fragment & 0x3fff, 0, "no fragment");
        assert_eq!((protocol >> 16) as u8, ipv4::protocol::TCP);
        let total_len = (length & 0xffff) as usize;
        assert!(total_len >= ipv4::HEADER_LEN && total_len <= bytes.len());
        let [src, dst] = [src, dst].map(Ipv4Addr::from);
        IpFields { src, dst, total_len }
    }
}

impl Link<Body> for Device {
    #[inline(always)]
    fn emit(&mut self, segment: &Outgoing<'_>) -> bool {
        let [first, second] = segment.payload;
        let payload_len = first.len() + second.len();
        let header_len = segment.header.header_len();
        let (src, dst) = (self.address, self.peer);
        let mut packet = self.pool.take(ipv4::HEADER_LEN + header_len + payload_len);
        let (ip_bytes, rest) =
            packet.bytes_mut().split_first_chunk_mut().expect("room for the IPv4 header");
        if self.checksums {
            let ip = ipv4::Header::new(src, dst, ipv4::protocol::TCP, header_len + payload_len);
            ip.expect("a packet within the MTU").emit(ip_bytes);
        } else {
            let total_len = (ipv4::HEADER_LEN + header_len + payload_len) as u16;
            *ip_bytes = self.prepared;
            ip_bytes[2..4].copy_from_slice(&total_len.to_be_bytes());
        }
        let (header, payload) = rest.split_at_mut(header_len);
        let (to_first, to_second) = payload.split_at_mut(first.len());
        if self.checksums {
            let sum = copy_and_sum(to_first, first).then(copy_and_sum(to_second, second));
            segment.header.checksummed(src, dst, sum, payload_len).emit(header);
        } else {
            bulk_copy(to_first, first);
            if !second.is_empty() {
                bulk_copy(to_second, second);
            }
            segment.header.emit(header);
        }
        self.sent.push_back(packet);
        true
    }

    #[inline]
    fn release(&mut self, body: Body) {
        self.read.push(body.packet);
    }
}
