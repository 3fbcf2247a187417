//! The engine against the kernel of this machine: whole transfers, either one opening and either
//! one closing first, with and without losses, with options on and off.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use libvma_engine::tcp::congestion::Algorithm;
use libvma_engine::tcp::{Path, Settings};

use crate::host::{End, Host, Losses, OURS, PORT, THEIRS, ethernet, pattern, settings};
use crate::tun::{enter, in_namespace, set_mtu};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// One transfer.
#[derive(Clone)]
pub struct Meeting {
    pub engine_connects: bool,
    pub path: Path,
    pub settings: Settings,
    /// What the engine writes, and what the kernel does.
    pub bytes: [usize; 2],
    /// Per mille, each way.
    pub losses: u32,
    pub kernel_ends_first: bool,
    /// The kernel's program reads only so often.
    pub read_pause: Duration,
}

impl Default for Meeting {
    fn default() -> Meeting {
        Meeting {
            engine_connects: true,
            path: ethernet(),
            settings: settings(),
            bytes: [500_000, 700_000],
            losses: 0,
            kernel_ends_first: false,
            read_pause: Duration::ZERO,
        }
    }
}

/// A stream of the kernel, whichever side opens it.
pub fn kernel_stream(engine_connects: bool, listener: Option<TcpListener>) -> TcpStream {
    let stream = if engine_connects {
        listener.expect("a listener").accept().expect("a connection").0
    } else {
        TcpStream::connect((OURS, PORT)).expect("the engine listens")
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

impl Meeting {
    /// Runs it, and `with` in the middle of it on the kernel's side.
    pub fn run(self, with: impl Fn(&TcpStream) + Sync + Send) -> Host {
        in_namespace(|| {
            let mut tun = enter(self.path.mtu);
            let end = if self.kernel_ends_first { End::ClosesAfterPeer } else { End::ShutsDown };
            let mut host = Host::new(self.path, self.settings.clone(), self.bytes[0], end);
            host.losses = Losses::new(11, self.losses);
            let mut listener = None;
            if self.engine_connects {
                listener = Some(TcpListener::bind((THEIRS, PORT)).unwrap());
                host.connect(tun.now(), 40_000, PORT);
            } else {
                host.listen(tun.now());
            }
            std::thread::scope(|scope| {
                scope.spawn(|| self.kernel_program(listener, &with));
                tun.run(&mut host, PATIENCE, Host::is_over);
            });
            assert_eq!(host.read, self.bytes[1], "what the engine read");
            assert!(host.saw_end);
            assert_eq!(host.error, None);
            host.check_memory();
            host
        })
    }

    fn kernel_program(&self, listener: Option<TcpListener>, with: &(impl Fn(&TcpStream) + Sync)) {
        let stream = kernel_stream(self.engine_connects, listener);
        with(&stream);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&stream).write_all(&pattern(1, self.bytes[1])).expect("the engine reads");
                if self.kernel_ends_first {
                    stream.shutdown(Shutdown::Write).unwrap();
                }
            });
            let expected = pattern(0, self.bytes[0]);
            let mut got = Vec::new();
            let mut buffer = vec![0; 20_000];
            loop {
                let count = (&stream).read(&mut buffer).expect("the engine writes");
                got.extend_from_slice(&buffer[..count]);
                if count == 0 {
                    break;
                }
                std::thread::sleep(self.read_pause);
            }
            assert_eq!(got.len(), expected.len());
            assert!(got == expected, "what the kernel read is not what the engine wrote");
        });
    }
}

#[test]
fn engine_connects_and_ends_first() {
    Meeting::default().run(|_| {});
}

#[test]
fn engine_connects_and_the_kernel_ends_first() {
    Meeting { kernel_ends_first: true, ..Meeting::default() }.run(|_| {});
}

#[test]
fn engine_listens_and_ends_first() {
    Meeting { engine_connects: false, ..Meeting::default() }.run(|_| {});
}

#[test]
fn engine_listens_and_the_kernel_ends_first() {
    Meeting { engine_connects: false, kernel_ends_first: true, ..Meeting::default() }.run(|_| {});
}

#[test]
fn bulk_both_ways_at_once() {
    for engine_connects in [true, false] {
        let host =
            Meeting { engine_connects, bytes: [30_000_000, 30_000_000], ..Meeting::default() }
                .run(|_| {});
        let info = host.info.unwrap();
        assert!(info.sack && info.timestamps && info.window_scaling, "{info:?}");
        assert!(info.receive_limit > 200_000, "the receive buffer did not grow: {info:?}");
        assert_eq!(info.counters.timeouts, 0, "{info:?}");
    }
}

#[test]
fn bulk_through_losses_with_sack() {
    for (losses, bytes) in [(1, 8_000_000), (10, 4_000_000), (50, 500_000)] {
        for engine_connects in [true, false] {
            let bytes = [bytes, bytes];
            let host = Meeting { engine_connects, bytes, losses, ..Meeting::default() }.run(|_| {});
            let info = host.info.unwrap();
            assert!(host.losses.lost > 0 && info.counters.retransmissions > 0);
            println!("{losses} per mille: {:?}", info.counters);
        }
    }
}

#[test]
fn bulk_through_losses_without_options() {
    let settings = Settings { sack: false, timestamps: false, window_scaling: false, ..settings() };
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        let settings = Settings { congestion: algorithm, ..settings.clone() };
        let bytes = [500_000, 500_000];
        Meeting { settings, bytes, losses: 10, ..Meeting::default() }.run(|_| {});
    }
}

#[test]
fn super_frames_and_a_large_mtu() {
    for mtu in [1500, 9000, 65_535] {
        let path = Path { mtu, segmentation_limit: 65_000 };
        let bytes = [20_000_000, 20_000_000];
        Meeting { path, bytes, ..Meeting::default() }.run(|_| {});
    }
}

#[test]
fn every_option_on_and_off() {
    for bits in 0..8 {
        let on = |bit: u32| bits & 1 << bit != 0;
        let settings = Settings {
            sack: on(0),
            timestamps: on(1),
            window_scaling: on(2),
            nodelay: on(0),
            ..settings()
        };
        let engine_connects = bits % 3 == 0;
        let host =
            Meeting { settings, engine_connects, losses: 3, ..Meeting::default() }.run(|_| {});
        let info = host.info.unwrap();
        assert_eq!((info.sack, info.timestamps, info.window_scaling), (on(0), on(1), on(2)));
    }
}

#[test]
fn the_interface_becomes_smaller() {
    Meeting { bytes: [1_000_000, 5_000_000], ..Meeting::default() }.run(|_| {
        std::thread::sleep(Duration::from_millis(5));
        set_mtu(700);
    });
}

#[test]
fn urgent_bytes_pass_both_ways() {
    in_namespace(|| {
        let mut tun = enter(1500);
        let mut host = Host::new(ethernet(), settings(), 1000, End::ShutsDown);
        host.urgent = true;
        let listener = TcpListener::bind((THEIRS, PORT)).unwrap();
        host.connect(tun.now(), 40_000, PORT);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stream = kernel_stream(true, Some(listener));
                let fd = stream.as_raw_fd();
                // SAFETY: one byte to read, of a descriptor that lives.
                let sent = unsafe { libc::send(fd, c"!".as_ptr().cast(), 1, libc::MSG_OOB) };
                assert_eq!(sent, 1);
                let mut got = vec![0; 999];
                (&stream).read_exact(&mut got).expect("bytes before the urgent one");
                assert!(got == pattern(0, 999));
                let mut urgent = 0u8;
                let mut poll = libc::pollfd { fd, events: libc::POLLPRI, revents: 0 };
                // SAFETY: one descriptor.
                let ready = unsafe { libc::poll(&raw mut poll, 1, 5000) };
                assert_eq!(ready, 1, "the urgent byte is announced");
                // SAFETY: one byte to write.
                let count = unsafe { libc::recv(fd, (&raw mut urgent).cast(), 1, libc::MSG_OOB) };
                assert_eq!((count, urgent), (1, pattern(0, 1000)[999]));
                assert_eq!((&stream).read(&mut [0]).expect("the end"), 0);
            });
            tun.run(&mut host, PATIENCE, Host::is_over);
        });
        assert_eq!(host.urgent_bytes, b"!");
        host.check_memory();
    });
}

#[test]
fn a_slow_reader_closes_the_window() {
    let read_pause = Duration::from_millis(4);
    let host = Meeting { bytes: [3_000_000, 0], read_pause, ..Meeting::default() }.run(|_| {});
    let info = host.info.unwrap();
    assert_eq!(info.counters.timeouts, 0, "{info:?}");
}

#[test]
fn ecn_is_agreed_upon() {
    let settings = Settings { ecn: true, ..settings() };
    let host = Meeting { settings, ..Meeting::default() }.run(|_| {});
    assert!(host.info.unwrap().ecn, "the kernel's default grants ECN to who asks");
}
