//! libvma.conf within the host: what a rule leaves to the kernel is neither found nor looked for.

use std::time::{Duration, Instant};

use super::{Local, Under};
use crate::harness::{PYTHON, Program, Puppet};

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

    /// The bytes that the kernel carries of 32 MiB in a connection to port 7000.
    fn connection_by_kernel(&mut self) -> u64 {
        let watch = self.local.sandbox.watch();
        self.server.run("l = create_server(('127.0.0.1', 7000)); l.settimeout(15)");
        self.client.run("c = create_connection(('127.0.0.1', 7000)); c.settimeout(15)");
        self.server.run("a, _ = l.accept(); a.settimeout(15)");
        self.client.begin("c.sendall(bytes(32 << 20)); c.close()");
        self.server.run("while a.recv(65536): pass");
        self.client.end("c.sendall(bytes(32 << 20)); c.close()");
        watch.moved().lo_bytes
    }
}

// covers: CONF-10, CONF-13, CONF-14, CONF-17
#[test]
fn datagrams_within_the_host_obey_the_rules() {
    let loopback = "use os udp_receiver 127.0.0.1:7000\n";
    let others = "use os udp_receiver *:7001\nuse os udp_sender *:7001\n";
    for (own, of_server, of_client, kernel) in [
        ("127.0.0.1", others, others, false),
        ("127.0.0.1", loopback, "", true),
        ("0.0.0.0", loopback, "", true),
        ("127.0.0.1", "", "use os udp_sender 127.0.0.0/8:7000\n", true),
    ] {
        let mut pair = Pair::new(of_server, of_client);
        pair.server.run(&format!("s = udp(('{own}', 7000)); s.settimeout(15)"));
        pair.client.run("c = udp()");
        let rules = format!("{of_server}{of_client}");
        assert_eq!(pair.keeps_to_kernel(), kernel, "{own}: {rules}");
    }
}

// covers: CONF-11, CONF-12
#[test]
fn connections_within_the_host_obey_the_rules() {
    const ALL: u64 = 32 << 20;
    let others = "use os tcp_server *:7001\nuse os tcp_client *:7000:10.99.0.0/24:*\n";
    for (of_server, of_client, kernel) in [
        (others, others, false),
        ("use os tcp_server 127.0.0.1:7000\n", "", true),
        ("", "use os tcp_client 127.0.0.1:7000:127.0.0.0/8:*\n", true),
    ] {
        let carried = Pair::new(of_server, of_client).connection_by_kernel();
        // What comes before both ends agree upon the pipe is the kernel's in any case.
        assert_eq!(carried >= ALL, kernel, "{carried} bytes by it: {of_server}{of_client}");
    }
}
