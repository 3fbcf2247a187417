//! A daemon with files of its own, and clients that talk to it. All of them end with the test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory with a configuration whose files all lie in it.
pub struct Place {
    pub directory: PathBuf,
}

impl Place {
    pub fn new(name: &str) -> Place {
        let name = format!("vmad-{}-{name}", std::process::id());
        // Not the target directory: other users must be able to come here.
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory");
        let place = Place { directory };
        place.configure("");
        place
    }

    /// Writes the configuration, with these lines more.
    pub fn configure(&self, more: &str) {
        let path = |name: &str| self.path(name).display().to_string();
        let text = format!(
            "socket = '{}'\nlock_file = '{}'\npid_file = '{}'\nnotify_dir = '{}'\nlog_file = '{}'\n\
             syslog_socket = '{}'\n{more}\n",
            path("socket"),
            path("lock"),
            path("pid"),
            path("notify"),
            path("log"),
            path("syslog"),
        );
        fs::write(self.path("vmad.toml"), text).expect("a file");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The daemon in a network of its own, with this configuration.
    pub fn command(&self, options: &str) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", env!("CARGO_BIN_EXE_vmad"), "--config"]);
        command.arg(self.path("vmad.toml")).args(options.split_whitespace());
        command.stdin(Stdio::null());
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs it to its end.
    pub fn run(&self, options: &str) -> Output {
        self.command(options).output().expect("unshare runs")
    }

    /// Starts it in the foreground, for debugging, and waits until it serves.
    pub fn start(&self, options: &str) -> Daemon {
        self.start_by(&mut self.command(&format!("--console -v5 {options}")))
    }

    pub fn start_by(&self, command: &mut Command) -> Daemon {
        let log = File::create(self.path("stdout")).expect("a file");
        // A killed one may have left its own.
        let socket =
            || fs::metadata(self.path("socket")).map(|file| (file.ino(), file.ctime_nsec()));
        let before = socket().ok();
        let child = command.stdout(log).spawn().expect("unshare runs");
        let daemon = Daemon { child, log: self.path("stdout") };
        wait_until("it serves", || socket().is_ok_and(|now| before != Some(now)));
        daemon
    }

    /// A client in a network of its own, which has 10.9.9.1 and 10.9.9.2.
    pub fn client(&self, options: &str) -> Client {
        Client::new(self, &["unshare", "--net", "--", "sh", "-c", NETWORK, "sh"], options)
    }

    /// A client in the network of another one.
    pub fn client_in(&self, other: &Client, options: &str) -> Client {
        let target = format!("--target={}", other.pid());
        Client::new(self, &["nsenter", &target, "--net", "--"], options)
    }

    /// A client that is process 1 in a pid namespace of its own; it ends with the `unshare` that made
    /// that.
    pub fn client_as_first(&self, options: &str) -> Client {
        let unshare = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--"];
        Client::new(self, &[&unshare[..], &["sh", "-c", NETWORK, "sh"]].concat(), options)
    }

    pub fn files(&self, below: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(below)).expect("a directory");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("an entry").file_name().into_string().expect("text")
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort_unstable();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A daemon in the foreground.
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("it is there")
    }

    /// Waits until the log has this.
    pub fn says(&self, text: &str) {
        wait_until(text, || self.log().contains(text));
    }

    /// Lines of the log with this in them.
    pub fn count(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end; its log:\n{}", self.log());
            std::thread::sleep(STEP);
        }
    }

    /// Ends it as the service manager does.
    pub fn stop(mut self) {
        self.signal("TERM");
        assert_eq!(self.wait().code(), Some(0), "{}", self.log());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that speaks the protocol: see client.py.
pub struct Client {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Client {
    fn new(place: &Place, prefix: &[&str], options: &str) -> Client {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).arg("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vmad/client.py"));
        command.args([place.path("socket"), place.path("notify")]);
        command.args(options.split_whitespace());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare runs");
        let commands = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut client = Client { child, commands, answers };
        assert_eq!(client.answer(), "ready");
        client
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command; the answer to it.
    pub fn say(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").expect("it listens");
        self.answer()
    }

    /// Gives a command that the daemon does not answer; its answers come within milliseconds.
    pub fn gets_no_answer(&mut self, command: &str) -> bool {
        self.say(&format!("{command} wait=0.5")) == "silence"
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("text");
        assert!(!line.is_empty(), "the client has ended");
        line.trim_end().to_owned()
    }

    /// An acknowledgement of INIT, in hex: what came, and in the fourth byte that the daemon takes connections over IPv6.
    pub fn acknowledgement(&self) -> String {
        format!("81030001{}54980000", hex(self.pid()))
    }

    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a shell does before it becomes the client.
const NETWORK: &str = "ip link set lo up && ip address add 10.9.9.1/32 dev lo && \
                       ip address add 10.9.9.2/32 dev lo && exec \"$@\"";

/// A number as the host's byte order has it.
pub fn hex(number: u32) -> String {
    number.to_ne_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(status.expect("kill runs").success());
}

pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(STEP);
    }
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The next datagram, as text.
pub fn receive(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 2048];
    loop {
        match socket.recv(&mut buffer) {
            Ok(bytes) => return String::from_utf8(buffer[..bytes].to_vec()).expect("text"),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => panic!("nothing comes: {error}"),
        }
    }
}

pub const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(5);
