//! Control messages of a received datagram, in the kernel's order and layout (cmsg(3), ip(7)).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};

use libvma_dev::ipv6_loopback::is_stand_in;
use libvma_dev::ipv6_stand_ins;

use super::Socket;
use super::options::Ipv6Told;
use crate::shard::datagram::Datagram;
use crate::sys::shadow::to_sockaddr;
use crate::sys::sockaddr::SocketName;
use crate::sys::time::realtime_nanos;
use crate::sys::user;

const ALIGN: usize = size_of::<usize>();
const HEADER: usize = size_of::<libc::cmsghdr>();
/// The loopback interface's index in every network namespace.
const LOOPBACK: u32 = 1;

/// Writes control messages into the program's buffer as put_cmsg() of the kernel does: one that
/// does not fit is cut and nothing follows it.
pub struct ControlWriter<'a> {
    room: &'a mut [u8],
    written: usize,
    cut: bool,
}

impl<'a> ControlWriter<'a> {
    pub fn new(room: &'a mut [u8]) -> Self {
        ControlWriter { room, written: 0, cut: false }
    }

    pub fn written(&self) -> usize {
        self.written
    }

    /// MSG_CTRUNC.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Everything the socket asked to be told of a datagram.
    /// `own` is the first address of the interface it came by.
    pub fn describe(&mut self, datagram: &Datagram, socket: &Socket, own: Option<Ipv4Addr>) {
        let options = &socket.options;
        // One that arrived before anybody asked for stamps is stamped now, as the kernel does.
        let stamp = match datagram.stamp {
            0 if options.timestamp_ns || options.timestamp || options.timestamping_software => {
                realtime_nanos()
            }
            stamp => stamp,
        };
        if options.timestamp_ns {
            self.put(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &timespec(stamp));
        } else if options.timestamp {
            self.put(libc::SOL_SOCKET, libc::SCM_TIMESTAMP, &timeval(stamp));
        }
        if options.timestamping_software {
            let mut stamps = [0u8; 48];
            stamps[..16].copy_from_slice(&timespec(stamp));
            self.put(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, &stamps);
        }
        if options.rxq_overflow && datagram.drops_before > 0 {
            self.put(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &datagram.drops_before.to_ne_bytes());
        }
        let train = datagram.train;
        if options.receive_segment
            && train.whole
            && train.segment != 0
            && datagram.len > train.segment.into()
        {
            let size = i32::from(train.segment);
            self.put(libc::IPPROTO_UDP, libc::UDP_GRO, &size.to_ne_bytes());
        }
        if is_stand_in(datagram.destination) {
            return self.describe_ipv6(datagram, socket, (Ipv6Addr::LOCALHOST, LOOPBACK));
        }
        if let Some(destination) = ipv6_stand_ins::real(datagram.destination) {
            return self.describe_ipv6(datagram, socket, (destination, datagram.interface));
        }
        if options.packet_info.has_ipv6() {
            let mut info = [0u8; 20];
            info[..16].copy_from_slice(&datagram.destination.to_ipv6_mapped().octets());
            info[16..].copy_from_slice(&datagram.interface.to_ne_bytes());
            self.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        if options.packet_info.has_ip() {
            // What a reply is to be sent from.
            let multicast = datagram.destination.is_multicast();
            let specific = match datagram.interface {
                0 => Ipv4Addr::UNSPECIFIED,
                _ => own.filter(|_| multicast).unwrap_or(datagram.destination),
            };
            let mut info = [0u8; 12];
            info[..4].copy_from_slice(&datagram.interface.to_ne_bytes());
            info[4..8].copy_from_slice(&specific.octets());
            info[8..].copy_from_slice(&datagram.destination.octets());
            self.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        if options.receive_ttl {
            self.put(libc::IPPROTO_IP, libc::IP_TTL, &i32::from(datagram.ttl).to_ne_bytes());
        }
        if options.receive_tos {
            self.put(libc::IPPROTO_IP, libc::IP_TOS, &[datagram.tos]);
        }
        if options.original_destination {
            let port = socket.local.map_or(0, |local| local.port());
            let address = to_sockaddr(std::net::SocketAddrV4::new(datagram.destination, port));
            let mut bytes = [0u8; 16];
            bytes[..2].copy_from_slice(&address.sin_family.to_ne_bytes());
            bytes[2..4].copy_from_slice(&address.sin_port.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.sin_addr.s_addr.to_ne_bytes());
            self.put(libc::IPPROTO_IP, libc::IP_ORIGDSTADDR, &bytes);
        }
    }

    /// The control messages of a datagram of IPv6, by its destination and the interface that it came by.
    #[inline(never)]
    fn describe_ipv6(
        &mut self,
        datagram: &Datagram,
        socket: &Socket,
        (destination, interface): (Ipv6Addr, u32),
    ) {
        let mut info = [0u8; 20];
        info[..16].copy_from_slice(&destination.octets());
        info[16..].copy_from_slice(&interface.to_ne_bytes());
        let (hops, class) = (i32::from(datagram.ttl), i32::from(datagram.tos));
        let options = &socket.options;
        if options.packet_info.has_ipv6() {
            self.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        for name in Ipv6Told::OPTIONS.into_iter().filter(|name| options.ipv6_told.has(*name)) {
            match name {
                libc::IPV6_RECVHOPLIMIT => {
                    self.put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops.to_ne_bytes());
                }
                libc::IPV6_RECVTCLASS => {
                    self.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class.to_ne_bytes());
                }
                libc::IPV6_2292PKTINFO => self.put(libc::IPPROTO_IPV6, name, &info),
                libc::IPV6_2292HOPLIMIT => {
                    self.put(libc::IPPROTO_IPV6, name, &hops.to_ne_bytes());
                }
                // IPV6_RECVORIGDSTADDR, whose message has its number.
                _ => {
                    let port = socket.local.map_or(0, |local| local.port());
                    let name6 = SocketName::of_ipv6(SocketAddrV6::new(destination, port, 0, 0));
                    self.put(libc::IPPROTO_IPV6, name, name6.bytes());
                }
            }
        }
    }

    fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        if self.cut {
            return;
        }
        let room = self.room.len() - self.written;
        if room < HEADER {
            self.cut = true;
            return;
        }
        let mut len = HEADER + data.len();
        if len > room {
            self.cut = true;
            len = room;
        }
        let out = &mut self.room[self.written..self.written + len];
        if !user::takes(out) {
            // The kernel's put_cmsg() fails, and no caller of it looks.
            return;
        }
        out[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
        out[8..12].copy_from_slice(&level.to_ne_bytes());
        out[12..16].copy_from_slice(&kind.to_ne_bytes());
        out[HEADER..].copy_from_slice(&data[..len - HEADER]);
        self.written += len.next_multiple_of(ALIGN).min(room);
    }
}

fn timespec(nanos: u64) -> [u8; 16] {
    pair(nanos / 1_000_000_000, nanos % 1_000_000_000)
}

fn timeval(nanos: u64) -> [u8; 16] {
    pair(nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000)
}

fn pair(first: u64, second: u64) -> [u8; 16] {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&first.to_ne_bytes());
    bytes[8..].copy_from_slice(&second.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_layout_of_cmsghdr() {
        let mut room = [0xffu8; 64];
        let mut writer = ControlWriter::new(&mut room);
        writer.put(0, libc::IP_TTL, &64i32.to_ne_bytes());
        assert_eq!((writer.written(), writer.is_cut()), (24, false));
        assert_eq!(room[..8], 20usize.to_ne_bytes());
        assert_eq!(room[12..16], libc::IP_TTL.to_ne_bytes());
        assert_eq!(room[16..20], 64i32.to_ne_bytes());
    }

    #[test]
    fn too_little_room_cuts_and_ends() {
        let mut room = [0u8; 18];
        let mut writer = ControlWriter::new(&mut room);
        writer.put(0, libc::IP_TTL, &64i32.to_ne_bytes());
        assert!(writer.is_cut());
        assert_eq!(writer.written(), 18);
        writer.put(0, libc::IP_TOS, &[1]);
        assert_eq!(writer.written(), 18);
    }

    /// A datagram that came to this address by interface 3.
    fn datagram(destination: Ipv4Addr) -> Datagram {
        Datagram {
            body: crate::shard::datagram::Body::Heap([].into()),
            len: 3000,
            skip: 0,
            train: Default::default(),
            source: std::net::SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 80),
            destination,
            interface: 3,
            ttl: 61,
            tos: 0x12,
            after_kernel: 0,
            by_link: false,
            stamp: 1_000_000_005_006,
            drops_before: 0,
        }
    }

    /// The messages of a datagram: level, type and data.
    fn told(
        datagram: &Datagram,
        set: impl FnOnce(&mut crate::socket::options::Options),
    ) -> Vec<(i32, i32, Vec<u8>)> {
        let stack = crate::socket::fixture::stack();
        let mut socket = Socket::new(-1, true, &stack.config);
        socket.local = Some(std::net::SocketAddrV4::new(datagram.destination, 7));
        set(&mut socket.options);
        let mut room = [0; 512];
        let mut writer = ControlWriter::new(&mut room);
        writer.describe(datagram, &socket, Some(FIRST_OF_INTERFACE));
        let written = writer.written();
        let mut left = &room[..written];
        let mut all = Vec::new();
        while !left.is_empty() {
            let number = |at: usize| i32::from_ne_bytes(left[at..at + 4].try_into().unwrap());
            let len = usize::from_ne_bytes(left[..8].try_into().unwrap());
            all.push((number(8), number(12), left[HEADER..len].to_vec()));
            left = &left[len.next_multiple_of(ALIGN)..];
        }
        all
    }

    const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const FIRST_OF_INTERFACE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 99);

    /// sock_recv_timestamp() and ip_cmsg_recv_offset() of Linux 6.18.
    #[test]
    fn all_messages_come_in_the_kernels_order() {
        let all = told(&datagram(HERE), |options| {
            options.timestamp_ns = true;
            options.timestamping_software = true;
            options.packet_info = crate::socket::options::PacketInfo::Both;
            (options.receive_ttl, options.receive_tos) = (true, true);
            options.original_destination = true;
        });
        let kinds: Vec<_> =
            all.iter().map(|(level, kind, data)| (*level, *kind, data.len())).collect();
        let expected = [
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, 16),
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, 48),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20),
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 12),
            (libc::IPPROTO_IP, libc::IP_TTL, 4),
            (libc::IPPROTO_IP, libc::IP_TOS, 1),
            (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR, 16),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(all[0].2, [&1000u64.to_ne_bytes()[..], &5006u64.to_ne_bytes()].concat());
        assert_eq!(all[1].2[..16], all[0].2, "the first of three stamps");
        assert!(all[1].2[16..].iter().all(|byte| *byte == 0));
        assert_eq!(all[2].2[..16], HERE.to_ipv6_mapped().octets());
        assert_eq!((&all[4].2[..], &all[5].2[..]), (&61i32.to_ne_bytes()[..], &[0x12][..]));
        assert_eq!(all[6].2[2..8], [0, 7, 10, 0, 0, 1], "port and address in network order");
    }

    #[test]
    fn a_stamp_is_told_in_the_unit_that_was_asked_for() {
        let micros = told(&datagram(HERE), |options| options.timestamp = true);
        let expected = [&1000u64.to_ne_bytes()[..], &5u64.to_ne_bytes()].concat();
        assert_eq!(micros, [(libc::SOL_SOCKET, libc::SCM_TIMESTAMP, expected)]);
        // A datagram that came before stamps were asked for is stamped now.
        let unstamped = Datagram { stamp: 0, ..datagram(HERE) };
        let now = told(&unstamped, |options| options.timestamp_ns = true);
        assert!(u64::from_ne_bytes(now[0].2[..8].try_into().unwrap()) > 1_000_000_000);
    }

    /// ip(7), IP_PKTINFO: the local address of a packet to a group is that of the interface.
    #[test]
    fn a_reply_to_a_group_is_to_come_from_the_interface() {
        let info = |datagram: &Datagram| {
            let all = told(datagram, |it| it.packet_info = crate::socket::options::PacketInfo::Ip);
            let data = &all[0].2;
            let address =
                |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&data[at..at + 4]).unwrap());
            (data[0], address(4), address(8))
        };
        let group = Ipv4Addr::new(239, 1, 1, 1);
        assert_eq!(info(&datagram(HERE)), (3, HERE, HERE));
        assert_eq!(info(&datagram(group)), (3, FIRST_OF_INTERFACE, group));
        // The option came after the datagram: the kernel does not know either.
        let early = Datagram { interface: 0, ..datagram(group) };
        assert_eq!(info(&early), (0, Ipv4Addr::UNSPECIFIED, group));
    }

    #[test]
    fn losses_and_trains_are_told_only_where_there_are_some() {
        let set = |options: &mut crate::socket::options::Options| {
            (options.rxq_overflow, options.receive_segment) = (true, true);
        };
        assert_eq!(told(&datagram(HERE), set), []);
        let lossy = Datagram { drops_before: 9, ..datagram(HERE) };
        let expected = (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 9u32.to_ne_bytes().to_vec());
        assert_eq!(told(&lossy, set), [expected]);
        let train = |segment, whole| {
            let train = crate::shard::datagram::Train { segment, whole };
            told(&Datagram { train, ..datagram(HERE) }, set)
        };
        let size = (libc::IPPROTO_UDP, libc::UDP_GRO, 1200i32.to_ne_bytes().to_vec());
        assert_eq!(train(1200, true), [size]);
        assert_eq!(train(1200, false), [], "it is received one by one");
        assert_eq!(train(3000, true), [], "it is one datagram");
    }

    /// ip6_datagram_recv_specific_ctl() of Linux 6.18. None of IPv4 is told of a packet of IPv6.
    #[test]
    fn a_packet_of_ipv6_is_told_by_its_own_messages() {
        let set = |options: &mut crate::socket::options::Options| {
            options.packet_info = crate::socket::options::PacketInfo::Both;
            (options.receive_ttl, options.receive_tos) = (true, true);
            for name in Ipv6Told::OPTIONS {
                options.ipv6_told.set(name, true);
            }
        };
        let real: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let stand_in = ipv6_stand_ins::of(real).unwrap();
        let loopback = *libvma_dev::ipv6_loopback::end(7).ip();
        for (destination, real, interface) in
            [(stand_in, real, 3u32), (loopback, Ipv6Addr::LOCALHOST, LOOPBACK)]
        {
            let all = told(&datagram(destination), set);
            let kinds: Vec<_> = all.iter().map(|(level, kind, _)| (*level, *kind)).collect();
            let v6 = |name| (libc::IPPROTO_IPV6, name);
            let [_, _, _, _, original] = Ipv6Told::OPTIONS;
            let expected = [
                v6(libc::IPV6_PKTINFO),
                v6(libc::IPV6_HOPLIMIT),
                v6(libc::IPV6_TCLASS),
                v6(libc::IPV6_2292PKTINFO),
                v6(libc::IPV6_2292HOPLIMIT),
                v6(original),
            ];
            assert_eq!(kinds, expected);
            let info = [&real.octets()[..], &interface.to_ne_bytes()].concat();
            assert_eq!((&all[0].2, &all[3].2), (&info, &info));
            assert_eq!(
                (&all[1].2[..], &all[2].2[..]),
                (&61i32.to_ne_bytes()[..], &0x12i32.to_ne_bytes()[..])
            );
            assert_eq!(all[5].2[8..24], real.octets());
        }
    }
}
