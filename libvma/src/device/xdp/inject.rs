//! Frames to the kernel, as if they had just come by an interface: what the rings took for a socket that
//! is the kernel's by now.

use rustix::io::Errno;

use super::bpf::{self, Hook};
use super::ipv6;
use crate::sys::Fd;

/// `r0 = XDP_PASS; exit`.
const PASS: [u64; 2] = [0x0000_0002_0000_00b7, 0x0000_0000_0000_0095];

/// A program that lets everything pass. It is attached nowhere: the kernel runs it on a frame of ours,
/// and what it lets pass goes up the network stack.
pub struct Injector(Fd);

impl Injector {
    pub fn new() -> Result<Injector, Errno> {
        let license = c"Dual MIT/GPL";
        bpf::program_load(Hook::Xdp(0), &PASS.map(u64::to_le), license, &mut []).map(Injector)
    }

    /// The kernel has dealt with the frame on return. At most some 3 KiB. One of IPv4 between stand-ins is of IPv6 again.
    pub fn inject(&self, interface: u32, frame: &[u8]) -> Result<(), Errno> {
        match ipv6::is_ipv6(frame) {
            true => {
                let frame = ipv6::whole(frame).ok_or(Errno::INVAL)?;
                bpf::program_run_live(&self.0, interface, &frame)
            }
            false => self.inject_as_it_is(interface, frame),
        }
    }

    /// As [`Injector::inject`], of a frame of any protocol.
    pub fn inject_as_it_is(&self, interface: u32, frame: &[u8]) -> Result<(), Errno> {
        bpf::program_run_live(&self.0, interface, frame)
    }
}
