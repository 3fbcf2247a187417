//! The UDP header (RFC 768) and its checksum. Ports are not looked up here.

use core::net::Ipv4Addr;

use super::checksum::{Sum, pseudo_header};
use super::ipv4::{MAX_PAYLOAD_LEN, protocol};
use crate::drop_reason::DropReason;

/// The length of the header on the wire.
pub const HEADER_LEN: usize = 8;

/// The most data one datagram carries in an IPv4 packet without options.
pub const MAX_DATA_LEN: usize = MAX_PAYLOAD_LEN - HEADER_LEN;

/// A UDP header whose length covers at least itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub src_port: u16,
    pub dst_port: u16,
    /// As it lies on the wire: 0 if the sender did not compute one.
    pub checksum: u16,
    /// Header and data.
    len: u16,
}

impl Header {
    /// A header without checksum. `None` if the data exceeds [`MAX_DATA_LEN`].
    #[inline]
    pub fn new(src_port: u16, dst_port: u16, data_len: usize) -> Option<Self> {
        if data_len > MAX_DATA_LEN {
            return None;
        }
        let len = u16::try_from(data_len.checked_add(HEADER_LEN)?).ok()?;
        Some(Self { src_port, dst_port, checksum: 0, len })
    }

    /// Parses the header at the start of `bytes`, the first linear piece of an IP payload of
    /// `ip_payload_len` bytes.
    ///
    /// A UDP length below the IP payload's is legal, as on Linux: the rest is not data. Zero, which
    /// RFC 2675 allows in IPv6 jumbograms, is not.
    #[inline]
    pub fn parse(bytes: &[u8], ip_payload_len: usize) -> Result<Self, DropReason> {
        let bytes = bytes.get(..ip_payload_len).unwrap_or(bytes);
        let Some(&[s0, s1, d0, d1, l0, l1, c0, c1]) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(DropReason::TooShort);
        };
        let len = u16::from_be_bytes([l0, l1]);
        if usize::from(len) < HEADER_LEN || usize::from(len) > ip_payload_len {
            return Err(DropReason::BadUdpLength);
        }
        Ok(Self {
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            checksum: u16::from_be_bytes([c0, c1]),
            len,
        })
    }

    #[inline]
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [l0, l1] = self.len.to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        *out = [s0, s1, d0, d1, l0, l1, c0, c1];
    }

    /// The same header with the checksum over it and `data`, the sum of the [`Header::data_len`]
    /// bytes behind it.
    ///
    /// RFC 768: a computed zero is sent as all ones, because zero means that there is none.
    #[inline]
    #[must_use]
    pub fn checksummed(self, src: Ipv4Addr, dst: Ipv4Addr, data: Sum) -> Self {
        let checksum = match self.sum_without_checksum(src, dst).then(data).checksum() {
            0 => 0xffff,
            checksum => checksum,
        };
        Self { checksum, ..self }
    }

    /// The same header with the pseudo header's sum only, for a device that adds the rest
    /// ([`PartialChecksum`] describes the form).
    #[inline]
    #[must_use]
    pub fn partially_checksummed(self, src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        Self { checksum: self.pseudo_header(src, dst).fold(), ..self }
    }

    /// Verifies the checksum against the data, given as the pieces behind this header in order.
    /// Bytes beyond
    /// [`Header::data_len`] are link padding and not looked at.
    #[inline]
    pub fn verify<'a>(
        &self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        data: impl IntoIterator<Item = &'a [u8]>,
        partial: PartialChecksum,
    ) -> Result<(), DropReason> {
        if self.needs_no_data(src, dst, partial) {
            return Ok(());
        }
        let mut left = self.data_len();
        let mut sum = Sum::ZERO;
        for piece in data {
            let piece = piece.get(..left).unwrap_or(piece);
            sum = sum.then(Sum::of(piece));
            left = left.saturating_sub(piece.len());
        }
        if left != 0 {
            return Err(DropReason::TooShort);
        }
        self.verify_sum(src, dst, sum, partial)
    }

    /// Verifies the checksum against the sum of the data, which a receiver that copies has for free
    /// ([`copy_and_sum`](super::checksum::copy_and_sum)).
    #[inline]
    pub fn verify_sum(
        &self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        data: Sum,
        partial: PartialChecksum,
    ) -> Result<(), DropReason> {
        if self.needs_no_data(src, dst, partial) {
            return Ok(());
        }
        match self.sum_without_checksum(src, dst).then_u16(self.checksum).then(data).fold() {
            0xffff => Ok(()),
            _ => Err(DropReason::BadUdpChecksum),
        }
    }

    /// Whether the checksum field is good whatever the data is, because there is no checksum (RFC
    /// 768) or a partial one that is accepted.
    #[inline]
    pub fn needs_no_data(&self, src: Ipv4Addr, dst: Ipv4Addr, partial: PartialChecksum) -> bool {
        self.checksum == 0
            || partial == PartialChecksum::Accept
                && self.checksum == self.pseudo_header(src, dst).fold()
    }

    /// The length of header and data, in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline]
    pub fn data_len(&self) -> usize {
        self.total_len().saturating_sub(HEADER_LEN)
    }

    #[inline]
    fn sum_without_checksum(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Sum {
        self.pseudo_header(src, dst)
            .then_u16(self.src_port)
            .then_u16(self.dst_port)
            .then_u16(self.len)
    }

    #[inline]
    fn pseudo_header(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Sum {
        pseudo_header(src, dst, protocol::UDP, self.len)
    }
}

/// What to do with a checksum that the sender left to its device: the folded sum of the pseudo
/// header, not complemented. Linux writes it under `CHECKSUM_PARTIAL`, and on a virtual link no
/// device ever completes it.
#[doc(alias = "CHECKSUM_PARTIAL")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialChecksum {
    /// The frame crossed a wire: such a checksum is a wrong one.
    Reject,
    /// The frame came over a virtual interface (veth, tap) from a local kernel: exactly this form
    /// is right.
    Accept,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn header(data: &[u8]) -> Header {
        Header::new(1000, 2000, data.len()).unwrap().checksummed(SRC, DST, Sum::of(data))
    }

    fn verify(header: Header, data: &[u8], partial: PartialChecksum) -> Result<(), DropReason> {
        header.verify(SRC, DST, [data], partial)
    }

    #[test]
    fn lengths_are_checked_against_the_ip_payload() {
        let bytes = [0, 1, 0, 2, 0, 12, 0, 0, 1, 2, 3, 4, 5, 6];
        assert_eq!(Header::parse(&bytes[..7], 12), Err(DropReason::TooShort));
        assert_eq!(Header::parse(&bytes, 7), Err(DropReason::TooShort));
        assert_eq!(Header::parse(&bytes, 11), Err(DropReason::BadUdpLength));
        assert_eq!(Header::parse(&bytes, 12).unwrap().data_len(), 4);
        assert_eq!(Header::parse(&bytes, 14).unwrap().data_len(), 4);
        for len in [0, 7] {
            let bytes = [0, 1, 0, 2, 0, len, 0, 0];
            assert_eq!(Header::parse(&bytes, 8), Err(DropReason::BadUdpLength));
        }
        assert!(Header::new(1, 2, MAX_DATA_LEN).is_some());
        assert!(Header::new(1, 2, MAX_DATA_LEN + 1).is_none());
    }

    #[test]
    fn corruption_is_found_and_absence_accepted() {
        let good = header(b"hello");
        assert_eq!(verify(good, b"hello", PartialChecksum::Reject), Ok(()));
        assert_eq!(
            verify(good, b"hellp", PartialChecksum::Accept),
            Err(DropReason::BadUdpChecksum)
        );
        assert_eq!(verify(good, b"hell", PartialChecksum::Reject), Err(DropReason::TooShort));
        assert_eq!(
            verify(Header { checksum: 0, ..good }, b"other", PartialChecksum::Reject),
            Ok(())
        );
    }

    #[test]
    fn link_padding_is_not_summed() {
        assert_eq!(verify(header(b"hello"), b"hello\xff\xff", PartialChecksum::Reject), Ok(()));
    }

    #[test]
    fn computed_zero_is_sent_as_all_ones() {
        // Data chosen to make everything add up to 0xffff.
        let rest = Header::new(1000, 2000, 2).unwrap().sum_without_checksum(SRC, DST);
        let data = rest.checksum().to_be_bytes();
        let header = header(&data);
        assert_eq!(header.checksum, 0xffff);
        assert_eq!(verify(header, &data, PartialChecksum::Reject), Ok(()));
    }

    #[test]
    fn partial_checksum_passes_only_where_accepted() {
        let partial = header(b"hello").partially_checksummed(SRC, DST);
        // What `udp4_hwcsum` leaves: 10.0.0.1 + 10.0.0.2 + 17 + 13.
        assert_eq!(partial.checksum, 0x1400 + 3 + 17 + 13);
        assert_eq!(verify(partial, b"hello", PartialChecksum::Accept), Ok(()));
        assert_eq!(
            verify(partial, b"hello", PartialChecksum::Reject),
            Err(DropReason::BadUdpChecksum)
        );
        // The complement is another number, and is a wrong checksum.
        let complement = Header { checksum: !partial.checksum, ..partial };
        assert_eq!(
            verify(complement, b"hello", PartialChecksum::Accept),
            Err(DropReason::BadUdpChecksum)
        );
    }

    proptest! {
        #[test]
        fn parse_inverts_emit(
            src_port: u16, dst_port: u16, checksum: u16, data_len in 0usize..=MAX_DATA_LEN,
        ) {
            let header = Header { checksum, ..Header::new(src_port, dst_port, data_len).unwrap() };
            let mut out = [0; HEADER_LEN];
            header.emit(&mut out);
            prop_assert_eq!(Header::parse(&out, header.total_len()), Ok(header));
        }

        #[test]
        fn checksum_survives_any_cut_of_the_data(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..10),
            src: u32, dst: u32, flip in any::<prop::sample::Index>(),
        ) {
            let (src, dst) = (src.into(), dst.into());
            let mut data = pieces.concat();
            let header = Header::new(7, 9, data.len()).unwrap();
            let header = header.checksummed(src, dst, Sum::of(&data));
            prop_assert_ne!(header.checksum, 0);
            let (slices, reject) = (pieces.iter().map(Vec::as_slice), PartialChecksum::Reject);
            prop_assert_eq!(header.verify(src, dst, slices, reject), Ok(()));
            prop_assert_eq!(header.verify_sum(src, dst, Sum::of(&data), reject), Ok(()));
            if !data.is_empty() {
                let at = flip.index(data.len());
                data[at] ^= 0x10;
                let verdict = header.verify(src, dst, [data.as_slice()], reject);
                prop_assert_eq!(verdict, Err(DropReason::BadUdpChecksum));
            }
        }

        #[test]
        fn no_bytes_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..40), ip_payload_len: usize,
        ) {
            if let Ok(header) = Header::parse(&bytes, ip_payload_len) {
                prop_assert!(header.total_len() <= ip_payload_len);
                let _ = header.verify(SRC, DST, [bytes.as_slice()], PartialChecksum::Accept);
            }
        }
    }
}
