//! Filters of the packet sockets: they let through what an answer can look like, so that a host's other traffic does not
//! wake the daemon: received, TCP, unfragmented, with ACK or RST, without payload. The packet begins with its IP header.
//!
//! Classic BPF as in linux/filter.h and the kernel's networking/filter.rst. A jump skips that many
//! instructions.

use socket2::SockFilter;

const LD_W_ABS: u16 = 0x20;
const LD_H_ABS: u16 = 0x28;
const LD_B_ABS: u16 = 0x30;
const LD_B_IND: u16 = 0x50;
const LDX_HEADER_LENGTH: u16 = 0xb1;
const JEQ: u16 = 0x15;
const JSET: u16 = 0x45;
const AND: u16 = 0x54;
const RSH: u16 = 0x74;
const ADD_X: u16 = 0x0c;
const SUB_X: u16 = 0x1c;
const TAX: u16 = 0x07;
const RET: u16 = 0x06;
/// `SKF_AD_OFF + SKF_AD_PKTTYPE`.
const PACKET_TYPE: u32 = 0xffff_f004;
const OUTGOING: u32 = 4;

const fn step(code: u16, k: u32) -> SockFilter {
    SockFilter::new(code, 0, 0, k)
}

/// Of packets of IPv4.
pub fn ipv4() -> [SockFilter; 19] {
    /// Where the last instruction stands.
    const DROP: u8 = 18;
    // The first number is where the instruction itself stands.
    let drop_if = |at, code, k| SockFilter::new(code, DROP - 1 - at, 0, k);
    let drop_unless = |at, code, k| SockFilter::new(code, 0, DROP - 1 - at, k);
    [
        step(LD_W_ABS, PACKET_TYPE),
        drop_if(1, JEQ, OUTGOING),
        step(LD_B_ABS, 9), // the protocol
        drop_unless(3, JEQ, 6),
        step(LD_H_ABS, 6), // more fragments, fragment offset
        drop_if(5, JSET, 0x3fff),
        step(LDX_HEADER_LENGTH, 0),
        step(LD_B_IND, 13), // the flags: ACK, RST
        drop_unless(8, JSET, 0x14),
        step(LD_B_IND, 12), // the data offset, in words, in the upper half
        step(RSH, 2),
        step(AND, 0x3c),
        step(ADD_X, 0),
        step(TAX, 0),      // both headers
        step(LD_H_ABS, 2), // the whole packet
        step(SUB_X, 0),
        drop_unless(16, JEQ, 0),
        step(RET, 120), // both headers at their longest
        step(RET, 0),
    ]
}

/// Of packets of IPv6, without extension headers: one of a fragment is none.
pub fn ipv6() -> [SockFilter; 15] {
    const DROP: u8 = 14;
    let drop_if = |at, code, k| SockFilter::new(code, DROP - 1 - at, 0, k);
    let drop_unless = |at, code, k| SockFilter::new(code, 0, DROP - 1 - at, k);
    [
        step(LD_W_ABS, PACKET_TYPE),
        drop_if(1, JEQ, OUTGOING),
        step(LD_B_ABS, 6), // the next header
        drop_unless(3, JEQ, 6),
        step(LD_B_ABS, 53), // the flags: ACK, RST
        drop_unless(5, JSET, 0x14),
        step(LD_B_ABS, 52), // the data offset, in words, in the upper half
        step(RSH, 2),
        step(AND, 0x3c),
        step(TAX, 0),      // the header of TCP
        step(LD_H_ABS, 4), // the payload of IPv6
        step(SUB_X, 0),
        drop_unless(12, JEQ, 0),
        step(RET, 100), // both headers at their longest
        step(RET, 0),
    ]
}
