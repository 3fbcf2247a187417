//! What is done when.
//!
//! ```text
//! Idle --first connection--> Asked --answer--> Registered
//!                              |                   |
//!                              +---> Absent <------+     from where it is tried again
//! ```
//!
//! The daemon is called only if its socket is there: without one no file is made and no descriptor is
//! opened. What came to an end because the process leaves, or may leave, is `Away` and `Over`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use libvma_dev::agent::{Accepted, Init, State, VERSION, exit, library_version};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::files::Files;
use super::link::{Identity, Link, find};
use super::notice::{self, Reason};
use super::{MILLISECOND, PATIENCE, SECOND, Source};
use crate::log::log_line;
use crate::sys::time::monotonic_nanos;
use crate::sys::wait::{PollFd, ppoll};
use crate::sys::{fd, thread};

/// How long the daemon may take to answer.
const ANSWER: u64 = 3 * SECOND;
/// How often the daemon's socket is looked at, whether it is another one's by now.
const LOOK: u64 = SECOND;
/// How often a daemon is called that did not answer.
const AGAIN: u64 = 10 * SECOND;
/// Changes of so long are told together: many connections of a busy server do not last that long.
const GATHER: u64 = 2 * MILLISECOND;
/// Messages in one go: the internal thread has other work.
const MOST_AT_ONCE: usize = 1024;
/// An exec that has not happened by now has failed.
const EXEC_FAILED: u64 = SECOND;

pub struct Session {
    directory: PathBuf,
    daemon: PathBuf,
    process: i32,
    phase: Phase,
    /// The daemon is to be called though there is no connection.
    is_wanted: bool,
    /// The daemon that answered last takes connections over IPv6.
    takes_ipv6: bool,
    /// Ours, once the daemon was reached.
    own: Option<Own>,
    /// The daemon's, when it was called last.
    called: Option<Identity>,
    /// When the daemon's socket is to be looked at.
    next_look: u64,
    /// Messages that were not sent yet.
    unsent: VecDeque<State>,
    /// First this process is to be introduced again.
    anew: bool,
    /// The daemon has to read before there is room.
    blocked: bool,
    /// Somebody has waited for that in vain: nobody else does before it reads again.
    impatient: bool,
    /// There may be more to take, though nothing is new.
    more: bool,
    /// When changes are to be told.
    next_send: u64,
    /// It was said that there is no daemon.
    said: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There was no connection yet.
    Idle,
    /// The daemon was called at this time, and has not answered.
    Asked(u64),
    Registered,
    /// It was called at this time in vain, or has gone.
    Absent(u64),
    /// Since this time another program may take the process over.
    Away(u64),
    /// The process ends.
    Over,
}

struct Own {
    link: Link,
    files: Files,
}

/// What [`Session::settle`] has come to.
pub enum Settled {
    Done,
    /// Wait for this.
    Not(PollFd),
}

impl Session {
    pub fn new(directory: &str, daemon: &Path) -> Session {
        Session {
            directory: fd::absolute(directory).into(),
            daemon: daemon.to_owned(),
            process: thread::process_id(),
            phase: Phase::Idle,
            is_wanted: false,
            takes_ipv6: false,
            own: None,
            called: None,
            next_look: 0,
            unsent: VecDeque::new(),
            anew: false,
            blocked: false,
            impatient: false,
            more: false,
            next_send: 0,
            said: false,
        }
    }

    /// Does the daemon know of this process, and take its connections of the family?
    pub fn is_heard(&self, is_ipv6: bool) -> bool {
        self.phase == Phase::Registered && (self.takes_ipv6 || !is_ipv6)
    }

    /// The daemon is to know of this process before there is a connection. True: the internal thread is to be woken for that.
    pub fn want(&mut self) -> bool {
        let is_out_of_touch = matches!(self.phase, Phase::Idle | Phase::Absent(_));
        is_out_of_touch && !core::mem::replace(&mut self.is_wanted, true)
    }

    /// What the internal thread is to wait for.
    pub fn awaits(&self) -> PollFd {
        let talks = matches!(self.phase, Phase::Asked(_) | Phase::Registered);
        let fd = self.own.as_ref().filter(|_| talks).map_or(-1, |own| own.link.raw());
        let room = if self.blocked { libc::POLLOUT } else { 0 };
        PollFd { fd, events: libc::POLLIN | room, revents: 0 }
    }

    /// When there is something to do though nothing happens; None: never.
    pub fn due(&self, source: &impl Source) -> Option<u64> {
        let news = source.has_news() || self.is_wanted;
        match self.phase {
            Phase::Idle => news.then_some(0),
            Phase::Asked(since) => Some(since.saturating_add(ANSWER)),
            Phase::Registered if (news || self.more) && !self.blocked => Some(self.next_send),
            Phase::Registered | Phase::Absent(_) => {
                (news || source.has_connections()).then_some(self.next_look)
            }
            Phase::Away(since) => Some(since.saturating_add(EXEC_FAILED)),
            Phase::Over => None,
        }
    }

    pub fn attend(&mut self, readable: bool, source: &mut impl Source) {
        let now = monotonic_nanos();
        if readable {
            self.hear(now, source);
        }
        match self.phase {
            Phase::Idle if source.has_news() || self.is_wanted => {
                source.note_news();
                self.call(now, source);
            }
            Phase::Asked(since) if now >= since.saturating_add(ANSWER) => {
                self.fail(now, source, &Reason::Unreachable(Errno::TIMEDOUT));
            }
            Phase::Registered => {
                if now >= self.next_look {
                    self.look(now, source);
                }
                let due = source.has_news() || self.more || self.blocked;
                if due && now >= self.next_send {
                    self.send(source);
                }
            }
            Phase::Absent(called) if now >= self.next_look => {
                self.next_look = now.saturating_add(LOOK);
                source.note_news();
                let there = find(&self.daemon);
                let again = there != self.called || now >= called.saturating_add(AGAIN);
                // Without one, whoever wants it asks again.
                self.is_wanted &= there.is_some();
                let is_needed = source.has_connections() || self.is_wanted;
                if again && there.is_some() && is_needed {
                    self.call(now, source);
                }
            }
            Phase::Away(since) if now >= since.saturating_add(EXEC_FAILED) => {
                self.phase = Phase::Absent(0);
                self.next_look = now;
                self.called = None;
            }
            _ => {}
        }
    }

    /// Somebody has waited for the daemon in vain.
    pub fn lose_patience(&mut self) {
        self.impatient = self.blocked;
    }

    /// Has the daemon know of all connections that are over.
    pub fn settle(&mut self, source: &mut impl Source) -> Settled {
        while self.phase == Phase::Registered
            && (self.anew || !self.unsent.is_empty() || source.has_ended())
        {
            self.send(source);
            if self.blocked && self.impatient {
                return Settled::Done;
            }
            if self.blocked {
                return Settled::Not(PollFd { events: libc::POLLOUT, ..self.awaits() });
            }
        }
        Settled::Done
    }

    pub fn withdraw(&mut self, source: &mut impl Source) {
        if self.phase != Phase::Idle {
            self.leave(source);
            self.phase = Phase::Away(monotonic_nanos());
        }
    }

    pub fn end(&mut self, source: &mut impl Source) {
        self.leave(source);
        self.phase = Phase::Over;
    }

    fn leave(&mut self, source: &mut impl Source) {
        self.silence(source);
        let Some(own) = self.own.take() else { return };
        if matches!(self.phase, Phase::Asked(_) | Phase::Registered) {
            own.say_exit(self.process);
        }
        own.files.remove();
    }

    /// Calls the daemon and introduces this process.
    fn call(&mut self, now: u64, source: &mut impl Source) {
        self.called = find(&self.daemon);
        self.is_wanted = false;
        match self.introduce() {
            Ok(()) => self.phase = Phase::Asked(now),
            Err(reason) => self.fail(now, source, &reason),
        }
    }

    fn introduce(&mut self) -> Result<(), Reason> {
        if self.called.is_none() {
            return Err(Reason::Unreachable(Errno::NOENT));
        }
        let own = match &mut self.own {
            Some(own) => {
                own.link.call(&self.daemon).map_err(Reason::Unreachable)?;
                own
            }
            none => {
                let link = Link::open().map_err(Reason::Unreachable)?;
                link.call(&self.daemon).map_err(Reason::Unreachable)?;
                let files = Files::make(&self.directory, self.process, &link);
                none.insert(Own { link, files: files.map_err(Reason::NoFile)? })
            }
        };
        own.introduce(self.process).map_err(Reason::Unreachable)
    }

    /// Reads what the daemon says: the answer to the introduction, and nothing else.
    fn hear(&mut self, now: u64, source: &mut impl Source) {
        let mut buffer = [0; 64];
        while let Some(own) = &self.own {
            match own.link.receive(&mut buffer) {
                Ok(message) => {
                    let answer = Init::accepts(message, self.process);
                    if let (Phase::Asked(_), Some(accepted)) = (self.phase, answer) {
                        return self.answered(now, accepted, source);
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(errno) => return self.lose(now, errno, source),
            }
        }
    }

    fn answered(&mut self, now: u64, accepted: Accepted, source: &mut impl Source) {
        if accepted.version < VERSION {
            return self.fail(now, source, &Reason::Version(accepted.version));
        }
        self.phase = Phase::Registered;
        self.takes_ipv6 = accepted.takes_ipv6;
        self.next_look = now.saturating_add(LOOK);
        self.said = false;
        source.listen();
        log_line!(Debug, "vmad knows this process");
        self.send(source);
    }

    /// Is the daemon still the one that we are connected to?
    fn look(&mut self, now: u64, source: &mut impl Source) {
        self.next_look = now.saturating_add(LOOK);
        if find(&self.daemon) != self.called {
            self.lose(now, Errno::CONNREFUSED, source);
        }
    }

    /// Tells what has changed, as far as the daemon has room.
    fn send(&mut self, source: &mut impl Source) {
        if self.phase != Phase::Registered {
            return;
        }
        (self.blocked, self.more) = (false, false);
        let sent = match self.anew {
            true => self.send_introduction(),
            false => self.try_send(source),
        };
        let now = monotonic_nanos();
        self.next_send = now.saturating_add(GATHER);
        self.impatient &= matches!(sent, Err(Errno::AGAIN));
        match sent {
            Ok(Sent::All) => {}
            Ok(Sent::Part) => (self.more, self.next_send) = (true, now),
            // Room is the next thing that happens.
            Err(Errno::AGAIN) => (self.blocked, self.next_send) = (true, now),
            Err(errno) => self.lose(now, errno, source),
            Ok(Sent::Introduction) => (self.anew, self.phase) = (false, Phase::Asked(now)),
            Ok(Sent::Anew) => {
                self.silence(source);
                self.anew = true;
                self.send(source);
            }
        }
    }

    fn try_send(&mut self, source: &mut impl Source) -> Result<Sent, Errno> {
        let Some(own) = &self.own else { return Ok(Sent::All) };
        for _ in 0..MOST_AT_ONCE {
            if self.unsent.is_empty() {
                source.note_news();
                if !source.take(self.process, &mut self.unsent) {
                    return Ok(Sent::Anew);
                }
            }
            let Some(state) = self.unsent.front() else { return Ok(Sent::All) };
            // The original's daemon would take the message for a mistake.
            if self.takes_ipv6 || !state.is_ipv6() {
                own.link.send(state.to_wire().as_bytes())?;
            }
            self.unsent.pop_front();
        }
        Ok(Sent::Part)
    }

    /// To the daemon, whoever introduces himself again has no connections.
    fn send_introduction(&self) -> Result<Sent, Errno> {
        self.own.as_ref().map_or(Ok(()), |own| own.introduce(self.process))?;
        Ok(Sent::Introduction)
    }

    /// The daemon has gone: the next one is called as soon as it is there. Our files stay.
    fn lose(&mut self, now: u64, errno: Errno, source: &mut impl Source) {
        log_line!(Debug, "vmad has gone: {errno}");
        self.silence(source);
        self.phase = Phase::Absent(now);
        self.next_look = now;
    }

    /// There is no daemon, or none that we can use: our files go.
    fn fail(&mut self, now: u64, source: &mut impl Source, reason: &Reason) {
        self.silence(source);
        if let Some(own) = self.own.take() {
            own.files.remove();
        }
        self.phase = Phase::Absent(now);
        self.next_look = now.saturating_add(LOOK);
        if !core::mem::replace(&mut self.said, true) {
            notice::give(reason, &self.daemon);
        }
    }

    fn silence(&mut self, source: &mut impl Source) {
        source.stop();
        self.unsent.clear();
        (self.anew, self.blocked, self.more) = (false, false, false);
    }
}

enum Sent {
    All,
    /// There may be more.
    Part,
    /// There was no room for all changes.
    Anew,
    Introduction,
}

impl Own {
    fn introduce(&self, process: i32) -> Result<(), Errno> {
        self.link.send(introduction(process).to_wire().as_bytes())
    }

    /// The daemon must not take the end for a death: it is worth a moment.
    fn say_exit(&self, process: i32) {
        let patience = monotonic_nanos().saturating_add(PATIENCE);
        while self.link.send(exit(process).as_bytes()) == Err(Errno::AGAIN) {
            let left = patience.saturating_sub(monotonic_nanos());
            if left == 0 {
                return;
            }
            let mut entry = [PollFd { fd: self.link.raw(), events: libc::POLLOUT, revents: 0 }];
            let _ = ppoll(&mut entry, Some(left), None);
        }
    }
}

fn introduction(process: i32) -> Init {
    let mut numbers = [0; 3];
    let version = env!("CARGO_PKG_VERSION").split(['.', '-', '+']);
    for (number, text) in numbers.iter_mut().zip(version) {
        *number = text.parse().unwrap_or(0);
    }
    let [major, minor, revision] = numbers;
    let library = library_version(major, minor, revision, 0);
    Init { pid: process, version: VERSION, status: 0, library }
}
