//! fork(2) in a program whose other threads make calls meanwhile.

use crate::harness::{Namespaces, Side, compile};

#[test]
fn a_handler_of_fork_may_wait_for_a_thread_that_sends() {
    let net = Namespaces::new();
    let program = compile(&net, "forking", include_str!("forking.c"), &["-pthread"]);
    let program = net.program(Side::A, program.to_str().expect("a path in UTF-8")).with_library();
    let watch = net.watch(Side::A);
    program.args("10.99.0.2 300").run().ok().says("forked");
    watch.still();
}
