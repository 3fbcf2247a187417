//! What came since the report before, in the shape of what was taken.

use libvma_dev::stats::Taken;

use crate::delta::Delta;
use crate::sample::Sample;

/// Counters are those of the interval; what is no counter stays as it is now.
pub fn deltas(sample: &Sample) -> Taken {
    let mut shown = sample.taken.clone();
    let (Some(delta), Some(before)) = (Delta::of(sample), &sample.before) else { return shown };
    let snapshot = &mut shown.snapshot;
    (snapshot.totals, snapshot.poll, snapshot.select) = (delta.totals, delta.poll, delta.select);
    let epolls = snapshot.epolls.iter_mut().filter(|epoll| epoll.used == 1);
    for (place, epoll) in epolls.zip(delta.epolls) {
        *place = epoll;
    }
    for (place, ring) in snapshot.rings.iter_mut().filter(|r| r.kind != 0).zip(delta.rings) {
        *place = ring;
    }
    for (place, count) in snapshot.drops.iter_mut().zip(delta.drops) {
        place.count = count;
    }
    for (pool, earlier) in snapshot.pools.iter_mut().zip(&before.snapshot.pools) {
        pool.no_buffers = pool.no_buffers.saturating_sub(earlier.no_buffers);
    }
    for (socket, delta) in shown.sockets.iter_mut().zip(delta.sockets) {
        socket.counters = delta.counters;
        (socket.tcp.timeouts, socket.tcp.out_of_order) = (delta.timeouts, delta.out_of_order);
    }
    shown
}

#[cfg(test)]
mod tests {
    use libvma_dev::stats::{Counters, Drop, Epoll, Multiplexer, Pool, Ring, Socket, text};

    use super::*;

    fn taken(inode: u64, number: u64) -> Taken {
        let counters =
            Counters { rx_packets: number, rx_ready_bytes_max: number, ..Counters::default() };
        let mut socket =
            Socket { descriptor: 5, inode, counters, ready_bytes: number, ..Socket::default() };
        socket.tcp.timeouts = number;
        let calls = Multiplexer { ready: number, polling_cpu: number as u32, ..Default::default() };
        let mut taken = Taken { sockets: vec![socket], ..Taken::default() };
        let snapshot = &mut taken.snapshot;
        (snapshot.poll, snapshot.select) = (calls, calls);
        // Places between are free.
        snapshot.epolls[2] = Epoll { used: 1, descriptor: 3, calls };
        snapshot.rings[1] =
            Ring { kind: 1, rx_bytes: number, buffers: number as u32, ..Default::default() };
        snapshot.pools[1] = Pool { kind: 1, free: number as u32, no_buffers: number };
        snapshot.drops[4] = Drop { reason: text("no room"), count: number };
        taken
    }

    fn between(then: Taken, now: Taken) -> Taken {
        deltas(&Sample { process: 1, name: String::new(), taken: now, before: Some(then) })
    }

    // covers: STAT-13
    #[test]
    fn counters_are_subtracted_and_states_are_not() {
        let delta = between(taken(1, 10), taken(1, 30));
        let socket = &delta.sockets[0];
        assert_eq!((socket.counters.rx_packets, socket.counters.rx_ready_bytes_max), (20, 30));
        assert_eq!((socket.ready_bytes, socket.tcp.timeouts), (30, 20));
        let snapshot = &delta.snapshot;
        assert_eq!((snapshot.poll.ready, snapshot.select.polling_cpu), (20, 30));
        assert_eq!((snapshot.epolls[2].calls.ready, snapshot.epolls[2].descriptor), (20, 3));
        assert_eq!((snapshot.rings[1].rx_bytes, snapshot.rings[1].buffers), (20, 30));
        assert_eq!((snapshot.pools[1].free, snapshot.pools[1].no_buffers), (30, 20));
        assert_eq!(snapshot.drops[4].count, 20);
    }

    #[test]
    fn another_socket_of_the_same_number_has_counted_all_it_says() {
        let delta = between(taken(1, 10), taken(2, 30));
        assert_eq!(delta.sockets[0].counters.rx_packets, 30);
    }

    #[test]
    fn counters_set_to_zero_in_between_never_go_below_it() {
        let delta = between(taken(1, 10), taken(1, 4));
        assert_eq!(delta.sockets[0].counters.rx_packets, 0);
        assert_eq!(delta.snapshot.pools[1].no_buffers, 0);
    }
}
