//! Half-close by netcat, in both directions: one end has sent everything and still receives.

use crate::harness::{PYTHON, Program, Puppet, installed};
use crate::tcp::curl::{assert_same, random_file};

use super::{ALL, Local};

/// netcat with its files; the shell turns into it.
fn netcat<'a>(shell: Program<'a>, words: &str) -> Program<'a> {
    shell.arg("-c").arg(&format!("exec {} {words}", installed("nc")))
}

const REQUEST: u64 = 24 << 20;
const ANSWER: u64 = 40 << 20;

// covers: LIM-39
#[test]
fn nc_half_close_by_the_client() {
    for under in ALL {
        let local = Local::new(under);
        let mut server = Puppet::start(local.server(PYTHON));
        server.run("l = create_server(('127.0.0.1', 7000)); l.settimeout(15)");
        let file = |name: &str| local.sandbox.file(name);
        random_file(&file("request"), REQUEST, 1);
        random_file(&file("answer"), ANSWER, 2);
        let watch = local.sandbox.watch();
        let client = netcat(local.client("sh"), "-N 127.0.0.1 7000 < request > got").start_shown();
        server.run("c, _ = l.accept(); c.settimeout(15)");
        server.run(
            "
with open('request.got', 'wb') as file:
    while part := c.recv(65536): file.write(part)",
        );
        assert_same(&file("request"), &file("request.got"));
        // Beyond the end of the stream there is only the end.
        assert_eq!(server.run("c.recv(1)"), "b''");
        server.run("c.sendall(open('answer', 'rb').read()); c.close()");
        client.wait().ok();
        assert_same(&file("answer"), &file("got"));
        local.check_tcp(&watch, 1, REQUEST + ANSWER);
    }
}

// covers: LIM-39
#[test]
fn nc_half_close_by_the_server() {
    for under in ALL {
        let local = Local::new(under);
        let file = |name: &str| local.sandbox.file(name);
        random_file(&file("greeting"), REQUEST, 1);
        random_file(&file("answer"), ANSWER, 2);
        let watch = local.sandbox.watch();
        let server = netcat(local.server("sh"), "-N -l 127.0.0.1 7000 < greeting > got");
        let server = server.start_shown();
        local.sandbox.wait_for_listener(7000);
        // The client says nothing before it has seen the server's end.
        let mut client = Puppet::start(local.client(PYTHON));
        client.run("c = create_connection(('127.0.0.1', 7000)); c.settimeout(15)");
        client.run(
            "
with open('greeting.got', 'wb') as file:
    while part := c.recv(65536): file.write(part)",
        );
        assert_same(&file("greeting"), &file("greeting.got"));
        client.run("c.sendall(open('answer', 'rb').read()); c.shutdown(SHUT_WR)");
        server.wait().ok();
        assert_same(&file("answer"), &file("got"));
        client.run("c.close()");
        local.check_tcp(&watch, 1, REQUEST + ANSWER);
    }
}
