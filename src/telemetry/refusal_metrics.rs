//! Counts of errors by code and of refusals by reason, whose counters are found by the code and not by their labels.
//!
//! A load that is turned away costs the least there is: a label is looked up once for each code. Codes that meet in one
//! place are counted as well, by a look-up each.

use std::sync::OnceLock;

use prometheus::{IntCounter, IntCounterVec};

/// Places of codes that are known: more than a gateway meets in its life.
const PLACES: usize = 64;

/// Counters of one model.
pub(super) struct RefusalMetrics {
    errors: IntCounterVec,
    refusals: IntCounterVec,
    known_errors: [OnceLock<(u32, IntCounter)>; PLACES],
    known_refusals: [OnceLock<(&'static str, IntCounter)>; PLACES],
}

impl RefusalMetrics {
    pub fn new(errors: IntCounterVec, refusals: IntCounterVec) -> RefusalMetrics {
        RefusalMetrics {
            errors,
            refusals,
            known_errors: [const { OnceLock::new() }; PLACES],
            known_refusals: [const { OnceLock::new() }; PLACES],
        }
    }

    /// Counts an error.
    pub fn record_error(&self, code: u32) {
        let labeled = || {
            let mut digits = itoa::Buffer::new();
            self.errors.with_label_values(&[digits.format(code)])
        };
        let (known, counter) = self.known_errors[place(code)].get_or_init(|| (code, labeled()));
        match *known == code {
            true => counter.inc(),
            false => labeled().inc(),
        }
    }

    /// Counts a refusal with a code, where it has one.
    pub fn record_refusal(&self, code: Option<u32>, reason: &'static str) {
        let labeled = || self.refusals.with_label_values(&[reason]);
        let (known, counter) =
            self.known_refusals[place(code.unwrap_or(0))].get_or_init(|| (reason, labeled()));
        match std::ptr::eq(*known, reason) || *known == reason {
            true => counter.inc(),
            false => labeled().inc(),
        }
    }
}

fn place(code: u32) -> usize {
    code as usize % PLACES
}

#[cfg(test)]
mod tests {
    use prometheus::Opts;

    use super::*;

    fn counters(name: &str) -> IntCounterVec {
        IntCounterVec::new(Opts::new(name, name), &["label"]).unwrap()
    }

    #[test]
    fn codes_and_reasons_that_meet_in_one_place_are_each_counted() {
        let (errors, refusals) = (counters("errors"), counters("refusals"));
        let metrics = RefusalMetrics::new(errors.clone(), refusals.clone());
        let other = 3040 + PLACES as u32;
        for _ in 0..2 {
            metrics.record_error(3040);
            metrics.record_error(other);
            metrics.record_refusal(Some(3040), "busy");
            metrics.record_refusal(Some(3040), "queue_full");
            metrics.record_refusal(None, "unknown");
        }
        for label in ["3040", &other.to_string()] {
            assert_eq!(errors.with_label_values(&[label]).get(), 2);
        }
        for label in ["busy", "queue_full", "unknown"] {
            assert_eq!(refusals.with_label_values(&[label]).get(), 2);
        }
    }
}
