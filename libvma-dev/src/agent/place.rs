//! Where the two sides find each other in the file system.

use std::path::{Path, PathBuf};

/// The daemon's socket.
pub const SOCKET: &str = "/var/run/vma_agent.sock";

/// Where libraries put their files, unless VMA_VMAD_NOTIFY_DIR and `--notify-dir` say otherwise.
pub const DEFAULT_NOTIFY_DIR: &str = "/tmp/vma";

/// The socket by which the library of process `pid` gets its answers.
pub fn socket_file(directory: &Path, pid: i32) -> PathBuf {
    directory.join(format!("vma_agent.{pid}.sock"))
}

/// The empty file that the library of process `pid` holds open while the process lives.
pub fn pid_file(directory: &Path, pid: i32) -> PathBuf {
    directory.join(format!("vma_agent.{pid}.pid"))
}

/// The process that a name made by [`pid_file`] or [`socket_file`] belongs to.
pub fn pid_of_file(name: &str) -> Option<i32> {
    let rest = name.strip_prefix("vma_agent.")?;
    let number = rest.strip_suffix(".pid").or_else(|| rest.strip_suffix(".sock"))?;
    number.parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_process() {
        let directory = Path::new("/tmp/vma");
        for path in [socket_file(directory, 12), pid_file(directory, 12)] {
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            assert_eq!(pid_of_file(name), Some(12));
        }
        for other in ["vma_agent.x.pid", "vma_agent.-3.pid", "vma_agent.12", "other.12.pid"] {
            assert_eq!(pid_of_file(other), None);
        }
    }
}
