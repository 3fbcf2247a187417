//! The banner: what the manuals tell an administrator to look for.

use crate::config::Config;
use crate::config::params::{self, Param, Show};
use crate::config::settings::Settings;
use crate::config::value::Kind;
use crate::log::{Level, enabled, line, log_line};
use crate::sys::fd::read_file;

/// What tells a library file which version it is: `strings libvma.so | grep VMA_VERSION`. The line ends
/// around it keep what the linker puts beside it out of that line.
const IDENTIFICATION: &str = concat!(
    "\nVMA_VERSION: ",
    env!("CARGO_PKG_VERSION"),
    "-",
    env!("VMA_RELEASE"),
    " ",
    env!("VMA_BUILD"),
    "\n"
);

const LINE: &str = "---------------------------------------------------------------------------";

/// Version, command line, then the parameters: those that are not at their default as INFO, all as
/// DETAILS.
pub fn print(settings: &Settings, config: &Config) {
    if !enabled(Level::Info) {
        return;
    }
    log_line!(Info, "{LINE}");
    log_line!(Info, "{}", IDENTIFICATION.trim());
    log_line!(Info, "Cmd Line: {}", command_line());
    log_line!(Info, "{LINE}");
    for (level, text) in lines(settings) {
        if enabled(level) {
            line(level, format_args!("{text}"));
        }
    }
    log_line!(Info, "{LINE}");
    if config.trace_level >= Level::Debug {
        log_line!(Warning, "VMA is configured with log level {}!", config.trace_level.name());
        log_line!(Warning, "This log level is for debugging: it slows the program down");
    }
}

/// A line for each parameter and the level it belongs to.
fn lines(settings: &Settings) -> impl Iterator<Item = (Level, String)> {
    params::all().filter(|param| !param.label.is_empty()).filter_map(|param| {
        let value = settings.text(param.name);
        let is_default = value == param.default;
        if is_default && param.show == Show::IfSet {
            return None;
        }
        let disabled = value == "0" && matches!(param.show, Show::ZeroLabel(_));
        let always = param.name == "VMA_TRACELEVEL" || disabled && param.default != "0";
        let level = if is_default && !always { Level::Details } else { Level::Info };
        let label = match param.show {
            Show::ZeroLabel(label) if value == "0" => label,
            _ => param.label,
        };
        Some((level, format!("{label:<30} {:<26} [{}]", shown(param, settings), param.name)))
    })
}

/// A value as the banner has it.
fn shown(param: &Param, settings: &Settings) -> String {
    let value = settings.text(param.name);
    match (param.show, param.kind) {
        (Show::Digit, _) => value.to_owned(),
        (Show::Zero(text), _) if value == "0" => format!("0 ({text})"),
        (Show::ZeroDisabled | Show::ZeroLabel(_), _) if value == "0" => "Disabled".to_owned(),
        (_, Kind::Flag) => if value == "0" { "Disabled" } else { "Enabled" }.to_owned(),
        (_, Kind::Level) => value.to_ascii_uppercase(),
        (_, Kind::Spec) => settings.spec().title().to_owned(),
        (show, Kind::Choice(choices)) => {
            let number = settings.number(param.name);
            let text = choices.iter().find(|one| one.number == number).map_or("", |one| one.text);
            if show == Show::Text { text.to_owned() } else { format!("{value:<2}({text})") }
        }
        _ => value.to_owned(),
    }
}

fn command_line() -> String {
    let bytes = read_file("/proc/self/cmdline").unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of parameters at a level, as they stand behind `VMA `.
    fn banner(level: Level, environment: &[(&str, &str)]) -> String {
        let pairs = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let settings = Settings::read(pairs);
        let mut text = String::new();
        for (at, line) in lines(&settings).filter(|(at, _)| *at <= level) {
            text += &format!("{}: {}\n", at.name(), line.trim_end());
        }
        text
    }

    /// `UPDATE=1 cargo test banner` writes the files.
    #[track_caller]
    fn is_golden(file: &str, text: &str) {
        let path = format!("{}/src/process/banner/{file}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, text).expect("the file is writable");
        }
        assert_eq!(
            std::fs::read_to_string(&path).expect(&path),
            text,
            "UPDATE=1 cargo test banner"
        );
    }

    // covers: LOG-06, RUN-03
    #[test]
    fn at_info_the_banner_has_what_is_not_default() {
        is_golden("info.txt", &banner(Level::Info, &[]));
        let set = [
            ("VMA_RX_POLL", "-1"),
            ("VMA_TX_BUFS", "4k"),
            ("VMA_MTU", "1400"),
            ("VMA_RX_BUFS", "8192"),
        ];
        is_golden("info-set.txt", &banner(Level::Info, &set));
    }

    // covers: RUN-13
    #[test]
    fn the_latency_banner_is_the_manual_s() {
        is_golden("latency.txt", &banner(Level::Info, &[("VMA_SPEC", "latency")]));
    }

    // covers: LOG-07
    #[test]
    fn at_details_the_banner_is_complete() {
        is_golden("details.txt", &banner(Level::Details, &[("VMA_TRACELEVEL", "details")]));
    }

    // covers: LOG-12
    #[test]
    fn at_debug_the_details_of_lines_are_raised() {
        let text = banner(Level::Info, &[("VMA_TRACELEVEL", "debug")]);
        is_golden("debug.txt", &text);
    }

    #[test]
    fn below_info_there_is_none() {
        assert_eq!(banner(Level::Warning, &[("VMA_TRACELEVEL", "warning")]), "");
    }
}
