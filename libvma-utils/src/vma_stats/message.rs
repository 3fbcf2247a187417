//! Lines of the tool itself, as scripts know them: those about trouble to stderr, all else to stdout.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// To stdout.
pub fn tell(text: &str) -> io::Result<()> {
    print(&format!("vmastat: {text}\n"))
}

/// The whole terminal shows something else.
static HUSHED: AtomicBool = AtomicBool::new(false);

/// From now on complaints are not written.
pub fn hush() {
    HUSHED.store(true, Ordering::Relaxed);
}

/// To stderr, unless hushed.
pub fn complain(text: &str) {
    if !HUSHED.load(Ordering::Relaxed) {
        complain_anyway(text);
    }
}

/// To stderr, when all else is over. Nobody can be told of a failure.
pub fn complain_anyway(text: &str) {
    let _ = writeln!(io::stderr(), "vmastat: {text}");
}

/// Output that is complete so far, in one piece.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Text that somebody else chose, without what a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}
