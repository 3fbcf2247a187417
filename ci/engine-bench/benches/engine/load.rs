//! What is measured: one load on one setup, by every contestant that can.

use std::time::Duration;

use engine_bench::{CHUNK_LEN, Contestant, Copies, Libvma, Lwip, MESSAGE_LEN, Setup, Smoltcp};
use rustix::time::{ClockId, clock_gettime};

/// Of send buffer, receive buffer and window: four of the largest segments.
const WINDOW: u32 = 256 << 10;

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    setup: Setup,
    is_bulk: bool,
}

impl Race {
    pub fn round_trips() -> Race {
        let setup =
            Setup { mtu: 1500, window: WINDOW, checksums: false, timestamps: false, idle: 0 };
        Race { setup, is_bulk: false }
    }

    pub fn bulk(mtu: u16) -> Race {
        let race = Race::round_trips();
        Race { setup: Setup { mtu, ..race.setup }, is_bulk: true }
    }

    pub fn with_checksums(self, checksums: bool) -> Race {
        Race { setup: Setup { checksums, ..self.setup }, ..self }
    }

    pub fn with_timestamps(self) -> Race {
        Race { setup: Setup { timestamps: true, ..self.setup }, ..self }
    }

    pub fn with_idle(self, idle: usize) -> Race {
        Race { setup: Setup { idle, ..self.setup }, ..self }
    }

    /// Everything but the idle connections, which are compared with themselves.
    pub fn all() -> Vec<Race> {
        let mut races = vec![Race::round_trips()];
        races.extend([1500, 9000, 65_535].map(Race::bulk));
        let with_checksums = races.clone().into_iter().map(|race| race.with_checksums(true));
        races.extend(with_checksums.collect::<Vec<_>>());
        races.push(Race::round_trips().with_timestamps());
        races.push(Race::bulk(1500).with_timestamps());
        races
    }

    pub fn name(&self) -> String {
        let what = match self.mtu_of_bulk() {
            None => format!("{MESSAGE_LEN} B round trips"),
            Some(mtu) => format!("bulk, MTU {mtu}"),
        };
        let checksums = if self.setup.checksums { ", checksums" } else { "" };
        let timestamps = if self.setup.timestamps { ", timestamps" } else { "" };
        format!("{what}{checksums}{timestamps}")
    }

    /// None: round trips.
    pub fn mtu_of_bulk(&self) -> Option<u16> {
        self.is_bulk.then_some(self.setup.mtu)
    }

    /// How often the faster of the others libvma is to be, if that was set.
    pub fn goal(&self) -> Option<f64> {
        let is_alike = !self.setup.checksums && !self.setup.timestamps;
        is_alike.then_some(if self.is_bulk { 1.2 } else { 1.5 })
    }

    pub fn contestants(&self) -> Vec<Entry> {
        let mut all = vec![Entry::new::<Libvma>("libvma"), Entry::new::<Smoltcp>("smoltcp")];
        if !self.setup.timestamps {
            all.push(Entry { is_alone: true, ..Entry::new::<Lwip>("lwIP") });
        }
        all
    }

    /// What the copies alone take. Not where they are sums as well, or segments carry more than data.
    pub fn floor(&self) -> Option<Entry> {
        let is_plain = self.is_bulk && !self.setup.checksums && !self.setup.timestamps;
        is_plain.then(|| Entry::new::<Copies>("copies"))
    }

    /// `seconds` per step as people know it.
    pub fn describe(&self, seconds: f64) -> String {
        match self.is_bulk {
            true => format!("{:.1} Gb/s", 8e-9 / seconds),
            false => format!("{:.2} M/s", 1e-6 / seconds),
        }
    }
}

/// A contestant and how to start it.
pub struct Entry {
    pub name: &'static str,
    pub open: fn(&Race) -> Box<dyn Contestant>,
    /// There can only be one pair at a time.
    pub is_alone: bool,
}

impl Entry {
    fn new<C: Contestant + 'static>(name: &'static str) -> Entry {
        Entry { name, open: open::<C>, is_alone: false }
    }
}

pub fn open<C: Contestant + 'static>(race: &Race) -> Box<dyn Contestant> {
    Box::new(C::open(&race.setup))
}

/// The program on both endpoints, with its buffers.
pub struct Load {
    is_bulk: bool,
    source: Vec<u8>,
    sink: Vec<u8>,
    /// Round trips or bytes that are run at once.
    pub step: u64,
}

impl Load {
    pub fn new(race: &Race) -> Load {
        let source = (0..CHUNK_LEN).map(|index| (index * 7 + index / 256) as u8).collect();
        let step = if race.is_bulk { 16 << 20 } else { 100 };
        Load { is_bulk: race.is_bulk, source, sink: vec![0; CHUNK_LEN], step }
    }

    /// Runs `count` round trips, or moves as many bytes.
    pub fn run(&mut self, pair: &mut dyn Contestant, count: u64) {
        if !self.is_bulk {
            let message = self.source.first_chunk().expect("a longer buffer");
            return pair.round_trips(message, count);
        }
        self.sink.fill(0);
        pair.bulk(&self.source, &mut self.sink, count);
        let whole = self.source.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        assert!(self.source[..whole] == self.sink[..whole], "other bytes arrived than were sent");
    }
}

pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
