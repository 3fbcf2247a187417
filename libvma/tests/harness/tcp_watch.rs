//! What the kernel's TCP does while the library should do it.

use std::time::Duration;

use super::{Namespaces, Side, wait_for};

/// Segments that the kernel may see for each connection that ends: one that ends with its process is
/// the kernel's to close (a FIN and its ACK, both ways, and one that the library sends over lo to tell
/// the kernel where the connection stands).
const LEFT_BY_A_CONNECTION: u64 = 5;

/// Segments that the kernel may see besides.
const STRAY: u64 = 2;

/// How long the library takes at most from the kernel's listen() until the flows are its own.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// What a namespace's kernel counted since it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Connections it opened and accepted.
    pub opened: u64,
    pub accepted: u64,
    pub segments_in: u64,
    pub segments_out: u64,
    pub retransmitted: u64,
}

impl TcpCounters {
    fn since(self, before: TcpCounters) -> TcpCounters {
        TcpCounters {
            opened: self.opened - before.opened,
            accepted: self.accepted - before.accepted,
            segments_in: self.segments_in - before.segments_in,
            segments_out: self.segments_out - before.segments_out,
            retransmitted: self.retransmitted - before.retransmitted,
        }
    }

    pub fn segments(&self) -> u64 {
        self.segments_in + self.segments_out + self.retransmitted
    }
}

/// Watches the kernel's TCP counters of one side.
pub struct TcpWatch<'a> {
    net: &'a Namespaces,
    side: Side,
    before: TcpCounters,
}

impl Namespaces {
    pub fn kernel_tcp(&self, side: Side) -> TcpCounters {
        let text = self.read_proc(side, "snmp");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let names: Vec<&str> = lines.next().expect("names").split_whitespace().collect();
        let values: Vec<&str> = lines.next().expect("values").split_whitespace().collect();
        let value = |wanted: &str| -> u64 {
            let at = names.iter().position(|name| *name == wanted).expect("a known counter");
            values[at].parse().expect("a number")
        };
        TcpCounters {
            opened: value("ActiveOpens"),
            accepted: value("PassiveOpens"),
            segments_in: value("InSegs"),
            segments_out: value("OutSegs"),
            retransmitted: value("RetransSegs"),
        }
    }

    /// From here to [`TcpWatch::still`], the side's kernel should have nothing to do with TCP.
    pub fn watch_tcp(&self, side: Side) -> TcpWatch<'_> {
        TcpWatch { net: self, side, before: self.kernel_tcp(side) }
    }

    /// Waits until somebody listens on a TCP port.
    #[track_caller]
    pub fn wait_for_listener(&self, side: Side, port: u16) {
        wait_for(&format!("somebody listens on TCP port {port}"), || {
            self.listening(side, port).then_some(())
        });
        // Connections that come before the library has steered the listener are the kernel's.
        std::thread::sleep(FIRST_WAIT);
    }

    pub fn listening(&self, side: Side, port: u16) -> bool {
        // Address and port, a remote one, a state: `0A` is LISTEN. A dual-stack listener is in tcp6.
        let text = self.read_proc(side, "tcp") + &self.read_proc(side, "tcp6");
        let port = format!(":{port:04X}");
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("0A")
        })
    }
}

impl TcpWatch<'_> {
    pub fn moved(&self) -> TcpCounters {
        self.net.kernel_tcp(self.side).since(self.before)
    }

    /// The kernel opened and accepted no connection, and saw no segments but the last ones of at
    /// most `ended` connections.
    #[track_caller]
    pub fn still(&self, ended: u64) {
        let moved = self.moved();
        let allowed = STRAY + LEFT_BY_A_CONNECTION * ended;
        assert!(
            moved.opened == 0 && moved.accepted == 0 && moved.segments() <= allowed,
            "TCP went through the kernel on side {:?} ({allowed} segments are allowed): {moved:?}",
            self.side
        );
    }
}
