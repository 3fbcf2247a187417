//! Calls are async-signal-safe (signal-safety(7)): a handler that has interrupted malloc() may make them.

use crate::harness::{Ends, Library, Side, compile};

#[test]
fn calls_in_a_handler_that_interrupted_malloc_do_without_it() {
    let ends = Ends::new(Library::Server);
    let source = include_str!("interrupted_malloc.c");
    let program = compile(&ends.net, "interrupted", source, &["-rdynamic"]);
    let program = program.to_str().unwrap();
    let watch = ends.net.watch_tcp(Side::A);
    let mut server = ends.server(program).args("server 10.99.0.1").start();
    server.wait_for_text("listening");
    let client = ends.client(program).args("client 10.99.0.1").start();
    let printed = server.wait().ok().stdout;
    client.wait().ok();
    assert_eq!(watch.moved().accepted, 0, "the library's connections");
    let calls: Vec<_> = printed.lines().filter(|line| *line != "listening").collect();
    assert_eq!(calls.len(), 9, "{printed}");
    assert!(calls.iter().all(|line| line.ends_with(" 0")), "{printed}");
}
