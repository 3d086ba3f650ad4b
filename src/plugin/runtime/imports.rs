//! Imports of a guest: log, counters, tables. No other import exists.
//!
//! Grants nothing by itself: a linker offers an interface only when the configuration names it. Guests have
//! no clock, chance, network, file or environment. Log lines have a rate and a length, counters are declared,
//! tables are read-only and one version for a revision's whole life.

use std::sync::atomic::Ordering;

use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

use crate::plugin::runtime::bindings::host::{counters, log, tables};
use crate::plugin::runtime::grants::Grants;
use crate::plugin::runtime::store::GuestState;

/// Characters of a line.
pub const LOG_LINE_MAX_CHARS: usize = 2048;

/// A linker that offers what was granted, and nothing else.
///
/// # Errors
/// Never for these interfaces; wasmtime's error for a name defined twice.
pub fn linker(grants: &Grants, engine: &Engine) -> wasmtime::Result<Linker<GuestState>> {
    let mut linker = Linker::new(engine);
    if grants.log {
        log::add_to_linker::<GuestState, HasSelf<GuestState>>(&mut linker, |guest| guest)?;
    }
    if grants.counters {
        counters::add_to_linker::<GuestState, HasSelf<GuestState>>(&mut linker, |guest| guest)?;
    }
    if grants.tables {
        tables::add_to_linker::<GuestState, HasSelf<GuestState>>(&mut linker, |guest| guest)?;
    }
    Ok(linker)
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
/// Largest value of a counter: the largest whole number that every reader of metrics agrees on.
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
}
