//! Two ends at work: a time limit for a round, and a picture of both ends at the first connection that
//! moves nothing for ten seconds. The programs report such a connection with a line that starts with
//! "STALL" on stderr, before they give it up.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Namespaces, Output, Program, Sandbox, Shown, Side, tool};

/// How long a round takes at most. The slowest ones, with losses and the machine shared, take a third.
const ROUND: Duration = Duration::from_secs(240);
/// How long the internal thread may take to write a dump: it looks for requests ten times a second.
const DUMP: Duration = Duration::from_millis(300);

/// Where the two ends run.
#[derive(Clone, Copy)]
pub enum Bench<'a> {
    Cable(&'a Namespaces),
    Host(&'a Sandbox),
}

impl<'a> Bench<'a> {
    /// Waits for the server and the client. Panics, with a picture of both, if the round takes too long.
    #[track_caller]
    pub fn wait(self, what: &str, mut ends: [Shown; 2]) -> [Output; 2] {
        let deadline = Instant::now() + ROUND;
        let mut picture = None;
        while ends.iter_mut().any(|end| end.is_running()) {
            let is_late = Instant::now() > deadline;
            let stalls = || ends.iter().any(|end| end.printed().contains("STALL"));
            if picture.is_none() && (is_late || stalls()) {
                picture = Some(self.picture());
                eprintln!("{what}:\n{}", picture.as_deref().unwrap_or_default());
            }
            assert!(!is_late, "{what}: not over after {ROUND:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let outputs = ends.map(Shown::wait);
        let stalls = outputs.iter().filter(|output| output.stderr.contains("STALL"));
        for output in stalls {
            eprintln!("{what}:\n{}", output.stderr);
        }
        outputs
    }

    /// What the kernel knows of both ends. What the library knows of its sockets goes to the stderr of the
    /// programs.
    fn picture(self) -> String {
        let mut text = String::new();
        for (place, program) in self.programs("ss") {
            let _ = writeln!(text, "--- {place}\n{}", program.args("-tinmpaoe").run().stdout);
        }
        for (place, program) in self.programs("cat") {
            let _ =
                writeln!(text, "--- {place}\n{}", program.args("/proc/net/netstat").run().stdout);
        }
        for entry in std::fs::read_dir(self.dir()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(process) = name.strip_prefix("vmastat.") else { continue };
            let mut tool = std::process::Command::new(tool("vma_stats"));
            tool.arg("-k").arg(self.dir()).args(["-p", process, "-S", "0"]);
            let said = tool.output().map(|output| output.status.to_string());
            let _ = writeln!(text, "dump of {process}: {said:?}");
        }
        std::thread::sleep(DUMP);
        text
    }

    fn dir(self) -> &'a Path {
        match self {
            Bench::Cable(net) => &net.dir,
            Bench::Host(sandbox) => &sandbox.dir,
        }
    }

    fn programs(self, name: &str) -> Vec<(String, Program<'a>)> {
        match self {
            Bench::Cable(net) => [Side::A, Side::B]
                .map(|side| (format!("{name}, side {side:?}"), net.program(side, name)))
                .into(),
            Bench::Host(sandbox) => vec![(name.to_owned(), sandbox.program(name))],
        }
    }
}
