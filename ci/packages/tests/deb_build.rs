//! The Debian packages as files: what lintian says of them, and that they are the same wherever and
//! whenever they are made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use packages::{Run, dist, workspace};

const PACKAGES: [&str; 4] = ["libvma", "libvma-utils", "libvma-dev", "doca-vma"];

#[test]
fn lintian_finds_nothing() {
    let says = Command::new("lintian")
        .args(["--fail-on", "error,warning", "--allow-root"])
        .args(PACKAGES.map(dist::deb))
        .output_of_success();
    assert_eq!(says, "");
}

#[test]
fn the_checksums_are_those_of_the_packages() {
    let folder = dist::folder();
    let listed = fs::read_to_string(folder.join("SHA256SUMS")).expect("it is beside them");
    for package in PACKAGES.map(dist::deb) {
        let name = package.file_name().expect("a file").to_string_lossy().into_owned();
        assert!(listed.contains(&format!("  {name}\n")), "{name} is not in {listed}");
    }
    Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", "SHA256SUMS"])
        .current_dir(folder)
        .succeeds();
}

/// The same programs, packed again, elsewhere and later.
#[test]
fn packing_twice_gives_the_same_bytes() {
    let target = Scratch::new("again");
    for program in ["libvma.so", "udp_lat", "vma_conf", "vma_stats", "vmad"] {
        target.link(&programs().join("release").join(program), "release");
    }
    target.link(&programs().join("debug-library/libvma.so"), "debug-library");
    let output = target.0.join("dist");
    Command::new(workspace().join("ci/build-packages"))
        .args(["--no-build", "--deb-only", "--output"])
        .arg(&output)
        .env("CARGO_TARGET_DIR", &target.0)
        .env("SOURCE_DATE_EPOCH", epoch())
        .succeeds();
    for package in PACKAGES.map(dist::deb) {
        let again = output.join(package.file_name().expect("a file"));
        let (first, second) = (fs::read(&package).unwrap(), fs::read(&again).unwrap());
        assert!(first == second, "{} is not {}", again.display(), package.display());
    }
}

#[test]
fn no_path_of_the_building_machine_is_in_the_packages() {
    let home = std::env::var("HOME").expect("every user has one");
    let place = |name: &str, below: &str| {
        std::env::var(name).unwrap_or_else(|_| format!("{home}/{below}")) + "/"
    };
    let workspace = workspace().display().to_string() + "/";
    let paths = [place("CARGO_HOME", ".cargo"), place("RUSTUP_HOME", ".rustup"), workspace];
    for package in PACKAGES.map(dist::deb) {
        let tree = Scratch::new("paths");
        Command::new("dpkg-deb").arg("--raw-extract").arg(&package).arg(&tree.0).succeeds();
        for path in &paths {
            let found = Command::new("grep")
                .args(["--recursive", "--text", "--fixed-strings", "--files-with-matches", path])
                .arg(&tree.0)
                .output()
                .expect("grep is everywhere");
            let found = String::from_utf8_lossy(&found.stdout).into_owned();
            assert_eq!(found, "", "{path} is in {}", package.display());
        }
    }
}

#[test]
fn a_missing_program_is_named() {
    let target = Scratch::new("missing");
    let (code, says) = Command::new(workspace().join("ci/build-packages"))
        .args(["--no-build", "--deb-only"])
        .arg("--output")
        .arg(target.0.join("dist"))
        .env("CARGO_TARGET_DIR", &target.0)
        .env("SOURCE_DATE_EPOCH", "1")
        .fails();
    let expected = format!("ci/build-packages: no {}/release/libvma.so", target.0.display());
    assert!(code == 1 && says.contains(&expected), "{says}");
}

/// When the packages were made: the time of every file in them.
fn epoch() -> String {
    let pipe = "dpkg-deb --fsys-tarfile \"$1\" | tar --list --verbose --full-time --utc";
    let listing = Command::new("sh").args(["-c", pipe, "sh"]).arg(dist::deb("libvma")).succeeds();
    let mut words = listing.lines().next().expect("a file").split_whitespace().skip(3);
    let (day, time) = (words.next().expect("a day"), words.next().expect("a time"));
    let date = format!("--date={day} {time} UTC");
    Command::new("date").args([&date, "+%s"]).succeeds().trim().to_owned()
}

/// The folder with the programs that were packed; beside LIBVMA_DIST, where that is set.
fn programs() -> PathBuf {
    if std::env::var_os("LIBVMA_DIST").is_some() {
        dist::folder().parent().expect("a folder").to_owned()
    } else {
        packages::target()
    }
}

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("vmab-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory for the test's files");
        Scratch(path)
    }

    fn link(&self, file: &Path, folder: &str) {
        let folder = self.0.join(folder);
        fs::create_dir_all(&folder).expect("it is ours");
        let link = folder.join(file.file_name().expect("a file"));
        std::os::unix::fs::symlink(file, link).expect("it is ours");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
