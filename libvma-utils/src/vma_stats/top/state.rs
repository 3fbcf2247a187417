//! What the view shows besides the numbers: the order, the chosen socket, how far it is scrolled.

use std::cmp::Ordering;
use std::time::Duration;

use super::rows::{Rate, Rows, SocketKey, SocketRow};
use crate::sample::Sample;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Quit,
    ByPackets,
    ByBytes,
    ByDrops,
    ByName,
    Reverse,
    Pause,
    Help,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Packets,
    Bytes,
    Drops,
    Name,
}

/// What there is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// No process was there yet.
    None,
    Some,
    /// There was one.
    Ended,
}

pub struct State {
    pub rows: Rows,
    pub sort: Sort,
    pub reverse: bool,
    pub paused: bool,
    pub help: bool,
    pub presence: Presence,
    pub interval: Duration,
    /// Index of the chosen socket and what it is recognized by.
    pub chosen: usize,
    key: Option<SocketKey>,
    /// The first socket on the screen, and how many there is room for: the drawing sets them.
    pub top: usize,
    pub page: usize,
}

impl State {
    pub fn new(interval: Duration) -> State {
        State {
            rows: Rows::default(),
            sort: Sort::Packets,
            reverse: false,
            paused: false,
            help: false,
            presence: Presence::None,
            interval,
            chosen: 0,
            key: None,
            top: 0,
            page: 1,
        }
    }

    pub fn update(&mut self, samples: &[Sample]) {
        self.rows = Rows::of(samples);
        self.presence = match (samples.is_empty(), self.presence) {
            (false, _) => Presence::Some,
            (true, Presence::None) => Presence::None,
            (true, _) => Presence::Ended,
        };
        self.arrange();
    }

    pub fn press(&mut self, key: Key) {
        let last = self.rows.sockets.len().saturating_sub(1);
        match key {
            Key::Quit => {}
            Key::ByPackets => self.sort_by(Sort::Packets),
            Key::ByBytes => self.sort_by(Sort::Bytes),
            Key::ByDrops => self.sort_by(Sort::Drops),
            Key::ByName => self.sort_by(Sort::Name),
            Key::Reverse => {
                self.reverse = !self.reverse;
                self.arrange();
            }
            Key::Pause => self.paused = !self.paused,
            Key::Help => self.help = !self.help,
            Key::Up => self.choose(self.chosen.saturating_sub(1)),
            Key::Down => self.choose((self.chosen + 1).min(last)),
            Key::PageUp => self.choose(self.chosen.saturating_sub(self.page)),
            Key::PageDown => self.choose((self.chosen + self.page).min(last)),
            Key::First => {
                // The first line, whichever socket comes there.
                self.chosen = 0;
                self.key = None;
            }
            Key::Last => self.choose(last),
        }
    }

    /// Makes room for so many sockets, with the chosen one among them.
    pub fn fit(&mut self, page: usize) {
        self.page = page.max(1);
        let most = self.rows.sockets.len().saturating_sub(self.page);
        let lowest = (self.chosen + 1).saturating_sub(self.page);
        self.top = self.top.clamp(lowest, self.chosen.max(lowest)).min(most);
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.reverse = false;
        self.arrange();
    }

    fn choose(&mut self, index: usize) {
        self.chosen = index;
        self.key = self.rows.sockets.get(index).map(|socket| socket.key);
    }

    /// Puts the sockets into order. The choice follows the socket that was chosen by hand; it stays
    /// in its line if that socket is gone.
    fn arrange(&mut self) {
        let (sort, reverse) = (self.sort, self.reverse);
        self.rows.sockets.sort_by(|one, other| {
            let order = compare(sort, one, other);
            if reverse { order.reverse() } else { order }
        });
        let sockets = &self.rows.sockets;
        let found = self.key.and_then(|key| sockets.iter().position(|socket| socket.key == key));
        if found.is_none() {
            self.key = None;
        }
        self.chosen = found.unwrap_or(self.chosen).min(sockets.len().saturating_sub(1));
    }
}

/// The busiest first; names from A to Z.
fn compare(sort: Sort, one: &SocketRow, other: &SocketRow) -> Ordering {
    let sum = |one: Rate, other: Rate| one.unwrap_or(0.0) + other.unwrap_or(0.0);
    let measure = |socket: &SocketRow| match sort {
        Sort::Packets => sum(socket.rx_packets, socket.tx_packets),
        Sort::Bytes => sum(socket.rx_bytes, socket.tx_bytes),
        Sort::Drops => socket.drops.unwrap_or(0.0),
        Sort::Name => 0.0,
    };
    let by_rate = measure(other).total_cmp(&measure(one));
    // So that what is equal does not change places from cycle to cycle.
    by_rate.then_with(|| (&one.name, one.key).cmp(&(&other.name, other.key)))
}
