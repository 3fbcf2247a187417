//! The examples of libvma-dev, in C and in Rust, and its safe Rust face by them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::compiled;
use crate::harness::{Namespaces, PATIENCE, Side};

/// The example of a name in each language.
#[track_caller]
fn examples(net: &Namespaces, name: &str) -> [PathBuf; 2] {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../libvma-dev");
    let source = package.join(format!("examples/{name}.c"));
    let source = std::fs::read_to_string(source).expect("an example");
    // Of what cargo builds for this test, too; if it has, there is nothing to do.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--offline", "--package", "libvma-dev"])
        .args(["--example", name, "--target-dir"])
        .arg(target)
        .current_dir(&package)
        .status();
    assert!(built.expect("cargo").success());
    [compiled(&net.dir, name, &source), target.join("debug/examples").join(name)]
}

/// An address and a port as the examples of either language take them.
fn words(program: &Path, place: &str) -> String {
    let is_rust = program.components().any(|part| part.as_os_str() == "examples");
    if is_rust { place.to_owned() } else { place.replace(':', " ") }
}

// covers: EXT-07, EXT-11
#[test]
fn the_filter_receives_one_symbol_only() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    for program in examples(&net, "filter") {
        let place = words(&program, "10.99.0.1:5000");
        for library in [true, false] {
            let running = net.program(Side::A, program.to_str().unwrap());
            let running = running.args(&format!("{place} ABC"));
            let running = if library { running.with_library() } else { running };
            let mut running = running.start();
            running.wait_for_text("ready\n");
            let watch = net.watch(Side::A);
            for quote in ["ABC 1", "ABCD 2", "X", "", "ABC 3", "XYZ end", "ABC end"] {
                peer.send_to(quote.as_bytes(), Side::A.at(5000)).unwrap();
            }
            let output = running.wait().ok();
            let end = if library { "4 dropped, 0 others" } else { "4 others, without libvma" };
            assert_eq!(output.stdout, format!("ready\nABC 1\nABC 3\nABC end\n{end}\n"));
            assert_eq!(watch.moved().0, if library { 0 } else { 7 });
        }
    }
}

// covers: EXT-17, EXT-18, EXT-20
#[test]
fn the_echo_sends_from_lent_memory() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    for program in examples(&net, "zcopy_echo") {
        let place = words(&program, "10.99.0.1:5000");
        for library in [true, false] {
            let running = net.program(Side::A, program.to_str().unwrap());
            let running = running.args(&format!("{place} 100"));
            let running = if library { running.with_library() } else { running };
            let mut running = running.start();
            running.wait_for_text("ready\n");
            let watch = net.watch(Side::A);
            let mut answer = [0; 4096];
            for number in 0..100 {
                let sent: Vec<u8> = (0..number * 14).map(|at| (at ^ number) as u8).collect();
                peer.send_to(&sent, Side::A.at(5000)).unwrap();
                let len = peer.recv(&mut answer).unwrap();
                assert_eq!(answer[..len], sent);
            }
            let output = running.wait().ok();
            let end = if library { "100 lent, 0 copied" } else { "0 lent, 100 copied" };
            assert_eq!(output.stdout, format!("ready\n{end}\n"));
            if library {
                watch.still();
            }
        }
    }
}

// covers: EXT-40
#[test]
fn the_server_echoes_connections_by_completions() {
    const CONNECTIONS: usize = 5;
    let net = Namespaces::new();
    for program in examples(&net, "socketxtreme_server") {
        let place = words(&program, "10.99.0.1:5000");
        let started = || {
            let running = net.program(Side::A, program.to_str().unwrap()).with_library();
            running.args(&format!("{place} {CONNECTIONS}"))
        };
        let refused = started().run();
        assert_eq!(refused.status.code(), Some(1), "without the mode");
        assert!(refused.stderr.contains("it needs libvma and VMA_SOCKETXTREME=1"));
        let mut running = started().env("VMA_SOCKETXTREME", "1").start();
        running.wait_for_text("ready\n");
        net.wait_for_listener(Side::A, 5000);
        let watch = net.watch_tcp(Side::A);
        let connect = |_| net.within(Side::B, || TcpStream::connect(Side::A.at(5000)).unwrap());
        let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(connect).collect();
        for len in [1, 1000, 50_000] {
            for (number, stream) in streams.iter_mut().enumerate() {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let sent: Vec<u8> = (0..len).map(|at| (at ^ number) as u8).collect();
                let mut answer = vec![0; len];
                stream.write_all(&sent).unwrap();
                stream.read_exact(&mut answer).unwrap();
                assert!(answer == sent, "{len} bytes");
            }
        }
        watch.still(0);
        drop(streams);
        let output = running.wait().ok();
        assert_eq!(output.stdout, format!("ready\n{CONNECTIONS} connections, packets came\n"));
    }
}

// covers: EXT-11, EXT-13
#[test]
fn market_data_is_stamped_and_gaps_are_found() {
    let net = Namespaces::new();
    for side in [Side::A, Side::B] {
        net.ip(side, &format!("route add 224.0.0.0/4 dev {}", side.device()));
    }
    let peer = net.socket(Side::B);
    for program in examples(&net, "market_data") {
        let place = words(&program, "239.1.1.1:5000");
        let running = net.program(Side::A, program.to_str().unwrap()).with_library();
        let mut running = running.args(&format!("{place} 10.99.0.1 63")).start();
        running.wait_for_text("ready\n");
        let watch = net.watch(Side::A);
        for number in (0..64u32).filter(|number| !matches!(number, 5 | 6 | 40)) {
            let mut message = vec![7; 200];
            message[..4].copy_from_slice(&number.to_be_bytes());
            peer.send_to(&message, "239.1.1.1:5000").unwrap();
        }
        let output = running.wait().ok();
        let expected = "ready\n61 messages, 3 missing, 61 stamped\nkept [0, 16, 32, 48]\n";
        assert_eq!(output.stdout, expected, "{}", output.stderr);
        watch.still();
    }
}
