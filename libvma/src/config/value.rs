//! What a parameter's value may be: from the text of the environment to its one canonical form.

use core::fmt;

use super::spec::Spec;
use crate::log::Level;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number, of which everything but 0 is 1.
    Flag,
    Number {
        least: i64,
        most: i64,
    },
    /// A number that is brought into the range.
    Clamped {
        least: i64,
        most: i64,
    },
    /// Bytes, or a count of what takes many; K, M and G are 1024, its square and its cube.
    Size {
        least: i64,
        most: i64,
    },
    /// One of some numbers, each with names.
    Choice(&'static [Choice]),
    /// One of some words.
    OneOf(&'static [&'static str]),
    /// CPUs: -1 for any, a mask `0x...`, or a list such as 0,4-7.
    Cpus,
    /// A trace level by name or number.
    Level,
    /// A profile by name or number.
    Spec,
    Text,
}

/// One value of a [`Kind::Choice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub number: i64,
    pub names: &'static [&'static str],
    /// As the banner has it.
    pub text: &'static str,
}

pub const fn number(least: i64, most: i64) -> Kind {
    Kind::Number { least, most }
}

pub const fn size(least: i64, most: i64) -> Kind {
    Kind::Size { least, most }
}

pub const fn choice(number: i64, names: &'static [&'static str], text: &'static str) -> Choice {
    Choice { number, names, text }
}

/// A count without a limit of its own.
pub const COUNT: Kind = number(0, u32::MAX as i64);

/// CPUs above this do not exist for the kernel's masks.
pub const MOST_CPUS: usize = 1024;

impl Kind {
    /// The canonical form, or, of a value that is out of range and can be brought into it, that.
    /// `Err(None)`: the text means nothing.
    pub fn check(&self, text: &str) -> Result<String, Option<String>> {
        let word = text.trim();
        match *self {
            Kind::Text => Ok(text.to_owned()),
            Kind::Flag => {
                let number: i64 = word.parse().map_err(|_| None)?;
                Ok(u8::from(number != 0).to_string())
            }
            Kind::Number { least, most } => within(word.parse().ok(), least, most),
            Kind::Size { least, most } => within(bytes(word), least, most),
            Kind::Clamped { least, most } => {
                let number: i64 = word.parse().map_err(|_| None)?;
                let clamped = number.clamp(least, most);
                if clamped == number {
                    Ok(number.to_string())
                } else {
                    Err(Some(clamped.to_string()))
                }
            }
            Kind::Choice(choices) => {
                let number = word.parse::<i64>().ok();
                let named = |name: &&str| name.eq_ignore_ascii_case(word);
                let found = choices
                    .iter()
                    .find(|one| Some(one.number) == number || one.names.iter().any(named));
                found.map(|one| one.number.to_string()).ok_or(None)
            }
            Kind::OneOf(words) => {
                let found = words.iter().find(|one| one.eq_ignore_ascii_case(word));
                found.map(|one| (*one).to_owned()).ok_or(None)
            }
            Kind::Cpus => cpus(word).map(|_| word.to_owned()).ok_or(None),
            Kind::Level => {
                Level::parse(word).map(|level| level.name().to_ascii_lowercase()).ok_or(None)
            }
            Kind::Spec => Spec::parse(word).map(|spec| spec.name().to_owned()).ok_or(None),
        }
    }
}

fn within(number: Option<i64>, least: i64, most: i64) -> Result<String, Option<String>> {
    let number = number.filter(|number| (least..=most).contains(number));
    number.map(|number| number.to_string()).ok_or(None)
}

fn bytes(word: &str) -> Option<i64> {
    let (digits, shift) = match word.as_bytes().last()? {
        b'k' | b'K' => (&word[..word.len() - 1], 10),
        b'm' | b'M' => (&word[..word.len() - 1], 20),
        b'g' | b'G' => (&word[..word.len() - 1], 30),
        _ => (word, 0),
    };
    digits.trim_end().parse::<i64>().ok()?.checked_mul(1 << shift)
}

/// The CPUs of a mask or list; none for -1.
pub fn cpus(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    if text == "-1" {
        return Some(Vec::new());
    }
    let mut cpus = Vec::new();
    if let Some(mask) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        for (at, digit) in mask.chars().rev().enumerate() {
            let bits = digit.to_digit(16)?;
            cpus.extend((0..4).filter(|bit| bits >> bit & 1 == 1).map(|bit| at * 4 + bit));
        }
    } else {
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().ok()?;
            let last: usize = last.trim().parse().ok()?;
            if last >= MOST_CPUS || first > last {
                return None;
            }
            cpus.extend(first..=last);
        }
    }
    let sound = !cpus.is_empty() && cpus.iter().all(|cpu| *cpu < MOST_CPUS);
    sound.then_some(cpus)
}

impl fmt::Display for Kind {
    /// What is accepted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Kind::Flag => f.write_str("0 or 1"),
            Kind::Number { least: 0, most } if most == i64::from(u32::MAX) => {
                f.write_str("a number")
            }
            Kind::Number { least, most } | Kind::Clamped { least, most } => {
                write!(f, "{least} to {most}")
            }
            Kind::Size { least, most } => write!(f, "{least} to {most}, also with K, M or G"),
            Kind::Choice(choices) => {
                for (at, one) in choices.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{}", one.number)?;
                    if let Some(name) = one.names.first() {
                        write!(f, " or {name}")?;
                    }
                }
                Ok(())
            }
            Kind::OneOf(words) => write!(f, "one of {}", words.join(", ")),
            Kind::Cpus => f.write_str("-1, a mask 0x... or a list such as 0,4-7"),
            Kind::Level => {
                f.write_str("none, panic, error, warning, info, details, debug, fine, finer, all")
            }
            Kind::Spec => {
                for (at, spec) in Spec::all().enumerate() {
                    f.write_str(if at == 0 { "" } else { ", " })?;
                    f.write_str(spec.name())?;
                    if let Some(number) = spec.number() {
                        write!(f, " or {number}")?;
                    }
                }
                Ok(())
            }
            Kind::Text => f.write_str("any text"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        let kind = size(0, 1 << 30);
        assert_eq!(kind.check("64K"), Ok("65536".into()));
        assert_eq!(kind.check(" 2 m"), Ok("2097152".into()));
        assert_eq!(kind.check("1G"), Ok("1073741824".into()));
        for bad in
            ["", "K", "-1", "2G", "1T", "1.5K", "99999999999999999999", "9223372036854775807K"]
        {
            assert_eq!(kind.check(bad), Err(None), "{bad}");
        }
    }

    #[test]
    fn flags_are_numbers() {
        for (text, value) in [("0", Ok("0")), ("1", Ok("1")), ("2", Ok("1")), ("yes", Err(None))] {
            assert_eq!(Kind::Flag.check(text), value.map(String::from), "{text}");
        }
    }

    #[test]
    fn choices_go_by_number_and_name() {
        const CHOICES: &[Choice] = &[choice(0, &["off"], ""), choice(10, &["socket"], "")];
        let kind = Kind::Choice(CHOICES);
        assert_eq!(kind.check("10"), Ok("10".into()));
        assert_eq!(kind.check("Socket"), Ok("10".into()));
        assert_eq!(kind.check("5"), Err(None));
        assert_eq!(kind.to_string(), "0 or off, 10 or socket");
    }

    // covers: THR-09
    #[test]
    fn cpus_are_a_mask_or_a_list() {
        assert_eq!(cpus("-1"), Some(vec![]));
        assert_eq!(cpus("3"), Some(vec![3]));
        assert_eq!(cpus("0x7"), Some(vec![0, 1, 2]));
        assert_eq!(cpus("0x10"), Some(vec![4]));
        assert_eq!(cpus("0,1,7-10"), Some(vec![0, 1, 7, 8, 9, 10]));
        for bad in ["", "0x", "0x0", "x", "5-", "9-8", "1,,2", "1024", "0-99999999999", "-2"] {
            assert_eq!(cpus(bad), None, "{bad}");
        }
    }
}
