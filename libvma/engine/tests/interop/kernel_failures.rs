//! The engine against the kernel where connections fail: refusals, resets, silence, keep-alive.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use libvma_engine::tcp::{Error, Millis, Settings, State};

use crate::host::{End, Host, Losses, PORT, THEIRS, ethernet, settings};
use crate::kernel::{PATIENCE, kernel_stream};
use crate::tun::{Done, enter, in_namespace};

/// A connection that the engine opens; both ends and `done` are given to the kernel's program.
fn with_engine(
    settings: Settings,
    bytes: usize,
    end: End,
    program: impl Fn(TcpStream) + Sync + Send,
    done: impl Fn(&Host, &Done) -> bool + Sync + Send,
) -> Host {
    in_namespace(|| {
        let mut tun = enter(1500);
        let mut host = Host::new(ethernet(), settings, bytes, end);
        let listener = TcpListener::bind((THEIRS, PORT)).unwrap();
        host.connect(tun.now(), 40_000, PORT);
        let finished = Done::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                program(kernel_stream(true, Some(listener)));
                finished.set();
            });
            tun.run(&mut host, PATIENCE, |host| done(host, &finished));
        });
        host.check_memory();
        host
    })
}

fn set_option(stream: &TcpStream, level: i32, name: i32, value: i32) {
    let (pointer, len) = ((&raw const value).cast(), size_of::<i32>() as u32);
    // SAFETY: the pointer is to an integer of that size.
    let result = unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, pointer, len) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// SO_LINGER with no time: close resets.
fn linger_zero(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (pointer, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as u32);
    // SAFETY: the pointer is to a `struct linger`.
    let result = unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, pointer, len)
    };
    assert_eq!(result, 0);
}

#[test]
fn the_kernel_refuses() {
    in_namespace(|| {
        let mut tun = enter(1500);
        let mut host = Host::new(ethernet(), settings(), 0, End::Stays);
        host.connect(tun.now(), 40_000, PORT);
        tun.run(&mut host, PATIENCE, Host::is_over);
        assert_eq!(host.error, Some(Error::Refused));
    });
}

#[test]
fn the_engine_refuses() {
    in_namespace(|| {
        let mut tun = enter(1500);
        let mut host = Host::new(ethernet(), settings(), 0, End::Stays);
        let done = Done::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let result = TcpStream::connect((crate::host::OURS, PORT));
                assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionRefused);
                done.set();
            });
            tun.run(&mut host, PATIENCE, |_| done.is_set());
        });
    });
}

#[test]
fn the_kernel_resets() {
    let program = |stream: TcpStream| {
        (&stream).read_exact(&mut [0; 1000]).unwrap();
        linger_zero(&stream);
    };
    let host = with_engine(settings(), 1000, End::Stays, program, |host, _| host.is_over());
    assert_eq!(host.error, Some(Error::Reset));
}

#[test]
fn the_engine_resets() {
    let program = |mut stream: TcpStream| {
        let error = loop {
            match stream.read(&mut [0; 4000]) {
                Ok(0) => panic!("an end, not a reset"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    };
    let done = |host: &Host, done: &Done| host.is_over() && done.is_set();
    let host = with_engine(settings(), 1000, End::Aborts, program, done);
    assert_eq!(host.error, None);
}

/// The kernel's keep-alive finds the engine alive, for longer than it would wait for a dead one.
#[test]
fn keep_alive_is_answered() {
    let program = |mut stream: TcpStream| {
        set_option(&stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
        set_option(&stream, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 1);
        set_option(&stream, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1);
        set_option(&stream, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 1);
        std::thread::sleep(Duration::from_millis(3500));
        stream.write_all(b"").unwrap();
        drop(stream);
    };
    let host = with_engine(settings(), 0, End::ClosesAfterPeer, program, |host, _| host.is_over());
    assert_eq!((host.error, host.saw_end), (None, true));
}

#[test]
fn the_kernel_answers_keep_alive() {
    let program = |stream: TcpStream| {
        std::thread::sleep(Duration::from_millis(2500));
        drop(stream);
    };
    // The kernel answers such segments twice a second at most (tcp_invalid_ratelimit).
    let settings = Settings {
        keep_alive: true,
        keep_idle: Millis::from_millis(550),
        keep_interval: Millis::from_millis(550),
        keep_count: 1,
        ..settings()
    };
    let host = with_engine(settings, 0, End::ClosesAfterPeer, program, |host, _| host.is_over());
    assert_eq!((host.error, host.saw_end), (None, true));
    let probes = host.info.unwrap().counters.segments_out;
    assert!(probes >= 5, "{probes} segments");
}

/// The cable is cut: keep-alive notices, and data does.
#[test]
fn a_dead_peer_is_noticed() {
    for (bytes, settings) in [
        (
            0,
            Settings {
                keep_alive: true,
                keep_idle: Millis::from_millis(200),
                keep_interval: Millis::from_millis(100),
                keep_count: 3,
                ..settings()
            },
        ),
        (1000, Settings { user_timeout: Some(Duration::from_millis(800)), ..settings() }),
    ] {
        in_namespace(|| {
            let mut tun = enter(1500);
            let mut host = Host::new(ethernet(), settings, 0, End::Stays);
            let listener = TcpListener::bind((THEIRS, PORT)).unwrap();
            host.connect(tun.now(), 40_000, PORT);
            std::thread::scope(|scope| {
                let accepted = scope.spawn(|| kernel_stream(true, Some(listener)));
                tun.run(&mut host, PATIENCE, |host| host.state() == State::Established);
                // The handshake's third segment.
                let now = tun.now().saturating_add(Duration::from_millis(50));
                let then = std::time::Instant::now() + Duration::from_millis(50);
                tun.run(&mut host, PATIENCE, |_| std::time::Instant::now() > then);
                let _stream = accepted.join().unwrap();
                host.losses = Losses::new(1, 1000);
                host.to_write = bytes;
                tun.run(&mut host, PATIENCE, Host::is_over);
                let took = tun.now().saturating_duration_since(now);
                assert!(took < Duration::from_millis(1500), "{took:?}");
            });
            assert_eq!(host.error, Some(Error::TimedOut));
        });
    }
}

/// Half of all packets are lost until the connection is there.
#[test]
fn a_lost_handshake_is_repeated() {
    in_namespace(|| {
        let mut tun = enter(1500);
        let mut host = Host::new(ethernet(), settings(), 10, End::ShutsDown);
        host.losses = Losses::new(4, 500);
        let listener = TcpListener::bind((THEIRS, PORT)).unwrap();
        host.connect(tun.now(), 40_000, PORT);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut got = Vec::new();
                kernel_stream(true, Some(listener)).read_to_end(&mut got).unwrap();
                assert_eq!(got.len(), 10);
            });
            tun.run(&mut host, PATIENCE, |host| host.state() != State::SynSent);
            host.losses = Losses::new(1, 0);
            tun.run(&mut host, PATIENCE, Host::is_over);
        });
        assert_eq!((host.error, host.saw_end), (None, true));
    });
}
