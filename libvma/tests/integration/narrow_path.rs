//! A router behind which packets must be shorter: what is too long for it is lost once, as with the kernel, and what follows arrives
//! in fragments.

use crate::dual_stack::with_ipv6;
use crate::harness::{Namespaces, PYTHON, Puppet, Side};

const MTU: usize = 1400;

/// Side B is a router to 10.96.0.0/24 and fd00:96::/64, a network whose hosts hear and say nothing. The puppet there counts.
fn behind_a_router(net: &Namespaces) -> Puppet {
    with_ipv6(net);
    for words in [
        format!("link add n0 mtu {MTU} type veth peer name n1 mtu {MTU}"),
        "link set n0 up".into(),
        "link set n1 up".into(),
        "address add 10.96.0.2/24 dev n0".into(),
        "-6 address add fd00:96::2/64 dev n0 nodad".into(),
        "neigh add 10.96.0.1 lladdr 02:00:00:00:00:77 nud permanent dev n0".into(),
        "-6 neigh add fd00:96::1 lladdr 02:00:00:00:00:77 nud permanent dev n0".into(),
    ] {
        net.ip(Side::B, &words);
    }
    net.sysctl(Side::B, "net.ipv4.ip_forward", "1");
    net.sysctl(Side::B, "net.ipv6.conf.all.forwarding", "1");
    net.ip(Side::A, "route add 10.96.0.0/24 via 10.99.0.2");
    net.ip(Side::A, "-6 route add fd00:96::/64 via fd00:99::2");
    let mut router = Puppet::start(net.program(Side::B, PYTHON));
    router.run(
        "r = socket(AF_PACKET, SOCK_RAW, htons(3)); r.bind(('n1', 3))
def passed():
    got = []
    try:
        while True: got.append(r.recv(2000, MSG_DONTWAIT))
    except BlockingIOError: return [len(frame) for frame in got if frame[5] == 0x77]",
    );
    router
}

// covers: NET-23
#[test]
fn what_follows_the_first_long_datagram_arrives() {
    for (family, to) in [("AF_INET", "10.96.0.1"), ("AF_INET6", "fd00:96::1")] {
        for connected in [false, true] {
            let net = Namespaces::new();
            let mut router = behind_a_router(&net);
            let mut program = net.puppet(Side::A);
            program.run(&format!("s = socket({family}, SOCK_DGRAM); to = ('{to}', 7000)"));
            if connected {
                program.run("s.connect(to)");
            }
            program.run("s.sendto(bytes(200), to); time.sleep(0.2)");
            let watches = [net.watch(Side::A), net.watch_ipv6(Side::A)];
            program.run("s.sendto(bytes(200), to)");
            assert_eq!(router.run("len(passed())"), "2");
            watches.iter().for_each(|watch| watch.still());
            // It is lost, and the router says why: a connected socket is told.
            program.run("s.sendto(bytes(1450), to); time.sleep(0.1)");
            assert_eq!(router.run("passed()"), "[]");
            if connected {
                let told = program.raises("s.sendto(bytes(1450), to)");
                assert!(told.contains("Message too long"), "{family}: {told}");
            }
            for _ in 0..3 {
                program.run("s.sendto(bytes(1450), to); time.sleep(0.05)");
                assert_eq!(router.run("len(passed())"), "2", "{family}, {connected}");
            }
        }
    }
}
