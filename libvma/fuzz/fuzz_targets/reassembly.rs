//! Arbitrary fragments at arbitrary times: the bounds on memory, size and time hold, and a datagram
//! that comes out consists of bytes that went in at their places.
#![no_main]

use core::net::Ipv4Addr;
use core::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use libvma_engine::ip::reassembly::{Reassembler, TIMEOUT, TIMEOUT_OF_IPV6};
use libvma_engine::time::Instant;
use libvma_engine::wire::ipv4::{Header, MAX_PAYLOAD_LEN, protocol};

#[derive(Arbitrary, Debug)]
struct Input {
    /// Small, so that eviction is reached.
    limit: u16,
    of_ipv6: bool,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Fragment {
        ident: u8,
        /// In units of 8 bytes; some beyond the field.
        offset: u16,
        /// Most in units of 8 bytes, so that most fragments fit.
        len: u16,
        odd_len: Option<u8>,
        more: bool,
        cut: u16,
        /// The frame holds this many bytes less than its header says.
        missing: Option<u8>,
    },
    Wait {
        milliseconds: u16,
    },
    Expire,
}

fuzz_target!(|input: Input| {
    let limit = usize::from(input.limit) * 4;
    let (mut reassembler, timeout) = match input.of_ipv6 {
        true => (Reassembler::of_ipv6(limit), TIMEOUT_OF_IPV6),
        false => (Reassembler::with_limit(limit), TIMEOUT),
    };
    let mut now = Instant::from_nanos(0);
    for step in input.steps {
        match step {
            Step::Wait { milliseconds } => {
                now = now.saturating_add(Duration::from_millis(u64::from(milliseconds)));
            }
            Step::Expire => {
                reassembler.expire(now);
                assert!(
                    reassembler
                        .next_deadline()
                        .is_none_or(|deadline| deadline > now)
                );
            }
            Step::Fragment {
                ident,
                offset,
                len,
                odd_len,
                more,
                cut,
                missing,
            } => {
                let (offset, ident) = (usize::from(offset) * 8, u16::from(ident % 4));
                let len = odd_len.map_or(usize::from(len % 0x2000) * 8, usize::from);
                let whole = Header::new(Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, protocol::UDP, 0);
                let mut whole = whole.expect("an empty payload fits");
                whole.ident = ident;
                let Some(header) = whole.for_fragment(offset, len, more) else {
                    continue;
                };
                let held = len - usize::from(missing.unwrap_or(0)).min(len);
                let data: Vec<u8> = (offset..offset + held).map(|at| byte(ident, at)).collect();
                let (left, right) = data.split_at(usize::from(cut) % (held + 1));
                if let Ok(Some(datagram)) = reassembler.push(now, &header, [left, right]) {
                    let len = datagram.payload.len();
                    assert!(len <= if input.of_ipv6 { 0xffff } else { MAX_PAYLOAD_LEN });
                    assert_eq!(datagram.header.payload_len(), len.min(MAX_PAYLOAD_LEN));
                    assert!(!datagram.header.is_fragment());
                    let mut bytes = datagram.payload.iter().enumerate();
                    assert!(bytes.all(|(at, value)| *value == byte(ident, at)));
                }
            }
        }
        assert!(reassembler.memory() <= limit);
        assert_eq!(reassembler.memory() == 0, reassembler.is_empty());
        let latest = now.saturating_add(timeout);
        assert!(
            reassembler
                .next_deadline()
                .is_none_or(|deadline| deadline <= latest)
        );
    }
    reassembler.expire(now.saturating_add(timeout));
    assert!(reassembler.is_empty() && reassembler.memory() == 0);
});

/// A value that tells the datagram and the place, so that a misplaced byte shows.
fn byte(ident: u16, at: usize) -> u8 {
    (at ^ (at >> 8)) as u8 ^ (ident as u8) << 6
}
