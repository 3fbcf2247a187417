//! nginx: in one process, and as people run it, with a worker that inherits the listener; with curl
//! and ab as clients.

use crate::harness::{Ends, Library, Shown, Side};

use super::curl::{assert_same, random_file};

const MIB: u64 = 1 << 20;

/// Starts nginx in `ends`' directory, where `www` is what it serves.
#[track_caller]
pub fn start(ends: &Ends, has_worker: bool, sendfile: bool) -> Shown {
    start_at("10.99.0.1:8080", ends, has_worker, sendfile)
}

/// As [`start`], with another address to listen at.
#[track_caller]
pub fn start_at(address: &str, ends: &Ends, has_worker: bool, sendfile: bool) -> Shown {
    let dir = ends.net.dir.display();
    std::fs::create_dir_all(ends.net.file("www")).unwrap();
    std::fs::write(ends.net.file("www/small"), "small answer\n").unwrap();
    let switch = |on: bool| if on { "on" } else { "off" };
    // The worker as root too: another user could not open an AF_XDP socket. The library's variables
    // reach it because nginx only cleans the environment of what it starts anew.
    let configuration = format!(
        "daemon off; master_process {}; worker_processes 1; user root; pid {dir}/pid;
         error_log stderr warn;
         events {{ worker_connections 512; }}
         http {{
             access_log off; sendfile {}; tcp_nopush on; keepalive_requests 100000;
             client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
             fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi;
             scgi_temp_path {dir}/scgi;
             server {{ listen {address}; root {dir}/www; }}
         }}",
        switch(has_worker),
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

// covers: INS-46, API-07, API-09, NET-03
#[test]
fn nginx_with_library() {
    curl_and_ab(Library::Server, false);
}

// covers: INS-46, NET-03
#[test]
fn curl_and_ab_with_library() {
    curl_and_ab(Library::Client, false);
}

// covers: INS-46, API-09, NET-03
#[test]
fn nginx_curl_and_ab_with_library() {
    curl_and_ab(Library::Both, false);
}

// covers: INS-46, API-34, LIM-22
#[test]
fn nginx_with_a_worker_with_library() {
    curl_and_ab(Library::Server, true);
}

// covers: INS-46, API-34, LIM-22
#[test]
fn nginx_with_a_worker_curl_and_ab_with_library() {
    curl_and_ab(Library::Both, true);
}
