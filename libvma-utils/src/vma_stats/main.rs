//! vma_stats: what the processes of this host that run over libvma have counted.
//!
//! Their statistics files are libvma_dev's to read. Here are the command line (`options`), the choice
//! of processes (`choose`), what is asked of them (`wishes`), and the formats: views as text, which
//! scripts have parsed for years, JSON, OpenMetrics, and a live screen.

mod choose;
mod collect;
mod delta;
mod interrupt;
mod json;
mod message;
mod openmetrics;
mod options;
mod report;
mod sample;
mod serve;
mod stream;
mod top;
mod view;
mod wishes;
mod words;

use std::io;
use std::process::ExitCode;

use collect::Collector;
use message::{complain, print};
use options::{Asked, Format, Options, Refusal};
use report::End;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_else(|| "vma_stats".into());
    let program = program.to_string_lossy();
    let end = match options::parse(&program, arguments) {
        Ok(Asked::Help) => print(&options::usage(&program)).map(|()| ExitCode::SUCCESS),
        Ok(Asked::Version) => version().map(|()| ExitCode::SUCCESS),
        Ok(Asked::Report(options)) => return finish(run(&options), &program),
        Err(Refusal::Option(text)) => {
            eprintln!("{text}");
            print(&options::usage(&program)).map(|()| ExitCode::SUCCESS)
        }
        Err(Refusal::Value(text)) => {
            complain(&text);
            print(&options::usage(&program)).map(|()| ExitCode::FAILURE)
        }
    };
    // A reader that has seen enough is no mistake.
    end.unwrap_or(ExitCode::SUCCESS)
}

fn run(options: &Options) -> anyhow::Result<End> {
    if options.clean {
        choose::clean(&options.directory);
    }
    match options.format {
        Format::Basic | Format::Extra | Format::Full | Format::Groups => report::one(options),
        Format::Netstat => report::netstat(options),
        // Nothing else is shown then.
        _ if options.dump.is_some() => report::one(options),
        Format::Json => stream::stream(options, |samples| {
            samples.iter().map(|sample| json::document(sample) + "\n").collect()
        }),
        Format::OpenMetrics => stream::stream(options, openmetrics::text),
        Format::Listen(address) => {
            let mut collector = Collector::new(options);
            serve::run(address, move || collector.collect())?;
            Ok(End::Done)
        }
        Format::Top => {
            message::hush();
            let mut collector = Collector::new(options);
            top::run(move || collector.collect(), options.interval)?;
            Ok(End::Done)
        }
    }
}

fn finish(end: anyhow::Result<End>, program: &str) -> ExitCode {
    match end {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Failed) => ExitCode::FAILURE,
        Ok(End::NoProcess) => {
            complain("Failed to identify process please provide pid of active proccess...\n");
            let _ = print(&options::usage(program));
            ExitCode::FAILURE
        }
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            message::complain_anyway(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The library's version is ours: both are built of one workspace.
fn version() -> io::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let date = option_env!("SOURCE_DATE_EPOCH").unwrap_or("an unknown date");
    message::tell(&format!("Linked with VMA version: {version}.0"))?;
    message::tell(&format!("Build Date: {date}"))
}
