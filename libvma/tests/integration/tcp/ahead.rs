//! A program that writes much before it reads what comes back: the buffers between it and its peer must
//! hold that, as they do with the kernel's automatic ones.

use crate::harness::{Ends, Library, PYTHON, Side};

const ECHO: &str = "
import socket, threading
def serve(c):
    while data := c.recv(65536):
        c.sendall(data)
    c.close()
l = socket.create_server(('10.99.0.1', 7000))
for _ in range(10):
    c, _ = l.accept()
    threading.Thread(target=serve, args=(c,)).start()
";

const WRITES_AHEAD: &str = "
import socket
for n in range(10):
    size = 1_000_000 + 100_000 * n
    c = socket.create_connection(('10.99.0.1', 7000))
    c.settimeout(5)
    c.sendall(bytes(size))
    left = size
    while left:
        left -= len(c.recv(1 << 20))
    c.close()
print('all came back')
";

// covers: NET-03
#[test]
fn two_megabytes_are_on_their_way_before_any_is_read() {
    for library in Library::ALL {
        let ends = Ends::new(library);
        let server = ends.server(PYTHON).arg("-c").arg(ECHO).start();
        ends.net.wait_for_listener(Side::A, 7000);
        let watch = ends.watch();
        let output = ends.client(PYTHON).arg("-c").arg(WRITES_AHEAD).run();
        assert!(output.stdout.contains("all came back"), "{library:?}: {}", output.stderr);
        drop(server);
        watch.still(10);
    }
}
