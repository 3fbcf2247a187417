//! Runs of `packaging/install.sh`, here into an image or inside a root, and the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use packages::{Root, Run, workspace};

/// Where a root has the source tree.
pub const TREE: &str = "/usr/src/libvma";

/// Cargo's target folder, which the programs are taken from.
pub fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder of the target folder").into()
}

/// An image of a system, to install into. Removed when dropped.
pub struct Image(pub PathBuf);

impl Image {
    pub fn empty() -> Image {
        Image::empty_named("image")
    }

    /// A second one.
    pub fn empty_named(name: &str) -> Image {
        let folder = std::env::temp_dir().join(format!("vma-{name}-{}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        Image(folder)
    }

    /// The script, told to install into the image.
    pub fn install(&self, options: &[&str]) -> Command {
        let mut command = Command::new(workspace().join("packaging/install.sh"));
        command
            .env("CARGO_TARGET_DIR", target())
            .args(["--no-build", "--destdir"])
            .arg(&self.0)
            .args(options);
        command
    }

    pub fn path(&self, absolute: &str) -> PathBuf {
        self.0.join(absolute.strip_prefix('/').expect("paths in an image begin with /"))
    }

    #[track_caller]
    pub fn read(&self, absolute: &str) -> String {
        let path = self.path(absolute);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{absolute} in the image: {error}"))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Brings the source tree and the built programs into a root; as much of both as is installed.
pub fn bring(root: &Root) {
    let tree = root.path(TREE);
    for folder in [
        "packaging",
        "libvma",
        "libvma-dev/include/mellanox",
        "target/release",
        "target/debug-library",
    ] {
        fs::create_dir_all(tree.join(folder)).expect("the root is writable");
    }
    let from = workspace();
    let examples = from.join("libvma-dev/examples");
    Command::new("cp").arg("-r").arg(examples).arg(tree.join("libvma-dev")).succeeds();
    for name in ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "docs", "init"] {
        Command::new("cp").arg("-r").arg(from.join(name)).arg(&tree).succeeds();
    }
    for name in [
        "packaging/install.sh",
        "packaging/libvma.pc",
        "libvma/libvma.conf",
        "libvma-dev/include/mellanox/vma_extra.h",
    ] {
        fs::copy(from.join(name), tree.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    for name in ["libvma.so", "udp_lat", "vma_conf", "vma_stats", "vmad"] {
        let name = Path::new("release").join(name);
        copy_built(&target().join(&name), &tree.join("target").join(&name));
    }
    let debug = Path::new("debug-library/libvma.so");
    copy_built(&target().join(debug), &tree.join("target").join(debug));
}

fn copy_built(from: &Path, to: &Path) {
    fs::copy(from, to)
        .unwrap_or_else(|e| panic!("{}: {e}; ci/build-packages makes it", from.display()));
}

/// The script inside a root.
pub fn script(root: &Root, options: &[&str]) -> Command {
    let mut command = root.command(&format!("{TREE}/packaging/install.sh"));
    command.args(options);
    command
}

/// As in Debian's images: maintainer scripts may start nothing.
pub fn without_services(root: &Root) {
    root.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n");
    root.shell("chmod 755 /usr/sbin/policy-rc.d").succeeds();
}
