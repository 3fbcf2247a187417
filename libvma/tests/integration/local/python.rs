//! Python's ways to use a socket: socketserver with threads and processes, selectors, select with many
//! connections, asyncio; http.server.

use crate::harness::PYTHON;
use crate::tcp::curl::{assert_same, random_file};

use super::{ALL, Local, Under, not_both};

/// echo.py as server and client. How many bytes the kernel may have depends on when a connection's
/// bytes come; that they are the right ones is what counts here, and that not all of them were its.
#[track_caller]
fn echo(kind: &str) {
    let by_kernel = ALL.map(|under| {
        let local = Local::new(under);
        let script = local.sandbox.file("echo.py");
        std::fs::write(&script, include_str!("../tcp/echo.py")).unwrap();
        let script = script.to_str().unwrap();
        let server = local.server(PYTHON).arg(script).args("server").arg(kind);
        let server = server.env("ADDRESS", "127.0.0.1").start_shown();
        local.sandbox.wait_for_listener(7000);
        let watch = local.sandbox.watch();
        let client = local.client(PYTHON).arg(script).args("client").arg(kind);
        client.env("ADDRESS", "127.0.0.1").run().says("all echoed");
        drop(server);
        watch.moved().lo_bytes
    });
    // A server that forks gives every connection to the kernel.
    let [both, .., neither] = by_kernel;
    assert!(kind == "fork" || both < neither / 10 * 9, "{both} bytes over lo, not {neither}");
}

#[test]
fn python_threading_socketserver_and_makefile() {
    echo("makefile");
}

#[test]
fn python_forking_socketserver() {
    echo("fork");
}

#[test]
fn python_selectors() {
    echo("selectors");
}

#[test]
fn python_select_with_300_connections() {
    echo("select");
}

#[test]
fn python_asyncio() {
    echo("asyncio");
}

/// A server, with threads or with a process for each connection.
const HTTP_SERVER: &str = "
import http.server, socketserver, sys
class Forking(socketserver.ForkingMixIn, http.server.HTTPServer): pass
kind = {'threads': http.server.ThreadingHTTPServer, 'processes': Forking}[sys.argv[1]]
if ':' in sys.argv[2]: kind.address_family = socketserver.socket.AF_INET6
kind((sys.argv[2], 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
";

#[track_caller]
fn http_server(under: Under, kind: &str) {
    http_server_at("127.0.0.1", "127.0.0.1", under, kind);
}

/// A server that listens on one address, and is asked by another.
#[track_caller]
fn http_server_at(own: &str, host: &str, under: Under, kind: &str) {
    let local = Local::new(under);
    let (file, got) = (local.sandbox.file("file"), local.sandbox.file("got"));
    random_file(&file, 32 << 20, 5);
    let server = local.server(PYTHON).arg("-c").arg(HTTP_SERVER).arg(kind).arg(own).start_shown();
    local.sandbox.wait_for_listener(8000);
    let watch = local.sandbox.watch();
    for _ in 0..3 {
        let client = local.client("curl").args("-sS --max-time 20 -o");
        let client = client.arg(got.to_str().unwrap()).arg(&format!("http://{host}:8000/file"));
        client.run().ok();
        assert_same(&file, &got);
    }
    // A connection that a child serves is the kernel's.
    if kind == "threads" {
        local.check_tcp(&watch, 3, 96 << 20);
    }
    drop(server);
}

#[test]
fn python_http_server_with_threads_with_library_on_both_ends() {
    http_server(Under::Both, "threads");
}

#[test]
fn python_http_server_over_ipv6_with_library_on_both_ends() {
    // As `python3 -m http.server` listens, and on the one address.
    for own in ["::", "::1"] {
        http_server_at(own, "[::1]", Under::Both, "threads");
    }
    http_server_at("::1", "[::1]", Under::Both, "processes");
}

#[test]
fn python_http_server_over_ipv6_with_library_on_at_most_one_end() {
    for under in not_both(Under::Server) {
        http_server_at("::", "[::1]", under, "threads");
    }
}

#[test]
fn python_http_server_with_processes_with_library_on_both_ends() {
    http_server(Under::Both, "processes");
}

#[test]
fn python_http_server_with_library_on_at_most_one_end() {
    for under in not_both(Under::Client) {
        http_server(under, "threads");
        http_server(under, "processes");
    }
}
