//! Registrations that the program changes while their connection becomes the kernel's.

use crate::harness::compile_in;

use super::{Local, Under};

#[test]
fn epoll_ctl_finds_the_registration_of_a_connection_that_becomes_the_kernels() {
    for under in [Under::Both, Under::Neither] {
        let local = Local::new(under);
        let program = compile_in(&local.sandbox.dir, "toggles", include_str!("toggles.c"), &[]);
        let program = program.to_str().unwrap();
        let _server = local.server(program).args("serve 7000 20").start_shown();
        local.sandbox.wait_for_listener(7000);
        let log = local.sandbox.file("log");
        let client = local.client(program).args("call 7000 20").env("VMA_TRACELEVEL", "debug");
        let client = client.env("VMA_LOG_FILE", log.to_str().unwrap()).start_shown();
        client.wait().ok().says("done");
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let is_told = log.contains("is served by the kernel: the destination is on this host");
        assert_eq!(is_told, under == Under::Both, "{log}");
    }
}
