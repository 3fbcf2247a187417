//! Block of view 3 about poll, select or an epoll instance.

use std::fmt::Write;

use libvma_dev::stats::Multiplexer;

use super::full::double;
use super::percent;

pub fn block(text: &mut String, name: &str, calls: &Multiplexer, per: &str) {
    double(text);
    let _ = writeln!(text, "\t{name}");
    let _ = writeln!(text, "Polling CPU{per}:{}%", calls.polling_cpu);
    let _ = writeln!(text, "- Thread Id: {:>5}", calls.thread);
    let _ = writeln!(text, "Rx fds ready: {} / {} [os/offload]{per}", calls.ready_os, calls.ready);
    let (hits, misses) = (calls.poll_hits, calls.poll_misses);
    if hits > 0 || misses > 0 {
        let share = percent(hits, misses);
        let _ = writeln!(text, "Polls [miss/hit]{per}: {misses} / {hits} ({share:.2}%)");
        let _ = writeln!(text, "Timeouts{per}: {}", calls.timeouts);
        let _ = writeln!(text, "Errors{per}: {}", calls.errors);
        double(text);
    }
}
