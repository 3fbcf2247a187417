//! The way into the background: one fork, before there is a thread or a descriptor, and a pipe by which
//! the parent learns how the start went. So a script that has started the daemon can use it at once.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::process::ExitCode;

use anyhow::Context;
use fork::Fork;
use rustix::fs::{Mode, OFlags};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::complain;
use crate::instance::Refused;

/// Where this process is now.
pub enum Side {
    /// In the background; the start's result is to be told.
    Child(Report),
    /// In the foreground, with its exit status.
    Parent(ExitCode),
}

/// To the parent. Dropped without a word it says that the daemon died.
pub struct Report(PipeWriter);

const READY: u8 = b'R';
const RUNNING: u8 = b'B';
const FAILED: u8 = b'F';

/// Forks. The child has its own session, is in `/`, and its standard descriptors are /dev/null.
pub fn enter() -> anyhow::Result<Side> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    match fork::fork().context("cannot fork")? {
        Fork::Parent(_) => {
            drop(writer);
            Ok(Side::Parent(wait(reader)))
        }
        Fork::Child => {
            drop(reader);
            let report = Report(writer);
            match detach() {
                Ok(()) => Ok(Side::Child(report)),
                Err(error) => {
                    report.refused(&Refused::Failed(format!("{error:#}")));
                    Ok(Side::Parent(ExitCode::FAILURE))
                }
            }
        }
    }
}

impl Report {
    pub fn ready(self) {
        self.tell(READY, "");
    }

    pub fn refused(self, why: &Refused) {
        match why {
            Refused::Running(text) => self.tell(RUNNING, text),
            Refused::Failed(text) => self.tell(FAILED, text),
        }
    }

    fn tell(mut self, kind: u8, text: &str) {
        let mut message = vec![kind];
        message.extend(text.as_bytes());
        // A parent that was killed need not know.
        let _ = self.0.write_all(&message);
    }
}

fn detach() -> anyhow::Result<()> {
    rustix::process::setsid().context("cannot start a session")?;
    rustix::process::chdir("/").context("cannot go to /")?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .context("cannot open /dev/null")?;
    dup2_stdin(&null).context("cannot let go of stdin")?;
    dup2_stdout(&null).context("cannot let go of stdout")?;
    dup2_stderr(&null).context("cannot let go of stderr")
}

/// The parent's exit status: 0 also if a daemon runs already, which scripts know.
fn wait(mut reader: PipeReader) -> ExitCode {
    let mut message = Vec::new();
    let read = reader.read_to_end(&mut message);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match (read, message.split_first()) {
        (Ok(_), Some((&READY, _))) => ExitCode::SUCCESS,
        (Ok(_), Some((&RUNNING, words))) => {
            complain(&text(words));
            ExitCode::SUCCESS
        }
        (Ok(_), Some((_, words))) => {
            complain(&text(words));
            ExitCode::FAILURE
        }
        _ => {
            complain("the daemon ended before it was ready");
            ExitCode::FAILURE
        }
    }
}
