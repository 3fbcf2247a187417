//! Half-close: one end has sent everything and still receives. By netcat, in both directions.

use std::io::{Write, pipe};
use std::process::Stdio;

use crate::harness::{Ends, Library, PYTHON, Program, Puppet, Side, installed, wait_for};

use super::curl::{assert_same, random_file};

/// netcat with its files; the shell turns into it.
fn netcat<'a>(shell: Program<'a>, words: &str) -> Program<'a> {
    shell.arg("-c").arg(&format!("exec {} {words}", installed("nc")))
}

/// The client sends all and half-closes; the server answers only after it has seen the end.
#[track_caller]
fn client_closes_first(library: Library) {
    let ends = Ends::new(library);
    let watch = ends.watch();
    let mut server = Puppet::start(ends.server(PYTHON));
    server.run("l = create_server(('10.99.0.1', 7000)); l.settimeout(15)");
    // Connections come to the library from the first wait for them on.
    server.run("select.select([l], [], [], 0)");
    let (request, answer) = (ends.net.file("request"), ends.net.file("answer"));
    random_file(&request, 3 << 20, 1);
    random_file(&answer, 5 << 20, 2);
    let client = netcat(ends.client("sh"), "-N 10.99.0.1 7000 < request > got").start_shown();
    server.run("c, _ = l.accept(); c.settimeout(15)");
    server.run(
        "
with open('request.got', 'wb') as file:
    while part := c.recv(65536): file.write(part)",
    );
    assert_same(&request, &ends.net.file("request.got"));
    // Beyond the end of the stream there is only the end.
    assert_eq!(server.run("c.recv(1)"), "b''");
    server.run("c.sendall(open('answer', 'rb').read()); c.close()");
    client.wait().ok();
    assert_same(&answer, &ends.net.file("got"));
    watch.still(20);
}

/// The same with the roles exchanged: netcat listens, half-closes, and then receives.
#[track_caller]
fn server_closes_first(library: Library) {
    let ends = Ends::new(library);
    let watch = ends.watch();
    let (greeting, answer) = (ends.net.file("greeting"), ends.net.file("answer"));
    random_file(&greeting, 3 << 20, 1);
    random_file(&answer, 5 << 20, 2);
    let server = netcat(ends.server("sh"), "-N -l 10.99.0.1 7000 < greeting > got").start_shown();
    ends.net.wait_for_listener(Side::A, 7000);
    // The client's own end comes through a pipe, after it has seen the server's.
    let (reader, mut writer) = pipe().unwrap();
    let client = netcat(ends.client("sh"), "-N 10.99.0.1 7000 > greeting.got");
    let client = client.stdin(Stdio::from(reader)).start_shown();
    let len = |name: &str| std::fs::metadata(ends.net.file(name)).map_or(0, |file| file.len());
    wait_for("the greeting has arrived", || (len("greeting.got") == 3 << 20).then_some(()));
    writer.write_all(&std::fs::read(&answer).unwrap()).unwrap();
    // A process that ends hands its unsent bytes over to the kernel. The client must have none then.
    wait_for("the answer has arrived", || (len("got") == 5 << 20).then_some(()));
    drop(writer);
    client.wait().ok();
    server.wait().ok();
    watch.still(20);
    assert_same(&greeting, &ends.net.file("greeting.got"));
    assert_same(&answer, &ends.net.file("got"));
}

// covers: LIM-39, NET-03
#[test]
fn nc_half_close_by_the_client() {
    for library in Library::ALL {
        client_closes_first(library);
    }
}

// covers: LIM-39, NET-03
#[test]
fn nc_half_close_by_the_server() {
    for library in Library::ALL {
        server_closes_first(library);
    }
}
