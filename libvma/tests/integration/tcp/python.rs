//! Python's ways to use a socket: http.server, socketserver, makefile, selectors, asyncio, ssl.

use std::process::Command;

use crate::family::Family;
use crate::harness::{Ends, Library, PYTHON, Side, installed};

use super::curl::{assert_same, random_file};

/// echo.py as server and client, at each end in turn and at both.
#[track_caller]
fn echo(kind: &str) {
    echo_at(kind, Family::Ipv4, "10.99.0.1");
}

/// `listen` is the server's address.
#[track_caller]
fn echo_at(kind: &str, family: Family, listen: &str) {
    for library in Library::ALL {
        let ends = family.ends(library);
        let address = family.of(Side::A).to_string();
        let script = ends.net.file("echo.py");
        std::fs::write(&script, include_str!("echo.py")).unwrap();
        let script = script.to_str().unwrap();
        if kind == "ssl" {
            certificate(&ends);
        }
        let watch = if kind == "fork" { ends.watch_with_inherited() } else { ends.watch() };
        let server = ends.server(PYTHON).env("ADDRESS", listen).arg(script).args("server");
        let server = server.arg(kind).start_shown();
        ends.net.wait_for_listener(Side::A, 7000);
        let client = ends.client(PYTHON).env("ADDRESS", &address).arg(script).args("client");
        let client = client.arg(kind).run();
        client.says("all echoed");
        let connections = client.number("connections ") as u64;
        watch.still(connections);
        drop(server);
    }
}

fn certificate(ends: &Ends) {
    let output = Command::new(installed("openssl"))
        .args(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split(' '),
        )
        .args(["-keyout", "key.pem", "-out", "certificate.pem", "-subj", "/CN=10.99.0.1"])
        .args(["-addext", "subjectAltName=IP:10.99.0.1"])
        .current_dir(&ends.net.dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

// covers: NET-03, API-10
#[test]
fn python_threading_socketserver_and_makefile() {
    echo("makefile");
}

// covers: NET-03, API-34
#[test]
fn python_forking_socketserver() {
    echo("fork");
}

// covers: NET-03, MUX-03
#[test]
fn python_selectors() {
    echo("selectors");
}

// covers: NET-03, MUX-01, LIM-16
#[test]
fn python_select_with_300_connections() {
    echo("select");
}

// covers: NET-03, MUX-03
#[test]
fn python_asyncio() {
    echo("asyncio");
}

// covers: NET-03, MUX-03
#[test]
fn python_asyncio_on_any_address_of_ipv6() {
    echo_at("asyncio", Family::Ipv6, "::");
}

// covers: NET-03
#[test]
fn python_ssl() {
    echo("ssl");
}

#[track_caller]
fn http_server(library: Library) {
    let ends = Ends::new(library);
    let watch = ends.watch();
    let www = ends.net.file("www");
    std::fs::create_dir_all(&www).unwrap();
    random_file(&www.join("file"), 16 << 20, 5);
    let server = ends.server(PYTHON).args("-m http.server --bind 10.99.0.1 8000 -d");
    let server = server.arg(www.to_str().unwrap()).start_shown();
    ends.net.wait_for_listener(Side::A, 8000);
    let got = ends.net.file("got");
    for _ in 0..3 {
        let client = ends.client("curl").args("-sS --max-time 20 http://10.99.0.1:8000/file -o");
        client.arg(got.to_str().unwrap()).run().ok();
        assert_same(&www.join("file"), &got);
    }
    let listing = ends.client("curl").args("-sS --max-time 20 http://10.99.0.1:8000/").run();
    listing.says("Directory listing");
    watch.still(4);
    drop(server);
}

// covers: NET-03
#[test]
fn python_http_server_with_library() {
    http_server(Library::Server);
}

// covers: NET-03
#[test]
fn python_http_server_and_curl_with_library() {
    http_server(Library::Both);
}
