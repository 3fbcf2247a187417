//! The repositories that `ci/make-repo` makes, within a root.

use std::fs;
use std::path::Path;
use std::process::Command;

use packages::{Root, Run, workspace};

use crate::key::Key;
use crate::scratch::Scratch;

/// Where they are in the root.
pub const PLACE: &str = "/srv/libvma";

pub struct Repositories {
    said: String,
}

impl Repositories {
    /// Of the packages in a folder; `url` is what [`PLACE`] is called by those who use it.
    pub fn make(root: &Root, packages: &Path, url: &str, key: Option<&Key>) -> Repositories {
        let mut command = Command::new(workspace().join("ci/make-repo"));
        // apt-ftparchive resolves its path, which a path into another mount namespace does not survive.
        let made = Scratch::new();
        command.arg("--output").arg(&*made).arg("--packages").arg(packages).args(["--url", url]);
        if let Some(key) = key {
            command.args(["--key", Key::NAME]).env("GNUPGHOME", key.folder());
        }
        let said = command.succeeds();
        let there = root.path(PLACE);
        if there.exists() {
            fs::remove_dir_all(&there).expect("the root is writable");
        }
        fs::create_dir_all(&there).expect("the root is writable");
        Command::new("cp").arg("--recursive").arg(made.join(".")).arg(there).succeeds();
        Repositories { said }
    }

    /// The lines that are to be put into this file.
    pub fn lines(&self, file: &str) -> String {
        let (_, rest) = self
            .said
            .split_once(&format!("# {file}\n"))
            .unwrap_or_else(|| panic!("no lines for {file}: {}", self.said));
        rest.split("\n\n").next().expect("the first part").trim_end().to_owned() + "\n"
    }
}
