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
/// More than there are bells.
const MARKS: u32 = 32;

/// Frames that one super-frame becomes (UDP_MAX_SEGMENTS of the kernel).
const MOST_OF_A_TRAIN: u32 = 128;

/// <linux/if_packet.h>
const PACKET_FANOUT: i32 = 18;
const PACKET_FANOUT_DATA: i32 = 22;
const FANOUT_CBPF: u16 = 6;
const FANOUT_UNIQUE_ID: u16 = 0x2000;

/// <linux/filter.h>
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const SUBTRACT: u16 = (libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_ACCUMULATOR: u16 = (libc::BPF_RET | 0x10) as u16;
const MARK: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_MARK) as u32;

pub struct Bell {
    /// Rung by the program.
    packets: Fd,
    /// `packets` is a TAP, to which the program redirects the frame.
    is_tap: bool,
    mark: u32,
    /// Rung by ourselves when something came while we fell asleep.
    own: Fd,
    is_rung: bool,
}

impl Bell {
    pub fn open(interface: u32) -> Result<Bell, Errno> {
        // Never 0, which frames have that nobody has marked. What others guess wakes us in vain, no more. The
        // marks that follow are those of own bells.
        let [a, b, c, d, ..] = random::bytes().unwrap_or_default();
        let mark = u32::from_ne_bytes([a, b, c, d]) & !(MARKS - 1) | MARKS;
        let packets = listen(interface, mark)?;
        let own = Fd::adopt(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)?;
        Ok(Bell { packets, is_tap: false, mark, own, is_rung: false })
    }

    /// Of a ring that the daemon has granted.
    pub fn of_tap(tap: &Fd) -> Result<Bell, Errno> {
        let packets = Fd::copy_of(tap.as_fd())?.above_the_limit();
        let own = Fd::adopt(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)?;
        Ok(Bell { packets, is_tap: true, mark: 0, own, is_rung: false })
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
        match self.is_tap {
            true => self.drain(),
            false => {
                let mut none = [0u8; 0];
                let _ = rustix::net::recv(&self.packets, &mut none[..], RecvFlags::DONTWAIT);
            }
        }
        if core::mem::take(&mut self.is_rung) {
            let _ = rustix::io::read(&self.own, &mut [0u8; 8]);
        }
    }

    /// A train comes to a TAP as so many frames.
    fn drain(&self) {
        for _ in 0..MOST_OF_A_TRAIN {
            match rustix::io::read(&self.packets, &mut [0u8; 1]) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    pub fn ring(&mut self) {
        if !core::mem::replace(&mut self.is_rung, true) {
            let _ = rustix::io::write(&self.own, &1u64.to_ne_bytes());
        }
    }
}

/// A socket that becomes readable with each frame of this mark.
pub(super) fn listen(interface: u32, mark: u32) -> Result<Fd, Errno> {
    // Protocol 0: nothing comes before the filter is there.
    let packets = rustix::net::socket_with(
        AddressFamily::PACKET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let packets = Fd::adopt(packets)?;
    listen_for(&packets, mark)?;
    rustix::net::bind(&packets, &LinkAddress { interface, protocol: IPV4 })?;
    Ok(packets)
}

/// Makes a bell the first one of a new fanout group, in which the mark decides who gets a frame: the number of
/// the group. A frame that comes at this very moment may be missed.
pub(super) fn found_group(bell: &Bell) -> Result<u16, Errno> {
    let mut argument = u32::from(FANOUT_CBPF | FANOUT_UNIQUE_ID) << 16;
    option(&bell.packets, libc::SYS_setsockopt, PACKET_FANOUT, &mut argument)?;
    let mut steps = [
        step(LOAD_WORD, 0, 0, MARK),
        step(SUBTRACT, 0, 0, bell.mark),
        step(RETURN_ACCUMULATOR, 0, 0, 0),
    ];
    program(&bell.packets, (libc::SOL_PACKET, PACKET_FANOUT_DATA), &mut steps)?;
    option(&bell.packets, libc::SYS_getsockopt, PACKET_FANOUT, &mut argument)?;
    Ok(argument as u16)
}

/// Members get their places in the order in which they join.
pub(super) fn join_group(packets: &Fd, group: u16) -> Result<(), Errno> {
    let mut argument = u32::from(FANOUT_CBPF) << 16 | u32::from(group);
    option(packets, libc::SYS_setsockopt, PACKET_FANOUT, &mut argument)
}

/// Sets or gets an option of AF_PACKET that is a word.
fn option(socket: &Fd, call: libc::c_long, name: i32, value: &mut u32) -> Result<(), Errno> {
    let mut len = size_of::<u32>() as u32;
    let last = match call {
        libc::SYS_getsockopt => core::ptr::from_mut(&mut len).expose_provenance(),
        _ => len as usize,
    };
    let value = core::ptr::from_mut(value).expose_provenance();
    let arguments =
        [socket.raw() as usize, libc::SOL_PACKET as usize, name as usize, value, last, 0];
    // SAFETY: the pointers are to words that outlive the call, of the size told.
    let result = unsafe { raw_syscall(call, arguments) };
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) }
}

/// Lets one byte of what is marked so through, and nothing else (<linux/filter.h>).
fn listen_for(socket: &Fd, mark: u32) -> Result<(), Errno> {
    let mut steps = [
        step(LOAD_WORD, 0, 0, MARK),
        step(JUMP_IF_EQUAL, 0, 1, mark),
        step(RETURN, 0, 0, 1),
        step(RETURN, 0, 0, 0),
    ];
    program(socket, (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER), &mut steps)
}

/// Gives a socket a program of the classic kind.
fn program(
    socket: &Fd,
    (level, name): (i32, i32),
    steps: &mut [libc::sock_filter],
) -> Result<(), Errno> {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let arguments = [
        socket.raw() as usize,
        level as usize,
        name as usize,
        core::ptr::from_ref(&program).expose_provenance(),
        size_of::<libc::sock_fprog>(),
        0,
    ];
    // SAFETY: the pointer is to a sock_fprog of the size told, that to as many steps as it says; both
    // outlive the call, which copies them.
    let result = unsafe { raw_syscall(libc::SYS_setsockopt, arguments) };
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) }
}

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}
