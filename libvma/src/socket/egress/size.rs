//! What the size of a datagram, or of a train, means for how it is sent.

use std::net::SocketAddrV4;

use libvma_dev::ipv6_loopback::is_stand_in;
use libvma_engine::wire::{ipv4, udp};

use super::super::ancillary::Ancillary;
use super::super::block::Guard;
use crate::shard::{NextHop, SocketId};

/// UDP_MAX_SEGMENTS of Linux 6.18.
const MOST_SEGMENTS: usize = 128;

/// Is a datagram of so many bytes, or such a train, for the kernel to send as packets of IPv6, as it exceeds the MTU? The kernel says
/// what becomes of a train and what options of the socket mean, and no link has fragments.
pub(super) fn is_kernels_by_length(
    state: &mut Guard<'_>,
    id: SocketId,
    hop: &NextHop,
    ancillary: &Ancillary,
    (destination, len): (SocketAddrV4, usize),
) -> bool {
    // Of an interface, room for the longer header is left (`ipv6_stand_ins::room`).
    let header_len = if is_stand_in(*destination.ip()) { 40 } else { ipv4::HEADER_LEN };
    let of_socket = state.socket(id).map_or(0, |(_, socket)| socket.options.segment);
    let segment = ancillary.segment.unwrap_or(of_socket);
    let first = if segment == 0 { len } else { len.min(segment.into()) };
    if first + header_len + udp::HEADER_LEN <= hop.mtu as usize {
        return false;
    }
    // As many bytes as IPv4 carries.
    let is_cut = segment == 0
        && len <= udp::MAX_DATA_LEN
        && state.ring(hop.ring).is_some_and(|ring| !ring.is_local())
        && state.socket(id).is_some_and(|(_, socket)| !socket.options.cuts_ipv6_by_kernel);
    !is_cut
}

/// What the kernel says to a payload that is to leave as datagrams of `segment` bytes (udp_send_skb() of
/// Linux 6.18).
pub(super) fn check_train(len: usize, segment: u16, mtu: u32, checksum: bool) -> Result<(), i32> {
    let first = len.min(segment.into());
    if first + ipv4::HEADER_LEN + udp::HEADER_LEN > mtu as usize {
        return Err(libc::EMSGSIZE);
    }
    if len > MOST_SEGMENTS * usize::from(segment) || !checksum {
        return Err(libc::EINVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_train_is_judged_in_the_kernels_order() {
        assert_eq!(check_train(128 * 1472, 1472, 1500, true), Ok(()));
        assert_eq!(check_train(1, 65_535, 1500, true), Ok(()));
        assert_eq!(check_train(1473, 1473, 1500, true), Err(libc::EMSGSIZE));
        assert_eq!(check_train(129 * 1473, 1473, 1500, true), Err(libc::EMSGSIZE));
        assert_eq!(check_train(128 * 10 + 1, 10, 1500, true), Err(libc::EINVAL));
        assert_eq!(check_train(1, 10, 1500, false), Err(libc::EINVAL));
    }

    /// A packet of IPv6 has a longer header, and is never cut on its way.
    #[test]
    fn a_datagram_is_too_long_by_its_first_segment_and_its_familys_header() {
        use crate::socket::fixture::Udp;
        let stand_in = libvma_dev::ipv6_stand_ins::of("2001:db8::1".parse().unwrap()).unwrap();
        let loopback = libvma_dev::ipv6_loopback::end(9);
        let by_interface = SocketAddrV4::new(stand_in, 9);
        // The MTU of the hop is 1500; for an interface it has room for the longer header already.
        for (to, len, of_socket, of_call, expected) in [
            (loopback, 1452, 0, None, false),
            (loopback, 1453, 0, None, true),
            (by_interface, 1472, 0, None, false),
            (by_interface, 1473, 0, None, true),
            (loopback, 9000, 1452, None, false),
            (loopback, 9000, 1453, None, true),
            (loopback, 9000, 1453, Some(1000), false),
            (loopback, 9000, 1000, Some(0), true),
            (loopback, 100, 1453, None, false),
        ] {
            let udp = Udp::new();
            udp.with(|_, socket| socket.options.segment = of_socket);
            let mut ancillary = Ancillary::default();
            ancillary.segment = of_call;
            let hop = NextHop::nowhere();
            let mut state = udp.stack.shard.lock().unwrap();
            let given = (to, len);
            let is_kernels = is_kernels_by_length(&mut state, udp.id, &hop, &ancillary, given);
            assert_eq!(is_kernels, expected, "{to} {len} {of_socket} {of_call:?}");
        }
    }
}
