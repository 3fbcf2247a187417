//! What becomes of the daemon itself: with the real systemctl, and with the init script.

use packages::{PLAIN, Run, SYSTEMD, dist};

use crate::made::{Made, next_version};
use crate::system::System;

// covers: INS-08
#[test]
fn the_service_is_enabled_once_and_what_the_administrator_decided_stays() {
    let system = System::with(&SYSTEMD, &["libvma"]);
    assert_eq!(enabled(&system), "enabled\n");
    system.shell("systemctl disable vma.service").succeeds();

    let next = Made::new(&next_version(), "# of the next version\n");
    system.rpm(["-U"]).arg(next.rpm("libvma")).succeeds();
    assert_eq!(enabled(&system), "disabled\n");

    system.shell("systemctl enable vma.service").succeeds();
    system.rpm(["-e", "libvma"]).succeeds();
    let links = system.shell("find /etc/systemd -name 'vma.service*'").succeeds();
    assert_eq!(links, "", "an erased package leaves no link to its unit");
}

// covers: INS-08
#[test]
fn a_preset_of_the_distribution_decides() {
    let system = System::fresh(&SYSTEMD);
    system.shell("mkdir -p /etc/systemd/system-preset").succeeds();
    system.write("/etc/systemd/system-preset/00-none.preset", "disable *\n");
    system.rpm(["-i"]).arg(dist::rpm("libvma")).succeeds();
    assert_eq!(enabled(&system), "disabled\n");
}

// covers: INS-07
#[test]
fn without_systemd_an_upgrade_restarts_a_running_daemon_and_erasure_stops_it() {
    let system = System::with(&PLAIN, &["libvma"]);
    let next = Made::new(&next_version(), "# of the next version\n");
    // Installation starts nothing, on RHEL's kin.
    assert_eq!(daemon(&system), None);
    system.shell("/etc/init.d/vma start").succeeds();
    let first = daemon(&system).expect("it was started");

    system.rpm(["-U"]).arg(next.rpm("libvma")).succeeds();
    let second = daemon(&system).expect("it runs again");
    assert_ne!(first, second);

    system.rpm(["-e", "libvma"]).succeeds();
    assert_eq!(daemon(&system), None);
}

// covers: INS-07
#[test]
fn without_systemd_an_upgrade_starts_no_daemon_that_did_not_run() {
    let system = System::with(&PLAIN, &["libvma"]);
    let next = Made::new(&next_version(), "# of the next version\n");
    system.rpm(["-U"]).arg(next.rpm("libvma")).succeeds();
    assert_eq!(daemon(&system), None);
}

fn enabled(system: &System) -> String {
    // Its exit code says the same once more.
    system.shell("systemctl is-enabled vma.service || :").succeeds()
}

/// The process id of vmad, if it runs.
fn daemon(system: &System) -> Option<String> {
    let pids = system.shell("pidof vmad || :").succeeds();
    let pids = pids.trim();
    assert!(!pids.contains(' '), "more than one vmad: {pids}");
    (!pids.is_empty()).then(|| pids.to_owned())
}
