use super::*;
use core::time::Duration;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn millis(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn pop_all(wheel: &mut TimerWheel, now: Instant) -> Vec<u32> {
    core::iter::from_fn(|| wheel.pop_due(now)).collect()
}

#[test]
fn timers_expire_in_order_and_never_early() {
    let mut wheel = TimerWheel::new(Instant::default());
    wheel.schedule(1, millis(5));
    wheel.schedule(2, Instant::from_nanos(3_000_001));
    wheel.schedule(3, millis(200));
    assert_eq!(wheel.next(), Some(millis(4)));
    assert_eq!(wheel.pop_due(Instant::from_nanos(3_999_999)), None);
    assert_eq!(pop_all(&mut wheel, millis(100)), [2, 1]);
    assert_eq!(wheel.deadline_of(3), Some(millis(200)));
    assert_eq!(wheel.pop_due(Instant::from_nanos(199_999_999)), None);
    assert_eq!(pop_all(&mut wheel, millis(200)), [3]);
    assert!(wheel.is_empty() && wheel.next().is_none());
}

#[test]
fn rescheduling_replaces_the_deadline() {
    let mut wheel = TimerWheel::new(millis(1000));
    wheel.schedule(7, millis(1100));
    wheel.schedule(7, millis(1200));
    assert_eq!((wheel.len(), wheel.deadline_of(7)), (1, Some(millis(1200))));
    assert_eq!(wheel.pop_due(millis(1150)), None);
    wheel.schedule(7, millis(1160));
    assert_eq!(pop_all(&mut wheel, millis(1160)), [7]);
}

#[test]
fn deadlines_in_the_past_are_due_at_once() {
    let mut wheel = TimerWheel::new(millis(1000));
    wheel.schedule(0, millis(10));
    assert!(wheel.next().unwrap() <= millis(1000));
    assert_eq!(pop_all(&mut wheel, millis(1000)), [0]);
}

#[test]
fn within_a_tick_and_back_in_time_only_what_was_due_comes() {
    let mut wheel = TimerWheel::new(millis(1000));
    wheel.schedule(0, millis(1001));
    assert_eq!(wheel.pop_due(Instant::from_nanos(1_000_999_999)), None);
    assert_eq!(wheel.pop_due(millis(900)), None);
    wheel.schedule(1, millis(10));
    assert_eq!(wheel.pop_due(millis(900)), Some(1));
    assert_eq!(wheel.pop_due(millis(900)), None);
    assert_eq!(pop_all(&mut wheel, millis(1001)), [0]);
    // Also an empty wheel follows time: what is scheduled then is known to the tick.
    assert_eq!(wheel.pop_due(millis(1065)), None);
    wheel.schedule(2, millis(1068));
    assert_eq!(wheel.next(), Some(millis(1068)));
}

#[test]
fn cancelling_is_idempotent_and_reaches_expired_timers() {
    let mut wheel = TimerWheel::new(Instant::default());
    assert!(!wheel.cancel(5));
    wheel.schedule(1, millis(1));
    wheel.schedule(2, millis(1));
    wheel.schedule(3, millis(1));
    assert_eq!(wheel.pop_due(millis(2)), Some(1));
    assert!(wheel.cancel(2));
    assert!(!wheel.cancel(2));
    assert_eq!(wheel.deadline_of(2), None);
    assert_eq!(pop_all(&mut wheel, millis(2)), [3]);
    assert!(!wheel.cancel(u32::MAX));
    wheel.schedule(u32::MAX, millis(1));
    assert!(wheel.is_empty());
}

#[test]
fn hours_and_the_end_of_time_fit() {
    let mut wheel = TimerWheel::new(Instant::default());
    let hours = Instant::default().saturating_add(Duration::from_secs(7200));
    wheel.schedule(0, hours);
    wheel.schedule(1, Instant::from_nanos(u64::MAX));
    let mut wakeups = 0;
    let mut now = Instant::default();
    while wheel.len() == 2 {
        let next = wheel.next().unwrap();
        assert!(next <= hours);
        now = now.max(next);
        wheel.pop_due(now);
        wakeups += 1;
    }
    assert_eq!(now, hours);
    assert!(wakeups <= LEVELS, "{wakeups} wake-ups");
    assert_eq!(wheel.pop_due(Instant::from_nanos(u64::MAX / 2)), None);
    // The last tick is rounded up beyond what an instant can say: it never comes.
    assert_eq!(wheel.pop_due(Instant::from_nanos(u64::MAX)), None);
    assert!(wheel.next().unwrap() <= Instant::from_nanos(u64::MAX));
}

#[derive(Clone, Debug)]
enum Step {
    Schedule(u32, u64),
    Cancel(u32),
    Advance(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    // Deadlines from nanoseconds to days ahead, or a little behind.
    let ahead = (0u32..47, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) - 1));
    prop_oneof![
        4 => (0u32..40, ahead.clone()).prop_map(|(id, ahead)| Step::Schedule(id, ahead)),
        1 => (0u32..40).prop_map(Step::Cancel),
        2 => ahead.prop_map(Step::Advance),
    ]
}

proptest! {
    #[test]
    fn behaves_as_a_sorted_list(
        start in 0u64..1 << 50, steps in prop::collection::vec(any_step(), 0..300),
    ) {
        let mut now = Instant::from_nanos(start);
        let mut wheel = TimerWheel::new(now);
        let mut model = BTreeMap::<u32, Instant>::new();
        for step in steps {
            match step {
                Step::Schedule(id, ahead) => {
                    let at = (now.as_nanos() + ahead).saturating_sub(5_000_000);
                    wheel.schedule(id, Instant::from_nanos(at));
                    model.insert(id, Instant::from_nanos(at));
                }
                Step::Cancel(id) => {
                    prop_assert_eq!(wheel.cancel(id), model.remove(&id).is_some());
                }
                Step::Advance(by) => {
                    let nanos = now.as_nanos() + by;
                    now = Instant::from_nanos(nanos);
                    let mut popped = pop_all(&mut wheel, now);
                    // In the order of their ticks, except those that were overdue when scheduled.
                    let ticks: Vec<_> = popped
                        .iter()
                        .map(|id| model[id].as_nanos().div_ceil(TICK_NANOS))
                        .filter(|tick| *tick > (nanos - by) / TICK_NANOS)
                        .collect();
                    prop_assert!(ticks.is_sorted(), "{:?}", ticks);
                    popped.sort_unstable();
                    let tick = nanos / TICK_NANOS;
                    let due: Vec<_> = model
                        .iter()
                        .filter(|(_, at)| at.as_nanos().div_ceil(TICK_NANOS) <= tick)
                        .map(|(id, _)| *id)
                        .collect();
                    prop_assert_eq!(&popped, &due);
                    for id in due {
                        prop_assert!(model.remove(&id).unwrap() <= now);
                    }
                }
            }
            prop_assert_eq!(wheel.len(), model.len());
            let earliest = model.values().map(|at| at.as_nanos().div_ceil(TICK_NANOS)).min();
            let next = wheel.next().map(|at| at.as_nanos() / TICK_NANOS);
            prop_assert_eq!(next.is_some(), earliest.is_some());
            if let (Some(next), Some(earliest)) = (next, earliest) {
                let exact = earliest / 64 == now.as_nanos() / TICK_NANOS / 64;
                prop_assert!(next <= earliest.max(now.as_nanos() / TICK_NANOS));
                prop_assert!(!exact || next >= earliest.min(now.as_nanos() / TICK_NANOS));
            }
            for id in 0..40 {
                prop_assert_eq!(wheel.deadline_of(id), model.get(&id).copied());
            }
        }
    }
}
