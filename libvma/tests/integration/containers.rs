//! Programs in containers: processes, mounts and IPC of their own, the default seccomp profile, no capabilities or those that the
//! documentation asks for.

use crate::harness::{Namespaces, PYTHON, Puppet, Sandbox, Side, wait_for};

fn under_library(program: crate::harness::Program<'_>) -> Puppet {
    Puppet::start(program.with_library())
}

/// Two programs without privileges begin to talk over TCP and UDP.
fn talk(server: &mut Puppet, client: &mut Puppet) {
    server.run("l = create_server(('127.0.0.1', 5000)); u = udp(('127.0.0.1', 5000))");
    server.begin("s = l.accept()[0]");
    client
        .run("c = socket(AF_INET, SOCK_STREAM); c.settimeout(15); c.connect(('127.0.0.1', 5000))");
    server.end("accept");
    client.run("v = udp(peer=('127.0.0.1', 5000))");
    for (send, receive) in [("c", "s"), ("v", "u")] {
        client.run(&format!("{send}.send(b'first')"));
        server.run(&format!("d, peer = {receive}.recvfrom(100)"));
    }
}

/// Two containers of one pod share its network, and nothing else.
#[test]
fn containers_of_a_pod_talk_through_shared_memory() {
    let sandbox = Sandbox::new();
    let [mut server, mut client] = [(); 2].map(|()| under_library(sandbox.container(PYTHON)));
    for program in [&mut server, &mut client] {
        assert_eq!(program.run("os.getpid()"), "1");
    }
    talk(&mut server, &mut client);
    wait_for("the datagrams go by a link", || {
        client.run("v.send(b'x')");
        server.run("u.recv(100)");
        let watch = sandbox.watch();
        client.run("v.send(b'x')");
        server.run("u.recv(100)");
        (watch.moved().datagrams == 0).then_some(())
    });
    let watch = sandbox.watch();
    for n in 0..20 {
        client.run(&format!("c.send(b'{n}'); v.send(b'{n}')"));
        assert_eq!(server.run("s.recv(100), u.recv(100)"), format!("(b'{n}', b'{n}')"));
    }
    let moved = watch.moved();
    assert_eq!((moved.segments, moved.datagrams), (0, 0), "{moved:?}");
}

/// Sends to a server in a container, and takes its answers. What the kernel of its side had of them.
fn echoes(capabilities: &str) -> (u64, u64) {
    let net = Namespaces::new();
    let mut program = under_library(net.container(Side::A, capabilities, PYTHON));
    program.run("s = udp(('', 5000))");
    let peer = net.socket(Side::B);
    let watch = net.watch(Side::A);
    for n in 0..10u8 {
        peer.send_to(&[n], Side::A.at(5000)).unwrap();
        program.run("d, peer = s.recvfrom(10); s.sendto(d, peer)");
        let mut answer = [0; 10];
        assert_eq!(peer.recv(&mut answer).unwrap(), 1);
        assert_eq!(answer[0], n);
    }
    watch.moved()
}

/// With the capabilities of the documentation a container's interface is served.
#[test]
fn a_container_with_capabilities_has_its_interface_served() {
    assert_eq!(echoes("+net_admin,+net_raw,+bpf,+ipc_lock"), (0, 0));
}

/// Without them all goes by the kernel.
#[test]
fn a_container_without_capabilities_works_by_the_kernel() {
    assert_eq!(echoes(""), (10, 10));
}
