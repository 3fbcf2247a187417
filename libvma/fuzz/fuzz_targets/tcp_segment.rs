//! Arbitrary bytes as a TCP segment: the parser does not panic, and what it understood survives
//! being emitted and parsed again, with a checksum that fits. Connections are for `tcp_connection`.
#![no_main]

use core::net::Ipv4Addr;

use libfuzzer_sys::fuzz_target;
use libvma_engine::wire::checksum::Sum;
use libvma_engine::wire::tcp::{Header, MAX_HEADER_LEN};
use libvma_engine::wire::udp::PartialChecksum;

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fuzz_target!(|segment: &[u8]| {
    let Ok((header, len)) = Header::parse(segment, segment.len()) else {
        return;
    };
    assert!(len <= segment.len() && len <= MAX_HEADER_LEN);
    let _ = header.verify(SRC, DST, [segment], segment.len(), PartialChecksum::Accept);

    let once = emitted_and_parsed(&header);
    // Ours are padded, so of very full options the last SACK blocks do not fit.
    let told = once.options.sack();
    assert!(header.options.sack().starts_with(told));
    let mut expected = header;
    expected.options.sack = once.options.sack;
    assert_eq!(once, expected);
    assert_eq!(emitted_and_parsed(&once), once);

    let payload = &segment[len..];
    let sealed = once.checksummed(SRC, DST, Sum::of(payload), payload.len());
    let mut bytes = vec![0; sealed.header_len()];
    sealed.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    if bytes.len() <= 65_515 {
        let (parsed, _) = Header::parse(&bytes, bytes.len()).expect("an emitted header parses");
        let verdict = parsed.verify(SRC, DST, [&bytes[..]], bytes.len(), PartialChecksum::Reject);
        assert_eq!(verdict, Ok(()));
    }
});

fn emitted_and_parsed(header: &Header) -> Header {
    let mut bytes = [0; MAX_HEADER_LEN];
    let len = header.emit(&mut bytes);
    assert_eq!(len, header.header_len());
    let (parsed, parsed_len) = Header::parse(&bytes[..len], len).expect("an emitted header parses");
    assert_eq!(parsed_len, len);
    parsed
}
