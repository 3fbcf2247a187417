//! Values of options, and what is said of those that cannot be.

use std::ffi::OsStr;
use std::net::SocketAddr;

use super::{Details, Format, Refusal};

/// Level of a dump without one.
pub const INFO: i32 = 3;

/// Levels of the log with their names, the first of which is told. The numbers in words are those
/// of VMA_TRACELEVEL (4 is debug), those behind are the library's own.
const LEVELS: [(i32, &[&str]); 10] = [
    (-1, &["none", "-1", "0"]),
    (0, &["panic"]),
    (1, &["error", "1"]),
    (2, &["warning", "warn", "2"]),
    (3, &["info", "information", "3"]),
    (4, &["details"]),
    (5, &["debug", "4"]),
    (6, &["fine", "func", "5"]),
    (7, &["finer", "func+", "funcall", "func_all", "func-all", "6"]),
    (8, &["all", "7", "8"]),
];

pub fn level_name(level: i32) -> String {
    let found = LEVELS.iter().find(|(number, _)| *number == level);
    found.and_then(|(_, names)| names.first()).unwrap_or(&"info").to_ascii_uppercase()
}

pub fn level(option: char, word: &OsStr) -> Result<i32, Refusal> {
    let name = word.to_string_lossy().trim().to_ascii_lowercase();
    let found = LEVELS.iter().find(|(_, names)| names.contains(&name.as_str()));
    found.map(|(level, _)| *level).ok_or_else(|| invalid(option, "log level", word))
}

/// Hexadecimal with 0x, octal with 0.
pub fn process(word: &OsStr) -> Result<u32, Refusal> {
    let text = word.to_string_lossy();
    let text = text.trim();
    let number = if let Some(digits) = text.strip_prefix("0x") {
        u32::from_str_radix(digits, 16)
    } else if let Some(digits) = text.strip_prefix('0').filter(|digits| !digits.is_empty()) {
        u32::from_str_radix(digits, 8)
    } else {
        text.parse()
    };
    number.ok().filter(|number| *number <= i32::MAX as u32).ok_or_else(|| invalid('p', "pid", word))
}

pub fn count(option: char, what: &str, word: &OsStr) -> Result<u64, Refusal> {
    // As much as the original's int, and a duration that can be added to the time.
    number(word, 0, i32::MAX).map(|number| number as u64).ok_or_else(|| invalid(option, what, word))
}

pub fn view(word: &OsStr) -> Result<Format, Refusal> {
    Ok(match number(word, 1, 5) {
        Some(1) => Format::Basic,
        Some(2) => Format::Extra,
        Some(3) => Format::Full,
        Some(4) => Format::Groups,
        Some(_) => Format::Netstat,
        None => return Err(invalid('v', "view", word)),
    })
}

pub fn details(word: &OsStr) -> Result<Details, Refusal> {
    match number(word, 1, 2) {
        Some(1) => Ok(Details::Totals),
        Some(_) => Ok(Details::Deltas),
        None => Err(invalid('d', "details", word)),
    }
}

pub fn log_details(word: &OsStr) -> Result<i32, Refusal> {
    number(word, 0, 3).ok_or_else(|| invalid('D', "details level", word))
}

pub fn descriptor(word: &OsStr) -> Result<i32, Refusal> {
    number(word, 0, i32::MAX).ok_or_else(|| invalid('S', "fd", word))
}

pub fn address(word: &OsStr) -> Result<SocketAddr, Refusal> {
    let text = word.to_string_lossy();
    text.parse().map_err(|_| Refusal::Value(format!("'--listen' Invalid address val: {text}")))
}

fn number(word: &OsStr, least: i32, most: i32) -> Option<i32> {
    let number = word.to_str()?.trim().parse().ok()?;
    (least..=most).contains(&number).then_some(number)
}

fn invalid(option: char, what: &str, word: &OsStr) -> Refusal {
    Refusal::Value(format!("'-{option}' Invalid {what} val: {}", word.to_string_lossy()))
}
