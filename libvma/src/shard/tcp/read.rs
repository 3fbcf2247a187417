//! From the receive queue of a connection into the program's buffers.

use std::io::IoSliceMut;

use super::{Body, body};
use crate::shard::{SocketId, State};
use crate::sys::user;

/// What a short look at the queue found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// There is nothing to read, and nothing to tell.
    Nothing,
    /// So many bytes, which was all.
    All(usize),
    /// Something that wants a closer look; nothing was taken.
    Unusual,
}

impl<S> State<S> {
    /// What a reader finds nearly always: nothing, or one segment that fits into its buffer and is
    /// at least as long as it wants. One lookup where the other ways take one for each question.
    #[inline]
    pub fn stream_take(&mut self, id: SocketId, out: &mut [u8], least: usize) -> Taken {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return Taken::Unusual };
        let Some((endpoint, _)) =
            slot.content.as_mut().filter(|_| slot.generation == id.generation)
        else {
            return Taken::Unusual;
        };
        let (Some(index), Some(tcp)) = (endpoint.connection, self.tcp.as_deref_mut()) else {
            return Taken::Unusual;
        };
        let Some(block) = tcp.block(index) else { return Taken::Unusual };
        if !block.connection.is_plainly_readable() {
            return Taken::Unusual;
        }
        let Some(piece) = block.connection.only_piece() else {
            let is_empty = block.connection.queued() == 0;
            return if is_empty { Taken::Nothing } else { Taken::Unusual };
        };
        let Body::Frames { ring, frame, offset } = &piece.body else { return Taken::Unusual };
        let len = piece.len as usize;
        if len < least {
            return Taken::Unusual;
        }
        let start = usize::from(*offset) + piece.offset as usize;
        let Some(ring) = self.rings.get(ring.index()) else { return Taken::Unusual };
        // A packet of several chunks ends here.
        let source = ring.first_bytes(frame).get(start..start + len);
        let (Some(source), Some(target)) = (source, out.get_mut(..len)) else {
            return Taken::Unusual;
        };
        if !user::takes(target) {
            return Taken::Unusual;
        }
        target.copy_from_slice(source);
        let counters = &mut endpoint.counters;
        counters.rx_ready_bytes_max = piece.len.max(counters.rx_ready_bytes_max);
        counters.rx_bytes += len as u64;
        counters.rx_poll_hits += 1;
        self.take_piece(index);
        Taken::All(len)
    }

    /// Copies what was received into the buffers, of which `filled` bytes are in use already, and
    /// takes it off the queue. To `peek` from a byte of the queue on leaves it there. None: the connection is gone, or the
    /// buffers are no memory that can be written.
    ///
    /// As in the kernel a segment is copied as a whole or not at all.
    pub fn stream_read(
        &mut self,
        id: SocketId,
        out: &mut [IoSliceMut<'_>],
        filled: usize,
        peek: Option<usize>,
    ) -> Option<usize> {
        let index = self.connection_of(id)?;
        let (tcp, io) = self.tcp()?;
        let block = tcp.block(index)?;
        let from = peek.unwrap_or(0);
        let len = (block.connection.readable() as usize).saturating_sub(from);
        let len = match user::all_take(out, filled, len) {
            true => len,
            false => {
                let pieces = block.connection.pieces().map(|piece| piece.len as usize);
                whole_pieces(pieces, from, |count| user::all_take(out, filled, count))?
            }
        };
        let pieces = block.connection.pieces();
        let copied = body::copy_out(io.rings, pieces, (from, len), out, filled);
        if peek.is_some() || copied == 0 {
            return Some(copied);
        }
        self.consume(index, copied);
        Some(copied)
    }

    /// The byte `from` bytes ahead in the queue, if it is there.
    pub fn stream_byte_at(&mut self, id: SocketId, from: usize) -> Option<u8> {
        let index = self.connection_of(id)?;
        let (tcp, io) = self.tcp()?;
        let pieces = tcp.block(index)?.connection.pieces();
        let mut byte = [0u8];
        let mut out = [IoSliceMut::new(&mut byte)];
        let found = body::copy_out(io.rings, pieces, (from, 1), &mut out, 0);
        (found == 1).then_some(byte[0])
    }

    /// Takes bytes off the queue; a window update may leave.
    pub fn stream_consume(&mut self, id: SocketId, len: usize) {
        if let Some(index) = self.connection_of(id) {
            self.consume(index, len);
        }
    }

    /// As [`State::consume`], for the first piece of the queue as a whole.
    #[inline]
    fn take_piece(&mut self, index: u32) {
        let Some((tcp, mut io)) = self.tcp() else { return };
        let now = tcp.now();
        let Some(block) = tcp.block(index) else { return };
        let Some(piece) = block.connection.take_piece(now) else { return };
        let may_answer = block.connection.may_answer();
        let put_off = block.touched && !block.connection.wants_output();
        body::release(io.rings, &mut tcp.heaps, piece.body);
        if may_answer {
            tcp.touch(index);
        } else if !put_off {
            tcp.output(&mut io, index);
            self.after_tcp();
        }
    }

    #[inline]
    fn consume(&mut self, index: u32, len: usize) {
        let Some((tcp, mut io)) = self.tcp() else { return };
        let now = tcp.now();
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let wants_output = tcp.with(&mut io, index, |connection, wire| {
            connection.consume(now, len, wire);
            connection.wants_output()
        });
        if tcp.block(index).is_some_and(|block| block.connection.may_answer()) {
            return tcp.touch(index);
        }
        // What was put off comes after this, too.
        let put_off = tcp.block(index).is_some_and(|block| block.touched);
        if put_off && wants_output == Some(false) {
            return;
        }
        tcp.output(&mut io, index);
        self.after_tcp();
    }
}

/// How many bytes from `from` on the buffers take, in whole pieces. None: not even the first one.
#[cold]
fn whole_pieces(
    pieces: impl Iterator<Item = usize>,
    from: usize,
    mut fit: impl FnMut(usize) -> bool,
) -> Option<usize> {
    let (mut end, mut taken) = (0usize, None);
    for len in pieces {
        end = end.saturating_add(len);
        let count = end.saturating_sub(from);
        if count > 0 {
            if !fit(count) {
                break;
            }
            taken = Some(count);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_read_as_a_whole_or_not_at_all() {
        let whole =
            |from, room| whole_pieces([10, 20, 30].into_iter(), from, |count| count <= room);
        assert_eq!([whole(0, 9), whole(0, 10), whole(0, 59)], [None, Some(10), Some(30)]);
        assert_eq!([whole(5, 4), whole(5, 24), whole(30, 29)], [None, Some(5), None]);
    }
}
