//! Ctrl-C ends the program between two reports, not in the middle of one.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGINT;

/// Told of SIGINT from here on.
pub struct Interrupt(UnixStream);

impl Interrupt {
    pub fn new() -> io::Result<Interrupt> {
        // The second one ends us at once: the first is not seen while nobody reads our output.
        let first = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register_conditional_shutdown(SIGINT, 0, Arc::clone(&first))?;
        signal_hook::flag::register(SIGINT, first)?;
        let (here, there) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(SIGINT, there)?;
        Ok(Interrupt(here))
    }

    /// Waits so long; true if Ctrl-C came.
    pub fn sleep(&mut self, time: Duration) -> io::Result<bool> {
        let end = Instant::now() + time;
        loop {
            // Zero would be for ever.
            let rest = end.saturating_duration_since(Instant::now()).max(LEAST);
            self.0.set_read_timeout(Some(rest))?;
            match self.0.read(&mut [0]) {
                Ok(bytes) => return Ok(bytes > 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // By a signal: if it was ours, there is now something to read.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

const LEAST: Duration = Duration::from_micros(1);
