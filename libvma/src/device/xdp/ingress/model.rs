//! The ring under the model checker, as the lane of the shm device is (`shm/lane/model.rs`). The other
//! side is `bpf/ingress.bpf.c`, said again here: the kernel's atomic operations that tell an old value
//! are full barriers, which are fences for loom.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

use super::{Memory, Piece, Slots, Word};

/// Two slots, so that a few pieces go round. Chunk `n` is at `chunks[n]`.
struct Model {
    turns: [AtomicU32; 2],
    pieces: [UnsafeCell<Piece>; 2],
    /// What the program copied; loom reports a read that races with a write.
    chunks: [UnsafeCell<u32>; 2],
    head: AtomicU32,
    credit: AtomicU32,
    asleep: AtomicU32,
    lost: AtomicU32,
    bell: AtomicU32,
}

const NO_PIECE: Piece = Piece { chunk: 0, len: 0, continued: false, segment: 0 };

impl Model {
    /// Both chunks are offered.
    fn new() -> (Arc<Model>, Slots<Arc<Model>>) {
        let word = || AtomicU32::new(0);
        let model = Arc::new(Model {
            turns: [word(), word()],
            pieces: [UnsafeCell::new(NO_PIECE), UnsafeCell::new(NO_PIECE)],
            chunks: [UnsafeCell::new(0), UnsafeCell::new(0)],
            head: AtomicU32::new(2),
            credit: word(),
            asleep: word(),
            lost: word(),
            bell: word(),
        });
        let mut slots = Slots::new(Arc::clone(&model));
        slots.offer(0);
        slots.offer(1);
        slots.publish();
        assert_eq!(slots.room(), 0);
        (model, slots)
    }

    /// The program, with a frame of so many pieces, each of which says `what`.
    fn deliver(&self, pieces: u32, what: u32) {
        if (self.credit.load(Ordering::Relaxed) as i32) < pieces as i32 {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let credit = self.credit.fetch_add(pieces.wrapping_neg(), Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if (credit as i32) < pieces as i32 {
            self.credit.fetch_add(pieces, Ordering::AcqRel);
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let first = self.head.fetch_add(pieces, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        for position in first..first + pieces {
            self.pieces[(position & 1) as usize].with_mut(|piece| {
                // SAFETY: the slot is the program's; loom would tell.
                let piece = unsafe { &mut *piece };
                // SAFETY: as above, and the chunk goes with the slot.
                self.chunks[piece.chunk as usize].with_mut(|chunk| unsafe { *chunk = what });
                piece.len = what;
                piece.continued = position + 1 < first + pieces;
            });
            if position > first {
                self.turn(position).store(position + 1, Ordering::Relaxed);
            }
        }
        fence(Ordering::SeqCst);
        self.turn(first).store(first + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) != 0 && self.asleep.swap(0, Ordering::AcqRel) != 0 {
            self.bell.swap(1, Ordering::AcqRel);
        }
    }

    /// What the chunk of a piece says.
    fn read(&self, piece: Piece) -> u32 {
        // SAFETY: the piece was consumed; loom would tell.
        self.chunks[piece.chunk as usize].with(|chunk| unsafe { *chunk })
    }
}

impl Word for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        AtomicU32::fetch_add(self, value, order)
    }
}

impl Memory for Arc<Model> {
    type Word = AtomicU32;

    fn size(&self) -> u32 {
        2
    }

    fn turn(&self, position: u32) -> &AtomicU32 {
        Model::turn(self, position)
    }

    fn credit(&self) -> &AtomicU32 {
        &self.credit
    }

    fn asleep(&self) -> &AtomicU32 {
        &self.asleep
    }

    fn offer(&self, position: u32, chunk: u32) {
        let piece = Piece { chunk, ..NO_PIECE };
        // SAFETY: the slot is ours until there is credit for it; loom would tell.
        self.pieces[(position & 1) as usize].with_mut(|slot| unsafe { *slot = piece });
    }

    fn piece(&self, position: u32) -> Piece {
        // SAFETY: as above.
        self.pieces[(position & 1) as usize].with(|slot| unsafe { *slot })
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

impl Model {
    fn turn(&self, position: u32) -> &AtomicU32 {
        &self.turns[(position & 1) as usize]
    }
}

/// Everything with at most three switches away from a thread that could go on.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Takes what is there, with the chunk offered anew.
fn take(model: &Model, slots: &mut Slots<Arc<Model>>, taken: &mut Vec<u32>) {
    while let Some(piece) = slots.consume() {
        assert_eq!(piece.len, model.read(piece), "a piece is whole");
        taken.push(piece.len);
        slots.offer(piece.chunk);
        slots.publish();
    }
}

#[test]
fn two_processors_at_once_lose_nothing_of_what_has_room() {
    explore(|| {
        let (model, mut slots) = Model::new();
        let senders = [[10, 11], [20, 21]].map(|frames| {
            let model = Arc::clone(&model);
            thread::spawn(move || frames.into_iter().for_each(|what| model.deliver(1, what)))
        });
        let mut taken = Vec::new();
        take(&model, &mut slots, &mut taken);
        senders.into_iter().for_each(|sender| sender.join().expect("a sender"));
        take(&model, &mut slots, &mut taken);
        let lost = model.lost.load(Ordering::Acquire) as usize;
        assert_eq!(taken.len() + lost, 4);
        assert!(taken.len() >= 2, "there was room for two");
        for sender in [10, 20] {
            let of_one: Vec<_> = taken.iter().filter(|what| **what / 10 * 10 == sender).collect();
            assert!(of_one.is_sorted(), "{taken:?}");
        }
    });
}

#[test]
fn a_frame_of_two_pieces_comes_at_once() {
    explore(|| {
        let (model, mut slots) = Model::new();
        let program = Arc::clone(&model);
        let sender = thread::spawn(move || {
            program.deliver(2, 1);
            program.deliver(2, 2);
        });
        let mut taken = 0;
        for _ in 0..2 {
            let Some(first) = slots.consume() else { continue };
            taken += 1;
            assert!(first.continued);
            let second = slots.consume().expect("all pieces are there with the first");
            assert!(!second.continued);
            assert_eq!((model.read(first), model.read(second)), (first.len, first.len));
            slots.offer(first.chunk);
            slots.offer(second.chunk);
            slots.publish();
        }
        sender.join().expect("the sender");
        taken += u32::from(slots.is_ready());
        assert_eq!(taken + model.lost.load(Ordering::Acquire), 2);
    });
}

#[test]
fn a_wake_up_is_never_lost() {
    explore(|| {
        let (model, mut slots) = Model::new();
        let program = Arc::clone(&model);
        let sender = thread::spawn(move || (1..=2).for_each(|what| program.deliver(1, what)));
        // It falls asleep twice: the second time the first time's bell may still be on its way.
        let mut asleep = false;
        for _ in 0..2 {
            model.bell.swap(0, Ordering::AcqRel);
            asleep = slots.fall_asleep();
            if !asleep {
                take(&model, &mut slots, &mut Vec::new());
            }
        }
        sender.join().expect("the sender");
        let is_rung = model.bell.load(Ordering::Acquire) == 1;
        assert!(!asleep || is_rung || !slots.is_ready(), "asleep beside a packet");
    });
}

#[test]
fn frames_of_different_lengths_from_two_processors_come_whole_and_wake() {
    explore(|| {
        let (model, mut slots) = Model::new();
        let senders = [1, 2].map(|pieces| {
            let model = Arc::clone(&model);
            thread::spawn(move || model.deliver(pieces, pieces))
        });
        model.bell.swap(0, Ordering::AcqRel);
        let asleep = slots.fall_asleep();
        senders.into_iter().for_each(|sender| sender.join().expect("a sender"));
        let is_rung = model.bell.load(Ordering::Acquire) == 1;
        assert!(!asleep || is_rung || !slots.is_ready(), "asleep beside a packet");
        let mut taken = Vec::new();
        take(&model, &mut slots, &mut taken);
        // There is room for one of the two; when both try at once, each may find too little.
        assert!(matches!(taken[..], [1] | [2, 2] | []), "{taken:?}");
        // What was tried and given up is there again.
        model.deliver(2, 9);
        taken.clear();
        take(&model, &mut slots, &mut taken);
        assert_eq!(taken, [9, 9]);
    });
}
