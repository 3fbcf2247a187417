//! What a call costs that finds nothing. Beside the kernel's answer, which is one system call, there is a look at the rings: the two
//! take less than two system calls, and no call comes back later than its time-out has the kernel's come back.

use std::collections::BTreeMap;

use crate::harness::{Namespaces, Side, compile};

/// Nanoseconds of each call.
fn costs(net: &Namespaces, program: &str, with_library: bool) -> BTreeMap<String, f64> {
    let program = net.program(Side::A, program);
    let output = if with_library { program.with_library() } else { program }.run().ok();
    assert_eq!(output.traffic.rx_os + output.traffic.tx_os, 0);
    let of_line = |line: &str| {
        let (name, number) = line.split_once(' ').expect("a name and a number");
        (name.to_owned(), number.parse().expect("a number"))
    };
    output.stdout.lines().map(of_line).collect()
}

// covers: LIM-37, LIM-49
#[test]
fn calls_that_find_nothing_return_as_fast_as_the_kernels() {
    /// The best of so many runs each: other programs make noise.
    const RUNS: usize = 3;
    /// A time-out of the kernel ends by its timer, some 60 us late; it may be another one.
    const LATE: f64 = 150_000.0;
    let net = Namespaces::new();
    let program = compile(&net, "idle", include_str!("idle.c"), &[]);
    let program = program.to_str().expect("a path in UTF-8");
    let mut best = [true, false].map(|with_library| costs(&net, program, with_library));
    for _ in 1..RUNS {
        for (best, with_library) in best.iter_mut().zip([true, false]) {
            for (name, cost) in costs(&net, program, with_library) {
                let least = best.get_mut(&name).expect("the same calls");
                *least = least.min(cost);
            }
        }
    }
    let [ours, kernels] = best;
    println!("nanoseconds: ours {ours:.0?}, the kernel's {kernels:.0?}");
    for (name, cost) in &ours {
        let kernel = kernels[name];
        let most = if name.ends_with("_0") { 2.0 * kernel } else { kernel + LATE };
        assert!(*cost <= most, "{name}: {cost} ns, the kernel {kernel} ns");
    }
}
