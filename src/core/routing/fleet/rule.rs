//! The numbers the fleet is judged by.
//!
//! Defaults suit a gossip round of 200 to 500 ms. All spans are milliseconds unless their name says
//! otherwise.

use crate::Millis;

/// What is believed whole, in thousandths.
pub(super) const WHOLE: u64 = 1000;

/// How views age, and what forwarding costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetRule {
    /// A view not older than this is believed whole: two rounds of gossip.
    pub fresh: Millis,
    /// A view as old as this is not believed at all, and its node not asked: what it says about
    /// permits has turned over many times. Between the two belief falls evenly.
    pub stale: Millis,
    /// A node that was not heard of for so long is forgotten. Longer than any partition that
    /// should heal without a trace.
    pub forgotten: Millis,
    /// After a refusal a node is not asked for that model for so long, unless it tells something
    /// newer: about one round of gossip more than the news takes.
    pub full_for: Millis,
    /// After a forward that failed the node is not asked for so long; it doubles with each failure
    /// in a row up to `doubted_max`, then one request at a time finds out.
    pub doubted: Millis,
    /// Below the five seconds in which a healed fleet must be at full capacity.
    pub doubted_max: Millis,
    /// Parts of scarce permits are drawn anew after so long: about the time in which news of a
    /// permit that was taken gets around.
    pub drawn_every: Millis,
    /// What a forward costs beside the round trip, microseconds: a connection from the pool and
    /// one more process that relays.
    pub forward_floor_us: u32,
    /// Sites whose round trips differ by less than this are equally far, microseconds.
    pub site_step_us: u32,
    /// Only nodes whose peers listener has answered count: it has shown a certificate, and gossip has not.
    pub proven_only: bool,
}

impl Default for FleetRule {
    fn default() -> FleetRule {
        FleetRule {
            fresh: Millis(1_000),
            stale: Millis(5_000),
            forgotten: Millis::from_secs(60),
            full_for: Millis(1_000),
            doubted: Millis(250),
            doubted_max: Millis(2_000),
            drawn_every: Millis(500),
            forward_floor_us: 1_000,
            site_step_us: 50_000,
            proven_only: false,
        }
    }
}

impl FleetRule {
    /// How far a view of this age is believed, in thousandths.
    pub(super) fn trust(&self, age: Millis) -> u64 {
        if age <= self.fresh {
            return WHOLE;
        }
        let fading = self.stale.since(self.fresh).0.max(1);
        self.stale.since(age).0.saturating_mul(WHOLE) / fading
    }

    /// How long a node is not asked after so many failures in a row.
    pub(super) fn doubt(&self, failures: u32) -> Millis {
        let doublings = failures.saturating_sub(1).min(16);
        Millis(self.doubted.0 << doublings).min(self.doubted_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn belief_is_whole_then_falls_evenly_to_nothing() {
        let rule = FleetRule::default();
        let trust = |age| rule.trust(Millis(age));
        assert_eq!([trust(0), trust(1_000)], [1000, 1000]);
        assert_eq!([trust(2_000), trust(4_000)], [750, 250]);
        assert_eq!([trust(5_000), trust(90_000)], [0, 0]);
    }

    #[test]
    fn doubt_doubles_up_to_two_seconds() {
        let rule = FleetRule::default();
        let doubts = [1, 2, 3, 4, 99].map(|failures| rule.doubt(failures).0);
        assert_eq!(doubts, [250, 500, 1_000, 2_000, 2_000]);
    }
}
