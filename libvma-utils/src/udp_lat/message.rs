//! What the two ends say to each other: a header of 16 bytes, the rest is ballast.
//!
//! | bytes | what, in network byte order |
//! |-------|-----------------------------|
//! | 0-3   | `ulQ1` a question, `ulA1` its answer |
//! | 4-7   | the client, by a number it chose: in a group one hears the answers to others, too |
//! | 8-15  | the number of the question, from 1 |

/// The smallest message, in bytes.
pub const HEADER: usize = 16;

/// The largest, in bytes: the payload of the largest IPv4 packet without options.
pub const LARGEST: usize = 65_507;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Question,
    Answer,
}

impl Kind {
    const fn mark(self) -> [u8; 4] {
        match self {
            Kind::Question => *b"ulQ1",
            Kind::Answer => *b"ulA1",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub client: u32,
    pub number: u64,
}

impl Header {
    /// None if the datagram is not udp_lat's.
    pub fn read(datagram: &[u8]) -> Option<Header> {
        let (mark, rest) = datagram.split_first_chunk::<4>()?;
        let (client, rest) = rest.split_first_chunk::<4>()?;
        let (number, _) = rest.split_first_chunk::<8>()?;
        let kind = [Kind::Question, Kind::Answer].into_iter().find(|kind| kind.mark() == *mark)?;
        let (client, number) = (u32::from_be_bytes(*client), u64::from_be_bytes(*number));
        Some(Header { kind, client, number })
    }

    /// Over the beginning of a message, which has at least [`HEADER`] bytes.
    pub fn write(self, message: &mut [u8]) {
        message[..4].copy_from_slice(&self.kind.mark());
        message[4..8].copy_from_slice(&self.client.to_be_bytes());
        message[8..HEADER].copy_from_slice(&self.number.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        for kind in [Kind::Question, Kind::Answer] {
            let header = Header { kind, client: 0x0102_0304, number: 0x0506_0708_090a_0b0c };
            let mut message = [0xff; HEADER + 1];
            header.write(&mut message);
            assert_eq!(message[4..], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0xff]);
            assert_eq!(Header::read(&message), Some(header));
        }
    }

    #[test]
    fn other_datagrams_are_none_of_ours() {
        let mut message = [0; HEADER];
        assert_eq!(Header::read(&message), None);
        Header { kind: Kind::Answer, client: 1, number: 1 }.write(&mut message);
        for length in 0..HEADER {
            assert_eq!(Header::read(&message[..length]), None, "{length} bytes");
        }
    }
}
