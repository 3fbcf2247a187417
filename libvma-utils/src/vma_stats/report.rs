//! Reports on one process, again and again, and on the sockets of all once.

use std::io::{self, IsTerminal};
use std::time::Instant;

use libvma_dev::stats::{Problem, Taken, VERSION};

use crate::choose;
use crate::collect::Collector;
use crate::interrupt::Interrupt;
use crate::message::{complain, print, printable, tell};
use crate::options::{Choice, Details, Format, Options, level_name};
use crate::sample::{Lost, Watched};
use crate::view::{self, Shown, Table, Width};
use crate::wishes;

/// How it ended.
pub enum End {
    Done,
    /// Nobody to report on; the usage follows.
    NoProcess,
    /// Told already.
    Failed,
}

/// Views 1 to 4 of one process.
pub fn one(options: &Options) -> anyhow::Result<End> {
    let processes = choose::processes(&options.directory, &options.choice);
    let mut watched = match first(options, &processes) {
        None => return Ok(End::NoProcess),
        Some(Err((process, problem))) => return Ok(refused(process, &problem)),
        Some(Ok(watched)) => watched,
    };
    let process = watched.process();
    introduce(&watched)?;
    announce(options)?;
    if let Err(problem) = wishes::express(&mut watched, options) {
        return Ok(refused(process, &problem));
    }
    if options.dump.is_some() {
        return Ok(End::Done);
    }
    match repeat(&mut watched, options) {
        Ok(()) => Ok(End::Done),
        Err(Stop::Interrupted) => {
            tell("Got Ctrl-C (interrupted by user)")?;
            Ok(End::Done)
        }
        Err(Stop::Lost(Lost::Ended)) => {
            tell(&format!("Proccess {process} ended - exiting"))?;
            Ok(End::Done)
        }
        Err(Stop::Lost(Lost::Problem(problem))) => Ok(refused(process, &problem)),
        Err(Stop::Output(error)) => Err(error.into()),
    }
}

/// The first whose file can be read; if there is none, what is wrong with the first.
fn first(options: &Options, processes: &[u32]) -> Option<Result<Watched, (u32, Problem)>> {
    let open = |process: &u32| {
        Watched::open(&options.directory, *process).map_err(|problem| (*process, problem))
    };
    let readable = processes.iter().find_map(|process| open(process).ok());
    readable.map(Ok).or_else(|| processes.first().map(open))
}

/// View 5 of all processes that are meant.
pub fn netstat(options: &Options) -> anyhow::Result<End> {
    if let Choice::Process(process) = options.choice {
        // One that is named and has nothing to show is no empty list.
        if let Err(problem) = Watched::open(&options.directory, process) {
            return Ok(refused(process, &problem));
        }
    }
    announce(options)?;
    let samples = Collector::new(options).collect();
    if options.dump.is_some() {
        return Ok(End::Done);
    }
    let mut text = view::NETSTAT_HEADER.to_owned();
    for sample in samples {
        text.push_str(&view::netstat(sample.process, &sample.name, &sample.taken));
    }
    print(&text)?;
    Ok(End::Done)
}

fn introduce(watched: &Watched) -> io::Result<()> {
    let process = watched.process();
    let whom = match watched.name() {
        "" => format!("proccess with pid: {process}"),
        name => format!("application: {} with pid: {process}", printable(name)),
    };
    tell(&format!("stats for {whom}"))
}

/// Says what the processes are about to be asked for.
pub fn announce(options: &Options) -> io::Result<()> {
    if options.zero {
        tell("Zero counters...")?;
    }
    if let Some((descriptor, level)) = options.dump {
        let whom = match descriptor {
            0 => "all Fd's".to_owned(),
            one => format!("Fd {one}"),
        };
        tell(&format!("Dumping {whom} to VMA using log level = {}...", level_name(level)))?;
    }
    Ok(())
}

/// The exit statuses that scripts know.
fn refused(process: u32, problem: &Problem) -> End {
    match problem {
        Problem::Missing | Problem::Left => {
            complain(&format!("VMA statistics data for process id {process} not found\n"));
            End::Done
        }
        Problem::Version(theirs) => {
            complain(&format!(
                "Version {VERSION} is not compatible with stats protocol version {theirs}"
            ));
            End::Done
        }
        problem => {
            complain(&format!("VMA statistics of process id {process}: {problem}"));
            End::Failed
        }
    }
}

/// Why reports end before their number is reached.
enum Stop {
    Interrupted,
    Lost(Lost),
    Output(io::Error),
}

impl From<Lost> for Stop {
    fn from(lost: Lost) -> Stop {
        Stop::Lost(lost)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Output(error)
    }
}

fn repeat(watched: &mut Watched, options: &Options) -> Result<(), Stop> {
    let mut interrupt = Interrupt::new()?;
    let mut view = View::new(options);
    if options.format == Format::Groups {
        let sample = watched.take()?;
        return Ok(print(&view.report(&sample.taken, options))?);
    }
    print(&view.opening())?;
    let deltas = options.details == Details::Deltas;
    let mut start = Instant::now();
    if deltas {
        watched.take()?;
    }
    let mut cycle: u64 = 0;
    loop {
        // In deltas the first report comes after an interval.
        if (deltas || cycle > 0)
            && interrupt.sleep(options.interval.saturating_sub(start.elapsed()))?
        {
            return Err(Stop::Interrupted);
        }
        start = Instant::now();
        let sample = watched.take()?;
        let text = if deltas {
            view.report(&view::deltas(&sample), options)
        } else {
            view.report(&sample.taken, options)
        };
        print(&text)?;
        cycle += 1;
        if cycle == options.cycles {
            return Ok(());
        }
    }
}

/// A view with what it knows between two reports.
enum View {
    Table(Table),
    Full { clear: bool },
    Groups,
}

impl View {
    fn new(options: &Options) -> View {
        match options.format {
            Format::Full => View::Full { clear: io::stdout().is_terminal() },
            Format::Groups => View::Groups,
            Format::Extra => View::Table(Table::new(Width::Extra, options.details)),
            _ => View::Table(Table::new(Width::Basic, options.details)),
        }
    }

    /// Before all reports.
    fn opening(&self) -> String {
        match self {
            View::Table(table) => table.headers(),
            View::Full { .. } | View::Groups => String::new(),
        }
    }

    fn report(&mut self, taken: &Taken, options: &Options) -> String {
        let (details, selection) = (options.details, &options.sockets);
        let shown = Shown { taken, details, selection };
        match self {
            View::Table(table) => table.report(&shown),
            View::Groups => view::groups(&shown),
            View::Full { clear } => {
                let clear = if *clear { "\x1b[H\x1b[2J\x1b[3J" } else { "" };
                format!("{clear}{}", view::full(&shown))
            }
        }
    }
}
