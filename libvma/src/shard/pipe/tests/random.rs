//! Whatever both do in whatever order: every byte arrives once and in order, and nobody hangs.

use super::host::{Host, hosts, settle};

/// A small generator: the seed alone says what happens.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % most
    }
}

fn fresh_bytes(dice: &mut Dice, at: usize, side: u8) -> Vec<u8> {
    let count = match dice.below(4) {
        0 => 1,
        1 => dice.below(100),
        2 => dice.below(1500),
        _ => dice.below(9000),
    };
    (at..at + count).map(|at| (at % 253) as u8 ^ side).collect()
}

fn act(dice: &mut Dice, host: &mut Host, side: u8, stops: bool) {
    match dice.below(12) {
        0..=2 if !host.shut => {
            let bytes = fresh_bytes(dice, host.sent.len(), side);
            if host.index.is_some() && dice.below(2) == 0 {
                host.is_writable();
            }
            // Told now, or before the last few things happened.
            let told = host.index.is_some()
                && host.pipe().is_promised()
                && host.carrier.has_promised_slot();
            let count = host.send(&bytes);
            assert!(!told || count > 0 || bytes.is_empty(), "{} takes nothing", host.describe());
        }
        3..=5 => {
            let room = 1 + dice.below(4000);
            host.receive(room);
        }
        6..=8 => {
            for _ in 0..dice.below(5) {
                host.deliver();
            }
        }
        9 => host.relieve(),
        10 => {
            host.now += dice.below(1 << 27) as u64;
            host.tend();
        }
        11 if host.index.is_some() => {
            if dice.below(6) == 0 {
                host.prefetch();
            } else if dice.below(12) == 0 && stops {
                host.stop();
            } else if dice.below(40) == 0 && !host.shut {
                host.shut();
            } else if dice.below(8) == 0 {
                let limit = dice.below(20_000) as u64;
                host.with(|pipe, carrier| pipe.set_limit(carrier, limit));
            } else if dice.below(8) == 0 {
                host.carrier.short = !host.carrier.short;
            }
        }
        _ => {}
    }
}

fn run(seed: u64) -> usize {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut client, mut server) = hosts();
    let stops = seed % 3;
    for host in [&mut client, &mut server] {
        host.carrier.most = 10 + dice.below(60);
        host.kernel_room = [1, 300, 5000, usize::MAX][dice.below(4)];
        host.finds = dice.below(2) == 0;
    }
    // The client's offer may be later than its connection, and than the server's accept().
    let limit = 1 + dice.below(30_000) as u32;
    let late = dice.below(2) == 0;
    client.seek(limit);
    if !late {
        client.offer_late(limit);
    }
    let mut accepted = false;
    for _ in 0..200 + dice.below(400) {
        if client.pipe().is_apart() && dice.below(100) == 0 {
            client.offer_late(limit);
        }
        if !accepted && dice.below(20) == 0 {
            while server.deliver() {}
            accepted = true;
            let limit = 1 + dice.below(30_000) as u64;
            // Without an offer, and if none is expected, the connection is the kernel's.
            if !server.accept(limit) && late {
                server.accept_early(limit);
            }
        }
        if dice.below(2) == 0 {
            act(&mut dice, &mut client, 0, stops != 0);
        } else if accepted {
            act(&mut dice, &mut server, 0x55, stops == 2);
        }
    }
    if !accepted {
        while server.deliver() {}
        server.accept(10_000);
    }
    for host in [&mut client, &mut server] {
        host.carrier.most = usize::MAX;
    }
    settle(&mut client, &mut server);
    // Whoever may still send does, and is heard.
    let places = [client.describe(), server.describe()];
    for (host, side) in [(&mut client, 0), (&mut server, 0x55u8)] {
        if !host.shut {
            let byte = (host.sent.len() % 253) as u8 ^ side;
            let count = host.send(&[byte]);
            assert_eq!(count, 1, "seed {seed}: cannot send any more: {places:?}");
            host.shut();
        }
    }
    settle(&mut client, &mut server);
    settle(&mut server, &mut client);
    assert_eq!(server.got.len(), client.sent.len(), "seed {seed}");
    assert_eq!(client.got.len(), server.sent.len(), "seed {seed}");
    assert!(server.got == client.sent && client.got == server.sent, "seed {seed}");
    assert!(client.at_end && server.at_end, "seed {seed}: an end was not seen");
    for host in [&mut client, &mut server] {
        let lacks = host.index.is_some() && host.pipe().lacks_bytes();
        assert!(!lacks, "seed {seed}: bytes that came are taken for lost");
    }
    assert_eq!(client.held() + server.held(), 0, "seed {seed}: frames were not released");
    client.overflowed + server.overflowed
}

#[test]
fn every_byte_arrives_once_and_in_order() {
    let overflowed = (0..700).map(run).filter(|bytes| *bytes > 0).count();
    assert!(overflowed > 150, "bytes went by the kernel in {overflowed} runs only");
}
