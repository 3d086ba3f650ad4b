//! Backoff after failures, of a node that was not reached or a model whose servers failed there.
//!
//! The delay doubles with each failure in a row up to a bound; then one request at a time probes.

use super::rule::FleetRule;
use crate::Millis;

/// Backoff state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubt {
    /// In a row.
    failures: u32,
    until: Millis,
}

impl Doubt {
    /// Returns whether the subject is skipped now.
    pub fn is_on(self, now: Millis) -> bool {
        now < self.until
    }

    /// Records a request sent there. During backoff this request is the probe, and others wait for
    /// its result.
    pub fn sent(&mut self, rule: &FleetRule, now: Millis) {
        if self.failures > 0 {
            self.until = now + rule.doubt(self.failures);
        }
    }

    pub fn failed(&mut self, rule: &FleetRule, now: Millis) {
        self.failures = self.failures.saturating_add(1);
        self.until = now + rule.doubt(self.failures);
    }

    /// Resets the backoff.
    pub fn clear(&mut self) {
        *self = Doubt::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_doubt_is_asked_once_in_a_while_until_it_answers() {
        let rule = FleetRule::default();
        let mut doubt = Doubt::default();
        doubt.failed(&rule, Millis(1_000));
        assert!(doubt.is_on(Millis(1_249)) && !doubt.is_on(Millis(1_250)));
        doubt.sent(&rule, Millis(1_250));
        assert!(doubt.is_on(Millis(1_251)), "one finds out for all");
        doubt.clear();
        assert!(!doubt.is_on(Millis(1_252)));
    }
}
