//! Calls that look at connections and do not wait.

use super::{Local, Under};
use crate::harness::PYTHON;

const SERVER: &str = "
import socket
l = socket.create_server(('127.0.0.1', 7000), backlog=100)
cs = [l.accept()[0] for _ in range(101)]
for c in cs: assert c.recv(1) == b''
print('served')
";

/// Sockets that an instance watches before they connect: the handshake over loopback is complete when
/// connect() returns, so the kernel tells that they are writable at the first look, and once.
const CLIENT: &str = "
import select, socket
AT = ('127.0.0.1', 7000)
first = socket.create_connection(AT, 20)
missed, kept = 0, []
for _ in range(50):
    c = socket.socket()
    c.setblocking(False)
    p = select.epoll()
    p.register(c, select.EPOLLOUT | select.EPOLLET)
    p.poll(0)
    c.connect_ex(AT)
    missed += not p.poll(0)
    kept.append((c, p))
print('few' if missed <= 5 else missed, 'of 50 missed')
twice = sum(len(p.poll(0)) for _ in range(20) for _, p in kept)
for _ in range(50):
    c = socket.create_connection(AT, 20)
    p = select.epoll()
    p.register(c, select.EPOLLOUT | select.EPOLLET)
    twice += len(p.poll(0)) - 1
    twice += sum(len(p.poll(0)) for _ in range(3))
    kept.append((c, p))
twice += sum(len(p.poll(0.001)) for _, p in kept)
print(twice - (0 if missed > 5 else missed), 'told twice')
";

#[test]
fn a_look_at_connections_sees_what_the_kernel_knows() {
    for under in [Under::Both, Under::Neither] {
        let local = Local::new(under);
        let server = local.server(PYTHON).arg("-c").arg(SERVER).start_shown();
        local.sandbox.wait_for_listener(7000);
        // The library asks the kernel at every look.
        let client = local.client(PYTHON).env("VMA_SELECT_POLL_OS_RATIO", "1");
        client.arg("-c").arg(CLIENT).run().ok().says("few of 50 missed\n0 told twice");
        server.wait().ok().says("served");
    }
}
