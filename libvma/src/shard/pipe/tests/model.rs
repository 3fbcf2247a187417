//! One end of a link in memory.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use libvma_engine::frame::{Frame, Pool};

use crate::device::Received;
use crate::device::shm::{LinkId, Rank};
use crate::shard::pipe::Carrier;

pub struct Record {
    pub kind: u8,
    pub header: [u64; 3],
    pub payload: Vec<u8>,
}

pub type Wire = Rc<RefCell<VecDeque<Record>>>;

/// Words that both sides leave, by side and number.
pub type Notes = Rc<RefCell<HashMap<(usize, u32), u64>>>;

/// One end of a link in memory.
pub struct Model {
    out: Wire,
    /// Records that fit.
    pub most: usize,
    /// Records that only urgent ones may use.
    reserve: usize,
    pool: Pool,
    bytes: Vec<Vec<u8>>,
    pub short: bool,
    pub held: usize,
    notes: Notes,
    side: usize,
}

const FRAMES: u32 = 4096;
const PIECE: usize = 7;

impl Model {
    pub fn new(out: Wire, notes: Notes, side: usize) -> Model {
        Model {
            out,
            most: 64,
            reserve: 8,
            pool: Pool::new(FRAMES),
            bytes: vec![Vec::new(); FRAMES as usize],
            short: false,
            held: 0,
            notes,
            side,
        }
    }

    pub fn received(&mut self, payload: Vec<u8>) -> Option<Received> {
        if payload.is_empty() {
            return None;
        }
        let frame = self.pool.allocate().expect("a frame");
        let len = payload.len() as u32;
        self.bytes[frame.index() as usize] = payload;
        self.held += 1;
        Some(Received { frame, len, segment: 0 })
    }

    /// Would it take the message of a program that was told of room?
    pub fn has_promised_slot(&self) -> bool {
        self.out.borrow().len() + self.reserve / 2 < self.most
    }
}

impl Carrier for Model {
    fn send(
        &mut self,
        _: LinkId,
        kind: u8,
        header: [u64; 3],
        len: usize,
        rank: Rank,
        mut fill: impl FnMut(&mut [u8]),
    ) -> bool {
        let mut out = self.out.borrow_mut();
        let reserve = match rank {
            Rank::Usual => self.reserve,
            Rank::Promised => self.reserve / 2,
            Rank::Urgent => 0,
        };
        if out.len() + reserve >= self.most {
            return false;
        }
        let mut payload = vec![0; len];
        payload.chunks_mut(PIECE).for_each(&mut fill);
        out.push_back(Record { kind, header, payload });
        true
    }

    fn room(&mut self, _: LinkId) -> usize {
        if self.out.borrow().len() + self.reserve >= self.most { 0 } else { 1000 }
    }

    fn pieces(&self, frame: &Frame) -> impl Iterator<Item = &[u8]> {
        self.bytes[frame.index() as usize].chunks(PIECE)
    }

    fn release(&mut self, frame: Frame) {
        self.held -= 1;
        self.pool.release(frame);
    }

    fn set_note(&mut self, _: LinkId, number: u32, value: u64) {
        self.notes.borrow_mut().insert((self.side, number), value);
    }

    fn note_of_peer(&self, _: LinkId, number: u32) -> Option<u64> {
        self.notes.borrow().get(&(1 - self.side, number)).copied()
    }

    fn forget_reader(&mut self, _: LinkId, _: u32) {}

    fn is_short_of_frames(&self) -> bool {
        self.short
    }
}
