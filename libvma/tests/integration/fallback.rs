//! Where offload is impossible the kernel serves, and the program does not notice.

use crate::harness::{
    Hook, Namespaces, PYTHON, Program, Puppet, Side, kernel_version, library, wait_for,
};

/// The program echoes; its datagrams go through the kernel. Returns what it printed.
#[track_caller]
fn works_on_the_kernel(net: &Namespaces, program: Program<'_>) -> String {
    let mut program = Puppet::start(program);
    let peer = net.socket(Side::B);
    let before = net.kernel_datagrams(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    for n in 0..20u8 {
        peer.send_to(&[n; 50], Side::A.at(5000)).unwrap();
        program.run("echo(s)");
        let mut buffer = [0; 100];
        assert_eq!(peer.recv(&mut buffer).unwrap(), 50);
        assert_eq!(buffer[..50], [n; 50]);
    }
    let after = net.kernel_datagrams(Side::A);
    assert_eq!((after.0 - before.0, after.1 - before.1), (20, 20), "by the kernel");
    assert!(!net.is_steered(Side::A), "nothing is attached");
    program.finish();
    program.stderr()
}

fn warnings(printed: &str) -> Vec<&str> {
    printed.lines().filter(|line| line.starts_with("VMA WARNING")).collect()
}

// covers: RUN-09, LIM-09, LIM-74, TRB-10
#[test]
fn without_capabilities() {
    let net = Namespaces::new();
    let program = net.program(Side::A, "setpriv");
    let program = program.args("--bounding-set=-all --inh-caps=-all").arg(PYTHON).with_library();
    let printed = works_on_the_kernel(&net, program);
    assert_eq!(warnings(&printed).len(), 1, "{printed}");
}

// covers: RUN-09
#[test]
fn the_documented_capabilities_are_enough_for_the_best_mode() {
    let net = Namespaces::new();
    let program = net.program(Side::A, "prlimit").with_library();
    let (locked, more) = if kernel_version() < (5, 11) { (32, ",+perfmon") } else { (8, "") };
    let program = program.args(&format!("--memlock={} setpriv --inh-caps=-all", locked << 20));
    let caps = format!("--bounding-set=-all,+net_admin,+net_raw,+bpf,+ipc_lock{more}");
    let mut program = Puppet::start(program.arg(&caps).arg(PYTHON));
    program.run("s = udp(('10.99.0.1', 5000))");
    assert_eq!(net.steering(Side::A), Some(Hook::best()));
    let watch = net.watch(Side::A);
    let peer = net.socket(Side::B);
    program.begin("echo(s)");
    peer.send_to(b"there and back", Side::A.at(5000)).unwrap();
    program.end("echo(s)");
    let mut buffer = [0; 100];
    let (len, _) = peer.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"there and back");
    watch.check(&program.finish(), 1, 1);
}

// covers: RUN-09, LIM-09, LIM-74, TRB-10
#[test]
fn as_an_ordinary_user() {
    use std::os::unix::fs::PermissionsExt;
    let net = Namespaces::new();
    // Where that user may read it and write.
    let copy = net.file("libvma.so");
    std::fs::copy(library(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&net.dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let program = net.program(Side::A, "setpriv").with_library();
    let program = program.args("--reuid=65534 --regid=65534 --clear-groups env");
    let program = program.arg(&format!("LD_PRELOAD={}", copy.display())).arg(PYTHON);
    let printed = works_on_the_kernel(&net, program.env("LD_PRELOAD", ""));
    assert!(printed.contains("VMA_VERSION"), "{printed}");
    assert_eq!(warnings(&printed).len(), 1, "{printed}");
}

// covers: RUN-09, LIM-09
#[test]
fn what_the_user_can_change_is_told_once() {
    let net = Namespaces::new();
    let told = |command: &str, statements: &[&str]| {
        let program = net.program(Side::A, command.split(' ').next().unwrap()).with_library();
        let arguments = command.split_once(' ').map_or("", |(_, rest)| rest);
        let mut program = Puppet::start(program.args(arguments));
        for statement in statements {
            program.run(statement);
        }
        program.finish();
        let printed = program.stderr();
        warnings(&printed).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let connect = "c = socket(); c.connect_ex(('10.99.0.2', 7000)); c.close()";
    // A user's program.
    let setpriv = format!("setpriv --bounding-set=-all --inh-caps=-all {PYTHON}");
    let lines = told(&setpriv, &[connect, connect, "u = udp(('10.99.0.1', 5000))"]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("lacks CAP_NET_ADMIN") && lines[0].contains("as root"), "{lines:?}");
    // One that gives up root after it has listened, and before it accepts.
    let serve = "l = socket(); l.bind(('0.0.0.0', 7003)); l.listen(); l.setblocking(False)";
    let accept = "import select; select.select([l], [], [], 0)";
    let lines = told(PYTHON, &[serve, "os.setuid(65534)", accept, accept]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("from other hosts") && lines[0].contains("keep them"), "{lines:?}");
    // An option that only the kernel serves, of each kind of socket.
    for (make, option) in [("s = udp(('10.99.0.1', 5000))", "1, 47"), ("s = socket()", "1, 37")] {
        let name = if option == "1, 47" { "SO_MAX_PACING_RATE" } else { "SO_TIMESTAMPING" };
        let set = format!("s.setsockopt({option}, 16)");
        let lines =
            told(PYTHON, &[make, &set, "s = udp(('10.99.0.1', 5001)); s.setsockopt(1, 47, 99)"]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(&format!("it has {name}, which only the kernel")), "{lines:?}");
        assert!(lines[0].contains("VMA_EXCEPTION_HANDLING=2"), "{lines:?}");
    }
    // IPv6: not for a try, not for the loopback, once for what is used.
    let v6 = "s = socket(AF_INET6, SOCK_STREAM)";
    assert_eq!(told(PYTHON, &[v6, "s.bind(('::1', 7001)); s.listen()"]), [""; 0]);
    // What takes IPv4, too, is served as far as that is what it takes.
    assert_eq!(told(PYTHON, &[v6, "s.bind(('::', 7001)); s.listen()"]), [""; 0]);
    let udp = "t = socket(AF_INET6, SOCK_DGRAM)";
    assert_eq!(told(PYTHON, &[udp, "t.bind(('::', 7002))", "t.close()"]), [""; 0]);
    // One that takes IPv6 only is served over the loopback.
    let only = [
        v6,
        "s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1); s.bind(('::', 7001)); s.listen()",
        udp,
        "t.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1); t.bind(('::', 7002))",
    ];
    assert_eq!(told(PYTHON, &only), [""; 0]);
    // IPV6_FREEBIND: addresses that the host does not have, one of them link-local.
    let foreign = [
        v6,
        "s.setsockopt(IPPROTO_IPV6, 78, 1); s.bind(('2001:db8::1', 7001)); s.listen()",
        udp,
        "t.setsockopt(IPPROTO_IPV6, 78, 1); t.bind(('fe80::1', 7002, 0, if_nametoindex('veth-a')))",
    ];
    let lines = told(PYTHON, &foreign);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("it is an IPv6 socket; an IPv4 socket is served"), "{lines:?}");
}

// covers: NET-06, RUN-19
#[test]
fn switched_off_by_vma_xdp() {
    let net = Namespaces::new();
    for value in ["off", "0", "another0"] {
        let program = net.program(Side::A, PYTHON).with_library().env("VMA_XDP", value);
        let printed = works_on_the_kernel(&net, program);
        assert!(warnings(&printed).is_empty(), "as the administrator wished: {printed}");
    }
}

// covers: API-01
#[test]
fn switched_off_by_vma_offloaded_sockets() {
    let net = Namespaces::new();
    let program = net.program(Side::A, PYTHON).with_library().env("VMA_OFFLOADED_SOCKETS", "0");
    let printed = works_on_the_kernel(&net, program);
    assert!(warnings(&printed).is_empty(), "{printed}");
}

// covers: NET-06, LIM-34, RUN-19
#[test]
fn loopback_is_the_kernels() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("a = udp(('127.0.0.1', 0)); b = udp(('127.0.0.1', 0))");
    program.run("a.sendto(b'ping', b.getsockname())");
    assert_eq!(program.run("b.recvfrom(10) == (b'ping', a.getsockname())"), "True");
    // To the own address of an offloaded interface, too.
    program.run("c = udp(('10.99.0.1', 5000)); d = udp(('0.0.0.0', 5001))");
    for from in ["a", "c", "d"] {
        if from != "a" {
            program.run(&format!("{from}.sendto(b'{from}', ('10.99.0.1', 5000))"));
            assert_eq!(program.run("c.recv(10)"), format!("b'{from}'"));
        }
        program.run(&format!("{from}.sendto(b'{from}', ('127.0.0.1', 5001))"));
        assert_eq!(program.run("d.recv(10)"), format!("b'{from}'"));
    }
    assert!(warnings(&program.stderr()).is_empty(), "{}", program.stderr());
}

// covers: LIM-34
#[test]
fn an_offloaded_process_and_an_ordinary_one_of_the_same_host_reach_each_other() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    let neighbour = net.socket(Side::A);
    neighbour.send_to(b"inside", Side::A.at(5000)).unwrap();
    program.run("echo(s)");
    let mut buffer = [0; 10];
    let (len, from) = neighbour.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..len], from), (&b"inside"[..], Side::A.at(5000).into()));
}

// covers: RUN-19
#[test]
fn a_second_process_on_the_interface_uses_the_kernel() {
    let net = Namespaces::new();
    // At the XDP hook there is room for one.
    let generic = || {
        Puppet::start(net.program(Side::A, PYTHON).with_library().env("VMA_XDP_MODE", "generic"))
    };
    let (mut first, mut second) = (generic(), generic());
    first.run("s = udp(('10.99.0.1', 5000))");
    second.run("s = udp(('10.99.0.1', 5001))");
    let peer = net.socket(Side::B);
    for n in 0..20u8 {
        for (program, port) in [(&mut second, 5001), (&mut first, 5000)] {
            let before = net.kernel_datagrams(Side::A);
            peer.send_to(&[n; 50], Side::A.at(port)).unwrap();
            program.run("echo(s)");
            let mut buffer = [0; 100];
            assert_eq!(peer.recv(&mut buffer).unwrap(), 50, "port {port}");
            let after = net.kernel_datagrams(Side::A);
            let through_kernel = (after.0 - before.0, after.1 - before.1);
            let expected = if port == 5001 { (1, 1) } else { (0, 0) };
            assert_eq!(through_kernel, expected, "port {port}");
        }
    }
    assert_eq!(warnings(&second.stderr()).len(), 1, "{}", second.stderr());
    assert_eq!(warnings(&first.stderr()).len(), 0, "{}", first.stderr());
    // The first one's end leaves the interface to a new process.
    first.finish();
    wait_for("nothing is attached", || (!net.is_steered(Side::A)).then_some(()));
    let mut third = generic();
    third.run("s = udp(('10.99.0.1', 5002))");
    assert!(net.is_steered(Side::A));
}

// covers: LIM-21, TRB-21
#[test]
fn with_few_descriptors() {
    let net = Namespaces::new();
    for limit in [16, 20, 24, 32, 64, 128, 256] {
        let program = net.program(Side::A, "prlimit");
        let program = program.arg(&format!("--nofile={limit}:{limit}")).arg(PYTHON).with_library();
        let mut program = Puppet::start(program);
        let peer = net.socket(Side::B);
        program.run("s = udp(('10.99.0.1', 5000))");
        for n in 0..5u8 {
            peer.send_to(&[n; 50], Side::A.at(5000)).unwrap();
            program.run("echo(s)");
            assert_eq!(peer.recv(&mut [0; 100]).unwrap(), 50, "limit {limit}");
        }
        // What the program may open is, but for a few, what the limit says.
        program.run(
            "
files = []
try:
    while True: files.append(os.dup(0))
except OSError as problem: reason = problem.errno",
        );
        assert_eq!(program.run("reason == errno.EMFILE"), "True");
        assert_eq!(program.run("udp.__name__"), "'udp'");
        let exception = program.raises("socket(AF_INET, SOCK_DGRAM)");
        assert!(exception.contains("Too many open files"), "{exception}");
        // With none left the socket goes on working.
        peer.send_to(b"still", Side::A.at(5000)).unwrap();
        program.run("echo(s)");
        assert_eq!(peer.recv(&mut [0; 100]).unwrap(), 5, "limit {limit}");
        program.run("for fd in files: os.close(fd)");
        program.finish();
        // What was missing, once, and what helps.
        let printed = program.stderr();
        let lines = warnings(&printed);
        let told = lines.iter().filter(|line| line.contains("ulimit -n")).count();
        assert!(told == 1 || (told == 0 && limit >= 128), "limit {limit}: {printed}");
    }
}

// covers: LIM-73, TRB-04
#[test]
fn with_little_locked_memory() {
    let net = Namespaces::new();
    let program = net.program(Side::A, "prlimit").args("--memlock=65536:65536 setpriv");
    let program = program.args("--bounding-set=-all,+net_admin,+net_raw,+bpf,+perfmon");
    let program = program.args("--inh-caps=-all").arg(PYTHON);
    let mut program = Puppet::start(program.with_library());
    let peer = net.socket(Side::B);
    program.run("s = udp(('10.99.0.1', 5000))");
    peer.send_to(b"hello", Side::A.at(5000)).unwrap();
    program.run("echo(s)");
    assert_eq!(peer.recv(&mut [0; 100]).unwrap(), 5);
    assert!(!net.is_steered(Side::A), "nothing is attached");
    program.finish();
    let printed = program.stderr();
    let [line] = warnings(&printed)[..] else { panic!("one warning: {printed}") };
    assert!(line.contains("veth-a is not offloaded") && line.contains("ulimit -l"), "{line}");
}

// covers: RUN-12
#[test]
fn nonsense_in_the_environment_is_survived() {
    let net = Namespaces::new();
    let variables = [
        ("VMA_RX_BUFS", "-3"),
        ("VMA_TX_BUFS", "99999999999999999999999"),
        ("VMA_RX_POLL", "lots"),
        ("VMA_SELECT_POLL", ""),
        ("VMA_XDP", ",,,"),
        ("VMA_XDP_MODE", "\u{1F980}"),
        ("VMA_TRACELEVEL", "loud"),
        ("VMA_LOG_FILE", "/there/is/no/such/folder/%d"),
        ("VMA_STATS_FILE", "%d%d%s%n"),
        ("VMA_INTERNAL_THREAD_AFFINITY", "1000"),
    ];
    let all =
        variables.iter().fold(net.program(Side::A, PYTHON).with_library(), |program, pair| {
            program.env(pair.0, pair.1)
        });
    works_on_the_kernel(&net, all);
    for (name, value) in variables {
        let program = net.program(Side::A, PYTHON).with_library().env(name, value);
        let mut program = Puppet::start(program);
        let peer = net.socket(Side::B);
        program.run("s = udp(('10.99.0.1', 5000))");
        peer.send_to(b"hello", Side::A.at(5000)).unwrap();
        program.run("echo(s)");
        assert_eq!(peer.recv(&mut [0; 100]).unwrap(), 5, "{name}={value}");
        program.finish();
    }
}
