//! The engine against smoltcp, in simulated time: either one opens, data goes both ways, with and
//! without losses.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant as Time;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::collections::VecDeque;
use std::time::Duration;

use libvma_engine::tcp::{Path, State};
use libvma_engine::time::Instant;

use crate::host::{End, Host, Losses, OURS, PORT, THEIRS, byte, ethernet, settings};

/// smoltcp's end of the link.
struct Cable {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

struct Received(Vec<u8>);
struct Sending<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut bytes = vec![0; len];
        let result = write(&mut bytes);
        self.0.push_back(bytes);
        result
    }
}

impl Device for Cable {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Time) -> Option<(Received, Sending<'_>)> {
        let packet = self.received.pop_front()?;
        Some((Received(packet), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: Time) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

/// A host that runs smoltcp, and its program: as many bytes as it is told, then close.
struct Smol {
    interface: Interface,
    device: Cable,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    to_write: usize,
    written: usize,
    read: usize,
}

impl Smol {
    fn new(to_write: usize) -> Smol {
        let mut device = Cable { received: VecDeque::new(), sent: VecDeque::new() };
        let mut interface =
            Interface::new(Config::new(HardwareAddress::Ip), &mut device, Time::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::Ipv4(THEIRS), 24)).unwrap();
        });
        let buffer = || SocketBuffer::new(vec![0; 200_000]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_tsval_generator(Some(|| 1));
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Smol { interface, device, sockets, handle, to_write, written: 0, read: 0 }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn run(&mut self, now: Instant) {
        let time = Time::from_micros((now.as_nanos() / 1000) as i64);
        self.interface.poll(time, &mut self.device, &mut self.sockets);
        let (to_write, written) = (self.to_write, self.written);
        let mut read = self.read;
        let socket = self.sockets.get_mut::<Socket>(self.handle);
        if socket.can_send() && written < to_write {
            let most = (to_write - written).min(50_000);
            let data: Vec<u8> = (written..written + most).map(|at| byte(1, at)).collect();
            self.written += socket.send_slice(&data).unwrap_or(0);
        }
        while socket.can_recv() {
            let count = socket
                .recv(|bytes| {
                    for got in &*bytes {
                        assert_eq!(*got, byte(0, read), "byte {read} that smoltcp read");
                        read += 1;
                    }
                    (bytes.len(), bytes.len())
                })
                .unwrap_or(0);
            if count == 0 {
                break;
            }
        }
        self.read = read;
        if self.written == to_write && socket.may_send() {
            socket.close();
        }
        self.interface.poll(time, &mut self.device, &mut self.sockets);
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let time = Time::from_micros((now.as_nanos() / 1000) as i64);
        let at = self.interface.poll_at(time, &self.sockets)?;
        Some(Instant::from_nanos(at.total_micros().max(0) as u64 * 1000))
    }
}

const DELAY: Duration = Duration::from_millis(2);

/// Runs both until nothing is left to do; losses are per mille, each way.
fn exchange(engine_connects: bool, path: Path, bytes: [usize; 2], losses: u32) {
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut host = Host::new(path, settings(), bytes[0], End::ShutsDown);
    host.losses = Losses::new(u64::from(losses) + 5, losses);
    let mut smol = Smol::new(bytes[1]);
    if engine_connects {
        smol.socket().listen(PORT).unwrap();
        host.connect(now, 40_000, PORT);
    } else {
        host.listen(now);
        let handle = smol.handle;
        let socket = smol.sockets.get_mut::<Socket>(handle);
        socket.connect(smol.interface.context(), (IpAddress::Ipv4(OURS), PORT), 40_001).unwrap();
    }
    let end = now.saturating_add(Duration::from_secs(600));
    // Packets on their way, to the engine and to smoltcp.
    let mut ways: [VecDeque<(Instant, Vec<u8>)>; 2] = Default::default();
    loop {
        host.run(now);
        smol.run(now);
        let arrival = now.saturating_add(DELAY);
        ways[0].extend(smol.device.sent.drain(..).map(|packet| (arrival, packet)));
        ways[1].extend(host.sent.drain(..).map(|packet| (arrival, packet)));
        let done = host.is_over() && !smol.socket().is_open();
        if done || now > end {
            break;
        }
        let arrivals = ways.iter().filter_map(|way| way.front().map(|(at, _)| *at));
        let next = arrivals.chain(host.deadline()).chain(smol.deadline(now)).min();
        let Some(next) = next else { break };
        now = next.max(now.saturating_add(Duration::from_micros(10)));
        while ways[0].front().is_some_and(|(at, _)| *at <= now) {
            host.receive(now, &ways[0].pop_front().unwrap().1);
        }
        while ways[1].front().is_some_and(|(at, _)| *at <= now) {
            smol.device.received.push_back(ways[1].pop_front().unwrap().1);
        }
    }
    let what = format!("{:?} {:?} after {now:?}", host.info, smol.socket().state());
    assert_eq!(
        (host.read, smol.read),
        (bytes[1], bytes[0]),
        "what the engine and smoltcp read: {what}"
    );
    assert!(host.saw_end && host.error.is_none(), "{:?}", host.error);
    assert_eq!(host.state(), State::Closed);
    host.check_memory();
}

#[test]
fn smoltcp_listens() {
    exchange(true, ethernet(), [1_000_000, 2_000_000], 0);
    exchange(true, ethernet(), [0, 1], 0);
}

#[test]
fn smoltcp_connects() {
    exchange(false, ethernet(), [2_000_000, 1_000_000], 0);
    exchange(false, ethernet(), [1, 0], 0);
}

#[test]
fn smoltcp_listens_behind_losses() {
    for losses in [1, 10, 50] {
        exchange(true, ethernet(), [300_000, 200_000], losses);
    }
}

#[test]
fn smoltcp_connects_through_losses() {
    for losses in [1, 10, 50] {
        exchange(false, ethernet(), [300_000, 200_000], losses);
    }
}

#[test]
fn smoltcp_gets_super_frames_cut() {
    let path = Path { mtu: 1500, segmentation_limit: 65_000 };
    exchange(true, path, [3_000_000, 0], 0);
    exchange(false, path, [3_000_000, 100_000], 10);
}
