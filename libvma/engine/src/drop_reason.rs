//! The one list of reasons for which a received frame is not delivered. No counter lives here, only
//! their names.

/// Writes the enum, [`DropReason::ALL`] and [`DropReason::name`] from one list, so that none can
/// lack a row.
macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal;)+) => {
        /// Why a received frame was not delivered to a socket.
        ///
        /// At once the counter's key in the statistics, the word in the log and what the tests
        /// assert.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// Every reason, in the order of [`DropReason::index`].
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)+];

            /// The number of reasons: the length of an array of counters.
            pub const COUNT: usize = Self::ALL.len();

            /// The reason as one word for logs and statistics; it never changes once released.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DropReason::$variant => $name,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// The frame ends inside a header, or holds fewer bytes than its headers announce.
    TooShort "too_short";
    /// The Ethernet type is not 0x0800.
    NotIpv4 "not_ipv4";
    /// The destination MAC or IP address is not one of ours.
    NotForUs "not_for_us";
    /// The IP version field is not 4.
    BadIpVersion "bad_ip_version";
    /// The IP header length is below 20 bytes.
    BadIpHeaderLength "bad_ip_header_length";
    /// The IP total length is below the header's or beyond the frame's.
    BadIpTotalLength "bad_ip_total_length";
    /// The IP header checksum is wrong (RFC 1122 3.2.1.2: silently discard).
    BadIpChecksum "bad_ip_checksum";
    /// The source address is one nobody may send from: multicast, broadcast, loopback (RFC 1122
    /// 3.2.1.3).
    BadSourceAddress "bad_source_address";
    /// The IP protocol has no handler here.
    UnknownProtocol "unknown_protocol";
    /// The UDP length is below 8 or beyond the IP payload.
    BadUdpLength "bad_udp_length";
    /// The UDP checksum is wrong (RFC 1122 4.1.3.4: silently discard).
    BadUdpChecksum "bad_udp_checksum";
    /// The UDP destination port is 0, to which nothing can be bound.
    PortZero "port_zero";
    /// The fragment, or the datagram it completes, reaches beyond 65535 bytes.
    FragmentTooBig "fragment_too_big";
    /// The fragment overlaps another one: the whole datagram is given up (RFC 5722's rule, which
    /// Linux applies to IPv4).
    FragmentOverlap "fragment_overlap";
    /// The fragment carries only bytes that arrived before: it alone is dropped.
    FragmentDuplicate "fragment_duplicate";
    /// The fragment is empty, or not the last and not a multiple of 8 bytes long.
    FragmentBadLength "fragment_bad_length";
    /// The fragments disagree about where the datagram ends: the whole datagram is given up.
    FragmentEndConflict "fragment_end_conflict";
    /// The other fragments did not come in time.
    FragmentTimeout "fragment_timeout";
    /// The datagram was given up because reassembly reached its memory bound.
    FragmentMemory "fragment_memory";
    /// The TCP data offset is below 5 words or points beyond the IP payload.
    BadTcpHeaderLength "bad_tcp_header_length";
    /// The TCP checksum is wrong (RFC 9293 MUST-3).
    BadTcpChecksum "bad_tcp_checksum";
    /// The TCP flags make no sense in this state: SYN with FIN, or no ACK where there must be one.
    BadTcpFlags "bad_tcp_flags";
    /// A RST for no connection, or outside the window of the half-open one (RFC 9293 3.10.7.4).
    StrayReset "stray_reset";
    /// A RST or a new SYN ended the half-open connection (RFC 9293 3.10.7.4).
    RequestReset "request_reset";
    /// An ACK would have answered, but one did a moment ago (RFC 5961 section 7).
    AckRateLimit "ack_rate_limit";
    /// TCP_DEFER_ACCEPT: the acknowledgment of the SYN-ACK came without data.
    DeferAccept "defer_accept";
    /// The listener's accept queue is full: a SYN, or the end of a handshake, was ignored.
    ListenOverflow "listen_overflow";
    /// The listener has too many half-open connections, and SYN cookies are off.
    RequestQueueFull "request_queue_full";
    /// More SYNs per second than VMA_TCP_MAX_SYN_RATE allows a listener.
    SynRate "syn_rate";
    /// No socket is bound to the destination.
    NoSocket "no_socket";
    /// The segment is of a connection that was just given to the kernel: the peer sends it again.
    KernelsConnection "kernels_connection";
    /// A socket is bound to the destination but connected to another peer.
    NotFromPeer "not_from_peer";
    /// The receive buffer of the socket is full (SO_RCVBUF).
    SocketBufferFull "socket_buffer_full";
    /// The receiving side of the socket was shut down.
    SocketShutDown "socket_shut_down";
    /// The socket's multicast source filter excludes the sender (RFC 3376 section 3.1).
    SourceFiltered "source_filtered";
    /// The socket has not joined the multicast group on the interface the frame came by.
    NotMember "not_member";
}

impl DropReason {
    /// The place of this reason in [`DropReason::ALL`] and in an array of counters.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl core::fmt::Display for DropReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_the_place_in_all() {
        for (place, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), place);
        }
        assert_eq!(DropReason::COUNT, DropReason::ALL.len());
    }

    #[test]
    fn names_are_distinct_snake_case_words() {
        for (place, reason) in DropReason::ALL.iter().enumerate() {
            let name = reason.name();
            assert!(
                !name.is_empty()
                    && name
                        .bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            );
            assert!(
                DropReason::ALL[..place].iter().all(|other| other.name() != name),
                "{name} is taken twice"
            );
        }
    }
}
