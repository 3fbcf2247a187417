//! The rules in one network namespace: which qdiscs, tables and filters the kernel has because of
//! us, and what has to be made or removed for one rule more or less.
//!
//! An ingress qdisc that was there before is used and left behind; in it, filters get priorities
//! that nobody else has, behind those that somebody chose. One of our own goes with the last rule
//! of its interface, unless somebody added filters to it. When an interface vanishes, its rules
//! vanish with it; that is no error. Rules that a killed daemon left are cleared away where an
//! interface is used again and their TAP is gone.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use libvma_dev::agent::FlowKind;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::tc::TcMessage;
use rustix::io::Errno;

use super::Rule;
use super::rules::{self, Handle, Place, What};
use crate::namespace::Namespace;
use crate::netlink::{Netlink, Refused};

/// The index of `lo` in every namespace (`LOOPBACK_IFINDEX`).
pub const LOOPBACK: u32 = 1;

/// What we made in one namespace.
pub struct Network {
    kernel: Netlink,
    interfaces: HashMap<u32, Interface>,
    /// The namespace is known by its identity, which must not come to name another one.
    _namespace: Rc<Namespace>,
}

/// What we made on one interface.
struct Interface {
    name: String,
    /// Whether the ingress qdisc is ours.
    ours: bool,
    /// The priority that filters of a class have.
    priorities: HashMap<u16, u16>,
    tables: HashMap<(FlowKind, Ipv4Addr), Table>,
    /// Tables without filters. The kernel frees the way into a table some time after it says so,
    /// and only then lets the table be deleted; until then it may serve again.
    idle: Vec<Handle>,
    rules: HashMap<Rule, Vec<Handle>>,
}

/// A hash table and the filter that leads to it.
struct Table {
    table: Handle,
    link: Handle,
    flows: usize,
}

/// How long the kernel gets to free what leads to a table in a qdisc that is not ours: a grace period
/// of RCU is some 10 ms.
const GRACE: Duration = Duration::from_millis(200);

impl Network {
    /// # Errors
    /// Of setns(2) and the netlink socket.
    pub fn open(namespace: &Rc<Namespace>) -> anyhow::Result<Self> {
        let kernel = namespace.inside(Netlink::open)??;
        Ok(Self { kernel, interfaces: HashMap::new(), _namespace: Rc::clone(namespace) })
    }

    /// Frames are led to TAPs only: a wrong index must not send a host's traffic somewhere.
    ///
    /// # Errors
    /// If there is no such interface, or it is something else.
    pub fn check_tap(&mut self, tap: u32) -> anyhow::Result<()> {
        let link = self.link(tap)?;
        let is_tap = link.attributes.iter().any(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => infos.contains(&LinkInfo::Kind(InfoKind::Tun)),
            _ => false,
        });
        if !is_tap {
            bail!("interface {tap} ({}) is no TAP", name(&link));
        }
        Ok(())
    }

    /// A 5-tuple whose peer is this host comes by `lo` and by nothing else.
    ///
    /// # Errors
    /// Of netlink.
    pub fn skips(&mut self, rule: &Rule) -> anyhow::Result<bool> {
        let peer = *rule.peer.ip();
        Ok(rule.interface != LOOPBACK
            && !peer.is_unspecified()
            && (peer.is_loopback() || self.addresses(None)?.contains(&peer)))
    }

    /// Makes a rule that is not there.
    ///
    /// # Errors
    /// The kernel's, with the interface. Then nothing is left of it.
    pub fn place(&mut self, rule: Rule) -> anyhow::Result<()> {
        let index = rule.filtered();
        for lost in self.ensure_ingress(index)? {
            if let Err(error) = self.try_to_place(lost) {
                log::error!("a rule that somebody removed cannot be made again: {error:#}");
            }
        }
        let result = self.try_to_place(rule);
        if self.interfaces.get(&index).is_some_and(|interface| interface.rules.is_empty()) {
            self.leave(index);
        }
        result
    }

    /// Removes a rule. What the kernel does not have any more is no error.
    ///
    /// # Errors
    /// The kernel's, with the interface.
    pub fn remove(&mut self, rule: &Rule) -> anyhow::Result<()> {
        let index = rule.filtered();
        let Some(interface) = self.interfaces.get_mut(&index) else { return Ok(()) };
        let Some(handles) = interface.rules.remove(rule) else { return Ok(()) };
        let mut result = Ok(());
        for handle in handles {
            result = result.and(self.delete(index, handle).map(drop));
        }
        if rule.kind != FlowKind::Egress {
            self.leave_table(index, (rule.kind, *rule.local.ip()));
        }
        if self.interfaces.get(&index).is_some_and(|interface| interface.rules.is_empty()) {
            self.leave(index);
        } else {
            self.drop_idle_tables(index);
        }
        result
    }

    fn try_to_place(&mut self, rule: Rule) -> anyhow::Result<()> {
        let index = rule.filtered();
        let mut handles = Vec::new();
        let result = match rule.kind {
            FlowKind::Egress => self.place_egress(&rule, &mut handles),
            _ => self.place_flow(&rule, &mut handles),
        };
        let name = match self.interfaces.get_mut(&index) {
            Some(interface) if result.is_ok() => {
                interface.rules.insert(rule, handles);
                return result;
            }
            Some(interface) => interface.name.clone(),
            None => format!("interface {index}"),
        };
        for handle in handles {
            if let Err(error) = self.delete(index, handle) {
                log::error!("{name}: taking a half-made rule back: {error:#}");
            }
        }
        result.context(name)
    }

    fn place_flow(&mut self, rule: &Rule, handles: &mut Vec<Handle>) -> anyhow::Result<()> {
        let index = rule.interface;
        let key = (rule.kind, *rule.local.ip());
        let table = self.enter_table(index, key)?;
        let place = Place { interface: index, priority: table.priority };
        let message = rules::flow(place, table.word, rule.kind, rule.local, rule.peer, rule.tap);
        match self.create(message).context("filter of the flow") {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                self.leave_table(index, key);
                return Err(error);
            }
        }
        Ok(())
    }

    /// What the TAP sends to the interface's own addresses goes to `lo`, everything else out.
    fn place_egress(&mut self, rule: &Rule, handles: &mut Vec<Handle>) -> anyhow::Result<()> {
        const OWN_ADDRESSES: u16 = 1;
        const EVERYTHING: u16 = 2;
        let tap = rule.tap;
        let addresses = self.addresses(Some(rule.interface))?;
        self.link(rule.interface)?;
        // First what comes last: where the kernel chooses priorities, each is before those it chose
        // earlier.
        let place = self.place_of(tap, EVERYTHING);
        let handle = self.create(rules::everything(place, rule.interface))?;
        self.learn(tap, EVERYTHING, handle);
        handles.push(handle);
        for address in addresses {
            let place = self.place_of(tap, OWN_ADDRESSES);
            let handle = self.create(rules::to_address(place, address, LOOPBACK))?;
            self.learn(tap, OWN_ADDRESSES, handle);
            handles.push(handle);
        }
        Ok(())
    }

    /// The table for an address, made if it is not there, with one flow more.
    fn enter_table(&mut self, index: u32, key: (FlowKind, Ipv4Addr)) -> anyhow::Result<Handle> {
        let class = key.0 as u16;
        if let Some(interface) = self.interfaces.get_mut(&index)
            && let Some(table) = interface.tables.get_mut(&key)
        {
            table.flows += 1;
            return Ok(table.table);
        }
        let place = self.place_of(index, class);
        let table = match self.take_idle(index, place.priority) {
            Some(table) => table,
            None => self.create(rules::table(place)).context("hash table")?,
        };
        self.learn(index, class, table);
        let place = self.place_of(index, class);
        let link = self.create(rules::link(place, table.word, key.1));
        let Some(interface) = self.interfaces.get_mut(&index) else {
            bail!("interface {index} is not in use");
        };
        match link {
            Ok(link) => {
                interface.tables.insert(key, Table { table, link, flows: 1 });
                Ok(table)
            }
            Err(error) => {
                interface.idle.push(table);
                self.drop_idle_tables(index);
                Err(error.context("way into the hash table"))
            }
        }
    }

    /// One flow less; without flows nothing leads to the table any more.
    fn leave_table(&mut self, index: u32, key: (FlowKind, Ipv4Addr)) {
        let Some(interface) = self.interfaces.get_mut(&index) else { return };
        let Some(table) = interface.tables.get_mut(&key) else { return };
        table.flows -= 1;
        if table.flows > 0 {
            return;
        }
        let Table { table, link, .. } = interface.tables.remove(&key).expect("just seen");
        interface.idle.push(table);
        if let Err(error) = self.delete(index, link) {
            log::error!("interface {index}: way into a hash table: {error:#}");
        }
    }

    fn take_idle(&mut self, index: u32, priority: u16) -> Option<Handle> {
        let idle = &mut self.interfaces.get_mut(&index)?.idle;
        let at = idle.iter().position(|table| table.priority == priority)?;
        Some(idle.swap_remove(at))
    }

    /// Deletes tables that nothing leads to; those whose time has not come stay.
    fn drop_idle_tables(&mut self, index: u32) {
        let Some(interface) = self.interfaces.get_mut(&index) else { return };
        let idle = std::mem::take(&mut interface.idle);
        let busy: Vec<Handle> = idle
            .into_iter()
            .filter(|table| match self.delete(index, *table) {
                Ok(done) => !done,
                Err(error) => {
                    log::error!("interface {index}: hash table: {error:#}");
                    false
                }
            })
            .collect();
        if let Some(interface) = self.interfaces.get_mut(&index) {
            interface.idle = busy;
        }
        self.drop_empty_priorities(index);
    }

    /// The kernel keeps the list of a priority without filters.
    fn drop_empty_priorities(&mut self, index: u32) {
        let Some(interface) = self.interfaces.get_mut(&index) else { return };
        let tables = interface.tables.values().map(|table| &table.table);
        let used: BTreeSet<u16> = interface
            .rules
            .values()
            .flatten()
            .chain(&interface.idle)
            .chain(tables)
            .map(|handle| handle.priority)
            .collect();
        let empty: Vec<u16> = interface
            .priorities
            .values()
            .copied()
            .filter(|priority| !used.contains(priority))
            .collect();
        interface.priorities.retain(|_, priority| used.contains(priority));
        for priority in empty {
            if let Err(error) = self.delete(index, Handle { priority, word: 0 }) {
                log::error!("interface {index}: empty priority {priority}: {error:#}");
            }
        }
    }

    /// Sees to an ingress qdisc. Rules that we had on the interface but that somebody removed with
    /// the qdisc are returned.
    fn ensure_ingress(&mut self, index: u32) -> anyhow::Result<BTreeSet<Rule>> {
        let name = match self.interfaces.get(&index) {
            Some(interface) => interface.name.clone(),
            None => name(&self.link(index)?),
        };
        let message = Message::NewQueueDiscipline(rules::qdisc(index));
        let ours = match self.kernel.ask(message.clone(), NLM_F_CREATE | NLM_F_EXCL) {
            Ok(_) => true,
            Err(error) if errno(&error) == Some(Errno::EXIST) => {
                !self.interfaces.contains_key(&index) && self.take_over(index, &name, message)?
            }
            Err(error) => return Err(error.context(format!("{name}: ingress qdisc"))),
        };
        let mut lost = BTreeSet::new();
        match self.interfaces.get(&index) {
            Some(_) if !ours => return Ok(lost),
            Some(interface) => {
                log::warn!(
                    "{name}: somebody removed the ingress qdisc with our rules; making it again"
                );
                lost.extend(interface.rules.keys().copied());
            }
            None if !ours => {
                log::info!("{name} has an ingress qdisc of somebody else; adding filters to it")
            }
            None => {}
        }
        let interface = Interface {
            name,
            ours,
            priorities: HashMap::new(),
            tables: HashMap::new(),
            idle: Vec::new(),
            rules: HashMap::new(),
        };
        self.interfaces.insert(index, interface);
        Ok(lost)
    }

    /// Clears away what a daemon that was killed left behind: filters that lead to a TAP which does
    /// not exist any more, so that nobody gets those packets. If there is nothing else in the
    /// qdisc, it was that daemon's, is made anew and ours.
    fn take_over(&mut self, index: u32, name: &str, qdisc: Message) -> anyhow::Result<bool> {
        let told = match self.kernel.dump(Message::GetTrafficFilter(rules::all(index))) {
            Ok(told) => told,
            // A filter of somebody else's that cannot be understood must not keep us from ours.
            Err(error) => {
                log::warn!("{name}: its filters cannot be listed: {error:#}");
                return Ok(false);
            }
        };
        let mut dead = Vec::new();
        let mut alive = false;
        for message in told {
            let Message::NewTrafficFilter(filter) = message else { continue };
            match rules::what(&filter) {
                What::Ours { target } if self.link(target).is_err_and(|error| is_gone(&error)) => {
                    dead.push(rules::made(&filter));
                }
                What::WayToOthers => {}
                What::Ours { .. } | What::Other => alive = true,
            }
        }
        if dead.is_empty() {
            return Ok(false);
        }
        log::warn!("{name}: removing {} rules of a vmad that was killed", dead.len());
        if alive {
            for handle in dead {
                self.delete(index, handle)?;
            }
            return Ok(false);
        }
        gone(self.kernel.ask(Message::DelQueueDiscipline(rules::qdisc(index)), 0))?;
        self.kernel.ask(qdisc, NLM_F_CREATE | NLM_F_EXCL)?;
        Ok(true)
    }

    /// The last rule of an interface is gone: what was made for rules goes, too.
    fn leave(&mut self, index: u32) {
        let Some(interface) = self.interfaces.get(&index) else { return };
        let name = interface.name.clone();
        if interface.ours && !self.has_others_filters(index) {
            let gone = gone(self.kernel.ask(Message::DelQueueDiscipline(rules::qdisc(index)), 0));
            if let Err(error) = gone {
                log::error!("{name}: removing the ingress qdisc: {error:#}");
            }
        } else {
            self.leave_others_qdisc(index, &name);
        }
        self.interfaces.remove(&index);
    }

    /// Empties the qdisc of what is ours, while the kernel frees the ways into our tables.
    fn leave_others_qdisc(&mut self, index: u32, name: &str) {
        let end = Instant::now() + GRACE;
        loop {
            self.drop_idle_tables(index);
            if self.interfaces.get(&index).is_none_or(|interface| interface.idle.is_empty()) {
                return;
            }
            if Instant::now() > end {
                log::warn!("{name}: the kernel keeps an empty hash table of ours");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether somebody added filters of other priorities to a qdisc of ours.
    fn has_others_filters(&mut self, index: u32) -> bool {
        let Some(interface) = self.interfaces.get(&index) else { return false };
        let ours: BTreeSet<u16> = interface.priorities.values().copied().collect();
        match self.kernel.dump(Message::GetTrafficFilter(rules::all(index))) {
            Ok(told) => told.iter().any(|message| match message {
                Message::NewTrafficFilter(filter) => !ours.contains(&rules::made(filter).priority),
                _ => false,
            }),
            Err(error) if is_gone(&error) => false,
            Err(error) => {
                log::warn!("{}: its filters cannot be listed: {error:#}", interface.name);
                true
            }
        }
    }

    /// Where filters of a class go: in our own qdisc the priority is the class.
    fn place_of(&self, index: u32, class: u16) -> Place {
        let priority = self.interfaces.get(&index).map_or(class, |interface| {
            let fresh = if interface.ours { class } else { 0 };
            interface.priorities.get(&class).copied().unwrap_or(fresh)
        });
        Place { interface: index, priority }
    }

    fn learn(&mut self, index: u32, class: u16, handle: Handle) {
        if let Some(interface) = self.interfaces.get_mut(&index) {
            interface.priorities.insert(class, handle.priority);
        }
    }

    fn create(&mut self, message: TcMessage) -> anyhow::Result<Handle> {
        let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ECHO;
        let told = self.kernel.ask(Message::NewTrafficFilter(message), flags)?;
        told.iter()
            .find_map(|message| match message {
                Message::NewTrafficFilter(filter) => Some(rules::made(filter)),
                _ => None,
            })
            .context("the kernel does not say which filter it made")
    }

    /// Whether it is gone now; not if it is still in use.
    fn delete(&mut self, index: u32, handle: Handle) -> anyhow::Result<bool> {
        let message = Message::DelTrafficFilter(rules::existing(index, handle));
        match self.kernel.ask(message, 0) {
            Err(error) if errno(&error) == Some(Errno::BUSY) => Ok(false),
            result => gone(result).map(|()| true),
        }
    }

    fn link(&mut self, index: u32) -> anyhow::Result<LinkMessage> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        let told = self
            .kernel
            .ask(Message::GetLink(request), 0)
            .with_context(|| format!("interface {index}"))?;
        told.into_iter()
            .find_map(|message| match message {
                Message::NewLink(link) => Some(link),
                _ => None,
            })
            .with_context(|| format!("the kernel says nothing about interface {index}"))
    }

    /// The IPv4 addresses of an interface, or of all.
    fn addresses(&mut self, index: Option<u32>) -> anyhow::Result<BTreeSet<Ipv4Addr>> {
        let told = self.kernel.dump(Message::GetAddress(AddressMessage::default()))?;
        let mut addresses = BTreeSet::new();
        for message in told {
            let Message::NewAddress(address) = message else { continue };
            if index.is_some_and(|index| index != address.header.index) {
                continue;
            }
            // On a point-to-point link `Address` is the other end.
            addresses.extend(address.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(std::net::IpAddr::V4(address)) => Some(*address),
                _ => None,
            }));
        }
        Ok(addresses)
    }
}

fn name(link: &LinkMessage) -> String {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })
        .unwrap_or_else(|| format!("interface {}", link.header.index))
}

/// What is to be removed and is not there any more: somebody deleted it (ENOENT), or the whole
/// qdisc (EINVAL), or the interface vanished (ENODEV).
fn is_gone(error: &anyhow::Error) -> bool {
    matches!(errno(error), Some(Errno::NOENT | Errno::INVAL | Errno::NODEV))
}

fn gone<T>(result: anyhow::Result<T>) -> anyhow::Result<()> {
    match result {
        Err(error) if is_gone(&error) => {
            log::debug!("it is gone already: {error:#}");
            Ok(())
        }
        result => result.map(drop),
    }
}

fn errno(error: &anyhow::Error) -> Option<Errno> {
    error.downcast_ref::<Refused>().map(|refused| refused.errno)
}
