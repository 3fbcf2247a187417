//! Receive callbacks, over an interface and within the host.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use super::program;
use crate::harness::{Namespaces, Program, Running, Side};

fn filter<'a>(net: &'a Namespaces, words: &str) -> Program<'a> {
    program(net, "filter", include_str!("filter.c")).args(words).with_library()
}

// covers: EXT-07, EXT-09, EXT-10, EXT-11, EXT-12, EXT-13, EXT-20, EXT-21
#[test]
fn a_callback_judges_datagrams_in_the_programs_thread() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let mut running = filter(&net, "datagrams").start();
    running.wait_for_text("first\n");
    let watch = net.watch(Side::A);
    let send = |text: &str| peer.send_to(text.as_bytes(), Side::A.at(5000)).unwrap();
    for text in ["d1", "r2", "h3", "s4", "r5"] {
        send(text);
    }
    let mut buffer = [0; 64];
    let len = peer.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"from inside");
    for (step, texts) in [
        ("poll\n", &["d"][..]),
        ("select\n", &["d"]),
        ("epoll\n", &["d"]),
        ("edge\n", &["r6"]),
        ("unregister\n", &["u7", "d8"]),
        ("outlive\n", &["h9", "r9"]),
    ] {
        running.wait_for_text(step);
        texts.iter().for_each(|text| {
            send(text);
        });
    }
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
    watch.still();
}

// covers: EXT-07, EXT-11
#[test]
fn a_callback_judges_datagrams_within_the_host() {
    let net = Namespaces::new();
    let mut running = filter(&net, "local").start();
    running.wait_for_text("linked?\n");
    let mut sender = net.puppet(Side::A);
    sender.run("s = udp(('127.0.0.1', 0)); to = ('127.0.0.1', 5000)");
    crate::harness::wait_for("a link stands between the processes", || {
        sender.run("s.sendto(b'w', to)");
        running.printed().contains("linked\n").then_some(())
    });
    for text in ["d1", "r2", "h3", "d4", "end"] {
        sender.run(&format!("s.sendto(b'{text}', to)"));
    }
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
}

// covers: EXT-07, EXT-09, EXT-10, EXT-11
#[test]
fn a_callback_judges_bytes_of_a_stream() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let running = filter(&net, "stream").start();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    judge_a_stream(running, move |text| stream.write_all(text.as_bytes()).unwrap(), drop);
}

/// By a pipe, whose addresses the callback cannot be told.
#[test]
fn a_callback_judges_bytes_over_the_loopback_address_of_ipv6() {
    let net = Namespaces::new();
    let mut peer = net.puppet(Side::A);
    peer.run("l = socket(AF_INET6); l.bind(('::1', 7000)); l.listen(); l.settimeout(15)");
    let running = filter(&net, "stream6").start();
    peer.run("c, _ = l.accept(); c.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)");
    let watch = net.watch_tcp(Side::A);
    let send = |text: &str| match text {
        "" => drop(peer.run("c.close()")),
        text => drop(peer.run(&format!("c.sendall(b'{text}')"))),
    };
    judge_a_stream(running, send, |mut send| send(""));
    // Both ends are this side's.
    watch.still(2);
}

/// `send` sends to the program; `end` ends that.
#[track_caller]
fn judge_a_stream<S: FnMut(&str)>(mut running: Running, mut send: S, end: impl FnOnce(S)) {
    for (step, texts) in [
        ("poll\n", &["d"][..]),
        ("select\n", &["d"]),
        ("epoll\n", &["d"]),
        ("edge\n", &["r1"]),
        ("hold\n", &["h2"]),
        ("drop and receive\n", &["d", "r3"]),
        ("wait\n", &["r4"]),
        ("behind\n", &["d5"]),
    ] {
        running.wait_for_text(step);
        for text in texts {
            send(text);
            // Each is to be a packet of its own.
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    running.wait_for_text("end\n");
    end(send);
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
}

#[test]
fn a_reader_in_the_middle_of_its_call_waits_for_the_verdict_of_another_thread() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let peer = net.socket(Side::B);
    let mut running = filter(&net, "shared").start();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    running.wait_for_text("part\n");
    stream.write_all(b"r1").unwrap();
    running.wait_for_text("aside\n");
    peer.send_to(b"x", Side::A.at(5000)).unwrap();
    running.wait_for_text("judged\n");
    stream.write_all(b"d2").unwrap();
    running.wait_for_text("rest\n");
    stream.write_all(b"r3").unwrap();
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
}

// covers: EXT-10, EXT-14
#[test]
fn several_threads_judge_in_order_and_lose_nothing() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let mut running = filter(&net, "threads").start();
    running.wait_for_text("first\n");
    let watch = net.watch(Side::A);
    let mut buffer = [0; 4];
    for number in 0..20_000i32 {
        peer.send_to(&number.to_ne_bytes(), Side::A.at(5000)).unwrap();
        // A receive buffer holds some 250.
        if number % 100 == 99 {
            let answered = peer.recv(&mut buffer);
            if answered.is_err() {
                // It tells what it misses.
                panic!("no answer to {number}: {:?}", running.wait());
            }
            assert_eq!(i32::from_ne_bytes(buffer), number);
        }
    }
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
    watch.still();
}
