//! Backoff after failures, of a node that was not reached or a model whose servers failed there.
//!
//! The delay doubles with each failure in a row up to a bound; then one request at a time probes.

use super::rule::ClusterRule;
use crate::Millis;

/// Backoff state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FailureBackoff {
    /// In a row.
    failures: u32,
    until: Millis,
}

impl FailureBackoff {
    /// Returns whether the subject is skipped now.
    pub fn is_active(self, now: Millis) -> bool {
        now < self.until
    }

    /// Records a request sent there. During backoff this request is the probe, and others wait for
    /// its result.
    pub fn record_sent(&mut self, rule: &ClusterRule, now: Millis) {
        if self.failures > 0 {
            self.until = now + rule.backoff(self.failures);
        }
    }

    pub fn record_failure(&mut self, rule: &ClusterRule, now: Millis) {
        self.failures = self.failures.saturating_add(1);
        self.until = now + rule.backoff(self.failures);
    }

    /// Resets the backoff.
    pub fn clear(&mut self) {
        *self = FailureBackoff::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_doubt_is_asked_once_in_a_while_until_it_answers() {
        let rule = ClusterRule::default();
        let mut doubt = FailureBackoff::default();
        doubt.record_failure(&rule, Millis(1_000));
        assert!(doubt.is_active(Millis(1_249)) && !doubt.is_active(Millis(1_250)));
        doubt.record_sent(&rule, Millis(1_250));
        assert!(doubt.is_active(Millis(1_251)), "one finds out for all");
        doubt.clear();
        assert!(!doubt.is_active(Millis(1_252)));
    }
}
