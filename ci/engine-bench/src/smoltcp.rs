//! smoltcp: an interface for each endpoint, its device being an end of the link in memory.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, Ipv4Address};

use crate::packets::{Packet, Pool, Queue, deliver};
use crate::{Contestant, Cycle, MESSAGE_LEN, Setup};

const CLIENT: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const SERVER: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
const PORT: u16 = 7;

/// Buffers of a connection that never carries anything.
const IDLE_BUFFER: u32 = 64;

pub struct Smoltcp {
    client: Endpoint,
    server: Endpoint,
    now: Instant,
}

impl Contestant for Smoltcp {
    fn open(setup: &Setup) -> Smoltcp {
        let mut pair = Smoltcp {
            client: Endpoint::new(setup, CLIENT),
            server: Endpoint::new(setup, SERVER),
            now: Instant::ZERO,
        };
        for index in 0..setup.idle {
            pair.connect(10_000 + index as u16, IDLE_BUFFER);
        }
        (pair.client.active, pair.server.active) = pair.connect(9_999, setup.window);
        pair
    }

    fn round_trip(&mut self, message: &[u8; MESSAGE_LEN]) -> [u8; MESSAGE_LEN] {
        let mut buffer = [0; MESSAGE_LEN];
        self.pass_time();
        self.client.send(message);
        self.run_to_server();
        assert_eq!(self.server.recv(&mut buffer), MESSAGE_LEN);
        self.server.send(&buffer);
        self.run_to_client();
        assert_eq!(self.client.recv(&mut buffer), MESSAGE_LEN);
        buffer
    }

    fn bulk(&mut self, source: &[u8], sink: &mut [u8], total: u64) {
        let mut sent = Cycle::new(source.len(), total);
        let mut received = Cycle::new(sink.len(), total);
        while !received.is_done() {
            self.pass_time();
            loop {
                let count = self.client.send(&source[sent.next(usize::MAX)]);
                sent.advance(count);
                if count == 0 {
                    break;
                }
            }
            self.run_to_server();
            loop {
                let count = self.server.recv(&mut sink[received.next(usize::MAX)]);
                received.advance(count);
                if count == 0 {
                    break;
                }
            }
            self.run_to_client();
        }
    }
}

impl Smoltcp {
    fn pass_time(&mut self) {
        self.now += Duration::from_micros(1);
    }

    /// What the client has to send goes to the server, whose answers stay on the link.
    fn run_to_server(&mut self) {
        self.client.poll(self.now);
        deliver(&mut self.client.device.sent, &mut self.server.device.received);
        self.server.poll(self.now);
        self.client.device.pool.give_back(&mut self.server.device.read);
    }

    fn run_to_client(&mut self) {
        self.server.poll(self.now);
        deliver(&mut self.server.device.sent, &mut self.client.device.received);
        self.client.poll(self.now);
        self.server.device.pool.give_back(&mut self.client.device.read);
    }

    fn connect(&mut self, port: u16, buffer: u32) -> (SocketHandle, SocketHandle) {
        let server = self.server.add_socket(buffer);
        self.server.sockets.get_mut::<Socket>(server).listen(PORT).expect("a socket that listens");
        let client = self.client.add_socket(buffer);
        self.client
            .sockets
            .get_mut::<Socket>(client)
            .connect(self.client.interface.context(), (IpAddress::from(SERVER), PORT), port)
            .expect("a socket that connects");
        self.run_to_server();
        self.run_to_client();
        self.run_to_server();
        for (endpoint, handle) in [(&self.client, client), (&self.server, server)] {
            assert_eq!(endpoint.sockets.get::<Socket>(handle).state(), State::Established);
        }
        (client, server)
    }
}

struct Endpoint {
    interface: Interface,
    device: End,
    sockets: SocketSet<'static>,
    active: SocketHandle,
    timestamps: bool,
}

impl Endpoint {
    fn new(setup: &Setup, address: Ipv4Address) -> Endpoint {
        let mut device = End {
            received: Queue::default(),
            read: Vec::new(),
            sent: Queue::default(),
            pool: Pool::new(usize::from(setup.mtu)),
            mtu: usize::from(setup.mtu),
            checksums: setup.checksums,
        };
        let config = Config::new(HardwareAddress::Ip);
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address.into(), 24)).expect("room for one address");
        });
        let sockets = SocketSet::new(Vec::new());
        let (active, timestamps) = (SocketHandle::default(), setup.timestamps);
        Endpoint { interface, device, sockets, active, timestamps }
    }

    fn add_socket(&mut self, buffer: u32) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; buffer as usize]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        if self.timestamps {
            socket.set_tsval_generator(Some(|| 1));
        }
        self.sockets.add(socket)
    }

    fn poll(&mut self, now: Instant) {
        self.interface.poll(now, &mut self.device, &mut self.sockets);
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        self.sockets.get_mut::<Socket>(self.active).send_slice(bytes).expect("an open connection")
    }

    fn recv(&mut self, bytes: &mut [u8]) -> usize {
        self.sockets.get_mut::<Socket>(self.active).recv_slice(bytes).expect("an open connection")
    }
}

/// An end of the link.
struct End {
    received: Queue,
    /// Packets received and done with.
    read: Vec<Packet>,
    sent: Queue,
    pool: Pool,
    mtu: usize,
    checksums: bool,
}

impl Device for End {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received<'_>, Room<'_>)> {
        let packet = self.received.pop_front()?;
        let room = Room { sent: &mut self.sent, pool: &mut self.pool };
        Some((Received { packet, read: &mut self.read }, room))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Room<'_>> {
        Some(Room { sent: &mut self.sent, pool: &mut self.pool })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        if !self.checksums {
            capabilities.checksum = ChecksumCapabilities::ignored();
        }
        capabilities
    }
}

struct Received<'a> {
    packet: Packet,
    read: &'a mut Vec<Packet>,
}

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        let result = read(self.packet.bytes());
        self.read.push(self.packet);
        result
    }
}

struct Room<'a> {
    sent: &'a mut Queue,
    pool: &'a mut Pool,
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = self.pool.take(len);
        let result = write(packet.bytes_mut());
        self.sent.push_back(packet);
        result
    }
}
