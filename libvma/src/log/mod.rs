//! Log lines: to stderr or a file, each in one write, without allocation.
//!
//! Usable from any thread and from a signal handler: a line is formatted on the stack and leaves by
//! raw system call. A line longer than the buffer is cut. What is below the level costs one load
//! and one predictable branch.

use core::fmt::Write;
use std::sync::atomic::{AtomicI8, AtomicI32, Ordering};

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
            "finer" | "func_all" | "6" => Level::Finer,
            "all" | "7" | "8" => Level::All,
            _ => return None,
        };
        Some(level)
    }
}

static LEVEL: AtomicI8 = AtomicI8::new(Level::None as i8);
static FILE: AtomicI32 = AtomicI32::new(2);

pub fn set_level(level: Level) {
    LEVEL.store(level as i8, Ordering::Relaxed);
}

/// Lines go to this descriptor from now on.
pub fn set_file(fd: i32) {
    FILE.store(fd, Ordering::Relaxed);
}

#[inline]
pub fn enabled(level: Level) -> bool {
    level as i8 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes one line; use the macros.
#[cold]
pub fn line(level: Level, text: core::fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 1024], len: 0 };
    // A cut line is better than none, hence the ignored errors.
    let _ = write!(line, "VMA {}: {text}", level.name());
    let end = line.len.min(line.bytes.len() - 1);
    line.bytes[end] = b'\n';
    sys::fd::write_fully(FILE.load(Ordering::Relaxed), &line.bytes[..=end]);
}

struct Line {
    bytes: [u8; 1024],
    len: usize,
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
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::line($crate::log::Level::$level, format_args!($($text)*));
        }
    };
}
pub(crate) use log_line;

#[cfg(test)]
mod tests {
    use super::*;

    // covers: LOG-02
    #[test]
    fn levels_parse_by_name_in_any_case_and_by_number() {
        assert_eq!(Level::parse("DEBUG"), Some(Level::Debug));
        assert_eq!(Level::parse("debug"), Some(Level::Debug));
        assert_eq!(Level::parse("4"), Some(Level::Debug));
        assert_eq!(Level::parse("func_all"), Some(Level::Finer));
        assert_eq!(Level::parse("0"), Some(Level::None));
        assert_eq!(Level::parse("loud"), None);
    }

    #[test]
    fn a_line_beyond_the_buffer_is_cut() {
        let mut line = Line { bytes: [0; 1024], len: 0 };
        assert!(write!(line, "{}", "x".repeat(3000)).is_err());
        assert_eq!(line.len, 1024);
    }
}
