//! Which processes there are, which one is meant, and what ended ones left behind.

use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use libvma_dev::stats::{Found, MAGIC, find_all};
use rustix::fs::{Mode, OFlags};

use crate::message::complain;
use crate::options::Choice;

/// Processes with a file that run, of those that are meant. One that is named by its number is
/// taken as it is: what becomes of it shows when its file is opened.
pub fn processes(directory: &Path, choice: &Choice) -> Vec<u32> {
    let running = || {
        let found = look(directory).into_iter().filter(|found| found.alive);
        found.map(|found| found.process).filter(|process| began(*process).is_some())
    };
    match choice {
        Choice::Find => running().collect(),
        Choice::Process(process) => vec![*process],
        Choice::Name(name) => {
            let name = name.to_string_lossy();
            running().filter(|process| program(*process).as_deref() == Some(&*name)).collect()
        }
    }
}

/// Deletes the files of programs that have ended.
pub fn clean(directory: &Path) {
    look(directory).iter().filter(|found| !found.alive).for_each(|found| delete(&found.path));
}

fn look(directory: &Path) -> Vec<Found> {
    find_all(directory).unwrap_or_else(|error| {
        complain(&format!("opendir {} failed\n {}", directory.display(), number_and_text(&error)));
        Vec::new()
    })
}

fn number_and_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    format!("(errno={} {text})", error.raw_os_error().unwrap_or_default())
}

/// A regular file with our magic, whatever its version and however short, that no process holds: one
/// in another process id namespace has no number here, but its lock. Nobody replaces it while the lock
/// is ours.
fn delete(path: &Path) {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()).map(std::fs::File::from) else {
        return;
    };
    let mut magic = [0; MAGIC.len()];
    let Ok(status) = file.metadata() else { return };
    let left = status.is_file()
        && file.read_exact_at(&mut magic, 0).is_ok()
        && magic == MAGIC
        && file.try_lock().is_ok();
    let same = |now: std::fs::Metadata| (now.dev(), now.ino()) == (status.dev(), status.ino());
    if left && std::fs::symlink_metadata(path).is_ok_and(same) {
        // Somebody else's is for its owner to delete.
        let _ = std::fs::remove_file(path);
    }
}

/// Base name of what a process runs; None for somebody else's process.
pub fn program(process: u32) -> Option<String> {
    let path = std::fs::read_link(format!("{}/exe", proc(process))).ok()?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    // Of a program that was replaced while it ran.
    Some(name.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(name))
}

/// When a process began, in clock ticks: with its number, which process it is. None if it has ended,
/// even if nobody has waited for it yet.
pub fn began(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("{}/stat", proc(process))).ok()?;
    // The program's name may contain anything, but nothing behind it has a parenthesis.
    let mut fields = status.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let began = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(began)
}

fn proc(process: u32) -> String {
    format!("/proc/{process}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_this_program() {
        let own = std::process::id();
        assert!(began(own).is_some_and(|ticks| ticks > 0));
        let path = std::env::current_exe().unwrap();
        assert_eq!(program(own).as_deref(), path.file_name().and_then(|name| name.to_str()));
        assert_eq!((began(4_194_305), program(4_194_305)), (None, None));
    }

    #[test]
    fn a_process_that_nobody_waited_for_has_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while began(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert!(Path::new(&proc(child.id())).exists(), "it is still listed");
        child.wait().unwrap();
    }
}
