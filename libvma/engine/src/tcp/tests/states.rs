//! Every state of RFC 9293 with every kind of segment: the next state, what is answered, and what
//! the program learns. The table is kept beside this file.
//!
//! `TCP_STATES=<file>` writes the table as it is now; compare it with section 3.10.7 before it is
//! put in place.

use core::fmt::Write;

use super::script::{ACK, IRS, ISS, Script, Segment, plain, segment};
use crate::tcp::State;
use crate::wire::tcp::Flags;

const SYN: Flags = Flags::SYN;
const FIN: Flags = Flags::FIN;
const RST: Flags = Flags::RST;

/// A connection in this state; with data of ours in flight where the state has any.
fn in_state(state: State) -> Script {
    let mut script = match state {
        State::SynSent => Script::connecting(plain()),
        State::SynReceived => {
            let mut script = Script::connecting(plain());
            script.give(segment(SYN, 0, 0, 0));
            script
        }
        _ => Script::established(plain()),
    };
    if matches!(state, State::SynSent | State::SynReceived) {
        assert_eq!(script.state(), state);
        script.sent();
        return script;
    }
    // 100 bytes in flight, but where our FIN is acknowledged.
    script.write(100);
    match state {
        State::FinWait1 | State::FinWait2 | State::Closing | State::TimeWait => script.shutdown(),
        State::CloseWait | State::LastAck => {
            script.give(segment(FIN.with(ACK), 1, 1, 0));
        }
        _ => {}
    }
    match state {
        State::FinWait2 => {
            script.give(segment(ACK, 1, 102, 0));
        }
        State::Closing => {
            script.give(segment(FIN.with(ACK), 1, 1, 0));
        }
        State::TimeWait => {
            script.give(segment(FIN.with(ACK), 1, 102, 0));
        }
        State::LastAck => script.shutdown(),
        State::Closed => {
            script.connection.abort();
            script.output();
        }
        _ => {}
    }
    assert_eq!(script.state(), state);
    script.sent();
    script
}

/// The kinds, by what RCV.NXT, SND.UNA and SND.NXT are.
fn kinds(rcv_nxt: u32, una: u32, nxt: u32) -> Vec<(&'static str, Segment)> {
    vec![
        ("ACK, nothing new", segment(ACK, rcv_nxt, una, 0)),
        ("ACK of all", segment(ACK, rcv_nxt, nxt, 0)),
        ("ACK of more than was sent", segment(ACK, rcv_nxt, nxt + 1, 0)),
        ("ACK of long ago", segment(ACK, rcv_nxt, una.wrapping_sub(100_000), 0)),
        ("data", segment(ACK, rcv_nxt, nxt, 10)),
        ("data out of order", segment(ACK, rcv_nxt + 20, nxt, 10)),
        ("data beyond the window", segment(ACK, rcv_nxt + 70_000, nxt, 10)),
        ("old data", segment(ACK, rcv_nxt.wrapping_sub(10), nxt, 10)),
        ("data without ACK", segment(Flags::NONE, rcv_nxt, 0, 10)),
        ("FIN", segment(FIN.with(ACK), rcv_nxt, una, 0)),
        ("FIN and ACK of all", segment(FIN.with(ACK), rcv_nxt, nxt, 0)),
        ("FIN out of order", segment(FIN.with(ACK), rcv_nxt + 20, nxt, 0)),
        ("FIN again", segment(FIN.with(ACK), rcv_nxt.wrapping_sub(1), nxt, 0)),
        ("FIN without ACK", segment(FIN, rcv_nxt, 0, 0)),
        ("SYN, the old one", segment(SYN, 0, 0, 0)),
        ("SYN in the window", segment(SYN, rcv_nxt + 5, 0, 0)),
        ("SYN beyond the window", segment(SYN, rcv_nxt + 70_000, 0, 0)),
        ("SYN and ACK, the old one", segment(SYN.with(ACK), 0, 1, 0)),
        ("SYN and ACK of more", segment(SYN.with(ACK), 0, nxt + 1, 0)),
        ("SYN and FIN", segment(SYN.with(FIN), rcv_nxt, 0, 0)),
        ("RST", segment(RST, rcv_nxt, 0, 0)),
        ("RST and ACK of all", segment(RST.with(ACK), rcv_nxt, nxt, 0)),
        ("RST in the window", segment(RST, rcv_nxt + 5, 0, 0)),
        ("RST beyond the window", segment(RST, rcv_nxt + 70_000, 0, 0)),
        ("RST and ACK of more", segment(RST.with(ACK), rcv_nxt, nxt + 1, 0)),
        ("nothing", segment(Flags::NONE, rcv_nxt, 0, 0)),
    ]
}

// checks: RFC9293
#[test]
fn every_state_answers_every_segment() {
    let states = [
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
        State::Closed,
    ];
    let mut table = String::new();
    for state in states {
        writeln!(table, "{state:?}").unwrap();
        let known = in_state(state).connection.transplant(Script::epoch());
        let rcv_nxt = known.rcv_nxt.raw().wrapping_sub(IRS);
        let relative = |seq: crate::tcp::seq::Seq| seq.raw().wrapping_sub(ISS);
        let rcv_nxt = if state == State::SynSent { 0 } else { rcv_nxt };
        for (kind, segment) in kinds(rcv_nxt, relative(known.snd_una), relative(known.snd_nxt)) {
            let mut script = in_state(state);
            script.give(segment);
            let mut answers = script.sent();
            if answers.is_empty() {
                // What is delayed.
                script.pass(41);
                answers =
                    script.sent().into_iter().map(|answer| format!("later {answer}")).collect();
            }
            let error = script.connection.take_error();
            let error = error.map_or(String::new(), |error| format!(" {error:?}"));
            let next = format!("{:?}{error}", script.state());
            writeln!(table, "  {kind:28} {next:20} {}", answers.join(", ")).unwrap();
        }
    }
    let table: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    if let Some(file) = std::env::var_os("TCP_STATES") {
        std::fs::write(file, &table).unwrap();
    } else {
        assert_eq!(table, include_str!("states.txt"), "\n{table}");
    }
}
