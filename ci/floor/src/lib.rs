//! The measuring floor: the least a UDP message can cost over AF_XDP in copy mode.
//!
//! libvma is compared with three programs. `xdp-echo` (latency) and `xdp-blast` (message
//! rate) drive an AF_XDP socket with no sockets API above it; `udp-rate` is an ordinary
//! socket program that runs on the kernel or, by `LD_PRELOAD`, on libvma. Between processes of one
//! host it is compared with `shm-ping-pong` (two cache lines) and `shm-bulk` (two copies), which
//! need none of the modules for AF_XDP. In the order of a frame's way out:

pub mod datagram; // their Ethernet, IPv4 and UDP headers
pub mod mmsg;
pub mod ring; // our end of the four AF_XDP rings
pub mod source; // sends numbered messages
pub mod steering; // the XDP program that feeds the socket
pub mod umem; // memory shared with the kernel, cut into frames with one owner each
pub mod xsk; // the AF_XDP socket: memory, rings, kick // sendmmsg and recvmmsg for `udp-rate`

pub mod cpu; // pinning
pub mod latency; // round-trip times to percentiles
pub mod meter; // arrivals to a message rate
