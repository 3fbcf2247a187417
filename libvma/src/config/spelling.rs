//! Variables that look like parameters and are none.

use super::params;

/// What to say of a variable with this name; None if there is nothing wrong with it.
pub fn complaint(name: &str) -> Option<String> {
    if !name.starts_with("VMA_") || params::find(name).is_some() {
        return None;
    }
    Some(match nearest(name) {
        Some(meant) => format!("{name} is not a parameter; did you mean {meant}?"),
        None => format!("{name} is not a parameter"),
    })
}

/// The parameter whose name takes the fewest changes, if these are few.
fn nearest(name: &str) -> Option<&'static str> {
    let upper = name.to_ascii_uppercase();
    let names = params::all().map(|param| param.name);
    let (changes, nearest) = names.map(|it| (strsim::osa_distance(&upper, it), it)).min()?;
    // A fifth of what follows the prefix; two, unless it is very short.
    let len = name.len() - "VMA_".len();
    (changes <= (len / 5).max(2).min(len / 2)).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_gets_a_suggestion() {
        let said = |name| complaint(name).unwrap_or_default();
        assert_eq!(said("VMA_RX_POL"), "VMA_RX_POL is not a parameter; did you mean VMA_RX_POLL?");
        assert!(said("VMA_TRACE_LEVEL").ends_with("did you mean VMA_TRACELEVEL?"));
        assert!(said("VMA_INTERNAL_THREAD_AFINITIY").contains("VMA_INTERNAL_THREAD_AFFINITY"));
        assert_eq!(said("VMA_SOMETHING_ELSE"), "VMA_SOMETHING_ELSE is not a parameter");
        assert_eq!(said("VMA_"), "VMA_ is not a parameter");
    }

    #[test]
    fn names_of_the_table_and_of_others_are_passed_over() {
        for name in ["VMA_RX_POLL", "VMA_POLL", "LOG_COLORS", "PATH", "XLIO_X"] {
            assert_eq!(complaint(name), None);
        }
    }
}
