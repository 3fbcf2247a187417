//! A parent's care for the connections of forked children: when a child is killed, their peers are told.
//!
//! The children write down what they have (`agent::wards`). When one is dead, however it died, a SYN in the name of
//! each connection that is left makes the peer say what it expects next (a challenge ACK, RFC 5961 section 4.2); that
//! reaches the kernel, which has no such connection and answers with the RST that the peer accepts (RFC 9293
//! section 3.10.7.1). That is what `vmad` does as well; here is no retry beyond one, because a parent is no daemon.
//!
//! Everything is done by the internal thread, and nothing waits.

use std::net::SocketAddrV4;

use libvma_engine::wire::checksum::Sum;
use libvma_engine::wire::ipv4::{self, protocol};
use libvma_engine::wire::tcp::{self, Flags};
use rustix::event::epoll;
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
        let pid = Pid::from_raw(id).ok_or(rustix::io::Errno::SRCH)?;
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
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let raw = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::RAW))?;
        let dead = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Tools { dead: Fd::adopt(dead)?, raw: Fd::adopt(raw)? })
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
            if let Some(packet) = syn(ends) {
                // A packet that does not leave now is sent with the second round.
                let to = SocketAddrV4::new(*ends.peer.ip(), 0);
                let _ = sendto(&self.raw, &packet, SendFlags::DONTWAIT, &to);
            }
        }
    }
}

/// A SYN with any sequence number, as an IPv4 packet.
fn syn(ends: &Ends) -> Option<[u8; ipv4::HEADER_LEN + tcp::HEADER_LEN]> {
    let (local, peer) = (*ends.local.ip(), *ends.peer.ip());
    let mut packet = [0; ipv4::HEADER_LEN + tcp::HEADER_LEN];
    let (first, second) = packet.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
    ipv4::Header::new(local, peer, protocol::TCP, tcp::HEADER_LEN)?.emit(first);
    let header = tcp::Header {
        src_port: ends.local.port(),
        dst_port: ends.peer.port(),
        seq: monotonic_nanos() as u32,
        flags: Flags::SYN,
        ..tcp::Header::default()
    };
    header.emit_checksummed(local, peer, Sum::ZERO, 0, second);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_is_a_whole_packet() {
        let ends = Ends {
            local: "10.0.0.1:8080".parse().unwrap(),
            peer: "10.0.0.2:40000".parse().unwrap(),
        };
        let packet = syn(&ends).unwrap();
        let ip = ipv4::Header::parse(&packet, packet.len()).unwrap();
        assert_eq!((ip.src, ip.dst, ip.total_len()), (*ends.local.ip(), *ends.peer.ip(), 40));
        let (header, _) = tcp::Header::parse(&packet[20..], 20).unwrap();
        assert_eq!((header.src_port, header.dst_port), (8080, 40_000));
        assert_eq!(header.flags, Flags::SYN);
        let checked = header.checksummed(ip.src, ip.dst, Sum::ZERO, 0);
        assert_eq!(
            tcp::Header { checksum: 0, ..header }.checksummed(ip.src, ip.dst, Sum::ZERO, 0),
            checked
        );
    }
}
