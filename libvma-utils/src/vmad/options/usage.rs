//! The words of `--help`: the lines and columns that the original's scripts know.

use libvma_dev::agent;

use super::Given;
use crate::settings::Settings;

/// The usage, with what is in effect after the options that were given so far.
pub fn usage(given: &Given) -> String {
    let default = Settings::default();
    let on_off = |on| if on { "on" } else { "off" }.to_owned();
    let milliseconds = given.retry_interval.unwrap_or(default.retry_interval).as_millis();
    let rows = [
        ("--console", "Stay in the foreground, log to stdout", on_off(given.console)),
        (
            "--notify-dir,-n <dir>",
            "Directory of the libraries' files",
            agent::DEFAULT_NOTIFY_DIR.to_owned(),
        ),
        (
            "--pid,-p <num>",
            "Serve so many processes at most",
            given.max_processes.unwrap_or(default.max_processes).to_string(),
        ),
        (
            "--fid,-f <num>",
            "Keep so many sockets of each process at most",
            given.max_sockets.unwrap_or(default.max_sockets).to_string(),
        ),
        ("--force-rst", "Always send a RST of our own", on_off(given.force_rst)),
        (
            "--verbose,-v <level>",
            "Log level, 0 (nothing) to 6",
            given.verbose.unwrap_or(default.log_level).to_string(),
        ),
        ("--retry-interval,-r <num>", "Milliseconds before the last SYN", milliseconds.to_string()),
        (
            "--config <file>",
            "Configuration file",
            given.config.as_deref().map_or_else(
                || crate::settings::DEFAULT_FILE.to_owned(),
                |file| file.display().to_string(),
            ),
        ),
    ];
    let mut text = format!(
        "libvma, the messaging accelerator\nvmad, the daemon that serves its processes\nversion: {} (0x{:x})\n\n\
         Usage: vmad [options]\n",
        libvma_dev::VERSION,
        agent::VERSION
    );
    for (option, words, default) in rows {
        text += &format!("\t{option:<32}{words} (default: {default})\n");
    }
    text + &format!("\t{:<32}{}\n", "--help,-h", "Print this and exit")
}
