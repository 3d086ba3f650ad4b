//! `affinity`: where the adapter is loaded and the prompt's beginning is cached, unless that place
//! is overloaded.
//!
//! Overload is defined as in consistent hashing with bounded loads (<https://arxiv.org/abs/1608.01350>).
//! With this request, a candidate may have at most `load_percent` of its fair share of all load, in
//! proportion to permits, rounded up. So affinity cannot send all requests to one endpoint, and a single
//! endpoint is never overloaded. Load is permits in use plus requests that wait.
//!
//! The order, within a class of fitness and a tier: not overloaded, then the adapter, then the prefix in
//! steps of `prefix_step`, then the least load. A prefix cached under another adapter is useless. Without
//! any affinity all candidates are in one step, and the admission queue levels their load.
//!
//! Settings: `load_percent` (100 to 1,000; 125), `prefix_step` (1 to 1,000 thousandths of the
//! prompt's first blocks; 125: two blocks of sixteen).

use alloc::vec::Vec;

use super::order::{fitness, in_order, is_fit};
use super::{Candidate, Choice, Hints, RankCandidates, SettingsReader, WHOLE};

/// The policy `affinity` with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    load_percent: u32,
    prefix_step: u32,
}

impl Affinity {
    /// Reads the settings.
    pub fn configure(settings: &mut impl SettingsReader) -> Affinity {
        Affinity {
            load_percent: settings.number("load_percent", (100, 1000), 125),
            prefix_step: settings.number("prefix_step", (1, u32::from(WHOLE)), 125),
        }
    }

    /// Returns whether this request would exceed the bound of the candidate:
    /// `load + 1 > ceil(load_percent / 100 × (all load + 1) × permits / all permits)`.
    fn is_overloaded(&self, candidate: &Candidate, total: LoadSum) -> bool {
        let share = u128::from(self.load_percent)
            * u128::from(total.used + 1)
            * u128::from(candidate.permits_total);
        let bound = share.div_ceil(u128::from(total.permits.max(1)) * 100);
        u128::from(load(candidate) + 1) > bound
    }
}

impl RankCandidates for Affinity {
    fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice> {
        let fit = candidates.iter().filter(is_fit);
        let total = fit.fold(LoadSum::default(), |total, c| total.with(c));
        let keyed = candidates.iter().map(|c| {
            let lora = if hints.lora.is_some() {
                c.lora_affinity.min(WHOLE)
            } else {
                0
            };
            let prefix = u32::from(c.prefix_affinity.min(WHOLE)) / self.prefix_step;
            let overloaded = self.is_overloaded(c, total);
            // Among the overloaded, affinity would only make it worse.
            let (lora, prefix) = if overloaded { (0, 0) } else { (lora, prefix) };
            let step = (
                fitness(c),
                c.tier,
                overloaded,
                WHOLE - lora,
                u32::MAX - prefix,
            );
            (step, load_permille(c), c.id)
        });
        in_order(keyed.collect())
    }
}

/// Sums over the candidates that are fit.
#[derive(Clone, Copy, Default)]
struct LoadSum {
    used: u64,
    permits: u64,
}

impl LoadSum {
    fn with(self, candidate: &Candidate) -> LoadSum {
        LoadSum {
            used: self.used + load(candidate),
            permits: self.permits + u64::from(candidate.permits_total),
        }
    }
}

fn load(candidate: &Candidate) -> u64 {
    let used = candidate
        .permits_total
        .saturating_sub(candidate.permits_free);
    u64::from(used) + u64::from(candidate.queue_len)
}

fn load_permille(candidate: &Candidate) -> u64 {
    load(candidate) * 1000 / u64::from(candidate.permits_total.max(1))
}
