//! What the command line wants of a process before anything is shown: counters to zero, another log
//! level, a dump.

use libvma_dev::stats::{NAMED, Problem, Request};

use crate::options::Options;
use crate::sample::{Lost, Watched};

/// Asks for all that is wanted.
pub fn express(process: &mut Watched, options: &Options) -> Result<(), Problem> {
    if options.zero {
        zero(process, options)?;
    }
    if let Some(level) = options.log_level {
        process.ask(&Request::LogLevel(level))?;
    }
    if let Some(details) = options.log_details {
        process.ask(&Request::LogDetails(details))?;
    }
    if let Some((descriptor, level)) = options.dump {
        process.ask(&Request::Dump { descriptor, level })?;
        seen(process)?;
    }
    Ok(())
}

fn zero(process: &mut Watched, options: &Options) -> Result<(), Problem> {
    if options.sockets.is_all() {
        return process.ask(&Request::Zero(&[]));
    }
    // An empty list would be everything.
    let mut meant = match process.take() {
        Ok(sample) => sample.taken.sockets,
        Err(Lost::Ended) => return Ok(()),
        Err(Lost::Problem(problem)) => return Err(problem),
    };
    meant.retain(|socket| options.sockets.has(socket.descriptor));
    let meant: Vec<i32> = meant.iter().map(|socket| socket.descriptor).collect();
    for named in meant.chunks(NAMED) {
        process.ask(&Request::Zero(named))?;
        seen(process)?;
    }
    Ok(())
}

/// Waits until the process has seen what was asked: the next request would take its place.
fn seen(process: &mut Watched) -> Result<(), Problem> {
    match process.take() {
        Err(Lost::Problem(problem)) => Err(problem),
        Ok(_) | Err(Lost::Ended) => Ok(()),
    }
}
