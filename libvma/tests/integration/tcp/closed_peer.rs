//! send() to a peer that has closed fails soon. On the kernel's sockets the second call fails, 50 us after the first one,
//! because the reset arrives within the first call.

use std::path::Path;

use crate::harness::{Ends, Library, Output, Side, compile};

pub const SOURCE: &str = include_str!("../closed_peer.c");

/// A library that only sends looks at its rings after so many calls.
const BLIND: f64 = 17.0;

/// A closer under the library answers by its internal thread, which has to be woken, perhaps on a busy CPU: time is what
/// counts, and the best of some tries. Before there was a limit it took 10 ms and more, the interval of that thread.
const MICROS: f64 = 5000.0;

pub fn words(role: &str, address: &str, nodelay: bool) -> String {
    format!("{role} {address} 7000 {}", u8::from(nodelay))
}

pub fn file(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[track_caller]
pub fn ends_soon(output: &Output, closer_has_library: bool) {
    println!("{}", output.stdout);
    if closer_has_library {
        assert!(output.number("shortest soon after") < MICROS, "{}", output.stdout);
    } else {
        assert!(output.number("most sends but one") <= BLIND, "{}", output.stdout);
    }
}

#[test]
fn sends_to_a_closed_peer_fail_soon() {
    for library in [Library::Client, Library::Server, Library::Both] {
        let ends = Ends::new(library);
        let program = file(&compile(&ends.net, "closed_peer", SOURCE, &[]));
        let watches = [Side::A, Side::B].map(|side| (side, ends.net.watch_tcp(side)));
        let _server =
            ends.server(&program).args(&words("server", "10.99.0.1", false)).start_shown();
        ends.net.wait_for_listener(Side::A, 7000);
        for nodelay in [false, true] {
            println!("{library:?}, TCP_NODELAY {nodelay}:");
            let client = ends.client(&program).args(&words("client", "10.99.0.1", nodelay));
            ends_soon(&client.run().ok(), library.at_server());
        }
        for (side, watch) in watches {
            let moved = watch.moved();
            let kernels = if side == Side::A { moved.accepted } else { moved.opened };
            let served = if side == Side::A { library.at_server() } else { library.at_client() };
            assert_eq!(kernels == 0, served, "{side:?}: {moved:?}");
        }
    }
}
