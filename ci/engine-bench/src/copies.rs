//! Not a TCP: only the copies that libvma and lwIP make, in libvma's order: from the writer into a send buffer,
//! from there into packets with every write, and once the window is full from those to the reader. smoltcp
//! makes one more, into a receive buffer.

use libvma_engine::bulk_copy::bulk_copy;

use crate::packets::{Packet, Pool, Queue};
use crate::{Contestant, Cycle, MESSAGE_LEN, Setup};

/// IPv4 and TCP: what the payload lies behind.
const HEADERS_LEN: usize = 40;

pub struct Copies {
    send_buffer: Vec<u8>,
    sent: Queue,
    read: Vec<Packet>,
    pool: Pool,
    segment_len: usize,
}

impl Contestant for Copies {
    fn open(setup: &Setup) -> Copies {
        let mtu = usize::from(setup.mtu);
        Copies {
            send_buffer: vec![0; setup.window as usize],
            sent: Queue::default(),
            read: Vec::new(),
            pool: Pool::new(mtu),
            segment_len: mtu - HEADERS_LEN,
        }
    }

    fn round_trip(&mut self, message: &[u8; MESSAGE_LEN]) -> [u8; MESSAGE_LEN] {
        let (mut there, mut back) = ([0; MESSAGE_LEN], [0; MESSAGE_LEN]);
        self.bulk(message, &mut there, MESSAGE_LEN as u64);
        self.bulk(&there, &mut back, MESSAGE_LEN as u64);
        back
    }

    fn bulk(&mut self, source: &[u8], sink: &mut [u8], total: u64) {
        let mut sent = Cycle::new(source.len(), total);
        let mut received = Cycle::new(sink.len(), total);
        while !received.is_done() {
            let mut filled = 0;
            while filled < self.send_buffer.len() && !sent.is_done() {
                let piece = &source[sent.next(self.send_buffer.len() - filled)];
                let end = filled + piece.len();
                bulk_copy(&mut self.send_buffer[filled..], piece);
                for segment in self.send_buffer[filled..end].chunks(self.segment_len) {
                    let mut packet = self.pool.take(HEADERS_LEN + segment.len());
                    bulk_copy(&mut packet.bytes_mut()[HEADERS_LEN..], segment);
                    self.sent.push_back(packet);
                }
                filled = end;
                sent.advance(piece.len());
            }
            while let Some(packet) = self.sent.pop_front() {
                let mut payload = &packet.bytes()[HEADERS_LEN..];
                while !payload.is_empty() {
                    let room = &mut sink[received.next(payload.len())];
                    bulk_copy(room, &payload[..room.len()]);
                    payload = &payload[room.len()..];
                    received.advance(room.len());
                }
                self.read.push(packet);
            }
            self.pool.give_back(&mut self.read);
        }
    }
}
