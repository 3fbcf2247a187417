//! The packet socket behind a bell: readable from the moment that a packet rings it, until it is hushed.
//!
//! Its packets lie in memory that is shared with the kernel (packet(7), PACKET_RX_RING): to hush it is to
//! write there, not to make a system call for each packet. Only that there was one matters, not what is in
//! it, so that the filter lets one byte of each through.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::{Line, Mapping};
use crate::device::xdp::super_frame::LinkAddress;
use crate::sys::Fd;
use crate::sys::wait::raw_syscall;

/// ETH_P_IP: the program looks at nothing else.
const IPV4: u16 = 0x0800;

/// <linux/if_packet.h>
const PACKET_RX_RING: i32 = 5;
const PACKET_VERSION: i32 = 10;
const PACKET_FANOUT: i32 = 18;
const PACKET_FANOUT_DATA: i32 = 22;
const FANOUT_CBPF: u16 = 6;
const FANOUT_UNIQUE_ID: u16 = 0x2000;
const TPACKET_V2: u32 = 1;
/// In `tp_status`, the first word of a frame: it is ours. Zero gives it back.
const TP_STATUS_USER: u32 = 1;

/// Of the ring: one page. A frame has room for its header and an address (`struct tpacket2_hdr`).
const BLOCK: u32 = 4096;
const FRAME: u32 = 128;
const FRAMES: u32 = BLOCK / FRAME;

/// Times that it is hushed until it is asked for an error (the interface went down), which makes it readable, too.
const ASKED: u32 = 64;

/// <linux/filter.h>
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const SUBTRACT: u16 = (libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_ACCUMULATOR: u16 = (libc::BPF_RET | 0x10) as u16;
const MARK: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_MARK) as u32;

/// `struct tpacket_req`
#[repr(C)]
struct RingRequest {
    block_size: u32,
    block_count: u32,
    frame_size: u32,
    frame_count: u32,
}

/// A frame of the ring, of which only the first word means something to us.
type Frame = [Line<AtomicU32>; 2];

const _: () = assert!(size_of::<Frame>() == FRAME as usize);

pub(super) struct Packets {
    socket: Fd,
    ring: Mapping,
    /// The frame that the kernel writes next, if all before it were taken.
    next: u32,
    /// Times that it was hushed since it was asked for an error.
    hushed: u32,
}

impl Packets {
    /// A socket that becomes readable with each packet of this mark (skb->mark).
    pub fn listen(interface: u32, mark: u32) -> Result<Packets, Errno> {
        // Protocol 0: nothing comes before the filter is there.
        let socket = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let socket = Fd::adopt(socket)?;
        listen_for(&socket, mark)?;
        set(&socket, PACKET_VERSION, &mut { TPACKET_V2 })?;
        let mut request = RingRequest {
            block_size: BLOCK,
            block_count: 1,
            frame_size: FRAME,
            frame_count: FRAMES,
        };
        set(&socket, PACKET_RX_RING, &mut request)?;
        let ring = Mapping::shared(&socket, 0, BLOCK as usize)?;
        rustix::net::bind(&socket, &LinkAddress { interface, protocol: IPV4 })?;
        Ok(Packets { socket, ring, next: 0, hushed: 0 })
    }

    /// Makes it unreadable until the next packet.
    pub fn hush(&mut self) {
        // As many as there are, so that a flood ends some time.
        for _ in 0..FRAMES {
            let status = self.status();
            if status.load(Ordering::Acquire) & TP_STATUS_USER == 0 {
                break;
            }
            status.store(0, Ordering::Release);
            self.next = (self.next + 1) % FRAMES;
        }
        self.hushed += 1;
        if self.hushed == ASKED {
            self.hushed = 0;
            let mut none = [0u8; 0];
            let _ = rustix::net::recv(&self.socket, &mut none[..], RecvFlags::DONTWAIT);
        }
    }

    /// `tp_status` of the next frame.
    fn status(&self) -> &AtomicU32 {
        let frames = self.ring.at::<[Frame; FRAMES as usize]>(0).cast_const().cast::<Frame>();
        // SAFETY: `at` has checked that all frames are mapped, and the remainder keeps the number below their
        // count.
        let frame = unsafe { frames.add((self.next % FRAMES) as usize) };
        // SAFETY: atomic words, for which any bits will do, mapped as long as `self`.
        let [Line(status), _] = unsafe { &*frame };
        status
    }

    /// Makes it the first member of a new fanout group, in which the mark decides who gets a packet: `mark` is
    /// the first member's. Returns the number of the group. A packet that comes at this very moment may be
    /// missed.
    pub fn found_group(&self, mark: u32) -> Result<u16, Errno> {
        let mut argument = u32::from(FANOUT_CBPF | FANOUT_UNIQUE_ID) << 16;
        set(&self.socket, PACKET_FANOUT, &mut argument)?;
        let mut steps = [
            step(LOAD_WORD, 0, 0, MARK),
            step(SUBTRACT, 0, 0, mark),
            step(RETURN_ACCUMULATOR, 0, 0, 0),
        ];
        program(&self.socket, (libc::SOL_PACKET, PACKET_FANOUT_DATA), &mut steps)?;
        get(&self.socket, PACKET_FANOUT).map(|argument| argument as u16)
    }

    /// Members get their places in the order in which they join.
    pub fn join_group(&self, group: u16) -> Result<(), Errno> {
        let mut argument = u32::from(FANOUT_CBPF) << 16 | u32::from(group);
        set(&self.socket, PACKET_FANOUT, &mut argument)
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets an option of AF_PACKET.
fn set<T>(socket: &Fd, name: i32, value: &mut T) -> Result<(), Errno> {
    let value = core::ptr::from_mut(value).expose_provenance();
    let level = libc::SOL_PACKET as usize;
    let arguments = [socket.raw() as usize, level, name as usize, value, size_of::<T>(), 0];
    // SAFETY: the pointer is to a value of the size told, which outlives the call.
    let result = unsafe { raw_syscall(libc::SYS_setsockopt, arguments) };
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) }
}

/// Gets an option of AF_PACKET that is a word.
fn get(socket: &Fd, name: i32) -> Result<u32, Errno> {
    let (mut value, mut len) = (0u32, size_of::<u32>() as u32);
    let arguments = [
        socket.raw() as usize,
        libc::SOL_PACKET as usize,
        name as usize,
        core::ptr::from_mut(&mut value).expose_provenance(),
        core::ptr::from_mut(&mut len).expose_provenance(),
        0,
    ];
    // SAFETY: both pointers are to words that outlive the call, the second to the size of the first.
    let result = unsafe { raw_syscall(libc::SYS_getsockopt, arguments) };
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(value) }
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
