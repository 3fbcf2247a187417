//! The log in a file: a time in UTC, the process, the text, one line each.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub struct LogFile(File);

impl LogFile {
    /// Appends to `path`, which is made with mode 0640: the log names users' processes and peers.
    pub fn open(path: &Path) -> io::Result<LogFile> {
        OpenOptions::new().append(true).create(true).mode(0o640).open(path).map(LogFile)
    }

    pub fn write(&mut self, text: &str) -> io::Result<()> {
        let now = OffsetDateTime::now_utc();
        let now = now.replace_millisecond(now.millisecond()).unwrap_or(now);
        // Fails for years of five digits only.
        let now = now.format(&Rfc3339).unwrap_or_default();
        // One call: lines of two processes do not mix.
        self.0.write_all(format!("{now} vmad[{}]: {text}\n", std::process::id()).as_bytes())
    }
}
