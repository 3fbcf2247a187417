use std::io::Write;

use super::*;

fn note(xtreme: &Xtreme, event: Event, events: i32) {
    xtreme.note(event.data, events as u32, false);
}

fn joined(xtreme: &Xtreme, descriptor: i32, role: Role) -> Event {
    xtreme.join(descriptor, role, None, descriptor as u64).expect("a member").0
}

/// A member with news is served, and has this packet.
fn receive(xtreme: &Xtreme, pool: &Pool, bytes: &[u8]) -> Lent {
    let mut work = xtreme.next(pool, 1).expect("news");
    let [mut small, mut large] = work.room.slices();
    let (front, rest) = bytes.split_at(bytes.len().min(small.len()));
    small.as_mut().write_all(front).expect("room");
    large.as_mut().write_all(rest).expect("room");
    xtreme.done(pool, work, After::Again, Some(bytes.len())).expect("a packet")
}

fn amount(xtreme: &Xtreme) -> (u64, u64) {
    let (mut all, mut of_sockets) = (Amount::default(), HashMap::new());
    xtreme.add_amounts(&mut all, &mut of_sockets);
    (all.packets, all.bytes)
}

#[test]
fn packets_are_counted_until_all_their_buffers_are_free() {
    let (xtreme, pool) = (Xtreme::default(), Pool::default());
    let event = joined(&xtreme, 5, Role::Datagrams);
    note(&xtreme, event, libc::EPOLLIN);
    let short = receive(&xtreme, &pool, b"short");
    let long = receive(&xtreme, &pool, &[7; 60_000]);
    assert_eq!((short.buffers, short.len, long.buffers, long.len), (1, 5, 2, 60_000));
    assert_eq!(amount(&xtreme), (2, 60_005));
    assert_eq!(xtreme.refer(long.list), Ok(2));
    assert_eq!(xtreme.free_packet(&pool, long.list), Ok(()));
    // Its second buffer is gone.
    assert_eq!(amount(&xtreme), (2, 2016 + 5));
    assert_eq!(xtreme.free_buffer(&pool, long.list), Ok(0));
    assert_eq!(xtreme.free_buffer(&pool, long.list), Err(Unknown));
    assert_eq!(xtreme.free_packet(&pool, short.list + 8), Err(Unknown));
    assert_eq!(xtreme.free_packet(&pool, short.list), Ok(()));
    assert_eq!(xtreme.free_packet(&pool, short.list), Err(Unknown));
    assert_eq!(amount(&xtreme), (0, 0));
}

#[test]
fn a_member_is_served_by_one_thread_at_a_time() {
    let (xtreme, pool) = (Xtreme::default(), Pool::default());
    let events = [5, 6].map(|descriptor| joined(&xtreme, descriptor, Role::Datagrams));
    events.iter().for_each(|event| note(&xtreme, *event, libc::EPOLLIN));
    let first = xtreme.next(&pool, 1).expect("news");
    // News of it do not have another thread serve it.
    note(&xtreme, events[0], libc::EPOLLIN);
    let second = xtreme.next(&pool, 2).expect("news");
    assert_eq!((first.member.descriptor, second.member.descriptor), (5, 6));
    assert!(xtreme.next(&pool, 2).is_none());
    xtreme.done(&pool, second, After::Idle, None);
    xtreme.done(&pool, first, After::Idle, None);
    // They came while it was served: they are looked at.
    let again = xtreme.next(&pool, 2).expect("news");
    assert_eq!(again.member.descriptor, 5);
    // A thread that left by longjmp is back.
    note(&xtreme, events[0], libc::EPOLLIN);
    assert!(xtreme.next(&pool, 1).is_none());
    assert!(xtreme.next(&pool, 2).is_some());
}

#[test]
fn events_of_a_former_member_of_the_number_are_ignored() {
    let (xtreme, pool) = (Xtreme::default(), Pool::default());
    let old = joined(&xtreme, 5, Role::Datagrams);
    note(&xtreme, old, libc::EPOLLIN);
    let work = xtreme.next(&pool, 1).expect("news");
    xtreme.forget(5);
    let new = joined(&xtreme, 5, Role::Accepted);
    assert_ne!(old.data, new.data);
    note(&xtreme, old, libc::EPOLLIN);
    xtreme.done(&pool, work, After::Again, None);
    assert!(xtreme.next(&pool, 1).is_none());
    note(&xtreme, new, libc::EPOLLIN);
    assert_eq!(xtreme.next(&pool, 1).map(|work| work.member.role), Some(Role::Accepted));
    assert_eq!(xtreme.members(), [(5, new)]);
}

#[test]
fn a_member_of_which_the_program_has_too_much_waits() {
    let (xtreme, pool) = (Xtreme::default(), Pool::default());
    let event = joined(&xtreme, 5, Role::Accepted);
    note(&xtreme, event, libc::EPOLLIN);
    let mut packets = Vec::new();
    while let Some(work) = xtreme.next(&pool, 1) {
        packets.push(xtreme.done(&pool, work, After::Again, Some(1)).expect("a packet"));
        assert!(packets.len() <= 4096, "it is never enough");
    }
    assert_eq!(packets.len(), 2048, "4 MiB of 2 KiB each");
    note(&xtreme, event, libc::EPOLLIN);
    assert!(xtreme.next(&pool, 1).is_none());
    let one = packets.pop().expect("a packet");
    assert_eq!(xtreme.free_packet(&pool, one.list), Ok(()));
    assert!(xtreme.next(&pool, 1).is_some());
}

#[test]
fn room_to_send_is_news_after_there_was_none() {
    let (xtreme, pool) = (Xtreme::default(), Pool::default());
    let event = joined(&xtreme, 5, Role::Connecting);
    let told_before = |events| {
        note(&xtreme, event, events);
        let mut work = xtreme.next(&pool, 1).expect("news");
        let told = work.member.told;
        work.member.told |= events as u32;
        xtreme.done(&pool, work, After::Idle, None);
        told & libc::EPOLLOUT as u32 != 0
    };
    assert!(!told_before(libc::EPOLLOUT));
    assert!(told_before(libc::EPOLLIN) && told_before(libc::EPOLLIN | libc::EPOLLOUT));
    assert!(!told_before(libc::EPOLLOUT));
}

#[test]
fn values_of_the_program_are_a_members_own() {
    let xtreme = Xtreme::default();
    joined(&xtreme, 5, Role::Datagrams);
    joined(&xtreme, 6, Role::Datagrams);
    assert!(xtreme.set_user_data(|descriptor, _| descriptor == 5, 77));
    assert!(!xtreme.set_user_data(|descriptor, _| descriptor == 7, 77));
    assert_eq!([5, 6, 7].map(|descriptor| xtreme.user_data(descriptor)), [Some(77), Some(6), None]);
    assert_eq!((xtreme.open_ring(9), xtreme.open_ring(10), xtreme.ring()), (9, 9, Some(9)));
    xtreme.forget(9);
    assert_eq!(xtreme.ring(), None);
}
