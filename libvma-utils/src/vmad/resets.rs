//! Peer notification: the peers of a dead process's connections get a RST that they accept.
//!
//! The kernel of this host never knew those connections, so nobody knows their sequence numbers. Their
//! peers do: a SYN in the dead connection's name makes a peer say what it expects next (challenge ACK,
//! RFC 5961 section 4.2), and to that ACK our kernel answers by itself with exactly the RST that the
//! peer accepts, having no such connection (RFC 9293 section 3.10.7.1).
//!
//! Here is what all notifications share: the timetable, the pace, and the descriptor that says when
//! there is something to do. What one peer is told and when is in `notification`, the sockets of one
//! network namespace in `channel`, the bytes in `segment`. Nothing here waits, and there is no
//! descriptor per connection.

mod channel;
mod filter;
mod notification;
mod segment;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::namespace::{Identity, Namespace};
use channel::{Channel, Family, Sent};
use notification::{Due, Notification};

/// All peers that are being told.
pub struct Resets {
    epoll: OwnedFd,
    timer: OwnedFd,
    channels: HashMap<Identity, Channel>,
    /// Who is to be looked at when; of those that ended earlier, entries are left over. The number
    /// makes the key unique and is the notification's ticket.
    due: BTreeMap<(Instant, u64), (Identity, Connection)>,
    tickets: u64,
    /// Nothing is sent before, see [`BURST`].
    pace: Instant,
    retry_interval: Duration,
    force_rst: bool,
    complained: Option<Instant>,
}

/// A dead connection by its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Connection {
    local: SocketAddr,
    peer: SocketAddr,
}

/// At most so many notifications send at one moment, and the next ones [`BREATH`] later: receive
/// queues on the way, our own included, hold some hundred packets, and the daemon has other things to
/// do. 10 000 connections take 80 ms so.
const BURST: usize = 128;
const BREATH: Duration = Duration::from_millis(1);

impl Resets {
    /// `retry_interval` is the pause before the last SYN (see `notification`); with `force_rst` the
    /// RST is sent from here, too, not only by the kernel.
    ///
    /// # Errors
    /// EPERM if the sockets this needs cannot be had, EMFILE and the like. The message says which.
    pub fn new(retry_interval: Duration, force_rst: bool) -> io::Result<Self> {
        channel::probe_privilege()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            timer,
            channels: HashMap::new(),
            due: BTreeMap::new(),
            tickets: 0,
            pace: Instant::now(),
            retry_interval,
            force_rst,
            complained: None,
        })
    }

    /// Readable when [`Resets::progress`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Counts for SYNs that are sent from now on.
    pub fn set_retry_interval(&mut self, interval: Duration) {
        self.retry_interval = interval;
    }

    /// Counts from the next answer on.
    pub fn set_force_rst(&mut self, force: bool) {
        self.force_rst = force;
    }

    /// How many peers are still being told.
    #[cfg(test)]
    fn pending(&self) -> usize {
        self.channels.values().map(|channel| channel.notifications.len()).sum()
    }

    /// Begins to tell `peer` that its connection with `local`, an address of `namespace`, is dead.
    /// What cannot be a connection's ends is ignored: a library may not know them yet.
    pub fn start(&mut self, namespace: &Rc<Namespace>, local: SocketAddr, peer: SocketAddr) {
        let connection = Connection { local, peer };
        if !connection.is_plausible() {
            log::debug!("{connection} is no connection, nobody is notified");
            return;
        }
        let identity = namespace.identity();
        let channel = match self.channels.entry(identity) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Channel::new(namespace)),
        };
        if let Err(error) = channel.open(connection.family(), &self.epoll) {
            self.channels.retain(|_, channel| !channel.notifications.is_empty());
            return self.complain(&error);
        }
        if let Entry::Vacant(vacant) = channel.notifications.entry(connection) {
            self.tickets += 1;
            vacant.insert(Notification::new(self.tickets));
            let key = (Instant::now(), self.tickets);
            self.due.insert(key, (identity, connection));
            // Those that come behind others do not change when the timer is to fire.
            if self.due.first_key_value().is_some_and(|(first, _)| *first == key) {
                self.arm();
            }
        }
    }

    /// Does what there is to do now: reads answers, sends what is due.
    pub fn progress(&mut self) {
        // Clears the timer; it may not have fired.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        for channel in self.channels.values_mut() {
            channel.listen(self.force_rst);
        }
        self.send_what_is_due();
        self.channels.retain(|_, channel| !channel.notifications.is_empty());
        if self.channels.is_empty() {
            self.due.clear();
        }
        self.arm();
    }

    fn send_what_is_due(&mut self) {
        let now = Instant::now();
        if now < self.pace {
            return;
        }
        let mut room = BURST;
        while let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            if room == 0 {
                self.pace = now + BREATH;
                return;
            }
            let ((_, ticket), (identity, connection)) = first.remove_entry();
            let Some(channel) = self.channels.get_mut(&identity) else { continue };
            let Some(notification) = channel.notifications.get_mut(&connection) else { continue };
            if notification.ticket != ticket {
                continue;
            }
            room -= 1;
            let due = notification.due(self.retry_interval);
            let next = match due {
                Due::Send { syn, probe, next } => match channel.say(connection, syn, probe) {
                    Sent::Gone => None,
                    Sent::Yes => Some(next),
                },
                Due::GiveUp => None,
            };
            match next {
                Some(next) => {
                    self.due.insert((now + next, ticket), (identity, connection));
                }
                None => channel.finish(&connection),
            }
        }
    }

    /// Sets the timer to the next moment at which something is to be sent, or stops it.
    fn arm(&mut self) {
        let next = self.due.keys().next().map(|(when, _)| (*when).max(self.pace));
        let delay = match next {
            // Zero would stop it.
            Some(when) => when
                .saturating_duration_since(Instant::now())
                .max(Duration::from_nanos(1))
                .try_into()
                .unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 }),
            None => Timespec::default(),
        };
        let setting = Itimerspec { it_interval: Timespec::default(), it_value: delay };
        if let Err(error) = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting) {
            log::error!("timerfd_settime of peer notification: {error}");
        }
    }

    /// A thousand connections of one process all meet the same error: it is said once a second.
    fn complain(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.complained.is_none_or(|last| now - last >= Duration::from_secs(1)) {
            log::error!("peers cannot be notified: {error}");
            self.complained = Some(now);
        }
    }
}

impl Connection {
    fn is_plausible(&self) -> bool {
        let unicast = |end: &SocketAddr| {
            let ip = end.ip();
            let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
            !(ip.is_unspecified() || ip.is_multicast() || is_broadcast) && end.port() != 0
        };
        let is_of_one_family = self.local.is_ipv4() == self.peer.is_ipv4();
        is_of_one_family && unicast(&self.local) && unicast(&self.peer)
    }

    fn family(&self) -> Family {
        if self.peer.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} -> {}", self.local, self.peer)
    }
}

/// Whether a socket call only says that there is nothing or no room now.
fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error())
}

#[cfg(test)]
mod tests;
