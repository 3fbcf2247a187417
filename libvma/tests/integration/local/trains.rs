//! Trains of datagrams (UDP_SEGMENT, UDP_GRO) between two processes.

use super::{Local, Under};
use crate::harness::{PYTHON, Puppet, wait_for};

#[test]
fn trains_go_through_shared_memory() {
    let local = Local::new(Under::Both);
    let mut server = Puppet::start(local.server(PYTHON));
    let mut client = Puppet::start(local.client(PYTHON));
    server.run("s = udp(('127.0.0.1', 7000))");
    client.run("s = udp(peer=('127.0.0.1', 7000))");
    wait_for("the processes have found each other", || {
        let watch = local.sandbox.watch();
        server.begin("echo(s)");
        client.run("s.send(b'x')");
        server.end("echo(s)");
        client.run("s.recv(9)");
        (watch.moved().datagrams == 0).then_some(())
    });
    let watch = local.sandbox.watch();
    for whole in [false, true] {
        server.run(&format!("s.setsockopt(17, 104, {})", u8::from(whole)));
        for (size, len) in [(1400, 14_000), (1472, 60_000), (700, 1000), (1, 128), (9000, 45_000)] {
            client.run(&format!("s.setsockopt(17, 103, {size})"));
            let sent = format!("pattern({len}, {size})");
            assert_eq!(client.run(&format!("s.send({sent})")), len.to_string());
            let messages = if whole { 1 } else { usize::div_ceil(len, size) };
            server.run(&format!("got = [s.recvmsg(65535, 64) for n in range({messages})]"));
            let same = format!("b''.join(one[0] for one in got) == {sent}");
            assert_eq!(server.run(&same), "True", "{len} bytes in {size}");
            let told = server.run("[struct.unpack('i', one[1][0][2])[0] for one in got if one[1]]");
            assert_eq!(told, if whole { format!("[{size}]") } else { "[]".to_owned() });
        }
    }
    assert_eq!(watch.moved().datagrams, 0);
}
