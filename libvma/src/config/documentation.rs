//! What is written about the parameters, out of the table: vma(7), docs/parameters.md.
//!
//! `UPDATE=1 cargo test -p libvma --lib documentation` writes both.

use super::params::{self, GROUPS, Param, State};
use super::spec::Spec;

fn path(name: &str) -> String {
    format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Compares a file with what it should be, or makes it so.
#[track_caller]
fn is_current(name: &str, expected: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path(name), expected).expect("the file is writable");
    }
    let text = std::fs::read_to_string(path(name)).expect(name);
    assert!(text == expected, "docs/{name} is stale: UPDATE=1 cargo test documentation");
}

/// Puts the text between two marks of a page.
fn between(page: &str, mark: &str, text: &str) -> String {
    let (begin, end) = (format!(".\\\" {mark}:begin\n"), format!(".\\\" {mark}:end\n"));
    let (head, rest) = page.split_once(&begin).expect("the first mark");
    let (_, tail) = rest.split_once(&end).expect("the second mark");
    format!("{head}{begin}{text}{end}{tail}")
}

fn for_troff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('`', "\"")
}

fn default_of(param: &Param) -> &'static str {
    if param.default.is_empty() { "none" } else { param.default }
}

fn parameters_for_troff() -> String {
    let mut text = String::new();
    for group in GROUPS {
        let in_effect: Vec<_> = group.params.iter().filter(|one| one.is_in_effect()).collect();
        if in_effect.is_empty() {
            continue;
        }
        text += &format!(".SS {}\n", group.title);
        for param in in_effect {
            text += &format!(
                ".TP\n.B {}\n{}.\nAccepted: {}. Default: {}.\n",
                param.name,
                for_troff(param.help),
                for_troff(&param.kind.to_string()),
                for_troff(default_of(param)),
            );
        }
    }
    text
}

fn idle_for_troff() -> String {
    let idle = params::all().filter_map(|param| Some((param.name, param.why_not()?)));
    idle.map(|(name, why)| format!(".TP\n.B {name}\n{}.\n", for_troff(why))).collect()
}

fn profiles_for_troff() -> String {
    let mut text = String::new();
    for spec in Spec::all() {
        let number = spec.number().map_or(String::new(), |number| format!(" ({number})"));
        text += &format!(".TP\n.BR {}{number}\n", for_troff(spec.name()));
        text += &format!("{}.\n", for_troff(spec.purpose()));
    }
    text
}

#[test]
fn the_man_page_lists_every_parameter() {
    let page = std::fs::read_to_string(path("vma.7")).expect("docs/vma.7");
    let page = between(&page, "params", &parameters_for_troff());
    let page = between(&page, "idle", &idle_for_troff());
    is_current("vma.7", &between(&page, "profiles", &profiles_for_troff()));
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn row(param: &Param) -> String {
    let mut meaning = cell(param.help);
    if let Some(why) = param.why_not() {
        meaning += &format!(". *{}*", cell(why));
    }
    if !param.former_names.is_empty() {
        meaning += &format!(" (formerly {})", param.former_names.join(", "));
    }
    let effect = match param.state {
        State::InEffect => "yes",
        State::Verbs(_) => "verbs",
        State::NoMeaning(_) => "no",
    };
    let mut default = default_of(param).to_owned();
    if let Some(manuals) = param.manuals_default {
        default += &format!(" (manuals: {manuals})");
    }
    let kind = cell(&param.kind.to_string());
    format!("| {} | {kind} | {default} | {effect} | {meaning} |\n", param.name)
}

fn reference() -> String {
    let count = |wanted: fn(&Param) -> bool| params::all().filter(|param| wanted(param)).count();
    let mut text = format!(
        "# Parameters\n\n\
        <!-- generated from libvma/src/config/params: UPDATE=1 cargo test -p libvma --lib documentation -->\n\n\
        Environment variables, read at the first Internet socket of a process; in a set-uid program\n\
        they are not. A value that is not accepted is told once and the next one of this list is\n\
        used: the variable, what another parameter brings about, the profile (`VMA_SPEC`), the\n\
        default. An unknown `VMA_` name is told, too.\n\n\
        Of {} parameters {} are in effect on AF_XDP (*yes*), {} need an RDMA adapter (*verbs*), and {}\n\
        have no meaning here (*no*); each of those says why, and at level debug, if it is set.\n",
        params::all().count(),
        count(Param::is_in_effect),
        count(|param| matches!(param.state, State::Verbs(_))),
        count(|param| matches!(param.state, State::NoMeaning(_))),
    );
    for group in GROUPS {
        text += &format!("\n## {}\n\n", group.title);
        text += "| parameter | accepted | default | effect | meaning |\n|---|---|---|---|---|\n";
        group.params.iter().for_each(|param| text += &row(param));
    }
    text += "\n## Profiles\n\nWhat `VMA_SPEC` sets; parameters that are set by themselves outweigh it.\n\n";
    text += "| profile | number | for | sets |\n|---|---|---|---|\n";
    for spec in Spec::all().filter(|spec| *spec != Spec::None) {
        let sets = params::all().filter_map(|param| {
            Some(format!("{}={}", param.name.trim_start_matches("VMA_"), param.in_spec(spec)?))
        });
        let sets: Vec<_> = sets.collect();
        let number = spec.number().unwrap_or("");
        text +=
            &format!("| {} | {number} | {} | {} |\n", spec.name(), spec.purpose(), sets.join(" "));
    }
    text
}

#[test]
fn the_reference_lists_every_parameter() {
    is_current("parameters.md", &reference());
}
