//! The log of the system: syslog(3), facility LOCAL5, as the original.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use syslog::{Facility, Formatter3164, Logger, LoggerBackend};

use super::Gravity;

pub struct System {
    socket: PathBuf,
    logger: Logger<LoggerBackend, Formatter3164>,
    /// The syslog daemon did not read; until then no line waits for it.
    hurried: Option<Instant>,
    /// Lines that it did not take.
    lost: u64,
}

/// How long a line waits for a syslog daemon that does not read: its queue holds some ten lines on many
/// systems, fewer than we say at once at a start.
const WAIT: Duration = Duration::from_millis(50);

/// How long no line waits after one has waited in vain: the daemon has other things to do.
const HURRY: Duration = Duration::from_secs(5);

impl System {
    pub fn connect(socket: &Path) -> io::Result<System> {
        let logger = logger(socket)?;
        Ok(System { socket: socket.to_owned(), logger, hurried: None, lost: 0 })
    }

    /// Tells it; once more after a new connection, as the syslog daemon may have been restarted. What
    /// one that hangs does not take is lost, and counted.
    ///
    /// # Errors
    /// If there is no syslog daemon any more.
    pub fn write(&mut self, gravity: Gravity, line: String) -> io::Result<()> {
        if self.hurried.is_some_and(|end| end <= Instant::now()) {
            self.hurry(None)?;
        }
        if self.lost > 0 {
            let lost = self.lost;
            let line = format!("{}{lost} lines were lost here", Gravity::Warning.prefix());
            if self.send(Gravity::Warning, line).is_ok() {
                self.lost = 0;
            }
        }
        let sent = match self.send(gravity, line.clone()) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                self.logger = logger(&self.socket)?;
                self.hurried = None;
                self.send(gravity, line)
            }
            sent => sent,
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.lost += 1;
                self.hurry(Some(Instant::now() + HURRY))
            }
            sent => sent,
        }
    }

    fn hurry(&mut self, until: Option<Instant>) -> io::Result<()> {
        self.hurried = until;
        if let LoggerBackend::Unix(socket) = &self.logger.backend {
            socket.set_nonblocking(until.is_some())?;
        }
        Ok(())
    }

    fn send(&mut self, gravity: Gravity, line: String) -> io::Result<()> {
        let logger = &mut self.logger;
        // The priorities of the original: one less than the name says.
        let sent = match gravity {
            Gravity::Fatal => logger.alert(line),
            Gravity::Error => logger.err(line),
            Gravity::Warning => logger.warning(line),
            Gravity::Information => logger.notice(line),
            Gravity::Debug | Gravity::Trace => logger.info(line),
        };
        sent.map_err(into_io)
    }
}

fn logger(socket: &Path) -> io::Result<Logger<LoggerBackend, Formatter3164>> {
    let formatter = Formatter3164 {
        facility: Facility::LOG_LOCAL5,
        hostname: None,
        process: "vmad".into(),
        pid: std::process::id(),
    };
    let logger = syslog::unix_custom(formatter, socket).map_err(into_io)?;
    if let LoggerBackend::Unix(socket) = &logger.backend {
        socket.set_write_timeout(Some(WAIT))?;
    }
    Ok(logger)
}

fn into_io(error: syslog::Error) -> io::Error {
    match error {
        syslog::Error::Io(error) | syslog::Error::Write(error) => error,
        syslog::Error::Initialization(error) => match error.downcast::<syslog::Error>() {
            Ok(error) => into_io(*error),
            Err(error) => io::Error::other(error),
        },
    }
}
