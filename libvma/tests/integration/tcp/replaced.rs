//! Connections over an interface that is deleted and made anew, as when a container's cable is replaced.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::harness::{Namespaces, PATIENCE, Puppet, Side, wait_for};

/// Flows follow the program that steers them.
const SETTLING: Duration = Duration::from_millis(50);

/// Both ways, so that each end has the other's acknowledgment.
fn echo(program: &mut Puppet, name: &str, peer: &mut TcpStream) {
    program.run(&format!("{name}.sendall(b'question')"));
    let mut got = [0; 8];
    peer.read_exact(&mut got).expect("what the program sent");
    assert_eq!(&got, b"question");
    peer.write_all(b"answer").expect("the peer sends");
    assert_eq!(program.run(&format!("exactly({name}, 6)")), "b'answer'");
}

const EXACTLY: &str = "\
def exactly(s, count):
    got = b''
    while len(got) < count:
        piece = s.recv(count - len(got))
        if not piece: break
        got += piece
    return got";

/// A connection that the program made and one that it accepted, used and idle.
fn connected(net: &Namespaces) -> (Puppet, [TcpStream; 2]) {
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let mut program = net.puppet(Side::A);
    program.run(EXACTLY);
    program.run("import socket, select");
    program.run("l = socket.create_server(('10.99.0.1', 5000))");
    program.run(&format!("c = socket.create_connection(('10.99.0.2', {port}))"));
    let (made, _) = listener.accept().unwrap();
    let accepted = net.within(Side::B, || TcpStream::connect(Side::A.at(5000)).unwrap());
    program.run("a, _ = l.accept()");
    let mut peers = [made, accepted];
    for (name, peer) in ["c", "a"].into_iter().zip(&mut peers) {
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        echo(&mut program, name, peer);
    }
    (program, peers)
}

// covers: LIM-25
#[test]
fn connections_outlive_their_interface() {
    let net = Namespaces::with_arp();
    let watch = net.watch_tcp(Side::A);
    let (mut program, mut peers) = connected(&net);
    watch.still(2);
    for round in 0..3 {
        net.replace_cable();
        for (name, peer) in ["c", "a"].into_iter().zip(&mut peers) {
            // Who speaks first is the peer in turn.
            if round % 2 == 0 {
                peer.write_all(b"ahead").expect("the peer sends");
                assert_eq!(program.run(&format!("exactly({name}, 5)")), "b'ahead'");
            }
            echo(&mut program, name, peer);
        }
        // The listener is steered on the new interface, and they stay what they are.
        wait_for("the new interface is offloaded", || net.is_steered(Side::A).then_some(()));
        std::thread::sleep(SETTLING);
        for (name, peer) in ["c", "a"].into_iter().zip(&mut peers) {
            echo(&mut program, name, peer);
        }
    }
    program.run("for s in (c, a): s.close()");
    for peer in &mut peers {
        let mut rest = Vec::new();
        assert_eq!(peer.read_to_end(&mut rest).expect("an orderly end"), 0);
    }
    program.finish();
}

// covers: LIM-25
#[test]
fn what_was_under_way_when_the_interface_went_arrives() {
    let net = Namespaces::with_arp();
    let (mut program, mut peers) = connected(&net);
    program.run("for s in (c, a): s.setblocking(False)");
    program.run("import selectors");
    program.run("e = select.epoll(); e.register(c, select.EPOLLIN); e.register(a, select.EPOLLIN)");
    net.ip(Side::A, "link set veth-a down");
    // Sent and not acknowledged, in both directions.
    program.run("for s in (c, a): s.send(b'mine' * 5000)");
    for peer in &mut peers {
        peer.write_all(&b"theirs".repeat(1000)).unwrap();
    }
    net.replace_cable();
    for (name, peer) in ["c", "a"].into_iter().zip(&mut peers) {
        let mut got = vec![0; 20_000];
        peer.read_exact(&mut got).expect("what the program sent");
        assert_eq!(got, b"mine".repeat(5000));
        // The registration goes along.
        program.run(&format!("n = {name}.fileno()"));
        wait_for("epoll tells", || {
            (program.run("n in [fd for fd, _ in e.poll(1)]") == "True").then_some(())
        });
        program.run(&format!("{name}.setblocking(True)"));
        assert_eq!(program.run(&format!("exactly({name}, 6000) == b'theirs' * 1000")), "True");
    }
    program.finish();
}
