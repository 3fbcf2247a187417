//! sendmmsg() and recvmmsg() on a socket of ours whose messages go partly by the kernel: in one call each way, and in order.

use crate::harness::{BURSTS, Namespaces, Side};

const RECEIVERS: &str = "to = [('127.0.0.1', 7000 + at % 5 // 2) for at in range(40)]";

/// Two processes of the host receive, one of them under the library, and the kernel's socket of the test.
#[test]
fn a_burst_for_several_receivers_reaches_each_in_order() {
    let net = Namespaces::new();
    let kernels = net.socket_at(Side::A, "127.0.0.1:7000".parse().unwrap());
    let second = net.socket_at(Side::A, "127.0.0.1:7002".parse().unwrap());
    let mut receiver = net.puppet(Side::A);
    receiver.run("s = udp(('127.0.0.1', 7001))");
    let mut sender = net.puppet(Side::A);
    sender.run(BURSTS);
    sender.run(RECEIVERS);
    sender.run("s = udp(('127.0.0.1', 6000))");
    // Until the two have found each other.
    receiver.begin("for _ in range(50): echo(s)");
    sender.run("for _ in range(50): s.sendto(b'x', to[2]); s.recv(9)");
    receiver.end("");
    let watch = net.watch(Side::A);
    let burst = "messages(libc.sendmmsg, s, 40, to=to, tell=lambda at: b'%5d' % at)";
    for round in 0..20 {
        assert_eq!(sender.number(burst), 40, "{round}");
        let came = receiver.run("[int(s.recv(9)) for _ in range(16)]");
        let expected: Vec<usize> = (0..40).filter(|at| at % 5 / 2 == 1).collect();
        assert_eq!(came, format!("{expected:?}"), "{round}");
        for (socket, place) in [(&kernels, 0), (&second, 2)] {
            for at in (0..40).filter(|at| at % 5 / 2 == place) {
                let mut room = [0; 9];
                let len = socket.recv(&mut room).unwrap();
                assert_eq!(room[..len], *format!("{at:5}").as_bytes(), "{round}");
            }
        }
    }
    assert_eq!(watch.moved(), (20 * 24, 20 * 24), "what goes to the test's sockets, and no more");
}

/// The kernel ends a call at the first error, and so does this one; what is before it has left.
#[test]
fn a_burst_ends_at_the_message_that_the_kernel_refuses() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::A, "127.0.0.1:7000".parse().unwrap());
    let mut sender = net.puppet(Side::A);
    sender.run(BURSTS);
    sender.run("s = udp(('127.0.0.1', 6000)); good, bad = ('127.0.0.1', 7000), ('0.0.0.1', 7000)");
    let burst = "messages(libc.sendmmsg, s, 5, to=[good, good, bad, good, good])";
    assert_eq!(sender.number(burst), 2);
    let burst = "messages(libc.sendmmsg, s, 2, to=[bad, good])";
    assert_eq!(sender.number(burst), -1);
    assert_eq!(sender.run("errno.errorcode[ctypes.get_errno()]"), "'ENETUNREACH'");
    sender.run("s.sendto(b'last', good)");
    let lengths = [5, 5, 4].map(|_| peer.recv(&mut [0; 9]).unwrap());
    assert_eq!(lengths, [5, 5, 4]);
}

/// Datagrams that another way brought wait in the kernel's socket of one that is ours.
#[test]
fn many_datagrams_of_the_kernel_fill_one_call() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::A, "127.0.0.1:7000".parse().unwrap());
    let mut program = net.puppet(Side::A);
    program.run(BURSTS);
    program.run("s = udp(('127.0.0.1', 6000))");
    let mut next = 0;
    let mut send = |count: usize| {
        for _ in 0..count {
            peer.send_to(format!("{next:5}").as_bytes(), "127.0.0.1:6000").unwrap();
            next += 1;
        }
    };
    let took = |from: usize, to: usize| {
        let words: Vec<String> = (from..to).map(|at| format!("b'{at:5}'")).collect();
        format!("[{}]", words.join(", "))
    };
    // More than are taken from the kernel at once, and more than the call has room for.
    send(50);
    assert_eq!(program.number("messages(libc.recvmmsg, s, 40, None)"), 40);
    assert_eq!(program.run("got"), took(0, 40));
    let dont_wait = "messages(libc.recvmmsg, s, 40, None, flags=MSG_DONTWAIT)";
    assert_eq!(program.number(dont_wait), 10);
    assert_eq!(program.run("got"), took(40, 50));
    assert_eq!(program.number(dont_wait), -1);
    // A message without room takes a datagram as well.
    send(4);
    let narrow = "messages(libc.recvmmsg, s, 4, None, flags=MSG_DONTWAIT, sizes=[5, 0, 2, 5])";
    assert_eq!(program.number(narrow), 4);
    assert_eq!(program.run("[len(it) for it in got]"), "[5, 0, 2, 5]");
    // A timeout is looked at after each one, and a look takes none.
    send(3);
    program.run("now = ctypes.create_string_buffer(16)");
    assert_eq!(program.number("messages(libc.recvmmsg, s, 3, now)"), 1);
    let look = "messages(libc.recvmmsg, s, 2, None, flags=MSG_PEEK)";
    assert_eq!(program.number(look), 2);
    assert_eq!(program.run("got"), "[b'   55', b'   55']");
    assert_eq!(program.number(dont_wait), 2);
    // MSG_WAITFORONE.
    let wait_for_one = "messages(libc.recvmmsg, s, 9, None, flags=0x10000)";
    send(3);
    assert_eq!(program.number(wait_for_one), 3);
    assert_eq!(program.run("got"), took(57, 60));
}
