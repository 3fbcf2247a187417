//! Segments as time lines write them (`timelines`). Also read by the tests that hold Linux to the same lines.

use super::script::{ISS, Segment, segment};
use crate::tcp::EcnField;
use crate::wire::tcp::{Flags, SackBlock};

pub fn number(text: &str) -> u32 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

pub fn pair(text: &str, between: char) -> (u32, u32) {
    let (one, other) = text.split_once(between).unwrap_or_else(|| panic!("no pair: {text}"));
    (number(one), number(other))
}

/// A segment that arrives, such as `A 1+100 a1 w=500`.
pub fn parse(text: &str) -> Segment {
    let mut words = text.split_whitespace();
    let mut flags = Flags::NONE;
    for letter in words.next().unwrap_or_default().chars() {
        flags = flags.with(match letter {
            'S' => Flags::SYN,
            'F' => Flags::FIN,
            'R' => Flags::RST,
            'P' => Flags::PSH,
            'A' => Flags::ACK,
            'U' => Flags::URG,
            'E' => Flags::ECE,
            'C' => Flags::CWR,
            '.' => Flags::NONE,
            _ => panic!("no flag: {letter}"),
        });
    }
    let (seq, len) = pair(words.next().unwrap_or_default(), '+');
    let mut arrives = segment(flags, seq, 0, len);
    for word in words {
        if let Some((option, value)) = word.split_once('=') {
            match option {
                "w" => arrives.window = number(value) as u16,
                "mss" => arrives.options.mss = Some(number(value) as u16),
                "ws" => arrives.options.window_scale = Some(number(value) as u8),
                "u" => arrives = arrives.urgent(number(value) as u16),
                "ts" => {
                    let (value, echo) = pair(value, '/');
                    arrives = arrives.stamps(value, echo);
                }
                _ => panic!("no option: {word}"),
            }
        } else if let Some(block) = word.strip_prefix('[') {
            let (left, right) = pair(block.trim_end_matches(']'), '-');
            let absolute = |number: u32| ISS.wrapping_add(number);
            let block = SackBlock { left: absolute(left), right: absolute(right) };
            arrives.options.push_sack(block);
        } else if let Some(ack) = word.strip_prefix('a') {
            arrives.ack = number(ack);
        } else {
            match word {
                "sackok" => arrives.options.sack_permitted = true,
                "ce" => arrives.ecn = Some(EcnField::Congestion),
                "ect" => arrives.ecn = Some(EcnField::Capable),
                "noect" => arrives.ecn = Some(EcnField::NotCapable),
                _ => panic!("no word of a segment: {word}"),
            }
        }
    }
    arrives
}
