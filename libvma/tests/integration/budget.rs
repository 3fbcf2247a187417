//! What the library may cost a process.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Namespaces, PYTHON, Puppet, Side, library, wait_for};

// covers: INS-38
#[test]
fn a_process_with_one_udp_socket_stays_below_64_mib() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    let resident = "int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGESIZE')";
    let bare = program.number(resident);
    program.run("s = udp(('10.99.0.1', 5000))");
    let idle = program.number(resident);
    let peer = net.socket(Side::B);
    let watch = net.watch(Side::A);
    // More datagrams than there are frames, so that every frame was touched.
    for _ in 0..300 {
        program.begin("echo(s, 40)");
        for _ in 0..40 {
            peer.send_to(&[7; 1400], Side::A.at(5000)).unwrap();
        }
        program.end("echo(s, 40)");
        for _ in 0..40 {
            peer.recv(&mut [0; 1500]).unwrap();
        }
    }
    watch.still();
    let busy = program.number(resident);
    let mib = |bytes: i64| bytes as f64 / 1_048_576.0;
    let text = format!(
        "resident MiB: {:.1} before the socket, {:.1} with it, {:.1} after 12000 datagrams",
        mib(bare),
        mib(idle),
        mib(busy)
    );
    println!("{text}");
    assert!(busy <= 64 << 20, "{text}");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn time_true(preloaded: bool) -> Duration {
    let mut command = Command::new("/bin/true");
    command.env_clear().stdin(Stdio::null());
    if preloaded {
        command.env("LD_PRELOAD", library());
    }
    let begin = Instant::now();
    assert!(command.status().unwrap().success());
    begin.elapsed()
}

/// Medians of 41 alternating runs, without and with the library.
fn start_up() -> (Duration, Duration) {
    let (mut plain, mut preloaded) = (Vec::new(), Vec::new());
    for _ in 0..41 {
        plain.push(time_true(false));
        preloaded.push(time_true(true));
    }
    (median(plain), median(preloaded))
}

// covers: LIM-46
#[test]
fn a_program_without_sockets_starts_at_most_2_ms_later() {
    // The best of three: a busy machine slows everything down.
    let rounds = [start_up(), start_up(), start_up()];
    let added = rounds.iter().map(|(plain, with)| with.saturating_sub(*plain)).min().unwrap();
    let text = format!("medians of 41 without and with: {rounds:?}: {added:?} added");
    println!("{text}");
    assert!(added <= Duration::from_millis(2), "{text}");
}

// covers: LIM-46
#[test]
fn the_first_socket_costs_at_most_30_ms() {
    let net = Namespaces::new();
    let mut times = Vec::new();
    for _ in 0..11 {
        let mut program = net.puppet(Side::A);
        program
            .run("begin = time.monotonic(); s = udp(('10.99.0.1', 5000)); end = time.monotonic()");
        assert!(net.is_steered(Side::A), "it is offloaded");
        let micros = program.number("int((end - begin) * 1e6)");
        times.push(Duration::from_micros(micros.unsigned_abs()));
        program.finish();
        // The kernel closes what it has left, for which the next one would wait.
        let is_closed = || net.read_proc(Side::A, "packet").lines().count() == 1;
        wait_for("its packet sockets are closed", || is_closed().then_some(()));
    }
    times.sort_unstable();
    // The fastest: what the library itself costs, whatever else the machine does. Half of it is the
    // kernel's attaching of the program, which waits for an RCU grace period.
    let (best, worst) = (times[0], times[times.len() - 1]);
    let middle = median(times);
    let text =
        format!("first socket and bind, of 11: {best:?}, median {middle:?}, worst {worst:?}");
    println!("{text}");
    assert!(best <= Duration::from_millis(30), "{text}");
}

/// So many programs can have an interface at once.
const MOST_SHARERS: usize = 8;

/// Runs code of the puppet's, which takes the time of something in seconds, in so many new programs:
/// the times in order.
fn times(net: &Namespaces, count: usize, timed: &str) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            let mut program = net.puppet(Side::A);
            program.run("c = socket(AF_INET, SOCK_STREAM); c.setblocking(False)");
            program.run(&format!("begin = time.monotonic()\n{timed}\nend = time.monotonic()"));
            let micros = program.number("int((end - begin) * 1e6)");
            program.finish();
            Duration::from_micros(micros.unsigned_abs())
        })
        .collect();
    times.sort_unstable();
    times
}

// covers: LIM-46
#[test]
fn a_process_that_cannot_have_the_interface_learns_it_at_once() {
    let net = Namespaces::new();
    let hold = |port: usize| {
        let mut holder = net.puppet(Side::A);
        holder.run(&format!("s = udp(('10.99.0.1', {port}))"));
        holder
    };
    let mut holders: Vec<Puppet> = (5000..5000 + MOST_SHARERS).map(hold).collect();
    let before = net.kernel_tcp(Side::A).opened;
    let times = times(&net, 7, "c.connect_ex(('10.99.0.2', 9))");
    assert_eq!(net.kernel_tcp(Side::A).opened - before, 7, "the kernel serves the others");
    let text = format!("connect() where others have the interface: {times:?}");
    println!("{text}");
    assert!(times[0] <= Duration::from_millis(3), "{text}");
    let mut ninth = net.puppet(Side::A);
    ninth.run("c = socket(AF_INET, SOCK_STREAM); c.connect_ex(('10.99.0.2', 9))");
    let told = format!("{MOST_SHARERS} programs have it by the library, which is the limit");
    assert!(ninth.stderr().contains(&told), "{}", ninth.stderr());
    drop(ninth);
    // There is room again.
    holders.pop().unwrap().kill();
    let before = net.kernel_tcp(Side::A).opened;
    let mut last = net.puppet(Side::A);
    last.run("c = socket(AF_INET, SOCK_STREAM); c.connect_ex(('10.99.0.2', 9))");
    assert_eq!(net.kernel_tcp(Side::A).opened - before, 0, "the last one is served");
}

// covers: LIM-46
#[test]
fn a_server_that_is_started_again_waits_for_its_predecessors_end() {
    let net = Namespaces::new();
    let mut holder = net.puppet(Side::A);
    holder.run("s = udp(('10.99.0.1', 5000))");
    let mut program = net.puppet(Side::A);
    program.begin("s = udp(('10.99.0.1', 5001))");
    holder.kill();
    program.end("s = udp(('10.99.0.1', 5001))");
    let peer = net.socket(Side::B);
    let watch = net.watch(Side::A);
    program.begin("echo(s)");
    peer.send_to(&[7; 100], Side::A.at(5001)).unwrap();
    program.end("echo(s)");
    peer.recv(&mut [0; 200]).unwrap();
    watch.still();
}

/// How long socket(), connect() and a send take in new programs: the fastest of each.
fn first_calls(net: &Namespaces, with_library: bool) -> [Duration; 3] {
    let mut best = [Duration::MAX; 3];
    for _ in 0..9 {
        let program = net.program(Side::A, PYTHON);
        let program = match with_library {
            true => program.with_library().env("VMA_XDP_ATTACH", "background"),
            false => program,
        };
        let mut program = Puppet::start(program);
        program.run("t = [time.monotonic()]\nc = socket(AF_INET, SOCK_STREAM)\nt.append(time.monotonic())\nc.connect(('10.99.0.2', 7000))\nt.append(time.monotonic())\nc.send(b'x')\nt.append(time.monotonic())");
        for (at, best) in best.iter_mut().enumerate() {
            let micros = program.number(&format!("int((t[{at} + 1] - t[{at}]) * 1e6)"));
            *best = (*best).min(Duration::from_micros(micros.unsigned_abs()));
        }
        program.finish();
    }
    best
}

// covers: LIM-46
#[test]
fn first_calls_cost_at_most_2_ms_more_than_the_kernels() {
    let net = Namespaces::new();
    let mut server = Puppet::start(net.program(Side::B, PYTHON));
    server.run("l = create_server(('10.99.0.2', 7000), backlog=64)");
    let (kernels, ours) = (first_calls(&net, false), first_calls(&net, true));
    let text = format!("socket, connect, send: {kernels:?} by the kernel, {ours:?} under libvma");
    println!("{text}");
    for (kernels, ours) in kernels.into_iter().zip(ours) {
        assert!(ours <= kernels + Duration::from_millis(2), "{text}");
    }
}
