//! All that is known of a descriptor, or of all, as lines of the log: for vma_stats -S, and for a
//! program that asks by the Extra API.

use libvma_dev::stats::Multiplexer;

use super::Process;
use crate::fd::Object;
use crate::log::{Level, line_if_enabled};
use crate::mux::{self, EpollId};
use crate::socket;

const FRAME: &str = "==================================================";

/// Of this descriptor; 0 is all. One that is not ours is a frame without a picture.
pub fn dump(process: &Process, descriptor: i32, level: Level) {
    let say = |text: &str| line_if_enabled(level, format_args!("{text}"));
    say(FRAME);
    if descriptor == 0 {
        say("======= DUMPING STATISTICS FOR ALL OPEN FDS ======");
    } else {
        say(&format!("============ DUMPING FD {descriptor} STATISTICS ============"));
    }
    let descriptors = match descriptor {
        0 => process.fds.within(0, u32::MAX),
        one => vec![one],
    };
    for descriptor in descriptors {
        match process.fds.get(descriptor) {
            Some(Object::Socket(id) | Object::Stream(id)) => {
                say("==================== SOCKET FD ===================");
                socket::dump::lines(&process.stack, id, descriptor)
                    .iter()
                    .for_each(|line| say(line));
                say(FRAME);
            }
            Some(Object::Epoll(id)) => {
                say("==================== EPOLL FD ====================");
                epoll_lines(process, id, descriptor).iter().for_each(|line| say(line));
                say(FRAME);
            }
            Some(Object::Kernels(id)) => {
                say("==================== SOCKET FD ===================");
                socket::dump::lines_of_kernels(&process.stack, id, descriptor)
                    .iter()
                    .for_each(|line| say(line));
                say(FRAME);
            }
            None => {}
        }
    }
    say(FRAME);
}

fn epoll_lines(process: &Process, id: EpollId, descriptor: i32) -> Vec<String> {
    let mut lines = vec![format!("Fd number : {descriptor}")];
    let Some(epoll) = process.epolls.get(id) else { return lines };
    let watched = epoll.watched(&process.stack);
    lines.push(format!("Offloaded Fds : {}", watched.len()));
    // A line of the log has an end.
    for some in watched.chunks(40) {
        let list: String = some.iter().map(|watched| format!(" {watched}")).collect();
        lines.push(format!("Offloaded Fds list:{list}"));
    }
    let (.., all) = mux::statistics(&process.poll_turn, &process.epolls);
    let own = all.iter().find(|one| one.descriptor == epoll.descriptor());
    lines.extend(own.map(|own| call_lines(&own.calls)).unwrap_or_default());
    lines
}

fn call_lines(calls: &Multiplexer) -> Vec<String> {
    let polls = calls.poll_hits + calls.poll_misses;
    if polls + calls.timeouts + calls.errors + calls.ready + calls.ready_os == 0 {
        return Vec::new();
    }
    let share = if polls == 0 { 0.0 } else { calls.poll_hits as f64 * 100.0 / polls as f64 };
    vec![
        format!("Polling CPU : {}%", calls.polling_cpu),
        format!("Thread Id : {:>5}", calls.thread),
        format!("Rx fds ready : {} / {} [os/offload]", calls.ready_os, calls.ready),
        format!("Polls [miss/hit] : {} / {} ({share:.2}%)", calls.poll_misses, calls.poll_hits),
        format!("Timeouts : {}", calls.timeouts),
        format!("Errors : {}", calls.errors),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoll_instance_tells_of_its_calls_if_there_were_any() {
        assert!(call_lines(&Multiplexer::default()).is_empty());
        let calls = Multiplexer {
            poll_hits: 3,
            poll_misses: 1,
            timeouts: 2,
            ready: 5,
            ready_os: 4,
            thread: 77,
            polling_cpu: 70,
            ..Multiplexer::default()
        };
        let expected = [
            "Polling CPU : 70%",
            "Thread Id :    77",
            "Rx fds ready : 4 / 5 [os/offload]",
            "Polls [miss/hit] : 1 / 3 (75.00%)",
            "Timeouts : 2",
            "Errors : 0",
        ];
        assert_eq!(call_lines(&calls), expected);
    }
}
