//! Upgrades of the Debian packages: the three cases of a configuration file, the daemon, and the way
//! back.

use std::path::{Path, PathBuf};
use std::process::Command;

use packages::{PLAIN, Root, Run, dist};

const CONFIGURATION: &str = "/etc/libvma.conf";
const NEWER: &str = "9.9.99-1";
const ADDED: &str = "# New in this version.\n";

/// The package with another version and another libvma.conf, made in the root.
struct Newer {
    file: PathBuf,
    configuration: String,
}

impl Newer {
    fn of(root: &Root, package: &str) -> Newer {
        let tree = root.path("/var/tmp/newer");
        command("dpkg-deb", &[Path::new("--raw-extract"), &dist::deb(package), &tree]);
        let control = tree.join("DEBIAN/control");
        let text = std::fs::read_to_string(&control).expect("every package has it");
        let version = text.lines().find_map(|line| line.strip_prefix("Version: ")).expect("too");
        std::fs::write(&control, text.replace(version, NEWER)).expect("it is ours");
        let mut configuration = String::new();
        let path = tree.join(CONFIGURATION.trim_start_matches('/'));
        if path.exists() {
            configuration = std::fs::read_to_string(&path).expect("it is text") + ADDED;
            std::fs::write(&path, &configuration).expect("it is ours");
        }
        let file = root.path(&format!("/var/{package}_newer.deb"));
        let quick = Path::new("-Znone");
        command(
            "dpkg-deb",
            &[Path::new("--root-owner-group"), quick, Path::new("-b"), &tree, &file],
        );
        std::fs::remove_dir_all(&tree).expect("it is ours");
        Newer { file, configuration }
    }
}

#[track_caller]
fn command(program: &str, words: &[&Path]) {
    Command::new(program).args(words).succeeds();
}

fn version(root: &Root) -> String {
    root.command("dpkg-query").args(["-W", "-f", "${Version}", "libvma"]).succeeds()
}

/// Files beside libvma.conf that an upgrade makes.
fn copies(root: &Root) -> Vec<String> {
    let folder = std::fs::read_dir(root.path("/etc")).expect("every system has it");
    let names = folder.map(|entry| entry.expect("readable").file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("libvma.conf.")).collect()
}

// covers: INS-20
#[test]
fn an_untouched_configuration_is_replaced() {
    let root = Root::fresh(&PLAIN);
    root.install(&[dist::deb("libvma")]);
    let newer = Newer::of(&root, "libvma");
    root.install(&[newer.file]);
    assert_eq!(version(&root), NEWER);
    assert_eq!(root.read(CONFIGURATION), newer.configuration);
    assert_eq!(copies(&root), [""; 0]);
}

// covers: INS-19
#[test]
fn an_edited_configuration_stays_and_the_new_one_lies_beside_it() {
    let root = Root::fresh(&PLAIN);
    root.install(&[dist::deb("libvma")]);
    let edited = root.read(CONFIGURATION) + "use os tcp_server *:443\n";
    root.write(CONFIGURATION, &edited);
    let newer = Newer::of(&root, "libvma");
    root.install(&[newer.file]);
    assert_eq!(version(&root), NEWER);
    assert_eq!(root.read(CONFIGURATION), edited);
    assert_eq!(copies(&root), ["libvma.conf.dpkg-dist"]);
    assert_eq!(root.read("/etc/libvma.conf.dpkg-dist"), newer.configuration);
}

// covers: INS-21
#[test]
fn an_edit_that_equals_the_new_configuration_stays_silently() {
    let root = Root::fresh(&PLAIN);
    root.install(&[dist::deb("libvma")]);
    let newer = Newer::of(&root, "libvma");
    root.write(CONFIGURATION, &newer.configuration);
    // Without --force-confold: a question would have no answer and fail.
    let file = root.bring(&newer.file, "/var/tmp/again");
    let says = root.command("dpkg").args(["--install", &file]).output_of_success();
    assert!(!says.contains("onfiguration file"), "{says}");
    assert_eq!(root.read(CONFIGURATION), newer.configuration);
    assert_eq!(copies(&root), [""; 0]);
}

#[test]
fn an_upgrade_restarts_the_daemon_and_a_downgrade_is_clean() {
    let root = Root::fresh(&PLAIN);
    root.allow_services(true);
    let before = version_of(&dist::deb("libvma"));
    root.install(&[dist::deb("libvma")]);
    let first = root.read("/run/vmad.pid");
    let newer = Newer::of(&root, "libvma");
    root.install(&[newer.file]);
    let second = root.read("/run/vmad.pid");
    assert_ne!(first, second, "the new daemon runs");
    root.shell("/etc/init.d/vma status").succeeds();

    let says = root.install(&[dist::deb("libvma")]);
    assert!(says.contains("downgrading"), "{says}");
    assert_eq!(version(&root), before);
    assert_eq!(copies(&root), [""; 0]);
    assert_eq!(root.command("dpkg").args(["--verify", "libvma"]).succeeds(), "");
    root.shell("/etc/init.d/vma status").succeeds();
}

#[test]
fn the_tools_refuse_a_library_of_another_version() {
    let root = Root::fresh(&PLAIN);
    root.install(&[dist::deb("libvma"), dist::deb("libvma-utils")]);
    let newer = Newer::of(&root, "libvma-utils");
    let (_, says) = root.dpkg_install(&[newer.file]).fails();
    assert!(says.contains(&format!("libvma-utils depends on libvma (= {NEWER})")), "{says}");
}

fn version_of(package: &Path) -> String {
    Command::new("dpkg-deb").arg("--field").arg(package).arg("Version").succeeds().trim().to_owned()
}
