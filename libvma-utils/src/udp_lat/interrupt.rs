//! Ctrl-C and SIGTERM end the test, not the program: it still reports.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The longest that a call may wait. One that waits ends when a signal comes, but one that is just about to
/// wait does not know of it.
pub const TICK: Duration = Duration::from_millis(500);

/// Told of both signals from here on.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn new() -> io::Result<Interrupt> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The second one ends us at once: the first is not seen while nobody reads our output.
            flag::register_conditional_shutdown(signal, 1, Arc::clone(&came))?;
            flag::register(signal, Arc::clone(&came))?;
        }
        Ok(Interrupt(came))
    }

    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
