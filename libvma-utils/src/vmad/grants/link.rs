//! Questions to the kernel about the interfaces of a process's network, and orders for TAPs.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::namespace::Namespace;
use crate::netlink::{Netlink, Refused};
use anyhow::{Context, bail};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage,
};
use rustix::io::Errno;

/// An interface as the programs must know it.
#[derive(Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub mac: [u8; 6],
    pub mtu: u32,
}

/// The name of interface `index`.
///
/// # Errors
/// ENODEV in words, and of netlink.
pub fn name(namespace: &Namespace, index: u32) -> anyhow::Result<String> {
    let mut request = LinkMessage::default();
    request.header.index = index;
    let link = ask(namespace, request).with_context(|| format!("interface {index}"))?;
    let name = link.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    });
    name.with_context(|| format!("interface {index} has no name"))
}

/// The interface of this name.
///
/// # Errors
/// As of [`name`]; of one without a MAC address.
pub fn find(namespace: &Namespace, name: &str) -> anyhow::Result<Link> {
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::IfName(name.into()));
    let link = ask(namespace, request).with_context(|| format!("interface {name}"))?;
    let (mut mac, mut mtu) = (None, 0);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Address(address) => mac = address.as_slice().try_into().ok(),
            LinkAttribute::Mtu(bytes) => mtu = *bytes,
            LinkAttribute::Controller(_) => bail!(Member(name.into())),
            _ => {}
        }
    }
    let mac = mac.with_context(|| format!("interface {name} is no Ethernet"))?;
    Ok(Link { index: link.header.index, mac, mtu })
}

/// As [`find`]; none if there is no such interface any more, or it is a member of another one.
///
/// # Errors
/// Of netlink.
pub fn find_free(namespace: &Namespace, name: &str) -> anyhow::Result<Option<Link>> {
    match find(namespace, name) {
        Ok(link) => Ok(Some(link)),
        Err(error) => match error.downcast_ref::<Refused>() {
            Some(why) if why.errno == Errno::NODEV => Ok(None),
            None if error.is::<Member>() => Ok(None),
            _ => Err(error),
        },
    }
}

/// The interface is a member of a bridge, a bond or a VRF, by whose rules packets are delivered.
#[derive(Debug)]
struct Member(String);

impl std::fmt::Display for Member {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "interface {} is a member of another one", self.0)
    }
}

impl std::error::Error for Member {}

fn ask(namespace: &Namespace, request: LinkMessage) -> anyhow::Result<LinkMessage> {
    let told = namespace.inside(Netlink::open)??.ask(Message::GetLink(request), 0)?;
    let link = told.into_iter().find_map(|message| match message {
        Message::NewLink(link) => Some(link),
        _ => None,
    });
    link.context("the kernel says nothing about it")
}

/// Brings a TAP up, on which the kernel is to say nothing by itself.
///
/// # Errors
/// Of netlink.
pub fn start(namespace: &Namespace, index: u32, alias: &str) -> anyhow::Result<()> {
    let mut kernel = namespace.inside(Netlink::open)??;
    let mut silent = LinkMessage::default();
    silent.header.index = index;
    let no_address = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
    silent.attributes.push(LinkAttribute::AfSpecUnspec(vec![no_address]));
    // Without IPv6 there is nothing to silence.
    let _ = kernel.ask(Message::SetLink(silent), 0);
    let mut up = LinkMessage::default();
    up.header.index = index;
    up.attributes.push(LinkAttribute::IfAlias(alias.into()));
    up.header.flags = LinkFlags::Up | LinkFlags::Noarp;
    up.header.change_mask = LinkFlags::Up | LinkFlags::Noarp;
    kernel.ask(Message::SetLink(up), 0)?;
    Ok(())
}

/// The addresses of an interface, but those of IPv6 that another host may have (RFC 4862 section 5.4).
///
/// # Errors
/// As of [`name`].
pub fn addresses(namespace: &Namespace, interface: &str) -> anyhow::Result<HashSet<IpAddr>> {
    let index = find(namespace, interface)?.index;
    let told =
        namespace.inside(Netlink::open)??.dump(Message::GetAddress(AddressMessage::default()))?;
    let own = told.into_iter().filter_map(|message| match message {
        Message::NewAddress(told) if told.header.index == index => own(&told),
        _ => None,
    });
    Ok(own.collect())
}

const NOT_YET_OWN: AddressHeaderFlags =
    AddressHeaderFlags::Tentative.union(AddressHeaderFlags::Dadfailed);

fn own(told: &AddressMessage) -> Option<IpAddr> {
    if told.header.flags.intersects(NOT_YET_OWN) {
        return None;
    }
    let (mut local, mut address) = (None, None);
    for attribute in &told.attributes {
        match attribute {
            AddressAttribute::Local(own) => local = Some(*own),
            AddressAttribute::Address(own) => address = Some(*own),
            _ => {}
        }
    }
    // On a point-to-point link `Address` is the other end, and `Local` is there. Elsewhere IPv6 has no `Local`.
    local.or(address.filter(IpAddr::is_ipv6))
}

/// Does the network forward packets, so that it may translate addresses, too?
pub fn forwards(namespace: &Namespace) -> bool {
    ["ipv4/ip_forward", "ipv6/conf/all/forwarding"].iter().any(|name| {
        let read = || std::fs::read_to_string(format!("/proc/sys/net/{name}"));
        namespace.inside(read).flatten().is_ok_and(|value| value.trim() == "1")
    })
}

/// Is it there, and up, as far as the kernel can be asked?
pub fn may_be_up(namespace: &Namespace, index: u32) -> bool {
    let mut request = LinkMessage::default();
    request.header.index = index;
    match ask(namespace, request) {
        Ok(link) => link.header.flags.contains(LinkFlags::Up),
        Err(error) => !error.downcast_ref::<Refused>().is_some_and(|why| why.errno == Errno::NODEV),
    }
}

/// Deletes the TAPs of this alias in the daemon's own network: how many. A process may have made them persistent.
///
/// # Errors
/// Of netlink.
pub fn sweep(alias: &str) -> anyhow::Result<usize> {
    let mut kernel = Netlink::open()?;
    let told = kernel.dump(Message::GetLink(LinkMessage::default()))?;
    let mut swept = 0;
    for message in told {
        let Message::NewLink(link) = message else { continue };
        let is_that = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfAlias(name) if name == alias);
        if link.attributes.iter().any(is_that) {
            let mut request = LinkMessage::default();
            request.header.index = link.header.index;
            kernel.ask(Message::DelLink(request), 0)?;
            swept += 1;
        }
    }
    Ok(swept)
}

/// Deletes a TAP, whoever has it open.
///
/// # Errors
/// Of netlink.
pub fn delete(namespace: &Namespace, index: u32) -> anyhow::Result<()> {
    let mut request = LinkMessage::default();
    request.header.index = index;
    namespace.inside(Netlink::open)??.ask(Message::DelLink(request), 0)?;
    Ok(())
}
