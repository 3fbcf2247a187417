//! Shell patterns as fnmatch(3) has them without flags: `*`, `?`, `[...]` and a backslash.

/// Does the whole text fit?
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut place) = (0, 0);
    // Where to go on with one more character for the last star: only that one needs trying again.
    let mut star: Option<(usize, usize)> = None;
    while place < text.len() {
        if pattern.get(at) == Some(&'*') {
            at += 1;
            star = Some((at, place));
        } else if let Some(next) = one(&pattern, at, text[place]) {
            at = next;
            place += 1;
        } else if let Some((after, taken)) = star {
            star = Some((after, taken + 1));
            (at, place) = (after, taken + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

/// Does what stands at `at` fit one character? Returns where the pattern goes on.
fn one(pattern: &[char], at: usize, character: char) -> Option<usize> {
    match *pattern.get(at)? {
        '?' => Some(at + 1),
        '[' => match bracket(pattern, at, character) {
            Some((end, fits)) => fits.then_some(end),
            None => (character == '[').then_some(at + 1),
        },
        '\\' if at + 1 < pattern.len() => (pattern[at + 1] == character).then_some(at + 2),
        literal => (literal == character).then_some(at + 1),
    }
}

/// A `[...]`: where it ends, and whether the character is in it. None if it never ends.
fn bracket(pattern: &[char], start: usize, character: char) -> Option<(usize, bool)> {
    let mut at = start + 1;
    let negated = matches!(pattern.get(at), Some('!' | '^'));
    at += usize::from(negated);
    let mut found = false;
    let mut first = true;
    loop {
        let low = *pattern.get(at)?;
        if low == ']' && !first {
            return Some((at + 1, found != negated));
        }
        first = false;
        at += 1;
        match (pattern.get(at), pattern.get(at + 1)) {
            (Some('-'), Some(&high)) if high != ']' => {
                found |= (low..=high).contains(&character);
                at += 2;
            }
            _ => found |= low == character,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    // covers: CONF-06
    #[test]
    fn patterns_fit_as_the_shells_do() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "anything/at.all"),
            ("sock*", "sockperf"),
            ("*perf", "sockperf"),
            ("*o*p*", "sockperf"),
            ("i?erf[23]", "iperf3"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[^a]x", "bx"),
            ("[]x]", "]"),
            ("[a-]", "-"),
            ("\\*", "*"),
            ("[ab", "[ab"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "x"),
            ("sock", "sockperf"),
            ("?", ""),
            ("[a-c]", "d"),
            ("\\*", "x"),
            ("a*b", "ac"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = "*a".repeat(50) + "b";
        assert!(!matches(&pattern, &"a".repeat(2000)));
    }
}
