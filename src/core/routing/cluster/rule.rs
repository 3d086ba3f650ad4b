//! Constants of cluster decisions: report ages, backoff, shares and distances.
//!
//! Defaults suit a gossip round of 200 to 500 ms. All spans are milliseconds unless their name says
//! otherwise.

use crate::Millis;

/// Full trust, in thousandths.
pub(super) const TRUST_FULL: u64 = 1000;

/// Trust in reports by age, and the cost of a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterRule {
    /// Age up to which a report is trusted fully: two rounds of gossip.
    pub fresh: Millis,
    /// Age from which a report is not trusted at all and its node is skipped: permits have turned
    /// over many times by then. Between the two ages trust falls linearly.
    pub stale: Millis,
    /// Time without a report after which a node is forgotten. Longer than any partition that should
    /// heal without a trace.
    pub forget_after: Millis,
    /// Time during which a node that refused a model is skipped for it, unless a newer report
    /// arrives: about one round of gossip longer than the report takes.
    pub refusal_valid_for: Millis,
    /// Initial backoff of a node after a failed forward.
    pub backoff_initial: Millis,
    /// Below the five seconds in which a healed cluster must be at full capacity.
    pub backoff_max: Millis,
    /// Period after which shares of scarce permits are assigned anew: about the time in which the
    /// report of a taken permit spreads.
    pub share_period: Millis,
    /// Cost of a forward beside the round trip, microseconds: a pooled connection and one more
    /// relaying process.
    pub forward_floor_us: u32,
    /// Sites whose round trips differ by less than this are equally far, microseconds.
    pub site_step_us: u32,
    /// Only nodes whose peers listener has responded count: it has shown a certificate, and gossip
    /// has not.
    pub proven_only: bool,
}

impl Default for ClusterRule {
    fn default() -> ClusterRule {
        ClusterRule {
            fresh: Millis(1_000),
            stale: Millis(5_000),
            forget_after: Millis::from_secs(60),
            refusal_valid_for: Millis(1_000),
            backoff_initial: Millis(250),
            backoff_max: Millis(2_000),
            share_period: Millis(500),
            forward_floor_us: 1_000,
            site_step_us: 50_000,
            proven_only: false,
        }
    }
}

impl ClusterRule {
    /// Returns the trust in a report of this age, in thousandths.
    pub(super) fn trust(&self, age: Millis) -> u64 {
        if age <= self.fresh {
            return TRUST_FULL;
        }
        let fading = self.stale.since(self.fresh).0.max(1);
        self.stale.since(age).0.saturating_mul(TRUST_FULL) / fading
    }

    /// Returns the backoff after so many failures in a row.
    pub(super) fn backoff(&self, failures: u32) -> Millis {
        let doublings = failures.saturating_sub(1).min(16);
        Millis(self.backoff_initial.0 << doublings).min(self.backoff_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn belief_is_whole_then_falls_evenly_to_nothing() {
        let rule = ClusterRule::default();
        let trust = |age| rule.trust(Millis(age));
        assert_eq!([trust(0), trust(1_000)], [1000, 1000]);
        assert_eq!([trust(2_000), trust(4_000)], [750, 250]);
        assert_eq!([trust(5_000), trust(90_000)], [0, 0]);
    }

    #[test]
    fn doubt_doubles_up_to_two_seconds() {
        let rule = ClusterRule::default();
        let doubts = [1, 2, 3, 4, 99].map(|failures| rule.backoff(failures).0);
        assert_eq!(doubts, [250, 500, 1_000, 2_000, 2_000]);
    }
}
