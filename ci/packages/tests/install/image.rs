//! What an installation consists of, against what the packages consist of.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use packages::{Run, dist};

use crate::sources::Image;

/// Path, and the mode of a file or where a link leads.
type Files = BTreeMap<String, String>;

// covers: INS-28
#[test]
fn an_image_holds_what_the_debian_packages_hold() {
    let image = Image::empty();
    image.install(&["--prefix=/usr", "--sysconfdir=/etc"]).succeeds();
    let mut ours = files(&image.0);

    let packed = Image::empty_named("packed");
    for name in ["libvma", "libvma-utils", "libvma-dev"] {
        Command::new("dpkg-deb").arg("--extract").arg(dist::deb(name)).arg(&packed.0).succeeds();
    }
    let mut theirs = files(&packed.0);
    // Debian's own documents, and the licences, which Debian has in one file.
    theirs.retain(|path, _| {
        let debian = ["/changelog.Debian.gz", "/copyright"].iter().any(|end| path.ends_with(end));
        !debian && !path.starts_with("/usr/share/lintian/")
    });
    same_unit_folder(&mut theirs);
    same_examples_folder(&mut theirs);
    without_own(&mut ours, "/usr/share/doc/libvma");
    assert_eq!(ours, theirs);
}

// covers: INS-28
#[test]
fn an_image_for_red_hat_holds_what_the_rpm_packages_hold() {
    let image = Image::empty();
    image
        .install(&["--prefix", "/usr", "--libdir", "/usr/lib64", "--sysconfdir", "/etc"])
        .succeeds();
    let mut ours = files(&image.0);
    without_own(&mut ours, "/usr/share/doc/libvma");
    // The same by Debian's name, and unpacked.
    let changelog = ours.remove("/usr/share/doc/libvma/changelog.gz").expect("the changelog");
    ours.insert("/usr/share/doc/libvma/CHANGELOG.md".to_owned(), changelog);

    let mut theirs = Files::new();
    for name in ["libvma", "libvma-utils", "libvma-devel"] {
        let format = "[%{FILEMODES:octal}\t%{FILELINKTOS}\t%{FILENAMES}\n]";
        let mut query = Command::new("rpm");
        query.args(["--query", "--queryformat", format, "--package"]).arg(dist::rpm(name));
        for line in query.succeeds().lines() {
            let [mode, to, path] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let mode = u32::from_str_radix(mode, 8).expect("octal");
            match mode >> 12 {
                0o04 => continue, // a folder
                0o12 => theirs.insert(path.to_owned(), format!("-> {to}")),
                _ => theirs.insert(path.to_owned(), format!("{:o}", mode & 0o7777)),
            };
        }
    }
    theirs.retain(|path, _| !path.starts_with("/usr/share/licenses/"));
    same_examples_folder(&mut theirs);
    // The same folder: /etc/init.d is a link there.
    if let Some(script) = theirs.remove("/etc/rc.d/init.d/vma") {
        theirs.insert("/etc/init.d/vma".to_owned(), script);
    }
    // rpm has libraries executable, Debian has not.
    for (path, mode) in &mut theirs {
        if path.starts_with("/usr/lib64/libvma") && mode == "755" {
            "644".clone_into(mode);
        }
    }
    assert_eq!(ours, theirs);
}

// covers: INS-28
#[test]
fn other_folders_are_known_to_service_and_library() {
    let image = Image::empty();
    let folders = ["--prefix=/opt/vma", "--libdir=/opt/vma/lib64", "--docdir=/opt/vma/doc"];
    image.install(&folders).succeeds();

    let unit = image.read("/opt/vma/lib/systemd/system/vma.service");
    let start = "ExecStart=/opt/vma/sbin/vmad --console --config /opt/vma/etc/vma/vmad.toml\n";
    assert!(unit.contains(start), "{unit}");
    let script = image.read("/opt/vma/etc/init.d/vma");
    for line in [
        "DAEMON=/opt/vma/sbin/vmad\n",
        "OPTIONS='--config /opt/vma/etc/vma/vmad.toml'\n",
        "CONFIG=/opt/vma/etc/vma/vmad.toml\n",
    ] {
        assert!(script.contains(line), "{line}{script}");
    }
    assert!(image.path("/opt/vma/doc/VMA_VERSION").exists());

    let mut config = Command::new("pkg-config");
    config.env("PKG_CONFIG_PATH", image.path("/opt/vma/lib64/pkgconfig"));
    let said = config.args(["--libs", "libvma"]).succeeds();
    assert!(said.contains(&format!("-L{}", image.path("/opt/vma/lib64").display())), "{said}");
}

// covers: INS-28
#[test]
fn an_image_that_is_not_there_yet_is_made() {
    let image = Image::empty();
    let below = image.path("/not/there/yet");
    image.install(&["--destdir", below.to_str().expect("text")]).succeeds();
    assert!(below.join("usr/local/lib/libvma.so").exists());
    assert!(!image.path("/usr").exists());
}

// covers: INS-28, INS-27
#[test]
fn uninstalling_leaves_nothing() {
    let image = Image::empty();
    for options in [&["--prefix=/usr"][..], &[], &["--prefix=/opt/a/b", "--docdir=/opt/doc"]] {
        image.install(options).succeeds();
        assert!(files(&image.0).len() > 20);
        // A second installation knows what the first made.
        image.install(options).succeeds();
        let said = image.install(options).arg("--uninstall").output_of_success();
        assert_eq!(said, "");
        let left: Vec<_> = fs::read_dir(&image.0).expect("the image").collect();
        assert!(left.is_empty(), "{options:?}: {left:?}");
    }
}

// covers: INS-27
#[test]
fn uninstalling_leaves_what_others_put_beside() {
    let image = Image::empty();
    image.install(&["--prefix=/usr"]).succeeds();
    fs::write(image.path("/usr/lib/libother.so"), "").unwrap();
    image.install(&["--prefix=/usr", "--uninstall"]).succeeds();
    assert_eq!(files(&image.0).into_keys().collect::<Vec<_>>(), ["/usr/lib/libother.so"]);
}

// covers: INS-28
#[test]
fn a_newer_version_takes_the_place_of_an_older_one() {
    let image = Image::empty();
    image.install(&["--prefix=/usr"]).succeeds();
    // What an older version had and this one has not.
    fs::write(image.path("/usr/lib/libvma.so.9.0.0"), "old").unwrap();
    let manifest = image.path("/usr/share/libvma/manifest");
    let text = fs::read_to_string(&manifest).unwrap() + "file /usr/lib/libvma.so.9.0.0\n";
    fs::write(&manifest, text).unwrap();
    image.install(&["--prefix=/usr"]).succeeds();
    assert!(!image.path("/usr/lib/libvma.so.9.0.0").exists());
}

// covers: INS-02, INS-03
#[test]
fn the_installed_libraries_say_who_they_are() {
    let image = Image::empty();
    image.install(&["--prefix=/usr"]).succeeds();
    let version = env!("CARGO_PKG_VERSION");
    let link = fs::read_link(image.path("/usr/lib/libvma.so")).unwrap();
    assert_eq!(link, Path::new(&format!("libvma.so.{version}")));
    for (library, debug) in [("libvma.so", false), ("libvma-debug.so", true)] {
        let bytes = fs::read(image.path(&format!("/usr/lib/{library}"))).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().find(|line| line.starts_with("VMA_VERSION: ")).expect(library);
        assert!(line.contains(version), "{line}");
        assert_eq!(line.contains("-*- DEBUG -*-"), debug, "{line}");
    }
}

/// All files and links below a folder.
fn files(root: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable folder").path();
            let metadata = fs::symlink_metadata(&path).expect("it is there");
            let name = format!("/{}", path.strip_prefix(root).expect("below").display());
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_symlink() {
                let to = fs::read_link(&path).expect("a link");
                files.insert(name, format!("-> {}", to.display()));
            } else {
                files.insert(name, format!("{:o}", metadata.permissions().mode() & 0o7777));
            }
        }
    }
    files
}

/// Debian 12 still has units in /lib, which is /usr/lib.
fn same_unit_folder(files: &mut Files) {
    if let Some(unit) = files.remove("/lib/systemd/system/vma.service") {
        files.insert("/usr/lib/systemd/system/vma.service".to_owned(), unit);
    }
}

/// A package has its examples beside its own documents, an installation beside those of the library.
fn same_examples_folder(files: &mut Files) {
    let moved = std::mem::take(files).into_iter().map(|(path, mode)| {
        let package = path.strip_prefix("/usr/share/doc/libvma-dev");
        let example = package.map(|rest| rest.strip_prefix("el").unwrap_or(rest));
        match example.filter(|rest| rest.starts_with("/examples/")) {
            Some(rest) => (format!("/usr/share/doc/libvma{rest}"), mode),
            None => (path, mode),
        }
    });
    *files = moved.collect();
}

/// Takes away what the installation has for itself: its manifest and the licences as they are.
fn without_own(files: &mut Files, docdir: &str) {
    let documents = ["LICENSE-APACHE", "LICENSE-MIT"].map(|name| format!("{docdir}/{name}"));
    for name in documents.iter().map(String::as_str).chain(["/usr/share/libvma/manifest"]) {
        files.remove(name).expect(name);
    }
}
