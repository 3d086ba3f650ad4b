//! `affinity`: where the adapter is loaded and the prompt's beginning is cached, unless that place is
//! overloaded.
//!
//! Overloaded as in consistent hashing with bounded loads (<https://arxiv.org/abs/1608.01350>): with
//! this request, a candidate may have at most `load_percent` of its fair share of all load, by permits,
//! rounded up. Order: not overloaded, the adapter, the prefix in steps of `prefix_step`, the least load.

use std::cmp::Reverse;

use infergate_sdk::rank::{WHOLE, by_steps, fitness, is_fit};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings};

struct Affinity {
    load_percent: u32,
    prefix_step: u32,
}

impl Plugin for Affinity {
    fn configure(settings: &mut Settings) -> Affinity {
        Affinity {
            load_percent: settings.whole("load_percent", 100..=1000, 125),
            prefix_step: settings.whole("prefix_step", 1..=u32::from(WHOLE), 125),
        }
    }
}

/// Load and permits of all that are fit.
struct Total {
    load: u64,
    permits: u64,
}

/// Permits in use and requests that wait.
fn load(candidate: &Candidate) -> u64 {
    let used = candidate
        .permits_total
        .saturating_sub(candidate.permits_free);
    u64::from(used) + u64::from(candidate.queue_len)
}

impl Affinity {
    /// `load + 1 > ceil(load_percent / 100 × (all load + 1) × permits / all permits)`
    fn is_overloaded(&self, candidate: &Candidate, total: &Total) -> bool {
        let share = u128::from(self.load_percent)
            * u128::from(total.load + 1)
            * u128::from(candidate.permits_total);
        let bound = share.div_ceil(100 * u128::from(total.permits.max(1)));
        u128::from(load(candidate) + 1) > bound
    }
}

impl Routing for Affinity {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        let fit = || candidates.iter().filter(is_fit);
        let total = Total {
            load: fit().map(load).sum(),
            permits: fit().map(|c| u64::from(c.permits_total)).sum(),
        };
        Ok(by_steps(&candidates, |c| {
            let is_overloaded = self.is_overloaded(c, &total);
            // Among the overloaded, affinity would only make it worse.
            let (lora, prefix) = match (is_overloaded, hints.lora) {
                (true, _) => (0, 0),
                (false, None) => (0, c.prefix_affinity),
                (false, Some(_)) => (c.lora_affinity, c.prefix_affinity),
            };
            let prefix = u32::from(prefix.min(WHOLE)) / self.prefix_step;
            let best_first = (Reverse(lora.min(WHOLE)), Reverse(prefix));
            let permille = load(c) * 1000 / u64::from(c.permits_total.max(1));
            ((fitness(c), c.tier, is_overloaded, best_first), permille)
        }))
    }
}

infergate_sdk::export_routing!(Affinity);
