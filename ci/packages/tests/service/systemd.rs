//! The service under systemd, and the init script beside it: one daemon, never two.

use packages::{Run, wait_for};

use crate::act::{SCRIPT, Said, install, run};
use crate::machine::Machine;

fn script(machine: &Machine, action: &str) -> Said {
    run(machine.command(SCRIPT).arg(action))
}

/// The numbers of the machine's processes that execute the daemon.
fn daemons(machine: &Machine) -> Vec<String> {
    // pgrep fails when there is none.
    let said = run(machine.command("pgrep").args(["-x", "vmad"]));
    said.out.lines().map(str::to_owned).collect()
}

fn is_active(machine: &Machine) -> bool {
    run(machine.command("systemctl").args(["is-active", "vma"])).code == 0
}

// covers: INS-08, DMN-01
#[test]
fn the_package_starts_the_daemon_at_boot_and_the_script_agrees_with_systemd() {
    let machine = Machine::boot(install);
    assert!(is_active(&machine), "{}", machine.journal());
    let daemon = machine.property("MainPID");
    assert_eq!(daemons(&machine), [daemon.as_str()]);

    let said = script(&machine, "status");
    assert_eq!((said.code, said.out), (0, format!("vmad is running... pid={daemon}\n")));
    assert_eq!(script(&machine, "start").code, 0);
    assert_eq!(daemons(&machine), [daemon.as_str()], "the script started no second one");

    machine.shell("systemctl stop vma").succeeds();
    assert_eq!(daemons(&machine).len(), 0);
    let said = script(&machine, "status");
    assert_eq!((said.code, said.out.as_str()), (3, "vmad is not running.\n"));
    machine.shell("test ! -e /run/vmad.pid && test ! -e /run/vma_agent.sock").succeeds();
}

// covers: INS-07, INS-08
#[test]
fn the_script_starts_and_stops_systemds_service() {
    let machine = Machine::boot(install);
    let said = script(&machine, "stop");
    assert_eq!((said.code, said.out.as_str()), (0, "Shutting down vmad: [  OK  ]\n"));
    assert!(!is_active(&machine));
    assert_eq!(script(&machine, "try-restart").code, 0);
    assert_eq!(script(&machine, "reload").code, 7);
    assert_eq!(daemons(&machine).len(), 0);

    let said = script(&machine, "start");
    assert_eq!((said.code, said.out.as_str()), (0, "Starting vmad: [  OK  ]\n"));
    assert!(is_active(&machine));
    let first = machine.property("MainPID");
    assert_eq!(daemons(&machine), [first.as_str()]);
    assert_eq!(script(&machine, "restart").code, 0);
    let second = machine.property("MainPID");
    assert_ne!(second, first);
    for action in ["reload", "force-reload"] {
        let said = script(&machine, action);
        assert_eq!(said.code, 0, "{action}: {said:?}");
        assert_eq!(machine.property("MainPID"), second, "{action} keeps the daemon");
    }
    assert_eq!(script(&machine, "begin").code, 2);
    assert_eq!(script(&machine, "stop").code, 0);
    assert_eq!(daemons(&machine).len(), 0);
}

// covers: INS-08
#[test]
fn systemd_starts_a_killed_daemon_again() {
    let machine = Machine::boot(install);
    machine.shell("systemctl start vma").succeeds();
    let first = machine.property("MainPID");
    machine.shell(&format!("kill -KILL {first}")).succeeds();
    let second = wait_for("there is another one", || {
        let number = machine.property("MainPID");
        (is_active(&machine) && number != first && number != "0").then_some(number)
    });
    assert_eq!(daemons(&machine), [second]);
    assert_eq!(machine.property("NRestarts"), "1");
}

// covers: INS-08
#[test]
fn systemd_starts_a_hanging_daemon_again() {
    let machine = Machine::boot(install);
    assert_eq!(machine.property("WatchdogUSec"), "30s");
    machine
        .shell(
            "mkdir -p /etc/systemd/system/vma.service.d
            printf '[Service]\\nWatchdogSec=2s\\n' >/etc/systemd/system/vma.service.d/watchdog.conf
            systemctl daemon-reload; systemctl restart vma",
        )
        .succeeds();
    let first = machine.property("MainPID");
    // Twice the time: it is not the watchdog that keeps a healthy daemon from running.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(machine.property("MainPID"), first, "{}", machine.journal());

    machine.shell(&format!("kill -STOP {first}")).succeeds();
    wait_for("there is another one", || {
        let number = machine.property("MainPID");
        (is_active(&machine) && number != first && number != "0").then_some(())
    });
    assert!(machine.journal().contains("Watchdog timeout"), "{}", machine.journal());
}

// covers: INS-08
#[test]
fn a_daemon_that_cannot_start_is_a_failed_service() {
    let machine = Machine::boot(install);
    machine.shell("echo 'no_such_key = 1' >/etc/vma/vmad.toml").succeeds();
    let said = script(&machine, "restart");
    assert_eq!(said.code, 1, "{said:?}");
    assert_eq!(script(&machine, "status").code, 3);
    assert!(machine.journal().contains("no_such_key"), "{}", machine.journal());
}

// covers: INS-08
#[test]
fn what_the_administrator_masked_is_not_started_by_the_script() {
    let machine = Machine::boot(install);
    machine.shell("systemctl stop vma; systemctl mask vma").succeeds();
    let said = script(&machine, "start");
    assert_eq!((said.code, said.out.as_str()), (1, "Starting vmad: [FAILED]\n"));
    assert!(said.err.contains("masked"), "{said:?}");
    assert_eq!(script(&machine, "status").code, 3);
    assert_eq!(daemons(&machine).len(), 0);
}

// covers: INS-08
#[test]
fn without_a_unit_systemd_runs_the_script() {
    let machine = Machine::boot(|root| {
        install(root);
        std::fs::remove_file(root.path("/lib/systemd/system/vma.service")).expect("the unit");
    });
    // Made by systemd of the script, as of those of old packages.
    assert!(machine.property("SourcePath").ends_with("/etc/init.d/vma"));
    machine.shell("systemctl restart vma").succeeds();
    let first = daemons(&machine);
    assert_eq!(first.len(), 1);
    assert_eq!(script(&machine, "status").code, 0);
    assert_eq!(script(&machine, "restart").code, 0);
    let second = daemons(&machine);
    assert_eq!(second.len(), 1);
    assert_ne!(second, first);
    assert_eq!(script(&machine, "stop").code, 0);
    assert_eq!(daemons(&machine).len(), 0);
    assert!(!is_active(&machine));
}
