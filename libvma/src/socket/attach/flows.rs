//! Which flows a datagram socket wants, of what interfaces; what rules and other processes' sockets leave to the
//! kernel is not among them. Installing them is `socket::attach`.

use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::{Shown, is_stand_in};
use libvma_dev::ipv6_stand_ins;
use libvma_engine::udp::lookup::Filter;
use libvma_engine::wire::ipv4::protocol;

use super::super::attaching::Need;
use super::super::options::Options;
use super::super::{Plane, Stack, WhyOs};
use super::{interfaces, may_pass, ring};
use crate::config::rules::Moment;
use crate::control::Control;
use crate::log::log_line;
use crate::shard::{Flow, RingId, SocketId};
use crate::sys::loopback_end::Takes;
use crate::sys::sockaddr::Family;

/// Where a socket is, as far as packets find it.
pub struct Place {
    pub shadow: i32,
    pub local: SocketAddrV4,
    pub peer: Option<SocketAddrV4>,
    device: Option<u32>,
    /// Other processes may know it.
    known: bool,
    /// SO_VMA_SHUTDOWN_RX.
    pub receives_by_kernel: bool,
    family: Family,
    takes_ipv6: bool,
    ipv6_only: bool,
    /// The number under which senders of this host know the socket.
    member: u8,
}

impl Place {
    /// None: it has no address.
    pub fn of(stack: &Stack, id: SocketId) -> Result<Option<Place>, WhyOs> {
        let mut state = stack.shard.lock().map_err(|_| WhyOs::Reentered)?;
        let (_, socket) = state.socket(id).ok_or(WhyOs::NotOurs)?;
        Ok(socket.local.map(|local| Place {
            shadow: socket.shadow(),
            local,
            peer: socket.peer,
            device: socket.options.device(),
            known: socket.named || socket.starts_locally,
            receives_by_kernel: socket.options.receives_by_kernel,
            family: socket.family,
            takes_ipv6: socket.family == Family::Ipv6 && socket.takes != Takes::Ipv4,
            ipv6_only: socket.takes == Takes::Ipv6,
            member: socket.member(),
        }))
    }

    /// Which packets are the socket's.
    pub fn filter(&self, options: &Options) -> Filter {
        Filter {
            local: *self.local.ip(),
            port: self.local.port(),
            peer: self.peer.map(|peer| (*peer.ip(), peer.port())),
            device: self.device,
            reuse_port: options.reuse_port,
            member: self.member,
            multicast_all: options.multicast.all,
            ipv6_multicast_all: options.ipv6_multicast.all,
            is_ipv6: self.family == Family::Ipv6,
            ipv6_only: self.ipv6_only,
            ipv4_only: !self.takes_ipv6,
            memberships: options.memberships.clone(),
        }
    }

    /// Other processes of this host reach it, for which it needs no ring of an interface.
    pub fn is_within_host(&self, stack: &Stack, control: &Control) -> bool {
        let own = |address: Ipv4Addr| address.is_loopback() || control.is_known_alike(address);
        let local = *self.local.ip();
        stack.config.local
            && self.device.is_none()
            && (local.is_unspecified() || own(local))
            && self.peer.map_or(self.known, |peer| own(*peer.ip()))
    }

    /// Does the socket take what comes to an address of this family?
    fn takes(&self, address: Ipv4Addr) -> bool {
        if ipv6_stand_ins::is_one(address) { self.takes_ipv6 } else { !self.ipv6_only }
    }

    /// The daemon grants no IPv4 to a socket of IPv6 that is bound to an interface and to any address. It may have granted it before
    /// the socket was bound to the interface: then what is sent would be dropped.
    fn is_refused(&self, address: Ipv4Addr) -> bool {
        let is_of_any = self.family == Family::Ipv6 && self.local.ip().is_unspecified();
        is_of_any && self.device.is_some() && !ipv6_stand_ins::is_one(address)
    }

    /// The interfaces that the socket hears.
    fn interfaces(&self, control: &Control) -> Vec<u32> {
        match self.device {
            None if self.local.ip().is_unspecified() => {
                control.addressed_interfaces(|address| self.takes(address))
            }
            device => interfaces(control, *self.local.ip(), device),
        }
    }

    /// What comes to one of the socket's addresses.
    fn flow(&self, stack: &Stack, destination: Ipv4Addr) -> Flow {
        match self.peer {
            Some(peer) if !stack.config.udp_3t_rules => Flow::FiveTuple {
                protocol: protocol::UDP,
                source: *peer.ip(),
                source_port: peer.port(),
                destination,
                port: self.local.port(),
            },
            _ => self.flow_of_all(destination),
        }
    }

    fn flow_of_all(&self, destination: Ipv4Addr) -> Flow {
        Flow::ThreeTuple { protocol: protocol::UDP, destination, port: self.local.port() }
    }
}

/// The flows, and why there are not more.
pub struct Wanted {
    pub flows: Vec<(RingId, Flow)>,
    /// Of an interface that is not served.
    pub why: WhyOs,
    /// Other processes have a part in what comes to these.
    withheld: Vec<Ipv4Addr>,
    /// Something is left to the kernel, by a rule or because others have a part in it; the socket may still
    /// send by us.
    ruled: bool,
}

impl Wanted {
    pub fn withholding(withheld: Vec<Ipv4Addr>) -> Wanted {
        let ruled = !withheld.is_empty();
        Wanted { flows: Vec::new(), why: WhyOs::NoInterface, withheld, ruled }
    }

    /// No packet of a wire is the socket's, and no rule made it so.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty() && !self.ruled
    }

    /// The program leaves all that arrives to the kernel.
    pub fn leave_to_kernel(&mut self) {
        self.flows.clear();
        self.ruled = true;
    }

    /// What comes to the socket's own address, or to all of the host.
    pub fn add_addresses(&mut self, stack: &Stack, plane: &mut Plane, place: &Place) {
        let local = *place.local.ip();
        if is_stand_in(local) {
            return;
        }
        for interface in place.interfaces(&plane.control) {
            let ring = match ring(stack, plane, interface, Need::Socket) {
                Ok(ring) => ring,
                Err(reason) => {
                    if !local.is_unspecified() {
                        let shadow = place.shadow;
                        reason.tell_remedy(format_args!(
                            "what comes to fd {shadow} from other hosts"
                        ));
                    }
                    // A reason that may pass outweighs those that will not, such as loopback's.
                    if self.why == WhyOs::NoInterface || !may_pass(self.why) {
                        self.why = reason;
                    }
                    continue;
                }
            };
            let is_kernels = |to| place.is_refused(to) && is_granted(stack, ring);
            let of_interface = plane
                .control
                .addresses()
                .iter()
                .filter(|own| local.is_unspecified() && own.ifindex == interface)
                .filter(|own| place.takes(own.addr) && !is_kernels(own.addr));
            let named = Some(local)
                .filter(|own| !own.is_unspecified() && !ipv6_stand_ins::is_multicast(*own));
            for address in of_interface.map(|own| own.addr).chain(named) {
                if self.may_have(stack, place, Moment::Bind, address) {
                    self.flows.push((ring, place.flow(stack, address)));
                }
            }
        }
    }

    /// What comes to the groups that it has joined, each by an interface.
    pub fn add_groups(
        &mut self,
        stack: &Stack,
        plane: &mut Plane,
        place: &Place,
        groups: &[(Ipv4Addr, u32)],
    ) {
        // A socket that is bound to another address hears none of it, and other sockets might.
        let local = *place.local.ip();
        let hears = |group| place.takes(group) && (local.is_unspecified() || local == group);
        for (group, interface) in groups.iter().copied().filter(|(group, _)| hears(*group)) {
            // An interface is not attached for a group that is the kernel's.
            if self.may_have(stack, place, Moment::Join, group)
                && let Ok(ring) = ring(stack, plane, interface, Need::Socket)
            {
                self.flows.push((ring, place.flow_of_all(group)));
            }
        }
    }

    fn may_have(&mut self, stack: &Stack, place: &Place, moment: Moment, to: Ipv4Addr) -> bool {
        !self.withheld.contains(&to) && !self.is_ruled(stack, place, moment, to)
    }

    /// Does a rule leave to the kernel what arrives at this address?
    fn is_ruled(
        &mut self,
        stack: &Stack,
        place: &Place,
        moment: Moment,
        address: Ipv4Addr,
    ) -> bool {
        let port = place.local.port();
        let rule = stack.config.rules.decide(moment, SocketAddrV4::new(address, port), None);
        let Some(rule) = rule else { return false };
        self.ruled = true;
        let why = WhyOs::Rule(rule);
        let at = Shown(SocketAddrV4::new(address, port));
        log_line!(Debug, "{at} is received by the kernel: {why}");
        true
    }
}

fn is_granted(stack: &Stack, ring: RingId) -> bool {
    let state = stack.shard.lock();
    state.is_ok_and(|state| state.ring(ring).is_some_and(|ring| ring.grant().is_some()))
}

#[cfg(test)]
mod tests;
