//! TCP by completions: connections, their bytes and their ends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use super::{is_done, program};
use crate::harness::{Namespaces, PATIENCE, Program, Side, wait_for};

fn streams<'a>(net: &'a Namespaces, words: &str) -> Program<'a> {
    program(net, "xtreme_streams", include_str!("streams.c")).args(words)
}

fn listener(net: &Namespaces) -> TcpListener {
    net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap())
}

/// The next connection. A program that is over makes none.
#[track_caller]
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let (stream, _) = wait_for("it connects", || listener.accept().ok());
    stream.set_nonblocking(false).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn connected(net: &Namespaces, side: Side) -> TcpStream {
    let stream = net.within(side, || TcpStream::connect(Side::A.at(5000)).unwrap());
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends so many bytes there and gets them back.
#[track_caller]
fn round(stream: &mut TcpStream, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 13 + len) as u8).collect();
    let mut answer = vec![0; len];
    stream.write_all(&bytes).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert!(answer == bytes, "{len} bytes");
}

// covers: EXT-31, EXT-35, EXT-36, EXT-37, EXT-39, EXT-40, EXT-47
#[test]
fn connections_are_accepted_and_served_by_completions() {
    let net = Namespaces::new();
    let mut running = streams(&net, &format!("server 10.99.0.1 8 {}", Side::A.device())).start();
    running.wait_for_text("ready\n");
    net.wait_for_listener(Side::A, 5000);
    let watch = net.watch_tcp(Side::A);
    let mut streams: Vec<TcpStream> = (0..8).map(|_| connected(&net, Side::B)).collect();
    for len in [1, 100, 1448, 3000, 40_000] {
        streams.iter_mut().for_each(|stream| round(stream, len));
    }
    watch.still(0);
    drop(streams);
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("8 accepted\ndone\n"), "{}", output.stdout);
}

// covers: EXT-40
#[test]
fn connections_within_the_host_are_served_by_completions() {
    let net = Namespaces::new();
    let mut running = streams(&net, "server 10.99.0.1 4").start();
    running.wait_for_text("ready\n");
    // A plain client is the kernel's, one under the library goes by shared memory.
    let mut plain = connected(&net, Side::A);
    let mut client = net.puppet(Side::A);
    for number in 0..3 {
        client.run(&format!("c{number} = socket(); c{number}.settimeout(10)"));
        client.run(&format!("c{number}.connect(('10.99.0.1', 5000))"));
    }
    for len in [1, 2000, 30_000] {
        round(&mut plain, len);
        for number in 0..3 {
            client.run(&format!("c{number}.sendall(b'y' * {len})"));
            let got = client.run(&format!("c{number}.recv({len}, MSG_WAITALL) == b'y' * {len}"));
            assert_eq!(got, "True");
        }
    }
    drop(plain);
    // From the other clients the kernel hears nothing.
    let watch = net.watch_tcp(Side::A);
    for number in 0..3 {
        client.run(&format!("c{number}.sendall(b'z' * 30000)"));
        assert_eq!(client.run(&format!("len(c{number}.recv(30000, MSG_WAITALL))")), "30000");
    }
    watch.still(1);
    (0..3).for_each(|number| drop(client.run(&format!("c{number}.close()"))));
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("4 accepted\ndone\n"), "{}", output.stdout);
}

/// Answers a client until it says that it waits for the end.
fn echo(listener: &TcpListener) -> TcpStream {
    let mut stream = accept(listener);
    let mut bytes = [0; 64];
    for _ in 0..100 {
        let len = stream.read(&mut bytes).unwrap();
        stream.write_all(&bytes[..len]).unwrap();
    }
    stream
}

// covers: EXT-50, EXT-31
#[test]
fn a_client_connects_without_blocking_and_sees_the_end() {
    let net = Namespaces::new();
    let listener = listener(&net);
    let watch = net.watch_tcp(Side::A);
    let mut running = streams(&net, "client 10.99.0.2").start();
    let stream = echo(&listener);
    running.wait_for_text("end\n");
    stream.shutdown(Shutdown::Write).unwrap();
    is_done(running);
    watch.still(1);
}

// covers: EXT-31, EXT-50
#[test]
fn failed_and_reset_connections_are_told_and_leave_their_error() {
    let net = Namespaces::new();
    let listener = listener(&net);
    let mut running = streams(&net, "refused").start();
    running.wait_for_text("reset\n");
    let stream = accept(&listener);
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    is_done(running);
}

// covers: EXT-44
#[test]
fn a_window_closes_while_the_program_keeps_all_and_opens_when_it_frees() {
    let net = Namespaces::new();
    let mut running = streams(&net, "hoard").start();
    running.wait_for_text("ready\n");
    net.wait_for_listener(Side::A, 5000);
    let bytes: Vec<u8> = (0..64usize << 20).map(|at| (at % 251) as u8).collect();
    let watch = net.watch_tcp(Side::A);
    let mut stream = connected(&net, Side::B);
    let sender = std::thread::spawn(move || stream.write_all(&bytes));
    running.wait_for_text("stopped\n");
    // Its window is closed: the kernel's buffers are far smaller than what is left.
    assert!(!sender.is_finished());
    is_done(running);
    sender.join().unwrap().unwrap();
    watch.still(1);
}

// covers: EXT-41
#[test]
fn one_completion_tells_of_a_connection_and_its_first_bytes() {
    let net = Namespaces::new();
    let listener = listener(&net);
    let watch = net.watch_tcp(Side::A);
    let running = streams(&net, "together").start();
    let mut stream = accept(&listener);
    stream.write_all(b"welcome").unwrap();
    is_done(running);
    watch.still(1);
}

#[test]
fn a_full_connection_tells_when_there_is_room() {
    let net = Namespaces::new();
    let mut running = streams(&net, "full").start();
    running.wait_for_text("ready\n");
    net.wait_for_listener(Side::A, 5000);
    let watch = net.watch_tcp(Side::A);
    let mut stream = connected(&net, Side::B);
    let mut got = 0;
    for round in 1..=3 {
        let sent = wait_for("it tells how much it has sent", || {
            let printed = running.printed();
            let sent = printed.lines().filter_map(|line| line.strip_prefix("sent ")).nth(round - 1);
            sent.and_then(|sent| sent.parse::<usize>().ok())
        });
        let mut bytes = vec![0; sent - got];
        stream.read_exact(&mut bytes).unwrap();
        got = sent;
        // After the third the program ends, and the kernel has the rest.
        if round < 3 {
            watch.still(0);
        }
    }
    is_done(running);
}

// covers: EXT-49, LIM-58
#[test]
fn connections_that_become_the_kernels_stay_in_the_ring() {
    let net = Namespaces::new();
    let mut running = streams(&net, "kernels").start();
    running.wait_for_text("ready\n");
    net.wait_for_listener(Side::A, 5000);
    let mut first = connected(&net, Side::B);
    first.write_all(b"ours").unwrap();
    running.wait_for_text("leaves\n");
    first.write_all(b"kernels").unwrap();
    running.wait_for_text("again\n");
    first.shutdown(Shutdown::Write).unwrap();
    let mut second = connected(&net, Side::B);
    second.write_all(b"again").unwrap();
    is_done(running);
}
