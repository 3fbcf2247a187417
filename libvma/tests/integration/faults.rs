//! Handlers of SIGSEGV in languages that unwind: between the kernel's frame and the program's handler there is none of the library's.

use crate::harness::{Namespaces, Side, compile};

const OPTIONS: &[&str] = &["-x", "c++", "-fnon-call-exceptions", "-Wl,--no-as-needed", "-lstdc++"];

// covers: LIM-45
#[test]
fn exceptions_and_jumps_leave_handlers_of_faults() {
    let net = Namespaces::new();
    let program = compile(&net, "exceptions", include_str!("exceptions.cpp"), OPTIONS);
    let program = net.program(Side::A, &program.to_string_lossy()).with_library();
    let output = program.run().ok();
    let expected =
        "library's handler 1\ncaught 3, destroyed 3\njumped 3\nended 1, destroyed 1\nsent -1\n";
    assert_eq!(output.stdout, expected, "{}", output.stderr);
}
