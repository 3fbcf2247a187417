//! The values in force and where each comes from: the profile, then what the environment implies, then the
//! environment itself, layered by figment; defaults for the rest. (As a layer of their own the defaults, a
//! hundred of them, cost each program 0.3 ms at its first socket.)
//!
//! Nothing is logged while the values are read, for how to log is among them: complaints wait in
//! [`Settings::complaints`].

use std::collections::BTreeMap;

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::params::{self, Param};
use super::spec::Spec;
use super::{adjust, spelling};

/// A value and the layer it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// In its canonical form (`Kind::check`).
    pub value: String,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    Profile,
    /// Another parameter brought it about.
    Implied,
    Environment,
}

pub struct Settings {
    values: BTreeMap<&'static str, Setting>,
    /// What the administrator should know, a line each.
    pub complaints: Vec<String>,
}

/// One layer of figment's.
struct Layer {
    origin: Origin,
    values: Dict,
}

impl Layer {
    fn new<'a>(origin: Origin, values: impl IntoIterator<Item = (&'a str, String)>) -> Layer {
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value)));
        Layer { origin, values: values.collect() }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.name())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

impl Origin {
    fn name(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::Profile => "VMA_SPEC",
            Origin::Implied => "implied",
            Origin::Environment => "environment",
        }
    }
}

/// A value of the environment that is not taken as it is.
struct Refused {
    param: &'static Param,
    name: String,
    said: String,
}

impl Settings {
    /// Reads every parameter out of these variables; those of other programs are passed over.
    pub fn read(environment: impl IntoIterator<Item = (String, String)>) -> Settings {
        let said: BTreeMap<String, String> = environment.into_iter().collect();
        let mut complaints = Vec::new();
        let mut refused = Vec::new();
        let mut given = BTreeMap::new();
        for param in params::all() {
            // Former names outweigh the present one, in their order, as they always did.
            for name in [param.name].iter().chain(param.former_names) {
                let Some(text) = said.get(*name) else { continue };
                if *name != param.name {
                    complaints.push(format!("{name} is now called {}", param.name));
                }
                match param.kind.check(text) {
                    Ok(value) => {
                        given.insert(param.name, value);
                    }
                    Err(instead) => {
                        if let Some(instead) = instead {
                            given.insert(param.name, instead);
                        }
                        let (name, said) = ((*name).to_owned(), text.clone());
                        refused.push(Refused { param, name, said });
                    }
                }
            }
        }
        complaints.extend(said.keys().filter_map(|name| spelling::complaint(name)));

        let spec = given.get("VMA_SPEC").and_then(|name| Spec::parse(name)).unwrap_or(Spec::None);
        let mut settings = layered(spec, BTreeMap::new(), &given);
        let implied = adjust::implied(&settings);
        if !implied.is_empty() {
            settings = layered(spec, implied, &given);
        }
        settings.complaints = complaints;
        adjust::adjust(&mut settings);
        for Refused { param, name, said } in refused {
            let used = settings.text(param.name);
            let used = if used.is_empty() { "none" } else { used };
            let kind = param.kind;
            let complaint = format!("{name}={said} is not accepted ({kind}), using {used}");
            settings.complaints.push(complaint);
        }
        settings
    }

    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.values.get(name)
    }

    /// The canonical text; empty for a name that is not in the table.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).map_or("", |setting| &setting.value)
    }

    pub fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or(0)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.number(name) != 0
    }

    pub fn spec(&self) -> Spec {
        Spec::parse(self.text("VMA_SPEC")).unwrap_or(Spec::None)
    }

    /// Did the environment say so itself?
    pub fn is_given(&self, name: &str) -> bool {
        self.get(name).is_some_and(|setting| setting.origin == Origin::Environment)
    }

    /// Changes a value for the sake of another one's.
    pub(super) fn imply(&mut self, name: &'static str, value: impl ToString) {
        let value = value.to_string();
        let changed = self.text(name) != value;
        if let Some(setting) = self.values.get_mut(name)
            && changed
        {
            *setting = Setting { value, origin: Origin::Implied };
        }
    }

    /// What was set and has no effect here: the parameter and why.
    pub fn without_effect(&self) -> impl Iterator<Item = (&'static Param, &'static str)> {
        params::all().filter_map(|param| {
            let set = self.get(param.name).is_some_and(|it| it.origin != Origin::Default);
            Some((param, param.why_not().filter(|_| set)?))
        })
    }
}

fn layered(
    spec: Spec,
    implied: BTreeMap<&'static str, String>,
    given: &BTreeMap<&'static str, String>,
) -> Settings {
    let implied_names: Vec<&str> = implied.keys().copied().collect();
    let of_spec = |param: &'static Param| Some((param.name, param.in_spec(spec)?.to_owned()));
    let figment = Figment::new()
        .merge(Layer::new(Origin::Profile, params::all().filter_map(of_spec)))
        .merge(Layer::new(Origin::Implied, implied))
        .merge(Layer::new(Origin::Environment, given.iter().map(|(k, v)| (*k, v.clone()))));
    let mut merged: BTreeMap<String, String> = figment.extract().unwrap_or_default();
    let values = params::all().map(|param| {
        let value = merged.remove(param.name).unwrap_or_else(|| param.default.to_owned());
        let origin = if given.contains_key(param.name) {
            Origin::Environment
        } else if implied_names.contains(&param.name) {
            Origin::Implied
        } else if param.in_spec(spec).is_some() {
            Origin::Profile
        } else {
            Origin::Default
        };
        (param.name, Setting { value, origin })
    });
    Settings { values: values.collect(), complaints: Vec::new() }
}

#[cfg(test)]
mod tests;
