//! One ring that was granted: the steering program at the interface, and the TAP with the program that looks at what is sent
//! (granted.bpf.c). The process gets what it needs to read frames and to write them; the tables stay here.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use anyhow::{Context, ensure};
use aya::maps::{Array, HashMap as Table, Map, MapData, ProgramArray};
use aya::programs::tc::{NlOptions, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader, Pod};
use libvma_dev::grant::{MOST_STRANGERS, Request};
use libvma_dev::ipv6_stand_ins;
use rustix::io::Errno;

use super::flows::{self, Flows, Key, Socket};
use super::link::{self, Link};
use super::shown::Facts;
use super::tables::ProgramTables;
use super::tap::Tap;
use super::{Place, Refused};
use crate::namespace::Namespace;
use crate::netlink::News;

static GRANTED: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/granted.bpf.o"));

/// Bytes of a chunk, and of a slot.
const CHUNK: u64 = 2048;
const SLOT: u64 = 16;

/// Bytes of a ring's other maps and tables, about.
const REST: u64 = 512 << 10;

/// As many rings of all processes may be at one interface: each frame goes through the programs in front of the one that it is for.
const MOST_SHARERS: usize = 8;

/// So many reviews in a row may fail, for lack of descriptors or memory.
const MOST_FAILED: u32 = 5;

pub struct Ring {
    interface: String,
    memory: u64,
    /// Chunks and slots.
    sizes: [u32; 2],
    most_flows: u32,
    /// As the programs know it.
    described: Link,
    /// Datagrams of IPv6 from peers that no flow names are the kernel's.
    closed_to_strangers: bool,
    news: News,
    /// Reviews that failed, one after the other.
    failed: u32,
    flows: Flows,
    programs: Programs,
    tap: Tap,
    /// The number of the TAP's interface.
    way: u32,
    namespace: Rc<Namespace>,
}

/// The programs at the interface's ingress hook, which is detached when this is dropped, and behind the TAP.
struct Programs {
    tables: ProgramTables,
    about: Array<MapData, [u8; 16]>,
    way: Array<MapData, [u8; 40]>,
    chunks: Map,
    slots: Map,
    control: Map,
    bells: Map,
    waiters: Map,
    _gate: ProgramArray<MapData>,
    _object: Ebpf,
}

/// Bytes that a ring takes.
///
/// # Errors
/// EINVAL: there is no such ring.
pub fn memory(asked: &Request) -> Result<u64, Refused> {
    let (chunks, slots) = (asked.chunks, asked.slots);
    if !chunks.is_power_of_two() || !slots.is_power_of_two() || slots > chunks {
        let why = format!("a ring of {chunks} frames and {slots} slots cannot be");
        return Err(Refused::new(Errno::INVAL, why));
    }
    Ok(u64::from(chunks) * CHUNK + u64::from(slots) * SLOT + REST)
}

impl Ring {
    /// # Errors
    /// EINVAL; what the kernel says, in words.
    pub(super) fn open(
        namespace: &Rc<Namespace>,
        interface: &str,
        asked: &Request,
        place: &Place,
    ) -> Result<Ring, Refused> {
        let memory = memory(asked)?;
        let most_flows = place.most_flows();
        Ring::make(namespace, interface, asked, place, most_flows)
            .map(|(tap, way, programs, news)| Ring {
                interface: interface.into(),
                memory,
                sizes: [asked.chunks, asked.slots],
                most_flows,
                described: Link::default(),
                closed_to_strangers: false,
                news,
                failed: 0,
                flows: Flows::default(),
                programs,
                tap,
                way,
                namespace: Rc::clone(namespace),
            })
            .map_err(|error| Refused::failed(&error))
            .and_then(|mut ring| ring.refresh().map(|()| ring))
    }

    fn make(
        namespace: &Namespace,
        interface: &str,
        asked: &Request,
        place: &Place,
        most_flows: u32,
    ) -> anyhow::Result<(Tap, u32, Programs, News)> {
        check_sharers(namespace, interface, 0)?;
        let tap = namespace.inside(Tap::open)?.context("a TAP cannot be made")?;
        let way = link::find(namespace, tap.name())?.index;
        let programs = namespace
            .inside(|| Programs::attach(interface, tap.name(), asked, (place, most_flows)))??;
        // Several may have come at once.
        check_sharers(namespace, interface, 1)?;
        link::start(namespace, way, &place.shared().alias)?;
        Ok((tap, way, programs, namespace.inside(News::open)??))
    }

    pub fn interface(&self) -> &str {
        &self.interface
    }

    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// The descriptors for the process (`libvma_dev::grant::HANDED`).
    pub fn handed(&self) -> [Option<[BorrowedFd<'_>; 2]>; 3] {
        let Programs { chunks, slots, control, bells, waiters, .. } = &self.programs;
        let pair = |one, other| Some([descriptor(one)?, descriptor(other)?]);
        let last = descriptor(control).map(|control| [control, self.tap.as_fd()]);
        [pair(chunks, slots), pair(bells, waiters), last]
    }

    /// The interface has another MAC address or MTU.
    ///
    /// # Errors
    /// In words.
    pub fn refresh(&mut self) -> Result<(), Refused> {
        let link = link::find(&self.namespace, &self.interface);
        let link = link.map_err(|error| Refused::failed(&error))?;
        if ![0, link.index].contains(&self.described.index) {
            return Err(Refused::new(Errno::NODEV, "another interface has the name"));
        }
        self.describe(link).map_err(|error| Refused::failed(&error))
    }

    /// The process has no room for a peer of IPv6, or for any more of them: what comes from there is the kernel's.
    ///
    /// # Errors
    /// EINVAL: the request names no such peer; as of [`Ring::refresh`].
    pub fn leave_to_kernel(&mut self, request: &Request) -> Result<(), Refused> {
        let Some((IpAddr::V6(peer), _)) = request.peer() else {
            return Err(Refused::new(Errno::INVAL, "a peer without room is one of IPv6"));
        };
        if self.closed_to_strangers {
            return Ok(());
        }
        if self.programs.tables.leave_to_kernel(peer) < MOST_STRANGERS {
            return Ok(());
        }
        self.closed_to_strangers = true;
        let told = self.refresh();
        self.closed_to_strangers = told.is_ok();
        told
    }

    fn describe(&mut self, link: Link) -> anyhow::Result<()> {
        let mtu = u16::try_from(link.mtu).unwrap_or(u16::MAX);
        // struct interface, struct way.
        let mut about = [0; 16];
        let mut way = [0; 40];
        for beginning in [&mut about[..8], &mut way[..8]] {
            beginning[..6].copy_from_slice(&link.mac);
            beginning[6..].copy_from_slice(&mtu.to_ne_bytes());
        }
        about[8..].copy_from_slice(&u64::from(self.closed_to_strangers).to_ne_bytes());
        way[8..16].copy_from_slice(&u64::from(link.index).to_ne_bytes());
        way[16..24].copy_from_slice(&u64::from(self.way).to_ne_bytes());
        let [chunks, slots] = self.sizes.map(|size| u64::from(size.saturating_sub(1)));
        way[24..32].copy_from_slice(&chunks.to_ne_bytes());
        way[32..].copy_from_slice(&slots.to_ne_bytes());
        self.programs.way.set(0, way, 0)?;
        self.programs.about.set(0, about, 0)?;
        self.described = link;
        Ok(())
    }

    /// Leads a flow to the process, which has shown the socket that has it.
    ///
    /// # Errors
    /// EDQUOT: it has enough; EACCES: the socket does not have what the flow's datagrams come to; EOPNOTSUPP: such flows are not granted; of
    /// [`Flows::add`].
    pub fn add(&mut self, flow: &Request, shown: Vec<OwnedFd>) -> Result<(), Refused> {
        let key = flows::key(flow);
        let facts = self.programs.tables.shown.look(shown);
        // The flow may be another socket's by now.
        self.forget(&key);
        let most = self.most_flows;
        if self.flows.len() >= most as usize {
            let why = format!("the ring has {most} flows, which is the limit (max_ring_flows)");
            return Err(Refused::new(Errno::DQUOT, why));
        }
        let socket = self.judge(flow, facts?)?;
        self.flows.add(key, &socket, &mut self.programs.tables)
    }

    /// Is the flow one that the kernel would give to the socket that is shown?
    fn judge(&self, flow: &Request, facts: Facts) -> Result<Socket, Refused> {
        let no = |why: String| Err(Refused::new(Errno::ACCESS, why));
        let unserved = |why: String| Err(Refused::new(Errno::OPNOTSUPP, why));
        let (local, port) = flow.local();
        let is_host = match local {
            IpAddr::V4(own) => !own.is_multicast() && !own.is_loopback() && own.octets()[0] != 0,
            IpAddr::V6(own) => ipv6_stand_ins::is_host(own),
        };
        let is_peer = |(peer, _): (IpAddr, u16)| peer.is_ipv4() == local.is_ipv4();
        if port == 0 || !is_host || !flow.peer().is_none_or(is_peer) {
            return unserved(format!("flows to {local}, port {port}, are not granted"));
        }
        let is_here = |file| self.namespace.is_that_of(file).unwrap_or(false);
        if !facts.namespace.as_ref().is_some_and(is_here) {
            return no("the socket shown is none of the process's network".into());
        }
        let Some(bound) = facts.bound_to((local, port)) else {
            return no(format!("the socket shown is not bound to {local}, port {port}"));
        };
        // (A flow of any peer is led by what the kernel says.)
        if facts.peer.is_some() && flow.peer().is_some() && flow.peer() != facts.peer() {
            return no("the socket shown is connected to another peer".into());
        }
        let interface = &self.interface;
        if facts.device.as_ref().is_some_and(|device| device != interface.as_bytes()) {
            return no(format!("the socket shown is bound to another interface than {interface}"));
        }
        // The program behind the TAP cannot tell whether such a socket takes IPv4 (`takes_ipv4` of granted.bpf.c).
        let is_of_any = bound.is_ipv6() && bound.ip().to_canonical().is_unspecified();
        if facts.device.is_some() && is_of_any && local.is_ipv4() {
            let why = "IPv4 of a socket of IPv6 that is bound to an interface is not granted";
            return unserved(why.into());
        }
        // Not one that the host forwards datagrams of, nor broadcast.
        let own =
            link::addresses(&self.namespace, interface).map_err(|error| Refused::failed(&error))?;
        if !own.contains(&local) {
            return unserved(format!("{local} is not an address of {interface}"));
        }
        Ok(Socket {
            key: flows::socket_key(bound, facts.peer),
            cookie: facts.cookie,
            takes_ipv4: facts.takes_ipv4,
        })
    }

    /// Closes what was shown. False: that takes too long.
    pub fn close_shown(&mut self) -> bool {
        self.programs.tables.shown.close()
    }

    /// Nothing of the flow is kept when this returns.
    ///
    /// # Errors
    /// ENOENT: there is no such flow.
    pub fn remove(&mut self, flow: &Request) -> Result<(), Refused> {
        match self.forget(&flows::key(flow)) {
            true => Ok(()),
            false => Err(Refused::new(Errno::NOENT, "the ring has no such flow")),
        }
    }

    fn forget(&mut self, key: &Key) -> bool {
        self.flows.remove(key, &mut self.programs.tables)
    }

    /// Flows rest while their address is none of the interface, and what the programs know of that is brought up to date. False if
    /// the ring cannot be used any more, or nobody can tell.
    pub fn review(&mut self) -> bool {
        self.news.take();
        match self.look() {
            Ok(is_of_use) => {
                self.failed = 0;
                is_of_use
            }
            Err(error) => {
                log::debug!("{}: a ring cannot be reviewed: {error:#}", self.interface);
                self.failed += 1;
                self.failed < MOST_FAILED
            }
        }
    }

    fn look(&mut self) -> anyhow::Result<bool> {
        let Some(link) = link::find_free(&self.namespace, &self.interface)? else {
            return Ok(false);
        };
        if link.index != self.described.index {
            // Another interface has the name.
            return Ok(false);
        }
        if link != self.described {
            self.describe(link)?;
        }
        let own = link::addresses(&self.namespace, &self.interface)?;
        let has = |((address, _), _): &Key| own.contains(address);
        self.flows.let_rest(|flow| !has(flow), &mut self.programs.tables)?;
        Ok(link::may_be_up(&self.namespace, self.way))
    }

    /// Readable when addresses or interfaces are others.
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// The numbers of the maps that the process has.
    pub fn maps(&self) -> Vec<u32> {
        let Programs { chunks, slots, control, bells, waiters, .. } = &self.programs;
        let number = |map: &Map| match map {
            Map::Array(data) => data.info().ok().map(|info| info.id()),
            _ => None,
        };
        [chunks, slots, control, bells, waiters].into_iter().filter_map(number).collect()
    }
}

impl Drop for Ring {
    /// The process may keep its descriptors.
    fn drop(&mut self) {
        let keys: Vec<_> = self.flows.keys().copied().collect();
        keys.iter().for_each(|key| _ = self.forget(key));
        if let Err(error) = link::delete(&self.namespace, self.way) {
            log::error!("{} cannot be deleted: {error:#}", self.tap.name());
        }
    }
}

impl Programs {
    /// The program at the TAP stays as long as the TAP, whatever becomes of the daemon: a TAP without it would be a way into the host.
    fn attach(
        interface: &str,
        tap: &str,
        asked: &Request,
        (place, most_flows): (&Place, u32),
    ) -> anyhow::Result<Programs> {
        let mut object = EbpfLoader::new()
            .map_max_entries("chunks", asked.chunks)
            .map_max_entries("slots", asked.slots)
            .map_max_entries("sockets", most_flows)
            .load(GRANTED)
            .context("the programs of a ring were refused")?;
        let mut gate = ProgramArray::try_from(map(&mut object, "gate")?)?;
        gate.set(0, program(&mut object, "vma_outlet")?.fd()?, 0)?;
        aya::programs::tc::qdisc_add_clsact(tap).with_context(|| format!("clsact of {tap}"))?;
        let at = program(&mut object, "vma_gate")?;
        let options = TcAttachOptions::Netlink(NlOptions::default());
        let link = at.attach_with_options(tap, TcAttachType::Ingress, options)?;
        std::mem::forget(at.take_link(link)?);
        // In front of what is there already.
        let options = TcAttachOptions::TcxOrder(LinkOrder::first());
        program(&mut object, "vma_ingress")?
            .attach_with_options(interface, TcAttachType::Ingress, options)
            .with_context(|| format!("the steering program cannot be attached to {interface}"))?;
        Ok(Programs {
            tables: ProgramTables::of(&mut object, place)?,
            about: array(&mut object, "interface")?,
            way: array(&mut object, "way_of")?,
            chunks: map(&mut object, "chunks")?,
            slots: map(&mut object, "slots")?,
            control: map(&mut object, "control")?,
            bells: map(&mut object, "bells")?,
            waiters: map(&mut object, "waiters")?,
            _gate: gate,
            _object: object,
        })
    }
}

/// Is there room beside the rings of others, `own` of which are this one?
fn check_sharers(namespace: &Namespace, interface: &str, own: usize) -> anyhow::Result<()> {
    let (_, there) = namespace
        .inside(|| SchedClassifier::query_tcx(interface, TcAttachType::Ingress))?
        .context("its tc ingress hook cannot be asked for (Linux 6.6)")?;
    let ours = |name: Option<&str>| name.is_some_and(|name| name == "vma_ingress");
    let others = there.iter().filter(|program| ours(program.name_as_str())).count();
    let others = others.saturating_sub(own);
    ensure!(
        others < MOST_SHARERS,
        "{others} programs have {interface} by the library, which is the limit"
    );
    Ok(())
}

/// A program of an object, loaded.
fn program<'a>(object: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut SchedClassifier> {
    let program = object.program_mut(name).with_context(|| format!("no program {name}"))?;
    let program: &mut SchedClassifier = program.try_into()?;
    program.load().with_context(|| format!("program {name} was refused"))?;
    Ok(program)
}

/// A map of an object, taken out of it.
///
/// # Errors
/// In words: there is none of this name, or of this type.
pub fn map(program: &mut Ebpf, name: &str) -> anyhow::Result<Map> {
    program.take_map(name).with_context(|| format!("no map {name}"))
}

/// As [`map`].
///
/// # Errors
/// As of [`map`].
pub fn array<V: Pod>(program: &mut Ebpf, name: &str) -> anyhow::Result<Array<MapData, V>> {
    Ok(Array::try_from(map(program, name)?)?)
}

/// As [`map`].
///
/// # Errors
/// As of [`map`].
pub fn table<K: Pod, V: Pod>(
    program: &mut Ebpf,
    name: &str,
) -> anyhow::Result<Table<MapData, K, V>> {
    Ok(Table::try_from(map(program, name)?)?)
}

fn descriptor(map: &Map) -> Option<BorrowedFd<'_>> {
    match map {
        Map::Array(data) => Some(data.fd().as_fd()),
        _ => None,
    }
}
