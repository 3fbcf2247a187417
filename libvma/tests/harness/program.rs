//! Programs in a namespace or a sandbox: to their end, or beside the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Namespaces, PATIENCE, Sandbox, Side, Traffic, compile_in, library};

/// Where a program runs.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Side(&'a Namespaces, Side),
    Sandbox(&'a Sandbox),
}

impl Place<'_> {
    pub(super) fn dir(&self) -> &Path {
        match self {
            Place::Side(net, _) => &net.dir,
            Place::Sandbox(sandbox) => &sandbox.dir,
        }
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub(super) fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        match self {
            Place::Side(net, side) => net.within(*side, || command.spawn()),
            // The words before the program take it there.
            Place::Sandbox(_) => command.spawn(),
        }
    }
}

/// A program about to be started.
pub struct Program<'a> {
    place: Place<'a>,
    name: String,
    command: Command,
    /// Joined by colons.
    preloaded: String,
}

/// What a program left behind.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// What the library counted, if the program ran under it.
    pub traffic: Traffic,
}

impl Output {
    /// Panics unless the program succeeded.
    #[track_caller]
    pub fn ok(self) -> Output {
        assert!(self.status.success(), "{}\n{}\n{}", self.status, self.stdout, self.stderr);
        self
    }
}

impl<'a> Program<'a> {
    pub(super) fn new(net: &'a Namespaces, side: Side, name: &str) -> Program<'a> {
        Program::at(Place::Side(net, side), name, Command::new(name))
    }

    pub(super) fn in_sandbox(sandbox: &'a Sandbox, words: &[String], name: &str) -> Program<'a> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(name).env_remove("PRELOAD");
        Program::at(Place::Sandbox(sandbox), name, command)
    }

    fn at(place: Place<'a>, name: &str, mut command: Command) -> Program<'a> {
        command.env_remove("LD_PRELOAD").stdin(Stdio::null()).current_dir(place.dir());
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("VMA_") {
                command.env_remove(variable);
            }
        }
        Program { place, name: name.to_owned(), command, preloaded: String::new() }
    }

    fn preload(&mut self, library: &Path) {
        if !self.preloaded.is_empty() {
            self.preloaded.push(':');
        }
        self.preloaded.push_str(&library.to_string_lossy());
        let variable = match self.place {
            Place::Side(..) => "LD_PRELOAD",
            Place::Sandbox(_) => "PRELOAD",
        };
        self.command.env(variable, &self.preloaded);
    }

    /// Shortens each sleep() of the program to 100 ms. A client of sockperf sleeps for 2 s until its thread that
    /// receives has started.
    pub fn with_short_sleeps(mut self) -> Self {
        const SOURCE: &str = "#include <unistd.h>\n\
            unsigned int sleep(unsigned int seconds) { usleep(seconds ? 100000 : 0); return 0; }\n";
        let mut library = self.place.file("short_sleeps.so");
        // Another program of the test may have it mapped.
        if !library.exists() {
            let options = ["-shared", "-fPIC"];
            library = compile_in(self.place.dir(), "short_sleeps.so", SOURCE, &options);
        }
        self.preload(&library);
        self
    }

    /// Preloads the library; its counters go to a file that [`Running::wait`] reads.
    pub fn with_library(mut self) -> Self {
        match self.place {
            Place::Side(..) => self.preload(library()),
            Place::Sandbox(sandbox) => self.preload(&sandbox.library()),
        }
        self.command.env("VMA_STATS_FILE", self.place.file("stats.%d"));
        // Those of programs that are killed stay there.
        self.command.env("VMA_STATS_SHMEM_DIR", self.place.dir());
        // What a test asserts must not depend on when the interface is there. By hand it may: what fails
        // then should be what looks at the first packets.
        let attach = std::env::var_os("LIBVMA_TEST_ATTACH");
        self.command.env("VMA_XDP_ATTACH", attach.unwrap_or("foreground".into()));
        self
    }

    pub fn args(mut self, words: &str) -> Self {
        self.command.args(words.split_whitespace());
        self
    }

    /// One argument, whatever is in it.
    pub fn arg(mut self, word: &str) -> Self {
        self.command.arg(word);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn stdin(mut self, stdin: Stdio) -> Self {
        self.command.stdin(stdin);
        self
    }

    pub fn stdout(mut self, stdout: Stdio) -> Self {
        self.command.stdout(stdout);
        self
    }

    /// Starts it with its output in files.
    #[track_caller]
    pub fn start(self) -> Running {
        let Program { place, name, mut command, .. } = self;
        let (stdout, stderr) = (output_file(place), output_file(place));
        let file = |path: &PathBuf| Stdio::from(File::create(path).expect("an output file"));
        command.stdout(file(&stdout)).stderr(file(&stderr));
        let child = place
            .spawn(&mut command)
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let stats = place.file(&format!("stats.{}", child.id()));
        Running { name, child, stdout, stderr, stats }
    }

    /// Runs it to its end, at most a minute.
    #[track_caller]
    pub fn run(self) -> Output {
        self.start().wait()
    }

    /// The command itself, for a caller that wants to talk to the child through pipes.
    pub(super) fn into_parts(self) -> (Place<'a>, Command) {
        (self.place, self.command)
    }
}

pub(super) fn output_file(place: Place<'_>) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    place.file(&format!("output.{}", COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// The output of programs without the command lines in the library's banners. A command line holds the text of a script,
/// and with it everything that the script could print.
pub fn without_command_lines(printed: &str) -> String {
    const BEGIN: &str = "Cmd Line: ";
    let mut parts = printed.split(BEGIN);
    let first = parts.next().unwrap_or_default();
    // A line of dashes follows.
    let behind =
        |part: &'_ str| part.find("----------").map_or(String::new(), |at| part[at..].into());
    parts.fold(first.to_owned(), |said, part| said + BEGIN + &behind(part))
}

/// A program beside the test. Killed when dropped.
pub struct Running {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    stats: PathBuf,
}

impl Running {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Both streams so far.
    pub fn printed(&self) -> String {
        [&self.stdout, &self.stderr].map(read).concat()
    }

    /// Waits until the program has printed `text`.
    #[track_caller]
    pub fn wait_for_text(&mut self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let printed = self.printed();
            if without_command_lines(&printed).contains(text) {
                return;
            }
            let ended = self.child.try_wait().ok().flatten();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "{} ({ended:?}) has not printed {text:?} but\n{printed}",
                self.name
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end of one that was killed.
    pub fn wait_for_end(&mut self) {
        let _ = self.child.wait();
    }

    /// Ends it by SIGINT and waits.
    #[track_caller]
    pub fn interrupt(self) -> Output {
        self.signal(Signal::INT);
        self.wait()
    }

    /// Waits for its end, at most a minute.
    #[track_caller]
    pub fn wait(mut self) -> Output {
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = wait_for_end(&mut self.child, deadline);
        let (stdout, stderr) = (read(&self.stdout), read(&self.stderr));
        let Some(status) = status else {
            panic!("{} has not ended after a minute\n{stdout}\n{stderr}", self.name);
        };
        Output { status, stdout, stderr, traffic: Traffic::read(&self.stats) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn wait_for_end(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(None) | Err(_) => return None,
        }
    }
}

fn read(path: &PathBuf) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
