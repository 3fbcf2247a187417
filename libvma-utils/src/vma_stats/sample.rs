//! One process's counters of one cycle, with those of the cycle before.

use std::path::Path;
use std::time::Duration;

use libvma_dev::stats::{File, Problem, Request, Taken};

use crate::choose;
use crate::message::complain;

/// What is shown, whatever the format.
#[derive(Clone, Debug)]
pub struct Sample {
    pub process: u32,
    /// Base name of the program; empty if it is not known.
    pub name: String,
    pub taken: Taken,
    /// Those of the cycle before; None in the first.
    pub before: Option<Taken>,
}

/// A process that is watched.
pub struct Watched {
    process: u32,
    name: String,
    /// Tells it from a later one of the same number; None if there is none now.
    began: Option<u64>,
    file: File,
    before: Option<Taken>,
    /// It did not answer the last time.
    silent: bool,
}

/// Why a process is watched no longer.
#[derive(Debug)]
pub enum Lost {
    Ended,
    Problem(Problem),
}

/// The library looks some times a second.
const PATIENCE: Duration = Duration::from_secs(1);
/// With one that did not answer before: the others shall not wait for it.
const LITTLE_PATIENCE: Duration = Duration::from_millis(50);

impl Watched {
    pub fn open(directory: &Path, process: u32) -> Result<Watched, Problem> {
        let file = File::open(directory, process)?;
        let name = choose::program(process).unwrap_or_default();
        let began = choose::began(process);
        Ok(Watched { process, name, began, file, before: None, silent: false })
    }

    pub fn process(&self) -> u32 {
        self.process
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn ask(&self, request: &Request<'_>) -> Result<(), Problem> {
        self.file.ask(request)
    }

    /// The counters as they are now; as they were written last, if the process does not answer.
    pub fn take(&mut self) -> Result<Sample, Lost> {
        if !self.runs() {
            return self.legacy().ok_or(Lost::Ended);
        }
        let patience = if self.silent { LITTLE_PATIENCE } else { PATIENCE };
        let taken = match self.file.take(patience) {
            Ok(taken) => {
                self.silent = false;
                taken
            }
            // The file of an ended process may be cut short or gone.
            Err(_) if !self.runs() => return Err(Lost::Ended),
            Err(Problem::Silent) => self.stale()?,
            Err(problem) => return Err(Lost::Problem(problem)),
        };
        Ok(self.sample(taken))
    }

    fn sample(&mut self, taken: Taken) -> Sample {
        let before = self.before.replace(taken.clone());
        Sample { process: self.process, name: self.name.clone(), taken, before }
    }

    /// What a process left behind that had ended before anybody looked; once.
    fn legacy(&mut self) -> Option<Sample> {
        if self.began.is_some() || self.before.is_some() {
            return None;
        }
        let last = self.file.last().ok()??;
        Some(self.sample(last))
    }

    /// Of a process that is stopped, perhaps while it wrote.
    fn stale(&mut self) -> Result<Taken, Lost> {
        if !self.silent {
            let process = self.process;
            complain(&format!("process {process} does not answer, this is what it told last"));
        }
        self.silent = true;
        let last = self.file.last().map_err(Lost::Problem)?;
        last.or_else(|| self.before.clone()).ok_or(Lost::Problem(Problem::Silent))
    }

    /// The same process, and in it the same program.
    fn runs(&self) -> bool {
        self.began.is_some() && choose::began(self.process) == self.began && self.file.is_held()
    }
}
