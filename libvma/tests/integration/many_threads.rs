//! Many threads that send short messages at once, each by a socket of its own, whatever rings are said to be for.

use crate::harness::{Namespaces, PYTHON, Puppet, Side, compile};

/// More than 16, which was too many for the original.
const THREADS: usize = 24;
const MESSAGES: usize = 400;

/// A peer of kernel sockets that sends back what it gets.
const ECHO: &str = "
import select, threading
def datagrams(s):
    while True:
        data, peer = s.recvfrom(2000); s.sendto(data, peer)
def streams(l):
    e = select.epoll(); e.register(l, 1); open = {}
    while True:
        for fd, _ in e.poll():
            if fd == l.fileno():
                c, _ = l.accept(); open[c.fileno()] = c; e.register(c, 1)
            else:
                data = open[fd].recv(65536)
                if data: open[fd].sendall(data)
                else: open.pop(fd).close()
u = socket(AF_INET, SOCK_DGRAM); u.bind(('10.99.0.2', 7000))
l = create_server(('10.99.0.2', 7000), backlog=64)
for work in ((datagrams, u), (streams, l)): threading.Thread(target=work[0], args=work[1:], daemon=True).start()
";

// covers: LIM-01
#[test]
fn short_messages_of_many_threads_are_not_mixed_up() {
    let net = Namespaces::new();
    let mut peer = Puppet::start(net.program(Side::B, PYTHON));
    peer.run(ECHO);
    let program = compile(&net, "many_threads", include_str!("many_threads.c"), &[]);
    // A ring for each socket, thread and core.
    for logic in ["10", "20", "30"] {
        let (datagrams, streams) = (net.watch(Side::A), net.watch_tcp(Side::A));
        for kind in ["udp", "tcp"] {
            let program = net.program(Side::A, program.to_str().expect("a path in UTF-8"));
            let program = program.args(&format!("{kind} {THREADS} {MESSAGES}")).with_library();
            let program = program.env("VMA_RING_ALLOCATION_LOGIC_TX", logic);
            let output = program.env("VMA_RING_ALLOCATION_LOGIC_RX", logic).run().ok();
            assert_eq!(output.stdout, "done\n".repeat(THREADS), "{kind}, {logic}");
        }
        datagrams.still();
        streams.still(THREADS as u64);
    }
}
