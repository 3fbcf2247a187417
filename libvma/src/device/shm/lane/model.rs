//! The lane under the model checker: every interleaving, and every value that the orderings allow
//! a load to see (loom). Two slots and two chunks, so that a few records go round.
//!
//! loom takes sequentially consistent loads and stores for acquire and release ones, so what holds
//! here rests on the fences alone.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use super::*;

struct Model {
    controls: [AtomicU64; 2],
    /// What the slots hold; loom reports a read that races with a write.
    slots: [UnsafeCell<u8>; 2],
    returns: [AtomicU64; 2],
    chunks: [UnsafeCell<u8>; 2],
    position: AtomicU64,
    armed: AtomicU64,
    starved: AtomicU64,
    /// The eventfds: whoever rings puts 1 there, who settles takes it away.
    bell_of_consumer: AtomicU64,
    bell_of_producer: AtomicU64,
}

impl Model {
    fn new() -> Arc<Model> {
        let word = || AtomicU64::new(0);
        Arc::new(Model {
            controls: [word(), word()],
            slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
            returns: [word(), word()],
            chunks: [UnsafeCell::new(0), UnsafeCell::new(0)],
            position: word(),
            armed: word(),
            starved: word(),
            bell_of_consumer: word(),
            bell_of_producer: word(),
        })
    }

    fn send(&self, producer: &mut Producer, byte: u8) -> bool {
        let has_slot = producer.has_slot(self, 0).expect("an honest consumer");
        if has_slot {
            producer.publish(self, u32::from(byte), &[byte; INLINE], 1);
        }
        has_slot
    }

    /// As the ring's kick.
    fn kick(&self) {
        Model::fence();
        if Producer::must_wake(self) {
            self.bell_of_consumer.swap(1, Ordering::AcqRel);
        }
    }

    /// The next record, and whether its content is the one that its control word tells of.
    fn receive(&self, consumer: &mut Consumer) -> Option<u8> {
        let record = consumer.peek(self).expect("an honest producer")?;
        let mut bytes = [0; INLINE];
        if consumer.take(self, &mut bytes, 1) {
            self.relieve(consumer);
        }
        assert_eq!(u32::from(bytes[0]), record);
        Some(bytes[0])
    }

    fn relieve(&self, consumer: &mut Consumer) {
        if consumer.must_relieve(self) {
            self.bell_of_producer.swap(1, Ordering::AcqRel);
        }
    }

    /// As the ring's settle; true if there is nothing, so that only the bell ends the sleep.
    fn settle(&self, consumer: &mut Consumer) -> bool {
        self.bell_of_consumer.swap(0, Ordering::AcqRel);
        consumer.publish(self);
        consumer.arm(self);
        Model::fence();
        consumer.peek(self) == Ok(None)
    }
}

impl Lane for Model {
    type Word = AtomicU64;
    const SLOTS: u64 = 2;
    const CHUNKS: u64 = 2;

    fn control(&self, slot: u64) -> &AtomicU64 {
        &self.controls[slot as usize % 2]
    }

    fn returned(&self, entry: u64) -> &AtomicU64 {
        &self.returns[entry as usize % 2]
    }

    fn position(&self) -> &AtomicU64 {
        &self.position
    }

    fn armed(&self) -> &AtomicU64 {
        &self.armed
    }

    fn starved(&self) -> &AtomicU64 {
        &self.starved
    }

    fn write(&self, slot: u64, bytes: &Inline, _used: usize) {
        // SAFETY: that nobody reads or writes meanwhile is what the model shows.
        self.slots[slot as usize % 2].with_mut(|cell| unsafe { *cell = bytes[0] });
    }

    fn read(&self, slot: u64, bytes: &mut Inline, _used: usize) {
        // SAFETY: as in `write`.
        bytes[0] = self.slots[slot as usize % 2].with(|cell| unsafe { *cell });
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::swap(self, value, order)
    }
}

/// Explores everything with at most three switches away from a thread that could go on.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn records_arrive_whole_and_in_order_also_when_the_ring_wraps() {
    explore(|| {
        let lane = Model::new();
        let peer = Arc::clone(&lane);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new::<Model>();
            (1..=4).take_while(|byte| peer.send(&mut producer, *byte)).count()
        });
        let mut consumer = Consumer::new();
        let mut received = 0;
        for _ in 0..3 {
            if let Some(byte) = lane.receive(&mut consumer) {
                received += 1;
                assert_eq!(byte, received);
            }
        }
        let sent = sender.join().expect("the sender");
        while let Some(byte) = lane.receive(&mut consumer) {
            received += 1;
            assert_eq!(byte, received);
        }
        assert_eq!(usize::from(received), sent);
        assert!(sent >= 2);
    });
}

#[test]
fn a_wake_up_is_never_lost() {
    explore(|| {
        let lane = Model::new();
        let peer = Arc::clone(&lane);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new::<Model>();
            for byte in 1..=2 {
                assert!(peer.send(&mut producer, byte));
                peer.kick();
            }
        });
        let mut consumer = Consumer::new();
        // It falls asleep twice: the second time the first time's bell may still be on its way.
        lane.settle(&mut consumer);
        lane.receive(&mut consumer);
        let asleep = lane.settle(&mut consumer);
        sender.join().expect("the sender");
        let rung = lane.bell_of_consumer.load(Ordering::Acquire) == 1;
        assert!(!asleep || rung || consumer.peek(&*lane) == Ok(None), "asleep beside a record");
    });
}

#[test]
fn a_sender_that_found_no_slot_is_told_of_one() {
    explore(|| {
        let lane = Model::new();
        let mut producer = Producer::new::<Model>();
        assert!(lane.send(&mut producer, 1) && lane.send(&mut producer, 2));
        let peer = Arc::clone(&lane);
        let receiver = thread::spawn(move || {
            let mut consumer = Consumer::new();
            assert_eq!(peer.receive(&mut consumer), Some(1));
        });
        let mut sent = lane.send(&mut producer, 3);
        if !sent {
            producer.starve(&*lane);
            sent = lane.send(&mut producer, 3);
        }
        receiver.join().expect("the receiver");
        assert!(sent || producer.is_relieved(&*lane));
        assert!(sent || lane.bell_of_producer.load(Ordering::Acquire) == 1);
    });
}

#[test]
fn a_chunk_that_came_back_is_read_by_nobody_and_who_waits_is_told() {
    explore(|| {
        let lane = Model::new();
        let mut producer = Producer::new::<Model>();
        let mut lent = Vec::new();
        for byte in 1..=2 {
            let chunk = producer.lend().expect("a chunk");
            // SAFETY: the chunk was free.
            lane.chunks[usize::from(chunk)].with_mut(|cell| unsafe { *cell = byte });
            assert!(lane.send(&mut producer, byte));
            lent.push(chunk);
        }
        let peer = Arc::clone(&lane);
        let receiver = thread::spawn(move || {
            let mut consumer = Consumer::new();
            for chunk in lent {
                let byte = peer.receive(&mut consumer).expect("a record");
                assert_eq!(consumer.hold::<Model>(chunk), Ok(()));
                // SAFETY: the chunk is held.
                let found = peer.chunks[usize::from(chunk)].with(|cell| unsafe { *cell });
                assert_eq!(found, byte);
                consumer.give_back(&*peer, chunk);
            }
            peer.relieve(&mut consumer);
        });
        producer.collect(&*lane).expect("an honest consumer");
        if producer.free_chunks() == 0 {
            producer.starve(&*lane);
            producer.collect(&*lane).expect("an honest consumer");
        }
        let found = producer.lend();
        if let Some(chunk) = found {
            // SAFETY: the chunk came back, so nobody reads it any more; loom would tell.
            lane.chunks[usize::from(chunk)].with_mut(|cell| unsafe { *cell = 9 });
        }
        receiver.join().expect("the receiver");
        let told = lane.bell_of_producer.load(Ordering::Acquire) == 1;
        assert!(found.is_some() || (told && producer.is_relieved(&*lane)));
    });
}
