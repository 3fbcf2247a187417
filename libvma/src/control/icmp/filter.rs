//! Messages of ICMP that shall wake nobody: those that refuse a datagram. The clients of a server may be gone when its answer comes, and
//! their hosts say so; the kernel tells the shadow.

use libvma_engine::wire::ipv4::protocol::UDP;

use crate::sys::{Fd, shadow};

type Program = [libc::sock_filter; 9];

const LOAD: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const END: u32 = libc::BPF_RET | libc::BPF_K;

/// The message is behind the header, whose length its first byte tells.
pub const OF_IPV4: Program = program(
    step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
    (super::UNREACHABLE, super::FRAGMENTATION_NEEDED),
    9,
);

/// Packets that are too big have a type of their own: no code of the other means so.
pub const OF_IPV6: Program = program(
    step(libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM, 0, 0, 0),
    (super::ipv6::UNREACHABLE, u8::MAX),
    6,
);

/// `find` puts where the message begins in X. Of "unreachable", but with that code, those about datagrams are left out; `protocol` is
/// where the quoted header has it.
const fn program(find: libc::sock_filter, kind: (u8, u8), protocol: u32) -> Program {
    const QUOTED: u32 = 8;
    [
        find,
        step(LOAD, 0, 0, 0),
        step(IS, kind.0 as u32, 0, 4),
        step(LOAD, 1, 0, 0),
        step(IS, kind.1 as u32, 2, 0),
        step(LOAD, QUOTED + protocol, 0, 0),
        step(IS, UDP as u32, 1, 0),
        step(END, u32::MAX, 0, 0),
        step(END, 0, 0, 0),
    ]
}

/// `jt` and `jf`: the steps that are left out if the condition holds, and if it does not.
const fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

pub fn leave_out_refused_datagrams(socket: &Fd, program: &Program) {
    let mut steps = *program;
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // A failure costs wake-ups only: the messages are read and thrown away.
    shadow::set_option(socket.raw(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// A filter is the same on any socket.
    fn passes(program: &Program, message: &[u8]) -> bool {
        let (from, to) = UnixDatagram::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        let to = Fd::adopt(to.into()).unwrap();
        leave_out_refused_datagrams(&to, program);
        from.send(message).unwrap();
        let mut bytes = [0u8; 100];
        rustix::net::recv(&to, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT).is_ok()
    }

    fn message(header: usize, (kind, code): (u8, u8), protocol_at: usize, protocol: u8) -> Vec<u8> {
        let mut bytes = vec![0; header + 8 + 60];
        bytes[0] = 0x45;
        (bytes[header], bytes[header + 1]) = (kind, code);
        bytes[header + 8 + protocol_at] = protocol;
        bytes
    }

    #[test]
    fn refused_datagrams_wake_nobody_and_all_else_does() {
        let four = |about, protocol| passes(&OF_IPV4, &message(20, about, 9, protocol));
        let six = |about, protocol| passes(&OF_IPV6, &message(0, about, 6, protocol));
        assert_eq!([four((3, 3), UDP), four((3, 1), UDP)], [false, false]);
        assert_eq!([four((3, 4), UDP), four((3, 3), 6), four((11, 0), UDP)], [true, true, true]);
        assert_eq!([six((1, 4), UDP), six((1, 0), UDP)], [false, false]);
        assert_eq!([six((2, 0), UDP), six((1, 4), 6), six((3, 0), UDP)], [true, true, true]);
    }
}
