//! The words for what the snapshot says in numbers, as JSON, OpenMetrics and the live view use them.

use std::net::SocketAddr;

use libvma_dev::stats::{
    CLOSED, OFFLOADED, POOL_RX, POOL_TX, RING_SHM, RING_TAP, RING_VERBS, RING_XDP, Socket,
    WITHIN_HOST,
};

/// SOCK_STREAM.
const STREAM: u32 = 1;

/// By `Socket::kind`, which is SOCK_STREAM or SOCK_DGRAM.
pub fn protocol(socket: &Socket) -> &'static str {
    match socket.kind {
        STREAM => "TCP",
        2 => "UDP",
        _ => "other",
    }
}

/// None for UDP.
pub fn tcp_state(socket: &Socket) -> Option<&'static str> {
    const STATES: [&str; 12] = [
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
        "NEW_SYN_RECV",
    ];
    STATES.get((socket.tcp_state as usize).checked_sub(1)?).copied()
}

pub fn ring_kind(kind: u32) -> &'static str {
    match kind {
        RING_XDP => "xdp",
        RING_SHM => "shm",
        RING_TAP => "tap",
        RING_VERBS => "verbs",
        _ => "other",
    }
}

pub fn pool_kind(kind: u32) -> &'static str {
    match kind {
        POOL_RX => "rx",
        POOL_TX => "tx",
        _ => "other",
    }
}

/// Who carries a socket's packets: the device, shared memory within the host, or the kernel.
pub fn served_by(socket: &Socket) -> &'static str {
    if socket.flags & OFFLOADED == 0 {
        "kernel"
    } else if socket.flags & WITHIN_HOST != 0 {
        "host"
    } else {
        "offload"
    }
}

pub fn is_closed(socket: &Socket) -> bool {
    socket.flags & CLOSED != 0
}

pub fn local(socket: &Socket) -> Option<String> {
    address(socket.local, socket.local_end())
}

pub fn peer(socket: &Socket) -> Option<String> {
    address(socket.peer, socket.peer_end())
}

fn address(address: [u8; 4], end: SocketAddr) -> Option<String> {
    let is_there = address != [0; 4] || end.port() != 0;
    is_there.then(|| end.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv6_is_shown_as_what_it_is() {
        let six: std::net::Ipv6Addr = "2001:db8::7".parse().unwrap();
        let peer_of = |peer_ipv6| Socket {
            peer: [0, 1, 2, 3],
            peer_ipv6,
            peer_port: 443,
            ..Socket::default()
        };
        assert_eq!(peer(&peer_of(six.octets())).as_deref(), Some("[2001:db8::7]:443"));
        let any = libvma_dev::ipv6_stand_ins::ANY.octets();
        let listener = Socket { local: any, local_port: 80, ..Socket::default() };
        assert_eq!(local(&listener).as_deref(), Some("[::]:80"));
    }

    #[test]
    fn the_loopback_address_of_ipv6_is_shown_as_what_it_is() {
        let end = libvma_dev::ipv6_loopback::end(80);
        let (ip, port) = (end.ip().octets(), end.port());
        let socket = Socket { local: ip, local_port: port, ..Socket::default() };
        assert_eq!(local(&socket).as_deref(), Some("[::1]:80"));
        assert_eq!(peer(&socket), None);
    }

    #[test]
    fn states_are_numbered_as_the_kernel_does() {
        let state = |tcp_state| tcp_state_of(tcp_state);
        assert_eq!(
            [state(0), state(1), state(10), state(99)],
            [None, Some("ESTABLISHED"), Some("LISTEN"), None]
        );
    }

    fn tcp_state_of(number: u32) -> Option<&'static str> {
        tcp_state(&Socket { tcp_state: number, ..Socket::default() })
    }

    #[test]
    fn a_socket_is_served_by_one() {
        let by = |flags| served_by(&Socket { flags, ..Socket::default() });
        assert_eq!(
            [by(0), by(WITHIN_HOST), by(OFFLOADED), by(OFFLOADED | WITHIN_HOST)],
            ["kernel", "kernel", "offload", "host"]
        );
    }

    #[test]
    fn a_port_without_an_address_is_an_address() {
        let bound = Socket { local_port: 53, ..Socket::default() };
        assert_eq!(local(&bound).map(|a| a.to_string()), Some("0.0.0.0:53".to_owned()));
        assert_eq!(peer(&bound), None);
    }
}
