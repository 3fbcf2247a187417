//! UDP by completions, on every way that a datagram may come.

use super::{is_done, program};
use crate::harness::{Hook, Namespaces, Program, Running, Side};

fn datagrams<'a>(net: &'a Namespaces, words: &str) -> Program<'a> {
    program(net, "xtreme_datagrams", include_str!("datagrams.c")).args(words)
}

/// Has an echo answer datagrams of many lengths.
#[track_caller]
fn echo(net: &Namespaces, running: Running) {
    let peer = net.socket(Side::B);
    let watch = net.watch(Side::A);
    let mut answer = vec![0; 65_536];
    let mut sent = 0;
    for size in [0, 1, 64, 1472, 1473, 2016, 2017, 9000, 65_507].into_iter().cycle().take(90) {
        let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + sent) as u8).collect();
        peer.send_to(&bytes, Side::A.at(5000)).unwrap();
        let (len, from) = peer.recv_from(&mut answer).unwrap();
        assert_eq!(from, Side::A.at(5000).into());
        assert!(answer[..len] == bytes, "{size} bytes");
        sent += 1;
    }
    peer.send_to(b"last", Side::A.at(5000)).unwrap();
    peer.recv(&mut answer).unwrap();
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
    watch.check(&output.traffic, sent + 1, sent + 1);
}

// covers: EXT-30, EXT-31, EXT-32, EXT-33, EXT-34, EXT-35, EXT-36, EXT-38, EXT-39, EXT-42, EXT-43
#[test]
fn datagrams_come_as_completions() {
    for (mode, hook) in
        [("auto", Hook::Tc), ("native", Hook::NativeXdp), ("generic", Hook::GenericXdp)]
    {
        let net = Namespaces::new();
        let mut running = datagrams(&net, "echo 10.99.0.1").env("VMA_XDP_MODE", mode).start();
        running.wait_for_text("ready\n");
        assert_eq!(net.steering(Side::A), Some(hook));
        echo(&net, running);
    }
}

// covers: EXT-38
#[test]
fn datagrams_within_the_host_come_as_completions() {
    let net = Namespaces::new();
    let mut running = datagrams(&net, "echo 10.99.0.1").start();
    running.wait_for_text("ready\n");
    let mut client = net.puppet(Side::A);
    client.run("s = udp(('10.99.0.1', 6000)); s.settimeout(10)");
    let round =
        |text: &str| format!("[s.sendto({text}, ('10.99.0.1', 5000)), s.recv(65536) == {text}][1]");
    let by_kernel = |client: &mut crate::harness::Puppet| {
        let watch = net.watch(Side::A);
        assert_eq!(client.run(&round("b'there'")), "True");
        watch.moved().0
    };
    // The first datagrams go by the kernel, until the processes have found each other.
    crate::harness::wait_for("both ways go past the kernel", || {
        (by_kernel(&mut client) == 0).then_some(())
    });
    let watch = net.watch(Side::A);
    for size in [0, 1, 1472, 5000] {
        assert_eq!(client.run(&round(&format!("b'x' * {size}"))), "True");
    }
    assert_eq!(client.run(&round("b'last'")), "True");
    watch.still();
    is_done(running);
}

/// Lines of the program, and the text that is sent then to which port.
type Step<'a> = (&'a str, &'a [(&'a [u8], u16)]);

/// Sends these when the program says so.
#[track_caller]
fn steps(net: &Namespaces, mut running: Running, steps: &[Step<'_>]) -> Running {
    let peer = net.socket(Side::B);
    for (step, texts) in steps {
        running.wait_for_text(&format!("{step}\n"));
        for (text, port) in *texts {
            peer.send_to(text, Side::A.at(*port)).unwrap();
        }
    }
    running
}

// covers: EXT-35, EXT-39, EXT-44, EXT-45, EXT-46
#[test]
fn buffers_are_the_programs_until_their_last_reference_is_gone() {
    let net = Namespaces::new();
    let watch = net.watch(Side::A);
    let long: Vec<u8> = (0..60_000).map(|at| (at % 251) as u8).collect();
    let running = datagrams(&net, "buffers").start();
    let running = steps(
        &net,
        running,
        &[
            ("one", &[(b"one", 5000)]),
            ("two", &[(b"two", 5001), (b"three", 5001)]),
            ("long", &[(&long, 5000)]),
            ("empty", &[(b"", 5000)]),
            ("kept", &[(b"kept", 5000)]),
            ("again", &[(b"again", 5000)]),
        ],
    );
    is_done(running);
    watch.still();
}

// covers: EXT-49, LIM-58
#[test]
fn completions_and_ordinary_calls_share_a_socket() {
    let net = Namespaces::new();
    let running = datagrams(&net, "mixed").start();
    let running =
        steps(&net, running, &[("first", &[(b"first", 5000)]), ("recv", &[(b"recv", 5000)])]);
    let running =
        steps(&net, running, &[("kernels", &[(b"kernels", 5000)]), ("epoll", &[(b"epoll", 5000)])]);
    is_done(running);
}

// covers: LIM-59
#[test]
fn a_client_needs_no_address_of_its_own() {
    let net = Namespaces::new();
    let server = net.socket_at(Side::B, Side::B.at(7000));
    let watch = net.watch(Side::A);
    let running = datagrams(&net, "client").start();
    let mut bytes = [0; 64];
    for _ in 0..100 {
        let (len, from) = server.recv_from(&mut bytes).unwrap();
        server.send_to(&bytes[..len], from).unwrap();
    }
    is_done(running);
    watch.still();
}

// covers: EXT-38, EXT-43, EXT-44, EXT-45, EXT-46
#[test]
fn bad_arguments_are_refused_and_lose_nothing() {
    let net = Namespaces::new();
    let running = datagrams(&net, "refused").start();
    let running = steps(
        &net,
        running,
        &[("ready", &[(b"stays", 5000)]), ("new ring", &[(b"new ring", 5000)])],
    );
    is_done(running);
}
