//! Forks beside a connection within the host, and what the reader sees when bytes cannot be delivered:
//! an error, never a clean end.

use crate::harness::{PYTHON, Puppet, compile_in};

use super::{ALL, Local, Under};

/// A server that forks before it answers, and whose child exits at once. The connection is shared
/// then, so that `close()` hands it to the kernel, while other threads poll.
// covers: API-34
#[test]
fn a_server_that_forks_before_it_answers_delivers_every_byte() {
    for under in ALL {
        let local = Local::new(under);
        let forks = compile_in(&local.sandbox.dir, "forks", include_str!("forks.c"), &["-pthread"]);
        let forks = forks.to_str().unwrap();
        let _server = local.server(forks).args("serve 7000").start_shown();
        local.sandbox.wait_for_listener(7000);
        let output = local.client(forks).args("call 7000 4 50").start_shown().wait().ok();
        output.says("whole 200 reset 0 short 0 wrong 0");
    }
}

/// Bytes that the reader gave back wait for room in the kernel when their sender ends.
#[test]
fn bytes_that_wait_for_the_kernel_are_delivered_or_reset_the_reader() {
    for under in [Under::Both, Under::Neither] {
        for (end, wholes) in [
            ("os.kill(os.getpid(), 9)", &["False"][..]),
            ("c.close()", &["True"]),
            ("os._exit(0)", &["True", "False"]),
        ] {
            let local = Local::new(under);
            let mut sender = Puppet::start(local.server(PYTHON));
            sender.run("l = create_server(('127.0.0.1', 7000))");
            let mut reader = Puppet::start(local.client(PYTHON));
            reader.run("c = create_connection(('127.0.0.1', 7000), 10)");
            sender.run("c, _ = l.accept()");
            reader.run("c.sendall(b'1')");
            sender.run("c.recv(1)");
            sender.run("import random; data = random.Random(1).randbytes(200000)");
            sender.run("c.setblocking(False); sent = c.send(data)");
            let sent: usize = sender.run("sent").parse().unwrap();
            // The reader's end becomes the kernel's, which has little room.
            sender.run("c.setsockopt(SOL_SOCKET, SO_SNDBUF, 4096)");
            reader.run("c.setsockopt(SOL_SOCKET, SO_RCVBUF, 16384)");
            reader.run("here, there = socketpair(); send_fds(here, [b'x'], [c.fileno()])");
            reader.run("fd = recv_fds(there, 1, 1)[1][0]; c.close(); c = socket(fileno=fd)");
            reader.run("c.settimeout(10)");
            sender.begin(end);
            let read = "
def everything():
    got = b''
    while True:
        try: part = c.recv(65536)
        except ConnectionResetError: return got, 'reset'
        if not part: return got, 'end'
        got += part
got, how = everything()";
            reader.run(read);
            reader.run("import random; data = random.Random(1).randbytes(200000)");
            let whole = reader.run(&format!("len(got) == {sent}"));
            assert_eq!(reader.run("data.startswith(got)"), "True", "{under:?} {end}");
            assert_eq!(reader.run("how == 'end'"), whole, "{under:?} {end}: {sent} bytes sent");
            if under == Under::Both {
                assert!(wholes.contains(&&whole[..]), "{end}: whole is {whole}");
            }
        }
    }
}
