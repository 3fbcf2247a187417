//! What the kernel tells of a socket.

use core::ffi::c_int;
use core::time::Duration;

use super::{Counted, Error, Measured, WindowScale, passes};
use crate::sys::wait::{poll_now, raw_syscall};
use crate::sys::{repair, shadow};

/// tcp(7): bytes received and not read.
pub const SIOCINQ: usize = 0x541b;
/// tcp(7): bytes written and not acknowledged.
pub const SIOCOUTQ: usize = 0x5411;
/// linux/sockios.h: bytes written and not sent.
pub const SIOCOUTQNSD: usize = 0x894b;
const SIOCATMARK: usize = 0x8905;

/// An ioctl(2) that yields a number.
pub fn count(fd: c_int, request: usize) -> Result<usize, Error> {
    let mut count: c_int = 0;
    let at = core::ptr::from_mut(&mut count) as usize;
    // SAFETY: the requests of this module write one int, and `count` outlives the call.
    let result = unsafe { raw_syscall(libc::SYS_ioctl, [fd as usize, request, at, 0, 0, 0]) };
    repair::calls::check("ioctl", result)?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The last `len` bytes of the queue that is chosen, which has `more` bytes before them at most.
pub fn peek(fd: c_int, len: usize, more: usize) -> Result<Vec<u8>, Error> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; len.saturating_add(more)];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let got = repair::calls::check("recv", receive(fd, &mut bytes, flags))?;
    bytes.truncate(got);
    let Some(first) = got.checked_sub(len) else { return Err(passes("recv")) };
    bytes.drain(..first);
    Ok(bytes)
}

fn receive(fd: c_int, bytes: &mut [u8], flags: c_int) -> isize {
    let at = bytes.as_mut_ptr() as usize;
    let arguments = [fd as usize, at, bytes.len(), flags as usize, 0, 0];
    // SAFETY: `bytes` is writable for its length and outlives the call.
    unsafe { raw_syscall(libc::SYS_recvfrom, arguments) }
}

/// Is there an urgent byte at or behind the place where the program reads, or announced? Where it
/// was read by MSG_OOB and still lies ahead, too: then the kernel does not show what lies behind it.
pub fn has_urgent_data(fd: c_int) -> Result<bool, Error> {
    if poll_now(fd, libc::POLLPRI) & libc::POLLPRI != 0 || count(fd, SIOCATMARK)? != 0 {
        return Ok(true);
    }
    let set = |inline| {
        shadow::set_int_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, c_int::from(inline));
    };
    let inline = shadow::int_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE) == Some(1);
    set(false);
    let flags = libc::MSG_OOB | libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // EAGAIN: announced, and not there yet.
    let announced = receive(fd, &mut [0], flags) != -(libc::EINVAL as isize);
    let to_mark = count(fd, SIOCINQ);
    set(true);
    let all = count(fd, SIOCINQ);
    set(inline);
    Ok(announced || to_mark? != all?)
}

/// Do received segments take memory of the socket's? True if that is unknown.
pub fn holds_memory(fd: c_int) -> bool {
    /// SO_MEMINFO, and the index of SK_MEMINFO_RMEM_ALLOC in it.
    const SO_MEMINFO: c_int = 55;
    let mut words = [0u8; 36];
    match shadow::option(fd, libc::SOL_SOCKET, SO_MEMINFO, &mut words) {
        Some(len) if len >= 4 => words.first_chunk::<4>() != Some(&[0; 4]),
        _ => true,
    }
}

/// TCP_INFO (linux/tcp.h), as far as the running kernel has it.
pub struct Info([u8; SIZE]);

const SIZE: usize = 232;

/// `tcpi_options`: TCPI_OPT_*.
pub const TIMESTAMPS: u8 = 1;
pub const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;
pub const ECN: u8 = 8;
/// TCPI_OPT_SYN_DATA, and TCPI_OPT_TFO_CHILD.
pub const FAST_OPEN: u8 = 32 | 128;

/// `enum` of linux/tcp_states.h.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;

impl Info {
    pub fn of(fd: c_int) -> Result<Info, Error> {
        let mut info = Info([0; SIZE]);
        match shadow::option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info.0) {
            Some(_) => Ok(info),
            None => Err(Error { call: "TCP_INFO", errno: libc::EOPNOTSUPP }),
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn word(&self, at: usize) -> u32 {
        let word = self.0.get(at..).and_then(<[u8]>::first_chunk);
        u32::from_ne_bytes(word.copied().unwrap_or_default())
    }

    fn long(&self, at: usize) -> u64 {
        let long = self.0.get(at..).and_then(<[u8]>::first_chunk);
        u64::from_ne_bytes(long.copied().unwrap_or_default())
    }

    pub fn is_established(&self) -> bool {
        self.byte(0) == ESTABLISHED
    }

    /// The peer's FIN was received, and none sent.
    pub fn has_ended(&self) -> bool {
        self.byte(0) == CLOSE_WAIT
    }

    /// `tcpi_retransmits`, `tcpi_retrans`.
    pub fn is_retransmitting(&self) -> bool {
        self.byte(2) > 0 || self.word(36) > 0
    }

    pub fn has(&self, options: u8) -> bool {
        self.byte(5) & options != 0
    }

    pub fn window_scale(&self) -> Option<WindowScale> {
        // Two bit fields: tcpi_snd_wscale comes first.
        let both = self.byte(6);
        let (low, high) = (both & 15, both >> 4);
        let (send, receive) = if cfg!(target_endian = "big") { (high, low) } else { (low, high) };
        self.has(WINDOW_SCALE).then_some(WindowScale { send, receive })
    }

    pub fn path_mtu(&self) -> u32 {
        self.word(60)
    }

    pub fn out_of_order(&self) -> u32 {
        self.word(224)
    }

    pub fn measured(&self) -> Measured {
        const INFINITE: u32 = 0x7fff_ffff;
        let micros = |at| Duration::from_micros(u64::from(self.word(at)));
        let (segment, rtt, least) = (self.word(16), self.word(68), self.word(148));
        let (threshold, window) = (self.word(76), self.word(80));
        Measured {
            smoothed_rtt: (rtt > 0).then(|| micros(68)),
            rtt_variation: micros(72),
            least_rtt: (least > 0 && least != u32::MAX).then(|| micros(148)),
            congestion_window: window.saturating_mul(segment),
            slow_start_threshold: (threshold < INFINITE)
                .then_some(threshold.saturating_mul(segment)),
        }
    }

    pub fn counted(&self) -> Counted {
        Counted {
            segments_in: u64::from(self.word(140)),
            segments_out: u64::from(self.word(136)),
            bytes_acked: self.long(120),
            bytes_received: self.long(128),
            retransmissions: u64::from(self.word(100)),
            out_of_order: u64::from(self.out_of_order()),
        }
    }
}
