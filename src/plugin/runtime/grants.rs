//! Grants of a revision: permitted imports, and the log lines, counters and tables behind them.
//!
//! Data only; the host functions that guests call are in `imports.rs`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use infergate_core::Millis;
use parking_lot::Mutex;
use serde::Serialize;

use crate::telemetry::plugin_metrics::GuestCounter;
use crate::telemetry::{Clock, PluginMetrics};

/// Lines a revision may log in a second; more are counted and dropped.
pub const LOG_LINES_PER_SECOND: u64 = 50;

/// A table: key → JSON text.
pub type LookupTable = HashMap<String, Vec<u8>>;

/// Grants of one revision, with the log lines and counts that came of them.
pub struct Grants {
    pub plugin: Arc<str>,
    pub sha256: Arc<str>,
    pub log: bool,
    pub counters: bool,
    pub tables: bool,
    pub declared: Vec<GrantedCounter>,
    pub attached: Vec<LookupTable>,
    pub clock: Clock,
    pub usage: GrantUsage,
    /// Counters of log lines and miscounts, all revisions together.
    pub metrics: Arc<PluginMetrics>,
}

/// A counter of a plugin's own.
#[derive(Debug)]
pub struct GrantedCounter {
    pub name: Arc<str>,
    pub value: AtomicU64,
    /// The same in `/metrics`, all revisions together.
    pub series: GuestCounter,
}

/// Log lines and miscounts of one revision.
#[derive(Debug, Default)]
pub struct GrantUsage {
    /// The second in which lines are counted, and how many there were.
    second: AtomicU64,
    lines: AtomicU64,
    /// Lines over the rate.
    pub dropped: AtomicU64,
    /// Counts of counters that the configuration does not declare.
    pub undeclared: AtomicU64,
    /// For authors' tools, which show lines instead of logging them; none on the request path. Locked
    /// for one line.
    pub kept: Option<Mutex<Vec<String>>>,
}

/// The value of a counter, for the admin listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CounterValue {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Its count.
    pub value: u64,
}

impl Grants {
    /// The declared counters as they stand.
    pub fn counts(&self) -> Vec<CounterValue> {
        self.declared
            .iter()
            .map(|counter| CounterValue {
                name: Arc::clone(&counter.name),
                value: counter.value.load(Ordering::Relaxed),
            })
            .collect()
    }
}

impl GrantUsage {
    /// Keeps lines instead of logging them.
    pub fn with_kept_lines() -> GrantUsage {
        GrantUsage {
            kept: Some(Mutex::default()),
            ..GrantUsage::default()
        }
    }

    /// Takes one line of this second's; false when there are none left.
    pub fn take_line(&self, now: Millis) -> bool {
        self.advance_to(now);
        let mine = self.lines.fetch_add(1, Ordering::Relaxed) < LOG_LINES_PER_SECOND;
        if !mine {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        mine
    }

    /// True when there is a line left of this second's.
    pub fn has_line(&self, now: Millis) -> bool {
        self.advance_to(now);
        self.lines.load(Ordering::Relaxed) < LOG_LINES_PER_SECOND
    }

    fn advance_to(&self, now: Millis) {
        let second = now.0 / 1000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.lines.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_rate_are_dropped_and_counted_until_the_next_second() {
        let usage = GrantUsage::default();
        let taken = (0..LOG_LINES_PER_SECOND + 7)
            .filter(|_| usage.take_line(Millis(5_100)))
            .count() as u64;
        assert_eq!(taken, LOG_LINES_PER_SECOND);
        assert_eq!(usage.dropped.load(Ordering::Relaxed), 7);
        assert!(!usage.has_line(Millis(5_900)));
        assert!(usage.take_line(Millis(6_000)));
    }
}
