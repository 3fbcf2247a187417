//! What the scriptlets ask the service manager to do, and when.
//!
//! systemctl and chkconfig are stand-ins here that write down their arguments; `service` has the real
//! ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use packages::{PLAIN, Run, dist};

use crate::made::{Made, next_version};
use crate::system::System;

const PRESET: &str = "systemctl --quiet --no-reload preset vma.service";
const DISABLE: &str = "systemctl --quiet --no-reload disable vma.service";
const STOP: &str = "systemctl stop vma.service";
const RELOAD: &str = "systemctl daemon-reload";
const TRY_RESTART: &str = "systemctl try-restart vma.service";

/// Calls by an installation, an upgrade and an erasure.
type Calls = [Vec<String>; 3];

// covers: INS-08, INS-18
#[test]
fn under_systemd_each_step_of_a_life_tells_it() {
    let system = with_tool("systemctl");
    fs::create_dir_all(system.path("/run/systemd/system")).expect("the root is writable");
    let [installed, upgraded, erased] = life(&system);
    assert_eq!(installed, [PRESET, RELOAD]);
    // First the new package's %post, then the old one's %postun.
    assert_eq!(upgraded, [RELOAD, RELOAD, TRY_RESTART]);
    assert_eq!(erased, [DISABLE, STOP, RELOAD]);
}

// covers: INS-08
#[test]
fn in_an_image_under_construction_only_the_links_are_made() {
    let [installed, upgraded, erased] = life(&with_tool("systemctl"));
    assert_eq!(installed, [PRESET]);
    assert_eq!(upgraded, [""; 0]);
    assert_eq!(erased, [DISABLE]);
}

// covers: INS-08
#[test]
fn without_systemd_chkconfig_takes_the_init_script() {
    let [installed, upgraded, erased] = life(&with_tool("chkconfig"));
    assert_eq!(installed, ["chkconfig --add vma"]);
    assert_eq!(upgraded, [""; 0]);
    assert_eq!(erased, ["chkconfig --del vma"]);
}

#[test]
fn a_service_manager_that_fails_does_not_fail_the_package() {
    let system = with_tool("systemctl");
    fs::create_dir_all(system.path("/run/systemd/system")).expect("the root is writable");
    script(&system, "systemctl", "echo no bus >&2; exit 1");
    system.rpm(["-i"]).arg(dist::rpm("libvma")).succeeds();
    let said = system.rpm(["-e", "libvma"]).output_of_success();
    assert!(said.contains("no bus"), "what went wrong is told: {said}");
    system.rpm(["-q", "libvma"]).fails();
}

/// A system without systemd, with a stand-in of this name.
fn with_tool(name: &str) -> System {
    let system = System::fresh(&PLAIN);
    assert!(!system.path(&format!("/usr/bin/{name}")).exists());
    script(&system, name, &format!("echo {name} \"$@\" >>/var/tmp/calls"));
    system
}

fn script(system: &System, name: &str, line: &str) {
    let path = format!("/usr/bin/{name}");
    system.write(&path, &format!("#!/bin/sh\n{line}\n"));
    fs::set_permissions(system.path(&path), fs::Permissions::from_mode(0o755)).expect("our file");
}

fn life(system: &System) -> Calls {
    let next = Made::new(&next_version(), "# of the next version\n");
    system.rpm(["-i"]).arg(dist::rpm("libvma")).succeeds();
    let installed = calls(system);
    system.rpm(["-U"]).arg(next.rpm("libvma")).succeeds();
    let upgraded = calls(system);
    system.rpm(["-e", "libvma"]).succeeds();
    [installed, upgraded, calls(system)]
}

/// Calls since the last time.
fn calls(system: &System) -> Vec<String> {
    let path = system.path("/var/tmp/calls");
    let text = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, "").expect("the root is writable");
    text.lines().map(str::to_owned).collect()
}
