//! Load that a model server reports about itself, read from its page of metrics.
//!
//! The page is text in the Prometheus format
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>); it is fetched elsewhere. Only the named
//! metrics are read, whatever else is on the page. Series of one metric are summed over engines, usage is
//! that of the fullest. Values that are negative, infinite or no number are left out. Bound: [`ADAPTERS_MAX`].

use infergate_core::routing::ServerLoad;
use infergate_core::routing::affinity::lora_number;
use infergate_core::routing::policy::WHOLE;

/// Adapters that are kept of one server; a server holds a few at a time.
const ADAPTERS_MAX: usize = 64;

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
/// Label of series that divide the one without it.
const PRIORITY_LABEL: &str = "priority";

impl MetricNames {
    /// Reads a page; none where neither running nor waiting requests are on it.
    pub(super) fn read(&self, page: &str) -> Option<ServerMetrics> {
        let mut metrics = ServerMetrics::default();
        let mut is_found = false;
        let mut latest = f64::NEG_INFINITY;
        for series in page.lines().filter_map(MetricSeries::parse) {
            if series.name == self.running || series.name == self.waiting {
                if series.label(PRIORITY_LABEL).is_some_and(|p| !p.is_empty()) {
                    continue;
                }
                is_found = true;
                let sum = match series.name == self.running {
                    true => &mut metrics.load.running,
                    false => &mut metrics.load.waiting,
                };
                // `as` saturates.
                *sum = sum.saturating_add(series.value as u32);
            } else if self.kv_cache.contains(&series.name) {
                let share = (series.value * f64::from(WHOLE)).min(f64::from(WHOLE)) as u16;
                metrics.load.kv_cache_permille = metrics.load.kv_cache_permille.max(share);
            } else if self.adapters == Some(series.name) && series.value >= latest {
                // Each set of adapters is a series of its own; the present one is the latest.
                latest = series.value;
                metrics.adapters = series.adapters();
            }
        }
        is_found.then_some(metrics)
    }
}

/// Line of a page: `name{label="value",…} number`.
struct MetricSeries<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> MetricSeries<'a> {
    fn parse(line: &'a str) -> Option<MetricSeries<'a>> {
        if line.starts_with('#') {
            return None;
        }
        let (name, labels, rest) = match line.split_once('{') {
            Some((name, rest)) => {
                let (labels, rest) = rest.rsplit_once('}')?;
                (name, labels, rest)
            }
            None => {
                let (name, rest) = line.split_once(' ')?;
                (name, "", rest)
            }
        };
        // A timestamp may follow the value.
        let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
        (value.is_finite() && value >= 0.0).then_some(MetricSeries {
            name,
            labels,
            value,
        })
    }

    /// The value of a label, as it stands there: names of adapters need no escapes.
    fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (found, after) = rest.split_once("=\"")?;
            let end = closing_quote(after)?;
            if found.trim_start_matches([',', ' ']) == name {
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
            .map(lora_number)
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
