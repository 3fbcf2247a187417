use super::*;
use crate::shard::Shard;

fn interest(descriptor: i32, events: i32) -> Interest {
    Interest {
        descriptor,
        events: events as u32,
        data: 0,
        spent: false,
        in_kernel: false,
        news: false,
        about: u32::MAX,
    }
}

/// Takes what is listed, and which of its registrations have news.
fn take(state: &mut State<()>, set: SetId) -> Vec<(SocketId, Vec<i32>)> {
    let mut taken = Vec::new();
    let last = state.last_entry(set);
    while let Some(id) = state.next_listed(set, last) {
        let interests = state.interests(set, id).iter_mut();
        let fired =
            interests.filter_map(|one| core::mem::take(&mut one.news).then_some(one.descriptor));
        taken.push((id, fired.collect()));
    }
    taken
}

#[test]
fn news_list_only_what_waits_for_them() {
    let shard = Shard::default();
    let mut state = shard.lock().unwrap();
    let set = state.new_set(9);
    let (one, two) = (state.attach((), 0), state.attach((), 0));
    state.watch(set, one, interest(3, libc::EPOLLIN));
    state.watch(set, one, interest(4, libc::EPOLLOUT));
    state.watch(set, two, interest(5, libc::EPOLLRDHUP | libc::EPOLLHUP));
    state.announce_news(one, Events::WRITABLE);
    state.announce_news(one, Events::WRITABLE);
    state.announce(two);
    assert_eq!(take(&mut state, set), [(one, vec![4])]);
    state.announce_change(two);
    state.announce_news(one, Events::READABLE.union(Events::WRITABLE));
    assert_eq!(take(&mut state, set), [(two, vec![5]), (one, vec![3, 4])]);
    assert_eq!(take(&mut state, set), []);
}

#[test]
fn what_is_not_watched_any_more_is_not_listed() {
    let shard = Shard::default();
    let mut state = shard.lock().unwrap();
    let set = state.new_set(9);
    let ids = [0; 4].map(|_| state.attach((), 0));
    for id in ids {
        state.watch(set, id, Interest { news: true, ..interest(3, libc::EPOLLIN) });
    }
    assert!(state.unwatch(set, ids[0], 3));
    assert!(!state.unwatch(set, ids[0], 3));
    state.detach(ids[1]);
    // Taken out and put in again, it is listed once.
    state.unwatch(set, ids[2], 3);
    state.watch(set, ids[2], Interest { news: true, ..interest(3, libc::EPOLLIN) });
    let listed: Vec<SocketId> = take(&mut state, set).into_iter().map(|(id, _)| id).collect();
    assert_eq!(listed.len(), 2);
    assert!(listed.contains(&ids[2]) && listed.contains(&ids[3]));
    let mut members = state.members(set);
    members.sort_by_key(|id| id.to_bits());
    assert_eq!(members, ids[2..]);
    state.end_set(set);
    assert_eq!(state.new_set(10), set);
    state.announce(ids[3]);
    assert_eq!(take(&mut state, set), []);
}

#[test]
fn what_is_put_back_is_not_met_again() {
    let shard = Shard::default();
    let mut state = shard.lock().unwrap();
    let set = state.new_set(9);
    let (gone, stays) = (state.attach((), 0), state.attach((), 0));
    for id in [gone, stays] {
        state.watch(set, id, Interest { news: true, ..interest(3, libc::EPOLLIN) });
    }
    state.detach(gone);
    let last = state.last_entry(set);
    assert_eq!(state.next_listed(set, last), Some(stays));
    state.relist(set, stays);
    assert_eq!(state.next_listed(set, last), None);
    assert_eq!(state.listed(set), 1);
}

#[test]
fn a_socket_that_was_taken_out_and_put_in_again_is_met_once() {
    let shard = Shard::default();
    let mut state = shard.lock().unwrap();
    let set = state.new_set(9);
    let id = state.attach((), 0);
    let ready = Interest { news: true, ..interest(3, libc::EPOLLIN) };
    for _ in 0..3 {
        state.watch(set, id, ready);
        state.unwatch(set, id, 3);
    }
    state.watch(set, id, ready);
    // As a wait does with what is level-triggered.
    let last = state.last_entry(set);
    let mut met = 0;
    while let Some(id) = state.next_listed(set, last) {
        met += 1;
        state.relist(set, id);
    }
    assert_eq!(met, 1);
}

#[test]
fn weeding_while_the_list_is_read_brings_nobody_back() {
    let shard = Shard::default();
    let mut state = shard.lock().unwrap();
    let set = state.new_set(9);
    let ready = Interest { news: true, ..interest(3, libc::EPOLLIN) };
    for _ in 0..3 {
        let stays = state.attach((), 0);
        state.watch(set, stays, ready);
    }
    let leave = |state: &mut State<()>| {
        for _ in 0..SPARE / 2 {
            let gone = state.attach((), 0);
            state.watch(set, gone, ready);
            state.detach(gone);
        }
    };
    leave(&mut state);
    let last = state.last_entry(set);
    let (mut met, mut weeded) = (0, false);
    while let Some(id) = state.next_listed(set, last) {
        met += 1;
        state.relist(set, id);
        let before = state.listed(set);
        leave(&mut state);
        leave(&mut state);
        weeded |= state.listed(set) < before + SPARE;
    }
    assert!(weeded);
    assert_eq!(met, 3);
}

#[test]
fn what_is_not_watched_any_more_does_not_fill_the_list() {
    let shard = Shard::default();
    let mut state = shard.lock().unwrap();
    let set = state.new_set(9);
    let (id, other) = (state.attach((), 0), state.attach((), 0));
    let ready = Interest { news: true, ..interest(3, libc::EPOLLIN) };
    state.watch(set, other, ready);
    for _ in 0..10_000 {
        state.watch(set, id, ready);
        state.unwatch(set, id, 3);
    }
    assert!(state.listed(set) < 100, "{} are listed", state.listed(set));
    assert_eq!(take(&mut state, set), [(other, vec![3])]);
}

#[test]
fn a_spent_registration_hears_nothing_until_it_is_changed() {
    let shard = Shard::default();
    let mut state = shard.lock().unwrap();
    let set = state.new_set(9);
    let id = state.attach((), 0);
    state.watch(set, id, Interest { spent: true, ..interest(3, libc::EPOLLIN) });
    state.announce_change(id);
    assert_eq!(take(&mut state, set), []);
    state.watch(set, id, interest(3, libc::EPOLLIN));
    state.announce(id);
    assert_eq!(take(&mut state, set), [(id, vec![3])]);
}

#[test]
fn registrations_are_shared_with_the_kernel_once() {
    let shard = Shard::default();
    let mut state = shard.lock().unwrap();
    let (one, two) = (state.new_set(9), state.new_set(10));
    let id = state.attach((), 0);
    state.watch(one, id, interest(3, libc::EPOLLIN));
    state.watch(two, id, interest(3, libc::EPOLLOUT));
    let shared = state.share_registrations(id);
    let names: Vec<_> = shared.iter().map(|one| (one.instance, one.interest.events)).collect();
    assert_eq!(names, [(9, libc::EPOLLIN as u32), (10, libc::EPOLLOUT as u32)]);
    assert!(state.share_registrations(id).is_empty());
    assert_eq!(state.shared_members(two), [id]);
    state.leave_sets(id);
    assert!(state.shared_members(two).is_empty());
}
