//! The unit as a text: what systemd thinks of it before anything runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use packages::{Root, Run, SYSTEMD};

use crate::act::install;

/// Of "systemd-analyze security", 0 to 10. Half of what is left are the powers that the daemon needs:
/// six capabilities, other users' processes, the machine's network.
const EXPOSURE: &str = "35";

fn unit() -> PathBuf {
    packages::workspace().join("init/vma.service")
}

// covers: INS-08
#[test]
fn systemd_finds_no_fault_in_the_installed_unit() {
    let root = Root::fresh(&SYSTEMD);
    install(&root);
    let mut verify = root.command("systemd-analyze");
    let said = verify.args(["verify", "--man=no", "vma.service"]).output_of_success();
    assert_eq!(said, "");
}

#[test]
fn a_fault_in_the_unit_would_be_found() {
    let root = Root::fresh(&SYSTEMD);
    install(&root);
    let broken = root.read("/lib/systemd/system/vma.service").replace("NoNewPrivileges", "NoNew");
    root.write("/lib/systemd/system/vma.service", &broken);
    let mut verify = root.command("systemd-analyze");
    let said = verify.args(["verify", "--man=no", "vma.service"]).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stderr).contains("NoNew"), "{said:?}");
}

#[test]
fn the_daemon_is_exposed_no_more_than_its_work_needs() {
    security(&unit()).succeeds();

    // The measure measures: without one of the restrictions it is too much.
    let loose = std::env::temp_dir().join(format!("vma-unit-{}", std::process::id()));
    std::fs::create_dir_all(&loose).unwrap();
    let text = std::fs::read_to_string(unit()).unwrap();
    let text = text.replace("\nCapabilityBoundingSet=", "\n#");
    let text = text.replace("\nProtectSystem=", "\n#");
    std::fs::write(loose.join("vma.service"), text).unwrap();
    security(&loose.join("vma.service")).fails();
    std::fs::remove_dir_all(&loose).unwrap();
}

fn security(unit: &Path) -> Command {
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager"]);
    command.arg(format!("--threshold={EXPOSURE}")).arg(unit);
    command
}
