//! What is left when packages are erased.

use packages::{PLAIN, Run, Tree};

use crate::system::System;

// covers: INS-16
#[test]
fn erased_packages_leave_nothing_behind() {
    let system = System::fresh(&PLAIN);
    let before = files(&system);
    let names = ["libvma-utils", "libvma-devel", "libvma"];
    system.rpm(["-i"]).args(names.map(packages::dist::rpm)).succeeds();

    let refused = system.rpm(["-e", "libvma"]).fails().1;
    assert!(refused.contains("is needed by (installed) libvma-utils-"), "{refused}");
    // The order of the manual.
    for name in names {
        assert_eq!(system.rpm(["-e", name]).output_of_success(), "", "{name}");
        assert_eq!(
            system.rpm(["-q", name]).fails().1,
            format!("package {name} is not installed\n")
        );
    }

    let after = files(&system);
    let more: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).collect();
    let less: Vec<_> = before.keys().filter(|path| !after.contains_key(*path)).collect();
    assert!(more.is_empty() && less.is_empty(), "more: {more:?}, less: {less:?}");
}

// covers: INS-16, INS-17
#[test]
fn an_edited_configuration_is_saved_and_rpm_says_where() {
    let system = System::with(&PLAIN, &["libvma"]);
    let edited = system.read("/etc/libvma.conf") + "# what the administrator wrote\n";
    system.write("/etc/libvma.conf", &edited);

    let said = system.rpm(["-e", "libvma"]).output_of_success();
    assert_eq!(said, "warning: /etc/libvma.conf saved as /etc/libvma.conf.rpmsave\n");
    assert_eq!(system.read("/etc/libvma.conf.rpmsave"), edited);
    assert!(!system.path("/etc/libvma.conf").exists());
    assert!(!system.path("/etc/vma").exists(), "the settings nobody edited went with the package");
}

/// All files but rpm's and the loader's own.
fn files(system: &System) -> Tree {
    let mut tree = system.tree();
    let own = ["var/lib/rpm", "etc/ld.so.cache", "var/cache/ldconfig", "var/tmp"];
    tree.retain(|path, _| !own.iter().any(|own| path.starts_with(own)));
    tree
}
