//! The output of a run of the prober, and how two of them differ.

use std::fmt::Write;

use crate::KNOWN;
use crate::harness::{Output, Traffic};
use crate::prober::{Run, TRIES};

/// The kernel's counts of UDP and TCP in a case.
#[derive(Clone)]
pub struct Counters {
    case: String,
    datagrams: u64,
    /// May the kernel have some of them?
    datagrams_shared: bool,
    segments: u64,
    segments_shared: bool,
}

/// The output of a run of the prober.
#[derive(Clone)]
pub struct Transcript {
    pub lines: Vec<String>,
    counters: Vec<Counters>,
    /// What ended it otherwise than well, and stderr.
    pub trouble: String,
    traffic: Traffic,
}

/// How a case differs from the kernel's, by the first line that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The same call with the same result took another time. What follows in the case may be the
    /// consequence.
    Time,
    Value,
}

/// A case that differs.
#[derive(Debug)]
pub struct Difference {
    pub case: String,
    pub kind: Kind,
    /// All lines of the case.
    pub kernel: Vec<String>,
    pub library: Vec<String>,
    /// For a reader.
    pub text: String,
}

impl Transcript {
    pub fn new(output: &Output, traffic: Traffic) -> Transcript {
        let mut transcript = Transcript { traffic, ..Transcript::of_text(&output.stdout) };
        if !output.status.success() {
            let last = transcript.lines.last();
            transcript.trouble =
                format!("ended with {}, behind {last:?}\n{}", output.status, output.stderr);
        }
        transcript
    }

    pub fn of_text(text: &str) -> Transcript {
        let mut lines = Vec::new();
        let mut counters = Vec::new();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("# ") else {
                lines.push(line.to_owned());
                continue;
            };
            let words: Vec<&str> = rest.split_whitespace().collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
            counters.push(Counters {
                case: words[0].to_owned(),
                datagrams: number(1) + number(2),
                datagrams_shared: words[3] == "kernel_too",
                segments: number(4) + number(5),
                segments_shared: words[6] != "offloaded",
            });
        }
        Transcript { lines, counters, trouble: String::new(), traffic: Traffic::default() }
    }

    /// Panics unless it is one of a prober that was not under the library and went well.
    #[track_caller]
    pub fn is_reference(&self) {
        assert!(self.trouble.is_empty(), "without the library: {}", self.trouble);
        assert!(self.cases().last() == Some(&"end"), "the prober ended early");
        let failed = self.lines.iter().find(|line| line.contains(" | ! "));
        assert_eq!(failed, None, "the prober failed");
    }

    /// A call that took longer than the prober expects of it.
    pub fn late_line(&self) -> Option<&str> {
        let is_late = |line: &&str| line.contains(" ms, not ");
        self.lines.iter().map(String::as_str).find(is_late)
    }

    /// The calls that took less time than the prober expects of them: what they wait for was there before
    /// the prober looked at the clock, or never takes so long.
    pub fn early_lines(&self) -> impl Iterator<Item = &str> {
        let is_early = |line: &&str| {
            let expected =
                line.rsplit_once(", before ").and_then(|(_, end)| end.strip_suffix(" ms"));
            expected.is_some_and(|number| number.parse::<u64>().is_ok())
        };
        self.lines.iter().map(String::as_str).filter(is_early)
    }

    fn cases(&self) -> Vec<&str> {
        let mut cases: Vec<&str> = Vec::new();
        for line in &self.lines {
            let case = case_of(line);
            if cases.last() != Some(&case) {
                cases.push(case);
            }
        }
        cases
    }

    fn of_case(&self, case: &str) -> Vec<&str> {
        self.lines.iter().map(String::as_str).filter(|line| case_of(line) == case).collect()
    }
}

pub fn case_of(line: &str) -> &str {
    line.split_once(" | ").map_or(line, |(case, _)| case)
}

/// Are two lines the same? A count marked `~` may differ by 15 % and 2: the kernel counts a
/// buffer by what its driver allocated.
pub fn same(kernel: &str, library: &str) -> bool {
    if kernel == library {
        return true;
    }
    let split = |line: &str| {
        let (text, number) = line.rsplit_once(": ")?;
        Some((text.to_owned(), number.parse::<i64>().ok()?))
    };
    match (split(kernel), split(library)) {
        (Some((text, expected)), Some((other, found))) if text.contains(" | ~ ") => {
            text == other && (expected - found).abs() <= expected * 15 / 100 + 2
        }
        _ => false,
    }
}

/// A line without its class of time, if it has one: see `report_timed` in trace.c.
fn untimed(line: &str) -> Option<&str> {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(call) = line.strip_suffix(", at once") {
        return Some(call);
    }
    let (rest, class) = line.rsplit_once(", ")?;
    let about = class.strip_prefix("about ").or_else(|| class.strip_prefix("before "));
    if let Some(expected) = about.and_then(|text| text.strip_suffix(" ms")) {
        return number(expected).then_some(rest);
    }
    let (call, spent) = rest.rsplit_once(", ")?;
    let is_class = class.strip_prefix("not ").is_some_and(number)
        && spent.strip_suffix(" ms").is_some_and(number);
    is_class.then_some(call)
}

fn differ_in_time(kernel: &str, library: &str) -> bool {
    untimed(kernel).is_some_and(|call| untimed(library) == Some(call))
}

/// The cases that differ, but those that the run excepts or that are known to.
pub fn differences(run: &Run<'_>, kernel: &Transcript, library: &Transcript) -> Vec<Difference> {
    const BEFORE: usize = 3;
    const SHOWN: usize = 8;
    let mut found = Vec::new();
    for case in kernel.cases() {
        if run.except.contains(&case) || KNOWN.contains(&(run.group, case)) {
            continue;
        }
        let (ours, theirs) = (library.of_case(case), kernel.of_case(case));
        let longest = ours.len().max(theirs.len());
        let first = (0..longest).find(|at| match (theirs.get(*at), ours.get(*at)) {
            (Some(kernel), Some(library)) => !same(kernel, library),
            _ => true,
        });
        let Some(first) = first else { continue };
        let kind = match (theirs.get(first), ours.get(first)) {
            (Some(kernel), Some(library)) if differ_in_time(kernel, library) => Kind::Time,
            _ => Kind::Value,
        };
        let mut text = format!("--- {}/{case}\n", run.group);
        for line in theirs.iter().take(first).skip(first.saturating_sub(BEFORE)) {
            let _ = writeln!(text, "  both:    {line}");
        }
        for (who, lines) in [("kernel", &theirs), ("library", &ours)] {
            for line in lines.iter().skip(first).take(SHOWN) {
                let _ = writeln!(text, "  {who:8} {line}");
            }
            if lines.len() <= first {
                let _ = writeln!(text, "  {who:8} (ends)");
            }
        }
        let [kernel, library] =
            [theirs, ours].map(|lines| lines.iter().map(|line| (*line).to_owned()).collect());
        found.push(Difference { case: case.to_owned(), kind, kernel, library, text });
    }
    found
}

/// The kernel saw nothing of the cases that are ours alone, and the library did see them. Empty if
/// that is so.
pub fn fallen_back(run: &Run<'_>, kernel: &Transcript, library: &Transcript) -> String {
    let mut text = String::new();
    for counters in &library.counters {
        let case = &counters.case;
        if !counters.datagrams_shared && counters.datagrams > 0 {
            let count = counters.datagrams;
            let _ = writeln!(text, "{}/{case}: {count} datagrams by the kernel", run.group);
        }
        if !counters.segments_shared && counters.segments > 0 {
            let count = counters.segments;
            let _ = writeln!(text, "{}/{case}: {count} segments by the kernel", run.group);
        }
    }
    let ours = kernel.counters.iter().filter(|case| !case.datagrams_shared);
    let expected: u64 = ours.map(|case| case.datagrams).sum();
    let offloaded = library.traffic.rx + library.traffic.tx;
    if offloaded < expected {
        let _ = writeln!(
            text,
            "{}: {expected} datagrams without the library, {offloaded} offloaded with it",
            run.group
        );
    }
    text
}

/// A program under the library beside the same one without it.
pub struct Comparison<'a> {
    pub run: &'a Run<'a>,
    /// The kernel's transcript, which other tests of this run may have taken.
    pub kernel: Transcript,
    /// Takes the kernel's once more.
    pub kernel_again: &'a dyn Fn() -> Transcript,
    /// Takes the library's.
    pub library: &'a dyn Fn() -> Transcript,
    /// Prepares the library's transcript for the comparison with the kernel's; what it returns is trouble.
    pub judge: &'a dyn Fn(&Transcript, &mut Transcript) -> String,
    /// May the next measurement have it otherwise?
    pub may_be_late: &'a dyn Fn(&Difference) -> bool,
}

impl Comparison<'_> {
    /// Panics unless the library's transcript is the kernel's. A case is measured again, at most [`TRIES`]
    /// times in all, only if `may_be_late` says so of how it differs, and it has to be right once. Every
    /// other difference ends the comparison at once, unless the kernel, asked once more, differs from its
    /// own former answer: then that answer counts. (The kernel's transcript serves all tests of a run, and
    /// their second tries: one that was taken in a bad moment would fail them all.)
    #[track_caller]
    pub fn hold(mut self) {
        let mut late: Option<Vec<String>> = None;
        let mut text = String::new();
        let mut was_asked_again = false;
        for _ in 0..TRIES {
            let taken = (self.library)();
            let (mut found, mut trouble) = self.judged(&taken);
            if !was_asked_again && found.iter().any(|one| !(self.may_be_late)(one)) {
                was_asked_again = true;
                let again = (self.kernel_again)();
                let itself = differences(self.run, &self.kernel, &again);
                if !itself.is_empty() {
                    let text: String = itself.iter().map(|one| one.text.as_str()).collect();
                    eprintln!("the kernel differs from itself (former as kernel):\n{text}");
                    self.kernel = again;
                    (found, trouble) = self.judged(&taken);
                }
            }
            let was_late = |case: &String| late.as_ref().is_none_or(|late| late.contains(case));
            found.retain(|one| !(self.may_be_late)(one) || was_late(&one.case));
            text = found.iter().map(|one| one.text.as_str()).collect();
            text.push_str(&trouble);
            if text.is_empty() {
                return;
            }
            if !trouble.is_empty() || !found.iter().all(self.may_be_late) {
                break;
            }
            eprintln!("measured again (VMA_*: {:?}):\n{text}", self.run.environment);
            late = Some(found.into_iter().map(|one| one.case).collect());
        }
        panic!(
            "with the library (VMA_*: {:?}) the program sees something else:\n{text}",
            self.run.environment
        );
    }

    fn judged(&self, taken: &Transcript) -> (Vec<Difference>, String) {
        let mut library = taken.clone();
        let judged = (self.judge)(&self.kernel, &mut library);
        let found = differences(self.run, &self.kernel, &library);
        (found, format!("{}{judged}", library.trouble))
    }
}

#[test]
fn a_time_is_told_from_a_value() {
    assert!(differ_in_time("c | recv(fd) = 3, at once", "c | recv(fd) = 3, 70 ms, not 0"));
    assert!(differ_in_time("c | recv(fd) = 3, about 50 ms", "c | recv(fd) = 3, before 50 ms"));
    // Another result at another time, and calls whose time is not compared.
    assert!(!differ_in_time("c | recv(fd) = 3, at once", "c | recv(fd) = 4, 70 ms, not 0"));
    assert!(!differ_in_time("c | recv(fd) = 3", "c | recv(fd) = 4"));
    assert!(!differ_in_time("c | recv(fd, 3, 5) = 3", "c | recv(fd, 3, 6) = 3"));
    assert!(!differ_in_time("c | recv(fd) = 3, at once", "c | recv(fd) = 3"));
}

#[test]
fn calls_that_took_less_time_than_expected_are_found() {
    let text = "a | select = 1, before 30 ms\na | read = 'not, before me'\na | 5: 1, before 6\n\
                b | select = 1, about 30 ms\nb | select = 1, 95 ms, not 20\nend | 2 cases\n";
    let transcript = Transcript::of_text(text);
    assert_eq!(transcript.early_lines().collect::<Vec<_>>(), ["a | select = 1, before 30 ms"]);
}

#[test]
fn a_case_is_judged_by_its_first_difference() {
    let run = crate::prober::plain("group");
    let kernel = Transcript::of_text("a | x = 1, at once\na | y = 1\nb | x = 1\nend | 2 cases\n");
    let kinds = |text: &str| -> Vec<(String, Kind)> {
        let found = differences(&run, &kernel, &Transcript::of_text(text));
        found.into_iter().map(|one| (one.case, one.kind)).collect()
    };
    let late = "a | x = 1, 90 ms, not 0\na | y = 2\nb | x = 1\nend | 2 cases\n";
    assert_eq!(kinds(late), [("a".to_owned(), Kind::Time)]);
    let wrong = "a | x = 1, at once\na | y = 2\nb | x = 1\nend | 2 cases\n";
    assert_eq!(kinds(wrong), [("a".to_owned(), Kind::Value)]);
    let short = "a | x = 1, at once\na | y = 1\nb | x = 1\n";
    assert_eq!(kinds(short), [("end".to_owned(), Kind::Value)]);
}

#[test]
fn the_kernel_is_asked_again_before_the_library_is_wrong() {
    let run = crate::prober::plain("group");
    let text = |value: &str| Transcript::of_text(&format!("a | x = {value}\nend | 1 cases\n"));
    // What was kept of the kernel, what it says if asked again, and the library.
    let holds = |kept: &str, again: &str, library: &str| {
        let taken = std::cell::Cell::new(0);
        let comparison = Comparison {
            run: &run,
            kernel: text(kept),
            kernel_again: &|| text(again),
            library: &|| {
                taken.set(taken.get() + 1);
                text(library)
            },
            judge: &|_, _| String::new(),
            may_be_late: &|_| false,
        };
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| comparison.hold()));
        assert_eq!(taken.get(), 1, "a value of the library is not measured twice");
        held.is_ok()
    };
    assert!(holds("1", "2", "1"), "it was right at once");
    assert!(holds("2", "1", "1"), "the kernel's answer was taken in a bad moment");
    assert!(!holds("2", "2", "1"));
    assert!(!holds("2", "3", "1"));
}
