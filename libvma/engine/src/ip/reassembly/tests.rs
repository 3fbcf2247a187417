//! Tests of reassembly: each rejection by its reason, then any order and any sequence. No code
//! under test.

use super::*;
use crate::ip::fragment::{Fragment, fragments};
use crate::wire::ipv4::protocol;
use proptest::prelude::*;

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn header(ident: u16, offset: usize, len: usize, more: bool) -> Header {
    let whole = Header::new(SRC, DST, protocol::UDP, 0).unwrap();
    with(whole, |h| h.ident = ident).for_fragment(offset, len, more).unwrap()
}

fn with(mut header: Header, change: impl Fn(&mut Header)) -> Header {
    change(&mut header);
    header
}

fn push(
    r: &mut Reassembler,
    offset: usize,
    data: &[u8],
    more: bool,
) -> Result<Option<Reassembled>, DropReason> {
    r.push(at(0), &header(1, offset, data.len(), more), [data])
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// Whatever happened, nothing may be left behind or miscounted.
fn sanity(r: &Reassembler) {
    assert_eq!(r.memory(), r.datagrams.values().map(Datagram::cost).sum::<usize>());
    assert_eq!(r.by_age.len(), r.datagrams.len());
    assert_eq!(r.sources.values().map(|s| s.waiting as usize).sum::<usize>(), r.datagrams.len());
    assert!(r.sources.values().all(|source| source.waiting > 0));
    assert!(r.datagrams.values().all(|d| !d.is_empty() && !d.is_whole()));
    assert!(r.memory() <= r.limit);
    assert_eq!(r.next_deadline().is_some(), !r.is_empty());
}

// covers: LIM-20
#[test]
fn fragments_in_order_become_the_datagram() {
    let data = payload(4000);
    let mut r = Reassembler::default();
    assert_eq!(push(&mut r, 0, &data[..1480], true), Ok(None));
    assert_eq!(push(&mut r, 1480, &data[1480..2960], true), Ok(None));
    let whole = push(&mut r, 2960, &data[2960..], false).unwrap().unwrap();
    assert_eq!(whole.payload, data);
    assert_eq!(whole.header, header(1, 0, 4000, false));
    assert!(r.is_empty() && r.memory() == 0 && r.next_deadline().is_none());
}

#[test]
fn header_is_the_first_fragments() {
    let mut r = Reassembler::default();
    let last = with(header(1, 8, 3, false), |h| (h.ttl, h.tos) = (9, 1));
    let first = with(header(1, 0, 8, true), |h| (h.ttl, h.tos) = (5, 2));
    assert_eq!(r.push(at(0), &last, [b"abc".as_slice()]), Ok(None));
    let whole = r.push(at(0), &first, [b"0123".as_slice(), b"4567"]).unwrap().unwrap();
    assert_eq!((whole.header.ttl, whole.header.tos, whole.header.payload_len()), (5, 2, 11));
    assert!(!whole.header.is_fragment());
    assert_eq!(whole.payload, b"01234567abc");
}

#[test]
fn datagrams_that_differ_in_one_key_field_do_not_mix() {
    let mut r = Reassembler::default();
    let first = header(1, 0, 8, true);
    let other = Ipv4Addr::new(10, 0, 0, 3);
    for h in [
        first,
        with(first, |h| h.src = other),
        with(first, |h| h.dst = other),
        with(first, |h| h.ident = 2),
        with(first, |h| h.protocol = protocol::TCP),
    ] {
        assert_eq!(r.push(at(0), &h, [[0; 8].as_slice()]), Ok(None));
    }
    assert_eq!(r.len(), 5);
    sanity(&r);
}

#[test]
fn overlap_condemns_the_datagram() {
    for (offset, len) in [(8, 16), (16, 8 + 8), (0, 24), (24, 16), (16, 32)] {
        let mut r = Reassembler::default();
        assert_eq!(push(&mut r, 0, &[0; 16], true), Ok(None));
        assert_eq!(push(&mut r, 24, &[0; 8], true), Ok(None));
        let overlaps = push(&mut r, offset, &payload(len), true);
        assert_eq!(overlaps, Err(DropReason::FragmentOverlap), "{offset} {len}");
        assert!(r.is_empty());
        sanity(&r);
    }
}

#[test]
fn duplicate_is_dropped_alone_and_the_first_copy_stays() {
    let mut r = Reassembler::default();
    assert_eq!(push(&mut r, 0, b"01234567", true), Ok(None));
    assert_eq!(push(&mut r, 16, b"end", false), Ok(None));
    for (offset, data, more) in [(0, "xxxxxxxx", true), (16, "xxx", false)] {
        assert_eq!(push(&mut r, offset, data.as_bytes(), more), Err(DropReason::FragmentDuplicate));
    }
    let whole = push(&mut r, 8, b"89abcdef", true).unwrap().unwrap();
    assert_eq!(whole.payload, b"0123456789abcdefend");
}

#[test]
fn ends_that_disagree_condemn_the_datagram() {
    // The second fragment of each row contradicts the first.
    for rows in [
        [(16, 8, false), (32, 8, true)],
        [(16, 8, false), (32, 8, false)],
        [(16, 8, true), (8, 8, false)],
    ] {
        let mut r = Reassembler::default();
        let [first, second] =
            rows.map(|(offset, len, more)| push(&mut r, offset, &payload(len), more));
        assert_eq!((first, second), (Ok(None), Err(DropReason::FragmentEndConflict)));
        assert!(r.is_empty());
        sanity(&r);
    }
}

#[test]
fn malformed_fragment_is_dropped_alone() {
    let mut r = Reassembler::default();
    assert_eq!(push(&mut r, 0, &[1; 8], true), Ok(None));
    assert_eq!(push(&mut r, 8, &[], true), Err(DropReason::FragmentBadLength));
    assert_eq!(push(&mut r, 8, &[], false), Err(DropReason::FragmentBadLength));
    assert_eq!(push(&mut r, 8, &[0; 7], true), Err(DropReason::FragmentBadLength));
    // The ping of death.
    assert_eq!(push(&mut r, 65512, &[0; 8], false), Err(DropReason::FragmentTooBig));
    // A frame that holds less than its header says, also as the first of its datagram.
    assert_eq!(
        r.push(at(0), &header(1, 8, 16, true), [[0; 8].as_slice()]),
        Err(DropReason::TooShort)
    );
    assert_eq!(r.push(at(0), &header(2, 8, 16, true), []), Err(DropReason::TooShort));
    assert_eq!(r.len(), 1);
    sanity(&r);
    assert_eq!(push(&mut r, 8, &[2], false).unwrap().unwrap().payload, [1, 1, 1, 1, 1, 1, 1, 1, 2]);
}

// After a flood every identification is taken by a datagram that never becomes whole.
#[test]
fn a_flood_of_fragments_costs_no_later_datagram() {
    let mut r = Reassembler::default();
    for ident in 0..u16::MAX {
        // In the middle, at the beginning and at the end of what comes later.
        let (offset, more) = [(1480, true), (0, true), (2960, false)][usize::from(ident % 3)];
        assert_eq!(r.push(at(0), &header(ident, offset, 16, more), [&[0; 16][..]]), Ok(None));
    }
    sanity(&r);
    assert!(r.take_evicted() > 0, "the memory was full");
    let data = payload(4000);
    for ident in (0..u16::MAX).rev().skip(DISTANCE as usize) {
        let sent: Vec<Fragment> = fragments(data.len(), 1500, 20).unwrap().collect();
        let mut whole = None;
        for f in &sent {
            let bytes = &data[f.offset..f.offset + f.len];
            whole = r.push(at(1), &header(ident, f.offset, f.len, f.more), [bytes]).unwrap();
        }
        assert_eq!(whole.expect("the last one completes it").payload, data);
    }
    sanity(&r);
}

#[test]
fn fragments_of_others_may_come_between() {
    let mut r = Reassembler::default();
    let other = |ident, src| with(header(ident, 0, 8, true), |h| h.src = src);
    assert_eq!(push(&mut r, 0, &[1; 8], true), Ok(None));
    // Any number of another host's, and a few of the same one's.
    for ident in 0..1000 {
        let header = other(ident, Ipv4Addr::new(10, 0, 0, 3));
        assert_eq!(r.push(at(0), &header, [&[0; 8][..]]), Ok(None));
    }
    for ident in 101..100 + DISTANCE as u16 {
        assert_eq!(r.push(at(0), &other(ident, SRC), [&[0; 8][..]]), Ok(None));
    }
    let whole = push(&mut r, 8, &[2; 8], false).unwrap();
    assert_eq!(whole.expect("it is whole").payload.len(), 16);
    sanity(&r);
}

// Found by fuzzing: the room reserved for the fragment stayed, unseen by the memory bound.
#[test]
fn truncated_fragment_leaves_no_memory_behind() {
    let mut r = Reassembler::with_limit(1000);
    assert_eq!(push(&mut r, 0, &[1; 8], true), Ok(None));
    let before = r.memory();
    let result = r.push(at(0), &header(1, 8, 8000, true), [[0; 8].as_slice()]);
    assert_eq!(result, Err(DropReason::TooShort));
    assert_eq!(r.memory(), before);
    sanity(&r);
}

#[test]
fn link_padding_is_not_payload() {
    let mut r = Reassembler::default();
    assert_eq!(push(&mut r, 0, &[1; 8], true), Ok(None));
    let padded = [[2; 3].as_slice(), &[0; 20], &[0; 3]];
    assert_eq!(r.push(at(0), &header(1, 8, 3, false), padded).unwrap().unwrap().payload.len(), 11);
}

#[test]
fn time_is_counted_from_the_first_fragment() {
    let mut r = Reassembler::default();
    assert_eq!(r.push(at(1), &header(1, 0, 8, true), [[0; 8].as_slice()]), Ok(None));
    assert_eq!(r.push(at(2), &header(2, 0, 8, true), [[0; 8].as_slice()]), Ok(None));
    assert_eq!(r.push(at(20), &header(1, 8, 8, true), [[0; 8].as_slice()]), Ok(None));
    assert_eq!(r.next_deadline(), Some(at(31)));
    assert_eq!(r.expire(at(30)), 0);
    assert_eq!(r.expire(at(31)), 1);
    assert_eq!((r.next_deadline(), r.len()), (Some(at(32)), 1));
    // Nobody expired the other one, and yet its time is over.
    assert_eq!(r.push(at(40), &header(2, 8, 8, false), [[0; 8].as_slice()]), Ok(None));
    assert_eq!(r.expire(at(40)), 1);
    assert_eq!(r.next_deadline(), Some(at(70)));
    sanity(&r);
}

#[test]
fn oldest_makes_room() {
    let mut r = Reassembler::with_limit(10_000);
    for ident in 0..20 {
        assert_eq!(
            r.push(at(0), &header(ident, 8, 1000, true), [payload(1000).as_slice()]),
            Ok(None)
        );
        sanity(&r);
    }
    assert_eq!(r.take_evicted(), 20 - r.len());
    assert_eq!(r.take_evicted(), 0);
    assert!(r.datagrams.keys().all(|key| key.ident > 10));
    // A datagram that alone exceeds the bound goes itself.
    assert_eq!(
        r.push(at(0), &header(99, 0, 12_000, true), [payload(12_000).as_slice()]),
        Err(DropReason::FragmentMemory)
    );
    sanity(&r);
}

#[test]
fn flood_of_tiny_fragments_stays_within_the_default_bound() {
    let mut r = Reassembler::default();
    for ident in 0..40 {
        for index in (1..4000).rev() {
            assert_eq!(
                r.push(at(0), &header(ident, index * 16, 8, true), [[0; 8].as_slice()]),
                Ok(None)
            );
        }
    }
    sanity(&r);
    assert!(r.memory() > MEMORY_LIMIT / 2 && r.take_evicted() > 0);
}

#[test]
fn whole_that_exceeds_a_datagram_because_of_options_is_refused() {
    let mut bytes = [0x01; 24];
    header(1, 0, 65480, true).emit(bytes.first_chunk_mut().unwrap());
    bytes[0] = 0x46;
    bytes[2..4].copy_from_slice(&(65504u16).to_be_bytes());
    bytes[10..12].fill(0);
    let checksum = crate::wire::checksum::Sum::of(&bytes).checksum();
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    let first = Header::parse(&bytes, 65504).unwrap();
    let mut r = Reassembler::default();
    assert_eq!(r.push(at(0), &first, [payload(65480).as_slice()]), Ok(None));
    assert_eq!(push(&mut r, 65480, &[0; 35], false), Err(DropReason::FragmentTooBig));
    assert!(r.is_empty());
    sanity(&r);
}

#[derive(Clone, Debug)]
struct Step {
    ident: u16,
    fragment: Fragment,
    wait_ms: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let fragment = (0usize..12, 0usize..40, any::<bool>())
        .prop_map(|(units, len, more)| Fragment { offset: units * 8, len, more });
    (0u16..3, fragment, 0u64..4000).prop_map(|(ident, fragment, wait_ms)| Step {
        ident,
        fragment,
        wait_ms,
    })
}

/// A fragment of IPv6, with an option where its identification goes on.
fn of_ipv6(offset: usize, len: usize, more: bool) -> Header {
    let mut bytes = [0; 24];
    header(1, offset, len + 4, more).emit(bytes.first_chunk_mut().unwrap());
    (bytes[0], bytes[10], bytes[11]) = (0x46, 0, 0);
    bytes[20..].copy_from_slice(&[136, 4, 0, 0]);
    let sum = crate::wire::checksum::Sum::of(&bytes).checksum();
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    Header::parse(&bytes, 24 + len).unwrap()
}

// covers: LIM-20
#[test]
fn the_longest_datagram_of_ipv6_becomes_whole() {
    let data = payload(0xffff);
    let mut r = Reassembler::of_ipv6(MEMORY_LIMIT);
    let pieces: Vec<_> = fragments(65_000, 1500, 28).unwrap().collect();
    let last = pieces.last().unwrap().offset;
    for f in &pieces[..pieces.len() - 1] {
        let bytes = &data[f.offset..f.offset + f.len];
        assert_eq!(r.push_identified(at(0), &of_ipv6(f.offset, f.len, true), 7, [bytes]), Ok(None));
        sanity(&r);
    }
    let header = of_ipv6(last, data.len() - last, false);
    let whole = r.push_identified(at(0), &header, 7, [&data[last..]]).unwrap().unwrap();
    assert!(whole.payload == data && !whole.header.is_fragment());
    assert_eq!((whole.header.src, whole.header.dst), (SRC, DST));
    // One byte more is none.
    let beyond = of_ipv6(0xfff8, 8, false);
    let refused = r.push_identified(at(0), &beyond, 8, [&data[..8]]);
    assert_eq!(refused, Err(DropReason::FragmentTooBig));
}

/// RFC 8200 section 4.5: the addresses and all 32 bits of the identification, but not the protocol.
#[test]
fn fragments_of_ipv6_belong_together_by_their_whole_identification() {
    let mut r = Reassembler::of_ipv6(MEMORY_LIMIT);
    let first = of_ipv6(0, 8, true);
    let last = with(of_ipv6(8, 3, false), |it| it.protocol = 60);
    assert_eq!(r.push_identified(at(0), &first, 1, [b"01234567".as_slice()]), Ok(None));
    assert_eq!(r.push_identified(at(0), &last, 0x1_0001, [b"xyz".as_slice()]), Ok(None));
    assert_eq!(r.len(), 2);
    // Others of this source do not make it older.
    for ident in 100..300 {
        assert_eq!(r.push_identified(at(1), &first, ident, [b"otherone".as_slice()]), Ok(None));
    }
    // RFC 5722: what overlaps condemns its datagram.
    let other = of_ipv6(0, 16, false);
    let overlapping = r.push_identified(at(1), &other, 200, [[1; 16].as_slice()]);
    assert_eq!(overlapping, Err(DropReason::FragmentOverlap));
    assert_eq!(r.len(), 201);
    // Linux waits for 60 s.
    let whole = r.push_identified(at(59), &last, 1, [b"abc".as_slice()]).unwrap().unwrap();
    assert_eq!((whole.payload.as_slice(), whole.header.protocol), (&b"01234567abc"[..], 17));
    assert_eq!(r.expire(at(60)), 1);
    assert_eq!(r.expire(at(61)), 199);
    sanity(&r);
}

proptest! {
    #[test]
    fn any_order_with_duplicates_reassembles_to_the_identity(
        len in 1usize..=MAX_PAYLOAD_LEN, mtu in 600usize..9000,
        order in prop::collection::vec(any::<(prop::sample::Index, bool)>(), 0..120),
    ) {
        let data = payload(len);
        let mut sent: Vec<Fragment> = fragments(len, mtu, 20).unwrap().collect();
        // Swap into an arbitrary order, then repeat some where they stand.
        for (place, (index, _)) in order.iter().enumerate() {
            let a = place % sent.len();
            let b = index.index(sent.len());
            sent.swap(a, b);
        }
        let mut r = Reassembler::default();
        let mut whole = None;
        for (place, f) in sent.iter().enumerate() {
            prop_assert!(whole.is_none());
            let bytes = &data[f.offset..f.offset + f.len];
            let (a, b) = bytes.split_at(f.len / 3);
            let h = header(1, f.offset, f.len, f.more);
            whole = r.push(at(0), &h, [a, b]).unwrap();
            sanity(&r);
            if whole.is_none() && order.get(place).is_some_and(|(_, again)| *again) {
                prop_assert_eq!(r.push(at(0), &h, [bytes]), Err(DropReason::FragmentDuplicate));
            }
        }
        prop_assert_eq!(whole.unwrap().payload, data);
        prop_assert!(r.is_empty());
    }

    #[test]
    fn any_steps_keep_the_invariants(
        steps in prop::collection::vec(step(), 0..200), limit in 500usize..3000,
    ) {
        let mut r = Reassembler::with_limit(limit);
        let mut now = at(0);
        for Step { ident, fragment: Fragment { offset, len, more }, wait_ms } in steps {
            now = now.saturating_add(Duration::from_millis(wait_ms));
            // A byte's value is its place, so a misplaced one shows.
            let data: Vec<u8> = (offset..offset + len).map(|i| i as u8).collect();
            let result = r.push(now, &header(ident, offset, len, more), [data.as_slice()]);
            sanity(&r);
            prop_assert!(r.next_deadline().is_none_or(|deadline| deadline > now));
            if let Ok(Some(whole)) = result {
                prop_assert_eq!(whole.header.payload_len(), whole.payload.len());
                prop_assert!(whole.payload.iter().enumerate().all(|(i, byte)| *byte == i as u8));
            }
        }
    }
}
