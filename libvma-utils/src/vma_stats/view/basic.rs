//! Views 1 and 2: two lines a socket, one a multiplexer, headers again and again.

use libvma_dev::stats::{Multiplexer, Socket};

use super::{Shown, dashes, kilobytes, multiplexers, percent};
use crate::options::Details;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// View 1.
    Basic,
    /// View 2, with the queue of what waits to be read.
    Extra,
}

/// Knows when headers are due.
pub struct Table {
    width: Width,
    details: Details,
    /// Lines since the last headers and with them.
    lines: usize,
}

/// So many lines, and they are due.
const PAGE: usize = 24;

impl Table {
    /// The headers are printed by whoever begins.
    pub fn new(width: Width, details: Details) -> Table {
        let lines = headers(width, details).lines().count();
        Table { width, details, lines }
    }

    pub fn headers(&self) -> String {
        headers(self.width, self.details)
    }

    /// One report.
    pub fn report(&mut self, shown: &Shown<'_>) -> String {
        let mut text = String::new();
        if self.lines >= PAGE {
            text = self.headers();
            self.lines = 0;
        }
        let mut any = false;
        for socket in shown.sockets() {
            text.push_str(&rows(self.width, socket));
            any = true;
        }
        for (name, calls) in multiplexers(&shown.taken.snapshot) {
            text.push_str(&multiplexer(&name, shown.postfix(), calls));
        }
        if any {
            text.push_str(&dashes());
        }
        self.lines += text.lines().count();
        text
    }
}

fn headers(width: Width, details: Details) -> String {
    let basic = width == Width::Basic;
    let (offloaded, os, per) = match (details, basic) {
        (Details::Totals, true) => {
            ("------------ total offloaded -------------", "--------- total os ----------", "")
        }
        (Details::Totals, false) => (
            "----------------------- total offloaded -------------------------",
            "--------- total os ----------",
            "",
        ),
        (Details::Deltas, true) => {
            ("--------------- offloaded ----------------", "---------- os ---------", "/s")
        }
        (Details::Deltas, false) => (
            "---------------------------- offloaded --------------------------",
            "---------- os ---------",
            "/s",
        ),
    };
    let [packets, bytes, eagain, error] =
        ["pkt", "Kbyte", "eagain", "error"].map(|word| format!("{word}{per}"));
    let own = format!("{packets:>10} {bytes:>7} {eagain:>8} {error:>7}");
    let kernel = format!("{packets:>7} {bytes:>7} {eagain:>7} {error:>7}");
    let poll = "poll%";
    if basic {
        return format!(
            " {:<7} {offloaded:>42} {os:>31}\n {:<7} {own} {poll:>6} {kernel}\n",
            "fd", ""
        );
    }
    let queue = match details {
        Details::Totals => "---- queue pkt -----",
        Details::Deltas => "----- queue pkt ------",
    };
    let drop = format!("drop{per}");
    format!(
        " {:<7} {offloaded:>65} {os:>31}\n {:<7} {own} {poll:>6}{queue:>23} {kernel}\n \
         {:>50} {:>6}  {:>6}  {drop:>6} \n",
        "fd", "", "", "cur", "max"
    )
}

fn rows(width: Width, socket: &Socket) -> String {
    let count = &socket.counters;
    let rx = format!(
        "{:<3} {:<3} {:>10} {:>7} {:>8} {:>7} {:>6.1}",
        socket.descriptor,
        "Rx:",
        count.rx_packets,
        kilobytes(count.rx_bytes),
        count.rx_eagain,
        count.rx_errors,
        percent(count.rx_poll_hits, count.rx_poll_misses),
    );
    let rx_os = format!(
        "{:>7} {:>7} {:>7} {:>7}",
        count.rx_os_packets,
        kilobytes(count.rx_os_bytes),
        count.rx_os_eagain,
        count.rx_os_errors,
    );
    let tx = format!(
        "{:<3} {:<3} {:>10} {:>7} {:>8} {:>7}",
        " ",
        "Tx:",
        count.tx_packets,
        kilobytes(count.tx_bytes),
        count.tx_eagain,
        count.tx_errors,
    );
    let tx_os = format!(
        "{:>7} {:>7} {:>7} {:>7}",
        count.tx_os_packets,
        kilobytes(count.tx_os_bytes),
        count.tx_os_eagain,
        count.tx_os_errors,
    );
    if width == Width::Basic {
        return format!(" {rx} {rx_os}\n {tx} {:<6} {tx_os}\n", "");
    }
    let queue = format!(
        "{:>6}  {:>6}  {:>6}",
        socket.ready_packets, count.rx_ready_packets_max, count.rx_dropped_packets
    );
    format!(" {rx} {queue} {rx_os}\n {tx} {:>29} {tx_os}\n", "")
}

fn multiplexer(name: &str, postfix: &str, calls: &Multiplexer) -> String {
    format!(
        "{name:<8}{postfix:<2} {:<9}{}/{} {:<12} {:<9}{:<5} {:<7}{:<4} {:<5}{:.2}{:<3} {:<5}{}%\n",
        "Rx Ready:",
        calls.ready_os,
        calls.ready,
        "[os/offload]",
        "Timeouts:",
        calls.timeouts,
        "Errors:",
        calls.errors,
        "Poll:",
        percent(calls.poll_hits, calls.poll_misses),
        "%",
        "Polling CPU:",
        calls.polling_cpu,
    )
}
