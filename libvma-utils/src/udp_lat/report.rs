//! The client's numbers, in the words of the manual's appendix A. No input or output here.

use std::time::Duration;

use crate::options::Options;

/// Section A.4.
pub const NOTHING: &str = "No messages were received from the server. Is the server down?";

/// What was counted.
#[derive(Debug, Default)]
pub struct Tally {
    pub answered: u64,
    /// Not answered in time.
    pub lost: u64,
    /// Answers to a message that was already answered or lost.
    pub out_of_turn: u64,
    /// All of the time but the waits for lost messages.
    pub measured: Duration,
}

/// How long the test ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// To its end: seconds.
    Whole(u32),
    /// It was interrupted.
    Cut(Duration),
}

/// The line of section A.2.1. Half of the mean round trip is the latency (A.1). None without answers.
pub fn result(tally: &Tally, length: Length) -> Option<String> {
    let Tally { answered, measured, .. } = tally;
    if *answered == 0 {
        return None;
    }
    let latency = measured.as_secs_f64() * 1e6 / *answered as f64 / 2.0;
    let seconds = match length {
        Length::Whole(seconds) => seconds.to_string(),
        Length::Cut(time) => format!("{:.3}", time.as_secs_f64()),
    };
    Some(format!(
        "client_sig_handler:client_counter={answered} in {seconds} sec, latency={latency:.3} [usec]"
    ))
}

/// What section A.4 says to look at when nothing came back.
pub fn advice(options: &Options) -> String {
    let to = options.at.ip();
    if options.multicast.is_some() {
        format!(
            "Check the connection between client and server, the route to the group {to} on both, \
             and that the server runs."
        )
    } else {
        format!(
            "Check the connection between client and server, the route to {to}, and that the server runs."
        )
    }
}

/// What else one has to know of the numbers, a line each.
pub fn remarks(tally: &Tally, patience: Duration) -> Vec<String> {
    let Tally { answered, lost, out_of_turn, .. } = tally;
    let mut lines = Vec::new();
    if *lost > 0 && *answered > 0 {
        let milliseconds = patience.as_millis();
        lines.push(format!(
            "{lost} messages were not answered within {milliseconds} ms and are not in the latency"
        ));
    }
    if *out_of_turn > 0 {
        lines.push(format!("{out_of_turn} answers came twice, or later than --timeout allows"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(answered: u64, measured: Duration) -> Tally {
        Tally { answered, measured, ..Tally::default() }
    }

    // covers: TOOL-02
    #[test]
    fn the_lines_of_the_manual_come_of_a_second_and_its_count() {
        for (count, latency) in [(21220_u32, "23.562"), (67060, "7.456"), (7012, "71.368")] {
            // What was measured in the manual's second, which a timer ended about in time.
            let measured = 2.0 * f64::from(count) * latency.parse::<f64>().unwrap() / 1e6;
            assert!((measured - 1.0).abs() < 1e-3, "{measured} s");
            let tally = tally(count.into(), Duration::from_secs_f64(measured));
            assert_eq!(
                result(&tally, Length::Whole(1)).unwrap(),
                format!(
                    "client_sig_handler:client_counter={count} in 1 sec, latency={latency} [usec]"
                )
            );
        }
    }

    #[test]
    fn an_interrupted_test_tells_how_long_it_ran() {
        let tally = tally(1000, Duration::from_millis(20));
        let length = Length::Cut(Duration::from_micros(2_345_600));
        assert_eq!(
            result(&tally, length).unwrap(),
            "client_sig_handler:client_counter=1000 in 2.346 sec, latency=10.000 [usec]"
        );
    }

    #[test]
    fn without_answers_there_is_no_latency() {
        assert_eq!(result(&Tally { lost: 10, ..Tally::default() }, Length::Whole(1)), None);
    }

    #[test]
    fn lost_and_late_messages_are_told() {
        let mut tally = tally(5, Duration::from_secs(1));
        let patience = Duration::from_millis(100);
        assert!(remarks(&tally, patience).is_empty());
        (tally.lost, tally.out_of_turn) = (3, 2);
        assert_eq!(
            remarks(&tally, patience),
            [
                "3 messages were not answered within 100 ms and are not in the latency",
                "2 answers came twice, or later than --timeout allows"
            ]
        );
    }
}
