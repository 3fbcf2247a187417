//! Conversations that go on after the transplantation.

use std::process::{Command, Stdio};

use super::taken::{SIOCOUTQ, SIOCOUTQNSD, outgoing};
use super::*;

/// The whole story: data unread, unacknowledged, unsent, and sent by the peer meanwhile.
fn interrupted(wire: &Wire, ours: TcpStream, mut theirs: TcpStream, installed: TcpStream) {
    let mut ours = ours;
    chat(&mut ours, &mut theirs);
    let (heard, unheard) = (text(5, 40_000), text(77, 5_000));
    let said = text(3, 30_000);
    say(&mut theirs, &heard);
    until("all has arrived", || outgoing(theirs.as_raw_fd(), SIOCOUTQ) == 0);
    wire.cut();
    say(&mut ours, &said);
    say(&mut theirs, &unheard);

    let taken = Taken::from(ours, &theirs);
    assert_eq!(taken.unread.len(), heard.len());
    assert_eq!(taken.sent.len() + taken.unsent.len(), said.len());
    assert!(!taken.sent.is_empty());
    let mut ours = installed;
    taken.install(ours.as_raw_fd()).unwrap();
    assert_eq!(kernel_state(&ours), ESTABLISHED);
    assert_eq!(ours.local_addr().unwrap(), taken.local.into());
    assert_eq!(ours.peer_addr().unwrap(), taken.remote.into());
    assert_eq!(ours.take_error().unwrap().map(|error| error.to_string()), None);
    expect(&mut ours, &heard);
    wire.mend();
    probe(ours.as_raw_fd());

    expect(&mut theirs, &said);
    expect(&mut ours, &unheard);
    chat(&mut ours, &mut theirs);
    ours.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut theirs);
    say(&mut theirs, b"bye");
    drop(theirs);
    expect(&mut ours, b"bye");
    expect_end(&mut ours);
    until("closed", || kernel_state(&ours) == CLOSED);
}

#[test]
fn goes_on_with_all_options() {
    with_wire(|wire| {
        let (ours, theirs) = wire.opened();
        interrupted(wire, ours, theirs, fresh());
    });
}

#[test]
fn goes_on_without_timestamps() {
    with_wire(|wire| {
        wire.set("tcp_timestamps", "0");
        let (ours, theirs) = wire.opened();
        interrupted(wire, ours, theirs, fresh());
    });
}

#[test]
fn goes_on_without_selective_acknowledgments() {
    with_wire(|wire| {
        wire.set("tcp_sack", "0");
        let (ours, theirs) = wire.opened();
        interrupted(wire, ours, theirs, fresh());
    });
}

/// The host's own setting is another, as a user-space stack's may be.
#[test]
fn goes_on_without_options_that_the_kernel_would_use() {
    with_wire(|wire| {
        let options = ["tcp_timestamps", "tcp_sack", "tcp_window_scaling"];
        options.iter().for_each(|name| wire.set(name, "0"));
        let (ours, theirs) = wire.opened();
        options.iter().for_each(|name| wire.set(name, "1"));
        interrupted(wire, ours, theirs, fresh());
    });
}

#[test]
fn offers_its_whole_window_without_window_scaling() {
    with_wire(|wire| {
        wire.set("tcp_window_scaling", "0");
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        wire.set("tcp_window_scaling", "1");
        let mut ours = Taken::from(ours, &theirs).installed();
        chat(&mut ours, &mut theirs);
        assert!(window_offered_to(theirs) > 20_000);
    });
}

#[test]
fn uses_the_segment_size_and_the_window_of_before() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        let before = information(&ours).tcpi_snd_mss;
        let taken = Taken::from(ours, &theirs);
        let ours = taken.installed();
        let now = information(&ours);
        assert_eq!((now.tcpi_snd_mss, now.tcpi_options & 7), (before, 7));
        probe(ours.as_raw_fd());
        until("the peer tells its window", || information(&ours).tcpi_last_ack_recv < 10_000);
        assert!(window_offered_to(theirs) >= taken.receive_window);
    });
}

/// SND.WND of a kernel socket.
fn window_offered_to(stream: TcpStream) -> u32 {
    let fd = stream.as_raw_fd();
    shadow::set_int_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, REPAIR_ON);
    let mut window = [0u8; 20];
    shadow::option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &mut window).unwrap();
    u32::from_ne_bytes(window[4..8].try_into().unwrap())
}

#[test]
fn a_listener_has_the_port() {
    with_wire(|wire| {
        let listener = TcpListener::bind((wire::OURS, 0)).unwrap();
        let (ours, theirs) = wire.accepted(&listener);
        interrupted(wire, ours, theirs, fresh());
        let (mut ours, mut theirs) = wire.accepted(&listener);
        chat(&mut ours, &mut theirs);
    });
}

#[test]
fn the_socket_is_bound_already() {
    with_wire(|wire| {
        for address in [wire::OURS, "0.0.0.0"] {
            let (mut ours, mut theirs) = wire.opened();
            chat(&mut ours, &mut theirs);
            let taken = Taken::from(ours, &theirs);
            let port = taken.local.port();
            let mut ours = fresh();
            let to = shadow::to_sockaddr(SocketAddrV4::new(address.parse().unwrap(), port));
            let at = core::ptr::from_ref(&to).cast();
            // SAFETY: `to` is a sockaddr_in of the size given.
            let bound = unsafe { libc::bind(ours.as_raw_fd(), at, size_of_val(&to) as u32) };
            assert_eq!(bound, 0);
            taken.install(ours.as_raw_fd()).unwrap();
            chat(&mut ours, &mut theirs);
        }
    });
}

#[test]
fn the_socket_is_shared_with_another_process() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        let socket = fresh();
        let mut child = Command::new("sh")
            .args(["-c", "read go; echo hello from the child"])
            .stdin(Stdio::piped())
            .stdout(std::os::fd::OwnedFd::from(socket.try_clone().unwrap()))
            .spawn()
            .unwrap();
        let taken = Taken::from(ours, &theirs);
        taken.install(socket.as_raw_fd()).unwrap();
        drop(socket);
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        expect(&mut theirs, b"hello from the child\n");
        expect_end(&mut theirs);
        assert!(child.wait().unwrap().success());
    });
}

/// Both ends installed, so that the numbers can be chosen: everything crosses 2^32.
#[test]
fn sequence_numbers_wrap() {
    with_wire(|wire| {
        let (ours, theirs) = wire.opened();
        let mut one = Taken::from(ours, &theirs);
        let mut other = vanished(wire, theirs);
        one.send_unacknowledged = u32::MAX - 3_000;
        one.receive_next = 10_000;
        one.unread = text(9, 30_000);
        one.sent = text(1, 8_000);
        one.unsent = text(8_001, 1_000);
        other.receive_next = one.send_unacknowledged;
        other.send_unacknowledged = one.receive_next;
        other.timestamps =
            one.timestamps.map(|ours| Timestamps { value: ours.recent, recent: ours.value });
        // Neither kernel shall hear the other's data while it has no socket.
        wire.cut();
        let mut theirs = wire.at_peer(|| other.installed());
        let mut ours = one.installed();
        wire.mend();
        expect(&mut ours, &text(9, 30_000));
        expect(&mut theirs, &text(1, 8_000));
        expect(&mut theirs, &text(8_001, 1_000));
        chat(&mut ours, &mut theirs);
    });
}

/// The state of the peer's end, whose own other end is gone already.
fn vanished(wire: &Wire, theirs: TcpStream) -> Taken {
    wire.at_peer(|| {
        let twin = theirs.try_clone().unwrap();
        Taken::from(theirs, &twin)
    })
}

#[test]
fn a_non_blocking_socket_stays_so_and_keeps_its_options() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        let taken = Taken::from(ours, &theirs);
        let mut ours = fresh();
        let fd = ours.as_raw_fd();
        ours.set_nonblocking(true).unwrap();
        ours.set_nodelay(true).unwrap();
        for (name, value) in
            [(libc::SO_REUSEADDR, 1), (libc::SO_RCVBUF, 20_000), (libc::SO_SNDBUF, 30_000)]
        {
            shadow::set_int_option(fd, libc::SOL_SOCKET, name, value);
        }
        let unfiltered = shadow::option(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, &mut []);
        taken.install(fd).unwrap();
        assert_eq!(ours.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        let option = |name| shadow::int_option(fd, libc::SOL_SOCKET, name).unwrap();
        assert_eq!(option(libc::SO_REUSEADDR), 1);
        assert_eq!(option(libc::SO_RCVBUF), 40_000);
        assert_eq!(option(libc::SO_SNDBUF), 60_000);
        assert_eq!(option(libc::SO_BUF_LOCK), 3);
        assert!(ours.nodelay().unwrap());
        assert_eq!(shadow::option(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, &mut []), unfiltered);
        ours.set_nonblocking(false).unwrap();
        chat(&mut ours, &mut theirs);
    });
}

/// As on a device that still has the peer's segments go elsewhere.
#[test]
fn a_probe_brings_back_lost_acknowledgments() {
    with_wire(|wire| {
        let (ours, mut theirs) = wire.opened();
        let mut taken = Taken::from(ours, &theirs);
        taken.unsent = text(0, 2_000);
        wire.deliver_ours();
        let ours = taken.installed();
        expect(&mut theirs, &text(0, 2_000));
        wire.mend();
        assert_eq!(outgoing(ours.as_raw_fd(), SIOCOUTQ), 2_000);
        probe(ours.as_raw_fd());
        until("acknowledged", || outgoing(ours.as_raw_fd(), SIOCOUTQ) == 0);
        assert_eq!(information(&ours).tcpi_total_retrans, 0);
    });
}

/// The peer drops the probe, and with it the window that the probe offers.
#[test]
fn a_peer_without_a_window_is_told_when_there_is_one() {
    assert_peer_learns_of_window(0);
}

/// What is left of a window is less than its unit, and to the peer as good as none.
#[test]
fn a_peer_whose_window_holds_no_segment_is_told_when_one_does() {
    assert_peer_learns_of_window(100);
}

fn assert_peer_learns_of_window(left: u32) {
    with_wire(move |wire| {
        let (ours, mut theirs) = wire.opened();
        theirs.set_nonblocking(true).unwrap();
        let mut said = 0;
        let is_full = |theirs: &TcpStream| {
            let fd = theirs.as_raw_fd();
            outgoing(fd, SIOCOUTQ) == outgoing(fd, SIOCOUTQNSD)
        };
        while let Ok(len) = theirs.write(&text(said, 16_384)) {
            said += len;
        }
        until("the window is closed", || is_full(&theirs));
        let mut taken = Taken::from(ours, &theirs);
        assert_eq!(taken.receive_window, 0);
        taken.receive_window = left;
        let mut ours = taken.installed();
        probe(ours.as_raw_fd());
        expect(&mut ours, &text(0, said));
        assert_eq!(window_probes(wire), 0, "the peer had to ask for the window");
    });
}

/// How often the peer has asked for a window.
fn window_probes(wire: &Wire) -> u64 {
    let counters =
        wire.at_peer(|| std::fs::read_to_string("/proc/thread-self/net/netstat")).unwrap();
    let of_tcp = |line: &&str| line.starts_with("TcpExt:");
    let lines: Vec<_> = counters.lines().filter(of_tcp).map(str::split_whitespace).collect();
    let [names, values]: [_; 2] = lines.try_into().ok().unwrap();
    let probes = names.zip(values).find(|(name, _)| *name == "TCPWinProbe");
    probes.unwrap().1.parse().unwrap()
}

/// More than the kernel's default buffers hold, in small pieces.
#[test]
fn queues_may_be_larger_than_the_buffers() {
    with_wire(|wire| {
        let (ours, mut theirs) = wire.opened();
        let mut taken = Taken::from(ours, &theirs);
        taken.sent = text(0, 1_500_000);
        taken.unsent = text(1_500_000, 1_500_000);
        taken.unread = text(7, 3_000_000);
        let mut ours = taken.installed();
        expect(&mut ours, &text(7, 3_000_000));
        let writer = std::thread::spawn(move || {
            say(&mut ours, b"and more");
            ours
        });
        expect(&mut theirs, &text(0, 3_000_000));
        expect(&mut theirs, b"and more");
        let mut ours = writer.join().unwrap();
        chat(&mut ours, &mut theirs);
    });
}
