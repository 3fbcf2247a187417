//! What processes say to each other on a connection of the rendezvous: messages of one fixed size.
//!
//! Whatever is not exactly a message of this version is nothing: another program on our name, an
//! older or newer library. Descriptors travel beside the bytes.

/// Bytes of every message.
pub const LENGTH: usize = 48;

/// Changes whenever a message, or the memory that is handed over, does. It is part of the names,
/// too, so that versions do not even meet.
pub const VERSION: u8 = 7;

/// Names a process for its whole life, and no other one: random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcessId(pub [u8; 16]);

/// What a socket is found by: the inode of the kernel's socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A caller introduces itself and asks for a socket; with memory and its bell.
    Hello { process: ProcessId, key: Key },
    /// With the other bell if the status is `Linked`.
    Answer { process: ProcessId, key: Key, status: Status },
    /// There is a new socket that can be found.
    Posted { key: Key },
    /// A socket can no longer be found.
    Gone { key: Key },
    /// The sender ends, and leaves the peer the descriptor that comes along: its half of the connection that the peer
    /// knows by this number.
    Half { connection: u64 },
    /// The bell of a thread of the sender's process comes along, of this number.
    Bell { number: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The memory is taken: a link exists from now on, as long as this connection.
    Linked,
    /// The two processes have a link already.
    Known,
    /// Not this process's socket (any more).
    NotServed,
    /// It is, but there shall be no link.
    Refused,
}

impl Message {
    /// Reads a message; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let (magic, rest) = bytes.split_first_chunk::<6>()?;
        let ([version, kind], rest) = rest.split_first_chunk::<2>()?;
        if magic != MAGIC || *version != VERSION {
            return None;
        }
        let (process, rest) = rest.split_first_chunk::<16>()?;
        let (key, rest) = rest.split_first_chunk::<NAME>()?;
        let (status, padding) = rest.split_first()?;
        if padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        if (*kind, *status) == (HALF, 0) {
            return parse_name(key, CONNECTION).map(|connection| Message::Half { connection });
        }
        if (*kind, *status) == (BELL, 0) {
            return parse_name(key, THREAD).map(|number| Message::Bell { number });
        }
        let (process, key) = (ProcessId(*process), parse_name(key, INODE).map(Key)?);
        Some(match (*kind, *status) {
            (1, 0) => Message::Hello { process, key },
            (2, status) => Message::Answer { process, key, status: Status::parse(status)? },
            (3, 0) => Message::Posted { key },
            (4, 0) => Message::Gone { key },
            _ => return None,
        })
    }

    pub fn emit(&self) -> [u8; LENGTH] {
        let nobody = ProcessId([0; 16]);
        let (kind, process, name, status) = match *self {
            Message::Hello { process, key } => (1, process, emit_name(key.0, INODE), 0),
            Message::Answer { process, key, status } => {
                (2, process, emit_name(key.0, INODE), status as u8)
            }
            Message::Posted { key } => (3, nobody, emit_name(key.0, INODE), 0),
            Message::Gone { key } => (4, nobody, emit_name(key.0, INODE), 0),
            Message::Bell { number } => (BELL, nobody, emit_name(number, THREAD), 0),
            Message::Half { connection } => (HALF, nobody, emit_name(connection, CONNECTION), 0),
        };
        let mut bytes = [0; LENGTH];
        let fields: [&[u8]; 5] = [MAGIC, &[VERSION, kind], &process.0, &name, &[status]];
        let mut places = bytes.iter_mut();
        for byte in fields.into_iter().flatten() {
            if let Some(place) = places.next() {
                *place = *byte;
            }
        }
        bytes
    }
}

/// A number of the kind that is expected.
fn parse_name(bytes: &[u8; NAME], expected: [u8; 8]) -> Option<u64> {
    let (kind, number) = bytes.split_first_chunk::<8>()?;
    (*kind == expected).then_some(u64::from_le_bytes(number.try_into().ok()?))
}

fn emit_name(number: u64, kind: [u8; 8]) -> [u8; NAME] {
    let mut bytes = [0; NAME];
    let (first, second) = bytes.split_at_mut(kind.len());
    first.copy_from_slice(&kind);
    second.copy_from_slice(&number.to_le_bytes());
    bytes
}

impl Key {
    /// The abstract name under which the socket's process listens.
    pub fn name(self) -> Vec<u8> {
        format!("libvma-{VERSION}/socket/{}", self.0).into_bytes()
    }
}

impl Status {
    fn parse(byte: u8) -> Option<Status> {
        let all = [Status::Linked, Status::Known, Status::NotServed, Status::Refused];
        all.into_iter().find(|status| *status as u8 == byte)
    }
}

const MAGIC: &[u8; 6] = b"libvma";
const HALF: u8 = 5;
const BELL: u8 = 6;
const NAME: usize = 16;
/// The kind of the number behind it: a socket's inode, a connection of the peer's, or a thread of the sender's.
const INODE: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];
const CONNECTION: [u8; 8] = [2, 0, 0, 0, 0, 0, 0, 0];
const THREAD: [u8; 8] = [3, 0, 0, 0, 0, 0, 0, 0];
const _: () = assert!(MAGIC.len() + 2 + 16 + NAME < LENGTH, "the status does not fit");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = Message> {
        (any::<u64>(), any::<[u8; 16]>(), 0u8..6, 0u8..4).prop_map(
            |(number, process, kind, status)| {
                let (key, process) = (Key(number), ProcessId(process));
                match kind {
                    0 => Message::Hello { process, key },
                    1 => Message::Answer { process, key, status: Status::parse(status).unwrap() },
                    2 => Message::Posted { key },
                    3 => Message::Half { connection: number },
                    4 => Message::Bell { number },
                    _ => Message::Gone { key },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn every_message_survives_the_wire(message in messages()) {
            prop_assert_eq!(Message::parse(&message.emit()), Some(message));
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Message::parse(&bytes);
        }

        /// Also beyond the magic, which random bytes do not pass.
        #[test]
        fn what_parses_is_what_would_be_emitted(
            message in messages(), at in 0..LENGTH, byte in any::<u8>()
        ) {
            let mut bytes = message.emit();
            bytes[at] = byte;
            if let Some(parsed) = Message::parse(&bytes) {
                // These say nothing of a process, whatever stands there: it may have been another kind.
                let names_none = !matches!(parsed, Message::Hello { .. } | Message::Answer { .. });
                if names_none {
                    bytes[8..24].fill(0);
                }
                prop_assert_eq!(parsed.emit(), bytes);
            }
        }
    }

    #[test]
    fn another_version_or_length_is_nothing() {
        let message = Message::Gone { key: Key(7) };
        let bytes = message.emit();
        for len in 0..LENGTH {
            assert_eq!(Message::parse(&bytes[..len]), None);
        }
        assert_eq!(Message::parse(&[&bytes[..], &[0]].concat()), None);
        let mut newer = bytes;
        newer[6] = VERSION + 1;
        assert_eq!(Message::parse(&newer), None);
    }

    #[test]
    fn names_carry_the_version() {
        assert_eq!(Key(9).name(), b"libvma-7/socket/9");
    }
}
