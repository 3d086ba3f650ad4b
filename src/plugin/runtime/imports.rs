//! Imports of a guest: log, counters, tables. No other import exists.
//!
//! Grants nothing by itself: a linker offers an interface only when the configuration names it. Guests have
//! no clock, chance, network, file or environment. Log lines have a rate and a length, counters are declared,
//! tables are read-only and one version for a revision's whole life.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use infergate_core::Millis;
use parking_lot::Mutex;
use serde::Serialize;
use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

use crate::plugin::runtime::bindings::host::{counters, log, tables};
use crate::plugin::runtime::store::GuestState;
use crate::telemetry::plugin_metrics::GuestCounter;
use crate::telemetry::{Clock, PluginMetrics};

/// Lines a revision may log in a second; more are counted and dropped.
pub const LOG_LINES_PER_SECOND: u64 = 50;
/// Characters of a line.
pub const LOG_LINE_MAX_CHARS: usize = 2048;

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
    /// Where lines and miscounts are counted, all revisions together.
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
    /// A linker that offers what was granted, and nothing else.
    ///
    /// # Errors
    /// Never for these interfaces; wasmtime's error for a name defined twice.
    pub fn linker(&self, engine: &Engine) -> wasmtime::Result<Linker<GuestState>> {
        let mut linker = Linker::new(engine);
        if self.log {
            log::add_to_linker::<GuestState, HasSelf<GuestState>>(&mut linker, |guest| guest)?;
        }
        if self.counters {
            counters::add_to_linker::<GuestState, HasSelf<GuestState>>(&mut linker, |guest| guest)?;
        }
        if self.tables {
            tables::add_to_linker::<GuestState, HasSelf<GuestState>>(&mut linker, |guest| guest)?;
        }
        Ok(linker)
    }

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
    fn take_line(&self, now: Millis) -> bool {
        self.advance_to(now);
        let mine = self.lines.fetch_add(1, Ordering::Relaxed) < LOG_LINES_PER_SECOND;
        if !mine {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        mine
    }

    fn has_line(&self, now: Millis) -> bool {
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

fn word(level: log::Level) -> &'static str {
    match level {
        log::Level::Error => "error",
        log::Level::Warn => "warn",
        log::Level::Info => "info",
        log::Level::Debug => "debug",
    }
}

impl log::Host for GuestState {
    fn emit(&mut self, level: log::Level, message: String) {
        if self.is_repetition {
            return;
        }
        let grants = &self.grants;
        if !grants.usage.take_line(grants.clock.now()) {
            grants.metrics.record_dropped_log();
            return;
        }
        let message: String = message
            .chars()
            .take(LOG_LINE_MAX_CHARS)
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        if let Some(kept) = &grants.usage.kept {
            kept.lock().push(format!("{}: {message}", word(level)));
            return;
        }
        let (plugin, sha256, request_id) = (&*grants.plugin, &*grants.sha256, &*self.request_id);
        match level {
            log::Level::Error => tracing::error!(plugin, sha256, request_id, "{message}"),
            log::Level::Warn => tracing::warn!(plugin, sha256, request_id, "{message}"),
            log::Level::Info => tracing::info!(plugin, sha256, request_id, "{message}"),
            log::Level::Debug => tracing::debug!(plugin, sha256, request_id, "{message}"),
        }
    }

    fn enabled(&mut self, level: log::Level) -> bool {
        let listened = match level {
            _ if self.grants.usage.kept.is_some() => true,
            log::Level::Error => tracing::enabled!(tracing::Level::ERROR),
            log::Level::Warn => tracing::enabled!(tracing::Level::WARN),
            log::Level::Info => tracing::enabled!(tracing::Level::INFO),
            log::Level::Debug => tracing::enabled!(tracing::Level::DEBUG),
        };
        listened && self.grants.usage.has_line(self.grants.clock.now())
    }
}

/// Largest sum one call may add to a counter: more bytes than a body has.
const COUNT_MAX: u64 = 1 << 32;
/// Where a counter stops: the largest whole number that every reader of metrics agrees on.
const TOTAL_MAX: u64 = 1 << 53;

/// A counter after a count; none where it would pass [`TOTAL_MAX`], and then it stays. A negative
/// number, as a guest may write it, is the largest count: a counter only grows.
fn grown(value: u64, delta: u64) -> Option<u64> {
    let sum = value.checked_add(delta.min(COUNT_MAX));
    sum.filter(|sum| *sum <= TOTAL_MAX)
}

impl counters::Host for GuestState {
    fn add(&mut self, counter: u32, delta: u64) {
        if self.is_repetition {
            return;
        }
        match self.grants.declared.get(counter as usize) {
            Some(counter) => {
                let delta = delta.min(COUNT_MAX);
                let order = Ordering::Relaxed;
                let grown = |value| grown(value, delta);
                if counter.value.fetch_update(order, order, grown).is_ok() {
                    counter.series.add(delta);
                }
            }
            None => {
                self.grants.metrics.record_undeclared_counter();
                self.grants.usage.undeclared.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl tables::Host for GuestState {
    fn get(&mut self, table: u32, key: String) -> Option<Vec<u8>> {
        self.grants.attached.get(table as usize)?.get(&key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_grows_and_never_wraps() {
        assert_eq!(grown(7, 5), Some(12));
        let negative = (-5_i64).cast_unsigned();
        assert_eq!(grown(7, negative), Some(7 + COUNT_MAX));
        assert_eq!(grown(TOTAL_MAX - 5, 5), Some(TOTAL_MAX));
        assert_eq!(grown(TOTAL_MAX - 5, 6), None);
        assert_eq!(grown(TOTAL_MAX, negative), None);
    }

    #[test]
    fn lines_over_the_rate_are_dropped_and_counted_until_the_next_second() {
        let heard = GrantUsage::default();
        let taken = (0..LOG_LINES_PER_SECOND + 7)
            .filter(|_| heard.take_line(Millis(5_100)))
            .count() as u64;
        assert_eq!(taken, LOG_LINES_PER_SECOND);
        assert_eq!(heard.dropped.load(Ordering::Relaxed), 7);
        assert!(!heard.has_line(Millis(5_900)));
        assert!(heard.take_line(Millis(6_000)));
    }
}
