//! `latency`: the nearest candidates first, in steps of `step_ms`. Known in the source as the
//! latency-sensitive routing of its step-based router.
//!
//! The cost of a candidate is its round trip plus, for a stream, the time to its first token, else
//! the time of a whole response. Costs count from the cheapest fit candidate's, so that a step means
//! "this much slower than the best". A candidate that was never measured is in the first step:
//! otherwise it would never be. Within a class of fitness and a tier.
//!
//! Settings: `step_ms` (1 to 60,000; 50: less is not felt), `steps` (1 to 64; 8: the last one takes
//! all that is slower), `measure` (`auto`, `ttft`, `latency`, `rtt`).

use alloc::vec::Vec;

use super::order::{fitness, in_order, is_fit};
use super::{Candidate, Choice, Hints, RankCandidates, SettingsReader};

/// The policy `latency` with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    step_us: u64,
    steps: u64,
    measure: usize,
}

const MEASURES: [&str; 4] = ["auto", "ttft", "latency", "rtt"];

impl Latency {
    /// Reads the settings.
    pub fn configure(settings: &mut impl SettingsReader) -> Latency {
        Latency {
            step_us: u64::from(settings.number("step_ms", (1, 60_000), 50)) * 1000,
            steps: u64::from(settings.number("steps", (1, 64), 8)),
            measure: settings.word("measure", &MEASURES),
        }
    }

    /// Microseconds; none when nothing was measured.
    fn cost_us(&self, hints: &Hints, candidate: &Candidate) -> Option<u64> {
        let own = match MEASURES[self.measure] {
            "rtt" => 0,
            "ttft" => candidate.ttft_us,
            "latency" => candidate.latency_us,
            _ if hints.streaming => candidate.ttft_us,
            _ => candidate.latency_us,
        };
        let cost = u64::from(candidate.rtt_us) + u64::from(own);
        (cost > 0).then_some(cost)
    }
}

impl RankCandidates for Latency {
    fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice> {
        let cost = |c: &Candidate| self.cost_us(hints, c);
        let best = candidates.iter().filter(is_fit).filter_map(cost).min();
        let best = best.unwrap_or(0);
        let keyed = candidates.iter().map(|c| {
            let cost = cost(c).unwrap_or(best);
            let slower = cost.saturating_sub(best);
            let step = (slower / self.step_us).min(self.steps - 1);
            ((fitness(c), c.tier, step), slower, c.id)
        });
        in_order(keyed.collect())
    }
}
