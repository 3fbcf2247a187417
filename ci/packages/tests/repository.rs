//! The profile from the apt repository, by apt; and what `ci/make-repo` says when it cannot make one.
//! The yum repository is tested in `rpm/yum.rs`.

#[path = "rpm/key.rs"]
mod key;
#[path = "rpm/repositories.rs"]
mod repositories;
#[path = "rpm/scratch.rs"]
mod scratch;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use packages::{PLAIN, Root, Run, dist, workspace};

use key::Key;
use repositories::{PLACE, Repositories};
use scratch::Scratch;

const LIST: &str = "/etc/apt/sources.list.d/libvma.list";
const URL: &str = "file:///srv/libvma";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const PROFILE: &[&str] = &["doca-vma", "libvma", "libvma-utils"];

// covers: INS-16, INS-25
#[test]
fn apt_brings_with_the_profile_all_that_it_needs_and_takes_it_away_again() {
    let root = Root::fresh(&PLAIN);
    use_repository(&root, &Repositories::make(&root, dist::folder(), URL, None));
    root.shell("apt-get update").succeeds();

    root.shell("apt-get install --yes doca-vma").succeeds();
    assert_eq!(installed(&root), PROFILE);
    let banner = "VMA_TRACELEVEL=info LD_PRELOAD=libvma.so bash -c 'exec 3<>/dev/udp/127.0.0.1/9'";
    assert!(root.shell(banner).output_of_success().contains("VMA_VERSION: "));
    root.shell("vma_stats --help").succeeds();

    root.shell("apt-get purge --yes --autoremove doca-vma").succeeds();
    assert_eq!(installed(&root), [""; 0]);
    assert!(!root.path("/usr/lib/libvma.so").exists());
    assert!(!root.path("/etc/libvma.conf").exists());
}

#[test]
fn a_signed_repository_is_believed_until_somebody_changes_it() {
    let root = Root::fresh(&PLAIN);
    let key = Key::new();
    use_repository(&root, &Repositories::make(&root, dist::folder(), URL, Some(&key)));

    // Without the key nothing is believed.
    let refused = root.shell("apt-get update 2>&1; apt-get install --yes doca-vma").fails().1;
    assert!(refused.contains("is not signed"), "{refused}");
    root.shell(&format!("cp {PLACE}/libvma.asc /usr/share/keyrings")).succeeds();
    root.shell("apt-get update && apt-get install --yes doca-vma").succeeds();
    assert_eq!(installed(&root), PROFILE);

    // Somebody changes the list, and has no key.
    let lists = root.path(PLACE).join("apt/dists/stable");
    let signed = fs::read_to_string(lists.join("InRelease")).expect("it is signed");
    let changed = signed.replacen("Label: libvma", "Label: somebody", 1);
    assert_ne!(signed, changed);
    fs::write(lists.join("InRelease"), changed).expect("the root is writable");
    let refused = root.shell("apt-get update --error-on=any").fails().1;
    assert!(refused.contains("BADSIG"), "{refused}");
}

// covers: INS-12
#[test]
fn a_release_is_three_packages_and_the_profile_of_either_kind() {
    let entries = fs::read_dir(dist::folder()).expect("it is there");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".deb") || name.ends_with(".rpm"))
        .collect();
    names.sort();
    let deb = |name: &str, arch: &str| (format!("{name}_{VERSION}-"), format!("_{arch}.deb"));
    let rpm = |name: &str, arch: &str| (format!("{name}-{VERSION}-"), format!(".{arch}.rpm"));
    let expected = [
        rpm("doca-vma", "noarch"),
        deb("doca-vma", "all"),
        rpm("libvma", "x86_64"),
        deb("libvma-dev", "amd64"),
        rpm("libvma-devel", "x86_64"),
        rpm("libvma-utils", "x86_64"),
        deb("libvma-utils", "amd64"),
        deb("libvma", "amd64"),
    ];
    assert_eq!(names.len(), expected.len(), "{names:?}");
    for (prefix, suffix) in expected {
        let found = names.iter().any(|name| name.starts_with(&prefix) && name.ends_with(&suffix));
        assert!(found, "no {prefix}*{suffix} in {names:?}");
    }
}

#[test]
fn lintian_finds_nothing_in_the_profile() {
    let said = Command::new("lintian")
        .args(["--fail-on", "error,warning", "--allow-root"])
        .arg(dist::deb("doca-vma"))
        .output_of_success();
    assert_eq!(said, "");
}

#[test]
fn the_profile_made_anew_is_the_same_bytes() {
    let packed = dist::deb("doca-vma");
    let version = Command::new("dpkg-deb").arg("--field").arg(&packed).arg("Version").succeeds();
    let (version, release) = version.trim().split_once('-').expect("X.Y.Z-R");
    let scratch = Scratch::new();
    Command::new("dpkg-deb").arg("--extract").arg(&packed).arg(&*scratch).succeeds();
    let file = scratch.join("usr/share/doc/doca-vma/copyright");
    let time = fs::metadata(file).expect("it is packed").mtime();

    let again = Scratch::new();
    Command::new(workspace().join("doca-profile/build-deb"))
        .arg(&*again)
        .args(["--version", version])
        .env("PRJ_RELEASE", release)
        .env("SOURCE_DATE_EPOCH", time.to_string())
        .succeeds();
    let made = again.join(packed.file_name().expect("a file"));
    assert!(fs::read(made).expect("it is made") == fs::read(packed).expect("of dist"));
}

#[test]
fn what_is_missing_is_named() {
    let empty = Scratch::new();
    let make = |words: &[&str]| {
        let mut command = Command::new(workspace().join("ci/make-repo"));
        command.args(words).arg("--packages").arg(empty.join("dist"));
        command.fails()
    };
    let output = empty.join("repositories");
    let output = output.to_str().expect("a readable name");

    let (code, said) = make(&["--output", output]);
    assert_eq!(code, 1);
    assert!(said.contains("no folder") && said.contains("ci/build-packages makes it"), "{said}");
    fs::create_dir(empty.join("dist")).expect("a directory of ours");
    let (code, said) = make(&["--output", output]);
    assert_eq!(code, 1);
    assert!(said.contains("no .deb package in"), "{said}");
    for words in [&[][..], &["--nonsense"][..]] {
        let (code, said) = make(words);
        assert_eq!(code, 2);
        assert!(said.contains("usage: ci/make-repo"), "{said}");
    }
    assert!(!empty.join("repositories").exists());
}

/// Nothing else is a source: there is no network.
fn use_repository(root: &Root, made: &Repositories) {
    root.write("/etc/apt/sources.list", "");
    root.write(LIST, &made.lines(LIST));
}

/// Of the packages of ours.
fn installed(root: &Root) -> Vec<String> {
    let list = root
        .shell("dpkg-query --show --showformat '${db:Status-Status} ${Package}\\n' '*vma*' || :")
        .succeeds();
    list.lines().filter_map(|line| line.strip_prefix("installed ")).map(str::to_owned).collect()
}
