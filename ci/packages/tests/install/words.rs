//! What the script says when it cannot do what it is asked.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use packages::{Run, workspace};

use crate::sources::Image;

fn script() -> Command {
    Command::new(workspace().join("packaging/install.sh"))
}

#[test]
fn it_is_a_clean_script_and_explains_its_options() {
    Command::new("shellcheck").arg(workspace().join("packaging/install.sh")).succeeds();
    let usage = script().arg("--help").succeeds();
    for option in [
        "--prefix",
        "--libdir",
        "--sysconfdir",
        "--docdir",
        "--destdir",
        "--no-build",
        "--uninstall",
    ] {
        assert!(usage.contains(option), "{option}: {usage}");
    }
    assert_eq!(script().arg("--prefx=/usr").fails(), (2, usage));
}

#[test]
fn folders_that_cannot_be_written_down_are_refused() {
    for folder in ["relative", "", "/with a blank", "/with'quote", "/with%specifier", "/with\nline"]
    {
        let (code, said) = script().args(["--prefix", folder]).fails();
        assert_eq!(code, 1);
        assert!(said.starts_with(&format!("install.sh: --prefix {folder}: a path that")), "{said}");
    }
    let (code, said) = script().arg("--destdir").fails();
    assert_eq!((code, said.as_str()), (1, "install.sh: --destdir needs a folder\n"));
}

#[test]
fn what_was_not_installed_cannot_be_uninstalled() {
    let image = Image::empty();
    let (code, said) = image.install(&["--uninstall"]).fails();
    assert_eq!(code, 1);
    assert!(said.contains("usr/local/share/libvma/manifest: nothing was installed"), "{said}");
}

// covers: INS-29
#[test]
fn a_missing_prerequisite_is_named() {
    let tools = std::env::temp_dir().join(format!("vma-tools-{}", std::process::id()));
    fs::create_dir(&tools).unwrap();
    // All that it calls before it looks; and one after the other what building needs.
    for tool in ["bash", "dirname", "sed"] {
        symlink(format!("/usr/bin/{tool}"), tools.join(tool)).unwrap();
    }
    for tool in ["cargo", "clang", "cc"] {
        let mut command = script();
        let (code, said) =
            command.env_clear().env("PATH", &tools).arg("--destdir=/nowhere").fails();
        assert_eq!(code, 1);
        assert!(said.starts_with(&format!("install.sh: no {tool} here")), "{said}");
        assert!(said.contains("docs/installation.md"), "{said}");
        symlink("/bin/false", tools.join(tool)).unwrap();
    }
    fs::remove_dir_all(&tools).unwrap();

    let documented = fs::read_to_string(workspace().join("docs/installation.md")).unwrap();
    for tool in ["cargo", "clang", "gcc", "libc6-dev", "linux-libc-dev"] {
        assert!(documented.contains(tool), "{tool}");
    }
}

// covers: INS-29
#[test]
fn programs_that_were_not_built_are_named() {
    let image = Image::empty();
    let empty = image.path("/target");
    fs::create_dir(&empty).unwrap();
    let (code, said) = image.install(&[]).env("CARGO_TARGET_DIR", &empty).fails();
    assert_eq!(code, 1);
    assert!(said.contains("target/release/libvma.so: without --no-build it is built"), "{said}");
    assert_eq!(fs::read_dir(&image.0).unwrap().count(), 1, "nothing was installed");
}
