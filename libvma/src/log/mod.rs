//! Log lines: to stderr or a file, each in one write, without allocation.
//!
//! Usable from any thread and from a signal handler: a line is formatted on the stack and leaves by
//! raw system call, if that is possible at once (`sys::output`). A line longer than the buffer is
//! cut. What is below the level costs one load and one predictable branch, and nothing at all beyond
//! [`FINEST`].

use core::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicI8, AtomicI32, AtomicU8, AtomicU64, Ordering};

use crate::sys;

/// Severity, the larger the finer (vlog levels of the Extra API).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i8)]
pub enum Level {
    None = -1,
    Panic = 0,
    Error = 1,
    Warning = 2,
    Info = 3,
    Details = 4,
    Debug = 5,
    Fine = 6,
    Finer = 7,
    All = 8,
}

impl Level {
    /// The name as it stands in a line and in the banner.
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "NONE",
            Level::Panic => "PANIC",
            Level::Error => "ERROR",
            Level::Warning => "WARNING",
            Level::Info => "INFO",
            Level::Details => "DETAILS",
            Level::Debug => "DEBUG",
            Level::Fine => "FINE",
            Level::Finer => "FINER",
            Level::All => "ALL",
        }
    }

    /// As the statistics file numbers them: the larger the finer.
    pub fn from_number(number: i32) -> Option<Level> {
        const ALL: [Level; 10] = [
            Level::None,
            Level::Panic,
            Level::Error,
            Level::Warning,
            Level::Info,
            Level::Details,
            Level::Debug,
            Level::Fine,
            Level::Finer,
            Level::All,
        ];
        ALL.into_iter().find(|level| *level as i32 == number)
    }

    /// A name in any case with its aliases, or a number. Numbers follow the manual (4 is debug);
    /// -1 is none, and 0 is taken as silence too: an administrator who writes 0 wants no output,
    /// and a panic line would be the last one anyway.
    pub fn parse(text: &str) -> Option<Level> {
        let level = match text.trim().to_ascii_lowercase().as_str() {
            "none" | "-1" | "0" => Level::None,
            "panic" => Level::Panic,
            "error" | "1" => Level::Error,
            "warn" | "warning" | "2" => Level::Warning,
            "info" | "information" | "3" => Level::Info,
            "details" => Level::Details,
            "debug" | "4" => Level::Debug,
            "fine" | "func" | "5" => Level::Fine,
            "finer" | "func+" | "funcall" | "func_all" | "func-all" | "6" => Level::Finer,
            "all" | "7" | "8" => Level::All,
            _ => return None,
        };
        Some(level)
    }
}

/// The finest level that this build has: DEBUG, but for the debug library.
pub const FINEST: Level =
    if cfg!(any(debug_assertions, feature = "fine-log")) { Level::All } else { Level::Debug };

static LEVEL: AtomicI8 = AtomicI8::new(Level::None as i8);
static FILE: AtomicI32 = AtomicI32::new(2);
/// `VMA_LOG_DETAILS`: 0 to 3.
static DETAILS: AtomicU8 = AtomicU8::new(0);
static COLORS: AtomicBool = AtomicBool::new(false);
/// When the process began; only known where lines tell the time.
static START: AtomicU64 = AtomicU64::new(0);

/// From now on, at any time.
pub fn set_level(level: Level) {
    LEVEL.store(level as i8, Ordering::Relaxed);
}

/// The level in force.
pub fn level() -> Level {
    Level::from_number(i32::from(LEVEL.load(Ordering::Relaxed))).unwrap_or(Level::None)
}

/// What every line begins with now.
pub fn details() -> u8 {
    DETAILS.load(Ordering::Relaxed)
}

/// What every line begins with, from now on: 0 nothing, 1 thread, 2 process and thread, 3 time,
/// process and thread.
pub fn set_details(details: u8) {
    if details >= 3 && START.load(Ordering::Relaxed) == 0 {
        START.store(sys::time::process_start_nanos(), Ordering::Relaxed);
    }
    DETAILS.store(details, Ordering::Relaxed);
}

/// Lines go to this descriptor from now on. Colours are for terminals only.
pub fn set_file(fd: i32) {
    FILE.store(fd, Ordering::Relaxed);
}

pub fn set_colors(wanted: bool) {
    COLORS.store(wanted, Ordering::Relaxed);
}

/// Is the level in this build?
pub const fn is_built(level: Level) -> bool {
    level as i8 <= FINEST as i8
}

#[inline]
pub fn enabled(level: Level) -> bool {
    level as i8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes one line if lines of this level are wanted; for a level that is chosen at run time.
pub fn line_if_enabled(level: Level, text: core::fmt::Arguments<'_>) {
    if level != Level::None && is_built(level) && enabled(level) {
        line(level, text);
    }
}

/// Writes one line; use the macros.
#[cold]
pub fn line(level: Level, text: core::fmt::Arguments<'_>) {
    let file = FILE.load(Ordering::Relaxed);
    let colored = COLORS.load(Ordering::Relaxed) && sys::output::is_terminal(file);
    let mut line = Line { bytes: [0; 1024], len: 0 };
    line.write(level, DETAILS.load(Ordering::Relaxed), colored, text);
    sys::output::write_line(file, line.as_bytes());
}

/// The sequence that a terminal begins a line of this level with.
fn color(level: Level) -> &'static str {
    match level {
        Level::None | Level::Panic | Level::Error => "\x1b[0;31m",
        Level::Warning => "\x1b[2;35m",
        Level::Info | Level::Details | Level::Debug => "\x1b[0m",
        Level::Fine | Level::Finer | Level::All => "\x1b[2m",
    }
}

const END_OF_COLOR: &str = "\x1b[0m";

struct Line {
    bytes: [u8; 1024],
    len: usize,
}

impl Line {
    /// A cut line is better than none, hence the ignored errors; room is kept for its end.
    fn write(&mut self, level: Level, details: u8, colored: bool, text: core::fmt::Arguments<'_>) {
        if colored {
            let _ = self.write_str(color(level));
        }
        if details >= 3 {
            let start = START.load(Ordering::Relaxed);
            let micros = sys::time::monotonic_nanos().wrapping_sub(start) / 1000;
            let _ = write!(self, "Time: {:>5}.{:03} ", micros / 1000, micros % 1000);
        }
        if details >= 2 {
            let _ = write!(self, "Pid: {:>5} ", sys::thread::process_id());
        }
        if details >= 1 {
            let _ = write!(self, "Tid: {:>5} ", sys::thread::thread_id());
        }
        let _ = write!(self, "VMA {}: {text}", level.name());
        self.len = self.len.min(self.bytes.len() - END_OF_COLOR.len() - 1);
        if colored {
            let _ = self.write_str(END_OF_COLOR);
        }
        let _ = self.write_str("\n");
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.len += count;
        if count == text.len() { Ok(()) } else { Err(core::fmt::Error) }
    }
}

macro_rules! log_line {
    ($level:ident, $($text:tt)*) => {
        if $crate::log::is_built($crate::log::Level::$level)
            && $crate::log::enabled($crate::log::Level::$level)
        {
            $crate::log::line($crate::log::Level::$level, format_args!($($text)*));
        }
    };
}
pub(crate) use log_line;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(level: Level, details: u8, colored: bool, text: &str) -> String {
        let mut line = Line { bytes: [0; 1024], len: 0 };
        line.write(level, details, colored, format_args!("{text}"));
        String::from_utf8_lossy(line.as_bytes()).into_owned()
    }

    // covers: LOG-02
    #[test]
    fn levels_parse_by_name_in_any_case_and_by_number() {
        for (text, level) in [
            ("none", Level::None),
            ("-1", Level::None),
            ("0", Level::None),
            ("panic", Level::Panic),
            ("1", Level::Error),
            ("warn", Level::Warning),
            ("WARNING", Level::Warning),
            ("information", Level::Info),
            ("details", Level::Details),
            ("DEBUG", Level::Debug),
            ("4", Level::Debug),
            ("func", Level::Fine),
            ("func_all", Level::Finer),
            ("all", Level::All),
        ] {
            assert_eq!(Level::parse(text), Some(level), "{text}");
        }
        assert_eq!(Level::parse("loud"), None);
    }

    // covers: LOG-12
    #[test]
    fn a_line_begins_with_as_much_as_was_asked_for() {
        let (process, thread) = (sys::thread::process_id(), sys::thread::thread_id());
        assert_eq!(written(Level::Info, 0, false, "x"), "VMA INFO: x\n");
        assert_eq!(written(Level::Info, 1, false, "x"), format!("Tid: {thread:>5} VMA INFO: x\n"));
        let two = format!("Pid: {process:>5} Tid: {thread:>5} VMA ERROR: x\n");
        assert_eq!(written(Level::Error, 2, false, "x"), two);
        let three = written(Level::Error, 3, false, "x");
        let time =
            three.strip_prefix("Time: ").and_then(|rest| rest.strip_suffix(&format!(" {two}")));
        assert!(time.is_some_and(|time| time.trim().parse::<f64>().is_ok()), "{three}");
    }

    // covers: LOG-13
    #[test]
    fn colours_begin_and_end_with_the_line() {
        assert_eq!(written(Level::Error, 0, true, "x"), "\x1b[0;31mVMA ERROR: x\x1b[0m\n");
        assert_eq!(written(Level::Fine, 0, true, "x"), "\x1b[2mVMA FINE: x\x1b[0m\n");
    }

    #[test]
    fn a_line_beyond_the_buffer_is_cut_and_still_ends() {
        for colored in [false, true] {
            let line = written(Level::Info, 3, colored, &"x".repeat(3000));
            assert!(line.len() <= 1024 && line.len() > 1010, "{}", line.len());
            assert!(line.ends_with(if colored { "x\x1b[0m\n" } else { "x\n" }));
        }
    }

    #[test]
    fn the_time_is_that_since_the_process_began() {
        let age = sys::time::monotonic_nanos().wrapping_sub(sys::time::process_start_nanos());
        assert!(age < 3_600_000_000_000, "{age}");
    }
}
