//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng), in the byte order of this machine.

/// Which way a packet went, as the flags of a packet block have it (section 4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    In = 1,
    Out = 2,
}

/// The description of a packet in its block, beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The number of the interface: its place among the interface blocks of the file.
    pub interface: u32,
    pub direction: Direction,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Bytes of the whole packet.
    pub len: usize,
    pub comment: Option<&'a str>,
}

const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
/// shb_userappl.
const PROGRAM: u16 = 4;
/// if_name.
const NAME: u16 = 2;
/// if_tsresol: the exponent of a tenth of a second.
const RESOLUTION: u16 = 9;
const NANOSECONDS: u8 = 9;
/// epb_flags.
const FLAGS: u16 = 2;
/// isb_ifrecv and isb_ifdrop.
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;

/// Writes one block: its type, the length before and after what `body` appends.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put(out, kind);
    put(out, 0);
    body(out);
    let len = (out.len() - start + 4) as u32;
    put(out, len);
    if let Some(field) = out.get_mut(start + 4..start + 8) {
        field.copy_from_slice(&len.to_ne_bytes());
    }
}

fn put(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_ne_bytes());
}

fn put_short(out: &mut Vec<u8>, word: u16) {
    out.extend_from_slice(&word.to_ne_bytes());
}

/// High word first, whatever the byte order is.
fn put_time(out: &mut Vec<u8>, time: u64) {
    put(out, (time >> 32) as u32);
    put(out, time as u32);
}

/// Fields begin at multiples of four bytes.
fn pad(out: &mut Vec<u8>, len: usize) {
    let missing = len.next_multiple_of(4) - len;
    out.extend_from_slice([0; 3].get(..missing).unwrap_or_default());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    put_short(out, code);
    put_short(out, value.len() as u16);
    out.extend_from_slice(value);
    pad(out, value.len());
}

/// The beginning of a file.
pub fn section(out: &mut Vec<u8>, program: &str) {
    block(out, SECTION, |out| {
        put(out, BYTE_ORDER);
        // Version 1.0, and a length that is not known yet.
        put_short(out, 1);
        put_short(out, 0);
        out.extend_from_slice(&u64::MAX.to_ne_bytes());
        option(out, PROGRAM, program.as_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// An interface; it gets the number of such blocks before it in the file.
pub fn interface(out: &mut Vec<u8>, name: &str, snap_len: u32) {
    block(out, INTERFACE, |out| {
        put_short(out, ETHERNET);
        put_short(out, 0);
        put(out, snap_len);
        option(out, NAME, name.as_bytes());
        option(out, RESOLUTION, &[NANOSECONDS]);
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// A packet of which the first `snap_len` bytes are kept.
pub fn packet<'a>(
    out: &mut Vec<u8>,
    about: &About<'_>,
    snap_len: u32,
    pieces: impl Iterator<Item = &'a [u8]>,
) {
    block(out, PACKET, |out| {
        let captured = about.len.min(snap_len as usize);
        put(out, about.interface);
        put_time(out, about.time);
        put(out, captured as u32);
        put(out, about.len as u32);
        let mut left = captured;
        for piece in pieces {
            let piece = piece.get(..left).unwrap_or(piece);
            out.extend_from_slice(piece);
            left -= piece.len();
        }
        // Pieces that are shorter than the packet's length would leave the file unreadable.
        out.resize(out.len() + left, 0);
        pad(out, captured);
        option(out, FLAGS, &(about.direction as u32).to_ne_bytes());
        if let Some(comment) = about.comment {
            option(out, COMMENT, comment.as_bytes());
        }
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// An upper bound of what [`packet`] appends.
pub fn packet_len(about: &About<'_>, snap_len: u32) -> usize {
    about.len.min(snap_len as usize) + about.comment.map_or(0, str::len) + 64
}

/// How many packets of an interface were seen, and how many of them are missing in the file.
pub fn statistics(out: &mut Vec<u8>, interface: u32, time: u64, received: u64, dropped: u64) {
    block(out, STATISTICS, |out| {
        put(out, interface);
        put_time(out, time);
        option(out, RECEIVED, &received.to_ne_bytes());
        option(out, DROPPED, &dropped.to_ne_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// The length of the block at the beginning of `bytes`.
pub fn len_at(bytes: &[u8]) -> Option<usize> {
    let (_, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
    (len >= 12 && len <= bytes.len()).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    fn shorts(first: u16, second: u16) -> u32 {
        u32::from_ne_bytes([first.to_ne_bytes(), second.to_ne_bytes()].concat().try_into().unwrap())
    }

    #[test]
    fn a_section_tells_the_byte_order_and_the_program() {
        let mut out = Vec::new();
        section(&mut out, "me");
        let expected = [
            SECTION,
            40,
            BYTE_ORDER,
            shorts(1, 0),
            u32::MAX,
            u32::MAX,
            shorts(4, 2),
            u32::from_ne_bytes(*b"me\0\0"),
            0,
            40,
        ];
        assert_eq!(words(&out), expected);
    }

    #[test]
    fn an_interface_has_its_name_and_nanoseconds() {
        let mut out = Vec::new();
        interface(&mut out, "eth0", 96);
        let name = u32::from_ne_bytes(*b"eth0");
        let nine = u32::from_ne_bytes([9, 0, 0, 0]);
        let expected = [1, 40, shorts(1, 0), 96, shorts(2, 4), name, shorts(9, 1), nine, 0, 40];
        assert_eq!(words(&out), expected);
    }

    #[test]
    fn a_packet_has_its_pieces_up_to_the_snap_length() {
        let about = About {
            interface: 3,
            direction: Direction::Out,
            time: 0x1_0000_0002,
            len: 7,
            comment: Some("why"),
        };
        let mut out = Vec::new();
        packet(&mut out, &about, 5, [&b"abc"[..], b"", b"defg"].into_iter());
        let expected = [
            PACKET,
            60,
            3,
            1,
            2,
            5,
            7,
            u32::from_ne_bytes(*b"abcd"),
            u32::from_ne_bytes(*b"e\0\0\0"),
            shorts(2, 4),
            2,
            shorts(1, 3),
            u32::from_ne_bytes(*b"why\0"),
            0,
            60,
        ];
        assert_eq!(words(&out), expected);
        assert!(out.len() <= packet_len(&about, 5), "{}", out.len());
        assert_eq!(len_at(&out), Some(60));
        assert_eq!(len_at(&out[..59]), None);
    }

    #[test]
    fn a_packet_without_all_of_its_pieces_is_filled_up() {
        let (interface, time, comment) = (0, 0, None);
        let about = About { interface, direction: Direction::In, time, len: 4, comment };
        let mut out = Vec::new();
        packet(&mut out, &about, 100, [&b"a"[..]].into_iter());
        assert_eq!(words(&out)[7], u32::from_ne_bytes(*b"a\0\0\0"));
        assert_eq!(len_at(&out), Some(out.len()));
    }

    #[test]
    fn statistics_tell_what_was_received_and_dropped() {
        let mut out = Vec::new();
        statistics(&mut out, 1, 5, 7, 9);
        let [low, high] =
            [|n: u64| n.to_ne_bytes()[..4].to_vec(), |n: u64| n.to_ne_bytes()[4..].to_vec()];
        let word = |bytes: Vec<u8>| u32::from_ne_bytes(bytes.try_into().unwrap());
        let expected = [
            5,
            52,
            1,
            0,
            5,
            shorts(4, 8),
            word(low(7)),
            word(high(7)),
            shorts(5, 8),
            word(low(9)),
            word(high(9)),
            0,
            52,
        ];
        assert_eq!(words(&out), expected);
    }
}
