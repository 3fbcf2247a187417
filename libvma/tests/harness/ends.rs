//! A server on side A, clients on side B, and which of them run under the library.

use std::ops::{Deref, DerefMut};
use std::path::Path;

use super::program::{Running, without_command_lines};
use super::tcp_watch::TcpWatch;
use super::{Namespaces, Output, Program, Side};

/// Which ends run under the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Server,
    Client,
    Both,
}

impl Library {
    pub const ALL: [Library; 3] = [Library::Server, Library::Client, Library::Both];

    pub fn at_server(self) -> bool {
        self != Library::Client
    }

    pub fn at_client(self) -> bool {
        self != Library::Server
    }

    fn at(self, side: Side) -> bool {
        match side {
            Side::A => self.at_server(),
            Side::B => self.at_client(),
        }
    }
}

/// Two namespaces for a server and its clients.
pub struct Ends {
    pub net: Namespaces,
    pub library: Library,
}

impl Ends {
    pub fn new(library: Library) -> Ends {
        Ends { net: Namespaces::new(), library }
    }

    fn program(&self, side: Side, name: &str) -> Program<'_> {
        let program = self.net.program(side, installed(name));
        if self.library.at(side) { program.with_library() } else { program }
    }

    /// To be started on side A, under the library if that is wanted there.
    #[track_caller]
    pub fn server(&self, name: &str) -> Program<'_> {
        self.program(Side::A, name)
    }

    /// The same on side B.
    #[track_caller]
    pub fn client(&self, name: &str) -> Program<'_> {
        self.program(Side::B, name)
    }

    /// Watches the kernel on every side that runs under the library.
    pub fn watch(&self) -> Watches<'_> {
        let sides = [Side::A, Side::B].into_iter().filter(|side| self.library.at(*side));
        Watches(sides.map(|side| self.net.watch_tcp(side)).collect())
    }

    /// The same without the server: for one that forks, whose connections a child inherits, which
    /// makes them the kernel's (a lone worker's are ours: see the test in `tcp::sharing`).
    pub fn watch_with_inherited(&self) -> Watches<'_> {
        let client = self.library.at_client().then(|| self.net.watch_tcp(Side::B));
        Watches(client.into_iter().collect())
    }
}

/// The watches of the sides that run under the library.
pub struct Watches<'a>(Vec<TcpWatch<'a>>);

impl Watches<'_> {
    /// See [`TcpWatch::still`].
    #[track_caller]
    pub fn still(&self, ended: u64) {
        for watch in &self.0 {
            watch.still(ended);
        }
    }
}

/// A program beside the test that shows what it printed if the test fails.
pub struct Shown(Option<Running>);

impl Shown {
    /// As [`Running::wait`].
    #[track_caller]
    pub fn wait(mut self) -> Output {
        self.0.take().expect("only this takes it").wait()
    }
}

impl Program<'_> {
    /// As [`Program::start`]; if the test fails, it shows what the program printed.
    #[track_caller]
    pub fn start_shown(self) -> Shown {
        Shown(Some(self.start()))
    }
}

impl Deref for Shown {
    type Target = Running;
    fn deref(&self) -> &Running {
        self.0.as_ref().expect("only wait takes it")
    }
}

impl DerefMut for Shown {
    fn deref_mut(&mut self) -> &mut Running {
        self.0.as_mut().expect("only wait takes it")
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(program) = self.0.as_ref().filter(|_| std::thread::panicking()) {
            eprintln!("--- the program beside it ({}):\n{}---", program.id(), program.printed());
        }
    }
}

impl Output {
    /// Panics unless the program succeeded and printed `text`.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Output {
        let said = self.stdout.contains(text) || without_command_lines(&self.stderr).contains(text);
        assert!(
            self.status.success() && said,
            "{}, and {text:?} should be in\n{}\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The number after the first `name` on stdout.
    #[track_caller]
    pub fn number(&self, name: &str) -> f64 {
        let text = self.stdout.split_once(name).map_or("", |(_, rest)| rest.trim_start());
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        text[..end].parse().unwrap_or_else(|_| {
            panic!("no number after {name:?} in\n{}\n{}", self.stdout, self.stderr)
        })
    }
}

/// The name itself; panics if there is no such program.
#[track_caller]
pub fn installed(name: &str) -> &str {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    assert!(
        folders.any(|folder| Path::new(folder).join(name).exists()),
        "{name} is not installed: run ci/setup"
    );
    name
}
