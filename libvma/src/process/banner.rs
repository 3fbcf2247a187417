//! The banner: what the manuals tell an administrator to look for.

use crate::config::Config;
use crate::config::params::PARAMS;
use crate::log::{Level, log_line};
use crate::sys::fd::read_file;

const LINE: &str = "---------------------------------------------------------------------------";

/// Version, command line, then the parameters: those that were set as INFO, all as DETAILS.
pub fn print(config: &Config) {
    log_line!(Info, "{LINE}");
    log_line!(
        Info,
        "VMA_VERSION: {}-0 {} built on {}",
        env!("CARGO_PKG_VERSION"),
        build(),
        epoch()
    );
    log_line!(Info, "Cmd Line: {}", command_line());
    log_line!(Info, "{LINE}");
    let level = config.trace_level.name();
    log_line!(Info, "{:<30} {:<26} [VMA_TRACELEVEL]", "Log Level", level);
    for param in PARAMS.iter().filter(|param| param.name != "VMA_TRACELEVEL") {
        let said = std::env::var(param.name).ok();
        let value = said.as_deref().unwrap_or(param.default);
        let severity = if value == param.default { Level::Details } else { Level::Info };
        if crate::log::enabled(severity) {
            let text = format_args!("{:<30} {:<26} [{}]", param.label, value, param.name);
            crate::log::line(severity, text);
        }
    }
    log_line!(Info, "{LINE}");
}

fn build() -> &'static str {
    if cfg!(debug_assertions) { "Debug" } else { "Release" }
}

/// When a reproducible build was made (SOURCE_DATE_EPOCH), or that it is not one.
fn epoch() -> &'static str {
    match env!("VMA_BUILD_EPOCH") {
        "" => "an unknown date",
        epoch => epoch,
    }
}

fn command_line() -> String {
    let bytes = read_file("/proc/self/cmdline").unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    text.trim_end().to_owned()
}
