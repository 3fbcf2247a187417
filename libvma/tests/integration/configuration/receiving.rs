//! Parameters of polling and receiving.

use super::{counter, puppet};
use crate::harness::{Namespaces, PYTHON, Puppet, Side};

/// Processor seconds that a statement takes.
fn effort(program: &mut Puppet, statement: &str) -> f64 {
    program.run("before = time.process_time()");
    program.run(statement);
    program.run("time.process_time() - before").parse().expect("seconds")
}

const THIRD: &str = "struct.pack('ll', 0, 300000)";

/// A blocking receive call that ends after 0.3 seconds.
fn blocked(setup: &str) -> (String, String) {
    let setup =
        format!("{setup}; s.settimeout(None); s.setsockopt(SOL_SOCKET, SO_RCVTIMEO, {THIRD})");
    let wait = "try: s.recv(1)\nexcept BlockingIOError: pass".to_owned();
    (setup, wait)
}

// covers: API-10
#[test]
fn polling_before_a_sleep_takes_as_long_as_said() {
    let net = Namespaces::new();
    let bound = blocked("s = udp(('10.99.0.1', 5000))");
    let unbound = blocked("s = udp()");
    for (set, (setup, wait), polls) in [
        (&[("VMA_RX_POLL", "-1")][..], &bound, true),
        (&[("VMA_RX_POLL", "0")], &bound, false),
        // Nothing is steered to an unbound socket.
        (&[("VMA_RX_POLL", "-1")], &unbound, false),
        (&[("VMA_RX_POLL", "0"), ("VMA_RX_POLL_INIT", "-1")], &unbound, true),
    ] {
        let mut program = puppet(&net, set);
        program.run(setup);
        let effort = effort(&mut program, wait);
        assert_eq!(effort > 0.1, polls, "{set:?} {setup}: {effort}");
    }
}

// covers: MUX-04
#[test]
fn select_polls_as_long_as_said() {
    let net = Namespaces::new();
    for (micros, polls) in [("-1", true), ("0", false)] {
        let mut program = puppet(&net, &[("VMA_SELECT_POLL", micros)]);
        program.run("s = udp(('10.99.0.1', 5000))");
        let effort = effort(&mut program, "select.select([s], [], [], 0.3)");
        assert_eq!(effort > 0.1, polls, "{micros}: {effort}");
    }
}

/// Programs that compute, as many as there are CPUs and one more: they end with the value.
struct Crowd(Vec<std::process::Child>);

impl Crowd {
    fn new() -> Crowd {
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
        let busy = || {
            let mut program = std::process::Command::new("sh");
            program.args(["-c", "while :; do :; done"]).spawn().expect("a shell")
        };
        Crowd((0..=cpus).map(|_| busy()).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }
}

#[test]
fn nobody_polls_while_others_want_the_cpus() {
    let net = Namespaces::new();
    let mut program =
        puppet(&net, &[("VMA_RX_POLL", "100000000"), ("VMA_SELECT_POLL", "100000000")]);
    let (setup, wait) = blocked("s = udp(('10.99.0.1', 5000))");
    program.run(&setup);
    let select = "select.select([s], [], [], 0.3)";
    let _crowd = Crowd::new();
    for call in [wait.as_str(), select] {
        let effort = effort(&mut program, call);
        assert!(effort < 0.02, "{call}: {effort} s of polling");
    }
}

#[test]
fn a_packet_wakes_the_thread_that_waits_for_it_and_not_all() {
    // The one that listens to the ring, the receiver, and the internal thread sleep again and again; the
    // others, if they did, 200 times each.
    let (two, eight) = (sleeps_of_receivers(2), sleeps_of_receivers(8));
    assert!(eight < two + 600, "{two} {eight}");
}

/// Calls of ppoll() of a program with so many threads that each wait for datagrams on a socket, while
/// 200 come for the first of them.
fn sleeps_of_receivers(threads: usize) -> usize {
    let net = Namespaces::new();
    let code = format!(
        "import threading\n\
         def bound(port):\n\
         \x20s = socket.socket(2, 2); s.bind(('10.99.0.1', port))\n\
         \x20s.setsockopt(1, 20, struct.pack('ll', 2, 0))\n\
         \x20return s\n\
         def wait(s):\n\
         \x20try:\n\
         \x20\x20while True: s.recv(9)\n\
         \x20except BlockingIOError: pass\n\
         sockets = [bound(5000 + i) for i in range({threads})]\n\
         threads = [threading.Thread(target=wait, args=(s,)) for s in sockets]\n\
         for t in threads: t.start()\n\
         for t in threads: t.join()"
    );
    let mut peer = net.puppet(Side::B);
    peer.run("s = udp()");
    peer.begin("time.sleep(1)\nfor _ in range(200): s.sendto(b'x', ('10.99.0.1', 5000)); time.sleep(0.003)");
    let before = net.kernel_datagrams(Side::A);
    let sleeps = system_calls(&net, &[("VMA_RX_POLL", "0")], "ppoll", &code);
    peer.end("the sending");
    assert_eq!(net.kernel_datagrams(Side::A), before);
    sleeps
}

/// Counts the system calls of a script that strace names.
fn system_calls(net: &Namespaces, set: &[(&str, &str)], call: &str, code: &str) -> usize {
    let trace = net.file("trace");
    let mut program = net.program(Side::A, "strace").with_library();
    for (name, value) in set {
        program = program.env(name, value);
    }
    let traced = if call.starts_with("RTM") { "sendto" } else { call };
    let program = program.args("-f -e").arg(&format!("trace={traced}"));
    let program = program.args("-o").arg(trace.to_str().unwrap()).arg(PYTHON).args("-c");
    program.arg(&format!("import socket, time, struct, select\n{code}")).run().ok();
    std::fs::read_to_string(trace).unwrap().lines().filter(|line| line.contains(call)).count()
}

// covers: THR-15
#[test]
fn a_polling_thread_yields_if_it_should() {
    let net = Namespaces::new();
    let code = format!(
        "s = socket.socket(2, 2); s.bind(('10.99.0.1', 5000))\n\
         s.setsockopt(1, 20, {THIRD})\n\
         try: s.recv(1)\nexcept BlockingIOError: pass"
    );
    let yields = |value| {
        // For ever: else it sleeps while the machine is crowded.
        let set = [("VMA_RX_POLL", "-1"), ("VMA_RX_POLL_YIELD", value)];
        system_calls(&net, &set, "sched_yield", &code)
    };
    let (without, with) = (yields("0"), yields("1"));
    assert!(with > 100 && without < 20, "{without} {with}");
}

// covers: THR-01
#[test]
fn a_polling_thread_is_left_alone_by_the_internal_one_on_its_cpu() {
    let net = Namespaces::new();
    // The internal thread begins with the first socket, and where this one runs.
    let code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n\
                s = socket.socket(2, 2); s.bind(('10.99.0.1', 5000))\n\
                s.setsockopt(1, 20, struct.pack('ll', 5, 0))\n\
                try: s.recv(1)\nexcept BlockingIOError: pass";
    // Whoever waits for the shard's lock yields.
    let yields = system_calls(&net, &[("VMA_RX_POLL", "-1")], "sched_yield", code);
    assert!(yields < 20, "{yields} in five seconds");
}

// covers: MUX-05, MUX-06
#[test]
fn the_kernels_descriptors_are_looked_at_as_often_as_said() {
    let net = Namespaces::new();
    let code = "s = socket.socket(2, 2); s.bind(('10.99.0.1', 5000))\n\
                a, b = socket.socketpair(); p = select.poll(); p.register(s, 1); p.register(a, 1)\n\
                t = socket.socket(2, 2); t.sendto(b'x', ('127.0.0.1', 9))\n\
                for _ in range(200): p.poll(5)";
    let looks = |set: &[(&str, &str)]| system_calls(&net, set, "ppoll", code);
    let rarely = looks(&[("VMA_SELECT_POLL", "-1"), ("VMA_SELECT_POLL_OS_RATIO", "0")]);
    let often = looks(&[("VMA_SELECT_POLL", "-1"), ("VMA_SELECT_POLL_OS_RATIO", "5000")]);
    let forced = looks(&[("VMA_SELECT_POLL", "-1"), ("VMA_SELECT_POLL_OS_FORCE", "1")]);
    assert!(rarely + 100 < often && often * 2 < forced, "{rarely} {often} {forced}");
}

#[test]
fn routes_are_asked_for_again_as_often_as_said() {
    let net = Namespaces::new();
    let code = "s = socket.socket(2, 2); s.bind(('10.99.0.1', 5000))\n\
                for _ in range(100): s.sendto(b'x', ('10.99.0.2', 9)); time.sleep(0.01)";
    let looks = |millis| system_calls(&net, &[("VMA_NETLINK_TIMER", millis)], "RTM_GETROUTE", code);
    let (seldom, often) = (looks("10000"), looks("100"));
    assert!(often >= seldom + 4, "{seldom} {often}");
}

/// Sends datagrams of a size, which nobody reads yet; returns how many the program then finds.
#[track_caller]
fn kept(program: &mut Puppet, net: &Namespaces, count: usize, size: usize) -> i64 {
    let peer = net.socket(Side::B);
    for _ in 0..count {
        peer.send_to(&vec![0; size], Side::A.at(5000)).unwrap();
    }
    program.number("len(drain(s))")
}

#[test]
fn a_small_receive_buffer_is_as_large_as_the_least_one() {
    let net = Namespaces::new();
    for (least, all) in [("65536", true), ("0", false)] {
        let mut program = puppet(&net, &[("VMA_RX_BYTES_MIN", least)]);
        program.run("s = udp(('10.99.0.1', 5000)); s.setsockopt(SOL_SOCKET, SO_RCVBUF, 1)");
        let kept = kept(&mut program, &net, 20, 1000);
        assert_eq!(kept == 20, all, "{least}: {kept}");
    }
}

/// The bytes of the mapping that the frames lie in.
fn has_mapping(program: &mut Puppet, bytes: u64) -> bool {
    let sizes = "[int(b, 16) - int(a, 16) for a, b in (l.split()[0].split('-') for l in open('/proc/self/maps'))]";
    program.run(&format!("{bytes} in {sizes}")) == "True"
}

#[test]
fn an_interface_has_as_many_frames_as_said() {
    let net = Namespaces::new();
    let mut program = puppet(&net, &[("VMA_RX_BUFS", "512"), ("VMA_TX_BUFS", "4K")]);
    program.run("s = udp(('10.99.0.1', 5000))");
    assert!(has_mapping(&mut program, 512 * 2048) && has_mapping(&mut program, 4096 * 2048));
    // No more than the frames can be kept, if nobody polls.
    let kept = kept(&mut program, &net, 1000, 10);
    assert!((200..=600).contains(&kept), "{kept}");
    program.finish();
    let mut program = puppet(&net, &[]);
    program.run("s = udp(('10.99.0.1', 5000))");
    assert!(has_mapping(&mut program, 8192 * 2048) && has_mapping(&mut program, 2048 * 2048));
    program.finish();
    // At the XDP hook all lie in one UMEM.
    let mut program = puppet(&net, &[("VMA_XDP_MODE", "generic")]);
    program.run("s = udp(('10.99.0.1', 5000))");
    assert!(has_mapping(&mut program, (8192 + 2048) * 2048));
}

#[test]
fn as_many_packets_may_come_before_a_poll_as_said() {
    let net = Namespaces::new();
    let nobody_else = ("VMA_PROGRESS_ENGINE_INTERVAL", "0");
    for (posted, all) in [("128", false), ("1000", true)] {
        let mut program = puppet(&net, &[("VMA_RX_WRE", posted), nobody_else]);
        program.run("s = udp(('10.99.0.1', 5000)); s.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 20)");
        let before = counter(&net, Side::A, "Udp", "InDatagrams");
        let kept = kept(&mut program, &net, 400, 10);
        assert_eq!(counter(&net, Side::A, "Udp", "InDatagrams"), before);
        assert_eq!(kept == 400, all, "{posted}: {kept}");
        assert!(all || (64..=200).contains(&kept), "{posted}: {kept}");
    }
}

#[test]
fn packets_that_wait_for_their_reader_do_not_count() {
    let net = Namespaces::new();
    let set = [("VMA_RX_WRE", "128"), ("VMA_PROGRESS_ENGINE_INTERVAL", "0")];
    let mut program = puppet(&net, &set);
    program.run("s = udp(('10.99.0.1', 5000)); s.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 20)");
    program.run("o = udp(('10.99.0.1', 5001)); o.setblocking(False)");
    let before = counter(&net, Side::A, "Udp", "InDatagrams");
    let peer = net.socket(Side::B);
    for _ in 0..10 {
        // Frames are posted again by 64.
        for _ in 0..40 {
            peer.send_to(&[0; 10], Side::A.at(5000)).unwrap();
        }
        // Polls, and finds nothing for itself.
        program.run("drain(o)");
    }
    assert_eq!(program.number("len(drain(s))"), 400);
    assert_eq!(counter(&net, Side::A, "Udp", "InDatagrams"), before);
}

/// A socket `s` whose datagrams tell when they were taken from the ring, and one `o`.
fn stamped(net: &Namespaces, set: &[(&str, &str)]) -> Puppet {
    let mut program = puppet(net, set);
    program.run("s = udp(('10.99.0.1', 5000)); o = udp(('10.99.0.1', 5001))");
    program.run("s.setsockopt(SOL_SOCKET, 35, 1)"); // SO_TIMESTAMPNS
    program.run(
        "def age():\n data, control, _, _ = s.recvmsg(10, 100)\n a, b = struct.unpack('ll', control[0][2])\n \
         return time.time() - a - b / 1e9",
    );
    program
}

/// How long ago the one datagram was taken that waits in the ring while the program sleeps.
#[track_caller]
fn age(net: &Namespaces, program: &mut Puppet) -> f64 {
    let peer = net.socket(Side::B);
    peer.send_to(b"x", Side::A.at(5000)).unwrap();
    program.run("time.sleep(0.4)");
    program.run("age()").parse().expect("seconds")
}

// covers: THR-01, THR-10
#[test]
fn rings_that_nobody_polls_are_drained_as_said() {
    let net = Namespaces::new();
    for (set, drained) in [
        (&[("VMA_PROGRESS_ENGINE_INTERVAL", "10")][..], true),
        (&[("VMA_PROGRESS_ENGINE_INTERVAL", "0")], false),
        (&[("VMA_PROGRESS_ENGINE_INTERVAL", "0"), ("VMA_INTERNAL_THREAD_ARM_CQ", "1")], true),
    ] {
        let mut program = stamped(&net, set);
        let age = age(&net, &mut program);
        assert_eq!(age > 0.2, drained, "{set:?}: {age}");
    }
}

// covers: THR-02
#[test]
fn the_internal_thread_takes_as_many_packets_at_once_as_said() {
    let net = Namespaces::new();
    for (most, at_once) in [("10000", true), ("0", false)] {
        let set = [("VMA_PROGRESS_ENGINE_INTERVAL", "300"), ("VMA_PROGRESS_ENGINE_WCE_MAX", most)];
        let mut program = stamped(&net, &set);
        let peer = net.socket(Side::B);
        for _ in 0..200 {
            peer.send_to(b"x", Side::A.at(5000)).unwrap();
        }
        program.run("time.sleep(1.0)");
        program.run("ages = [age() for _ in range(200)]");
        let spread: f64 = program.run("max(ages) - min(ages)").parse().unwrap();
        assert_eq!(spread < 0.2, at_once, "{most}: {spread}");
    }
}

// covers: API-10
#[test]
fn what_has_arrived_is_taken_as_often_as_said_though_something_is_queued() {
    let net = Namespaces::new();
    for (rate, drained) in [("1000", true), ("0", false)] {
        let set = [("VMA_PROGRESS_ENGINE_INTERVAL", "0"), ("VMA_RX_CQ_DRAIN_RATE_NSEC", rate)];
        let mut program = stamped(&net, &set);
        let peer = net.socket(Side::B);
        peer.send_to(b"1", Side::A.at(5001)).unwrap();
        peer.send_to(b"2", Side::A.at(5001)).unwrap();
        // Without a timeout, which Python would wait for with poll().
        program.run("o.settimeout(None); o.recv(1)");
        peer.send_to(b"3", Side::A.at(5000)).unwrap();
        // One is queued: is the ring looked at, too?
        program.run("time.sleep(0.01); o.recv(1); time.sleep(0.4)");
        let age: f64 = program.run("age()").parse().unwrap();
        assert_eq!(age > 0.2, drained, "{rate}: {age}");
    }
}
