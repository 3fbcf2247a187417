//! Another version in the place of the installed one, and what becomes of libvma.conf.

use std::fs;

use packages::{PLAIN, Run, dist};

use crate::made::{Made, next_version};
use crate::system::System;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const CONF: &str = "/etc/libvma.conf";
const NEXT_CONF: &str = "# what the next version brings\n";

// covers: INS-18, INS-20
#[test]
fn a_configuration_nobody_edited_is_replaced() {
    let system = System::with(&PLAIN, &["libvma", "libvma-utils"]);
    let next = Made::new(&next_version(), NEXT_CONF);
    let said = system.rpm(["-U"]).args(both(&next)).output_of_success();
    assert_eq!(said, "");

    assert_eq!(system.read(CONF), NEXT_CONF);
    assert_eq!(beside(&system), ["libvma.conf"]);
    assert_eq!(version(&system), next.version);
    assert_eq!(system.rpm(["-V", "libvma", "libvma-utils"]).output_of_success(), "");
    // One library, and both names lead to it.
    for link in ["libvma.so", "libvma.so.9"] {
        let target = fs::read_link(system.path(&format!("/usr/lib64/{link}"))).expect("a link");
        assert_eq!(target.to_str(), Some(format!("libvma.so.{}", next.version).as_str()));
    }
    assert!(!system.path(&format!("/usr/lib64/libvma.so.{VERSION}")).exists());
}

// covers: INS-19
#[test]
fn an_edited_configuration_stays_and_the_new_one_lies_beside_it() {
    let system = System::with(&PLAIN, &["libvma"]);
    let edited = system.read(CONF) + "# what the administrator wrote\n";
    system.write(CONF, &edited);
    let next = Made::new(&next_version(), NEXT_CONF);

    let said = system.rpm(["-U"]).arg(next.rpm("libvma")).output_of_success();
    assert_eq!(said, "warning: /etc/libvma.conf created as /etc/libvma.conf.rpmnew\n");
    assert_eq!(system.read(CONF), edited);
    assert_eq!(system.read("/etc/libvma.conf.rpmnew"), NEXT_CONF);
    assert_eq!(version(&system), next.version);
}

// covers: INS-21
#[test]
fn an_edit_that_equals_the_new_configuration_is_not_mentioned() {
    let system = System::with(&PLAIN, &["libvma"]);
    system.write(CONF, NEXT_CONF);
    let next = Made::new(&next_version(), NEXT_CONF);

    assert_eq!(system.rpm(["-U"]).arg(next.rpm("libvma")).output_of_success(), "");
    assert_eq!(system.read(CONF), NEXT_CONF);
    assert_eq!(beside(&system), ["libvma.conf"]);
    assert_eq!(system.rpm(["-V", "libvma"]).output_of_success(), "");
}

#[test]
fn an_edit_stays_when_the_package_has_no_new_configuration() {
    let system = System::with(&PLAIN, &["libvma"]);
    let packed = system.read(CONF);
    let edited = packed.clone() + "# what the administrator wrote\n";
    system.write(CONF, &edited);
    let next = Made::new(&next_version(), &packed);

    assert_eq!(system.rpm(["-U"]).arg(next.rpm("libvma")).output_of_success(), "");
    assert_eq!(system.read(CONF), edited);
    assert_eq!(beside(&system), ["libvma.conf"]);
}

// covers: INS-18
#[test]
fn the_way_back_is_refused_unless_it_is_asked_for() {
    let system = System::fresh(&PLAIN);
    let next = Made::new(&next_version(), NEXT_CONF);
    system.rpm(["-i"]).args(both(&next)).succeeds();

    let older = ["libvma", "libvma-utils"].map(dist::rpm);
    let refused = system.rpm(["-U"]).args(&older).fails().1;
    let newer = format!("(which is newer than libvma-{VERSION}-");
    assert!(refused.contains(&newer), "{refused}");
    assert_eq!(version(&system), next.version);

    system.rpm(["-U", "--oldpackage"]).args(&older).succeeds();
    assert_eq!(version(&system), VERSION);
    assert_eq!(system.rpm(["-V", "libvma", "libvma-utils"]).output_of_success(), "");

    // Removing first and installing after that is a way, too.
    system.rpm(["-e", "libvma-utils", "libvma"]).succeeds();
    system.rpm(["-i"]).args(both(&next)).succeeds();
    assert_eq!(version(&system), next.version);
    assert_eq!(system.rpm(["-V", "libvma"]).output_of_success(), "");
}

fn both(made: &Made) -> [std::path::PathBuf; 2] {
    ["libvma", "libvma-utils"].map(|name| made.rpm(name))
}

fn version(system: &System) -> String {
    system.rpm(["-q", "--queryformat", "%{version}", "libvma"]).succeeds()
}

/// The configuration and whatever lies beside it under such a name.
fn beside(system: &System) -> Vec<String> {
    let entries = fs::read_dir(system.path("/etc")).expect("the root has it");
    let names = entries.map(|it| it.expect("readable").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("libvma.conf")).collect()
}
