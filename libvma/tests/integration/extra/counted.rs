//! Packets that the program has, as vma_stats tells of them.

use std::io::Write;
use std::net::TcpListener;

use libvma_dev::stats::{File, Taken};

use super::program;
use crate::harness::{Namespaces, PATIENCE, Running, Side, tool, wait_for};

/// Packets and bytes of the whole process, of the socket with the callback, and of the connection.
type Amounts = [(u64, u64); 3];

struct Watched<'a> {
    net: &'a Namespaces,
    running: Running,
    /// Numbers of the two sockets.
    sockets: [i32; 2],
}

impl Watched<'_> {
    fn amounts(&self) -> Amounts {
        let file = wait_for("its statistics", || File::open(&self.net.dir, self.running.id()).ok());
        let taken = file.take(PATIENCE).expect("an answer");
        let of = |descriptor: i32| {
            let socket = taken.sockets.iter().find(|socket| socket.descriptor == descriptor);
            socket.map_or((0, 0), |socket| (socket.zero_copy_packets, socket.zero_copy_bytes))
        };
        let Taken { snapshot, .. } = &taken;
        let all = (snapshot.zero_copy_packets, snapshot.zero_copy_bytes);
        [all, of(self.sockets[0]), of(self.sockets[1])]
    }

    /// The output of vma_stats.
    fn shown(&self, words: &str) -> String {
        let tool = self.net.program(Side::A, tool("vma_stats").to_str().expect("text"));
        let directory = self.net.dir.to_str().expect("text");
        tool.arg("-k").arg(directory).args("-c 1").args(words).run().ok().stdout
    }
}

// covers: EXT-22
#[test]
fn statistics_tell_how_many_packets_a_program_has() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let program = program(&net, "counted", include_str!("counted.c"));
    let mut running = program.with_library().start();
    running.wait_for_text("ready\n");
    let printed = running.printed();
    // Beside the library's banner, which may have numbers of its own.
    let line = printed.lines().find(|line| line.starts_with("datagrams ")).expect("the line");
    let numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    let sockets = numbers.collect::<Vec<i32>>().try_into().expect("two numbers");
    let mut watched = Watched { net: &net, running, sockets };
    assert_eq!(watched.amounts(), [(0, 0); 3]);
    let send = |first: u8, len: usize, port| {
        peer.send_to(&vec![first; len], Side::A.at(port)).unwrap();
    };

    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&[b's'; 10]).unwrap();
    for (first, len) in [(b'h', 100), (b'h', 1000), (b'l', 50), (b'h', 1), (b'l', 3)] {
        send(first, len, 5000);
    }
    watched.running.wait_for_text("has all\n");
    assert_eq!(watched.amounts(), [(6, 1164), (5, 1154), (1, 10)]);
    let text = watched.shown("-v 3");
    for line in [
        "Rx zero copy buffers: cur 5\n",
        "Rx zero copy bytes: cur 1154\n",
        "Packets held:        6\nBytes held:          1164\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    let json = watched.shown("--json");
    assert!(json.contains(r#""zero_copy_packets":6,"zero_copy_bytes":1164"#), "{json}");
    let page = watched.shown("--openmetrics");
    assert!(page.contains("vma_process_zero_copy_packets{"), "{page}");

    // Packets that were held and the connection's are given back.
    send(b'f', 9, 5000);
    watched.running.wait_for_text("freed some\n");
    assert_eq!(watched.amounts(), [(2, 53), (2, 53), (0, 0)]);
    // Packets of a closed socket are the process's still.
    send(b'c', 9, 5000);
    watched.running.wait_for_text("closed\n");
    assert_eq!(watched.amounts(), [(2, 53), (0, 0), (0, 0)]);
    send(b'e', 9, 5001);
    watched.running.wait_for_text("freed all\n");
    assert_eq!(watched.amounts(), [(0, 0); 3]);
    assert!(!watched.shown("-v 3").contains("zero copy"), "nothing is held");
    send(b'e', 9, 5001);
    let output = watched.running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
    let dumped = "Rx zero copy buffers : 1 KB / 5 [bytes/packets]";
    assert!(output.stderr.contains(dumped), "{}", output.stderr);
}
