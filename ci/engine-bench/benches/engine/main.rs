//! Measures the contestants. Times are this thread's CPU time: on a busy machine the clock on the
//! wall measures the neighbours.

mod load;
mod table;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use engine_bench::{Contestant, Copies, Libvma, Lwip, Smoltcp};

use load::{Load, Race, cpu_time, open};

const USAGE: &str = "\
usage: cargo bench -- --table
       cargo bench -- --run libvma|smoltcp|lwip|copies round-trip|bulk MTU IDLE CHECKSUMS SECONDS
       cargo bench [-- CRITERION'S OPTIONS]";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--table"] => table::print(),
        ["--run", name, load, mtu, idle, checksums, seconds] => {
            run(name, load, mtu, idle, checksums, seconds).expect(USAGE)
        }
        ["--help"] => println!("{USAGE}"),
        _ => criterion_groups(),
    }
}

/// One load on one contestant, for a profiler to look at.
fn run(
    name: &str,
    load: &str,
    mtu: &str,
    idle: &str,
    checksums: &str,
    seconds: &str,
) -> Option<()> {
    let checksums = checksums.parse().ok()?;
    let idle = idle.parse().ok()?;
    let race = match load {
        "round-trip" => Race::round_trips().with_idle(idle).with_checksums(checksums),
        "bulk" => Race::bulk(mtu.parse().ok()?).with_idle(idle).with_checksums(checksums),
        _ => return None,
    };
    let mut pair: Box<dyn Contestant> = match name {
        "libvma" => open::<Libvma>(&race),
        "smoltcp" => open::<Smoltcp>(&race),
        "lwip" => open::<Lwip>(&race),
        "copies" => open::<Copies>(&race),
        _ => return None,
    };
    let mut load = Load::new(&race);
    let time = Duration::from_secs(seconds.parse().ok()?);
    let (mut count, start) = (0, cpu_time());
    while cpu_time() - start < time {
        load.run(&mut *pair, load.step);
        count += load.step;
    }
    let rate = race.describe((cpu_time() - start).as_secs_f64() / count as f64);
    println!("{name}: {}: {count} in {seconds} s, {rate}", race.name());
    Some(())
}

fn criterion_groups() {
    let mut criterion = Criterion::default().configure_from_args();
    for race in Race::all() {
        let mut group = criterion.benchmark_group(race.name());
        group.throughput(match race.mtu_of_bulk() {
            Some(_) => Throughput::Bytes(1),
            None => Throughput::Elements(1),
        });
        let contestants = race.contestants();
        for contestant in contestants {
            let mut pair = None;
            group.bench_function(BenchmarkId::from_parameter(contestant.name), |bencher| {
                let mut load = Load::new(&race);
                let pair = pair.get_or_insert_with(|| (contestant.open)(&race));
                bencher.iter_custom(|count| {
                    let start = cpu_time();
                    load.run(&mut **pair, count);
                    cpu_time() - start
                });
            });
        }
        group.finish();
    }
    criterion.final_summary();
}
