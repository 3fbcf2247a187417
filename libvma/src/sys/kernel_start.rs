//! Where the kernel would start a TCP connection between two endpoints: its initial sequence number
//! (RFC 6528) and its time stamps (RFC 7323 section 5.4), which it keys by a secret of the boot that it
//! tells nobody.
//!
//! It is asked by a socket of our own whose connect() the kernel puts off until something is written
//! (TCP_FASTOPEN_CONNECT, and without a cookie), which never happens: the socket has all that a SYN
//! would carry, and no segment leaves.

use std::net::SocketAddrV4;

use libvma_dev::ipv6_loopback;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use super::time::monotonic_nanos;
use super::{Fd, fd, shadow};

/// As the kernel would start it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The initial sequence number; None without the right to see it (CAP_NET_ADMIN).
    pub sequence: Option<u32>,
    /// What is added to CLOCK_MONOTONIC in milliseconds, or one less. The same for all connections
    /// between the two endpoints, as long as the machine is up.
    pub stamp_offset: u32,
}

/// A connection that the kernel has all but started.
struct Deferred(Fd);

// linux/tcp.h, which libc does not have all of.
const TCP_REPAIR: i32 = 19;
const TCP_REPAIR_QUEUE: i32 = 20;
const TCP_QUEUE_SEQ: i32 = 21;
const TCP_TIMESTAMP: i32 = 24;
const TCP_FASTOPEN_CONNECT: i32 = 30;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
const REPAIR_ON: i32 = 1;
const REPAIR_OFF_SILENTLY: i32 = -1;
const SEND_QUEUE: i32 = 2;

/// Asks; `local` may be another socket's. None if the kernel does not tell, or has no route.
pub fn of(local: SocketAddrV4, remote: SocketAddrV4) -> Option<Start> {
    let deferred = Deferred::open(local, remote)?;
    let stamp_offset = (0..ATTEMPTS).find_map(|_| deferred.stamp_offset())?.0;
    Some(Start { sequence: deferred.sequence(), stamp_offset })
}

/// What is added to CLOCK_MONOTONIC between each two endpoints, exactly: takes up to a millisecond.
/// None if the kernel does not tell all of them.
pub fn stamp_offsets<const N: usize>(
    endpoints: [(SocketAddrV4, SocketAddrV4); N],
) -> Option<[u32; N]> {
    let mut deferred =
        endpoints.map(|(local, remote)| Some((Deferred::open(local, remote)?, None)));
    let mut found = [None; N];
    let end = milliseconds().wrapping_add(PATIENCE);
    while deferred.iter().any(Option::is_some) {
        if end.wrapping_sub(milliseconds()) > PATIENCE {
            return None;
        }
        for (slot, found) in deferred.iter_mut().zip(&mut found) {
            let Some((socket, seen)) = slot else { continue };
            let Some((offset, now)) = socket.stamp_offset() else { continue };
            // The kernel leaves out the lowest bit of the stamp, so one of two milliseconds in a row
            // shows the offset, and the other one less.
            match *seen {
                None => *seen = Some((offset, now)),
                Some((_, before)) if before == now => {}
                Some((other, before)) if now.wrapping_sub(before) == 1 => {
                    *found = Some(if offset.wrapping_sub(other) == 1 { offset } else { other });
                    *slot = None;
                }
                Some(_) => *seen = Some((offset, now)),
            }
        }
    }
    let all = found.iter().all(Option::is_some);
    all.then(|| found.map(Option::unwrap_or_default))
}

/// Between two readings of the clock a millisecond may begin, hardly several times in a row.
const ATTEMPTS: u32 = 8;
/// Two milliseconds in a row are seen unless the machine is busy.
const PATIENCE: u32 = 20;

impl Deferred {
    fn open(local: SocketAddrV4, remote: SocketAddrV4) -> Option<Deferred> {
        let flags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
        let (local, remote) = (ipv6_loopback::named(local), ipv6_loopback::named(remote));
        let family = if local.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let socket = socket_with(family, SocketType::STREAM, flags, None).ok()?;
        let deferred = Deferred(Fd::adopt_briefly(socket).ok()?);
        let fd = deferred.0.raw();
        // A socket in repair mode gets any port; without the right to it one that others let it have.
        if deferred.repair() {
            fd::with_borrowed(fd, |fd| bind(fd, &local))?.ok()?;
            deferred.set(TCP_REPAIR, REPAIR_OFF_SILENTLY);
        } else {
            shadow::set_int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
            fd::with_borrowed(fd, |fd| bind(fd, &local))?.ok()?;
        }
        deferred.set(TCP_FASTOPEN_CONNECT, 1);
        deferred.set(TCP_FASTOPEN_NO_COOKIE, 1);
        // Where net.ipv4.tcp_fastopen forbids it, a SYN would leave.
        let defers = [TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE];
        if defers.iter().any(|name| deferred.get(*name) != Some(1)) {
            return None;
        }
        fd::with_borrowed(fd, |fd| connect(fd, &remote))?.ok()?;
        Some(deferred)
    }

    fn set(&self, name: i32, value: i32) {
        shadow::set_int_option(self.0.raw(), libc::IPPROTO_TCP, name, value);
    }

    fn get(&self, name: i32) -> Option<i32> {
        shadow::int_option(self.0.raw(), libc::IPPROTO_TCP, name)
    }

    fn repair(&self) -> bool {
        self.set(TCP_REPAIR, REPAIR_ON);
        self.get(TCP_REPAIR) == Some(REPAIR_ON)
    }

    /// With the millisecond in which it was seen. None if that ended meanwhile.
    fn stamp_offset(&self) -> Option<(u32, u32)> {
        let now = milliseconds();
        let stamp = self.get(TCP_TIMESTAMP)? as u32;
        (milliseconds() == now).then(|| (stamp.wrapping_sub(now), now))
    }

    fn sequence(&self) -> Option<u32> {
        if !self.repair() {
            return None;
        }
        self.set(TCP_REPAIR_QUEUE, SEND_QUEUE);
        self.get(TCP_QUEUE_SEQ).map(|sequence| sequence as u32)
    }
}

fn milliseconds() -> u32 {
    (monotonic_nanos() / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::fd::AsRawFd;

    #[test]
    fn it_is_where_the_kernel_starts() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let std::net::SocketAddr::V4(remote) = listener.local_addr().unwrap() else { panic!() };
        let flags = SocketFlags::CLOEXEC;
        let own = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        bind(&own, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let local = shadow::local_address(own.as_raw_fd()).unwrap();
        let first = of(local, remote).unwrap();
        let again = of(local, remote).unwrap();
        let exact = stamp_offsets([(local, remote)]).unwrap();
        assert_eq!(stamp_offsets([(local, remote)]), Some(exact));
        for start in [first, again] {
            assert!(exact[0].wrapping_sub(start.stamp_offset) <= 1, "{exact:?} {start:?}");
        }
        connect(&own, &remote).unwrap();
        let stamp = shadow::int_option(own.as_raw_fd(), libc::IPPROTO_TCP, TCP_TIMESTAMP).unwrap();
        let behind = milliseconds().wrapping_sub((stamp as u32).wrapping_sub(first.stamp_offset));
        assert!(behind <= 1000, "{behind} ms");
        if let (Some(before), Some(after)) = (first.sequence, again.sequence) {
            // A clock of 64 ns.
            assert!(after.wrapping_sub(before) < 1 << 28, "{before} {after}");
        }
    }
}
