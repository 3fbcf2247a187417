//! Connections that are taken out of a kernel socket, and installed into the same one or another.

use super::taken::{SIOCOUTQ, SIOCOUTQNSD, outgoing};
use super::*;
use crate::sys::repair::{Origin, Taken as Captured, take};

/// Takes the connection of a socket, or fails.
fn captured(stream: &TcpStream, origin: Origin) -> Captured {
    let taken = take(stream.as_raw_fd(), origin, |_| true).unwrap().expect("it was ready");
    assert!(stream.take_error().unwrap().is_none());
    assert!(stream.peer_addr().is_err());
    assert_eq!(kernel_state(stream), CLOSED);
    taken
}

fn installed_into(stream: &TcpStream, taken: &Captured) -> Result<(), Error> {
    let (sent, unsent) = taken.outgoing.split_at(taken.sent);
    install(
        stream.as_raw_fd(),
        &Snapshot {
            local: taken.local,
            remote: taken.remote,
            state: taken.state,
            send_unacknowledged: taken.send_unacknowledged,
            unacknowledged: [sent, &[]],
            unsent: [unsent, &[]],
            send_window: taken.send_window,
            largest_send_window: taken.largest_send_window,
            receive_next: taken.receive_next,
            receive_window: taken.receive_window,
            unread: &[&taken.unread],
            segment_size: taken.segment_size,
            window_scale: taken.window_scale,
            sack: taken.sack,
            timestamps: taken.timestamps,
            failed: false,
            is_held: false,
        },
    )
}

/// Data unread, unacknowledged, unsent, and sent by the peer meanwhile.
fn interrupted(wire: &Wire, mut ours: TcpStream, mut theirs: TcpStream, origin: Origin) {
    chat(&mut ours, &mut theirs);
    let (heard, unheard) = (text(5, 40_000), text(77, 5_000));
    let said = text(3, 30_000);
    let before = information(&ours);
    let (local, remote) = (ours.local_addr().unwrap(), ours.peer_addr().unwrap());
    let taken = loop {
        say(&mut theirs, &heard);
        until("all has arrived", || outgoing(theirs.as_raw_fd(), SIOCOUTQ) == 0);
        wire.cut();
        say(&mut ours, &said);
        say(&mut theirs, &unheard);
        match take(ours.as_raw_fd(), origin, |_| true) {
            Ok(taken) => break taken.expect("it was ready"),
            // On a busy machine the retransmission timer was faster.
            Err(error) => assert_eq!(error.call, "retransmissions"),
        }
        wire.mend();
        expect(&mut ours, &heard);
        expect(&mut ours, &unheard);
        expect(&mut theirs, &said);
    };
    assert!(ours.take_error().unwrap().is_none() && ours.peer_addr().is_err());
    assert_eq!(
        (taken.local.to_string(), taken.remote.to_string()),
        (local.to_string(), remote.to_string())
    );
    assert_eq!(taken.state, State::Established);
    assert!(taken.unread == heard && taken.outgoing == said);
    assert!(taken.sent > 0 && taken.sent <= said.len());
    assert_eq!(taken.timestamps.is_some(), before.tcpi_options & 1 != 0);
    assert_eq!(taken.sack, before.tcpi_options & 2 != 0);
    assert_eq!(taken.window_scale.is_some(), before.tcpi_options & 4 != 0);
    assert!(taken.measured.smoothed_rtt.is_some() && taken.measured.congestion_window > 10_000);
    assert!(taken.counted.bytes_received >= 250_000, "{:?}", taken.counted);
    assert!(taken.receive_window > 0 && taken.send_window > 0);
    match origin {
        Origin::Connected => assert_eq!(ours.local_addr().unwrap(), local),
        Origin::Accepted => assert_eq!(ours.local_addr().unwrap().port(), 0),
    }
    installed_into(&ours, &taken).unwrap();
    expect(&mut ours, &heard);
    wire.mend();
    probe(ours.as_raw_fd());
    expect(&mut theirs, &said);
    expect(&mut ours, &unheard);
    chat(&mut ours, &mut theirs);
    ours.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut theirs);
    drop(theirs);
    expect_end(&mut ours);
    until("closed", || kernel_state(&ours) == CLOSED);
}

fn both_ways(options: &[&str]) {
    let options: Vec<String> = options.iter().map(|name| name.to_string()).collect();
    with_wire(move |wire| {
        options.iter().for_each(|name| wire.set(name, "0"));
        let (ours, theirs) = wire.opened();
        interrupted(wire, ours, theirs, Origin::Connected);
        for address in [wire::OURS, "0.0.0.0"] {
            let listener = TcpListener::bind((address, 4711)).unwrap();
            let to = SocketAddrV4::new(wire::OURS.parse().unwrap(), 4711);
            let theirs = wire.at_peer(|| impatient(TcpStream::connect(to).unwrap()));
            let ours = impatient(listener.accept().unwrap().0);
            interrupted(wire, ours, theirs, Origin::Accepted);
        }
    });
}

#[test]
fn with_all_options() {
    both_ways(&[]);
}

#[test]
fn without_timestamps() {
    both_ways(&["tcp_timestamps"]);
}

#[test]
fn without_selective_acknowledgments() {
    both_ways(&["tcp_sack"]);
}

#[test]
fn without_window_scaling() {
    both_ways(&["tcp_window_scaling"]);
}

#[test]
fn without_any_option() {
    both_ways(&["tcp_timestamps", "tcp_sack", "tcp_window_scaling"]);
}

/// The windows and numbers of one side are those of the other.
#[test]
fn both_ends_agree() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        until("acknowledged", || outgoing(ours.as_raw_fd(), SIOCOUTQ) == 0);
        until("acknowledged", || outgoing(theirs.as_raw_fd(), SIOCOUTQ) == 0);
        let one = captured(&ours, Origin::Connected);
        let other = wire.at_peer(|| captured(&theirs, Origin::Accepted));
        assert_eq!((one.local, one.remote), (other.remote, other.local));
        assert_eq!(one.send_unacknowledged, other.receive_next);
        assert_eq!(one.receive_next, other.send_unacknowledged);
        assert_eq!(one.send_window, other.receive_window);
        assert_eq!(one.receive_window, other.send_window);
        let swapped = |scale: WindowScale| (scale.receive, scale.send);
        assert_eq!(
            one.window_scale.map(|scale| (scale.send, scale.receive)),
            other.window_scale.map(swapped)
        );
        assert_eq!(one.segment_size, other.segment_size);
    });
}

#[test]
fn the_peer_has_closed() {
    with_wire(|wire| {
        for unread in [0, 20_000] {
            let (mut ours, mut theirs) = wire.opened();
            say(&mut ours, &text(0, 1000));
            expect(&mut theirs, &text(0, 1000));
            say(&mut theirs, &text(0, unread));
            theirs.shutdown(Shutdown::Write).unwrap();
            until("FIN", || kernel_state(&ours) == CLOSE_WAIT);
            let taken = captured(&ours, Origin::Connected);
            assert_eq!(taken.state, State::CloseWait);
            assert!(taken.unread == text(0, unread) && !taken.reading_ended);
            installed_into(&ours, &taken).unwrap();
            expect(&mut ours, &text(0, unread));
            expect_end(&mut ours);
            say(&mut ours, &text(9, 100_000));
            drop(ours);
            expect(&mut theirs, &text(9, 100_000));
            expect_end(&mut theirs);
        }
    });
}

/// The peer does not read: its window is closed, and more waits than it takes.
#[test]
fn the_window_of_the_peer_is_closed() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        shadow::set_int_option(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 200_000);
        ours.set_nonblocking(true).unwrap();
        let words = text(0, 3_000_000);
        let mut said = 0;
        until("the window closes", || {
            if let Ok(more) = (&ours).write(&words[said..]) {
                said += more;
                return false;
            }
            let unsent = outgoing(ours.as_raw_fd(), SIOCOUTQNSD);
            unsent > 0 && outgoing(ours.as_raw_fd(), SIOCOUTQ) == unsent
        });
        let taken = captured(&ours, Origin::Connected);
        assert_eq!(taken.sent, 0);
        assert!(said > 100_000 && words[said - taken.outgoing.len()..said] == taken.outgoing);
        installed_into(&ours, &taken).unwrap();
        ours.set_nonblocking(false).unwrap();
        expect(&mut theirs, &words[..said]);
        chat(&mut ours, &mut theirs);
    });
}

#[test]
fn who_is_not_ready_keeps_the_connection_in_the_kernel() {
    with_wire(|wire| {
        for origin in [Origin::Connected, Origin::Accepted] {
            let (mut ours, mut theirs) = wire.opened();
            let fd = ours.as_raw_fd();
            shadow::set_int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
            chat(&mut ours, &mut theirs);
            say(&mut theirs, &text(5, 40_000));
            until("all has arrived", || outgoing(theirs.as_raw_fd(), SIOCOUTQ) == 0);
            wire.cut();
            say(&mut ours, &text(3, 30_000));
            let before = information(&ours);
            let mut seen = 0;
            let result = take(fd, origin, |taken| {
                seen = taken.outgoing.len();
                false
            });
            assert!(matches!(result, Ok(None)), "{result:?}");
            assert_eq!(seen, 30_000);
            wire.mend();
            assert_eq!(shadow::int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR), Some(1));
            assert_eq!(shadow::int_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR), Some(0));
            assert!(!shadow::has_filter(fd));
            assert_eq!(information(&ours).tcpi_snd_cwnd, before.tcpi_snd_cwnd);
            expect(&mut ours, &text(5, 40_000));
            expect(&mut theirs, &text(3, 30_000));
            chat(&mut ours, &mut theirs);
        }
    });
}

/// The segment that arrives while the caller prepares is lost as on the wire, and comes again.
#[test]
fn what_arrives_meanwhile_comes_again() {
    with_wire(|wire| {
        for ready in [false, true] {
            let (mut ours, mut theirs) = wire.opened();
            chat(&mut ours, &mut theirs);
            let taken = take(ours.as_raw_fd(), Origin::Connected, |taken| {
                say(&mut theirs, &text(1, 50_000));
                assert!(taken.unread.is_empty());
                ready
            });
            if let Some(taken) = taken.unwrap() {
                installed_into(&ours, &taken).unwrap();
            }
            expect(&mut ours, &text(1, 50_000));
            chat(&mut ours, &mut theirs);
        }
    });
}

/// With a filter of the program's, nothing holds segments back.
#[test]
fn a_change_meanwhile_is_noticed() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        let fd = ours.as_raw_fd();
        attach_filter(&ours);
        let result = take(fd, Origin::Connected, |_| {
            say(&mut theirs, b"hello");
            until("it has arrived", || outgoing(theirs.as_raw_fd(), SIOCOUTQ) == 0);
            true
        });
        assert_eq!(result.unwrap_err(), Error { call: "a change", errno: libc::EAGAIN });
        expect(&mut ours, b"hello");
        chat(&mut ours, &mut theirs);
        let taken = captured(&ours, Origin::Connected);
        installed_into(&ours, &taken).unwrap();
        chat(&mut ours, &mut theirs);
    });
}

#[test]
fn options_stay() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        let fd = ours.as_raw_fd();
        let options = [
            (libc::SOL_SOCKET, libc::SO_REUSEADDR, 1),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 3),
            (libc::SOL_SOCKET, libc::SO_MARK, 9),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 77),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 7),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 5),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 12_345),
            (libc::IPPROTO_TCP, libc::TCP_LINGER2, 11),
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 4),
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 4096),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
            (libc::IPPROTO_IP, libc::IP_TTL, 33),
            // Which IP_TOS sets, too.
            (libc::SOL_SOCKET, libc::SO_PRIORITY, 5),
        ];
        for (level, name, value) in options {
            shadow::set_int_option(fd, level, name, value);
        }
        let other = [
            (libc::SOL_SOCKET, libc::SO_SNDBUF),
            (libc::SOL_SOCKET, libc::SO_RCVBUF),
            (libc::SOL_SOCKET, libc::SO_BUF_LOCK),
            (libc::SOL_SOCKET, libc::SO_REUSEPORT),
            (libc::IPPROTO_TCP, libc::TCP_CORK),
        ];
        let others = other.map(|(level, name)| shadow::int_option(fd, level, name));
        let taken = captured(&ours, Origin::Connected);
        for (level, name, value) in options {
            assert_eq!(shadow::int_option(fd, level, name), Some(value), "{level} {name}");
        }
        assert_eq!(other.map(|(level, name)| shadow::int_option(fd, level, name)), others);
        installed_into(&ours, &taken).unwrap();
        chat(&mut ours, &mut theirs);
    });
}

/// The port that the kernel chose in connect() is the socket's own now: the kernel would share it with
/// connections to other peers.
#[test]
fn nobody_else_gets_the_port() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        let local = ours.local_addr().unwrap();
        let port = local.port();
        let others =
            [(); 2].map(|()| wire.at_peer(|| TcpListener::bind((wire::THEIRS, 0)).unwrap()));
        wire.set("ip_local_port_range", &format!("{port} {port}"));
        let connect = |to: usize| TcpStream::connect(others[to].local_addr().unwrap());
        let _sharing = connect(0).expect("the kernel shares the port");
        let taken = take(ours.as_raw_fd(), Origin::Connected, |_| {
            assert!(TcpListener::bind(local).is_err());
            true
        });
        let taken = taken.unwrap().unwrap();
        assert_eq!(ours.local_addr().unwrap(), local);
        let error = connect(1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL));
        assert!(TcpListener::bind(local).is_err());
        installed_into(&ours, &taken).unwrap();
        chat(&mut ours, &mut theirs);
    });
}

#[test]
fn a_port_that_the_program_bound_stays_bound_as_it_was() {
    with_wire(|wire| {
        let listener = wire.at_peer(|| TcpListener::bind((wire::THEIRS, 0)).unwrap());
        for (address, port) in [(wire::OURS, 5001), ("0.0.0.0", 5002)] {
            let ours = fresh();
            let local = SocketAddrV4::new(address.parse().unwrap(), port);
            let target = Target { fd: ours.as_raw_fd(), unfiltered: true, segment_size: 0 };
            target.bind(local).unwrap();
            let to = listener.local_addr().unwrap().to_string().parse().unwrap();
            target.connect_to(to).unwrap();
            let (mut ours, mut theirs) = (ours, impatient(listener.accept().unwrap().0));
            chat(&mut ours, &mut theirs);
            let taken = captured(&ours, Origin::Connected);
            assert_eq!(ours.local_addr().unwrap().to_string(), local.to_string());
            installed_into(&ours, &taken).unwrap();
            chat(&mut ours, &mut theirs);
        }
    });
}

#[test]
fn a_reader_that_wants_no_more_is_told_of() {
    with_wire(|wire| {
        let (ours, mut theirs) = wire.opened();
        say(&mut theirs, b"unread");
        until("it has arrived", || outgoing(theirs.as_raw_fd(), SIOCOUTQ) == 0);
        ours.shutdown(Shutdown::Read).unwrap();
        let taken = captured(&ours, Origin::Connected);
        assert!(taken.reading_ended && taken.state == State::Established);
        assert_eq!(taken.unread, b"unread");
    });
}

fn refusal(stream: &TcpStream) -> Error {
    let result = take(stream.as_raw_fd(), Origin::Connected, |_| panic!("it is not to be taken"));
    result.unwrap_err()
}

fn urge(stream: &TcpStream, bytes: &[u8]) {
    let (fd, at) = (stream.as_raw_fd(), bytes.as_ptr().cast());
    // SAFETY: `bytes` is readable for its length.
    let sent = unsafe { libc::send(fd, at, bytes.len(), libc::MSG_OOB) };
    assert_eq!(sent, bytes.len() as isize);
}

#[test]
fn urgent_data_is_refused_until_it_is_passed() {
    with_wire(|wire| {
        for inline in [0, 1] {
            let (mut ours, mut theirs) = wire.opened();
            let fd = ours.as_raw_fd();
            shadow::set_int_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline);
            say(&mut theirs, b"before");
            urge(&theirs, b"x");
            say(&mut theirs, b"behind");
            until("it has arrived", || outgoing(theirs.as_raw_fd(), SIOCOUTQ) == 0);
            let urgent = Error { call: "urgent data", errno: libc::EAGAIN };
            assert_eq!(refusal(&ours), urgent);
            if inline == 0 {
                let mut byte = [0u8];
                // SAFETY: `byte` is writable for its length.
                let got = unsafe { libc::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_OOB) };
                assert_eq!((got, &byte), (1, b"x"));
                // The mark is still ahead.
                assert_eq!(refusal(&ours), urgent);
            }
            let inlined = shadow::int_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE);
            assert_eq!(inlined, Some(inline));
            expect(&mut ours, b"before");
            assert_eq!(refusal(&ours), urgent);
            expect(&mut ours, if inline == 1 { b"xbe" } else { b"beh" });
            let taken = captured(&ours, Origin::Connected);
            installed_into(&ours, &taken).unwrap();
            expect(&mut ours, if inline == 1 { b"hind" } else { b"ind" });
            chat(&mut ours, &mut theirs);
        }
    });
}

#[test]
fn other_states_are_refused() {
    with_wire(|wire| {
        let unconnected = fresh();
        assert_eq!(refusal(&unconnected).errno, libc::ENOTCONN);
        let (mut ours, mut theirs) = wire.opened();
        ours.shutdown(Shutdown::Write).unwrap();
        assert_eq!(refusal(&ours), Error { call: "state", errno: libc::ENOTCONN });
        expect_end(&mut theirs);
        say(&mut theirs, b"and?");
        expect(&mut ours, b"and?");
        theirs.shutdown(Shutdown::Write).unwrap();
        expect_end(&mut ours);
    });
}

#[test]
fn retransmissions_are_refused() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        wire.cut();
        say(&mut ours, b"hello?");
        until("sent again", || information(&ours).tcpi_retransmits > 0);
        assert_eq!(refusal(&ours), Error { call: "retransmissions", errno: libc::EAGAIN });
        wire.mend();
        expect(&mut theirs, b"hello?");
        chat(&mut ours, &mut theirs);
        captured(&ours, Origin::Connected);
    });
}

#[test]
fn other_protocols_on_top_are_refused() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        let fd = ours.as_raw_fd();
        let peek_off = libc::SO_PEEK_OFF;
        shadow::set_int_option(fd, libc::SOL_SOCKET, peek_off, 0);
        if shadow::int_option(fd, libc::SOL_SOCKET, peek_off) == Some(0) {
            assert_eq!(refusal(&ours).call, "SO_PEEK_OFF");
            shadow::set_int_option(fd, libc::SOL_SOCKET, peek_off, -1);
        }
        // Not every kernel has it.
        let name = *b"tls";
        let target = Target { fd, unfiltered: true, segment_size: 0 };
        if target.set("TCP_ULP", libc::IPPROTO_TCP, libc::TCP_ULP, &name).is_ok() {
            assert_eq!(refusal(&ours).call, "TCP_ULP");
        }
        chat(&mut ours, &mut theirs);
    });
}

#[test]
fn without_the_capability_nothing_changes() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.permitted.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        sets.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        assert_eq!(refusal(&ours), Error { call: "TCP_REPAIR", errno: libc::EPERM });
        assert!(!shadow::has_filter(ours.as_raw_fd()));
        chat(&mut ours, &mut theirs);
    });
}
