//! nginx in one process, with curl and ab as its clients.

use crate::tcp::curl::{assert_same, random_file};

use super::{Local, Under, not_both};

const MIB: u64 = 1 << 20;

#[track_caller]
fn curl_and_ab(under: Under, sendfile: bool, host: &str) {
    let local = Local::new(under);
    let dir = local.sandbox.dir.display();
    std::fs::create_dir_all(local.sandbox.file("www")).unwrap();
    std::fs::write(local.sandbox.file("www/small"), "small answer\n").unwrap();
    random_file(&local.sandbox.file("www/large"), 128 * MIB, 1);
    let configuration = format!(
        "daemon off; master_process off; user root; pid {dir}/pid;
         error_log stderr warn;
         events {{ worker_connections 512; }}
         http {{
             access_log off; sendfile {}; tcp_nopush on; keepalive_requests 100000;
             client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
             fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi;
             scgi_temp_path {dir}/scgi;
             server {{ listen {host}:8080; root {dir}/www; }}
         }}",
        if sendfile { "on" } else { "off" }
    );
    let path = local.sandbox.file("nginx.conf");
    std::fs::write(&path, configuration).unwrap();
    let server = local.server("nginx").args("-e stderr -c").arg(path.to_str().unwrap());
    let server = server.start_shown();
    local.sandbox.wait_for_listener(8080);
    let watch = local.sandbox.watch();

    let url = &format!("http://{host}:8080/small");
    // Three answers over one connection.
    let words = "-sS --max-time 20 -w %{num_connects};";
    let curl = local.client("curl").args(words).args(&[url.as_str(); 3].join(" ")).run().ok();
    assert_eq!(curl.stdout, "small answer\n1;small answer\n0;small answer\n0;");
    for (words, requests) in [("-k -c 20", 4000), ("-c 20", 1000)] {
        let words = format!("-q -n {requests} -s 20 {words}");
        let ab = local.client("ab").args(&words).arg(url).run().ok();
        assert_eq!(ab.number("Complete requests:"), f64::from(requests), "{}", ab.stdout);
        assert_eq!(ab.number("Failed requests:"), 0.0, "{}", ab.stdout);
    }
    let small = watch.moved().lo_bytes;
    let watch = local.sandbox.watch();
    let got = local.sandbox.file("got");
    let url = format!("http://{host}:8080/large");
    let curl = local.client("curl").args("-sS --max-time 50").arg(&url).arg("-o");
    curl.arg(got.to_str().unwrap()).run().ok();
    assert_same(&local.sandbox.file("www/large"), &got);
    println!("{under:?}: {small} bytes by the kernel before");
    local.check_tcp(&watch, 1, 128 * MIB);
    drop(server);
}

#[test]
fn nginx_curl_and_ab_with_library_on_both_ends() {
    curl_and_ab(Under::Both, false, "127.0.0.1");
}

#[test]
fn nginx_curl_and_ab_with_library_on_both_ends_and_sendfile() {
    curl_and_ab(Under::Both, true, "127.0.0.1");
}

#[test]
fn nginx_curl_and_ab_over_ipv6_with_library_on_both_ends() {
    curl_and_ab(Under::Both, true, "[::1]");
}

#[test]
fn nginx_curl_and_ab_at_an_address_of_ipv6_with_library_on_both_ends() {
    curl_and_ab(Under::Both, true, "[fd00:98::1]");
}

#[test]
fn nginx_curl_and_ab_with_library_on_at_most_one_end() {
    for under in not_both(Under::Client) {
        curl_and_ab(under, true, "127.0.0.1");
    }
}
