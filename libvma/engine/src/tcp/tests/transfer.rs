//! Whole transfers, from SYN to CLOSED, one kind of path each.

use core::time::Duration;

use super::sim::{End, Open, Part, World};

const MILLI: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_few_bytes_each_way() {
    let parts = [Part::bulk(1000, MILLI), Part::bulk(2000, MILLI)];
    let mut world = World::new(1, Open::Passive, parts);
    world.run(MINUTE);
    world.check_delivered();
}

#[test]
fn bulk_both_ways() {
    let parts = [Part::bulk(5_000_000, MILLI), Part::bulk(3_000_000, MILLI)];
    let mut world = World::new(2, Open::Passive, parts);
    world.run(MINUTE);
    world.check_delivered();
}

#[test]
fn both_open_at_once() {
    let parts = [Part::bulk(100_000, MILLI), Part::bulk(200_000, MILLI)];
    let mut world = World::new(3, Open::Simultaneous, parts);
    world.run(MINUTE);
    world.check_delivered();
}

#[test]
fn close_right_after_writing_loses_nothing() {
    let mut parts = [Part::bulk(1_000_000, MILLI), Part::bulk(0, MILLI)];
    parts[0].plan.end = End::Close;
    parts[1].plan.end = End::CloseAfterPeer;
    let mut world = World::new(4, Open::Passive, parts);
    world.run(2 * MINUTE);
    assert_eq!(world.sides[1].program.read, 1_000_000);
    assert!(world.sides[1].program.saw_end);
    world.check_memory();
}
