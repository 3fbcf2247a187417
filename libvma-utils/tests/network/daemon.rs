//! A `vmad` with files of its own, in a network of its own: it must find its way into those of its
//! clients.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::network::{PATIENCE, Program};

/// Ends with the test.
pub struct Daemon {
    child: Child,
    directory: PathBuf,
}

impl Daemon {
    /// In the foreground, with these options; it serves when this returns.
    pub fn start(options: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vmad-network-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory");
        let file = |name: &str| directory.join(name).display().to_string();
        let keys = ["socket", "lock_file", "pid_file", "notify_dir", "syslog_socket"];
        let text: String = keys.map(|key| format!("{key} = '{}'\n", file(key))).concat();
        fs::write(file("vmad.toml"), text).expect("a file");
        let child = Command::new("unshare")
            .args(["--net", "--", env!("CARGO_BIN_EXE_vmad"), "--console", "-v5", "--config"])
            .arg(file("vmad.toml"))
            .args(options)
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(File::create(file("log")).expect("a file"))
            .spawn()
            .expect("unshare runs");
        let daemon = Self { child, directory };
        daemon.wait_until("it serves", || daemon.directory.join("socket").exists());
        daemon
    }

    /// Has a program introduce itself; it must know the line `register`.
    pub fn register(&self, program: &mut Program) {
        let (notify, socket) = (self.directory.join("notify_dir"), self.directory.join("socket"));
        program.say(&format!("register {} {}", notify.display(), socket.display()));
        program.expect("registered");
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Waits until it has dealt with the end of a program.
    pub fn wait_for_end_of(&self, program: &Program) {
        let said = format!("[{}] remove from the storage", program.pid());
        self.wait_until(&said, || self.log().contains(&said));
    }

    /// Ends it in order, by SIGINT.
    pub fn stop(&mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).expect("it runs");
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}: {}", self.log());
    }

    fn wait_until(&self, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < end, "{what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
