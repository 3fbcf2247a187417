//! Rings for processes without privileges: what the daemon grants, to whom, and until when.
//!
//! A process connects and asks for a ring on an interface (`libvma_dev::grant`). The daemon makes what that takes privileges
//! (`ring`), by which the process receives and sends, and keeps all by which it could receive what is not its own: the flows
//! (`flows`), for which the process must show the kernel's socket (`shown`), their tables (`tables`, with `stand_ins` for
//! IPv6), and the programs that look at each frame. `rules` says who may have what; `tap` is the way out, `link` what the kernel tells of an interface. A ring ends with its connection.
//!
//! Each connection has a thread (`client`), and `pace` limits what those of one user do. What a process sends may take long to make, and
//! to close (a descriptor of a file system in user space, a connection that lingers): it waits for itself only. Here is what the threads share.

mod client;
mod flows;
mod link;
mod pace;
mod remains;
pub mod ring;
pub mod rules;
mod shown;
mod stand_ins;
mod tables;
mod tap;
mod who;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use self::pace::Pace;
use self::remains::Remains;
use self::rules::{Rules, Used};
use self::who::Who;
use crate::endpoint::Listener;
use crate::logging::Limit;
use crate::namespace::Identity;
use crate::serve::REFUSALS;

/// Connections at a time, and those of one user beyond its rings.
const MOST_CLIENTS: usize = 1024;
const CALLS: usize = 16;
/// How long the daemon waits where no descriptor is left.
const PAUSE: Duration = Duration::from_millis(20);
/// How often it looks what is left out of the log.
const LOOK: Duration = Duration::from_secs(1);
/// How long it waits for its threads when it ends.
const FAREWELL: Duration = Duration::from_secs(2);
/// Of a thread: what it calls of aya and netlink keeps little there.
const STACK: usize = 512 << 10;

/// Grants rings until it is dropped.
pub struct Grants {
    listener: Arc<Listener>,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// The state that all threads share.
struct Shared {
    state: Mutex<State>,
    /// A connection has ended.
    ended: Condvar,
    /// Readable, and never read, when the daemon ends.
    ending: OwnedFd,
    /// The alias of all TAPs, by which a later daemon finds them.
    alias: String,
}

struct State {
    rules: Rules,
    clients: HashMap<u64, Client>,
    next: u64,
    remains: Vec<Remains>,
    paces: HashMap<u32, Pace>,
    refusals: Limit,
    is_ending: bool,
}

/// A connection, until its last descriptor is closed.
struct Client {
    uid: u32,
    /// Set while the connection has a ring, or one is being made.
    ring: Option<Room>,
}

/// The resources of a ring.
struct Room {
    /// Network namespace and number.
    interface: (Identity, u32),
    memory: u64,
}

/// Why something is not granted: for the process, and for the log.
pub struct Refused {
    pub errno: Errno,
    pub why: String,
}

impl Refused {
    pub fn new(errno: Errno, why: impl Into<String>) -> Refused {
        Refused { errno, why: why.into() }
    }

    /// The kernel refused a call of the daemon.
    pub fn failed(error: &anyhow::Error) -> Refused {
        Refused::new(Errno::IO, format!("{error:#}"))
    }
}

impl Grants {
    /// `lock` is the file that no other daemon has: what one has left behind that was killed is found by its name.
    ///
    /// # Errors
    /// Of the socket, and if no thread can be made.
    pub fn open(path: &Path, rules: Rules, lock: &Path) -> anyhow::Result<Grants> {
        let alias = format!("a ring of vmad {}", lock.display());
        match link::sweep(&alias) {
            Ok(0) => {}
            Ok(count) => log::info!("{count} TAPs of a daemon before this one are deleted"),
            Err(error) => log::warn!("TAPs of a daemon before this one are not found: {error:#}"),
        }
        let listener = Arc::new(Listener::open(path)?);
        let state = State {
            rules,
            clients: HashMap::new(),
            next: 0,
            remains: Vec::new(),
            paces: HashMap::new(),
            refusals: Limit::new(REFUSALS.0, REFUSALS.1),
            is_ending: false,
        };
        let ending = eventfd(0, EventfdFlags::CLOEXEC)?;
        let state = Mutex::new(state);
        let shared = Arc::new(Shared { state, ended: Condvar::new(), ending, alias });
        let accepting = {
            let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
            thread(move || shared.accept_all(&listener)).context("a thread cannot be made")?
        };
        Ok(Grants { listener, shared, accepting: Some(accepting) })
    }

    /// Rings that were granted stay, whatever the rules say now.
    pub fn set_rules(&self, rules: Rules) {
        self.shared.state().rules = rules;
    }
}

impl Drop for Grants {
    /// All rings end. A thread that a process holds up ends with the daemon.
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_ending = true;
        self.listener.end();
        let _ = rustix::io::write(&self.shared.ending, &1_u64.to_ne_bytes());
        let still = |state: &mut State| !state.clients.is_empty();
        let waited = self.shared.ended.wait_timeout_while(state, FAREWELL, still);
        let is_late = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if is_late {
            log::warn!("processes hold up the ends of their rings");
        } else if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Shared>, listener: &Listener) {
        loop {
            self.await_call(listener);
            let connection = match listener.accept() {
                _ if self.state().is_ending => return,
                Ok(None) => continue,
                Ok(Some(connection)) => connection,
                Err(error) => {
                    self.log_refusal(&format!("cannot accept who asks for a ring: {error}"));
                    // The connection waits still, and there is no descriptor for it now.
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            let why = match self.admit(&connection) {
                Ok((number, who)) => {
                    let place = Place(Arc::new(Held { shared: Arc::clone(self), number }));
                    // Without a thread all is dropped.
                    match thread(move || client::serve(&place, connection, who)) {
                        Ok(_) => continue,
                        Err(error) => error.to_string(),
                    }
                }
                Err(why) => {
                    client::refuse(&connection, &Refused::new(Errno::PERM, &why));
                    why
                }
            };
            self.log_refusal(&format!("who asks for a ring is not served: {why}"));
        }
    }

    /// Until somebody calls. Says from time to time how much is left out of the log.
    fn await_call(&self, listener: &Listener) {
        let now = Instant::now();
        let due = {
            let mut state = self.state();
            if let Some(count) = state.refusals.due(now) {
                log::warn!("{count} more refusals of rings and flows");
            }
            // The threads of connections refuse, too, and do not look.
            let soon = (!state.clients.is_empty()).then(|| now + LOOK);
            state.refusals.deadline().into_iter().chain(soon).min()
        };
        let left = due.map(|due| due.saturating_duration_since(now) + Duration::from_millis(1));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // Interrupted: it is asked again.
        let _ = poll(&mut [PollFd::new(&listener.fd(), PollFlags::IN)], left.as_ref());
    }

    /// The number of a connection that gets a thread.
    fn admit(&self, connection: &OwnedFd) -> Result<(u64, Who), String> {
        let who = Who::of(connection).map_err(|error| format!("{error:#}"))?;
        let uid = who.uid;
        let mut state = self.state();
        let own = state.clients.values().filter(|other| other.uid == uid).count();
        if !state.rules.name(&who) {
            return Err(format!("no [[grant]] in vmad.toml names user {uid}"));
        }
        if own >= state.rules.most_rings as usize + CALLS || state.clients.len() >= MOST_CLIENTS {
            return Err(format!(
                "user {uid} has called {own} times, which is the limit (max_rings)"
            ));
        }
        let number = state.next;
        state.next += 1;
        state.clients.insert(number, Client { uid, ring: None });
        Ok((number, who))
    }

    fn log_refusal(&self, why: &str) {
        if self.state().refusals.pass(Instant::now()) {
            log::warn!("{why}");
        }
    }
}

/// Of a connection among the others. It is free when all have dropped it who have something of the connection.
#[derive(Clone)]
struct Place(Arc<Held>);

struct Held {
    shared: Arc<Shared>,
    number: u64,
}

impl Place {
    fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// Takes the room of a ring, before it is made.
    ///
    /// # Errors
    /// As of [`Rules::check`].
    fn reserve(&self, who: &Who, name: &str, room: Room) -> Result<(), Refused> {
        let mut state = self.shared().state();
        state.remains.retain(Remains::are_kept);
        let mut used = Used::default();
        for ring in state.clients.values().filter(|other| other.uid == who.uid) {
            let Some(ring) = &ring.ring else { continue };
            used.rings += 1;
            used.memory += ring.memory;
            used.there += usize::from(ring.interface == room.interface);
        }
        for remains in state.remains.iter().filter(|remains| remains.uid == who.uid) {
            used.rings += 1;
            used.memory += remains.memory;
        }
        state.rules.check(who, name, room.memory, used)?;
        if let Some(client) = state.clients.get_mut(&self.0.number) {
            client.ring = Some(room);
        }
        Ok(())
    }

    /// Does the user have memory of rings that have ended?
    fn has_remains(&self, who: &Who) -> bool {
        self.shared().state().remains.iter().any(|remains| remains.uid == who.uid)
    }

    /// The ring was not made, or has ended and left `remains`.
    fn give_back(&self, remains: Option<Remains>) {
        let mut state = self.shared().state();
        state.remains.extend(remains);
        if let Some(client) = state.clients.get_mut(&self.0.number) {
            client.ring = None;
        }
    }

    /// Waits until the user may ask for something of this cost.
    fn await_turn(&self, uid: u32, cost: u32) {
        let now = Instant::now();
        let wait = self.shared().state().paces.entry(uid).or_insert(Pace::new(now)).take(now, cost);
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    fn most_flows(&self) -> u32 {
        self.shared().state().rules.most_flows
    }

    /// Closes what may take long, in a thread that has the place as long. Is it done within a moment?
    fn close(&self, what: Vec<OwnedFd>) -> bool {
        let place = self.clone();
        let (done, hear) = std::sync::mpsc::channel();
        // Without a thread it is closed here.
        let closing = thread(move || {
            drop(what);
            let _ = done.send(());
            drop(place);
        });
        closing.is_err() || hear.recv_timeout(PAUSE).is_ok()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let uid = state.clients.remove(&self.number).map(|client| client.uid);
        let is_last = state.clients.values().all(|other| Some(other.uid) != uid);
        if let (Some(uid), true) = (uid, is_last) {
            let now = Instant::now();
            let is_rested = |pace: &Pace| pace.is_rested(now);
            state.paces.retain(|other, pace| *other != uid || !is_rested(pace));
        }
        self.shared.ended.notify_all();
    }
}

fn thread(work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("vmad-grant".into()).stack_size(STACK).spawn(work)
}
