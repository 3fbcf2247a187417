//! What holds on any path, with any options and any programs: every byte arrives once and in
//! order, both sides reach CLOSED, nobody talks much when there is nothing to say, and the memory
//! of received data goes back. The simulated world checks windows as it goes.
//!
//! `TCP_SIM_SEED=n` runs one seed, `TCP_SIM_SEEDS=n` that many; a seed that fails prints itself.

use core::time::Duration;

use super::sim::{Conditions, End, Open, Part, Plan, Rng, World, settings};
use crate::tcp::congestion::Algorithm;
use crate::tcp::connection::PREDICTS;
use crate::tcp::{Buffer, Millis, Path, Settings};

/// Runs `check` for a number of seeds.
pub fn for_seeds(count: u64, check: impl Fn(u64)) {
    struct Tell(u64);
    impl Drop for Tell {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("TCP_SIM_SEED={} fails", self.0);
            }
        }
    }
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let seeds = match number("TCP_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TCP_SIM_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        let tell = Tell(seed);
        check(seed);
        core::mem::forget(tell);
    }
}

/// A number whose order of magnitude is random, too.
fn spread(rng: &mut Rng, least: u64, most: u64) -> u64 {
    let (low, high) = ((least as f64).ln(), (most as f64).ln());
    let at = low + (high - low) * (rng.below(1 << 20) as f64 / (1 << 20) as f64);
    (at.exp().round() as u64).clamp(least, most)
}

fn micros(rng: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_micros(spread(rng, least, most))
}

pub fn flip(rng: &mut Rng) -> bool {
    rng.chance(500_000)
}

fn any_settings(rng: &mut Rng) -> Settings {
    let buffer = |rng: &mut Rng| Buffer {
        limit: spread(rng, 2048, 1 << 20) as u32,
        most: 2 << 20,
        automatic: flip(rng),
    };
    let algorithms = [Algorithm::NewReno, Algorithm::Cubic, Algorithm::None];
    Settings {
        nodelay: flip(rng),
        cork: rng.chance(100_000),
        always_quick_ack: rng.chance(100_000),
        first_ack_waits: rng.chance(300_000),
        keep_alive: flip(rng),
        keep_idle: Millis::from_secs(2),
        keep_interval: Millis::from_secs(1),
        keep_count: 100,
        max_segment: rng.chance(200_000).then(|| spread(rng, 88, 2000) as u16),
        window_clamp: match rng.chance(100_000) {
            true => spread(rng, 4096, 1 << 20) as u32,
            false => u32::MAX,
        },
        fin_timeout: Some(Duration::from_secs(600)),
        congestion: algorithms[rng.below(3) as usize],
        send_buffer: buffer(rng),
        receive_buffer: buffer(rng),
        urgent_inline: flip(rng),
        ecn: flip(rng),
        timestamps: !rng.chance(250_000),
        window_scaling: !rng.chance(250_000),
        sack: !rng.chance(250_000),
        ..settings()
    }
}

fn any_plan(rng: &mut Rng) -> Plan {
    let pause = |rng: &mut Rng| match rng.below(3) {
        0 => Duration::ZERO..Duration::ZERO,
        1 => Duration::ZERO..micros(rng, 1, 1000),
        _ => Duration::ZERO..micros(rng, 1000, 1_000_000),
    };
    let sizes = |rng: &mut Rng| {
        let most = spread(rng, 1, 100_000);
        1 + rng.below(most)..most
    };
    let (write, write_pause) = (sizes(rng), pause(rng));
    let (read, read_pause) = (sizes(rng), pause(rng));
    // With pauses, as many bytes as take a while and not a year.
    let pauses = write_pause.end.max(read_pause.end).as_micros() as u64;
    let most = if pauses == 0 { 2_000_000 } else { 60_000_000 / pauses.max(30) };
    let bytes = if rng.chance(150_000) {
        0
    } else {
        spread(rng, 1, 2_000_000).min(most.max(1) * write.start.min(read.start))
    };
    Plan {
        bytes,
        write,
        write_pause,
        read,
        read_pause,
        urgent: if rng.chance(150_000) { 1 + rng.below(20) } else { 0 },
        more: if rng.chance(150_000) { 1 + rng.below(5) } else { 0 },
        end: End::Shutdown,
    }
}

fn any_conditions(rng: &mut Rng) -> Conditions {
    let sometimes = |rng: &mut Rng, most: u64| {
        if rng.chance(500_000) { 0 } else { spread(rng, 100, most) as u32 }
    };
    let delay = micros(rng, 5, 100_000);
    let rate = if flip(rng) { 0 } else { spread(rng, 1_000_000, 10_000_000_000) };
    let queue = spread(rng, 200_000, 10_000_000);
    Conditions {
        delay,
        jitter: delay.mul_f64(rng.below(1000) as f64 / 1000.0),
        loss: sometimes(rng, 80_000),
        duplication: sometimes(rng, 50_000),
        late: sometimes(rng, 50_000),
        lateness: delay.mul_f64(rng.below(3000) as f64 / 1000.0),
        corruption: sometimes(rng, 20_000),
        forgery: 0,
        rate,
        queue,
        mark_beyond: if flip(rng) { queue / 4 } else { u64::MAX },
        mtu: 65_535,
        tells: true,
    }
}

fn any_part(rng: &mut Rng) -> Part {
    let mtu = [576, 1500, 1500, 9000, 65_535][rng.below(5) as usize];
    let segmentation_limit = if flip(rng) { 0 } else { spread(rng, 1000, 65_000) as u32 };
    Part {
        settings: any_settings(rng),
        path: Path { mtu, segmentation_limit },
        plan: any_plan(rng),
        conditions: any_conditions(rng),
    }
}

pub fn any_world(seed: u64) -> (Open, [Part; 2], Rng) {
    let mut rng = Rng::new(seed ^ 0x7cb0);
    let mut parts = [any_part(&mut rng), any_part(&mut rng)];
    for reader in 0..2 {
        // A reader of a few bytes a second is done before long.
        let bytes = parts[1 - reader].plan.bytes;
        let plan = &mut parts[reader].plan;
        let reads = LONGEST.as_nanos() / (plan.read_pause.end.as_nanos() + 1) + 1;
        plan.read.start = plan.read.start.max(bytes / reads as u64);
        plan.read.end = plan.read.end.max(plan.read.start);
    }
    let open = if rng.chance(100_000) { Open::Simultaneous } else { Open::Passive };
    (open, parts, rng)
}

/// How long a program may take to read what the other one wrote.
const LONGEST: Duration = Duration::from_secs(200);

pub const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn every_byte_arrives_once_and_in_order() {
    for_seeds(120, |seed| {
        let (open, parts, mut rng) = any_world(seed);
        let mut world = World::new(seed, open, parts);
        let refusals = if rng.chance(200_000) { 200_000 } else { 0 };
        world.sides.iter_mut().for_each(|side| side.refusals = refusals);
        world.run(4 * HOUR);
        world.check_delivered();
    });
}

/// A transfer each way at once over a short cable that loses one packet in a hundred, with devices
/// that are full at times. It takes seconds, whatever is lost: no timer is missing, and none is backed
/// off without need.
#[test]
fn a_lossy_transfer_each_way_at_once_ends_soon() {
    for_seeds(150, |seed| {
        let mut rng = Rng::new(seed ^ 0x9a11);
        let parts = [(); 2].map(|()| {
            let mut part = Part::bulk(spread(&mut rng, 1, 600_000), micros(&mut rng, 10, 1000));
            part.conditions.loss = 10_000;
            part.conditions.late = if flip(&mut rng) { 10_000 } else { 0 };
            part.conditions.lateness = part.conditions.delay;
            part.path.segmentation_limit = if flip(&mut rng) { 65_160 } else { 0 };
            let buffer = &mut part.settings.receive_buffer;
            buffer.limit = spread(&mut rng, 4096, 1 << 18) as u32;
            buffer.automatic = flip(&mut rng);
            part.settings.send_buffer.automatic = flip(&mut rng);
            if flip(&mut rng) {
                part.plan.read = 1 << 16..1 << 16;
                part.plan.read_pause = Duration::ZERO..micros(&mut rng, 1, 10_000);
            }
            part
        });
        let mut world = World::new(seed, Open::Passive, parts);
        for side in &mut world.sides {
            side.refusals = [0, 10_000, 300_000][rng.below(3) as usize];
        }
        world.run(SOON);
        world.check_delivered();
    });
}

/// Of lost retransmissions of one segment, and of SYNs, there are at most some.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_side_that_closes_at_once_loses_nothing() {
    for_seeds(80, |seed| {
        let (open, mut parts, mut rng) = any_world(seed);
        let closes = rng.below(2) as usize;
        parts[closes].plan.end = End::Close;
        parts[closes].plan.read_pause = Duration::ZERO..Duration::ZERO;
        parts[1 - closes].plan.end = End::CloseAfterPeer;
        parts[1 - closes].plan.bytes = 0;
        let bytes = parts[closes].plan.bytes;
        let mut world = World::new(seed, open, parts);
        world.run(4 * HOUR);
        let reader = &world.sides[1 - closes].program;
        assert_eq!((reader.read, reader.saw_end), (bytes, true));
        world.check_memory();
    });
}

#[test]
fn a_path_with_a_smaller_mtu_is_found_out() {
    for_seeds(50, |seed| {
        let (open, mut parts, mut rng) = any_world(seed);
        for part in &mut parts {
            part.conditions.mtu = spread(&mut rng, 576, 1500) as u32;
            part.conditions.tells = flip(&mut rng);
        }
        let mut world = World::new(seed, open, parts);
        world.run(4 * HOUR);
        world.check_delivered();
    });
}

/// Header prediction is a short cut and nothing else, and so is what output has of it: without them the
/// same segments leave at the same times.
#[test]
fn prediction_changes_no_segment() {
    for_seeds(50, |seed| {
        let transcript = |predicts| {
            PREDICTS.set(predicts);
            let (open, parts, mut rng) = any_world(seed);
            let mut world = World::new(seed, open, parts);
            let refusals = if rng.chance(200_000) { 200_000 } else { 0 };
            world.sides.iter_mut().for_each(|side| side.refusals = refusals);
            world.transcript = Some(Vec::new());
            world.run(4 * HOUR);
            PREDICTS.set(true);
            world.check_memory();
            world.transcript.unwrap_or_default()
        };
        let (with, without) = (transcript(true), transcript(false));
        for (at, (one, other)) in with.iter().zip(&without).enumerate() {
            assert_eq!(one, other, "segment {at} of {} and {}", with.len(), without.len());
        }
        assert_eq!(with.len(), without.len());
    });
}

/// Nothing is promised when headers are forged or a program resets, but an end and the memory.
#[test]
fn forged_headers_break_nothing_but_the_connection() {
    for_seeds(120, |seed| {
        let (open, mut parts, mut rng) = any_world(seed);
        for part in &mut parts {
            part.conditions.forgery = spread(&mut rng, 100, 200_000) as u32;
            part.settings.retries = 5;
            part.settings.keep_count = 3;
            part.settings.keep_alive = true;
            if rng.chance(200_000) {
                part.plan.end = End::Abort;
            }
        }
        let mut world = World::new(seed, open, parts);
        world.is_forged();
        let end = world.now.saturating_add(HOUR / 6);
        while !world.is_over() && world.now < end && world.step() {}
        world.check_memory();
    });
}
