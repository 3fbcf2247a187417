//! How much of a path a bulk transfer gets, by loss, round-trip time and congestion control: one
//! table, kept beside this file, so that a change of behaviour is a change of the table.
//!
//! `TCP_SIM_GOODPUT=<file>` writes the table as it is now.

use core::fmt::Write;
use core::time::Duration;

use super::sim::{Conditions, Open, Part, World};
use crate::tcp::congestion::Algorithm;

/// 100 Mbit/s.
const RATE: u64 = 100_000_000;
/// Losses in a million.
const LOSSES: [u32; 4] = [0, 1_000, 10_000, 50_000];
const ROUND_TRIPS: [u64; 4] = [1, 5, 20, 50];

/// What a transfer came to.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// Bytes per second.
    goodput: f64,
    timeouts: u64,
}

/// Two seconds' worth of what is expected.
fn bytes(loss: u32, round_trip: u64) -> u64 {
    (2.0 * expected(loss, round_trip)).clamp(200_000.0, 1_200_000.0) as u64
}

/// The mean of a few transfers.
fn transfer(change: impl Fn(&mut Part), loss: u32, round_trip: u64) -> Outcome {
    const SEEDS: u64 = 2;
    let bytes = bytes(loss, round_trip);
    let mut mean = Outcome::default();
    for seed in 0..SEEDS {
        let delay = Duration::from_micros(round_trip * 500);
        let path = Conditions {
            loss,
            rate: RATE,
            // A round trip's worth, but not less than what slow start needs.
            queue: (RATE / 8 * round_trip / 1000).max(100_000),
            ..Conditions::perfect(delay)
        };
        let mut parts = [Part::bulk(bytes, delay), Part::bulk(0, delay)];
        parts[0].conditions = path;
        parts.iter_mut().for_each(&change);
        let mut world = World::new(seed, Open::Passive, parts);
        let start = world.now;
        world.run_until(Duration::from_secs(600), |world| world.sides[1].program.read == bytes);
        let time = world.now.saturating_duration_since(start).as_secs_f64();
        let counters = *world.sides[0].connection.as_ref().unwrap().counters();
        mean.goodput += bytes as f64 / time / SEEDS as f64;
        mean.timeouts += counters.timeouts;
        world.run(Duration::from_secs(600));
        world.check_delivered();
    }
    mean
}

/// What the model of Mathis et al. says of congestion avoidance, or what the path carries.
fn expected(loss: u32, round_trip: u64) -> f64 {
    let carries = RATE as f64 / 8.0 * 1448.0 / 1500.0;
    if loss == 0 {
        return carries;
    }
    let probability = f64::from(loss) / 1e6;
    let model = 1448.0 / (round_trip as f64 / 1000.0) * (1.5 / probability).sqrt();
    model.min(carries)
}

#[test]
fn bulk_transfers_get_what_they_should() {
    let (mut table, mut wrong) = (String::new(), String::new());
    writeln!(table, "goodput in Mbit/s (timeouts)").unwrap();
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        // Without SACK a loss takes much longer to repair, and hardly a peer is without.
        for sack in [true, false] {
            let mut row = format!("{}\n", algorithm.name());
            for loss in LOSSES {
                write!(row, "{:5.1} %", f64::from(loss) / 1e4).unwrap();
                for round_trip in ROUND_TRIPS.into_iter().take(if sack { 4 } else { 2 }) {
                    let change = |part: &mut Part| {
                        part.settings.congestion = algorithm;
                        part.settings.sack = sack;
                        part.settings.timestamps = sack;
                    };
                    let outcome = transfer(change, loss, round_trip);
                    let mbit = outcome.goodput * 8.0 / 1e6;
                    let digits = if mbit < 9.95 { 1 } else { 0 };
                    write!(row, " | {mbit:4.digits$} ({})", outcome.timeouts).unwrap();
                    check(algorithm, sack, loss, round_trip, outcome, &mut wrong);
                }
                row.push('\n');
            }
            // Nothing of the cases that hang on every detail.
            if sack {
                table += &row;
            }
        }
    }
    if let Some(file) = std::env::var_os("TCP_SIM_GOODPUT") {
        std::fs::write(file, &table).unwrap();
        assert!(wrong.is_empty(), "\n{wrong}");
    } else {
        assert!(wrong.is_empty(), "\n{wrong}\n{table}");
        assert_eq!(table, include_str!("goodput.txt"), "\n{table}");
    }
}

fn check(
    algorithm: Algorithm,
    sack: bool,
    loss: u32,
    round_trip: u64,
    outcome: Outcome,
    wrong: &mut String,
) {
    let part = outcome.goodput / expected(loss, round_trip);
    // Short transfers spend part of their time in slow start; without SACK one loss per round trip
    // is repaired.
    let least = match (sack, loss) {
        (true, 0) => 0.2,
        // Slow start loses a window, and repairs a segment in a round trip.
        (false, 0) => 0.15,
        (true, 50_000) => 0.45,
        (true, _) => 0.6,
        (false, 50_000) => 0.08,
        (false, _) => 0.25,
    };
    let name = format!("{}, sack {sack}, loss {loss}, {round_trip} ms", algorithm.name());
    if part < least {
        writeln!(wrong, "{name}: {part:.2} of what it should be").unwrap();
    }
    // A lost retransmission may need a timeout; a lost segment does not.
    if sack && loss <= 10_000 && outcome.timeouts > 3 {
        writeln!(wrong, "{name}: {} timeouts", outcome.timeouts).unwrap();
    }
}
