//! The lane under the model checker: every interleaving, and every value that the orderings allow
//! a load to see (loom). Two slots and two chunks, so that a few records go round.
//!
//! loom takes sequentially consistent loads and stores for acquire and release ones, so what holds
//! here rests on the fences alone.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
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
    /// Of the only connection.
    reader: AtomicU64,
    /// The bells of the consumer's threads that were rung, a bit each.
    own_bells: AtomicU64,
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
            reader: word(),
            own_bells: word(),
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
        self.ring(Producer::must_wake(self));
    }

    /// The same for data of the connection.
    fn kick_reader(&self, producer: &mut Producer) {
        Model::fence();
        self.ring(producer.must_wake_reader(self, 0));
    }

    fn ring(&self, bell: Option<u32>) {
        match bell {
            Some(COMMON) => drop(self.bell_of_consumer.swap(1, Ordering::AcqRel)),
            Some(bell) => drop(self.own_bells.fetch_or(1 << bell, Ordering::AcqRel)),
            None => {}
        }
    }

    /// As the ring's, for a thread of this bell: true if there is nothing.
    fn arm_own(&self, consumer: &mut Consumer, bell: u32) -> bool {
        consumer.publish(self);
        consumer.arm(self, bell);
        Model::fence();
        consumer.peek(self) == Ok(None)
    }

    /// As the ring's, for a thread that sleeps without its bell: true if there is nothing that was left to it.
    fn sleep_without_bell(&self, consumer: &mut Consumer, bell: u32) -> bool {
        let attended = consumer.stop_attending(self, bell);
        Model::fence();
        !attended || consumer.peek(self) == Ok(None)
    }

    fn set_reader(&self, reader: Reader) {
        self.reader.store(reader.to_word(), Ordering::Relaxed);
    }

    fn rung(&self) -> u64 {
        self.own_bells.load(Ordering::Acquire) | self.bell_of_consumer.load(Ordering::Acquire)
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
        consumer.arm(self, COMMON);
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

    fn reader(&self, number: u32) -> Option<&AtomicU64> {
        (number == 0).then_some(&self.reader)
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

    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_or(self, value, order)
    }

    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_and(self, value, order)
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

/// A sender of one record of the connection.
fn sends_data(lane: &Arc<Model>) -> thread::JoinHandle<()> {
    let peer = Arc::clone(lane);
    thread::spawn(move || {
        let mut producer = Producer::new::<Model>();
        assert!(peer.send(&mut producer, 1));
        peer.kick_reader(&mut producer);
    })
}

#[test]
fn the_only_reader_of_a_connection_is_woken_by_its_data() {
    explore(|| {
        let lane = Model::new();
        let mut consumer = Consumer::new();
        lane.set_reader(Reader::Alone(1));
        // Another thread guards the ring. The reader has slept before.
        lane.settle(&mut consumer);
        lane.arm_own(&mut consumer, 1);
        consumer.disarm(&*lane, 1);
        let sender = sends_data(&lane);
        // It wakes for something else, and sleeps again.
        lane.arm_own(&mut consumer, 1);
        consumer.disarm(&*lane, 1);
        let asleep = lane.arm_own(&mut consumer, 1);
        sender.join().expect("the sender");
        assert!(!asleep || lane.rung() & 2 != 0, "asleep beside its data");
        assert_eq!(lane.bell_of_consumer.load(Ordering::Acquire), 0, "nobody else is woken");
    });
}

#[test]
fn a_connection_that_another_thread_reads_from_now_on_wakes_it_or_is_found() {
    explore(|| {
        let lane = Model::new();
        let mut consumer = Consumer::new();
        lane.set_reader(Reader::Alone(1));
        // The thread that guards the ring sleeps already; the reader computes, and gives the connection away.
        lane.arm_own(&mut consumer, 1);
        consumer.disarm(&*lane, 1);
        lane.settle(&mut consumer);
        let sender = sends_data(&lane);
        lane.set_reader(Reader::Unknown);
        Model::fence();
        let found = consumer.peek(&*lane) != Ok(None);
        sender.join().expect("the sender");
        assert!(found || lane.rung() & 1 != 0, "left to a thread that does not read it");
    });
}

#[test]
fn without_a_thread_that_guards_the_ring_any_other_is_woken() {
    explore(|| {
        let lane = Model::new();
        let mut consumer = Consumer::new();
        lane.settle(&mut consumer);
        assert!(lane.arm_own(&mut consumer, 2));
        let peer = Arc::clone(&lane);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new::<Model>();
            assert!(peer.send(&mut producer, 1));
            peer.kick();
        });
        // It leaves: the bell of the other thread is left.
        consumer.disarm(&*lane, COMMON);
        Model::fence();
        let found = consumer.peek(&*lane) != Ok(None);
        sender.join().expect("the sender");
        assert!(found || lane.rung() & 4 != 0, "everybody sleeps beside a record");
    });
}

#[test]
fn the_only_reader_that_never_armed_its_bell_is_not_left_to_itself() {
    explore(|| {
        let lane = Model::new();
        let mut consumer = Consumer::new();
        lane.settle(&mut consumer);
        let sender = sends_data(&lane);
        lane.set_reader(Reader::Alone(1));
        lane.sleep_without_bell(&mut consumer, 1);
        sender.join().expect("the sender");
        assert_eq!(lane.bell_of_consumer.load(Ordering::Acquire), 1, "the guard is to be woken");
    });
}

#[test]
fn the_only_reader_that_sleeps_without_its_bell_finds_its_data_or_has_the_guard_woken() {
    explore(|| {
        let lane = Model::new();
        let mut consumer = Consumer::new();
        lane.set_reader(Reader::Alone(1));
        lane.settle(&mut consumer);
        lane.arm_own(&mut consumer, 1);
        consumer.disarm(&*lane, 1);
        let sender = sends_data(&lane);
        let asleep = lane.sleep_without_bell(&mut consumer, 1);
        sender.join().expect("the sender");
        assert!(!asleep || lane.rung() & 1 != 0, "asleep beside its data");
    });
}

#[test]
fn a_thread_with_a_bell_on_one_lane_of_two_misses_nothing() {
    explore(|| {
        let lanes = [Model::new(), Model::new()];
        let mut consumers = [Consumer::new(), Consumer::new()];
        for (lane, consumer) in lanes.iter().zip(&mut consumers) {
            lane.set_reader(Reader::Alone(1));
            lane.settle(consumer);
        }
        let ([first, second], [on_first, on_second]) = (&lanes, &mut consumers);
        first.arm_own(on_first, 1);
        on_first.disarm(&**first, 1);
        let sender = sends_data(first);
        let sends_too = Arc::clone(second);
        // It sleeps on the bell of the first lane; the second one has none.
        on_first.arm(&**first, 1);
        on_second.stop_attending(&**second, 1);
        Model::fence();
        let asleep = on_first.peek(&**first) == Ok(None);
        let mut producer = Producer::new::<Model>();
        assert!(sends_too.send(&mut producer, 1));
        sends_too.kick_reader(&mut producer);
        sender.join().expect("the sender");
        assert!(!asleep || first.rung() & 2 != 0, "asleep beside its data");
        assert_eq!(second.rung(), 1, "left to a thread that does not hear it");
    });
}

#[test]
fn what_rang_a_thread_that_leaves_is_found_though_another_guards() {
    explore(|| {
        let lane = Model::new();
        let mut consumer = Consumer::new();
        // Others read the connection, too.
        lane.set_reader(Reader::First(1));
        lane.settle(&mut consumer);
        lane.arm_own(&mut consumer, 1);
        let sender = sends_data(&lane);
        // Its time is up: it looks only if its bell was rung.
        let is_rung = consumer.disarm(&*lane, 1);
        Model::fence();
        let found = is_rung && consumer.peek(&*lane) != Ok(None);
        sender.join().expect("the sender");
        assert!(found || lane.rung() & 1 != 0, "everybody sleeps beside a record");
    });
}
