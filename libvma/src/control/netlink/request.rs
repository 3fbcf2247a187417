//! Asking the kernel: one request, its answer, and what can go wrong in between.

use core::net::Ipv4Addr;
use core::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourMessage};
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::wire::{self, Message};
use super::{Address, Errno, Error, Link, Neighbour, Route, RouteQuery, address, neighbour};
use crate::sys::netlink::{Deadline, Received, Socket};

/// A way to ask the kernel.
///
/// Every call is answered at once or within a second, and may be repeated after an error.
///
/// # Errors
/// Each call gives the request's name and the kernel's errno, or that of the socket call that
/// failed: ETIMEDOUT if no answer came in a second, EAGAIN if a table changed faster than it could
/// be read, EBADMSG for an answer that is none.
pub struct Netlink {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Netlink {
    /// Opens it, for the network namespace the calling thread is in.
    ///
    /// # Errors
    /// Those of [`Socket::open`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(0)?, buffer: Vec::with_capacity(BUFFER), sequence: 0 })
    }

    /// All interfaces.
    #[doc(alias = "RTM_GETLINK")]
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let mut message = LinkMessage::default();
        // Counters are half of an answer, and nobody here reads them.
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        self.dump(
            "RTM_GETLINK",
            &RouteNetlinkMessage::GetLink(message),
            wire::RTM_NEWLINK,
            Link::parse,
        )
    }

    /// All addresses that the library may serve.
    #[doc(alias = "RTM_GETADDR")]
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let mut addresses = self.addresses_of(AddressFamily::Inet)?;
        // The kernel may do without IPv6.
        addresses.extend(self.addresses_of(AddressFamily::Inet6).unwrap_or_default());
        Ok(addresses)
    }

    fn addresses_of(&mut self, family: AddressFamily) -> Result<Vec<Address>, Error> {
        let mut message = AddressMessage::default();
        message.header.family = family;
        self.dump(
            "RTM_GETADDR",
            &RouteNetlinkMessage::GetAddress(message),
            wire::RTM_NEWADDR,
            |payload| Address::parse(payload).filter(|_| address::is_ours(payload)),
        )
    }

    /// The whole ARP table.
    #[doc(alias = "RTM_GETNEIGH")]
    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>, Error> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        self.dump(
            "RTM_GETNEIGH",
            &RouteNetlinkMessage::GetNeighbour(message),
            wire::RTM_NEWNEIGH,
            Neighbour::parse,
        )
    }

    /// One entry of the ARP table, or of IPv6's, if it is there. Linux 5.0; before that EOPNOTSUPP.
    pub fn neighbour(&mut self, ifindex: u32, addr: Ipv4Addr) -> Result<Option<Neighbour>, Error> {
        let call = "RTM_GETNEIGH";
        let message = RouteNetlinkMessage::GetNeighbour(neighbour::named(
            ifindex,
            addr,
            NeighbourFlags::empty(),
        ));
        let mut found = None;
        let answer = self.exchange(call, NLM_F_ACK, &message, |message| {
            if message.kind == wire::RTM_NEWNEIGH {
                found = Neighbour::parse(message.payload);
            }
        })?;
        match answer {
            Answer::Whole => Ok(found),
            Answer::Torn => Err(Error { call, errno: Errno::MSGSIZE }),
            Answer::Refused(Errno::NOENT) => Ok(None),
            Answer::Refused(errno) => Err(Error { call, errno }),
        }
    }

    /// Makes the kernel resolve a neighbour, or confirm a stale one; [`super::Monitor`] reports how
    /// that went.
    ///
    /// Does nothing if the kernel is at it already, or if there is nothing to find out. A stale
    /// neighbour is asked at the address it had, some seconds later (`delay_first_probe_time`);
    /// only once that failed does a further probe ask everyone.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN in the namespace's owner; ENODEV for an interface that is not
    /// there.
    #[doc(alias = "NTF_USE")]
    pub fn probe_neighbour(&mut self, ifindex: u32, addr: Ipv4Addr) -> Result<(), Error> {
        let known = self.neighbour(ifindex, addr)?;
        // Not only to save a call: NTF_USE takes "permanent" and the address off an entry that the
        // administrator set (seen on Linux 6.18).
        if known.is_some_and(|known| !known.state.wants_probe()) {
            return Ok(());
        }
        let call = "RTM_NEWNEIGH";
        let message =
            RouteNetlinkMessage::NewNeighbour(neighbour::named(ifindex, addr, NeighbourFlags::Use));
        match self.exchange(call, NLM_F_ACK | NLM_F_CREATE, &message, |_| {})? {
            Answer::Refused(errno) => Err(Error { call, errno }),
            Answer::Whole | Answer::Torn => Ok(()),
        }
    }

    /// Looks up a route exactly as the kernel would for a socket: policy rules, multipath, route
    /// exceptions.
    ///
    /// "No route" and its like are an answer, [`super::RouteKind::Refused`]. IPsec policies are not
    /// consulted.
    #[doc(alias = "RTM_GETROUTE")]
    pub fn route(&mut self, query: &RouteQuery) -> Result<Route, Error> {
        let call = "RTM_GETROUTE";
        let message = RouteNetlinkMessage::GetRoute(query.message());
        let mut found = None;
        let answer = self.exchange(call, NLM_F_ACK, &message, |message| {
            if message.kind == wire::RTM_NEWROUTE {
                found = Route::parse(message.payload, query);
            }
        })?;
        match answer {
            Answer::Whole => found.ok_or(Error { call, errno: Errno::BADMSG }),
            Answer::Torn => Err(Error { call, errno: Errno::MSGSIZE }),
            // These tell of the asking; everything else is what a socket would be told.
            Answer::Refused(
                errno @ (Errno::NOMEM | Errno::NOBUFS | Errno::OPNOTSUPP | Errno::BADMSG),
            ) => Err(Error { call, errno }),
            Answer::Refused(errno) => Ok(Route::refused(errno)),
        }
    }

    /// Does no rule look at ports, protocol or user, nor at anything that is not known here? Then one
    /// question has one answer for all of them.
    #[doc(alias = "RTM_GETRULE")]
    pub fn rules_are_plain(&mut self) -> Result<bool, Error> {
        let mut message = RuleMessage::default();
        message.header.family = AddressFamily::Inet;
        let request = RouteNetlinkMessage::GetRule(message);
        let plain = |payload: &[u8]| {
            let mut attributes = wire::attributes(payload, RULE_HEADER);
            Some(
                attributes
                    .all(|attribute| !matches!(attribute.kind(), FRA_UID_RANGE | FRA_IP_PROTO..)),
            )
        };
        let rules = self.dump("RTM_GETRULE", &request, wire::RTM_NEWRULE, plain)?;
        Ok(rules.into_iter().all(|plain| plain))
    }

    /// Reads a whole table: `parse` on every message of `kind`.
    fn dump<T>(
        &mut self,
        call: &'static str,
        request: &RouteNetlinkMessage,
        kind: u16,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let answer = self.exchange(call, NLM_F_DUMP, request, |message| {
                if message.kind == kind {
                    found.extend(parse(message.payload));
                }
            })?;
            match answer {
                Answer::Whole => return Ok(found),
                Answer::Torn => {}
                Answer::Refused(errno) => return Err(Error { call, errno }),
            }
        }
        Err(Error { call, errno: Errno::AGAIN })
    }

    /// Sends one request and hands each message of its answer to `on`.
    fn exchange(
        &mut self,
        call: &'static str,
        flags: u16,
        request: &RouteNetlinkMessage,
        on: impl FnMut(&Message<'_>),
    ) -> Result<Answer, Error> {
        let answer = self.converse(flags, request, on);
        // A dump that was not read to its end stays open, and the next one would get EBUSY.
        if answer.is_err()
            && let Ok(socket) = Socket::open(0)
        {
            self.socket = socket;
        }
        // Which question went unanswered says more than that poll() timed out.
        answer.map_err(
            |error| {
                if error.errno == Errno::TIMEDOUT { Error { call, ..error } } else { error }
            },
        )
    }

    fn converse(
        &mut self,
        flags: u16,
        request: &RouteNetlinkMessage,
        mut on: impl FnMut(&Message<'_>),
    ) -> Result<Answer, Error> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&encode(flags, self.sequence, request))?;
        let deadline = Deadline::after(PATIENCE);
        let mut torn = false;
        // What a truncated datagram would have needed, for the next time.
        let mut needed = self.buffer.capacity();
        let answer = 'answer: loop {
            let datagram = match self.socket.receive(&mut self.buffer)? {
                Some(Received::Messages(datagram)) => datagram,
                Some(Received::Truncated(length)) => {
                    needed = needed.max(length);
                    torn = true;
                    continue;
                }
                None => {
                    self.socket.wait(deadline)?;
                    continue;
                }
            };
            let mut messages = wire::messages(datagram);
            for message in messages.by_ref() {
                // The rest of an answer we gave up on, after a timeout.
                if message.sequence != self.sequence || message.port != self.socket.port() {
                    continue;
                }
                torn |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => break 'answer message.errno(),
                    _ => on(&message),
                }
            }
            torn |= messages.cut_short();
        };
        self.buffer.clear();
        self.buffer.reserve_exact(needed);
        Ok(match answer {
            Some(errno) => Answer::Refused(errno),
            None if torn => Answer::Torn,
            None => Answer::Whole,
        })
    }

    /// With a buffer of its own size, so that a test can make it too small.
    #[cfg(test)]
    pub(super) fn with_buffer(bytes: usize) -> Result<Self, Error> {
        Ok(Self { buffer: Vec::with_capacity(bytes), ..Self::open()? })
    }
}

/// How a request ended.
enum Answer {
    Whole,
    /// Something is missing or inconsistent: the table changed meanwhile, or a datagram did not
    /// fit.
    Torn,
    Refused(Errno),
}

fn encode(flags: u16, sequence: u32, request: &RouteNetlinkMessage) -> Vec<u8> {
    let mut message = NetlinkMessage::new(
        NetlinkHeader::default(),
        NetlinkPayload::InnerMessage(request.clone()),
    );
    message.header.flags = NLM_F_REQUEST | flags;
    message.header.sequence_number = sequence;
    message.finalize();
    // `serialize` panics if this is shorter.
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Bytes of `struct fib_rule_hdr`.
const RULE_HEADER: usize = 12;
/// Of <linux/fib_rules.h>; behind the second one are the port ranges and what came later.
const FRA_UID_RANGE: u16 = 20;
const FRA_IP_PROTO: u16 = 22;

/// Bytes. The kernel fills at most 32 KiB of a dump's buffer unless one object is larger by itself.
pub(super) const BUFFER: usize = 64 * 1024;

/// How long the kernel may take: it answers before `send` returns, so this is for the case that
/// cannot happen.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a table is read before we admit that it changes too fast.
const DUMP_ATTEMPTS: u32 = 16;
