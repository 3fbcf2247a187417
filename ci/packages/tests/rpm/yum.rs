//! The profile from the yum repository, by dnf.

use std::fs;
use std::process::Command;

use packages::{PLAIN, Run, dist};

use crate::key::Key;
use crate::made::{Made, next_version};
use crate::repositories::{PLACE, Repositories};
use crate::system::System;

const LIST: &str = "/etc/yum.repos.d/libvma.repo";
const PROFILE: &[&str] = &["doca-vma", "libvma", "libvma-utils"];

// covers: INS-16, INS-25
#[test]
fn dnf_brings_with_the_profile_all_that_it_needs_and_takes_it_away_again() {
    let system = System::fresh(&PLAIN);
    use_repository(&system, &Repositories::make(&system, dist::folder(), &url(&system), None));

    dnf(&system, &["install", "doca-vma"]).succeeds();
    assert_eq!(installed(&system), PROFILE);
    assert_eq!(system.rpm(["-V"]).args(PROFILE).output_of_success(), "");
    let banner = "VMA_TRACELEVEL=info LD_PRELOAD=libvma.so bash -c 'exec 3<>/dev/udp/127.0.0.1/9'";
    assert!(system.shell(banner).output_of_success().contains("VMA_VERSION: "));
    system.shell("vma_stats --help").succeeds();

    dnf(&system, &["remove", "doca-vma"]).succeeds();
    assert_eq!(installed(&system), [""; 0]);
    assert!(!system.path("/usr/lib64/libvma.so").exists());
}

// covers: INS-18
#[test]
fn dnf_upgrades_the_profile_as_a_whole() {
    let system = System::fresh(&PLAIN);
    use_repository(&system, &Repositories::make(&system, dist::folder(), &url(&system), None));
    dnf(&system, &["install", "doca-vma"]).succeeds();

    let next = Made::new(&next_version(), "# of the next version\n");
    for package in ["libvma", "libvma-utils", "libvma-dev", "doca-vma"].map(dist::deb) {
        let name = package.file_name().expect("a file");
        fs::copy(&package, next.folder().join(name)).expect("a directory of ours");
    }
    Repositories::make(&system, next.folder(), &url(&system), None);
    dnf(&system, &["upgrade", "--refresh"]).succeeds();
    for name in PROFILE {
        let version = system.rpm(["-q", "--queryformat", "%{version}", name]).succeeds();
        assert_eq!(version, next.version, "{name}");
    }
}

#[test]
fn a_signed_repository_is_believed_until_somebody_changes_it() {
    let system = System::fresh(&PLAIN);
    let key = Key::new();
    let made = Repositories::make(&system, dist::folder(), &url(&system), Some(&key));
    use_repository(&system, &made);
    for line in ["gpgcheck=1", "repo_gpgcheck=1"] {
        assert!(system.read(LIST).lines().any(|it| it == line), "no {line}: {}", system.read(LIST));
    }

    dnf(&system, &["install", "doca-vma"]).succeeds();
    let name = dist::rpm("libvma").file_name().expect("a file").to_owned();
    let package = system.mounted().join(&PLACE[1..]).join("yum").join(name);
    let mut check = system.tool("rpmkeys");
    check.arg("--root").arg(system.mounted()).args(["--checksig", "--verbose"]).arg(package);
    let checked = check.succeeds();
    assert!(checked.contains("Signature, key ID") && !checked.contains("NOTTRUSTED"), "{checked}");
    dnf(&system, &["remove", "doca-vma"]).succeeds();

    // Somebody puts another package in, and has no key.
    let next = Made::new(&next_version(), "# of somebody else\n");
    let folder = system.path(PLACE).join("yum");
    fs::copy(next.rpm("libvma"), folder.join("libvma.rpm")).expect("the root is writable");
    Command::new("createrepo_c").args(["--quiet", "--no-database"]).arg(&folder).succeeds();
    let refused = dnf(&system, &["install", "--refresh", "libvma"]).fails().1;
    assert!(refused.contains("repomd.xml GPG signature verification error"), "{refused}");
    assert_eq!(installed(&system), [""; 0]);
}

/// dnf of the machine works from outside, so the repository has a path there.
fn url(system: &System) -> String {
    format!("file://{}{PLACE}", system.mounted().display())
}

fn use_repository(system: &System, made: &Repositories) {
    fs::create_dir_all(system.path("/etc/yum.repos.d")).expect("the root is writable");
    system.write(LIST, &made.lines(LIST));
}

fn dnf(system: &System, words: &[&str]) -> Command {
    let mut command = system.tool("dnf");
    command.arg("--installroot").arg(system.mounted());
    command.args(["--assumeyes", "--releasever=9"]).args(words);
    command
}

/// All packages but the one that stands for the distribution.
fn installed(system: &System) -> Vec<String> {
    let names = system.rpm(["-qa", "--queryformat", "%{name}\n"]).succeeds();
    let mut names: Vec<String> = names.lines().map(str::to_owned).collect();
    names.retain(|name| name != "distribution" && !name.starts_with("gpg-pubkey"));
    names.sort();
    names
}
