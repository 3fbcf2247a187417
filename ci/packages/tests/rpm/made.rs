//! Packages made anew, of another version: the next one for upgrades.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use packages::{Run, dist, workspace};

use crate::scratch::Scratch;

/// Packages made anew from the files in those of `dist/`.
pub struct Made {
    folder: Scratch,
    pub version: String,
}

impl Made {
    /// Of this version, with this libvma.conf.
    pub fn new(version: &str, configuration: &str) -> Made {
        let folder = Scratch::new();
        let artifacts = artifacts();
        let file = artifacts.join("libvma.conf");
        fs::write(&file, configuration).expect("a directory of ours");
        // Its symbols take long to pack.
        let (library, debug) = (artifacts.join("libvma.so"), artifacts.join("libvma-debug.so"));
        fs::copy(library, debug).expect("a directory of ours");
        build(&folder, &artifacts, version, &file);
        Made { folder, version: version.to_owned() }
    }

    /// Where they all are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn rpm(&self, name: &str) -> PathBuf {
        only_file(&self.folder, &format!("{name}-{}-", self.version))
    }
}

/// The release that follows the one in `dist/`.
pub fn next_version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let (front, last) = version.rsplit_once('.').expect("X.Y.Z");
    let last: u32 = last.parse().expect("a number");
    format!("{front}.{}", last + 1)
}

/// `packaging/rpm/build`, with release and time of the packages in `dist/`.
pub fn build(output: &Path, artifacts: &Path, version: &str, configuration: &Path) {
    Command::new(workspace().join("packaging/rpm/build"))
        .args([output, artifacts])
        .args(["--version", version, "--configuration"])
        .arg(configuration)
        .env("PRJ_RELEASE", of_dist("%{release}"))
        .env("SOURCE_DATE_EPOCH", of_dist("%{buildtime}"))
        .succeeds();
}

/// What `packaging/rpm/build` is given, taken out of the packages again.
pub fn artifacts() -> Scratch {
    let folder = Scratch::new();
    let version = of_dist("%{version}");
    for name in ["libvma", "libvma-devel", "libvma-utils"] {
        let script =
            format!("rpm2archive --nocompression - <{} | tar x", dist::rpm(name).display());
        Command::new("bash")
            .args(["-o", "pipefail", "-ec", &script])
            .current_dir(&*folder)
            .env("HOME", &*folder)
            .succeeds();
    }
    let library = format!("usr/lib64/libvma.so.{version}");
    for (from, to) in [
        (library.as_str(), "libvma.so"),
        ("usr/lib64/libvma-debug.so", "libvma-debug.so"),
        ("usr/sbin/vmad", "vmad"),
        ("usr/bin/udp_lat", "udp_lat"),
        ("usr/bin/vma_conf", "vma_conf"),
        ("usr/bin/vma_stats", "vma_stats"),
        ("usr/share/doc/libvma/README.txt", "README.txt"),
        ("usr/share/doc/libvma/VMA_VERSION", "VMA_VERSION"),
        ("usr/lib64/pkgconfig/libvma.pc", "libvma.pc"),
        ("etc/libvma.conf", "libvma.conf"),
    ] {
        fs::rename(folder.join(from), folder.join(to)).unwrap_or_else(|e| panic!("{from}: {e}"));
    }
    folder
}

/// A field of the package libvma in `dist/`.
pub fn of_dist(format: &str) -> String {
    // Debian's rpm makes its database in the home, even if it is not asked about it.
    let home = Scratch::new();
    let mut command = Command::new("rpm");
    command.args(["-qp", "--queryformat", format]).arg(dist::rpm("libvma"));
    command.env("HOME", &*home).succeeds()
}

fn only_file(folder: &Path, prefix: &str) -> PathBuf {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder of ours")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.file_name().is_some_and(|it| it.to_string_lossy().starts_with(prefix)))
        .collect();
    assert_eq!(found.len(), 1, "{prefix}*: {found:?}");
    found.remove(0)
}
