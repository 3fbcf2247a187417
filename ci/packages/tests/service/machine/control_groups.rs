//! Control groups for one machine: systemd needs some of its own, and two machines at once must not
//! share any.

use std::fs;
use std::path::{Path, PathBuf};

/// One group below this process's own in each hierarchy that systemd uses; removed when dropped.
pub struct ControlGroups(Vec<PathBuf>);

/// Before the number of the process that made a group.
const NAME: &str = "vma-test-";

impl ControlGroups {
    pub fn make() -> ControlGroups {
        let mut groups = ControlGroups(Vec::new());
        for own in own_groups() {
            remove_forgotten(&own);
            let folder = own.join(format!("{NAME}{}", std::process::id()));
            fs::create_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
            groups.0.push(folder);
        }
        assert!(
            !groups.0.is_empty(),
            "no control groups below /sys/fs/cgroup: systemd cannot boot"
        );
        groups
    }

    pub fn folders(&self) -> &[PathBuf] {
        &self.0
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        self.0.iter().for_each(|folder| remove(folder));
    }
}

/// The folders of this process's groups: the second version's hierarchy and systemd's own of the first
/// version, where they are mounted (cgroups(7)).
fn own_groups() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").expect("a kernel with control groups");
    let groups = text.lines().filter_map(|line| {
        let (hierarchy, path) = line.split_once(':')?.1.split_once(':')?;
        let mounts: &[&str] = match hierarchy {
            "" => &["/sys/fs/cgroup/unified", "/sys/fs/cgroup"],
            "name=systemd" => &["/sys/fs/cgroup/systemd"],
            _ => return None,
        };
        let mount = mounts.iter().find(|mount| Path::new(mount).join("cgroup.procs").exists())?;
        Some(Path::new(mount).join(path.trim_start_matches('/')))
    });
    groups.collect()
}

/// What a test that was killed could not remove.
fn remove_forgotten(own: &Path) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let maker = name.strip_prefix(NAME).and_then(|number| number.parse::<u32>().ok());
        if maker.is_some_and(|maker| !Path::new(&format!("/proc/{maker}")).exists()) {
            remove(&entry.path());
        }
    }
}

/// A group goes when there is neither a process nor a group in it.
fn remove(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}
