//! The Extra API without `unsafe`: receive callbacks, packets in memory that the library lends, completions, and control.
//!
//! Nothing is linked: a program asks with [`Vma::get`] whether it runs under libvma, and goes on with plain sockets if not.
//! [`crate::extra`] has the same in C's types.
//!
//! ```
//! use std::net::UdpSocket;
//! use libvma_dev::vma::{Data, Vma};
//!
//! # fn main() -> std::io::Result<()> {
//! let socket = UdpSocket::bind("127.0.0.1:0")?;
//! socket.send_to(b"to myself", socket.local_addr()?)?;
//!
//! let mut buffer = [0; 2048];
//! match Vma::get() {
//!     Some(vma) => match vma.receive(&socket, &mut buffer)?.data {
//!         Data::Lent(packets) => packets.for_each(|packet| println!("{:?}", packet.bytes())),
//!         Data::Copied(bytes) => println!("{bytes:?}, by the kernel"),
//!     },
//!     None => println!("{} bytes, without libvma", socket.recv(&mut buffer)?),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The folder `examples` of this crate has programs that filter, echo without a copy, receive market data, and serve connections by completions.

mod filter;
mod packet;
mod receive;
mod ring;

pub use filter::{Arrival, Filter, Filtered, Verdict};
pub use packet::Packet;
pub use receive::{Data, Lent, Options, Received};
pub use ring::{Accepted, Completion, Completions, Delivered, Ring};

use core::ffi::{c_char, c_int, c_void};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd};

use crate::extra::{Api, ReceiveCallback, SO_GET_API, SocketAddress};

type Register = unsafe extern "C" fn(c_int, Option<ReceiveCallback>, *mut c_void) -> c_int;
type ReceiveLent =
    unsafe extern "C" fn(c_int, *mut c_void, usize, *mut c_int, *mut c_void, *mut u32) -> c_int;
type Free = unsafe extern "C" fn(c_int, *mut crate::extra::Packet, usize) -> c_int;

unsafe extern "C" {
    fn getsockopt(
        socket: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut u32,
    ) -> c_int;
    fn pthread_self() -> usize;
}

/// `SOL_SOCKET` and `AF_INET` of Linux.
const SOL_SOCKET: c_int = 1;
const AF_INET: u16 = 2;

/// The Extra API of the libvma under which the program runs.
#[derive(Clone, Copy)]
pub struct Vma {
    register: Register,
    receive: ReceiveLent,
    free: Free,
    poll: ring::Poll,
    free_delivered: ring::Free,
    rings: ring::Rings,
    add_rule: unsafe extern "C" fn(*const c_char) -> c_int,
    offload: unsafe extern "C" fn(c_int, usize) -> c_int,
    dump: unsafe extern "C" fn(c_int, c_int) -> c_int,
    supported: u64,
}

/// A rule was not understood. The library's log says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleError;

impl fmt::Display for RuleError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the rule is not understood; the log of libvma says why")
    }
}

impl std::error::Error for RuleError {}

impl Vma {
    /// None: the program runs without libvma.
    pub fn get() -> Option<Vma> {
        let mut table: *const Api = core::ptr::null();
        let mut size = size_of::<*const Api>() as u32;
        let value = (&raw mut table).cast();
        // SAFETY: both pointers are to locals; `size` is the room of the first one.
        let result = unsafe { getsockopt(-1, SOL_SOCKET, SO_GET_API, value, &raw mut size) };
        if result != 0 || size as usize != size_of::<*const Api>() || table.is_null() {
            return None;
        }
        // SAFETY: the library answered, whose table is there as long as the process lives; perhaps not aligned.
        let api = unsafe { table.read_unaligned() };
        Some(Vma {
            register: api.register_recv_callback,
            receive: api.recvfrom_zcopy,
            free: api.free_packets,
            poll: api.socketxtreme_poll,
            free_delivered: api.socketxtreme_free_vma_packets,
            rings: api.get_socket_rings_fds,
            add_rule: api.add_conf_rule,
            offload: api.thread_offload,
            dump: api.dump_fd_stats,
            supported: api.supported,
        })
    }

    /// Does the library have these functions ([`crate::extra::function`])?
    pub fn supports(&self, functions: u64) -> bool {
        self.supported & functions == functions
    }

    /// Puts a rule before all others of `libvma.conf`. It counts for what sockets decide from now on.
    ///
    /// ```
    /// if let Some(vma) = libvma_dev::vma::Vma::get() {
    ///     vma.add_rule("use os udp_receiver *:5353")?;
    /// }
    /// # Ok::<(), libvma_dev::vma::RuleError>(())
    /// ```
    pub fn add_rule(&self, rule: &str) -> Result<(), RuleError> {
        let rule = CString::new(rule).map_err(|_| RuleError)?;
        // SAFETY: a text that ends with NUL.
        match unsafe { (self.add_rule)(rule.as_ptr()) } {
            0 => Ok(()),
            _ => Err(RuleError),
        }
    }

    /// Whether sockets that the calling thread makes from now on are served by the library.
    pub fn offload_this_thread(&self, offload: bool) -> io::Result<()> {
        // SAFETY: no arguments, and it cannot fail.
        let thread = unsafe { pthread_self() };
        // SAFETY: plain numbers.
        done(unsafe { (self.offload)(offload.into(), thread) })
    }

    /// Has the library log what it knows of a socket, at the level INFO.
    pub fn dump(&self, socket: impl AsFd) -> io::Result<()> {
        const INFO: c_int = 3;
        // SAFETY: plain numbers.
        done(unsafe { (self.dump)(socket.as_fd().as_raw_fd(), INFO) })
    }
}

fn done(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// None: it is no address of IPv4.
fn address(raw: SocketAddress) -> Option<SocketAddrV4> {
    let ip = Ipv4Addr::from(raw.address.to_ne_bytes());
    (raw.family == AF_INET).then(|| SocketAddrV4::new(ip, u16::from_be(raw.port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_there_is_no_table() {
        assert!(Vma::get().is_none());
    }

    #[test]
    fn addresses_are_in_network_byte_order() {
        let raw = SocketAddress {
            family: AF_INET,
            port: 5000u16.to_be(),
            address: u32::from_ne_bytes([10, 0, 0, 1]),
            zero: [0; 8],
        };
        assert_eq!(address(raw), Some("10.0.0.1:5000".parse().unwrap()));
        assert_eq!(address(SocketAddress { family: 10, ..raw }), None);
    }
}
