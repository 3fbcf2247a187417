//! The log: which messages are wanted, and where they go. All modules write by the `log` crate's
//! macros; this is what they write to.
//!
//! Nothing here may stop the daemon: where a target fails, the next one is taken, and what nobody can
//! take is lost.

mod file;
mod limit;
mod system;

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use log::{Level, LevelFilter, Log, Metadata, Record};

use self::file::LogFile;
use self::system::System;
use crate::settings::{Settings, Target};

pub use self::limit::Limit;

/// The target of messages that say why the daemon ends: `log::error!(target: FATAL, ...)`.
pub const FATAL: &str = "fatal";

/// How grave a message is: the original's scale, of which `--verbose` shows all below its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gravity {
    Fatal,
    Error,
    Warning,
    Information,
    Debug,
    Trace,
}

/// The installed log, to change it later.
pub struct Logging(Arc<Mutex<State>>);

struct State {
    level: u32,
    output: Output,
    /// Taken if syslog fails.
    reserve: PathBuf,
}

enum Output {
    Stdout,
    File(LogFile),
    System(System),
    /// Nothing else could be opened. In the foreground somebody may read it.
    Stderr,
}

impl Logging {
    /// Installs the log for the whole process.
    pub fn install(settings: &Settings) -> Logging {
        let (state, complaint) = State::new(settings);
        let state = Arc::new(Mutex::new(state));
        // Fails only if a log is installed, and nobody else installs one.
        let _ = log::set_boxed_logger(Box::new(Logger(Arc::clone(&state))));
        log::set_max_level(LevelFilter::Trace);
        complain(complaint);
        Logging(state)
    }

    /// Takes over level and target, and opens files anew: logrotate(8) may have moved ours.
    pub fn change(&self, settings: &Settings) {
        let (state, complaint) = State::new(settings);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
        complain(complaint);
    }
}

fn complain(complaint: Option<String>) {
    if let Some(complaint) = complaint {
        log::warn!("{complaint}");
    }
}

impl State {
    /// The state, and what did not go as it was wished.
    fn new(settings: &Settings) -> (State, Option<String>) {
        let level = settings.log_level;
        let reserve = settings.log_file.clone();
        let (output, complaint) = match settings.log_target {
            Target::Stdout => (Output::Stdout, None),
            Target::File => in_file(&reserve, None),
            Target::Syslog => match System::connect(&settings.syslog_socket) {
                Ok(system) => (Output::System(system), None),
                Err(error) => in_file(&reserve, Some(without_syslog(&error))),
            },
        };
        (State { level, output, reserve }, complaint)
    }

    fn write(&mut self, gravity: Gravity, text: &str) {
        if gravity as u32 >= self.level {
            return;
        }
        // One message is one line, whatever a name within it holds.
        let text = text.replace('\n', "\\n");
        let line = format!("{}{text}", gravity.prefix());
        let done = match &mut self.output {
            Output::Stdout => writeln!(std::io::stdout(), "{line}"),
            Output::Stderr => writeln!(std::io::stderr(), "{line}"),
            Output::File(file) => file.write(&line),
            Output::System(system) => match system.write(gravity, line.clone()) {
                Ok(()) => Ok(()),
                Err(error) => {
                    let (output, complaint) = in_file(&self.reserve, Some(without_syslog(&error)));
                    self.output = output;
                    self.write(Gravity::Warning, &complaint.unwrap_or_default());
                    self.write(gravity, &text);
                    Ok(())
                }
            },
        };
        // A full disk or a closed pipe: there is nobody left to tell.
        let _ = done;
    }
}

fn without_syslog(error: &std::io::Error) -> String {
    format!("there is no syslog ({error}); logging to the file instead")
}

/// The file, or stderr if it cannot be opened.
fn in_file(path: &std::path::Path, complaint: Option<String>) -> (Output, Option<String>) {
    match LogFile::open(path) {
        Ok(file) => (Output::File(file), complaint),
        Err(error) => {
            let before = complaint.map(|complaint| complaint + "; ").unwrap_or_default();
            let text =
                format!("{before}cannot open {} ({error}); logging to stderr", path.display());
            (Output::Stderr, Some(text))
        }
    }
}

struct Logger(Arc<Mutex<State>>);

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // Libraries log, too; what they tell at length concerns nobody here.
        let ours = record.target() == FATAL || record.target().starts_with("vmad");
        if !ours && record.level() > Level::Warn {
            return;
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.write(Gravity::of(record), &record.args().to_string());
    }

    fn flush(&self) {}
}

impl Gravity {
    fn of(record: &Record<'_>) -> Gravity {
        match record.level() {
            Level::Error if record.target() == FATAL => Gravity::Fatal,
            Level::Error => Gravity::Error,
            Level::Warn => Gravity::Warning,
            Level::Info => Gravity::Information,
            Level::Debug => Gravity::Debug,
            Level::Trace => Gravity::Trace,
        }
    }

    /// What a line begins with, on every target.
    fn prefix(self) -> &'static str {
        match self {
            Gravity::Fatal => "[FATAL ] ",
            Gravity::Error => "[ERROR ] ",
            Gravity::Warning => "[WARN  ] ",
            Gravity::Information => "[INFO  ] ",
            Gravity::Debug => "[DEBUG ] ",
            Gravity::Trace => "[TRACE ] ",
        }
    }
}
