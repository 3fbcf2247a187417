//! nginx: in one process, and as people run it, with a worker that inherits the listener; with curl
//! and ab as clients.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::dual_stack::with_ipv6;
use crate::harness::{Ends, Library, PYTHON, Puppet, Shown, Side, wait_for};

use super::curl::{assert_same, random_file};

const MIB: u64 = 1 << 20;

/// Starts nginx in `ends`' directory, where `www` is what it serves.
#[track_caller]
pub fn start(ends: &Ends, has_worker: bool, sendfile: bool) -> Shown {
    start_at("10.99.0.1:8080", ends, u8::from(has_worker), sendfile)
}

/// As [`start`], with another address to listen at, and so many workers; without any, nginx is one process.
#[track_caller]
pub fn start_at(address: &str, ends: &Ends, workers: u8, sendfile: bool) -> Shown {
    let dir = ends.net.dir.display();
    std::fs::create_dir_all(ends.net.file("www")).unwrap();
    std::fs::write(ends.net.file("www/small"), "small answer\n").unwrap();
    let switch = |on: bool| if on { "on" } else { "off" };
    // The worker as root too: another user could not open an AF_XDP socket. The library's variables
    // reach it because nginx only cleans the environment of what it starts anew.
    let configuration = format!(
        "daemon off; master_process {}; worker_processes {}; user root; pid {dir}/pid;
         error_log stderr warn;
         events {{ worker_connections 512; }}
         http {{
             access_log off; sendfile {}; tcp_nopush on; keepalive_requests 100000;
             client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
             fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi;
             scgi_temp_path {dir}/scgi;
             server {{ listen {address}; root {dir}/www; }}
         }}",
        switch(workers > 0),
        workers.max(1),
        switch(sendfile)
    );
    let path = ends.net.file("nginx.conf");
    std::fs::write(&path, configuration).unwrap();
    let server = ends.server("nginx").args("-e stderr -c").arg(path.to_str().unwrap());
    let server = server.start_shown();
    ends.net.wait_for_listener(Side::A, 8080);
    server
}

#[track_caller]
fn curl_and_ab(library: Library, has_worker: bool) {
    let ends = Ends::new(library);
    let watch = if has_worker { ends.watch_with_inherited() } else { ends.watch() };
    let server = start(&ends, has_worker, true);
    let url = "http://10.99.0.1:8080/small";

    // Three answers over one connection.
    let words = "-sS --max-time 20 -w %{num_connects};";
    let curl = ends.client("curl").args(words).args(&[url; 3].join(" ")).run().ok();
    assert_eq!(curl.stdout, "small answer\n1;small answer\n0;small answer\n0;");
    let missing =
        ends.client("curl").args("-sS -w =%{http_code} -o /dev/null").arg(&format!("{url}er"));
    missing.run().says("=404");

    let (kept, single) = (4000, 1000);
    for (words, requests) in [("-k -c 20", kept), ("-c 20", single)] {
        let words = format!("-q -n {requests} -s 20 {words}");
        let ab = ends.client("ab").args(&words).arg(url).run().ok();
        assert_eq!(ab.number("Complete requests:"), f64::from(requests), "{}", ab.stdout);
        assert_eq!(ab.number("Failed requests:"), 0.0, "{}", ab.stdout);
    }
    random_file(&ends.net.file("www/large"), 64 * MIB, 1);
    let target = ends.net.file("got");
    let curl = ends.client("curl").args("-sS --max-time 50 http://10.99.0.1:8080/large -o");
    curl.arg(target.to_str().unwrap()).run().ok();
    assert_same(&ends.net.file("www/large"), &target);

    // Of ab's connections the last twenty of each run are closed at its end.
    watch.still(3 + 2 * 20);
    drop(server);
}

// covers: API-07, API-09, NET-03
#[test]
fn nginx_with_library() {
    curl_and_ab(Library::Server, false);
}

// covers: NET-03
#[test]
fn curl_and_ab_with_library() {
    curl_and_ab(Library::Client, false);
}

// covers: API-09, NET-03
#[test]
fn nginx_curl_and_ab_with_library() {
    curl_and_ab(Library::Both, false);
}

// covers: API-34, LIM-22
#[test]
fn nginx_with_a_worker_with_library() {
    curl_and_ab(Library::Server, true);
}

// covers: API-34, LIM-22
#[test]
fn nginx_with_a_worker_curl_and_ab_with_library() {
    curl_and_ab(Library::Both, true);
}

/// Clients that keep their connections to nginx at the addresses of `servers`, in turn.
const KEPT: &str = "
def ask(s):
    s.sendall(b'GET /small HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
    got = b''
    while not got.endswith(b'small answer\\n'):
        more = s.recv(4096)
        if not more: raise EOFError
        got += more
def connect(n): return [create_connection((servers[i % len(servers)], 8080), 10) for i in range(n)]
def talk():
    for s in clients:
        for n in range(4): ask(s)
clients = connect(16)
talk()
def ended():
    gone, still = [], []
    for s in clients:
        s.setblocking(False)
        try: gone.append(s.recv(1))
        except BlockingIOError: still.append(s)
        except OSError as problem: gone.append(problem.errno)
        s.settimeout(10)
    clients[:] = still
    return set(gone)
";

/// The worker that has most descriptors, so also connections.
fn busiest_worker(ends: &Ends) -> i32 {
    let master = std::fs::read_to_string(ends.net.file("pid")).unwrap();
    let master = master.trim();
    let children =
        std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap();
    let workers = children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
    let open = |pid: &i32| {
        std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count())
    };
    workers.max_by_key(open).expect("a worker")
}

#[track_caller]
fn wait_until_served(ends: &Ends, client: &mut Puppet) {
    wait_for("the workers to serve all connections", || {
        let before = ends.net.kernel_tcp(Side::A).segments();
        client.run("talk()");
        (ends.net.kernel_tcp(Side::A).segments() == before).then_some(())
    });
}

/// The kernel chooses the worker, which takes the connection over. When it is killed its peers hear of it.
#[track_caller]
fn two_workers(listen: &str, servers: &str) {
    let ends = Ends::new(Library::Server);
    with_ipv6(&ends.net);
    let server = start_at(listen, &ends, 2, true);
    let mut client = Puppet::start(ends.client(PYTHON));
    client.run(&format!("servers = {servers}"));
    client.run(KEPT);
    wait_until_served(&ends, &mut client);
    let watch = ends.net.watch_tcp(Side::A);
    (0..20).for_each(|_| drop(client.run("talk()")));
    watch.still(0);

    // The kernel has the first calls of each connection only, once both workers have the interface.
    let address = client.run("f'[{servers[0]}]' if ':' in servers[0] else servers[0]");
    let url = format!("http://{}:8080/small", address.trim_matches('\''));
    wait_for("the kernel to have little to do with ab's connections", || {
        let (before, requests) = (ends.net.kernel_tcp(Side::A).segments(), 4000_u32);
        let ab = ends.client("ab").args(&format!("-q -n {requests} -s 20 -k -c 20 {url}"));
        let ab = ab.run().ok();
        assert_eq!(ab.number("Complete requests:"), f64::from(requests), "{}", ab.stdout);
        assert_eq!(ab.number("Failed requests:"), 0.0, "{}", ab.stdout);
        let by_kernel = ends.net.kernel_tcp(Side::A).segments() - before;
        println!("{listen}: {by_kernel} segments of {requests} requests by the kernel");
        (by_kernel < u64::from(requests) / 4).then_some(())
    });

    // The kernel would answer an acknowledgment that is still to come with a reset.
    client.run("for s in clients: s.setsockopt(IPPROTO_TCP, TCP_QUICKACK, 1)");
    let began = Instant::now();
    kill_process(Pid::from_raw(busiest_worker(&ends)).unwrap(), Signal::KILL).unwrap();
    wait_for("the peers of the worker to hear of its end", || {
        let said = client.run("ended()");
        assert!(["{104}", "set()"].contains(&said.as_str()), "{said}");
        (said == "{104}").then_some(())
    });
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // The others go on, and another worker is in its place.
    std::thread::sleep(Duration::from_millis(200));
    client.run("ended()");
    client.run("clients += connect(4)");
    wait_until_served(&ends, &mut client);
    drop(server);
}

// covers: LIM-22
#[test]
fn nginx_with_two_workers() {
    two_workers("8080", "['10.99.0.1']");
}

// covers: LIM-22
#[test]
fn nginx_with_two_workers_by_ipv6() {
    two_workers("[::]:8080", "['fd00:99::1']");
}

// covers: LIM-22
#[test]
fn nginx_with_two_workers_by_both_families() {
    two_workers("[::]:8080 ipv6only=off", "['fd00:99::1', '10.99.0.1']");
}

/// `nginx -s reload`: each generation of workers is served as the one before it, and takes from the clients what they ask for meanwhile.
#[track_caller]
fn reload(workers: u8) {
    let ends = Ends::new(Library::Server);
    let server = start_at("10.99.0.1:8080", &ends, workers, true);
    let mut client = Puppet::start(ends.client(PYTHON));
    client.run("servers = ['10.99.0.1']");
    client.run(KEPT);
    wait_until_served(&ends, &mut client);
    let master = std::fs::read_to_string(ends.net.file("pid")).unwrap();
    let master = Pid::from_raw(master.trim().parse().unwrap()).unwrap();
    for generation in 2..5 {
        let old = busiest_worker(&ends);
        kill_process(master, Signal::HUP).unwrap();
        // A worker of before ends when its connections have; it closes the idle ones.
        wait_for("the old workers to end", || {
            client.run("ended()");
            (!std::path::Path::new(&format!("/proc/{old}")).exists()).then_some(())
        });
        client.run("ended(); clients += connect(16 - len(clients))");
        wait_until_served(&ends, &mut client);
        let watch = ends.net.watch_tcp(Side::A);
        (0..20).for_each(|_| drop(client.run("talk()")));
        // Connections of before may be ending.
        watch.still(16);
        println!("{workers} workers: generation {generation} is served");
    }
    assert!(!server.printed().contains("VMA WARNING"), "{}", server.printed());
    drop(server);
}

// covers: LIM-22
#[test]
fn nginx_is_served_after_each_reload() {
    reload(2);
}

// covers: LIM-22
#[test]
fn nginx_with_a_worker_is_served_after_each_reload() {
    reload(1);
}
