//! vmad: the daemon beside the processes that run over libvma. It knows their TCP connections, tells the
//! peers when such a process is killed, and leads traffic to TAPs for them.
//!
//! One thread, one loop (`daemon`), which a reader may follow: a datagram comes in by `endpoint`, is
//! judged and obeyed in `serve`; a death, too, is an event there. Only `grants` has threads of its own. `connections`, `registry` and
//! `logging::limit` only compute; `peer`, `kernel` and `namespace` ask the kernel. What the messages look
//! like is libvma_dev's.

mod background;
mod connections;
mod daemon;
mod endpoint;
mod grants;
mod instance;
mod kernel;
mod logging;
mod namespace;
mod netlink;
mod notify_dir;
mod options;
mod peer;
mod privileges;
mod registry;
mod resets;
mod serve;
mod service;
mod settings;
mod signals;
mod traffic;

use std::io::Write;
use std::process::ExitCode;

use background::{Report, Side};
use daemon::Daemon;
use instance::Refused;
use logging::{FATAL, Logging};
use options::{Asked, Given, Refusal};
use settings::Settings;

fn main() -> ExitCode {
    match options::parse(std::env::args_os().skip(1)) {
        Ok(Asked::Run(given)) => launch(given),
        Ok(Asked::Help(given)) => {
            print(&options::usage(&given));
            ExitCode::SUCCESS
        }
        Err(Refusal { text, given }) => {
            complain(&text);
            print(&options::usage(&given));
            ExitCode::SUCCESS
        }
    }
}

/// Goes to the background unless `--console` keeps it here, and serves.
fn launch(mut given: Given) -> ExitCode {
    // Read again at a reload, when the daemon is elsewhere.
    given.config = given.config.map(|file| std::path::absolute(&file).unwrap_or(file));
    let settings = match Settings::load(&given) {
        Ok(settings) => settings,
        Err(error) => {
            complain(&format!("{error:#}"));
            return ExitCode::FAILURE;
        }
    };
    if given.console {
        return serve(given, settings, None);
    }
    match background::enter() {
        Ok(Side::Child(report)) => serve(given, settings, Some(report)),
        Ok(Side::Parent(status)) => status,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(given: Given, settings: Settings, report: Option<Report>) -> ExitCode {
    // The name by which the init script and others find it, whatever it was started as.
    let _ = rustix::thread::set_name(c"vmad");
    // Each file's mode is what its opening says; none is to be open to more.
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    let logging = Logging::install(&settings);
    log::info!("Starting");
    settings.tell();
    let daemon = match Daemon::start(given, settings, logging) {
        Ok(daemon) => daemon,
        Err(why) => {
            let (Refused::Running(text) | Refused::Failed(text)) = &why;
            log::error!("{text}");
            match report {
                Some(report) => report.refused(&why),
                None => complain(text),
            }
            return ExitCode::FAILURE;
        }
    };
    if let Some(report) = report {
        report.ready();
    }
    let (status, code) = match daemon.run() {
        Ok(()) => (ExitCode::SUCCESS, 0),
        Err(error) => {
            log::error!(target: FATAL, "{error:#}");
            (ExitCode::FAILURE, 1)
        }
    };
    log::info!("Terminated with code {code}");
    status
}

/// A reader that has seen enough is no mistake.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "vmad: {text}");
}
