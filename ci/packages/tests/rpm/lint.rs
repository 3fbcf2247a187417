//! rpmlint finds nothing, and is kept from finding nothing in vain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use packages::{Run, dist, workspace};

use crate::scratch::Scratch;

#[test]
fn rpmlint_finds_nothing() {
    let home = Scratch::new();
    let found = rpmlint(&config(), &home).succeeds();
    assert!(found.contains(" 0 errors, 0 warnings"), "{found}");
    assert!(found.contains("4 packages and 2 specfiles checked"), "{found}");
}

#[test]
fn every_filter_of_rpmlint_is_needed() {
    let text = fs::read_to_string(config()).expect("our file");
    let (settings, filters) = text.split_once("Filters = [").expect("it has filters");
    let scratch = Scratch::new();
    let unfiltered = scratch.join("rpmlint.toml");
    fs::write(&unfiltered, settings).expect("a directory of ours");

    let found = rpmlint(&unfiltered, &scratch).fails().1;
    let filters: Vec<&str> = filters
        .lines()
        .map(|line| line.trim().trim_end_matches(','))
        .filter(|line| line.starts_with('"'))
        .map(|line| line.trim_matches('"'))
        .collect();
    assert!(filters.len() > 10, "the filters are read: {filters:?}");
    // That one matches only on the day of the build.
    let dated = |filter: &&str| filter.starts_with("file-contains-date-and-time");
    for filter in filters.into_iter().filter(|filter| !dated(filter)) {
        assert!(found.contains(filter), "the filter {filter} matches nothing in {found}");
    }
}

fn config() -> PathBuf {
    workspace().join("packaging/rpm/rpmlint.toml")
}

/// `home` is where rpm may keep a database.
fn rpmlint(config: &Path, home: &Path) -> Command {
    let mut command = Command::new("rpmlint");
    command
        .env("HOME", home)
        .arg("--config")
        .arg(config)
        .args(["libvma", "libvma-devel", "libvma-utils", "doca-vma"].map(dist::rpm))
        .arg(workspace().join("packaging/rpm/libvma.spec"))
        .arg(workspace().join("doca-profile/doca-vma.spec"));
    command
}
