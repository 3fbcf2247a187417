//! The TC objects as the kernel wants them: ingress qdisc, u32 hash tables and filters,
//! redirection. tc(8), tc-u32(8), tc-mirred(8), linux/pkt_cls.h.
//!
//! A packet passes the filters of an interface by priority. For each local address there is one
//! filter that leads into a hash table by the low byte of the destination port, so that a thousand
//! flows cost a packet about as much as four.

use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::agent::FlowKind;
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionGeneric, TcActionMirror, TcActionMirrorOption,
    TcActionOption, TcActionType, TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcHeader,
    TcMessage, TcMirror, TcMirrorActionType, TcOption, TcU32Key, TcU32Selector, TcU32SelectorFlags,
};

/// Where a filter goes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub interface: u32,
    /// 0 lets the kernel choose.
    pub priority: u16,
}

/// A filter or table that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    pub priority: u16,
    /// Table (12 bits), bucket (8), filter (12).
    pub word: u32,
}

/// What a filter that the kernel lists is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Made by a vmad; where it leads, 0 if that is gone.
    Ours {
        target: u32,
    },
    /// A hash table or a way into one: does nothing by itself.
    WayToOthers,
    Other,
}

/// Tells our redirections from those of others: the kernel keeps this with the action.
const COOKIE: &[u8] = b"vmad";

/// The ingress qdisc of an interface.
pub fn qdisc(interface: u32) -> TcMessage {
    let header = TcHeader {
        index: index(interface),
        handle: TcHandle { major: 0xffff, minor: 0 },
        parent: TcHandle::INGRESS,
        ..TcHeader::default()
    };
    TcMessage::from_parts(header, vec![TcAttribute::Kind("ingress".to_owned())])
}

/// A hash table with a bucket for each low byte of a port.
pub fn table(place: Place) -> TcMessage {
    filter(place, 0, vec![TcFilterU32Option::Divisor(256)])
}

/// Leads packets to `address` into the table, if their IP header has no options: everything behind
/// counts from its 20th byte.
pub fn link(place: Place, table: u32, address: Ipv4Addr) -> TcMessage {
    let mut selector = selector(vec![NO_OPTIONS, whole_word(16, address.to_bits())]);
    selector.hmask = 0xff;
    selector.hoff = 20;
    let options = vec![TcFilterU32Option::Link(table), TcFilterU32Option::Selector(selector)];
    filter(place, 0, options)
}

/// In that table, redirects one flow to `target`.
pub fn flow(
    place: Place,
    table: u32,
    kind: FlowKind,
    local: SocketAddrV4,
    peer: SocketAddrV4,
    target: u32,
) -> TcMessage {
    let protocol = match kind {
        FlowKind::Tcp5Tuple | FlowKind::Tcp3Tuple => 6,
        FlowKind::Udp5Tuple | FlowKind::Udp3Tuple | FlowKind::Egress => 17,
    };
    let ports = match peer.port() {
        0 => key(20, 0xffff, u32::from(local.port())),
        port => whole_word(20, u32::from(port) << 16 | u32::from(local.port())),
    };
    let mut keys = vec![
        key(8, 0xff << 16, protocol << 16),
        // No fragment: only the first has ports.
        key(4, 0x3fff, 0),
        whole_word(16, local.ip().to_bits()),
        ports,
    ];
    if peer.port() != 0 {
        keys.push(whole_word(12, peer.ip().to_bits()));
    }
    let bucket = u32::from(local.port() & 0xff);
    redirect(place, Some(table | bucket << 12), keys, target)
}

/// Redirects what goes to `address`.
pub fn to_address(place: Place, address: Ipv4Addr, target: u32) -> TcMessage {
    redirect(place, None, vec![whole_word(16, address.to_bits())], target)
}

/// Redirects all IPv4 packets.
pub fn everything(place: Place, target: u32) -> TcMessage {
    redirect(place, None, vec![key(0, 0, 0)], target)
}

/// What is to be deleted; all filters of the priority if `handle.word` is 0.
pub fn existing(interface: u32, handle: Handle) -> TcMessage {
    filter(Place { interface, priority: handle.priority }, handle.word, Vec::new())
}

/// All filters of an interface's ingress, to be listed.
pub fn all(interface: u32) -> TcMessage {
    let mut message = filter(Place { interface, priority: 0 }, 0, Vec::new());
    message.header.info = 0;
    message.attributes.clear();
    message
}

/// What the kernel said is there.
pub fn made(message: &TcMessage) -> Handle {
    // The upper half of the word is the priority, the lower one the protocol.
    let priority = message.header.info.to_be_bytes();
    Handle {
        priority: u16::from_be_bytes([priority[0], priority[1]]),
        word: message.header.handle.into(),
    }
}

/// See [`What`].
pub fn what(message: &TcMessage) -> What {
    let u32_kind = TcAttribute::Kind(TcFilterU32::KIND.to_owned());
    if !message.attributes.contains(&u32_kind) {
        return What::Other;
    }
    let options = message.attributes.iter().flat_map(|attribute| match attribute {
        TcAttribute::Options(options) => options.as_slice(),
        _ => &[],
    });
    let mut what = What::WayToOthers;
    for option in options {
        match option {
            TcOption::U32(TcFilterU32Option::Action(actions)) => {
                what = redirection(actions).map_or(What::Other, |target| What::Ours { target });
            }
            TcOption::U32(TcFilterU32Option::ClassId(_)) => return What::Other,
            _ => {}
        }
    }
    what
}

/// Where the one action with our cookie leads.
fn redirection(actions: &[TcAction]) -> Option<u32> {
    let [action] = actions else { return None };
    let cookie = TcActionAttribute::Cookie(COOKIE.to_vec());
    if !action.attributes.contains(&cookie) {
        return None;
    }
    action.attributes.iter().find_map(|attribute| match attribute {
        TcActionAttribute::Options(options) => options.iter().find_map(|option| match option {
            TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror)) => Some(mirror.ifindex),
            _ => None,
        }),
        _ => None,
    })
}

const NO_OPTIONS: TcKey = TcKey { at: 0, mask: 0x0f00_0000, value: 0x0500_0000 };

/// Compares a word of the packet, which begins with its IP header.
#[derive(Clone, Copy)]
struct TcKey {
    at: i32,
    mask: u32,
    value: u32,
}

fn key(at: i32, mask: u32, value: u32) -> TcKey {
    TcKey { at, mask, value }
}

fn whole_word(at: i32, value: u32) -> TcKey {
    key(at, u32::MAX, value)
}

fn selector(keys: Vec<TcKey>) -> TcU32Selector {
    let mut selector = TcU32Selector::default();
    selector.keys = keys
        .into_iter()
        .map(|key| {
            let mut word = TcU32Key::default();
            word.off = key.at;
            word.mask = key.mask;
            word.val = key.value;
            word
        })
        .collect();
    selector.nkeys = u8::try_from(selector.keys.len()).expect("a handful of keys");
    selector
}

/// A filter that ends the search, in a bucket of a table or in the priority's own list.
fn redirect(place: Place, bucket: Option<u32>, keys: Vec<TcKey>, target: u32) -> TcMessage {
    let mut selector = selector(keys);
    selector.flags = TcU32SelectorFlags::Terminal;
    let mut generic = TcActionGeneric::default();
    generic.action = TcActionType::Stolen;
    let mut mirror = TcMirror::default();
    mirror.generic = generic;
    mirror.eaction = TcMirrorActionType::EgressRedir;
    mirror.ifindex = target;
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(
            mirror,
        ))]),
        TcActionAttribute::Cookie(COOKIE.to_vec()),
    ];
    let mut options: Vec<_> = bucket.map(TcFilterU32Option::Hash).into_iter().collect();
    options.push(TcFilterU32Option::Selector(selector));
    options.push(TcFilterU32Option::Action(vec![action]));
    filter(place, 0, options)
}

fn filter(place: Place, handle: u32, options: Vec<TcFilterU32Option>) -> TcMessage {
    const ETH_P_IP: u16 = 0x0800;
    let header = TcHeader {
        index: index(place.interface),
        handle: handle.into(),
        // An ingress qdisc takes this for itself, and in a clsact, which somebody else may have
        // put in its place, it is the ingress half.
        parent: TcHandle { major: 0xffff, minor: TcHandle::MIN_INGRESS },
        info: u32::from(place.priority) << 16 | u32::from(ETH_P_IP.to_be()),
        ..TcHeader::default()
    };
    let mut attributes = vec![TcAttribute::Kind(TcFilterU32::KIND.to_owned())];
    if !options.is_empty() {
        attributes.push(TcAttribute::Options(options.into_iter().map(TcOption::U32).collect()));
    }
    TcMessage::from_parts(header, attributes)
}

/// An index beyond what the kernel gives stays one that no interface has.
fn index(interface: u32) -> i32 {
    i32::try_from(interface).unwrap_or(i32::MAX)
}
