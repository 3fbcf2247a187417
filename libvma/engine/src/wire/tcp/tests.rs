use super::*;
use proptest::prelude::*;

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A header in front of `options`, padded with zeros to whole words.
fn bytes_with_options(options: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    bytes.extend(options);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes[12] = (bytes.len() as u8 / 4) << 4;
    bytes
}

fn parse_options(options: &[u8]) -> Options {
    let bytes = bytes_with_options(options);
    let (header, len) = Header::parse(&bytes, bytes.len()).unwrap();
    assert_eq!(len, bytes.len());
    header.options
}

fn emitted(header: &Header) -> Vec<u8> {
    let mut out = [0xee; MAX_HEADER_LEN];
    let len = header.emit(&mut out);
    assert_eq!(len, header.header_len());
    out[..len].to_vec()
}

fn with_sack(options: Options, count: u32) -> Options {
    let mut options = options;
    for index in 0..count {
        options.push_sack(SackBlock { left: index * 10, right: index * 10 + 5 });
    }
    options
}

const TIMESTAMPS: Timestamps = Timestamps { value: 0x0102_0304, echo: 0x0506_0708 };

#[test]
fn lengths_are_checked_against_the_ip_payload() {
    let bytes = bytes_with_options(&[1; 8]);
    assert_eq!(Header::parse(&bytes[..19], 28), Err(DropReason::TooShort));
    assert_eq!(Header::parse(&bytes, 19), Err(DropReason::TooShort));
    assert_eq!(Header::parse(&bytes[..24], 28), Err(DropReason::TooShort));
    assert_eq!(Header::parse(&bytes, 27), Err(DropReason::BadTcpHeaderLength));
    assert_eq!(Header::parse(&bytes, 100).unwrap().1, 28);
    for words in 0..5 {
        let mut bytes = bytes.clone();
        bytes[12] = words << 4;
        assert_eq!(Header::parse(&bytes, 28), Err(DropReason::BadTcpHeaderLength));
    }
}

#[test]
fn fields_lie_where_the_rfc_draws_them() {
    let bytes =
        [0x30, 0x39, 0x00, 0x50, 0, 0, 0, 1, 0, 0, 0, 2, 0x5f, 0x12, 0xfa, 0xf0, 0xab, 0xcd, 0, 7];
    let header = Header {
        src_port: 12345,
        dst_port: 80,
        seq: 1,
        ack: 2,
        flags: Flags::SYN.with(Flags::ACK),
        window: 64240,
        checksum: 0xabcd,
        urgent: 7,
        options: Options::default(),
    };
    // The four reserved bits are ignored on the way in and zero on the way out.
    assert_eq!(Header::parse(&bytes, 20), Ok((header, 20)));
    let mut expected = bytes;
    expected[12] = 0x50;
    assert_eq!(emitted(&header), expected);
    assert_eq!(header.control_len(), 1);
}

#[test]
fn options_are_laid_out_as_linux_does() {
    let syn = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(TIMESTAMPS),
        ..Options::default()
    };
    let cases: [(Options, &[u8]); 5] = [
        (syn, &[2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 3, 7]),
        (Options { timestamps: None, ..syn }, &[2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7]),
        (
            Options { sack_permitted: false, mss: None, ..syn },
            &[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 3, 7],
        ),
        (
            Options { timestamps: Some(TIMESTAMPS), ..Options::default() },
            &[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8],
        ),
        (with_sack(Options::default(), 1), &[1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 5]),
    ];
    for (options, expected) in cases {
        let header = Header { options, ..Header::default() };
        assert_eq!(emitted(&header)[HEADER_LEN..], *expected);
        assert_eq!(options.len_on_wire(), expected.len());
        assert_eq!(parse_options(expected), options);
    }
}

#[test]
fn sack_blocks_never_exceed_the_option_space() {
    let mut options = Options { timestamps: Some(TIMESTAMPS), ..Options::default() };
    for _ in 0..3 {
        assert!(options.push_sack(SackBlock::default()));
    }
    assert!(!options.push_sack(SackBlock::default()));
    assert_eq!(options.len_on_wire(), 40);
    assert!(!with_sack(Options::default(), 4).push_sack(SackBlock::default()));

    // Timestamps that come later push the fourth block out.
    let late = Options { timestamps: Some(TIMESTAMPS), ..with_sack(Options::default(), 4) };
    assert_eq!(late.len_on_wire(), 40);
    let bytes = emitted(&Header { options: late, ..Header::default() });
    assert_eq!(Header::parse(&bytes, 60).unwrap().0.options.sack().len(), 3);
}

#[test]
fn unknown_and_malformed_options_do_not_hide_the_others() {
    let scale = |options: &[u8]| parse_options(options).window_scale;
    assert_eq!(scale(&[254, 4, 0, 0, 3, 3, 7]), Some(7), "an unknown kind is stepped over");
    assert_eq!(scale(&[1, 1, 1, 3, 3, 7]), Some(7), "NOPs are padding");
    assert_eq!(scale(&[3, 4, 9, 9, 3, 3, 7]), Some(7), "a wrong length is stepped over");
    assert_eq!(scale(&[254, 2, 3, 3, 7]), Some(7), "an option may be empty");
    assert_eq!(scale(&[3, 3, 6, 3, 3, 7]), Some(7), "the last one counts");
    assert_eq!(scale(&[3, 3, 200]), Some(MAX_WINDOW_SCALE), "RFC 7323 section 2.3");

    assert_eq!(scale(&[254, 0, 3, 3, 7]), None, "length 0");
    assert_eq!(scale(&[254, 1, 3, 3, 7]), None, "length 1");
    assert_eq!(scale(&[0, 3, 3, 7]), None, "end of options");
    assert_eq!(scale(&[254, 40, 3, 3, 7]), None, "beyond the header");
    assert_eq!(scale(&[3, 3, 7, 254, 40]), Some(7), "what came before is kept");
    assert_eq!(scale(&[1, 1, 1, 3]), None, "no length at all");
}

#[test]
fn mss_of_zero_says_nothing() {
    assert_eq!(parse_options(&[2, 4, 0, 0]).mss, None);
    assert_eq!(parse_options(&[2, 4, 0, 1]).mss, Some(1));
}

#[test]
fn sack_needs_whole_blocks() {
    assert_eq!(parse_options(&[5, 2, 1, 1]).sack(), &[]);
    assert_eq!(parse_options(&[5, 9, 0, 0, 0, 0, 0, 0, 0]).sack(), &[]);
    let mut four = vec![5, 34];
    four.extend((0..8).flat_map(|word: u32| word.to_be_bytes()));
    let options = parse_options(&four);
    assert_eq!(options.sack().len(), 4);
    assert_eq!(options.sack()[3], SackBlock { left: 6, right: 7 });
}

#[test]
fn emitting_into_too_little_room_writes_nothing() {
    for options in [
        Options::default(),
        Options { timestamps: Some(TIMESTAMPS), ..Options::default() },
        Options { mss: Some(1), ..Options::default() },
    ] {
        let header = Header { options, src_port: 1, ..Header::default() };
        let mut out = [0; MAX_HEADER_LEN];
        assert_eq!(header.emit(&mut out[..header.header_len() - 1]), 0);
        assert_eq!(out, [0; MAX_HEADER_LEN]);
    }
}

#[test]
fn partial_checksum_passes_only_where_accepted() {
    let partial = Header::default().partially_checksummed(SRC, DST, 5);
    // What Linux leaves under CHECKSUM_PARTIAL: 10.0.0.1 + 10.0.0.2 + 6 + 25.
    assert_eq!(partial.checksum, 0x1400 + 3 + 6 + 25);
    let mut segment = emitted(&partial);
    segment.extend(b"hello");
    let verify =
        |how, header: Header| header.verify(SRC, DST, [segment.as_slice()], segment.len(), how);
    assert_eq!(verify(PartialChecksum::Accept, partial), Ok(()));
    assert_eq!(verify(PartialChecksum::Reject, partial), Err(DropReason::BadTcpChecksum));
    let complement = Header { checksum: !partial.checksum, ..partial };
    assert_eq!(verify(PartialChecksum::Accept, complement), Err(DropReason::BadTcpChecksum));
}

#[test]
fn zero_is_no_excuse_for_a_missing_checksum() {
    let header = Header { src_port: 9, ..Header::default() };
    let bytes = emitted(&header);
    let verdict = header.verify(SRC, DST, [bytes.as_slice()], 20, PartialChecksum::Reject);
    assert_eq!(verdict, Err(DropReason::BadTcpChecksum));
}

prop_compose! {
    fn any_options()(
        mss in prop::option::of(1u16..),
        window_scale in prop::option::of(0..=MAX_WINDOW_SCALE),
        sack_permitted: bool,
        timestamps in prop::option::of(any::<(u32, u32)>()),
        sack in prop::collection::vec(any::<(u32, u32)>(), 0..=4),
    ) -> Options {
        let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
        let mut options =
            Options { mss, window_scale, sack_permitted, timestamps, ..Options::default() };
        for (left, right) in sack {
            options.push_sack(SackBlock { left, right });
        }
        options
    }
}

prop_compose! {
    fn any_header()(
        ports: (u16, u16), numbers: (u32, u32), flags: u8, window: u16, checksum: u16, urgent: u16,
        options in prop_oneof![
            Just(Options::default()),
            any::<(u32, u32)>().prop_map(|(value, echo)| Options {
                timestamps: Some(Timestamps { value, echo }),
                ..Options::default()
            }),
            any_options(),
        ],
    ) -> Header {
        Header {
            src_port: ports.0,
            dst_port: ports.1,
            seq: numbers.0,
            ack: numbers.1,
            flags: Flags::from_bits(flags),
            window,
            checksum,
            urgent,
            options,
        }
    }
}

proptest! {
    #[test]
    fn parse_inverts_emit(header in any_header()) {
        let bytes = emitted(&header);
        prop_assert!(bytes.len().is_multiple_of(4) && bytes.len() <= MAX_HEADER_LEN);
        prop_assert_eq!(Header::parse(&bytes, bytes.len() + 3), Ok((header, bytes.len())));
    }

    #[test]
    fn computed_checksum_is_found_right_and_corruption_wrong(
        header in any_header(),
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6),
        src: u32, dst: u32, flip in any::<prop::sample::Index>(),
    ) {
        let (src, dst) = (src.into(), dst.into());
        let data = pieces.concat();
        let mut at_once = [0; MAX_HEADER_LEN];
        let written =
            header.emit_checksummed(src, dst, Sum::of(&data), data.len(), &mut at_once);
        let header = header.checksummed(src, dst, Sum::of(&data), data.len());
        let bytes = emitted(&header);
        prop_assert_eq!(&at_once[..written], bytes.as_slice());
        let len = bytes.len() + data.len();
        let reject = PartialChecksum::Reject;
        let padding: &[u8] = &[0xff; 3];
        let slices = [bytes.as_slice()].into_iter().chain(pieces.iter().map(Vec::as_slice));
        prop_assert_eq!(header.verify(src, dst, slices.chain([padding]), len, reject), Ok(()));

        let mut segment = [bytes, data].concat();
        let at = flip.index(segment.len());
        segment[at] ^= 0x10;
        let verdict = header.verify(src, dst, [segment.as_slice()], len, reject);
        prop_assert_eq!(verdict, Err(DropReason::BadTcpChecksum));
    }

    #[test]
    fn no_bytes_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..80), ip_payload_len in 0usize..100,
    ) {
        if let Ok((header, len)) = Header::parse(&bytes, ip_payload_len) {
            prop_assert!(len >= HEADER_LEN && len <= ip_payload_len && len <= bytes.len());
            prop_assert!(header.header_len() <= MAX_HEADER_LEN);
            emitted(&header);
        }
    }

    #[test]
    fn no_options_panic(options in prop::collection::vec(0u8..12, 0..=40)) {
        let parsed = parse_options(&options);
        prop_assert!(parsed.len_on_wire() <= 40);
        emitted(&Header { options: parsed, ..Header::default() });
    }
}
