//! UDP sockets that ask once, and are taken out of their epoll instance before they are read.

use super::{Local, Under};
use crate::harness::compile_in;

#[test]
fn a_socket_that_epoll_reported_is_read_after_it_was_taken_out() {
    for under in [Under::Both, Under::Neither] {
        let local = Local::new(under);
        let source = include_str!("health_checks.c");
        let program = compile_in(&local.sandbox.dir, "health_checks", source, &[]);
        let program = local.client(program.to_str().unwrap());
        program.args("7000 150").run().ok().says("all 150 answered");
    }
}
