//! Traffic between two processes of one host, in a sandbox without privileges: programs that people
//! run, on 127.0.0.1, with the library at both ends, at one and at none.
//!
//! The kernel's counters tell the way the bytes went. Under the library at both ends it sees what
//! begins a flow (the first datagrams of a socket; of a connection the handshake, what the client
//! sends before it is accepted, and the end): a number that does not depend on how much follows.
//! Otherwise it sees all of it.

mod closed_peer;
mod crowds;
mod ended_sender;
mod forks;
mod groups;
mod half_close;
mod health_checks;
mod hostile;
mod iperf3;
mod kills;
mod late;
mod looks;
mod nginx;
mod node;
mod ports;
mod promises;
mod python;
mod redis;
mod rules;
mod sandbox;
mod sharing;
mod sockperf;
mod toggles;
mod trains;

use crate::harness::{Counters, Program, Sandbox, Watch, installed, is_long};

/// Which ends run under the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    Both,
    Server,
    Client,
    Neither,
}

/// All that do not go past the kernel.
const NOT_BOTH: [Under; 3] = [Under::Server, Under::Client, Under::Neither];

/// Those of them that a program runs under: one direction, or all with `ci/test --long`.
fn not_both(short: Under) -> Vec<Under> {
    if is_long() { NOT_BOTH.to_vec() } else { vec![short] }
}

const ALL: [Under; 4] = [Under::Both, Under::Server, Under::Client, Under::Neither];

/// Datagrams that may go through the kernel before the peer is found, whatever follows: what a program
/// sends within some milliseconds, and what begins each flow.
const DATAGRAMS: u64 = 5000;
const DATAGRAMS_OF_A_FLOW: u64 = 20;

/// Segments: how each connection begins and ends, and what its client sends in between, before the
/// server accepts.
const SEGMENTS: u64 = 200;
const SEGMENTS_OF_A_CONNECTION: u64 = 16;

/// Bytes of connections that the kernel may carry: what fits into the buffers of a socket that sends
/// before the other end is there.
const BYTES: u64 = 4 << 20;
const BYTES_OF_A_CONNECTION: u64 = 64 << 10;

/// A sandbox for a server and its clients on 127.0.0.1.
struct Local {
    sandbox: Sandbox,
    under: Under,
}

impl Local {
    fn new(under: Under) -> Local {
        Local { sandbox: Sandbox::new(), under }
    }

    #[track_caller]
    fn program(&self, name: &str, with_library: bool) -> Program<'_> {
        let program = self.sandbox.program(installed(name));
        if with_library { program.with_library() } else { program }
    }

    #[track_caller]
    fn server(&self, name: &str) -> Program<'_> {
        self.program(name, matches!(self.under, Under::Both | Under::Server))
    }

    #[track_caller]
    fn client(&self, name: &str) -> Program<'_> {
        self.program(name, matches!(self.under, Under::Both | Under::Client))
    }

    /// Panics unless `connections` connections with so many bytes in all went the way they should
    /// since the watch began.
    #[track_caller]
    fn check_tcp(&self, watch: &Watch<'_>, connections: u64, bytes: u64) {
        self.check_tcp_moved(&self.moved(watch), connections, bytes);
    }

    #[track_caller]
    fn check_tcp_moved(&self, moved: &Counters, connections: u64, bytes: u64) {
        if self.under != Under::Both {
            assert!(moved.lo_bytes >= bytes, "{bytes} bytes by the kernel: {moved:?}");
            return;
        }
        let segments = SEGMENTS + connections * SEGMENTS_OF_A_CONNECTION;
        let most = BYTES + connections * BYTES_OF_A_CONNECTION;
        assert!(
            moved.segments <= segments && moved.lo_bytes <= most && moved.lo_bytes < bytes,
            "{bytes} bytes should go past the kernel but for {segments} segments: {moved:?}"
        );
    }

    /// The same of so many flows of datagrams.
    #[track_caller]
    fn check_udp(&self, watch: &Watch<'_>, flows: u64, datagrams: u64) {
        let moved = self.moved(watch);
        if self.under != Under::Both {
            assert!(
                moved.datagrams >= datagrams && moved.lo_packets >= datagrams,
                "{datagrams} datagrams by the kernel: {moved:?}"
            );
            return;
        }
        let most = DATAGRAMS + flows * DATAGRAMS_OF_A_FLOW;
        assert!(
            moved.datagrams <= most && moved.lo_packets <= 2 * most && datagrams > 2 * most,
            "{datagrams} datagrams should go past the kernel but for {most}: {moved:?}"
        );
    }

    fn moved(&self, watch: &Watch<'_>) -> Counters {
        let moved = watch.moved();
        println!("{:?}: {moved:?}", self.under);
        moved
    }
}
