//! The command line: options as getopt(3) takes them, each checked at once, later ones winning.
//!
//! Nothing is done here; `usage` has the words of the help.

mod selection;
#[cfg(test)]
mod tests;
mod usage;
mod value;

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser};

pub use selection::Selection;
pub use usage::usage;
pub use value::level_name;

/// Whose statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The first process found; all of them where a format shows several.
    Find,
    Process(u32),
    /// By the base name of its program.
    Name(OsString),
}

/// How they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Basic,
    Extra,
    Full,
    Groups,
    Netstat,
    Json,
    OpenMetrics,
    Listen(SocketAddr),
    Top,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Details {
    Totals,
    Deltas,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub choice: Choice,
    pub directory: PathBuf,
    /// Delete what ended processes left behind.
    pub clean: bool,
    pub interval: Duration,
    /// So many reports; 0 is endless.
    pub cycles: u64,
    pub format: Format,
    pub details: Details,
    pub zero: bool,
    pub log_level: Option<i32>,
    pub log_details: Option<i32>,
    /// Descriptor (0 is all) and level of the log.
    pub dump: Option<(i32, i32)>,
    pub sockets: Selection,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            choice: Choice::Find,
            directory: PathBuf::from("/tmp/"),
            clean: true,
            interval: Duration::from_secs(1),
            cycles: 0,
            format: Format::Basic,
            details: Details::Totals,
            zero: false,
            log_level: None,
            log_details: None,
            dump: None,
            sockets: Selection::default(),
        }
    }
}

/// What a command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    Report(Box<Options>),
    Version,
    Help,
}

/// Why a command line is refused. Either way the usage follows.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such option, or without its argument: in getopt's words. Scripts know exit status 0.
    Option(String),
    /// A value that cannot be.
    Value(String),
}

/// Names of options by getopt's rules; the letter stands for both forms.
const LONG: [(&str, char); 20] = [
    ("pid", 'p'),
    ("directory", 'k'),
    ("name", 'n'),
    ("find_pid", 'f'),
    ("forbid_clean", 'F'),
    ("interval", 'i'),
    ("cycles", 'c'),
    ("view", 'v'),
    ("details", 'd'),
    ("zero", 'z'),
    ("log_level", 'l'),
    ("fd_dump", 'S'),
    ("details_level", 'D'),
    ("sockets", 's'),
    ("version", 'V'),
    ("help", 'h'),
    ("json", 'J'),
    ("openmetrics", 'O'),
    ("listen", 'L'),
    ("top", 'T'),
];

/// Options that exist in the long form only; capitals that no short option has.
const LONG_ONLY: &str = "JOLT";

/// Reads a command line without the program's name, which `program` is.
pub fn parse(
    program: &str,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Asked, Refusal> {
    let mut parser = Parser::from_args(arguments);
    parser.set_short_equals(false);
    let mut options = Options::default();
    let mut plain = Plain::default();
    let mut view = None;
    loop {
        let argument = parser.next().map_err(|error| refuse(program, "", &error))?;
        let (letter, spelling) = match argument {
            None => break,
            Some(Arg::Value(word)) => {
                plain.take(&word);
                continue;
            }
            Some(Arg::Short(letter)) if LONG_ONLY.contains(letter) => {
                return Err(Refusal::Option(format!("{program}: invalid option -- '{letter}'")));
            }
            Some(Arg::Short(letter)) => (letter, format!("-- '{letter}'")),
            Some(Arg::Long(name)) => {
                let (letter, name) = long(program, name)?;
                (letter, format!("'--{name}'"))
            }
        };
        let mut word = || {
            parser.value().map_err(|error| match error {
                lexopt::Error::MissingValue { .. } if spelling.starts_with("--") => {
                    Refusal::Option(format!("{program}: option requires an argument {spelling}"))
                }
                lexopt::Error::MissingValue { .. } => {
                    Refusal::Option(format!("{program}: option {spelling} requires an argument"))
                }
                error => refuse(program, &spelling, &error),
            })
        };
        match letter {
            'p' => options.choice = Choice::Process(value::process(&word()?)?),
            'k' => options.directory = word()?.into(),
            'n' => options.choice = Choice::Name(word()?),
            'f' => options.choice = Choice::Find,
            'F' => options.clean = false,
            'i' => options.interval = Duration::from_secs(value::count('i', "interval", &word()?)?),
            'c' => options.cycles = value::count('c', "cycles", &word()?)?,
            'v' => {
                let format = value::view(&word()?)?;
                view = Some(format);
                options.format = format;
            }
            'd' => options.details = value::details(&word()?)?,
            'z' => options.zero = true,
            'l' => options.log_level = Some(value::level('l', &word()?)?),
            'D' => options.log_details = Some(value::log_details(&word()?)?),
            'S' => {
                let descriptor = value::descriptor(&word()?)?;
                let level = following(&mut parser).map(|word| value::level('S', &word));
                options.dump = Some((descriptor, level.transpose()?.unwrap_or(value::INFO)));
            }
            's' => options.sockets.add(&word()?.to_string_lossy())?,
            'J' => options.format = Format::Json,
            'O' => options.format = Format::OpenMetrics,
            'L' => options.format = Format::Listen(value::address(&word()?)?),
            'T' => options.format = Format::Top,
            'V' => return Ok(Asked::Version),
            'h' | '?' => return Ok(Asked::Help),
            _ => {
                return Err(Refusal::Option(format!("{program}: invalid option {spelling}")));
            }
        }
    }
    plain.apply(&mut options, view.is_some());
    Ok(Asked::Report(Box::new(options)))
}

/// A long name, or what only one begins with, as getopt(3) has it.
fn long(program: &str, name: &str) -> Result<(char, &'static str), Refusal> {
    if let Some((name, letter)) = LONG.iter().find(|(known, _)| *known == name) {
        return Ok((*letter, name));
    }
    let meant: Vec<_> = LONG.iter().filter(|(known, _)| known.starts_with(name)).collect();
    match meant.as_slice() {
        [(name, letter)] => Ok((*letter, name)),
        [] => Err(Refusal::Option(format!("{program}: unrecognized option '--{name}'"))),
        several => {
            let names: Vec<_> = several.iter().map(|(known, _)| format!(" '--{known}'")).collect();
            let names = names.concat();
            Err(Refusal::Option(format!(
                "{program}: option '--{name}' is ambiguous; possibilities:{names}"
            )))
        }
    }
}

/// The next word, unless it is an option.
fn following(parser: &mut Parser) -> Option<OsString> {
    let mut words = parser.try_raw_args()?;
    let word = words.peek()?;
    if word.as_encoded_bytes().starts_with(b"-") { None } else { words.next() }
}

fn refuse(program: &str, spelling: &str, error: &lexopt::Error) -> Refusal {
    Refusal::Option(match error {
        lexopt::Error::UnexpectedValue { option, .. } => {
            format!("{program}: option '{option}' doesn't allow an argument")
        }
        error => format!("{program}: {spelling}{error}"),
    })
}

/// Words that are no options: the oldest form, `vma_stats <pid> [<info level>]`.
#[derive(Default)]
struct Plain {
    process: Option<u32>,
    /// With the configuration of each socket.
    configuration: bool,
}

impl Plain {
    fn take(&mut self, word: &OsStr) {
        let Some(number) = word.to_str().and_then(|word| word.parse().ok()) else { return };
        match self.process {
            None => self.process = Some(number),
            Some(_) => self.configuration = number > 0,
        }
    }

    /// Options win.
    fn apply(self, options: &mut Options, view_given: bool) {
        if let (Some(process), Choice::Find) = (self.process, &options.choice) {
            options.choice = Choice::Process(process);
        }
        if self.configuration && !view_given && options.format == Format::Basic {
            options.format = Format::Full;
        }
    }
}
