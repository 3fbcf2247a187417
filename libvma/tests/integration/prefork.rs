//! Servers whose workers share a listener: which of them serves it, us or the kernel, changes while clients
//! come, and none of them may notice.

use crate::harness::{Ends, Library, Side, compile};

const SOURCE: &str = include_str!("prefork.c");

// covers: THR-04
#[test]
fn no_client_is_reset_while_workers_start() {
    let ends = Ends::new(Library::Server);
    let program = compile(&ends.net, "prefork", SOURCE, &[]);
    let program = program.to_str().expect("a path in UTF-8");
    let at = Side::A.ip();
    let server = ends.server(program).args(&format!("server {at} 5")).start_shown();
    let clients = ends.client(program).args(&format!("client {at} 3")).start_shown().wait();
    assert_eq!(clients.stdout.trim(), "done", "{}", clients.stderr);
    clients.ok();
    server.wait().ok();
}
