//! Wakes a thread that sleeps until a frame comes.
//!
//! When a thread sleeps, the program at the tc ingress hook lets the frame go on to the kernel, with a mark
//! and addressed as if to another host, so that only a packet socket of ours takes it. The socket's data
//! are not used: the frame lies in the ring already.

use core::mem::size_of;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::device::xdp::super_frame::LinkAddress;
use crate::sys::wait::raw_syscall;
use crate::sys::{Fd, random};

/// ETH_P_IP: the program looks at nothing else.
const IPV4: u16 = 0x0800;

pub struct Bell {
    /// Rung by the program.
    packets: Fd,
    mark: u32,
    /// Rung by ourselves when something came while we fell asleep.
    own: Fd,
    is_rung: bool,
}

impl Bell {
    pub fn open(interface: u32) -> Result<Bell, Errno> {
        // Protocol 0: nothing comes before the filter is there.
        let packets = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let packets = Fd::adopt(packets)?;
        // Never 0, which frames have that nobody has marked. What others guess wakes us in vain, no more.
        let [a, b, c, d, ..] = random::bytes().unwrap_or_default();
        let mark = u32::from_ne_bytes([a, b, c, d]) | 1;
        listen_for(&packets, mark)?;
        rustix::net::bind(&packets, &LinkAddress { interface, protocol: IPV4 })?;
        let own = Fd::adopt(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)?;
        Ok(Bell { packets, mark, own, is_rung: false })
    }

    /// The mark (skb->mark) by which the packet socket knows a frame.
    pub fn mark(&self) -> u32 {
        self.mark
    }

    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.packets.as_fd(), self.own.as_fd()]
    }

    /// Whoever asks for the bell is served once, so one packet is all that waits as a rule. An error
    /// of the interface, which makes the socket readable, too, goes the same way.
    pub fn hush(&mut self) {
        let mut none = [0u8; 0];
        let _ = rustix::net::recv(&self.packets, &mut none[..], RecvFlags::DONTWAIT);
        if core::mem::take(&mut self.is_rung) {
            let _ = rustix::io::read(&self.own, &mut [0u8; 8]);
        }
    }

    pub fn ring(&mut self) {
        if !core::mem::replace(&mut self.is_rung, true) {
            let _ = rustix::io::write(&self.own, &1u64.to_ne_bytes());
        }
    }
}

/// Lets one byte of what is marked so through, and nothing else (<linux/filter.h>).
fn listen_for(socket: &Fd, mark: u32) -> Result<(), Errno> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const MARK: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_MARK) as u32;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD_WORD, 0, 0, MARK),
        step(JUMP_IF_EQUAL, 0, 1, mark),
        step(RETURN, 0, 0, 1),
        step(RETURN, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let arguments = [
        socket.raw() as usize,
        libc::SOL_SOCKET as usize,
        libc::SO_ATTACH_FILTER as usize,
        core::ptr::from_ref(&program).expose_provenance(),
        size_of::<libc::sock_fprog>(),
        0,
    ];
    // SAFETY: the pointer is to a sock_fprog of the size told, that to as many steps as it says; both
    // outlive the call, which copies them.
    let result = unsafe { raw_syscall(libc::SYS_setsockopt, arguments) };
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) }
}
