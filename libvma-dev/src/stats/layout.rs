//! The statistics file, byte for byte. A change of any of these types is a new [`VERSION`].

use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ipv6_loopback;

pub const MAGIC: [u8; 8] = *b"libvmaST";
pub const VERSION: u32 = 4;

/// Places for rings, buffer pools, epoll instances and reasons of a drop.
pub const RINGS: usize = 16;
pub const POOLS: usize = 2;
pub const EPOLLS: usize = 32;
pub const REASONS: usize = 48;
/// Groups of a socket that are told; Linux allows 20 (net.ipv4.igmp_max_memberships).
pub const GROUPS: usize = 20;
/// Sockets that one request can name.
pub const NAMED: usize = 64;

macro_rules! plain {
    ($($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $kind:ty,)* })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }

        impl Default for $name {
            fn default() -> Self {
                <$name as zerocopy::FromZeros>::new_zeroed()
            }
        })*
    };
}

plain! {
    /// At the start of the file; written once.
    pub struct Header {
        /// [`MAGIC`].
        pub magic: [u8; 8],
        /// [`VERSION`].
        pub version: u32,
        /// Process that writes.
        pub process: u32,
        /// Version of the library: major, minor, revision.
        pub library: [u32; 3],
        /// Places for sockets (VMA_STATS_FD_NUM).
        pub sockets: u32,
        /// When the process began to write, in nanoseconds of CLOCK_REALTIME.
        pub began: u64,
    }

    /// What readers ask for. A number that says "so many times" is raised by who asks; the library
    /// answers by [`Snapshot::answered`].
    pub struct Control {
        /// So many snapshots were asked for.
        pub requests: u32,
        /// Level of the log as in VMA_TRACELEVEL (0 = panic ... 8 = all, -1 = none): what is
        /// written here holds. The library writes the one it starts with.
        pub log_level: i32,
        /// VMA_LOG_DETAILS, likewise.
        pub log_details: i32,
        /// So many dumps of a descriptor to the log were asked for.
        pub dumps: u32,
        /// Which; 0 is all.
        pub dump_descriptor: i32,
        /// At which level of the log.
        pub dump_level: i32,
        /// So many times counters were to be set to zero.
        pub zeroings: u32,
        /// Of so many sockets of the list only; 0: of everything.
        pub zero_count: u32,
        pub zero_list: [i32; NAMED],
    }

    /// The counters; sockets follow.
    pub struct Snapshot {
        /// Odd while a snapshot is being written. One that is read between two equal even values is
        /// of one instant.
        pub sequence: u64,
        /// Nanoseconds of CLOCK_MONOTONIC.
        pub taken: u64,
        /// [`Control::requests`] that this snapshot answers.
        pub answered: u32,
        /// Sockets that are open, and those of them for which there was no place.
        pub sockets_open: u32,
        pub sockets_hidden: u32,
        pub reserved: u32,
        /// Of all sockets that ever were, with those that have no place here.
        pub totals: Counters,
        /// Held by the program, of all sockets, also those that are closed: [`Socket::zero_copy_packets`].
        pub zero_copy_packets: u64,
        pub zero_copy_bytes: u64,
        pub poll: Multiplexer,
        pub select: Multiplexer,
        pub epolls: [Epoll; EPOLLS],
        pub rings: [Ring; RINGS],
        pub pools: [Pool; POOLS],
        /// Received and not delivered.
        pub drops: [Drop; REASONS],
    }

    /// What a socket has counted. A packet is a datagram, or for TCP a segment.
    pub struct Counters {
        pub rx_packets: u64,
        pub rx_bytes: u64,
        pub rx_eagain: u64,
        pub rx_errors: u64,
        /// Receive calls that found something while they polled, and those that went to sleep.
        pub rx_poll_hits: u64,
        pub rx_poll_misses: u64,
        /// The most that ever waited to be read.
        pub rx_ready_packets_max: u64,
        pub rx_ready_bytes_max: u64,
        /// For want of room in the socket's buffer.
        pub rx_dropped_packets: u64,
        pub rx_dropped_bytes: u64,
        /// By the kernel's socket.
        pub rx_os_packets: u64,
        pub rx_os_bytes: u64,
        pub rx_os_poll_hits: u64,
        pub rx_os_errors: u64,
        pub rx_os_eagain: u64,
        pub rx_ring_migrations: u64,
        pub tx_packets: u64,
        pub tx_bytes: u64,
        pub tx_errors: u64,
        pub tx_eagain: u64,
        /// Lost for want of a frame or of room.
        pub tx_dropped: u64,
        pub tx_retransmissions: u64,
        pub tx_os_packets: u64,
        pub tx_os_bytes: u64,
        pub tx_os_errors: u64,
        pub tx_os_eagain: u64,
        pub tx_ring_migrations: u64,
        pub tx_dummy_packets: u64,
    }

    /// What all calls of poll, of select, or on one epoll instance have counted.
    pub struct Multiplexer {
        /// Calls that found something while they polled, and those that slept.
        pub poll_hits: u64,
        pub poll_misses: u64,
        pub timeouts: u64,
        pub errors: u64,
        /// Descriptors told ready, ours and the kernel's.
        pub ready: u64,
        pub ready_os: u64,
        /// Thread of the last call.
        pub thread: u32,
        /// Share of its time that is spent polling, in percent; 0 without VMA_CPU_USAGE_STATS.
        pub polling_cpu: u32,
    }

    pub struct Epoll {
        pub used: u32,
        pub descriptor: i32,
        pub calls: Multiplexer,
    }

    /// A ring and its completion queue.
    pub struct Ring {
        /// [`RING_XDP`] ...; 0 is an unused place.
        pub kind: u32,
        pub interface: u32,
        /// Name of the interface, padded with zeros.
        pub name: [u8; 16],
        pub rx_packets: u64,
        pub rx_bytes: u64,
        pub tx_packets: u64,
        pub tx_bytes: u64,
        /// By the device, for want of frames.
        pub rx_dropped: u64,
        /// For want of frames or of room.
        pub tx_dropped: u64,
        pub retransmissions: u64,
        /// Sleeps on the ring, and wake-ups by it.
        pub interrupts_requested: u64,
        pub interrupts_received: u64,
        /// System calls that tell the device, or bells that wake a peer.
        pub kicks: u64,
        /// Within the host: messages, which are pieces of connections.
        pub rx_messages: u64,
        pub tx_messages: u64,
        /// Most packets taken at once.
        pub drained_max: u32,
        /// Packets that wait to be taken.
        pub queued: u32,
        /// Frames that wait for packets.
        pub buffers: u32,
        /// Within the host: processes linked.
        pub links: u32,
        pub moderation_packets: u32,
        pub moderation_period: u32,
        /// On-device memory.
        pub device_memory: u32,
        pub reserved: u32,
        pub device_memory_bytes: u64,
        pub device_memory_packets: u64,
        pub device_memory_full: u64,
    }

    pub struct Pool {
        /// [`POOL_RX`] or [`POOL_TX`]; 0 is an unused place.
        pub kind: u32,
        /// Frames that are free.
        pub free: u32,
        /// How often none was.
        pub no_buffers: u64,
    }

    pub struct Drop {
        /// The reason in words, padded with zeros; empty is an unused place.
        pub reason: [u8; 56],
        pub count: u64,
    }

    pub struct Socket {
        /// 1 if the place is used.
        pub used: u32,
        pub descriptor: i32,
        pub inode: u64,
        /// SOCK_STREAM or SOCK_DGRAM.
        pub kind: u32,
        /// As the kernel numbers them (1 = ESTABLISHED ... 10 = LISTEN); 0 for UDP.
        pub tcp_state: u32,
        /// [`OFFLOADED`] ...
        pub flags: u32,
        /// Threads of the last calls; 0 is none.
        pub rx_thread: u32,
        pub tx_thread: u32,
        pub reserved: u32,
        /// 0.0.0.0:0 is none.
        pub local: [u8; 4],
        pub peer: [u8; 4],
        pub local_port: u16,
        pub peer_port: u16,
        /// Address of the interface for multicast, 0.0.0.0 is none.
        pub multicast_interface: [u8; 4],
        /// The addresses that the local one and the peer's stand for in the process ([`crate::ipv6_stand_ins`]), if they do;
        /// else zeros.
        pub local_ipv6: [u8; 16],
        pub peer_ipv6: [u8; 16],
        /// Wait to be read.
        pub ready_packets: u64,
        pub ready_bytes: u64,
        /// SO_RCVBUF.
        pub ready_limit: u64,
        /// The program has them: held by a receive callback, or lent by recvfrom_zcopy().
        pub zero_copy_packets: u64,
        pub zero_copy_bytes: u64,
        /// Sent and not acknowledged, and not sent yet.
        pub unsent_bytes: u64,
        pub counters: Counters,
        pub tcp: Tcp,
        /// Why the kernel serves it, padded with zeros; empty if it does not.
        pub reason: [u8; 64],
        pub group_count: u32,
        /// Those of IPv4 mapped (RFC 4291 section 2.5.5.2).
        pub groups: [[u8; 16]; GROUPS],
        pub reserved_end: u32,
    }

    /// What a TCP connection is like. All zero if there is none, or the kernel has it.
    pub struct Tcp {
        /// Microseconds.
        pub round_trip: u32,
        pub round_trip_variance: u32,
        pub retransmission_timeout: u32,
        /// Bytes.
        pub congestion_window: u32,
        pub slow_start_threshold: u32,
        pub segment_size: u32,
        pub send_window: u32,
        pub receive_window: u32,
        pub timeouts: u64,
        pub out_of_order: u64,
    }
}

/// Kinds of rings. The numbers of the original product's, as far as it has them.
pub const RING_XDP: u32 = 1;
pub const RING_SHM: u32 = 2;
pub const RING_TAP: u32 = 3;
pub const RING_VERBS: u32 = 4;

pub const POOL_RX: u32 = 1;
pub const POOL_TX: u32 = 2;

/// Flags of a socket.
pub const OFFLOADED: u32 = 1;
pub const BLOCKING: u32 = 1 << 1;
pub const MULTICAST_LOOP: u32 = 1 << 2;
/// The peer is a process of this host, reached by shared memory.
pub const WITHIN_HOST: u32 = 1 << 3;
/// Counted, and closed already: a connection that is not finished.
pub const CLOSED: u32 = 1 << 4;

/// Where what is in the file.
pub const CONTROL_AT: u64 = size_of::<Header>() as u64;
pub const SNAPSHOT_AT: u64 = CONTROL_AT + size_of::<Control>() as u64;
pub const SOCKETS_AT: u64 = SNAPSHOT_AT + size_of::<Snapshot>() as u64;

/// Bytes of a file with so many places for sockets.
pub const fn size(sockets: u32) -> u64 {
    SOCKETS_AT + sockets as u64 * size_of::<Socket>() as u64
}

impl Socket {
    /// The local address as the kernel has it.
    pub fn local_end(&self) -> SocketAddr {
        end(self.local, self.local_ipv6, self.local_port)
    }

    /// The peer's.
    pub fn peer_end(&self) -> SocketAddr {
        end(self.peer, self.peer_ipv6, self.peer_port)
    }

    /// The groups that it is a member of, as far as they are told.
    pub fn memberships(&self) -> impl Iterator<Item = IpAddr> {
        let count = (self.group_count as usize).min(GROUPS);
        self.groups.into_iter().take(count).map(|group| Ipv6Addr::from(group).to_canonical())
    }

    /// A length below zero, which a process tells as a number near 2^64, is that of an empty queue.
    pub(super) fn end_queues_below_zero(&mut self) {
        let lengths = [
            &mut self.ready_packets,
            &mut self.ready_bytes,
            &mut self.unsent_bytes,
            &mut self.zero_copy_packets,
            &mut self.zero_copy_bytes,
        ];
        lengths
            .into_iter()
            .filter(|length| length.cast_signed() < 0)
            .for_each(|length| *length = 0);
    }
}

/// Stand-ins that are the same in all processes need no other word.
fn end(address: [u8; 4], ipv6: [u8; 16], port: u16) -> SocketAddr {
    match Ipv6Addr::from(ipv6) {
        Ipv6Addr::UNSPECIFIED => ipv6_loopback::named(SocketAddrV4::new(address.into(), port)),
        ipv6 => SocketAddr::from((ipv6, port)),
    }
}

impl Counters {
    /// Adds another's; of maxima the larger.
    pub fn add(&mut self, other: &Counters) {
        let (packets, bytes) = (self.rx_ready_packets_max, self.rx_ready_bytes_max);
        for (sum, number) in self.words_mut().iter_mut().zip(other.words()) {
            *sum = sum.wrapping_add(*number);
        }
        self.rx_ready_packets_max = packets.max(other.rx_ready_packets_max);
        self.rx_ready_bytes_max = bytes.max(other.rx_ready_bytes_max);
    }

    /// What came since `earlier`; maxima as they are now.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let mut delta = *self;
        for (now, before) in delta.words_mut().iter_mut().zip(earlier.words()) {
            *now = now.saturating_sub(*before);
        }
        delta.rx_ready_packets_max = self.rx_ready_packets_max;
        delta.rx_ready_bytes_max = self.rx_ready_bytes_max;
        delta
    }

    fn words(&self) -> &[u64] {
        <[u64]>::ref_from_bytes(self.as_bytes()).unwrap_or_default()
    }

    fn words_mut(&mut self) -> &mut [u64] {
        <[u64]>::mut_from_bytes(self.as_mut_bytes()).unwrap_or_default()
    }
}

/// Text into a field that is padded with zeros; what does not fit is cut off.
pub fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let mut end = text.len().min(N);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    if let (Some(to), Some(from)) = (field.get_mut(..end), text.as_bytes().get(..end)) {
        to.copy_from_slice(from);
    }
    field
}

/// And back.
pub fn read_text(field: &[u8]) -> &str {
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
    core::str::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_as_it_was_when_the_version_was_given() {
        let sizes = [
            size_of::<Header>(),
            size_of::<Control>(),
            size_of::<Snapshot>(),
            size_of::<Socket>(),
            size_of::<Counters>(),
        ];
        assert_eq!(
            (VERSION, sizes),
            (4, [40, 288, 8352, 800, 224]),
            "a new layout is a new version"
        );
    }

    #[test]
    fn sums_and_differences_keep_maxima() {
        let one = Counters { rx_packets: 5, rx_ready_bytes_max: 9, ..Counters::default() };
        let mut sum = Counters { rx_packets: 2, rx_ready_bytes_max: 4, ..Counters::default() };
        sum.add(&one);
        assert_eq!((sum.rx_packets, sum.rx_ready_bytes_max), (7, 9));
        let delta = sum.since(&one);
        assert_eq!((delta.rx_packets, delta.rx_ready_bytes_max), (2, 9));
    }

    #[test]
    fn text_is_cut_at_a_character() {
        assert_eq!(read_text(&text::<4>("aéé")), "aé");
        assert_eq!(read_text(&text::<4>("abcd")), "abcd");
        assert_eq!(read_text(&text::<4>("")), "");
    }
}
