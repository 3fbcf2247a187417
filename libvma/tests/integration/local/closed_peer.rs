//! send() to a peer of this host that has closed fails soon.

use crate::harness::compile_in;
use crate::tcp::closed_peer::{SOURCE, ends_soon, file, words};

use super::{ALL, Local};

#[test]
fn sends_to_a_closed_peer_of_the_host_fail_soon() {
    for under in ALL {
        let local = Local::new(under);
        let program = file(&compile_in(&local.sandbox.dir, "closed_peer", SOURCE, &[]));
        let server = local.server(&program).args(&words("server", "127.0.0.1", false));
        let _server = server.start_shown();
        local.sandbox.wait_for_listener(7000);
        for nodelay in [false, true] {
            println!("{under:?}, TCP_NODELAY {nodelay}:");
            let client = local.client(&program).args(&words("client", "127.0.0.1", nodelay));
            // A pipe tells of the end by itself.
            ends_soon(&client.run().ok(), false);
        }
    }
}
