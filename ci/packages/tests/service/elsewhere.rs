//! The init script on systems that are not Debian: with the helper functions of others, and with
//! nothing but a shell. The daemon's own part of those systems is Debian's, as it is a test of the
//! script.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use packages::{Root, Run, dist};

use crate::act::{expect, installed, whole_life};

/// The words of Red Hat's `/etc/init.d/functions` (package initscripts) that init scripts use to show
/// how it went; Debian has no such package. As there they print no line end, and leave the result
/// to the caller. A script that does not decide by itself would be sent to systemctl here.
const REDHAT: &str = r#"
if [ -d /run/systemd/system ] && [ -z "$SYSTEMCTL_SKIP_REDIRECT" ]; then
    echo "redirected by the functions" >&2
    exit 99
fi
success() { printf '\r[  OK  ] (red)'; return 0; }
failure() { rc=$?; printf '\r[FAILED] (red)'; return $rc; }
"#;

/// The same of SuSE's `/etc/rc.status` (package aaa_base): the mark follows from the last result.
const SUSE: &str = r#"
rc_status() {
    rc=$?
    if [ "$1" = -v ]; then
        if [ $rc -eq 0 ]; then echo "..done"; else echo "..failed"; fi
    fi
    return $rc
}
"#;

// covers: INS-07, INS-08
#[test]
fn with_the_functions_of_red_hat() {
    let root = installed();
    remove_debians_functions(&root);
    root.write("/etc/init.d/functions", REDHAT);
    // Not there before a service runs; rc stops at shutdown what has a file in it.
    fs::create_dir(root.path("/run/lock/subsys")).expect("/run/lock is writable");
    whole_life(&root);

    let said = expect(&root, "start", 0);
    assert_eq!(said.out, "Starting vmad: \r[  OK  ] (red)\n");
    assert!(root.path("/run/lock/subsys/vma").exists());
    expect(&root, "stop", 0);
    assert!(!root.path("/run/lock/subsys/vma").exists());
    root.write("/etc/vma/vmad.toml", "no_such_key = 1\n");
    assert_eq!(expect(&root, "start", 1).out, "Starting vmad: \r[FAILED] (red)\n");
}

// covers: INS-08
#[test]
fn with_the_functions_of_suse() {
    let root = installed();
    remove_debians_functions(&root);
    root.write("/etc/rc.status", SUSE);
    whole_life(&root);

    assert_eq!(expect(&root, "start", 0).out, "Starting vmad: ..done\n");
    expect(&root, "stop", 0);
    root.write("/etc/vma/vmad.toml", "no_such_key = 1\n");
    assert_eq!(expect(&root, "start", 1).out, "Starting vmad: ..failed\n");
}

// covers: INS-08
#[test]
fn with_busybox_and_nothing_else() {
    let lower = Busybox::make();
    let root = Root::over(&lower.0);
    assert!(!root.path("/bin/bash").exists() && !root.path("/lib/lsb").exists());
    whole_life(&root);

    assert_eq!(expect(&root, "start", 0).out, "Starting vmad: [  OK  ]\n");
    expect(&root, "stop", 0);
    root.write("/etc/vma/vmad.toml", "no_such_key = 1\n");
    assert_eq!(expect(&root, "start", 1).out, "Starting vmad: [FAILED]\n");
}

// covers: INS-08
#[test]
fn every_posix_shell_takes_the_script() {
    let script = packages::workspace().join("init/vma.init");
    for shell in [&["dash"][..], &["busybox", "ash"], &["bash", "--posix"]] {
        Command::new(shell[0]).args(&shell[1..]).arg("-n").arg(&script).succeeds();
    }
    Command::new("shellcheck").args(["--shell=sh", "--severity=style"]).arg(&script).succeeds();
}

fn remove_debians_functions(root: &Root) {
    fs::remove_dir_all(root.path("/lib/lsb")).expect("Debian has it");
}

/// A system of busybox, the C library and the package's files. Removed when dropped.
struct Busybox(PathBuf);

impl Busybox {
    fn make() -> Busybox {
        let folder = std::env::temp_dir().join(format!("vma-busybox-{}", std::process::id()));
        let system = Busybox(folder);
        let at = system.0.as_path();
        for name in ["bin", "dev", "etc", "lib", "run/lock", "sbin", "tmp", "usr/bin", "var"] {
            fs::create_dir_all(at.join(name)).expect("a new folder");
        }
        for (link, to) in [("lib64", "lib"), ("var/run", "../run"), ("var/lock", "../run/lock")] {
            symlink(to, at.join(link)).expect("a new folder");
        }
        fs::set_permissions(at.join("tmp"), fs::Permissions::from_mode(0o1777)).expect("ours");
        fs::write(at.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").expect("ours");

        let busybox = at.join("bin/busybox");
        fs::copy("/bin/busybox", &busybox).expect("busybox-static is installed");
        for name in ["bin", "sbin", "usr/bin"] {
            let applets = Command::new("/bin/busybox").arg("--list").succeeds();
            for applet in applets.lines() {
                let _ = symlink("/bin/busybox", at.join(name).join(applet));
            }
        }
        Command::new("dpkg-deb").arg("--extract").arg(dist::deb("libvma")).arg(at).succeeds();
        for library in libraries_of(&at.join("usr/sbin/vmad")) {
            let name = library.file_name().expect("a file");
            fs::copy(&library, at.join("lib").join(name)).expect("the loader named it");
        }
        system
    }
}

impl Drop for Busybox {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The shared libraries that a program needs, the loader among them.
fn libraries_of(program: &Path) -> Vec<PathBuf> {
    let lines = Command::new("ldd").arg(program).succeeds();
    lines.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}
