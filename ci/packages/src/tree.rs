//! What lies in a root: its files with what a package decides about them.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A file, a link or a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Folder {
        mode: u32,
    },
    File {
        mode: u32,
        size: u64,
        modified: (i64, i64),
    },
    Link {
        to: PathBuf,
    },
    /// A device, a socket, a named pipe.
    Other {
        mode: u32,
    },
}

/// Path from the root on (`etc/libvma.conf`), and what is there.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// All below `root`. What lies on another file system (/proc, /sys, /dev) is left out.
pub fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let device = fs::symlink_metadata(root).expect("the root is there").dev();
    walk(root, root, device, &mut tree);
    tree
}

fn walk(root: &Path, folder: &Path, device: u64, tree: &mut Tree) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        // A file may go while we look: /run is alive.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let name = path.strip_prefix(root).expect("it is below").to_owned();
        tree.insert(name, describe(&path, &metadata));
        if metadata.is_dir() && metadata.dev() == device {
            walk(root, &path, device, tree);
        }
    }
}

fn describe(path: &Path, metadata: &Metadata) -> Entry {
    let mode = metadata.permissions().mode() & 0o7777;
    if metadata.is_dir() {
        Entry::Folder { mode }
    } else if metadata.is_symlink() {
        Entry::Link { to: fs::read_link(path).unwrap_or_default() }
    } else if metadata.is_file() {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Entry::File { mode, size: metadata.len(), modified }
    } else {
        Entry::Other { mode }
    }
}
