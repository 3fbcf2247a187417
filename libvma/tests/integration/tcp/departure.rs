//! What the peer sees of a process that ends: all its data, and then the end or a reset.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::Signal;

use crate::dual_stack::{of, with_ipv6};
use crate::harness::{Ends, Library, Namespaces, PATIENCE, PYTHON, Puppet, Side, wait_for};

/// How long a peer may wait for what it should learn at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A connection of a process under the library on side A (`c`), which connected or accepted, and its
/// peer, a kernel socket of the test on side B.
fn connection(ends: &Ends, accepts: bool) -> (Puppet, TcpStream) {
    connection_of(Family::Ipv4, ends, accepts)
}

#[derive(Clone, Copy, Debug)]
enum Family {
    Ipv4,
    Ipv6,
}

/// The same over IPv4 or IPv6.
fn connection_of(family: Family, ends: &Ends, accepts: bool) -> (Puppet, TcpStream) {
    let net = &ends.net;
    let (at, name): (fn(Side) -> IpAddr, &str) = match family {
        Family::Ipv4 => (|side| side.ip().into(), "AF_INET"),
        Family::Ipv6 => {
            with_ipv6(net);
            (|side| of(side).into(), "AF_INET6")
        }
    };
    let watch = ends.watch();
    let mut program = Puppet::start(ends.server(PYTHON));
    let peer = if accepts {
        program.run(&format!("l = create_server(('{}', 7000), family={name})", at(Side::A)));
        // Connections come to the library from the first wait for them on.
        program.run("select.select([l], [], [], 0)");
        let peer = net.within(Side::B, || TcpStream::connect((at(Side::A), 7000))).unwrap();
        program.run("c, _ = l.accept()");
        peer
    } else {
        let listener = net.within(Side::B, || TcpListener::bind((at(Side::B), 7000))).unwrap();
        program.run(&format!("c = create_connection(('{}', 7000), 15)", at(Side::B)));
        listener.accept().unwrap().0
    };
    program.run("c.settimeout(15)");
    watch.still(0);
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (program, peer)
}

/// A process that writes 10 MiB and ends by `ends_by` at once; the peer starts late.
#[track_caller]
fn everything_arrives(family: Family, ends_by: &str, accepts: bool) {
    let ends = Ends::new(Library::Server);
    let (mut program, mut peer) = connection_of(family, &ends, accepts);
    program.run("data = pattern(65536, 3) * 160");
    program.begin(&format!("c.sendall(data); {ends_by}"));
    std::thread::sleep(Duration::from_millis(50));
    let mut got = Vec::new();
    let outcome = peer.read_to_end(&mut got);
    let block: Vec<u8> = (0..65536u32).map(|i| (i * 7 + 3 * 13 + (i >> 8) * 31) as u8).collect();
    let same = got.chunks(65536).all(|chunk| chunk == &block[..chunk.len()]);
    assert!(
        outcome.is_ok() && got.len() == 10 << 20 && same,
        "{family:?}, {ends_by} (accepts: {accepts}): {} bytes of {} arrived (as sent: {same}), then {outcome:?}\n{}",
        got.len(),
        10 << 20,
        program.stderr()
    );
}

/// A kernel socket that keeps sending learns by an error that nobody is there; returns when.
#[track_caller]
fn learns_by_sending(peer: &mut TcpStream) -> Duration {
    let begin = Instant::now();
    let error = wait_for("the peer's send fails", || peer.write_all(b"anybody?").err());
    assert!(
        matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        "the peer's send fails by {error:?}"
    );
    begin.elapsed()
}

#[track_caller]
fn nobody_attached(net: &Namespaces) {
    wait_for("nothing is attached", || (!net.is_steered(Side::A)).then_some(()));
}

// covers: LIM-36, API-33
#[test]
fn data_written_before_the_end_of_the_process_arrives() {
    for end in
        ["sys.exit(0)", "os._exit(0)", "c.close(); os._exit(0)", "os.execv('/bin/true', ['true'])"]
    {
        for accepts in [true, false] {
            everything_arrives(Family::Ipv4, end, accepts);
        }
        everything_arrives(Family::Ipv6, end, true);
    }
}

/// The program closes with more to send than the peer has room for, and ends before the peer reads: nothing but the kernel can
/// send the rest.
// covers: LIM-36, API-33
#[test]
fn data_of_a_closed_connection_arrives_after_the_process() {
    for (family, accepts) in
        [(Family::Ipv4, true), (Family::Ipv4, false), (Family::Ipv6, true), (Family::Ipv6, false)]
    {
        let ends = Ends::new(Library::Server);
        let (mut program, mut peer) = connection_of(family, &ends, accepts);
        set_socket_recv_buffer_size(&peer, 1 << 15).unwrap();
        program.run("c.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 21)");
        program.begin("c.sendall(bytes(1 << 20)); c.close(); os._exit(0)");
        nobody_attached(&ends.net);
        let mut got = Vec::new();
        let outcome = peer.read_to_end(&mut got);
        assert!(
            outcome.is_ok() && got.len() == 1 << 20,
            "{family:?}, accepts: {accepts}: {} bytes, then {outcome:?}\n{}",
            got.len(),
            program.stderr()
        );
    }
}

// covers: LIM-36, API-33, THR-05
#[test]
fn data_written_before_close_arrives_while_the_process_lives_on() {
    everything_arrives(Family::Ipv4, "c.close(); time.sleep(30)", true);
    everything_arrives(Family::Ipv4, "c.shutdown(SHUT_WR); time.sleep(30)", false);
    everything_arrives(Family::Ipv6, "c.close(); time.sleep(30)", true);
}

// covers: LIM-36
#[test]
fn a_last_word_arrives_a_hundred_times() {
    let ends = Ends::new(Library::Server);
    let net = &ends.net;
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
    // The library begins in each child, at its first socket.
    let script = "
import os, socket
for n in range(100):
    if os.fork() == 0:
        c = socket.create_connection(('10.99.0.2', 7000))
        c.sendall(b'word %d' % n)
        if n % 2: c.close()
        os._exit(0)
    os.wait()";
    let watch = ends.watch();
    let program = ends.server(PYTHON).arg("-c").arg(script).start_shown();
    for n in 0..100 {
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        peer.read_to_string(&mut text).unwrap_or_else(|e| panic!("word {n}: {e}"));
        assert_eq!(text, format!("word {n}"));
    }
    watch.still(100);
    drop(program);
}

// covers: FIX-29
#[test]
fn the_peer_of_a_killed_process_gets_a_reset_when_it_sends() {
    for signal in [Signal::KILL, Signal::TERM] {
        for accepts in [true, false] {
            let ends = Ends::new(Library::Server);
            let (mut program, mut peer) = connection(&ends, accepts);
            program.run("c.sendall(b'hello')");
            let mut buffer = [0; 5];
            peer.read_exact(&mut buffer).unwrap();
            program.signal(signal);
            nobody_attached(&ends.net);
            let took = learns_by_sending(&mut peer);
            assert!(took < AT_ONCE, "{signal:?}, accepts: {accepts}: after {took:?}");
        }
    }
}

// covers: FIX-29
#[test]
fn the_peer_of_a_process_that_exits_learns_it_at_once() {
    for end in ["sys.exit(0)", "os._exit(1)", "c.close()"] {
        for accepts in [true, false] {
            let ends = Ends::new(Library::Server);
            let (mut program, mut peer) = connection(&ends, accepts);
            program.begin(end);
            let begin = Instant::now();
            let end_of_stream = peer.read(&mut [0; 10]);
            let took = begin.elapsed();
            assert!(
                matches!(end_of_stream, Ok(0)) && took < AT_ONCE,
                "{end}, accepts: {accepts}: {end_of_stream:?} after {took:?}"
            );
        }
    }
}

/// The last acknowledgment of the connection is lost, and the process has ended when the peer repeats
/// its FIN: that is acknowledged as if the process lived, and not answered by a reset.
// covers: LIM-36, FIX-29
#[test]
fn the_peer_of_a_process_that_has_ended_gets_its_last_acknowledgment() {
    for end in ["sys.exit(0)", "os._exit(0)", "c.close(); os._exit(0)"] {
        let ends = Ends::new(Library::Server);
        let (mut program, mut peer) = connection(&ends, false);
        program.run("c.shutdown(SHUT_WR)");
        assert_eq!(peer.read(&mut [0; 10]).unwrap(), 0);
        // Frames for another address are not for the peer's kernel: it is deaf, but can send.
        ends.net.ip(Side::B, "link set veth-b address 02:00:00:99:00:77");
        let known =
            format!("neigh replace 10.99.0.1 lladdr {} nud permanent dev veth-b", Side::A.mac());
        ends.net.ip(Side::B, &known);
        peer.shutdown(Shutdown::Write).unwrap();
        program.run("c.recv(1)");
        program.begin(end);
        nobody_attached(&ends.net);
        ends.net.ip(Side::B, &format!("link set veth-b address {}", Side::B.mac()));
        ends.net.ip(Side::B, &known);
        // In LAST-ACK (9) until its FIN is acknowledged, or reset.
        wait_for("the peer's connection has ended", || {
            let text = ends.net.read_proc(Side::B, "tcp");
            (!text.lines().any(|line| line.split_whitespace().nth(3) == Some("09"))).then_some(())
        });
        let error = peer.take_error().unwrap();
        assert!(error.is_none(), "{end}: {error:?}");
    }
}

// covers: FIX-29
#[test]
fn a_process_that_ends_with_unread_data_resets() {
    for end in ["sys.exit(0)", "os._exit(1)", "c.close()"] {
        let ends = Ends::new(Library::Server);
        let (mut program, mut peer) = connection(&ends, true);
        peer.write_all(b"never read").unwrap();
        program.run("select.select([c], [], [], 15)");
        program.begin(end);
        let outcome = peer.read(&mut [0; 10]);
        let kind = outcome.as_ref().map_err(std::io::Error::kind);
        assert_eq!(kind.err(), Some(ErrorKind::ConnectionReset), "{end}: {outcome:?}");
    }
}

// covers: FIX-29, API-06
#[test]
fn a_port_is_refused_after_its_listener_was_killed_and_free_again() {
    let ends = Ends::new(Library::Server);
    for _ in 0..3 {
        let (mut program, _peer) = connection(&ends, true);
        program.kill();
        nobody_attached(&ends.net);
        let again = ends.net.within(Side::B, || TcpStream::connect(Side::A.at(7000)));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}
