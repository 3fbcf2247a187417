//! The command line: options as getopt(3) takes them, abbreviations included, later ones winning.
//!
//! Only what was said; what it means together with the configuration file is `settings`' to decide.

mod number;
#[cfg(test)]
mod tests;
mod usage;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser};

pub use usage::usage;

/// What the command line says; `None` where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    pub console: bool,
    pub notify_dir: Option<PathBuf>,
    pub max_processes: Option<u32>,
    pub max_sockets: Option<u32>,
    pub force_rst: bool,
    pub verbose: Option<u32>,
    pub retry_interval: Option<Duration>,
    pub config: Option<PathBuf>,
}

/// What a command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    Run(Given),
    /// The usage, which shows what was given before.
    Help(Given),
}

/// Why a command line is refused, in one line, and what was given before. The usage follows; the
/// exit status is 0, which scripts know.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub text: String,
    pub given: Given,
}

/// Long names; the letter stands for both forms.
const LONG: [(&str, char); 9] = [
    ("console", 'C'),
    ("notify-dir", 'n'),
    ("pid", 'p'),
    ("fid", 'f'),
    ("force-rst", 'F'),
    ("verbose", 'v'),
    ("retry-interval", 'r'),
    ("config", 'c'),
    ("help", 'h'),
];

/// Options that exist in the long form only; letters that no short option has.
const LONG_ONLY: &str = "CFc";

/// Reads a command line without the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Asked, Refusal> {
    let mut given = Given::default();
    match read(arguments, &mut given) {
        Ok(End::Help) => Ok(Asked::Help(given)),
        Ok(End::Words) => Ok(Asked::Run(given)),
        Err(text) => Err(Refusal { text, given }),
    }
}

enum End {
    Words,
    Help,
}

fn read(arguments: impl IntoIterator<Item = OsString>, given: &mut Given) -> Result<End, String> {
    let mut parser = Parser::from_args(arguments);
    parser.set_short_equals(false);
    while let Some(argument) = parser.next().map_err(|error| refuse("", &error))? {
        let (letter, spelling) = match argument {
            // As the original: words that are no options mean nothing.
            Arg::Value(_) => continue,
            Arg::Short(letter) if LONG_ONLY.contains(letter) => {
                return Err(format!("invalid option -- '{letter}'"));
            }
            Arg::Short(letter) => (letter, format!("-{letter}")),
            Arg::Long(name) => {
                let (letter, name) = long(name)?;
                (letter, format!("--{name}"))
            }
        };
        let mut word = || parser.value().map_err(|error| refuse(&spelling, &error));
        match letter {
            'C' => given.console = true,
            'n' => given.notify_dir = Some(word()?.into()),
            'p' => given.max_processes = Some(number::at_least_one(&spelling, &word()?)?),
            'f' => given.max_sockets = Some(number::at_least_one(&spelling, &word()?)?),
            'F' => given.force_rst = true,
            'v' => given.verbose = Some(number::number(&spelling, &word()?)?),
            'r' => {
                let milliseconds = number::at_least_one(&spelling, &word()?)?;
                given.retry_interval = Some(Duration::from_millis(milliseconds.into()));
            }
            'c' => given.config = Some(word()?.into()),
            'h' => return Ok(End::Help),
            letter => return Err(format!("invalid option -- '{letter}'")),
        }
    }
    Ok(End::Words)
}

/// A long name, or what only one begins with, as getopt_long(3) has it.
fn long(name: &str) -> Result<(char, &'static str), String> {
    if let Some((name, letter)) = LONG.iter().find(|(known, _)| *known == name) {
        return Ok((*letter, name));
    }
    let mut meant: Vec<_> = LONG.iter().filter(|(known, _)| known.starts_with(name)).collect();
    if meant.len() > 1 {
        // `--con` is the original's --console, as it knew no --config.
        meant.retain(|(known, _)| *known != "config");
    }
    match meant.as_slice() {
        [(name, letter)] => Ok((*letter, name)),
        [] => Err(format!("unrecognized option '--{name}'")),
        several => {
            let names: Vec<_> = several.iter().map(|(known, _)| format!(" '--{known}'")).collect();
            let names = names.concat();
            Err(format!("option '--{name}' is ambiguous; possibilities:{names}"))
        }
    }
}

fn refuse(spelling: &str, error: &lexopt::Error) -> String {
    match error {
        lexopt::Error::UnexpectedValue { option, .. } => {
            format!("option '{option}' doesn't allow an argument")
        }
        lexopt::Error::MissingValue { .. } => format!("option '{spelling}' requires an argument"),
        error => error.to_string(),
    }
}
