//! libvma.conf within the host: what a rule leaves to the kernel is neither found nor looked for.

use std::time::{Duration, Instant};

use super::{Local, Under};
use crate::harness::{PYTHON, Program, Puppet, at_once};

/// Bytes of a connection, sent at once.
const PART: u64 = 1 << 20;

/// A server and a client, each with its rules.
struct Pair {
    server: Puppet,
    client: Puppet,
    local: Local,
}

impl Pair {
    fn new(of_server: &str, of_client: &str) -> Pair {
        let local = Local::new(Under::Both);
        let ruled = |program: Program<'_>, name: &str, rules: &str| {
            let file = local.sandbox.file(name);
            std::fs::write(&file, rules).expect("a file");
            Puppet::start(program.env("VMA_CONFIG_FILE", file.to_str().expect("text")))
        };
        let server = ruled(local.server(PYTHON), "server.conf", of_server);
        let client = ruled(local.client(PYTHON), "client.conf", of_client);
        Pair { server, client, local }
    }

    /// Does the kernel carry what the client's socket `c` sends, also once there was time to find
    /// the server's socket `s` at port 7000?
    fn keeps_to_kernel(&mut self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            let watch = self.local.sandbox.watch();
            for _ in 0..10 {
                self.client.run("c.sendto(b'x', ('127.0.0.1', 7000))");
                self.server.run("s.recv(10)");
            }
            match watch.moved().datagrams {
                0 => return false,
                some => assert!(some <= 10, "{some} datagrams of 10"),
            }
        }
        true
    }

    /// Does the kernel carry all of a connection to port 7000, also once there was time to agree upon
    /// a pipe? What comes before that is the kernel's in any case.
    fn connection_keeps_to_kernel(&mut self) -> bool {
        self.server.run("l = create_server(('127.0.0.1', 7000)); l.settimeout(15)");
        self.client.run("c = create_connection(('127.0.0.1', 7000)); c.settimeout(15)");
        self.server.run("a, _ = l.accept(); a.settimeout(15)");
        let (begin, mut parts) = (Instant::now(), 0);
        while parts < 2 || begin.elapsed() < Duration::from_secs(2) {
            if self.carried_of_a_part() < PART {
                // The agreement came in the middle: the next part is the pipe's alone, but for a segment
                // of the kernel's connection that comes late.
                let beside = self.carried_of_a_part();
                assert!(beside < 1000, "{beside} bytes by the kernel beside a pipe");
                self.end();
                return false;
            }
            parts += 1;
        }
        self.end();
        true
    }

    /// The client closes, and the server sees it.
    fn end(&mut self) {
        self.client.run("c.close()");
        self.server.run("assert a.recv(1) == b''");
    }

    /// The bytes that the kernel carries while `PART` of them go from the client to the server.
    fn carried_of_a_part(&mut self) -> u64 {
        let watch = self.local.sandbox.watch();
        let send = format!("c.sendall(bytes({PART}))");
        self.client.begin(&send);
        self.server.run(&format!("n = {PART}"));
        self.server.run("while n: n -= len(a.recv(n)) or 1 / 0");
        self.client.end(&send);
        watch.moved().lo_bytes
    }
}

// covers: CONF-10, CONF-13, CONF-14, CONF-17
#[test]
fn datagrams_within_the_host_obey_the_rules() {
    let loopback = "use os udp_receiver 127.0.0.1:7000\n";
    let others = "use os udp_receiver *:7001\nuse os udp_sender *:7001\n";
    let all = [
        ("127.0.0.1", others, others, false),
        ("127.0.0.1", loopback, "", true),
        ("0.0.0.0", loopback, "", true),
        ("127.0.0.1", "", "use os udp_sender 127.0.0.0/8:7000\n", true),
    ];
    at_once(4, &all, |&(own, of_server, of_client, kernel)| {
        let mut pair = Pair::new(of_server, of_client);
        pair.server.run(&format!("s = udp(('{own}', 7000)); s.settimeout(15)"));
        pair.client.run("c = udp()");
        let rules = format!("{of_server}{of_client}");
        assert_eq!(pair.keeps_to_kernel(), kernel, "{own}: {rules}");
    });
}

// covers: CONF-11, CONF-12
#[test]
fn connections_within_the_host_obey_the_rules() {
    let others = "use os tcp_server *:7001\nuse os tcp_client *:7000:10.99.0.0/24:*\n";
    let all = [
        (others, others, false),
        ("use os tcp_server 127.0.0.1:7000\n", "", true),
        ("", "use os tcp_client 127.0.0.1:7000:127.0.0.0/8:*\n", true),
    ];
    at_once(3, &all, |&(of_server, of_client, kernel)| {
        let kept = Pair::new(of_server, of_client).connection_keeps_to_kernel();
        assert_eq!(kept, kernel, "{of_server}{of_client}");
    });
}
