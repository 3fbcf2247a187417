//! The packages under test: what `ci/build-packages` put into `dist/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::{target, workspace};

/// What is packed, besides the programs in `<target>/release`; of the workspace.
const SOURCES: &[&str] = &[
    "ci/build-packages",
    "doca-profile",
    "docs",
    "init",
    "libvma-dev/examples",
    "libvma-dev/include",
    "packaging",
];
const PROGRAMS: &[&str] = &["libvma.so", "udp_lat", "vma_conf", "vma_stats", "vmad"];

/// The folder with the packages, `<workspace>/dist`; `LIBVMA_DIST` names another one. Panics when it
/// is missing, or older than what the packages are made of.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(given) = std::env::var_os("LIBVMA_DIST") {
            let given = PathBuf::from(given);
            assert!(given.is_dir(), "LIBVMA_DIST={}: no such folder", given.display());
            return given;
        }
        let folder = workspace().join("dist");
        let sums = folder.join("SHA256SUMS");
        let Some(built) = modified(&sums) else {
            panic!("no {}: run ci/build-packages first", sums.display());
        };
        let release = target().join("release");
        let programs = PROGRAMS.iter().map(|name| release.join(name));
        let sources = SOURCES.iter().map(|name| workspace().join(name));
        for path in programs.chain(sources) {
            if let Some((newest, changed)) = newest(&path) {
                let (sums, newest) = (sums.display(), newest.display());
                assert!(
                    changed <= built,
                    "{sums} is older than {newest}: run ci/build-packages first"
                );
            }
        }
        folder
    })
}

/// The Debian package of this name, whatever its version.
pub fn deb(name: &str) -> PathBuf {
    find(&format!("{name}_"), ".deb")
}

/// The RPM package of this name, whatever its version.
pub fn rpm(name: &str) -> PathBuf {
    find(&format!("{name}-"), ".rpm")
}

/// Files of which the version follows the prefix.
fn find(prefix: &str, suffix: &str) -> PathBuf {
    let folder = folder();
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let version = name.strip_prefix(prefix).filter(|_| name.ends_with(suffix));
            version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
        })
        .collect();
    assert!(
        found.len() == 1,
        "{} holds {} packages {prefix}*{suffix}, not one: run ci/build-packages first",
        folder.display(),
        found.len()
    );
    found.remove(0)
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

/// The file that changed last: this one, or of those below.
fn newest(path: &Path) -> Option<(PathBuf, SystemTime)> {
    if !path.is_dir() {
        return modified(path).map(|time| (path.to_owned(), time));
    }
    let entries = fs::read_dir(path).ok()?.flatten();
    entries.filter_map(|entry| newest(&entry.path())).max_by_key(|(_, time)| *time)
}
