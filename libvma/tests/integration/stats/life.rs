//! When there is a statistics file, and whose.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::harness::tool;

/// What happens to the file when the process forks, executes another program, and is killed.
#[test]
fn every_process_has_its_own_file_while_it_lives() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    let file = open(&net.dir, program.id());
    take(&file);
    // The child has none before it has a socket, and then its own.
    program.run(
        "r, w = os.pipe(); q, v = os.pipe()
child = os.fork()
if child == 0:
    os.read(r, 1); t = udp(); os.write(v, b'x')
    os.read(r, 1); os._exit(0)",
    );
    let child = u32::try_from(program.number("child")).unwrap();
    assert!(matches!(File::open(&net.dir, child), Err(Problem::Missing)));
    program.run("os.write(w, b'x'); os.read(q, 1)");
    let of_child = open(&net.dir, child);
    assert_eq!(take(&of_child).sockets.len(), 1);
    program.run("os.write(w, b'x'); os.waitpid(child, 0)");
    let left: Vec<_> = find_all(&net.dir).unwrap().iter().map(|found| found.process).collect();
    assert_eq!(left, [program.id()], "the child took its own away and left its parent's");
    assert_eq!(take(&file).sockets.len(), 1);

    // A child of vfork() has its parent's memory, not its file.
    program
        .run("import subprocess; subprocess.run(['true']); os.posix_spawn('/bin/true', ['x'], {})");
    assert_eq!(take(&file).sockets.len(), 1);

    // An exec that fails leaves the process as it was.
    program.run(
        "
try: os.execv('/nonexistent', ['x'])
except FileNotFoundError: pass",
    );
    assert_eq!(take(&file).sockets.len(), 1, "readers go on with the same file");
    let began = file.header().began;
    // The next program in this process has a new one.
    program.begin(
        "os.execv(sys.executable, [sys.executable, '-c', 'import socket, time; \
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((\"\", 5001)); \
         time.sleep(60)'])",
    );
    let new = wait_for("the new program has a file", || {
        File::open(&net.dir, program.id()).ok().filter(|file| file.header().began != began)
    });
    assert_eq!(take(&new).sockets.first().map(|socket| socket.local_port), Some(5001));
    program.kill();
    let left = find_all(&net.dir).unwrap();
    assert_eq!(left.len(), 1, "nobody was there to take it away");
    assert!(!left[0].alive);
    assert!(matches!(new.take(Duration::from_millis(300)), Err(Problem::Silent)));
    let mut later = net.puppet(Side::A);
    later.run("s = udp(('10.99.0.1', 5000)); time.sleep(0.2)");
    later.finish();
    assert!(find_all(&net.dir).unwrap().is_empty(), "a later program takes it away at its end");
}

/// However long exec takes, and whatever runs afterwards.
#[test]
fn a_program_that_took_the_place_of_another_is_not_taken_for_it() {
    let net = Namespaces::new();
    // A file that is no program, for which exec looks long enough to be seen as one.
    let fake = net.file("fake");
    std::fs::write(&fake, [0; 4096]).unwrap();
    std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    let file = open(&net.dir, program.id());
    take(&file);
    program.run(&format!(
        "
try: os.execv({fake:?}, ['x'])
except OSError as error: assert error.errno == errno.ENOEXEC"
    ));
    let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
    let same = inode(file.path());
    take(&file);
    // Longer than an exec was waited for.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!((take(&file).sockets.len(), inode(file.path())), (1, same));

    program.begin("os.execve('/bin/sleep', ['sleep', '60'], {})");
    wait_for("nobody writes any more", || (!file.is_held()).then_some(()));
    assert!(matches!(File::open(&net.dir, program.id()), Err(Problem::Left)));
    let found = find_all(&net.dir).unwrap();
    assert_eq!(found.iter().map(|found| found.alive).collect::<Vec<_>>(), [false]);
    let words = ["-c", "1", "-k", net.dir.to_str().unwrap()];
    let output = net.program(Side::A, tool("vma_stats").to_str().unwrap()).args(&words.join(" "));
    let output = output.run();
    assert!(output.stderr.contains("Failed to identify process"), "{output:?}");
    assert!(find_all(&net.dir).unwrap().is_empty(), "a reader has cleaned up");
    program.kill();
}

#[test]
fn a_directory_that_cannot_be_written_is_told_and_harms_nothing() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let mut program = puppet(&net, &[("VMA_STATS_SHMEM_DIR", "/nonexistent")]);
    program.run("s = udp(('10.99.0.1', 5000)); s.sendto(b'x', ('10.99.0.2', 7000))");
    peer.recv_from(&mut [0; 9]).unwrap();
    let path = format!("/nonexistent/vmastat.{}", program.id());
    wait_for("the reason is told", || program.stderr().contains(&path).then_some(()));
    let said = program.stderr();
    let line = said.lines().find(|line| line.contains(&path)).unwrap();
    assert!(line.contains("WARNING") && line.contains("No such file or directory"), "{line}");
    assert_eq!(said.matches(&path).count(), 1, "{said}");
    program.finish();
}

#[test]
fn an_empty_directory_is_no_file() {
    let net = Namespaces::new();
    let mut program = puppet(&net, &[("VMA_STATS_SHMEM_DIR", "")]);
    program.run("s = udp(('10.99.0.1', 5000)); time.sleep(0.3)");
    assert!(!program.stderr().contains("vmastat"), "{}", program.stderr());
    assert!(find_all(&net.dir).unwrap().is_empty());
    assert_eq!(program.run("[f for f in os.listdir('.') if f.startswith('vmastat')]"), "[]");
    program.finish();
}

/// The parent of daemon() ends within libc.
#[test]
fn a_parent_that_leaves_a_daemon_takes_its_file_along() {
    let net = Namespaces::new();
    let code = "import ctypes, os, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.99.0.1', 5000))
while not os.path.exists('vmastat.%d' % os.getpid()): time.sleep(0.001)
ctypes.CDLL(None).daemon(1, 1)
t = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); t.bind(('10.99.0.1', 5001))
time.sleep(60)";
    let program = net.program(Side::A, PYTHON).with_library().arg("-c").arg(code).start();
    let parent = program.id();
    program.wait().ok();
    let child = wait_for("the child has its own", || {
        let found = find_all(&net.dir).unwrap();
        found.iter().find(|found| found.process != parent).map(|found| found.process)
    });
    assert_eq!(take(&open(&net.dir, child)).sockets[0].local_port, 5001);
    assert!(matches!(File::open(&net.dir, parent), Err(Problem::Missing)));
    let child = rustix::process::Pid::from_raw(child.cast_signed()).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::TERM).unwrap();
}
