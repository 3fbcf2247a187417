//! The daemon at work: what it opens, in which order, its one loop, and its end.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::endpoint::Endpoint;
use crate::grants::Grants;
use crate::instance::{Instance, Refused};
use crate::logging::{Limit, Logging};
use crate::namespace::Namespaces;
use crate::notify_dir::NotifyDir;
use crate::options::Given;
use crate::privileges;
use crate::registry::Registry;
use crate::resets::Resets;
use crate::serve::{BUFFER, REFUSALS, Served};
use crate::service::Service;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::traffic::Traffic;

pub struct Daemon {
    given: Given,
    settings: Settings,
    logging: Logging,
    epoll: OwnedFd,
    signals: Signals,
    served: Served,
    service: Service,
    /// If the configuration grants anything.
    grants: Option<Grants>,
    // Dropped in this order: when the lock is free, the socket is gone.
    endpoint: Endpoint,
    _instance: Instance,
}

/// What an event is about; processes are their number, which is positive.
mod token {
    pub const SOCKET: u64 = u64::MAX;
    pub const RESETS: u64 = u64::MAX - 1;
    pub const SIGNAL: u64 = u64::MAX - 2;
}

impl Daemon {
    /// Opens everything, in an order in which nothing of another daemon is touched before the lock is
    /// held, and nobody can send before all is ready.
    pub fn start(given: Given, settings: Settings, logging: Logging) -> Result<Daemon, Refused> {
        // First, so that whoever ends a start ends it orderly.
        let signals = Signals::new()
            .map_err(|error| Refused::Failed(format!("cannot catch signals: {error}")))?;
        let instance = Instance::take(&settings.lock_file, &settings.pid_file)?;
        Daemon::open(given, settings, logging, signals, instance)
            .map_err(|error| Refused::Failed(format!("{error:#}")))
    }

    fn open(
        given: Given,
        settings: Settings,
        logging: Logging,
        signals: Signals,
        instance: Instance,
    ) -> anyhow::Result<Daemon> {
        privileges::check()?;
        let notify_dir = NotifyDir::open(&settings.notify_dir)?;
        notify_dir.tidy()?;
        let resets = Resets::new(settings.retry_interval, settings.force_rst)
            .context("cannot make what resets connections")?;
        let served = Served {
            registry: Registry::new(settings.max_processes),
            namespaces: Namespaces::new(),
            resets,
            traffic: Traffic::new(),
            notify_dir,
            max_sockets: settings.max_sockets,
            refusals: Limit::new(REFUSALS.0, REFUSALS.1),
        };
        let endpoint = Endpoint::open(&settings.socket)?;
        let grants = match settings.grants.is_empty() {
            true => None,
            false => {
                privileges::check_for_grants();
                let rules = settings.grants.clone();
                Some(Grants::open(&settings.grant_socket, rules, &settings.lock_file)?)
            }
        };
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let daemon = Daemon {
            given,
            settings,
            logging,
            epoll,
            signals,
            served,
            service: Service::new(),
            grants,
            endpoint,
            _instance: instance,
        };
        daemon.watch(daemon.endpoint.fd(), token::SOCKET)?;
        daemon.watch(daemon.served.resets.fd(), token::RESETS)?;
        for signal in daemon.signals.fds() {
            daemon.watch(signal, token::SIGNAL)?;
        }
        Ok(daemon)
    }

    /// Serves until a signal ends it.
    ///
    /// # Errors
    /// If the loop cannot wait any more.
    pub fn run(mut self) -> anyhow::Result<()> {
        log::info!("serving on {}", self.settings.socket.display());
        log::debug!("starting loop ...");
        self.say_ready();
        let end = self.serve();
        self.service.stopping();
        // The original leaves them; but nobody would know of them any more.
        self.served.traffic.remove_all();
        end
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        let mut room = [MaybeUninit::<Event>::uninit(); 64];
        loop {
            let now = Instant::now();
            self.service.alive(now);
            self.served.tell_refusals(now);
            let timeout = self.timeout(now);
            let events = match epoll::wait(&self.epoll, &mut room, timeout.as_ref()) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).context("cannot wait for messages"),
            };
            let mut dead = Vec::new();
            let mut datagrams = false;
            for event in &*events {
                match event.data.u64() {
                    token::SOCKET => datagrams = true,
                    token::RESETS | token::SIGNAL => {}
                    pid => dead.extend(i32::try_from(pid)),
                }
            }
            // Before the deaths: what a process told last counts.
            if datagrams || !dead.is_empty() {
                self.receive();
            }
            for pid in dead {
                // It may have a successor of the same number by now.
                if self.served.registry.get(pid).is_some_and(|process| process.peer.is_dead()) {
                    self.served.bury(pid);
                }
            }
            self.served.resets.progress();
            if self.signals.take_reload() {
                self.reload();
            }
            if self.signals.take_stop() {
                return Ok(());
            }
        }
    }

    /// Takes what is in the socket's queue, but not for ever: others must have their turn.
    fn receive(&mut self) {
        let mut buffer = [0; BUFFER];
        for _ in 0..DATAGRAMS {
            let datagram = match self.endpoint.receive(&mut buffer) {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return,
                Err(error) => {
                    log::error!("cannot receive: {error}");
                    return;
                }
            };
            let Some(pid) = self.served.obey(&self.endpoint, &datagram, &buffer) else { continue };
            let Some(process) = self.served.registry.get(pid) else { continue };
            let key = u64::try_from(pid).unwrap_or_default();
            if let Err(error) = self.watch(process.peer.as_fd(), key) {
                log::error!("process {pid} cannot be watched: {error}");
                self.served.registry.remove(pid);
            }
        }
    }

    fn watch(&self, descriptor: impl AsFd, key: u64) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, descriptor, EventData::new_u64(key), EventFlags::IN)
    }

    fn timeout(&self, now: Instant) -> Option<Timespec> {
        let deadlines = [self.service.deadline(), self.served.refusals.deadline()];
        let next = deadlines.into_iter().flatten().min()?;
        // A little later: never a moment too early, and again and again.
        let wait = next.saturating_duration_since(now) + Duration::from_millis(1);
        Timespec::try_from(wait).ok()
    }

    fn say_ready(&self) {
        self.service.ready(&format!("Serving on {}", self.settings.socket.display()));
    }

    /// Reads the configuration again. What is wrong changes nothing.
    fn reload(&mut self) {
        self.service.reloading();
        match Settings::load(&self.given) {
            Ok(new) => {
                self.logging.change(&new);
                self.served.resets.set_retry_interval(new.retry_interval);
                self.served.resets.set_force_rst(new.force_rst);
                if let Some(grants) = &self.grants {
                    grants.set_rules(new.grants.clone());
                }
                let waiting = new.differing_at_start(&self.settings);
                log::info!("configuration read again");
                if !waiting.is_empty() {
                    log::warn!("a restart is needed for a change of {}", waiting.join(", "));
                }
                // What needs a restart stays as it is, also for the next comparison.
                self.settings = Settings {
                    log_level: new.log_level,
                    log_target: new.log_target,
                    log_file: new.log_file,
                    syslog_socket: new.syslog_socket,
                    force_rst: new.force_rst,
                    retry_interval: new.retry_interval,
                    grants: match self.grants {
                        Some(_) => new.grants,
                        None => self.settings.grants.clone(),
                    },
                    ..self.settings.clone()
                };
                self.settings.tell();
            }
            Err(error) => log::error!("configuration not changed: {error:#}"),
        }
        self.say_ready();
    }
}

/// In one turn; the socket's queue holds fewer (net.unix.max_dgram_qlen) unless somebody floods it.
const DATAGRAMS: usize = 1024;
