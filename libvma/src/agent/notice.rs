//! What is said when there is no daemon to talk to, once per process.
//!
//! Most hosts have none, and miss but the resets that peers of killed processes get: that is for
//! level debug. A guest of Microsoft's hypervisor cannot be served well without the daemon, and one that
//! is there and cannot be used is somebody's mistake: both are worth a warning.

use std::path::Path;

use rustix::io::Errno;

use super::files::Failure;
use crate::log::log_line;
use crate::sys::machine;

/// Why nobody is told of connections.
pub enum Reason {
    /// Nobody has the daemon's socket, or nobody answers there.
    Unreachable(Errno),
    NoFile(Failure),
    /// The daemon speaks another version of the protocol.
    Version(u8),
}

impl Reason {
    fn is_mistake(&self) -> bool {
        match self {
            Reason::Unreachable(_) => false,
            Reason::NoFile(_) | Reason::Version(_) => true,
        }
    }
}

pub fn give(reason: &Reason, daemon: &Path) {
    let stars = "*".repeat(WIDTH + 4);
    let [first, second, third] = lines(reason, daemon);
    let frame = |line: &str| format!("* {line:<WIDTH$} *");
    for line in [&stars, &frame(&first), &frame(&second), &frame(&third), &stars] {
        if reason.is_mistake() || machine::is_microsoft_guest() {
            log_line!(Warning, "{line}");
        } else {
            log_line!(Debug, "{line}");
        }
    }
}

/// Of the text between the stars.
const WIDTH: usize = 98;

fn lines(reason: &Reason, daemon: &Path) -> [String; 3] {
    let what = match reason {
        Reason::Unreachable(errno) => {
            format!("The daemon vmad cannot be reached at {}: {errno}", daemon.display())
        }
        Reason::NoFile(Failure { path, errno }) => {
            format!(
                "The daemon vmad cannot be told (VMA_VMAD_NOTIFY_DIR): {}: {errno}",
                path.display()
            )
        }
        Reason::Version(version) => format!(
            "The daemon vmad speaks version {version} of the protocol, this library {}",
            libvma_dev::agent::VERSION
        ),
    };
    [
        what,
        "If this process is killed, the peers of its TCP connections learn it".to_owned(),
        "only when they send. The daemon is the service vma, see vmad(8).".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: DMN-06
    #[test]
    fn another_version_is_told_from_nobody_there() {
        let path = Path::new("/var/run/vma_agent.sock");
        let [absent, ..] = lines(&Reason::Unreachable(Errno::NOENT), path);
        assert_eq!(
            absent,
            "The daemon vmad cannot be reached at /var/run/vma_agent.sock: \
             No such file or directory (os error 2)"
        );
        let [other, ..] = lines(&Reason::Version(2), path);
        assert_eq!(other, "The daemon vmad speaks version 2 of the protocol, this library 3");
    }
}
