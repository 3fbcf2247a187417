//! The bench on which the tests in `tests/` lay a package: systems of their own, with real package
//! managers in them.
//!
//! * [`dist`] finds the packages that `ci/build-packages` made, and refuses old ones.
//! * [`Base`] is a Debian 12 as debootstrap makes it: made once, kept below the target folder, never
//!   changed afterwards.
//! * [`Root`] is a test's own system over a base: own mounts, processes, network, host name. What
//!   the test does in it is gone with it, also when the test fails or is killed. Needs root.
//! * [`Peer`] is another host at the other end of a cable to a [`Root`].
//! * [`Run`] are the things one does with a program: run it to its end or expect it to fail.
//!
//! ```no_run
//! use packages::Run;
//! let root = packages::Root::fresh(&packages::PLAIN);
//! root.install(&[packages::dist::deb("libvma")]);
//! root.shell("LD_PRELOAD=libvma.so true").succeeds();
//! root.command("dpkg").args(["--verify", "libvma"]).succeeds();
//! assert!(root.path("/etc/libvma.conf").exists());
//! ```
//!
//! Nothing here touches the machine's own packages, services or network.

mod base;
pub mod dist;
mod peer;
mod root;
mod run;
mod tree;

pub use base::{Base, PLAIN, SYSTEMD};
pub use peer::Peer;
pub use root::Root;
pub use run::Run;
pub use tree::{Entry, Tree};

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a condition may take to come true before a test gives up. Far beyond what it takes: the
/// machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until `condition` yields something; panics after [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = condition() {
            return result;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The folder of the workspace.
pub fn workspace() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is <workspace>/ci/packages").to_owned()
}

/// Cargo's target folder: the test runs as `<target>/<profile>/deps/<test>`.
pub fn target() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    test.ancestors().nth(3).expect("a test lies in <target>/<profile>/deps").to_owned()
}
