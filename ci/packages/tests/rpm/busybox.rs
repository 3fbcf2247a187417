//! A root that has a shell and nothing else, as the first packages of an image find it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use packages::{Root, Run, dist};

use crate::made::{Made, next_version};
use crate::scratch::Scratch;
use crate::system::System;

#[test]
fn a_shell_is_all_that_the_scriptlets_need() {
    let lower = Scratch::new();
    let bin = lower.join("bin");
    fs::create_dir(&bin).expect("a directory of ours");
    let busybox = Path::new("/bin/busybox");
    fs::copy(busybox, bin.join("busybox")).expect("the package busybox-static is installed");
    symlink("busybox", bin.join("sh")).expect("a directory of ours");
    assert!(fs::metadata(busybox).is_ok_and(|it| it.permissions().mode() & 0o111 != 0));

    let system = System::of(Root::over(&lower));
    // glibc is not there, and the packages say that they need it.
    let first = system.rpm(["-i", "--nodeps"]).arg(dist::rpm("libvma")).output_of_success();
    assert_eq!(first, "");
    assert_eq!(system.rpm(["-V", "--nodeps", "libvma"]).output_of_success(), "");

    let next = Made::new(&next_version(), "# of the next version\n");
    let said = system.rpm(["-U", "--nodeps"]).arg(next.rpm("libvma")).output_of_success();
    assert_eq!(said, "");
    assert_eq!(system.rpm(["-V", "--nodeps", "libvma"]).output_of_success(), "");

    assert_eq!(system.rpm(["-e", "libvma"]).output_of_success(), "");
    assert!(!system.path("/usr/lib64/libvma.so").exists());
}
