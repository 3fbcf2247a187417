use core::net::Ipv4Addr;

use libvma_engine::tcp::Settings;

use super::*;
use crate::shard::Shard;
use crate::shard::tcp::{Opening, Setup};

/// A shard whose sockets are but their descriptors.
fn shard() -> (Shard<u32>, Arc<Pending>) {
    let pending = Arc::new(Pending::new(Arc::new(Waker::new().expect("an eventfd"))));
    let shard = Shard::<u32>::default();
    let given = Some(Arc::clone(&pending));
    let setup = || Setup { secret: [7; 32], starts: None, seed: 7, streams: 0, pending: given };
    shard.lock().expect("nobody has it").enable_tcp(setup);
    (shard, pending)
}

fn key(port: u16) -> FlowKey {
    let (local, remote) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    FlowKey { local, local_port: port, remote, remote_port: 80 }
}

/// A connection whose SYN waits for a neighbour.
fn open(state: &mut State<u32>, descriptor: u32, port: u16) -> SocketId {
    let id = state.attach(descriptor, 0);
    let settings = Settings::default();
    let opening = Opening {
        key: key(port),
        hop: None,
        ttl: 64,
        tos: 0,
        settings,
        flows: vec![],
        start: None,
    };
    state.open_connection(id, opening).expect("the port is free");
    id
}

fn take(state: &mut State<u32>) -> Vec<(u32, TcpState)> {
    take_some(state, usize::MAX)
}

fn take_some(state: &mut State<u32>, most: usize) -> Vec<(u32, TcpState)> {
    let mut taken = Vec::new();
    let enough =
        state.take_reports(most, |one| Some(*one), |one| taken.push((one.number, one.state)));
    assert!(enough, "there was room");
    taken
}

#[test]
fn nothing_is_kept_before_somebody_listens_and_then_all_is_told() {
    let (shard, pending) = shard();
    let mut state = shard.lock().unwrap();
    open(&mut state, 5, 1000);
    assert!(pending.is_raised(), "there is a connection to listen for");
    assert_eq!(take(&mut state), []);
    state.watch_connections();
    assert_eq!(take(&mut state), [(5, TcpState::SynSent)]);
    assert_eq!(take(&mut state), [], "nothing has changed");
    state.watch_connections();
    assert_eq!(take(&mut state), [(5, TcpState::SynSent)], "it was asked for anew");
    state.stop_watching();
    open(&mut state, 6, 1001);
    assert_eq!(take(&mut state), []);
}

#[test]
fn a_connection_is_told_of_once_per_change_and_when_it_is_over() {
    let (shard, pending) = shard();
    let mut state = shard.lock().unwrap();
    state.watch_connections();
    pending.lower();
    let id = open(&mut state, 5, 1000);
    assert!(pending.is_raised());
    pending.lower();
    assert_eq!(take(&mut state), [(5, TcpState::SynSent)]);
    assert!(!pending.is_raised());
    state.abort_connection(id);
    assert!(pending.is_raised());
    assert!(state.has_ended_reports());
    assert_eq!(take(&mut state), [(5, TcpState::Closed)]);
    // What comes and goes between two looks is nobody's business.
    let id = open(&mut state, 5, 1001);
    state.abort_connection(id);
    assert_eq!(take(&mut state), []);
}

#[test]
fn two_connections_are_never_known_by_one_number() {
    let (shard, _) = shard();
    let mut state = shard.lock().unwrap();
    state.watch_connections();
    let first = open(&mut state, 5, 1000);
    let second = open(&mut state, 5, 1001);
    let taken = take(&mut state);
    assert_eq!(taken, [(5, TcpState::SynSent), (NAMELESS | 1, TcpState::SynSent)]);
    // The number is free again with the end of the first one, which is told before.
    state.abort_connection(first);
    open(&mut state, 5, 1002);
    assert_eq!(take(&mut state), [(5, TcpState::Closed), (5, TcpState::SynSent)]);
    state.abort_connection(second);
    assert_eq!(take(&mut state), [(NAMELESS | 1, TcpState::Closed)]);
}

#[test]
fn what_is_about_to_be_the_kernels_is_over_until_the_kernel_refuses() {
    let (shard, _) = shard();
    let mut state = shard.lock().unwrap();
    state.watch_connections();
    let id = open(&mut state, 5, 1000);
    assert!(!state.withhold_connection(id), "nobody knows of it");
    assert_eq!(take(&mut state), []);
    state.resume_watching(id);
    assert_eq!(take(&mut state), [(5, TcpState::SynSent)]);
    assert!(state.withhold_connection(id));
    assert_eq!(take(&mut state), [(5, TcpState::Closed)]);
    state.watch_connections();
    assert_eq!(take(&mut state), [], "whoever comes now is not told of it either");
    state.resume_watching(id);
    assert_eq!(take(&mut state), [(5, TcpState::SynSent)]);
}

#[test]
fn a_hundred_thousand_connections_are_told_of_in_pieces_and_none_ends_in_silence() {
    let (shard, _) = shard();
    let mut state = shard.lock().unwrap();
    state.watch_connections();
    const MANY: u32 = 100_000;
    let mut all = Vec::new();
    for number in 0..MANY {
        let id = state.attach(number, 0);
        let key =
            FlowKey { remote_port: (number / 50_000) as u16, ..key((number % 50_000) as u16) };
        let settings = Settings::default();
        let opening =
            Opening { key, hop: None, ttl: 64, tos: 0, settings, flows: vec![], start: None };
        state.open_connection(id, opening).expect("the ports are free");
        all.push(id);
    }
    let mut known = HashSet::new();
    loop {
        let taken = take_some(&mut state, 64);
        assert!(taken.len() <= 64);
        if taken.is_empty() {
            break;
        }
        known.extend(taken.iter().map(|(number, _)| *number));
    }
    assert_eq!(known.len(), MANY as usize);
    // More ends than there is room for: the listener begins anew, with those that are left.
    let stays = all.pop().unwrap();
    all.iter().for_each(|id| state.abort_connection(*id));
    assert!(!state.take_reports(1, |one| Some(*one), |_| panic!("it is not all")));
    state.watch_connections();
    assert_eq!(take(&mut state), [(MANY - 1, TcpState::SynSent)]);
    assert!(state.connection(stays).is_some());
}

#[test]
fn a_listener_that_never_looks_costs_little_memory() {
    let (shard, _) = shard();
    let mut state = shard.lock().unwrap();
    state.watch_connections();
    let mut longest = 0;
    for _ in 0..3 * MOST_CHANGED {
        let id = open(&mut state, 6, 1001);
        state.abort_connection(id);
        state.detach(id);
        longest = longest.max(state.tcp().expect("it is on").0.watch.changed.len());
    }
    assert!((MOST_CHANGED..MOST_CHANGED + 10).contains(&longest), "{longest}");
    assert!(!state.take_reports(1, |one| Some(*one), |_| panic!("it is not all")));
}
