//! Snapshots as an OpenMetrics text exposition (<https://openmetrics.io>).
//!
//! Only counters and gauges: what else OpenMetrics has, a node exporter's reader of text files
//! refuses. What the metrics are is in `openmetrics/metrics.rs`; here is how they are written.

mod metrics;

use std::collections::HashSet;
use std::fmt::Write;

use crate::sample::Sample;

/// What an HTTP answer with the text says it is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text up to `# EOF`.
pub fn text(samples: &[Sample]) -> String {
    let mut page = Page::default();
    metrics::write(&mut page, samples);
    page.text.push_str("# EOF\n");
    page.text
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// A metric: what is true of all its values.
#[derive(Clone, Copy)]
struct Metric {
    kind: Kind,
    /// Without the unit.
    name: &'static str,
    /// Empty is none.
    unit: &'static str,
    help: &'static str,
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    /// All values of a metric, which must follow one another. Two of the same labels would make
    /// readers refuse the whole page, so the first one counts.
    fn metric<V: std::fmt::Display>(
        &mut self,
        prefix: &str,
        metric: &Metric,
        values: impl Iterator<Item = (Labels, V)>,
    ) {
        let Metric { kind, name, unit, help } = metric;
        let name = if unit.is_empty() {
            format!("vma_{prefix}{name}")
        } else {
            format!("vma_{prefix}{name}_{unit}")
        };
        let (kind, suffix) = match kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        let mut seen = HashSet::new();
        let mut begun = false;
        for (Labels(labels), value) in values {
            if !seen.insert(labels.clone()) {
                continue;
            }
            if !begun {
                self.line(format_args!("# TYPE {name} {kind}"));
                if !unit.is_empty() {
                    self.line(format_args!("# UNIT {name} {unit}"));
                }
                self.line(format_args!("# HELP {name} {}", escaped(help)));
                begun = true;
            }
            self.line(format_args!("{name}{suffix}{{{labels}}} {value}"));
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// The labels of a value as they are written, without the braces.
#[derive(Clone)]
struct Labels(String);

impl Labels {
    fn of(sample: &Sample) -> Labels {
        Labels(String::new()).with("pid", &sample.process.to_string()).with("name", &sample.name)
    }

    fn with(mut self, name: &str, value: &str) -> Labels {
        let comma = if self.0.is_empty() { "" } else { "," };
        let _ = write!(self.0, "{comma}{name}=\"{}\"", escaped(value));
        self
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
