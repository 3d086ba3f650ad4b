//! Load that a model server reports about itself, read from its page of metrics.
//!
//! The page is text in the Prometheus format
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>); it is fetched elsewhere. Only the named
//! metrics are read, whatever else is on the page. Requests of one metric are summed over engines, usage is
//! that of the fullest. Ranks of one engine report the same requests: the largest figure counts, once. Values
//! that are negative, infinite or no number are left out. Bounds: [`ADAPTERS_MAX`], [`ENGINES_MAX`].

use std::borrow::Cow;

use infergate_core::routing::ServerLoad;
use infergate_core::routing::affinity::lora_number;
use infergate_core::routing::policy::WHOLE;

/// Adapters that are kept of one server; a server holds a few at a time.
const ADAPTERS_MAX: usize = 64;
/// Engines behind one page, one for each data-parallel rank; further ones are left out.
const ENGINES_MAX: usize = 256;
/// Least value of the adapters' gauge that is a time, 2001-09-09 in Unix seconds. Where each set of adapters has
/// the value 1, as on some pages of engine V0, the page does not say which one is present.
const REPORT_TIME_MIN_SECS: f64 = 1e9;

/// Load of a model server by its own report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerMetrics {
    /// Requests and cache.
    pub load: ServerLoad,
    /// Numbers of the names of the LoRA adapters in use; empty where it reports none.
    pub adapters: Vec<u32>,
}

/// Names of a server's metrics; a server has one of the names of each kind.
pub(super) struct MetricNames {
    pub running: &'static str,
    pub waiting: &'static str,
    /// The present name and former ones.
    pub kv_cache: &'static [&'static str],
    /// Gauge whose labels list adapters and whose value is the time of the report.
    pub adapters: Option<&'static str>,
}

/// Labels of the adapters' gauge: names, separated by commas.
const ADAPTER_LABELS: [&str; 2] = ["running_lora_adapters", "waiting_lora_adapters"];
/// Labels of the engine that a series is of; the other labels are ranks within it.
const ENGINE_LABELS: [&str; 3] = ["model_name", "engine", "dp_rank"];
/// Label of series that divide the one without it.
const PRIORITY_LABEL: &str = "priority";

impl MetricNames {
    /// Reads a page; none where neither running nor waiting requests are on it.
    pub(super) fn read(&self, page: &str) -> Option<ServerMetrics> {
        let mut metrics = ServerMetrics::default();
        let mut engines = Vec::new();
        let mut latest = REPORT_TIME_MIN_SECS;
        for series in page.lines().filter_map(|line| self.series(line)) {
            if series.name == self.running || series.name == self.waiting {
                if series.label(PRIORITY_LABEL).is_some_and(|p| !p.is_empty()) {
                    continue;
                }
                let Some(engine) = EngineRequests::of(&series, &mut engines) else {
                    continue;
                };
                let count = match series.name == self.running {
                    true => &mut engine.running,
                    false => &mut engine.waiting,
                };
                // `as` saturates.
                *count = (*count).max(series.value as u32);
            } else if Some(series.name) != self.adapters {
                let share = (series.value * f64::from(WHOLE)).min(f64::from(WHOLE)) as u16;
                metrics.load.kv_cache_permille = metrics.load.kv_cache_permille.max(share);
            } else if series.value >= latest {
                // Each set of adapters is a series of its own; the present one is the latest.
                latest = series.value;
                metrics.adapters = series.adapters();
            }
        }
        for engine in &engines {
            metrics.load.running = metrics.load.running.saturating_add(engine.running);
            metrics.load.waiting = metrics.load.waiting.saturating_add(engine.waiting);
        }
        (!engines.is_empty()).then_some(metrics)
    }

    /// The series of a line; none where it is a comment, broken or of another metric.
    fn series<'a>(&self, line: &'a str) -> Option<MetricSeries<'a>> {
        let line = line.trim_start();
        let end = line.find(['{', ' ', '\t'])?;
        let name = &line[..end];
        let is_read = name == self.running
            || name == self.waiting
            || self.kv_cache.contains(&name)
            || self.adapters == Some(name);
        is_read.then(|| MetricSeries::parse(name, &line[end..]))?
    }
}

/// Requests of one engine.
struct EngineRequests<'a> {
    labels: [Option<&'a str>; ENGINE_LABELS.len()],
    running: u32,
    waiting: u32,
}

impl<'a> EngineRequests<'a> {
    /// Finds or adds the engine of a series; none where there are too many.
    fn of<'e>(
        series: &MetricSeries<'a>,
        engines: &'e mut Vec<EngineRequests<'a>>,
    ) -> Option<&'e mut EngineRequests<'a>> {
        let labels = ENGINE_LABELS.map(|label| series.label(label));
        let known = engines.iter().position(|engine| engine.labels == labels);
        let at = known.unwrap_or(engines.len());
        if at == engines.len() {
            if at == ENGINES_MAX {
                return None;
            }
            engines.push(EngineRequests {
                labels,
                running: 0,
                waiting: 0,
            });
        }
        engines.get_mut(at)
    }
}

/// Line of a page: `name{label="value",…} number`.
struct MetricSeries<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> MetricSeries<'a> {
    /// Reads what stands after the name.
    fn parse(name: &'a str, rest: &'a str) -> Option<MetricSeries<'a>> {
        let rest = rest.trim_start();
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => {
                let end = closing_brace(rest)?;
                (&rest[..end], &rest[end + 1..])
            }
            None => ("", rest),
        };
        // A timestamp may follow the value.
        let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
        (value.is_finite() && value >= 0.0).then_some(MetricSeries {
            name,
            labels,
            value,
        })
    }

    /// The value of a label, as it stands there.
    fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (found, after) = rest.split_once('=')?;
            let after = after.trim_start().strip_prefix('"')?;
            let end = closing_quote(after)?;
            if found.trim_matches([',', ' ', '\t']) == name {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
    }

    fn adapters(&self) -> Vec<u32> {
        let lists = ADAPTER_LABELS.iter().filter_map(|label| self.label(label));
        let names = lists.flat_map(|list| list.split(',')).map(str::trim);
        let mut numbers: Vec<u32> = names
            .filter(|name| !name.is_empty())
            .take(ADAPTERS_MAX)
            .map(|name| lora_number(&unescaped(name)))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

/// End of a label's value: the first quote without a backslash before it.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })
}

/// End of the labels: the first brace outside of a label's value.
fn closing_brace(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let found = at + text[at..].find(['"', '}'])?;
        if text.as_bytes()[found] == b'}' {
            return Some(found);
        }
        at = found + 1 + closing_quote(&text[found + 1..])? + 1;
    }
}

/// A label's value without its escapes: `\\`, `\"` and `\n`.
fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => text.extend(
                chars
                    .next()
                    .map(|char| if char == 'n' { '\n' } else { char }),
            ),
            char => text.push(char),
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests;
