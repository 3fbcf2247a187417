//! Numbers of the command line, in the bases of strtol(3): decimal, 0x for hexadecimal, a leading 0
//! for octal. Nothing may follow the digits.

use std::ffi::OsStr;

/// A number of 32 bits; the error names the option.
pub fn number(option: &str, word: &OsStr) -> Result<u32, String> {
    let text = word.to_string_lossy();
    let (digits, base) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (&text[..], 10),
    };
    // from_str_radix would take a sign.
    let all_digits = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
    if !all_digits {
        return Err(format!("option '{option}': '{text}' is not a number"));
    }
    u32::from_str_radix(digits, base)
        .map_err(|_| format!("option '{option}': '{text}' is more than {}", u32::MAX))
}

/// The same, but not 0.
pub fn at_least_one(option: &str, word: &OsStr) -> Result<u32, String> {
    match number(option, word)? {
        0 => Err(format!("option '{option}': it must be at least 1")),
        number => Ok(number),
    }
}
