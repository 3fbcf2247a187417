use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use libvma_dev::stats::{Problem, Request, find_all};

use super::*;

/// A directory of the test's own; one process may run several tests at once.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("vma-publish-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn create(&self, places: u32) -> Option<Publisher> {
        let control = Control { log_level: 3, log_details: 1, ..Control::default() };
        Publisher::create(self.0.to_str().unwrap(), places, &control)
    }

    fn file(&self) -> PathBuf {
        File::path_of(&self.0, std::process::id())
    }

    fn open(&self) -> Result<File, Problem> {
        File::open(&self.0, std::process::id())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn socket(descriptor: i32) -> Socket {
    Socket { used: 1, descriptor, ..Socket::default() }
}

#[test]
fn what_is_published_is_what_a_reader_finds() {
    let scratch = Scratch::new("read");
    let mut publisher = scratch.create(3).unwrap();
    let file = scratch.open().unwrap();
    let header = file.header();
    assert_eq!((header.process, header.sockets), (std::process::id(), 3));
    assert_eq!(std::fs::metadata(scratch.file()).unwrap().permissions().mode() & 0o7777, 0o600);
    let control = file.control().unwrap();
    assert_eq!((control.log_level, control.log_details), (3, 1));

    let mut snapshot = Snapshot { answered: 5, sockets_open: 2, ..Snapshot::default() };
    publisher.write(&mut snapshot, &[socket(7), socket(9)]);
    let taken = file.last().unwrap().unwrap();
    assert_eq!((taken.snapshot.answered, taken.snapshot.sockets_open), (5, 2));
    assert!(taken.snapshot.taken > 0);
    assert_eq!(taken.sockets.iter().map(|one| one.descriptor).collect::<Vec<_>>(), [7, 9]);
    // A place that is free again is empty again.
    publisher.write(&mut snapshot, &[socket(8)]);
    let taken = file.last().unwrap().unwrap();
    assert_eq!(taken.sockets.iter().map(|one| one.descriptor).collect::<Vec<_>>(), [8]);

    file.ask(&Request::LogLevel(6)).unwrap();
    assert_eq!(publisher.control().unwrap().log_level, 6);
    publisher.remove();
    assert!(find_all(&scratch.0).unwrap().is_empty());
}

#[test]
fn files_of_dead_processes_are_removed_and_no_others() {
    let scratch = Scratch::new("tidy");
    let file = |name: &str, text: &[u8]| std::fs::write(scratch.0.join(name), text).unwrap();
    let whole = [&MAGIC[..], b"and more"].concat();
    file("vmastat.4194305", &whole);
    file("vmastat.4194306", b"not ours");
    file("vmastat.x", &whole);
    file("other", &whole);
    // It runs, in another namespace perhaps.
    file("vmastat.4194307", &whole);
    let held = std::fs::File::open(scratch.0.join("vmastat.4194307")).unwrap();
    held.lock().unwrap();
    scratch.create(1).unwrap().tidy();
    let mut left: Vec<_> = std::fs::read_dir(&scratch.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let own = format!("vmastat.{}", std::process::id());
    let mut expected =
        ["other", &own, "vmastat.4194306", "vmastat.4194307", "vmastat.x"].map(str::to_owned);
    expected.sort();
    assert_eq!(left, expected);
}

#[test]
fn a_file_that_a_dead_process_left_is_replaced() {
    let scratch = Scratch::new("stale");
    std::fs::write(scratch.file(), b"something else").unwrap();
    let publisher = scratch.create(1).unwrap();
    assert!(scratch.open().is_ok());
    // Somebody replaced it in turn: theirs stays.
    std::fs::remove_file(scratch.file()).unwrap();
    std::fs::write(scratch.file(), b"theirs").unwrap();
    publisher.remove();
    assert_eq!(std::fs::read(scratch.file()).unwrap(), b"theirs");
}

#[test]
fn a_link_is_neither_followed_nor_replaced() {
    let scratch = Scratch::new("link");
    let victim = scratch.0.join("victim");
    std::fs::write(&victim, b"precious").unwrap();
    std::os::unix::fs::symlink(&victim, scratch.file()).unwrap();
    assert!(scratch.create(1).is_none());
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    assert!(std::fs::symlink_metadata(scratch.file()).unwrap().is_symlink());
}

#[test]
fn no_directory_is_no_file() {
    let control = Control::default();
    assert!(Publisher::create("", 1, &control).is_none());
    assert!(Publisher::create("/nonexistent/directory", 1, &control).is_none());
}

#[test]
fn a_file_that_is_cut_short_harms_nobody() {
    let scratch = Scratch::new("short");
    let mut publisher = scratch.create(1).unwrap();
    std::fs::File::options().write(true).open(scratch.file()).unwrap().set_len(10).unwrap();
    assert!(publisher.control().is_none());
    publisher.write(&mut Snapshot::default(), &[socket(4)]);
    assert_eq!(std::fs::read(scratch.file()).unwrap().first_chunk::<8>(), Some(&MAGIC));
}

/// While a snapshot is being written, and for ever if that fails half way, readers are told so.
#[test]
fn a_reader_meets_no_torn_snapshot() {
    let scratch = Scratch::new("torn");
    let mut publisher = scratch.create(64).unwrap();
    let file = scratch.open().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let Some(taken) = file.last().unwrap() else { continue };
                let number = taken.snapshot.answered;
                assert!(taken.sockets.iter().all(|one| one.descriptor == number as i32));
                seen = seen.max(number);
            }
            seen
        });
        for number in 1..3000 {
            let mut snapshot = Snapshot { answered: number, ..Snapshot::default() };
            publisher.write(&mut snapshot, &vec![socket(number as i32); 64]);
        }
        std::thread::sleep(Duration::from_millis(1));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
    assert_eq!(std::fs::metadata(scratch.file()).unwrap().size(), size(64));
}
