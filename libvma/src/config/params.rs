//! The one table of parameters, in groups: name, former names, kind, default, banner label,
//! meaning, what the profiles make of it, and whether it has an effect here.
//!
//! Parser, banner, vma(7), docs/parameters.md and the spelling of unknown names derive from it.
//! Nothing here says what a parameter does to a socket: that is with whoever reads `Config`.

mod former;
mod links;
mod process;
mod receive;
mod rings;
mod sockets;
mod threads;
mod transmit;
mod waiting;
mod xdp;

use super::spec::Spec;
use super::value::Kind;

/// One parameter.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub name: &'static str,
    /// Names of earlier manuals that mean the same; the last of them that is set counts.
    pub former_names: &'static [&'static str],
    pub kind: Kind,
    pub default: &'static str,
    /// What the manuals give as default, if that is something else.
    pub manuals_default: Option<&'static str>,
    /// What the banner calls it; empty if it never shows there.
    pub label: &'static str,
    pub show: Show,
    pub help: &'static str,
    pub specs: &'static [(Spec, &'static str)],
    pub state: State,
}

/// What setting it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    InEffect,
    /// Something of an RDMA adapter: only the verbs device can show it. With what there is instead.
    Verbs(&'static str),
    /// Without meaning for sockets that AF_XDP serves, and why.
    NoMeaning(&'static str),
}

/// How the banner shows the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// As it is; flags as Enabled and Disabled, choices as number and text.
    Plain,
    /// A flag as 0 or 1.
    Digit,
    /// 0 with this text behind it.
    Zero(&'static str),
    /// 0 as Disabled.
    ZeroDisabled,
    /// 0 as Disabled, under this label and always as INFO.
    ZeroLabel(&'static str),
    /// A choice's text without its number.
    Text,
    /// A list of CPUs or another text, a name in capitals, ...: only if it is not the default.
    IfSet,
}

pub const fn param(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    label: &'static str,
    help: &'static str,
) -> Param {
    Param {
        name,
        former_names: &[],
        kind,
        default,
        manuals_default: None,
        label,
        show: Show::Plain,
        help,
        specs: &[],
        state: State::InEffect,
    }
}

impl Param {
    const fn formerly(mut self, names: &'static [&'static str]) -> Param {
        self.former_names = names;
        self
    }

    const fn spec(mut self, specs: &'static [(Spec, &'static str)]) -> Param {
        self.specs = specs;
        self
    }

    const fn show(mut self, show: Show) -> Param {
        self.show = show;
        self
    }

    /// The manuals' default, where ours is another one; the help says why.
    const fn manuals(mut self, default: &'static str) -> Param {
        self.manuals_default = Some(default);
        self
    }

    const fn verbs(mut self, instead: &'static str) -> Param {
        self.state = State::Verbs(instead);
        self
    }

    const fn no_meaning(mut self, why: &'static str) -> Param {
        self.state = State::NoMeaning(why);
        self
    }

    pub fn is_in_effect(&self) -> bool {
        self.state == State::InEffect
    }

    /// What a profile sets it to.
    pub fn in_spec(&self, spec: Spec) -> Option<&'static str> {
        self.specs.iter().find(|(one, _)| *one == spec).map(|(_, value)| *value)
    }

    /// Why it has no effect here.
    pub fn why_not(&self) -> Option<&'static str> {
        match self.state {
            State::InEffect => None,
            State::Verbs(why) | State::NoMeaning(why) => Some(why),
        }
    }
}

/// A part of the table under one heading.
pub struct Group {
    pub title: &'static str,
    pub params: &'static [Param],
}

/// The table, in the order of the banner.
pub const GROUPS: &[Group] = &[
    Group { title: "Process, logging, statistics", params: process::PARAMS },
    Group { title: "Rings", params: rings::PARAMS },
    Group { title: "Transmit", params: transmit::PARAMS },
    Group { title: "Receive", params: receive::PARAMS },
    Group { title: "Waiting, completions", params: waiting::PARAMS },
    Group { title: "Sockets and TCP", params: sockets::PARAMS },
    Group { title: "Threads and memory", params: threads::PARAMS },
    Group { title: "Neighbours, links, fork", params: links::PARAMS },
    Group { title: "AF_XDP and this host", params: xdp::PARAMS },
    Group { title: "Of earlier releases", params: former::PARAMS },
];

/// Every parameter, in the order of the banner.
pub fn all() -> impl Iterator<Item = &'static Param> {
    GROUPS.iter().flat_map(|group| group.params)
}

/// The parameter of this name or former name.
pub fn find(name: &str) -> Option<&'static Param> {
    all().find(|param| param.name == name || param.former_names.contains(&name))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_name_or_label_is_taken_twice() {
        let (mut names, mut labels) = (HashSet::new(), HashSet::new());
        for param in all() {
            for name in param.former_names.iter().chain([&param.name]) {
                assert!(names.insert(*name), "{name}");
            }
            assert!(param.label.is_empty() || labels.insert(param.label), "{}", param.label);
            assert!(!param.help.is_empty(), "{}", param.name);
            assert!(param.why_not() != Some(""), "{}", param.name);
        }
    }

    #[test]
    fn every_default_and_every_value_of_a_profile_is_acceptable() {
        for param in all() {
            let profiles = param.specs.iter().map(|(_, value)| *value);
            for value in profiles.chain([param.default]) {
                let checked = param.kind.check(value);
                assert_eq!(checked.as_deref(), Ok(value), "{}={value}", param.name);
            }
        }
    }

    #[test]
    fn nothing_says_that_the_manuals_differ_where_they_do_not() {
        for param in all() {
            assert_ne!(param.manuals_default, Some(param.default), "{}", param.name);
        }
    }
}
