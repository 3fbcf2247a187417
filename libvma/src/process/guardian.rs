//! A parent's care for the connections of forked children: when a child is killed, their peers are told.
//!
//! The children write down what they have (`agent::wards`). When one is dead, however it died, a SYN in the name of
//! each connection that is left makes the peer say what it expects next (a challenge ACK, RFC 5961 section 4.2); that
//! reaches the kernel, which has no such connection and answers with the RST that the peer accepts (RFC 9293
//! section 3.10.7.1). That is what `vmad` does as well; here is no retry beyond one, because a parent is no daemon.
//!
//! Everything is done by the internal thread, and nothing waits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libvma_engine::wire::checksum::Sum;
use libvma_engine::wire::ipv4::{self, protocol};
use libvma_engine::wire::ipv6;
use libvma_engine::wire::tcp::{self, Flags};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::agent::wards::{Ends, Wards};
use crate::log::log_line;
use crate::sys::Fd;
use crate::sys::time::monotonic_nanos;

const MILLISECOND: u64 = 1_000_000;
/// After a child's end its steering program goes, but not at once; before that an answer would find a dead ring.
const FIRST: u64 = 5 * MILLISECOND;
/// A peer answers a second SYN within half a second with nothing (`tcp_invalid_ratelimit`).
const SECOND: u64 = 700 * MILLISECOND;

/// Nothing, until a child asks.
#[derive(Default)]
pub struct Guardian {
    tools: Option<Tools>,
    children: Vec<Child>,
    deaths: Vec<Death>,
}

struct Tools {
    /// Tells which children are dead.
    dead: Fd,
    /// Sends whole packets (raw(7)).
    raw: Fd,
    /// The same of IPv6; `None` where the kernel has none.
    raw_ipv6: Option<Fd>,
}

struct Child {
    id: i32,
    handle: Fd,
}

/// Connections whose peers are to be told.
struct Death {
    due_nanos: u64,
    is_last: bool,
    left: Vec<Ends>,
}

impl Guardian {
    /// A descriptor that ends the thread's sleep; -1 if there is none.
    pub fn descriptor(&self) -> i32 {
        self.tools.as_ref().map_or(-1, |tools| tools.dead.raw())
    }

    /// Nanoseconds until somebody is to be told.
    pub fn patience(&self) -> Option<u64> {
        let due = self.deaths.iter().map(|death| death.due_nanos).min()?;
        Some(due.saturating_sub(monotonic_nanos()))
    }

    /// Answers children that ask.
    pub fn answer(&mut self, wards: &Wards) {
        for (place, id) in wards.asking() {
            let watched = self.watch(id);
            if let Err(errno) = &watched {
                log_line!(Debug, "the connections of the child {id} stay the kernel's: {errno}");
            }
            wards.answer(place, id, watched.is_ok());
        }
    }

    fn watch(&mut self, id: i32) -> rustix::io::Result<()> {
        let pid = Pid::from_raw(id).ok_or(Errno::SRCH)?;
        let handle = Fd::adopt(pidfd_open(pid, PidfdFlags::empty())?)?;
        let tools = match &mut self.tools {
            Some(tools) => tools,
            empty => empty.insert(Tools::open()?),
        };
        let data = epoll::EventData::new_u64(id as u64);
        epoll::add(&tools.dead, &handle, data, epoll::EventFlags::IN)?;
        self.children.push(Child { id, handle });
        Ok(())
    }

    /// Some child is dead, or somebody is to be told.
    pub fn attend(&mut self, wards: &Wards) {
        let now = monotonic_nanos();
        for id in self.tools.as_ref().map(Tools::take_dead).unwrap_or_default() {
            if let Some(tools) = &self.tools {
                for child in self.children.extract_if(.., |child| child.id == id) {
                    let _ = epoll::delete(&tools.dead, &child.handle);
                }
            }
            let left = wards.bury(id);
            if !left.is_empty() {
                log_line!(Debug, "child {id} is dead: {} peers are told", left.len());
                self.deaths.push(Death {
                    due_nanos: now.saturating_add(FIRST),
                    is_last: false,
                    left,
                });
            }
        }
        for death in &mut self.deaths {
            if death.due_nanos <= now {
                self.tools.iter().for_each(|tools| tools.tell(&death.left));
                death.due_nanos = if death.is_last { u64::MAX } else { now.saturating_add(SECOND) };
                death.is_last = true;
            }
        }
        self.deaths.retain(|death| death.due_nanos != u64::MAX);
    }
}

impl Tools {
    fn open() -> rustix::io::Result<Tools> {
        let raw = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            Fd::adopt(socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))?)
        };
        let raw_ipv6 = match raw(AddressFamily::INET6) {
            Err(Errno::AFNOSUPPORT) => None,
            opened => Some(opened?),
        };
        let dead = Fd::adopt(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        Ok(Tools { dead, raw: raw(AddressFamily::INET)?, raw_ipv6 })
    }

    fn take_dead(&self) -> Vec<i32> {
        let mut events = [const { core::mem::MaybeUninit::uninit() }; 64];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.dead, &mut events, Some(&now)) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64() as i32).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn tell(&self, left: &[Ends]) {
        for ends in left {
            let mut packet = [0; LONGEST];
            let Some(packet) = syn(ends, &mut packet) else { continue };
            let raw = if ends.peer.is_ipv4() { Some(&self.raw) } else { self.raw_ipv6.as_ref() };
            if let Some(raw) = raw {
                // A packet that does not leave now is sent with the second round.
                let to = SocketAddr::new(ends.peer.ip(), 0);
                let _ = sendto(raw, packet, SendFlags::DONTWAIT, &to);
            }
        }
    }
}

const LONGEST: usize = ipv6::HEADER_LEN + tcp::HEADER_LEN;

/// A SYN with any sequence number, as a whole packet. `None` if the ends are of two families.
fn syn<'a>(ends: &Ends, packet: &'a mut [u8; LONGEST]) -> Option<&'a [u8]> {
    match (ends.local.ip(), ends.peer.ip()) {
        (IpAddr::V4(local), IpAddr::V4(peer)) => {
            let (first, second) = packet.split_first_chunk_mut()?;
            ipv4::Header::new(local, peer, protocol::TCP, tcp::HEADER_LEN)?.emit(first);
            segment(ends).emit_checksummed(local, peer, Sum::ZERO, 0, second);
            packet.get(..ipv4::HEADER_LEN + tcp::HEADER_LEN)
        }
        (IpAddr::V6(local), IpAddr::V6(peer)) => {
            let (first, second) = packet.split_first_chunk_mut()?;
            ipv6::Header {
                src: local,
                dst: peer,
                traffic_class: 0,
                flow_label: 0,
                payload_len: tcp::HEADER_LEN as u16,
                next_header: protocol::TCP,
                hop_limit: 64,
            }
            .emit(first);
            let none = Ipv4Addr::UNSPECIFIED;
            segment(ends).emit_checksummed(none, none, addresses(local, peer), 0, second);
            Some(packet)
        }
        _ => None,
    }
}

fn segment(ends: &Ends) -> tcp::Header {
    tcp::Header {
        src_port: ends.local.port(),
        dst_port: ends.peer.port(),
        seq: monotonic_nanos() as u32,
        flags: Flags::SYN,
        ..tcp::Header::default()
    }
}

/// The sum of the addresses in a checksum; the rest of the pseudo header is that of IPv4 (RFC 8200 section 8.1).
fn addresses(local: Ipv6Addr, peer: Ipv6Addr) -> Sum {
    Sum::of(&local.octets()).then(Sum::of(&peer.octets()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(local: &str, peer: &str) -> Ends {
        Ends { local: local.parse().unwrap(), peer: peer.parse().unwrap() }
    }

    #[test]
    fn a_syn_is_a_whole_packet() {
        let ends = ends("10.0.0.1:8080", "10.0.0.2:40000");
        let mut packet = [0; LONGEST];
        let packet = syn(&ends, &mut packet).unwrap();
        let ip = ipv4::Header::parse(packet, packet.len()).unwrap();
        let (src, dst) = (IpAddr::V4(ip.src), IpAddr::V4(ip.dst));
        assert_eq!((src, dst, ip.total_len()), (ends.local.ip(), ends.peer.ip(), 40));
        let (header, _) = tcp::Header::parse(&packet[20..], 20).unwrap();
        assert_eq!((header.src_port, header.dst_port), (8080, 40_000));
        assert_eq!(header.flags, Flags::SYN);
        let checked = header.checksummed(ip.src, ip.dst, Sum::ZERO, 0);
        assert_eq!(
            tcp::Header { checksum: 0, ..header }.checksummed(ip.src, ip.dst, Sum::ZERO, 0),
            checked
        );
    }

    #[test]
    fn a_syn_of_ipv6_is_a_whole_packet() {
        let ends = ends("[2001:db8:1::ffff]:8080", "[fd00:99::2]:40000");
        let mut packet = [0; LONGEST];
        let packet = syn(&ends, &mut packet).unwrap();
        let ip = ipv6::Header::parse(packet, packet.len()).unwrap();
        assert_eq!((IpAddr::V6(ip.src), IpAddr::V6(ip.dst)), (ends.local.ip(), ends.peer.ip()));
        assert_eq!((ip.payload_len, ip.next_header), (20, 6));
        let (header, _) = tcp::Header::parse(&packet[40..], 20).unwrap();
        assert_eq!((header.src_port, header.dst_port), (8080, 40_000));
        assert_eq!(header.flags, Flags::SYN);
        // The pseudo header by RFC 8200 section 8.1, and the segment.
        let pseudo = [&packet[8..40], &[0, 0, 0, 20, 0, 0, 0, 6], &packet[40..]];
        assert_eq!(Sum::of_pieces(pseudo).fold(), 0xffff);
    }

    #[test]
    fn ends_of_two_families_are_no_connection() {
        assert!(syn(&ends("10.0.0.1:80", "[fd00:99::2]:1"), &mut [0; LONGEST]).is_none());
    }
}
