use std::io::Read;
use std::path::{Path, PathBuf};

use super::*;
use crate::capture::{Direction, Tap};

/// A directory that goes with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("vma-capture-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Place(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn writer(path: &Path, file_size: u64, files: u32) -> (Tap, rustix::io::Result<Writer>) {
    let capture = Capture::new(1000).expect("a waker");
    let target = Target { path: path.to_str().expect("text").into(), file_size, files };
    (capture.tap("eth0"), Writer::open(capture, target))
}

fn hand_in(tap: &Tap, bytes: &[u8]) {
    tap.packet(Direction::In, 1, bytes.len(), [bytes].into_iter(), None);
}

/// The types of a file's blocks. All of it must be blocks.
fn kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while !bytes.is_empty() {
        let len = block::len_at(bytes).expect("a block");
        kinds.push(bytes[0]);
        bytes = &bytes[len..];
    }
    kinds
}

const SECTION: u8 = 0x0a;
const INTERFACE: u8 = 1;
const STATISTICS: u8 = 5;
const PACKET: u8 = 6;

#[test]
fn a_file_has_its_interfaces_before_their_packets_and_counts_at_the_end() {
    let place = Place::new("file");
    let path = place.at("x.pcapng");
    let (tap, writer) = writer(&path, 0, 1);
    let mut writer = writer.expect("a file");
    hand_in(&tap, b"one");
    assert_eq!(writer.flush(), Progress::Done);
    let later = tap.capture.tap("eth1");
    hand_in(&later, b"two");
    assert_eq!(writer.finish(), Progress::Done);
    let bytes = std::fs::read(&path).expect("the file");
    let expected = [SECTION, INTERFACE, PACKET, INTERFACE, PACKET, STATISTICS, STATISTICS];
    assert_eq!(kinds(&bytes), expected);
}

#[test]
fn a_ring_of_files_is_bounded_and_each_stands_alone() {
    let place = Place::new("ring");
    let path = place.at("x");
    let (tap, writer) = writer(&path, 2000, 3);
    let mut writer = writer.expect("a file");
    for number in 0..30u8 {
        hand_in(&tap, &[number; 500]);
        assert_eq!(writer.flush(), Progress::Done);
    }
    let mut names: Vec<String> = std::fs::read_dir(&place.0)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["x", "x.1", "x.2"]);
    for name in names {
        let bytes = std::fs::read(place.at(&name)).expect("the file");
        assert!(bytes.len() <= 2000, "{name}: {}", bytes.len());
        let kinds = kinds(&bytes);
        assert_eq!(kinds[..3], [SECTION, INTERFACE, PACKET], "{name}");
    }
    // The newest is in the file with the plain name.
    let newest = std::fs::read(&path).expect("the file");
    assert!(newest.windows(500).any(|bytes| bytes == [29; 500]));
}

#[test]
fn a_file_is_one_writers() {
    let place = Place::new("lock");
    let path = place.at("x");
    let (tap, first) = writer(&path, 0, 1);
    let mut first = first.expect("a file");
    hand_in(&tap, b"mine");
    assert_eq!(first.flush(), Progress::Done);
    let before = std::fs::read(&path).expect("the file");
    assert_eq!(writer(&path, 0, 1).1.err(), Some(Errno::BUSY));
    assert_eq!(std::fs::read(&path).expect("the file"), before);
    drop(first);
    assert!(writer(&path, 0, 1).1.is_ok());
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_and_a_full_disk_ends_the_capture() {
    assert_eq!(writer(Path::new("/nowhere/x"), 0, 1).1.err(), Some(Errno::NOENT));
    let (tap, writer) = writer(Path::new("/dev/full"), 0, 1);
    let mut writer = writer.expect("a device");
    hand_in(&tap, b"one");
    assert_eq!(writer.flush(), Progress::Ended);
    hand_in(&tap, b"two");
    assert_eq!(writer.flush(), Progress::Ended);
    assert_eq!(writer.finish(), Progress::Ended);
}

#[test]
fn a_fifo_waits_for_its_reader_and_each_gets_a_file_of_its_own() {
    let place = Place::new("fifo");
    let path = place.at("x");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).expect("a fifo");
    let (tap, writer) = writer(&path, 0, 1);
    let mut writer = writer.expect("a fifo");
    hand_in(&tap, b"before");
    assert_eq!(writer.flush(), Progress::Waits);
    let open = || {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        std::fs::File::from(rustix::fs::open(&path, flags, Mode::empty()).expect("a reader"))
    };
    let read = |reader: &mut std::fs::File| {
        let mut bytes = vec![0; 1 << 16];
        let count = reader.read(&mut bytes).expect("what was written");
        bytes.truncate(count);
        kinds(&bytes)
    };
    let mut reader = open();
    assert_eq!(writer.flush(), Progress::Done);
    assert_eq!(read(&mut reader), [SECTION, INTERFACE, PACKET]);
    hand_in(&tap, b"with it");
    assert_eq!(writer.flush(), Progress::Done);
    assert_eq!(read(&mut reader), [PACKET]);

    // A full fifo does not hold the writer up, and loses nothing.
    for _ in 0..100 {
        hand_in(&tap, &[1; 1000]);
    }
    assert_eq!(writer.flush(), Progress::Waits);
    let mut bytes = Vec::new();
    loop {
        let mut some = vec![0; 1 << 20];
        let progress = writer.flush();
        let count = reader.read(&mut some).expect("what was written");
        bytes.extend_from_slice(&some[..count]);
        if progress == Progress::Done {
            break;
        }
    }
    assert_eq!(kinds(&bytes), [PACKET; 100]);
    drop(reader);

    // Its end raises no signal (`sys::output` tests that), and costs what it has not read.
    hand_in(&tap, b"lost");
    assert_eq!(writer.flush(), Progress::Waits);
    let mut reader = open();
    hand_in(&tap, b"after");
    assert_eq!(writer.flush(), Progress::Done);
    assert_eq!(read(&mut reader)[..3], [SECTION, INTERFACE, PACKET]);
}

/// The error of a writer that is to write there.
fn refused(path: &Path) -> Option<Errno> {
    writer(path, 0, 1).1.err()
}

#[test]
fn a_file_that_may_be_somebody_else_s_is_not_written() {
    let place = Place::new("strange");
    let (path, other) = (place.at("x"), place.at("y"));
    std::fs::write(&other, "text").expect("a file");
    std::os::unix::fs::symlink(&other, &path).expect("a link");
    assert_eq!(refused(&path), Some(Errno::LOOP));
    std::fs::remove_file(&path).expect("the link");
    std::fs::hard_link(&other, &path).expect("a second name");
    assert_eq!(refused(&path), Some(Errno::PERM));
    assert_eq!(std::fs::read(&other).expect("the file"), b"text");
    std::fs::remove_file(&path).expect("the second name");
    // Root alone can give a file away.
    if std::os::unix::fs::chown(&other, Some(65534), None).is_ok() {
        assert_eq!(refused(&other), Some(Errno::PERM));
        assert_eq!(std::fs::read(&other).expect("the file"), b"text");
    }
}

#[test]
fn an_own_file_becomes_private() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("private");
    let path = place.at("x");
    std::fs::write(&path, "text").expect("a file");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("its mode");
    assert_eq!(refused(&path), None);
    let mode = std::fs::metadata(&path).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_writer_that_ends_leaves_its_file_though_a_copy_of_the_descriptor_lives() {
    let place = Place::new("left");
    let path = place.at("x");
    let mut first = writer(&path, 0, 1).1.expect("a file");
    let _copy = first.file.as_ref().map(|file| rustix::io::dup(file).expect("a copy"));
    assert_eq!(refused(&path), Some(Errno::BUSY));
    first.end();
    assert_eq!(refused(&path), None);
}
