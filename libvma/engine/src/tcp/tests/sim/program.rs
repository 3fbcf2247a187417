//! A program on one side: what it writes and reads, when, and how it ends.

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::OnceLock;

use super::Rng;
use super::side::{Body, Port};
use crate::tcp::{Connection, Error, SendFlags, State};
use crate::time::Instant;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Shuts its sending side down after the last byte, reads to the end, closes.
    Shutdown,
    /// Closes after the last byte, without reading on.
    Close,
    /// Reads to the end first, then closes.
    CloseAfterPeer,
    /// Resets after the last byte.
    Abort,
}

/// What the program does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes it writes in all.
    pub bytes: u64,
    /// Sizes of its writes, and the pauses between them.
    pub write: Range<u64>,
    pub write_pause: Range<Duration>,
    /// Sizes of its reads, and the pauses between them.
    pub read: Range<u64>,
    pub read_pause: Range<Duration>,
    /// Every so many writes is urgent; 0: none is.
    pub urgent: u64,
    /// Every so many writes has MSG_MORE; 0: none has.
    pub more: u64,
    pub end: End,
}

const NO_PAUSE: Range<Duration> = Duration::ZERO..Duration::ZERO;

impl Plan {
    /// Writes so many bytes as fast as it can, and reads as fast as it can.
    pub fn bulk(bytes: u64) -> Plan {
        Plan {
            bytes,
            write: 1 << 16..1 << 16,
            write_pause: NO_PAUSE,
            read: 1 << 20..1 << 20,
            read_pause: NO_PAUSE,
            urgent: 0,
            more: 0,
            end: End::Shutdown,
        }
    }
}

/// How long a stream is before it repeats itself: a prime, so that nothing else has this period.
const PERIOD: usize = 65_521;

/// The bytes of a stream from a place on, as many as the period has.
fn stream(number: u8, at: u64) -> &'static [u8] {
    static STREAMS: [OnceLock<Vec<u8>>; 2] = [const { OnceLock::new() }; 2];
    let bytes = STREAMS[usize::from(number)].get_or_init(|| {
        let mut rng = Rng::new(u64::from(number));
        let once: Vec<u8> = (0..PERIOD).map(|_| rng.next() as u8).collect();
        once.repeat(2)
    });
    &bytes[(at % PERIOD as u64) as usize..][..PERIOD]
}

/// Writes without a pause between what arrives and leaves.
const MOST_WRITES: u32 = 64;

/// A program under way.
#[derive(Debug)]
pub struct Program {
    pub plan: Plan,
    /// The stream that it writes; it reads the other one.
    stream: u8,
    rng: Rng,
    pub written: u64,
    pub read: u64,
    /// Where its urgent bytes lie.
    pub urgent_at: VecDeque<u64>,
    pub urgent_read: u64,
    writes: u64,
    next_write: Instant,
    next_read: Instant,
    shut: bool,
    pub closed: bool,
    pub saw_end: bool,
    pub errors: Vec<Error>,
    /// What is read must be what was written.
    pub compares: bool,
}

fn pick(rng: &mut Rng, range: &Range<Duration>) -> Duration {
    let span = range.end.saturating_sub(range.start).as_nanos() as u64;
    range.start + Duration::from_nanos(rng.below(span + 1))
}

impl Program {
    pub fn new(plan: Plan, stream: u8, rng: Rng) -> Program {
        Program {
            plan,
            stream,
            rng,
            written: 0,
            read: 0,
            urgent_at: VecDeque::new(),
            urgent_read: 0,
            writes: 0,
            next_write: Instant::default(),
            next_read: Instant::default(),
            shut: false,
            closed: false,
            saw_end: false,
            errors: Vec::new(),
            compares: true,
        }
    }

    /// When the program does something by itself.
    pub fn wakes(&self, connection: &Connection<Body>) -> Option<Instant> {
        if self.closed {
            return None;
        }
        let writes = self.can_write(connection).then_some(self.next_write);
        let can_read = connection.queued() > 0 || connection.is_at_end() && !self.saw_end;
        let reads = (can_read && self.reads()).then_some(self.next_read);
        [writes, reads].into_iter().flatten().min()
    }

    fn can_write(&self, connection: &Connection<Body>) -> bool {
        let open = matches!(connection.state(), State::Established | State::CloseWait);
        open && !self.shut && self.written < self.plan.bytes && connection.send_room() > 0
    }

    fn reads(&self) -> bool {
        // A program that closes without reading does not read before either.
        self.plan.end != End::Close || self.plan.read_pause.end > Duration::ZERO
    }

    /// Does what it does now. True if it did anything.
    pub fn run(
        &mut self,
        now: Instant,
        connection: &mut Connection<Body>,
        port: &mut Port<'_>,
    ) -> bool {
        if self.closed {
            return false;
        }
        let mut did = false;
        if let Some(error) = connection.take_error() {
            self.errors.push(error);
        }
        for _ in 0..MOST_WRITES {
            if self.can_write(connection) && now >= self.next_write {
                did |= self.write(now, connection);
            }
        }
        if self.reads() && now >= self.next_read {
            did |= self.read(now, connection, port);
        }
        did | self.finish(now, connection, port)
    }

    fn write(&mut self, now: Instant, connection: &mut Connection<Body>) -> bool {
        let most = self.rng.between(&self.plan.write).min(PERIOD as u64);
        let most = most.min(self.plan.bytes - self.written);
        let every = |count: u64, writes: u64| count > 0 && writes % count == count - 1;
        let is_last = self.written + most == self.plan.bytes;
        let flags = SendFlags {
            more: every(self.plan.more, self.writes) && !is_last,
            urgent: every(self.plan.urgent, self.writes),
        };
        self.writes += 1;
        let data = &stream(self.stream, self.written)[..most as usize];
        let (first, second) = data.split_at(data.len() / 3);
        let taken = match connection.send(now, [first, second], flags) {
            Ok(taken) => taken as u64,
            Err(error) => {
                self.errors.push(error);
                self.shut = true;
                return true;
            }
        };
        self.written += taken;
        if flags.urgent && taken == most {
            self.urgent_at.push_back(self.written - 1);
        }
        self.next_write = now.saturating_add(pick(&mut self.rng, &self.plan.write_pause));
        taken > 0
    }

    fn read(
        &mut self,
        now: Instant,
        connection: &mut Connection<Body>,
        port: &mut Port<'_>,
    ) -> bool {
        // As Linux, the engine passes over an urgent byte that nobody took when the next one comes.
        let position = connection.counters().bytes_received - u64::from(connection.queued());
        let passes = !connection.settings().urgent_inline;
        assert!(position == self.read || passes || !self.compares, "bytes are missing");
        self.read = position;
        if connection.is_at_end() && !self.saw_end {
            self.saw_end = true;
            return true;
        }
        let mut wanted = self.rng.between(&self.plan.read);
        let mut did = false;
        while wanted > 0 && connection.queued() > 0 {
            let at_hidden = connection.is_at_hidden_mark();
            let take = if at_hidden { 1 } else { connection.readable().min(wanted as u32) };
            if at_hidden && connection.has_urgent() {
                connection.take_urgent();
                self.urgent_read += 1;
            }
            self.compare(connection, take);
            connection.consume(now, take, port);
            self.read += u64::from(take);
            wanted -= u64::from(take).min(wanted);
            did = true;
        }
        if did {
            self.next_read = now.saturating_add(pick(&mut self.rng, &self.plan.read_pause));
        }
        did
    }

    /// The next `count` bytes are those that the other side sent.
    fn compare(&self, connection: &Connection<Body>, count: u32) {
        let mut at = self.read;
        let end = self.read + u64::from(count);
        for piece in connection.pieces() {
            let bytes = &piece.body.bytes[piece.offset as usize..][..piece.len as usize];
            let bytes = &bytes[..bytes.len().min((end - at) as usize)];
            for got in bytes.chunks(PERIOD) {
                let other = 1 - self.stream;
                let is_right = *got == stream(other, at)[..got.len()];
                assert!(is_right || !self.compares, "bytes from {at} on of stream {other}");
                at += got.len() as u64;
            }
            if at == end {
                return;
            }
        }
        panic!("{} readable bytes are missing", end - at);
    }

    fn finish(
        &mut self,
        now: Instant,
        connection: &mut Connection<Body>,
        port: &mut Port<'_>,
    ) -> bool {
        let opened = !matches!(connection.state(), State::SynSent | State::SynReceived);
        let wrote_all = self.written == self.plan.bytes || self.shut;
        let died = connection.state() == State::Closed;
        if !opened || !wrote_all && !died {
            return false;
        }
        let close = match self.plan.end {
            End::Close => true,
            End::CloseAfterPeer => self.saw_end,
            End::Abort => {
                connection.abort();
                true
            }
            End::Shutdown => {
                if !self.shut && !died {
                    self.shut = true;
                    let _ = connection.shutdown_write();
                    return true;
                }
                self.saw_end
            }
        };
        if close {
            self.closed = true;
            connection.close(now, port);
        }
        close
    }
}
