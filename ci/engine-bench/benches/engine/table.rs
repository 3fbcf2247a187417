//! All contestants in turns, so that what disturbs the machine disturbs all of them, and medians.

use std::time::Duration;

use engine_bench::Contestant;

use crate::load::{Load, Race, cpu_time};

/// Turns of each contestant, and how long one takes.
const TURNS: usize = 21;
const TURN: Duration = Duration::from_millis(25);

/// The connections beside the one that is measured.
const IDLE: usize = 10_000;

pub fn print() {
    println!("| load | libvma | smoltcp | lwIP | copies alone | libvma / faster | goal |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for race in Race::all() {
        let (times, floor) = race_in_turns(&race);
        let libvma = times[0];
        let faster = times[1..].iter().copied().fold(f64::INFINITY, f64::min);
        let mut cells: Vec<String> = times.iter().map(|time| race.describe(*time)).collect();
        cells.resize(3, "-".to_owned());
        cells.push(floor.map_or("-".to_owned(), |time| race.describe(time)));
        let goal = race.goal().map_or("-".to_owned(), |goal| format!("{goal}"));
        println!("| {} | {} | {:.2} | {goal} |", race.name(), cells.join(" | "), faster / libvma);
    }
    println!();
    println!("| ns per round trip | libvma | smoltcp | lwIP |");
    println!("|---|---:|---:|---:|");
    let times: Vec<[f64; 2]> =
        (0..Race::round_trips().contestants().len()).map(beside_idle_connections).collect();
    for (index, idle) in [0, IDLE].into_iter().enumerate() {
        let cells: Vec<_> = times.iter().map(|time| format!("{:.0}", time[index] * 1e9)).collect();
        println!("| beside {idle} idle connections | {} |", cells.join(" | "));
    }
    let cells: Vec<_> = times.iter().map(|[few, many]| format!("{:.2}", many / few)).collect();
    println!("| ratio (goal for libvma: 1.1) | {} |", cells.join(" | "));
}

/// Seconds per round trip or byte, in the contestants' order, and of the copies alone.
fn race_in_turns(race: &Race) -> (Vec<f64>, Option<f64>) {
    let entries = race.contestants().into_iter().chain(race.floor());
    let mut runners: Vec<Runner> =
        entries.map(|entry| Runner::new((entry.open)(race), race)).collect();
    for _ in 0..TURNS {
        runners.iter_mut().for_each(Runner::turn);
    }
    let mut times: Vec<f64> = runners.into_iter().map(Runner::median).collect();
    let floor = race.floor().and_then(|_| times.pop());
    (times, floor)
}

/// Seconds per round trip of one contestant, without and with idle connections.
fn beside_idle_connections(contestant: usize) -> [f64; 2] {
    let few = Race::round_trips();
    let many = few.with_idle(IDLE);
    let contestant = &few.contestants()[contestant];
    let start = |race: &Race| Runner::new((contestant.open)(race), race);
    if contestant.is_alone {
        return [few, many].map(|race| {
            let mut runner = start(&race);
            (0..TURNS).for_each(|_| runner.turn());
            runner.median()
        });
    }
    let mut runners = [few, many].map(|race| start(&race));
    for _ in 0..TURNS {
        runners.iter_mut().for_each(Runner::turn);
    }
    runners.map(Runner::median)
}

/// A contestant on its way.
struct Runner {
    pair: Box<dyn Contestant>,
    load: Load,
    /// What takes about as long as a turn shall.
    count: u64,
    times: Vec<f64>,
}

impl Runner {
    fn new(mut pair: Box<dyn Contestant>, race: &Race) -> Runner {
        let mut load = Load::new(race);
        // Until windows, pools and caches are what they will be.
        let (mut count, start) = (0, cpu_time());
        while cpu_time() - start < 2 * TURN {
            load.run(&mut *pair, load.step);
            count += load.step;
        }
        let each = (cpu_time() - start).div_f64(count as f64 / 1e3).as_secs_f64() / 1e3;
        let steps = (TURN.as_secs_f64() / each / load.step as f64).ceil().max(1.0) as u64;
        Runner { pair, count: steps * load.step, load, times: Vec::new() }
    }

    fn turn(&mut self) {
        let start = cpu_time();
        self.load.run(&mut *self.pair, self.count);
        self.times.push((cpu_time() - start).as_secs_f64() / self.count as f64);
    }

    fn median(mut self) -> f64 {
        self.times.sort_by(f64::total_cmp);
        self.times[self.times.len() / 2]
    }
}
