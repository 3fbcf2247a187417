//! A process that has a statistics file: somebody who sleeps, and a thread of the test that answers
//! in its stead.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use libvma_dev::stats::{
    CONTROL_AT, Control, Header, MAGIC, SNAPSHOT_AT, SOCKETS_AT, Snapshot, Socket, VERSION, size,
};
use zerocopy::IntoBytes;

/// Places for sockets.
const PLACES: u32 = 4;

/// What it tells, after so many answers.
pub type Tell = fn(control: &Control, answers: u32) -> (Snapshot, Vec<Socket>);

pub struct Fake {
    child: Child,
    file: Arc<File>,
    stop: Arc<AtomicBool>,
    answering: Option<JoinHandle<()>>,
}

impl Fake {
    /// Runs `/bin/sleep`, so that is its name.
    pub fn new(directory: &Path, tell: Tell) -> Fake {
        Fake::running(Command::new("sleep").arg("1000"), directory, tell)
    }

    /// Runs something else that waits.
    pub fn running(command: &mut Command, directory: &Path, tell: Tell) -> Fake {
        let child = command.stdin(Stdio::null()).spawn().expect("it runs");
        let path = directory.join(format!("vmastat.{}", child.id()));
        let file = Arc::new(write(&path, child.id(), VERSION));
        let (snapshot, sockets) = tell(&Control::default(), 0);
        put(&file, snapshot, &sockets);
        let stop = Arc::new(AtomicBool::new(false));
        let answering = {
            let (file, stop) = (Arc::clone(&file), Arc::clone(&stop));
            std::thread::spawn(move || answer(&file, &stop, tell))
        };
        Fake { child, file, stop, answering: Some(answering) }
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn control(&self) -> Control {
        control(&self.file)
    }

    /// It does not answer any more, but lives.
    pub fn be_silent(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.answering.take() {
            thread.join().expect("no panic");
        }
    }

    /// It is killed, and waited for.
    pub fn end(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.be_silent();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A new file of a process, which is taken for the program's as long as it is open.
pub fn write(path: &Path, process: u32, version: u32) -> File {
    let header = Header {
        magic: MAGIC,
        version,
        process,
        library: [9, 9, 0],
        sockets: PLACES,
        ..Header::default()
    };
    let file = File::options().create(true).truncate(true).read(true).write(true).open(path);
    let file = file.expect("a file");
    file.set_len(size(PLACES)).expect("it can be as long");
    file.lock().expect("nobody else has it");
    file.write_all_at(header.as_bytes(), 0).expect("written");
    file
}

/// An empty directory for one test.
pub fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a directory");
    path
}

fn control(file: &File) -> Control {
    let mut control = Control::default();
    file.read_exact_at(control.as_mut_bytes(), CONTROL_AT).expect("it is as long");
    control
}

fn answer(file: &File, stop: &AtomicBool, tell: Tell) {
    let (mut answered, mut answers) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let control = control(file);
        if control.requests == answered {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        (answered, answers) = (control.requests, answers + 1);
        let (snapshot, sockets) = tell(&control, answers);
        put(file, Snapshot { answered, sequence: 2 * u64::from(answers), ..snapshot }, &sockets);
    }
}

/// As the library writes: an odd number while it does.
fn put(file: &File, snapshot: Snapshot, sockets: &[Socket]) {
    let odd = snapshot.sequence.wrapping_sub(1);
    file.write_all_at(&odd.to_ne_bytes(), SNAPSHOT_AT).expect("written");
    let mut places = vec![Socket::default(); PLACES as usize];
    for (place, socket) in places.iter_mut().zip(sockets) {
        *place = *socket;
    }
    file.write_all_at(places.as_slice().as_bytes(), SOCKETS_AT).expect("written");
    file.write_all_at(&snapshot.as_bytes()[8..], SNAPSHOT_AT + 8).expect("written");
    file.write_all_at(&snapshot.sequence.to_ne_bytes(), SNAPSHOT_AT).expect("written");
}
