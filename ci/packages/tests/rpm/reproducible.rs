//! The same files give the same packages.

use std::fs;

use packages::dist;

use crate::made::{artifacts, build, of_dist};
use crate::scratch::Scratch;

#[test]
fn packages_made_anew_from_their_own_files_are_the_same_bytes() {
    let output = Scratch::new();
    // Other paths, other times of the files, another process.
    let artifacts = artifacts();
    build(&output, &artifacts, &of_dist("%{version}"), &artifacts.join("libvma.conf"));

    let made = fs::read_dir(&*output).expect("a directory of ours");
    let mut names = Vec::new();
    for path in made.map(|entry| entry.expect("readable").path()) {
        let name = path.file_name().expect("a file").to_owned();
        let same = fs::read(&path).expect("ours")
            == fs::read(dist::folder().join(&name)).expect("of dist");
        assert!(same, "{name:?} is not the one in dist");
        names.push(name);
    }
    assert_eq!(names.len(), 4, "{names:?}");
}
