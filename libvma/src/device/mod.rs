//! Ways onto the wire. A ring is a shard's endpoint on one interface: frames out, frames in,
//! flows that say what is ours. Nothing here knows a protocol or a socket; `ring` is what all kinds
//! of devices have in common.

mod ring;
pub mod shm;
mod tally;
pub mod xdp;

pub use ring::Ring;
pub use tally::Tally;

use core::net::Ipv4Addr;

use libvma_engine::frame::Frame;

/// A received packet: a chain of frames.
#[derive(Debug)]
pub struct Received {
    pub frame: Frame,
    /// Bytes in the whole chain.
    pub len: u32,
    /// Of UDP datagrams that came as one packet: bytes of each, but perhaps of the last one; else 0.
    pub segment: u16,
}

/// What steering matches (addresses and ports in host order).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// Everything that ends at this address and port: a bound socket, a multicast group.
    ThreeTuple { protocol: u8, destination: Ipv4Addr, port: u16 },
    /// One peer only: a connected socket.
    FiveTuple { protocol: u8, source: Ipv4Addr, source_port: u16, destination: Ipv4Addr, port: u16 },
}

impl Flow {
    pub fn destination(&self) -> (u8, Ipv4Addr) {
        match *self {
            Flow::ThreeTuple { protocol, destination, .. }
            | Flow::FiveTuple { protocol, destination, .. } => (protocol, destination),
        }
    }
}

/// Why an interface cannot be offloaded (or not now).
#[derive(Debug)]
pub enum OpenError {
    /// A system call was refused: its name and errno.
    System { call: &'static str, errno: i32 },
    /// The kernel counts the steering program's tables as locked memory (before Linux 5.11), and they are too large.
    LockedMemory,
    /// The steering program could not be loaded or attached.
    Program(String),
    /// Another process, or another kind of program, has the interface.
    Busy,
    /// So many processes have the interface by the library, and more may not.
    Shared(u32),
    /// Memory that another process offered is not what it should be.
    Segment(&'static str),
    /// The process may not, and the daemon does not grant it.
    Granted(String),
}

impl OpenError {
    /// Was it refused because the process may not?
    pub fn lacks_privilege(&self) -> bool {
        matches!(self, OpenError::System { errno: libc::EPERM | libc::EACCES, .. })
    }
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            OpenError::System { call, errno } => {
                write!(f, "{call} failed: {}", rustix::io::Errno::from_raw_os_error(*errno))?;
                match errno {
                    // AF_XDP refuses memory with this error where RLIMIT_MEMLOCK counts.
                    &libc::ENOBUFS => f.write_str(
                        "; let the program lock more memory (ulimit -l, LimitMEMLOCK= of a systemd unit), or give it \
                         CAP_IPC_LOCK",
                    ),
                    &libc::EMFILE | &libc::ENFILE => {
                        f.write_str("; let it have more descriptors (ulimit -n, LimitNOFILE= of a systemd unit)")
                    }
                    _ => Ok(()),
                }
            }
            OpenError::Program(text) => write!(f, "the steering program was refused: {text}"),
            OpenError::LockedMemory => f.write_str(
                "before Linux 5.11 its tables count as locked memory: let the program lock 32 MiB (ulimit -l, LimitMEMLOCK)",
            ),
            OpenError::Segment(text) => write!(f, "the memory of a link was refused: {text}"),
            OpenError::Shared(1) => f.write_str(
                "a program has it by the library, which a forked child does not share it with",
            ),
            OpenError::Shared(most) => {
                write!(f, "{most} programs have it by the library, which is the limit")
            }
            OpenError::Granted(text) => write!(f, "vmad does not grant it: {text}"),
            OpenError::Busy => {
                f.write_str("another XDP program or AF_XDP socket has the interface")
            }
        }
    }
}

/// What a ring is opened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    pub mac: [u8; 6],
    /// Its first address, which IP_PKTINFO tells of packets to a group.
    pub address: Ipv4Addr,
    pub mtu: u32,
    /// Queues that may receive; at most 64 are used.
    pub rx_queues: u32,
    /// Made of software alone (veth, tap, bridge, macvlan ...): its frames come in socket buffers.
    pub is_virtual: bool,
    /// A veth: with a program in its driver the peer sends no packets longer than the MTU. (The others that are made
    /// of software have no driver's hook, or one that takes part of the frames, or is that of an interface below.)
    pub is_veth: bool,
    /// Senders may be on this machine (virtual interfaces, virtio): they leave checksums unfinished.
    pub has_local_peers: bool,
}
