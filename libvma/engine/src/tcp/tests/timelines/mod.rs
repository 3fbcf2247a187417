//! Time lines: segments in, segments out, calls and times, line by line. The expected lines follow from
//! the RFC or from Linux's documented behaviour; the connection must send these segments, at these
//! times, and no others.
//!
//! A line is a time in milliseconds and what happens then; `#` begins a comment. The time 0 is the end
//! of [`Script`]'s handshake, which takes a round trip of 10 ms.
//!
//! - `< A 1+0 a101 w100 [201-301]`: a segment arrives. Numbers are relative, as in [`script`](super::script).
//!   Also `ts=VALUE/ECHO`, `mss=N`, `ws=N`, `sackok`, `u=N` (urgent pointer), and of the
//!   IP header `ce`, `ect`, `noect`; without one of them data is `ect` and the rest `noect`.
//! - `> A 1+0 a101`: a segment leaves; `> A 1+1460*3 a101`: three, one after the other. `w=N`, `ts=VALUE/ECHO`, `mss=N`, `ws=N`, `sackok`, `ect`, and `nots` and `noect`
//!   for what is not there, are compared if the line has them; flags, numbers and SACK blocks always.
//! - `write N`, `write N more`, `write N oob`, `read N`, `shutdown`, `close`, `abort`, `cork`, `uncork`,
//!   `nodelay`, `quickack`, `pingpong` (TCP_QUICKACK 0): calls of the program. `full`, `room`: the
//!   device has no room, or room again. `cuts N`: the device cuts runs of up to N bytes.
//! - `state S`, `error E`, `cwnd N`, `ssthresh N`, `queued N`, `window N`: what is to be found. `cwnd` and
//!   `ssthresh` are in bytes; `window` is the peer's window in bytes.
//! - `end`: nothing has left since the last line, and nothing is left to compare.

mod closed_window;
mod closing;
mod congestion;
mod crossing;
mod ecn;
mod handshake;
mod probes;
mod receiving;
mod recovery;
mod repetitions;
mod sending;
mod small_buffers;
mod strays;
mod teardown;
mod timeouts;
mod urgent;

use core::time::Duration;

use super::notation::{number, pair, parse};
use super::script::{Script, Sent, path};
use crate::tcp::{Path, SendFlags, Settings};
use crate::time::Instant;

/// Plays a time line on an active open whose SYN has not left yet.
fn connect(settings: Settings, lines: &str) {
    play(Script::starting(settings), lines);
}

/// Plays a time line on a connection that was opened actively.
fn established(settings: Settings, lines: &str) {
    play(Script::established(settings), lines);
}

/// Plays a time line on a listener, and the connection that it makes.
fn listening(settings: Settings, lines: &str) {
    play(Script::listening(settings), lines);
}

/// Plays a time line on a connection that was opened passively.
fn accepted(settings: Settings, lines: &str) {
    play(Script::accepted(settings), lines);
}

/// Plays a time line, which is to be followed to the letter.
fn play(mut script: Script, lines: &str) {
    let start = script.now;
    let mut sent: Vec<Sent> = Vec::new();
    let mut ended = false;
    for line in lines.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some((time, what)) = line.split_once(char::is_whitespace) else {
            assert!(line.is_empty(), "no time: {line}");
            continue;
        };
        let at = start.saturating_add(millis(time));
        script.pass_for(at.saturating_duration_since(script.now));
        sent.extend(script.segments());
        let what = what.trim();
        if let Some(expected) = what.strip_prefix('>') {
            for expected in every(expected.trim()) {
                assert!(!sent.is_empty(), "`{line}`: {expected} did not leave");
                let segment = sent.remove(0);
                check(&segment, &expected, start, at, line);
            }
            continue;
        }
        assert!(sent.is_empty(), "before `{line}`: {}", list(&sent, start));
        ended = what == "end";
        if let Some(arrives) = what.strip_prefix('<') {
            script.give(parse(arrives.trim()));
        } else if !ended {
            call(&mut script, what);
        }
        sent.extend(script.segments());
    }
    assert!(ended && sent.is_empty(), "at the end: {}", list(&sent, start));
}

/// The segments of a line: `1+1460*3` is three.
fn every(text: &str) -> Vec<String> {
    let Some((word, count)) = text.split_whitespace().find_map(|word| word.split_once('*')) else {
        return vec![text.into()];
    };
    let (seq, len) = pair(word, '+');
    let one = |n| text.replace(&format!("{word}*{count}"), &format!("{}+{len}", seq + n * len));
    (0..number(count)).map(one).collect()
}

fn millis(text: &str) -> Duration {
    let millis: f64 = text.parse().unwrap_or_else(|_| panic!("no time: {text}"));
    Duration::from_micros((millis * 1000.0).round() as u64)
}

fn list(sent: &[Sent], start: Instant) -> String {
    let one = |sent: &Sent| {
        let at = sent.at.saturating_duration_since(start).as_micros() as f64 / 1000.0;
        format!("{at} > {}", sent.text())
    };
    sent.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Compares a segment with its line.
fn check(sent: &Sent, expected: &str, start: Instant, at: Instant, line: &str) {
    let options = &sent.header.options;
    let mut text = sent.text();
    for word in expected.split_whitespace() {
        let found = match word.split_once('=') {
            Some(("w", _)) => format!("w={}", sent.header.window),
            Some(("mss", _)) => options.mss.map_or("mss".into(), |mss| format!("mss={mss}")),
            Some(("ws", _)) => options.window_scale.map_or("ws".into(), |ws| format!("ws={ws}")),
            Some(("ts", _)) => options
                .timestamps
                .map_or("ts".into(), |stamps| format!("ts={}/{}", stamps.value, stamps.echo)),
            _ if word == "sackok" && options.sack_permitted => word.into(),
            _ if word == "ect" && sent.ecn_capable => word.into(),
            _ if word == "noect" && !sent.ecn_capable => word.into(),
            _ if word == "nots" && options.timestamps.is_none() => word.into(),
            _ => continue,
        };
        text.push(' ');
        text += &found;
    }
    let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(text, expected, "`{line}`, sent {}", list(core::slice::from_ref(sent), start));
    let millis = |at: Instant| at.saturating_duration_since(start).as_micros() as f64 / 1000.0;
    assert_eq!(millis(sent.at), millis(at), "`{line}` left at another time");
}

/// A call of the program, or something to be found.
fn call(script: &mut Script, what: &str) {
    let words: Vec<&str> = what.split_whitespace().collect();
    let now = script.now;
    match words[..] {
        ["write", len] => {
            script.write(number(len) as usize);
        }
        ["write", len, how] => {
            let flags = SendFlags { more: how == "more", urgent: how == "oob" };
            script.write_with(number(len) as usize, flags);
        }
        ["read", len] => script.read(number(len)),
        ["shutdown"] => script.shutdown(),
        ["close"] => script.close(),
        ["abort"] => {
            script.connection.set(now, |settings| settings.reset_on_close = true);
            script.close();
        }
        ["cork"] => script.connection.set(now, |settings| settings.cork = true),
        ["uncork"] => {
            script.connection.set(now, |settings| settings.cork = false);
            script.connection.push(now, &mut script.outbox);
        }
        ["nodelay"] => {
            script.connection.set(now, |settings| settings.nodelay = true);
            script.connection.push(now, &mut script.outbox);
        }
        ["quickack"] => {
            script.connection.set_quick_ack(true);
            script.output();
        }
        ["pingpong"] => script.connection.set_quick_ack(false),
        ["full"] => script.outbox.full = true,
        ["room"] => {
            script.outbox.full = false;
            script.output();
        }
        ["cuts", limit] => {
            let path = Path { segmentation_limit: number(limit), ..path() };
            script.connection.set_path(path);
        }
        ["connect"] => script.output(),
        ["state", state] => assert_eq!(format!("{:?}", script.state()), state),
        ["error", error] => {
            let found = script.connection.take_error();
            assert_eq!(found.map_or("none".into(), |it| format!("{it:?}")), error);
        }
        ["cwnd", bytes] => assert_eq!(script.info().cwnd, number(bytes)),
        ["ssthresh", bytes] => assert_eq!(script.info().ssthresh, number(bytes)),
        ["queued", bytes] => assert_eq!(script.connection.queued(), number(bytes)),
        ["window", bytes] => assert_eq!(script.info().snd_wnd, number(bytes)),
        _ => panic!("no such call: {what}"),
    }
}
