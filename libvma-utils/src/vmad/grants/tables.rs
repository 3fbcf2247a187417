//! The tables that a ring's programs read: which datagrams they lead to the ring, and which ones they let the process send.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, anyhow};
use aya::Ebpf;
use aya::maps::{Array, HashMap as Table, MapData, SockMap};

use super::flows::{End, Key, SocketKey, Tables};
use super::ring::{array, map, table};
use super::shown::Shown;
use super::stand_ins::StandIns;
use super::{Place, Refused};

/// Protocol number of UDP.
const UDP: u8 = 17;

/// Values of `flows5` and `flows3`: ours, of every peer.
const OURS: u32 = 1;

/// In the place of a stand-in, as in the programs.
const STRANGER: [u8; 4] = [0xff; 4];
/// BPF_NOEXIST.
const NO_EXIST: u64 = 1;

/// Keys as the programs put them together: addresses, or their stand-ins, and ports in the order of the wire. The destination, and with
/// the peer.
type Three = [u8; 8];
type Five = [u8; 16];

pub struct ProgramTables {
    three: Table<MapData, Three, u32>,
    five: Table<MapData, Five, u32>,
    stand_ins: Table<MapData, [u8; 16], [u8; 4]>,
    sources: Table<MapData, Three, u32>,
    places: Table<MapData, SocketKey, u32>,
    epoch: Array<MapData, u64>,
    pub shown: Shown,
    names: StandIns,
    /// The flows that the programs have.
    led: HashMap<Key, (Three, Option<Five>)>,
    ended: u64,
    strangers: u32,
}

impl ProgramTables {
    /// The tables of a loaded object, for the ring of a connection's place.
    ///
    /// # Errors
    /// In words: of the object, and of making a thread.
    pub fn of(object: &mut Ebpf, place: &Place) -> anyhow::Result<ProgramTables> {
        Ok(ProgramTables {
            three: table(object, "flows3")?,
            five: table(object, "flows5")?,
            stand_ins: table(object, "stand_ins")?,
            sources: table(object, "sources")?,
            places: table(object, "places")?,
            epoch: array(object, "epoch")?,
            shown: Shown::start(place, SockMap::try_from(map(object, "sockets")?)?)?,
            names: StandIns::default(),
            led: HashMap::new(),
            ended: 0,
            strangers: 0,
        })
    }

    /// Datagrams of a peer without a flow are the kernel's: how many such peers there are, about.
    pub fn leave_to_kernel(&mut self, peer: Ipv6Addr) -> u32 {
        // Frames of one may be under way, which counts once. A peer that a flow names has a stand-in there.
        if self.stand_ins.insert(peer.octets(), STRANGER, NO_EXIST).is_ok() {
            self.strangers += 1;
            self.end_epoch();
        }
        self.strangers
    }

    /// From here on the programs do not trust what they remember of the tables.
    fn end_epoch(&mut self) {
        self.ended += 1;
        if let Err(error) = self.epoch.set(0, self.ended, 0) {
            log::error!("a ring's program is not told of a change: {error}");
        }
    }

    /// Has the programs know the addresses of a flow: its keys.
    fn name(&mut self, flow: &Key) -> anyhow::Result<(Three, Option<Five>)> {
        let own = self.take(flow.0)?;
        let peer = match flow.1.map(|peer| self.take(peer)).transpose() {
            Ok(peer) => peer,
            Err(error) => {
                self.give_back(flow.0);
                return Err(error);
            }
        };
        Ok((three(own), peer.map(|peer| five(peer, own))))
    }

    fn take(&mut self, (address, port): End) -> anyhow::Result<Name> {
        let name = self.names.take(address).with_context(|| {
            format!("other addresses of the ring have all stand-ins of {address}")
        })?;
        if let IpAddr::V6(real) = address
            && let Err(error) = self.stand_ins.insert(real.octets(), name.octets(), 0)
        {
            self.give_back((address, port));
            return Err(error.into());
        }
        Ok((name.octets(), port.to_be_bytes()))
    }

    fn give_back(&mut self, (address, _): End) {
        if let Some(unused) = self.names.give_back(address) {
            // An entry that is not there is gone, as it should be.
            let _ = self.stand_ins.remove(&unused.octets());
        }
    }
}

impl Tables for ProgramTables {
    fn lead(&mut self, flow: &Key) -> anyhow::Result<()> {
        let keys = match self.led.get(flow) {
            Some(keys) => *keys,
            None => self.name(flow)?,
        };
        self.led.insert(*flow, keys);
        match keys {
            (_, Some(five)) => self.five.insert(five, OURS, 0),
            (three, None) => self.three.insert(three, OURS, 0),
        }?;
        // Its addresses may have been without stand-ins.
        self.end_epoch();
        Ok(())
    }

    fn leave(&mut self, flow: &Key) {
        let Some(keys) = self.led.remove(flow) else { return };
        // An entry that is not there is gone, as it should be.
        let _ = match keys {
            (_, Some(five)) => self.five.remove(&five),
            (three, None) => self.three.remove(&three),
        };
        flow.1.into_iter().chain([flow.0]).for_each(|end| self.give_back(end));
        self.end_epoch();
    }

    fn let_send(&mut self, source: &End, place: Option<u32>) -> anyhow::Result<()> {
        let (address, port) = *source;
        let known =
            self.names.known(address).map(|name| three((name.octets(), port.to_be_bytes())));
        match (known, place) {
            (Some(key), Some(place)) => self.sources.insert(key, place, 0)?,
            // An entry that is not there is gone, as it should be.
            (Some(key), None) => _ = self.sources.remove(&key),
            (None, Some(_)) => anyhow::bail!("no flow of the ring has {address}"),
            (None, None) => {}
        }
        Ok(())
    }

    fn mark(&mut self, socket: &SocketKey, place: u32, again: bool) -> Result<(), Refused> {
        self.shown.mark(place, again)?;
        self.places.insert(socket, place, 0).map_err(|error| {
            self.forget(socket, place);
            Refused::failed(&anyhow!(error).context("the socket cannot be found"))
        })
    }

    fn forget(&mut self, socket: &SocketKey, place: u32) {
        let _ = self.places.remove(socket);
        self.shown.clear(place);
    }
}

/// An address, or its stand-in, and a port.
type Name = ([u8; 4], [u8; 2]);

fn three(([a, b, c, d], [p, q]): Name) -> Three {
    [a, b, c, d, p, q, UDP, 0]
}

fn five(([a, b, c, d], [p, q]): Name, ([e, f, g, h], [r, s]): Name) -> Five {
    let [t, u, v, w] = u32::from(UDP).to_ne_bytes();
    [a, b, c, d, e, f, g, h, p, q, r, s, t, u, v, w]
}
