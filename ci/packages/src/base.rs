//! Debian systems as debootstrap makes them. Here is how they are made and kept; what a test does
//! over one of them is in `root`.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;

use crate::run::Run;
use crate::target;

/// A Debian 12 with these packages beside the essential ones.
#[derive(Debug)]
pub struct Base {
    pub name: &'static str,
    pub packages: &'static [&'static str],
}

/// Without an init, as in a container: `man`, `ip`, `ps`, `sockperf` for the tests' own use.
pub const PLAIN: Base =
    Base { name: "plain", packages: &["iproute2", "man-db", "procps", "sockperf"] };

/// With systemd as its init.
pub const SYSTEMD: Base = Base {
    name: "systemd",
    packages: &["dbus", "iproute2", "procps", "systemd", "systemd-sysv", "udev"],
};

impl Base {
    /// The system's folder, made if it is not there yet: about a minute. Other tests that want it
    /// meanwhile wait.
    ///
    /// `LIBVMA_ROOTS` names another folder to keep the systems in than `<target>/roots`,
    /// `LIBVMA_DEBIAN_MIRROR` another mirror than deb.debian.org. Panics without root, without
    /// debootstrap, or when the mirror does not answer.
    pub fn folder(&self) -> PathBuf {
        assert!(rustix::process::getuid().is_root(), "the tests of packages need root: ci/test");
        let kept =
            std::env::var_os("LIBVMA_ROOTS").map_or_else(|| target().join("roots"), PathBuf::from);
        fs::create_dir_all(&kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display()));
        let name = format!("{}-{:016x}", self.name, self.hash());
        let lock = File::create(kept.join(format!("{name}.lock"))).expect("the folder is ours");
        // Held until the end of this function, or of this process.
        lock.lock().expect("flock");
        let done = kept.join(&name);
        if !done.exists() {
            // What a killed run left behind is made anew; only a whole system gets the name.
            let half = kept.join(format!("{name}.half"));
            if half.exists() {
                fs::remove_dir_all(&half).expect("the half of a system can be removed");
            }
            self.debootstrap(&half);
            fs::rename(&half, &done).expect("within one folder");
        }
        done
    }

    fn debootstrap(&self, folder: &PathBuf) {
        let mirror = std::env::var("LIBVMA_DEBIAN_MIRROR")
            .unwrap_or_else(|_| "http://deb.debian.org/debian".to_owned());
        // What it mounts goes with it.
        Command::new("unshare")
            .args(["--mount", "debootstrap"])
            .args(["--variant=minbase", &format!("--include={}", self.packages.join(","))])
            .arg("bookworm")
            .arg(folder)
            .arg(mirror)
            .succeeds();
    }

    /// Another list of packages is another system.
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.packages.hash(&mut hasher);
        hasher.finish()
    }
}
