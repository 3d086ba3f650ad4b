//! `latency`: the nearest candidates first, in steps. Known in the source as the latency-sensitive
//! routing of its step-based router.
//!
//! A cost is the round trip plus, for a stream, the time to the first token, else that of a whole
//! answer. Costs count from the cheapest fit candidate's; who was never measured is in the first step,
//! because otherwise it would never be. Settings: `step_ms`, `steps`, `measure`.

use infergate_sdk::rank::{by_steps, fitness, is_fit};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings};

struct Latency {
    step_us: u64,
    last_step: u64,
    measure: Measure,
}

/// Which of the measured times is the candidate's own.
#[derive(Clone, Copy)]
enum Measure {
    Auto,
    FirstToken,
    Answer,
    RoundTrip,
}

impl Plugin for Latency {
    fn configure(settings: &mut Settings) -> Latency {
        const MEASURES: [Measure; 4] = [
            Measure::Auto,
            Measure::FirstToken,
            Measure::Answer,
            Measure::RoundTrip,
        ];
        Latency {
            step_us: u64::from(settings.whole("step_ms", 1..=60_000, 50)) * 1000,
            last_step: u64::from(settings.whole("steps", 1..=64, 8)) - 1,
            measure: MEASURES[settings.word("measure", &["auto", "ttft", "latency", "rtt"])],
        }
    }
}

impl Latency {
    /// Microseconds; none when nothing was measured.
    fn cost_us(&self, hints: &Hints, candidate: &Candidate) -> Option<u64> {
        let own = match (self.measure, hints.streaming) {
            (Measure::RoundTrip, _) => 0,
            (Measure::FirstToken, _) | (Measure::Auto, true) => candidate.ttft_us,
            (Measure::Answer, _) | (Measure::Auto, false) => candidate.latency_us,
        };
        match u64::from(candidate.rtt_us) + u64::from(own) {
            0 => None,
            cost => Some(cost),
        }
    }
}

impl Routing for Latency {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        let fit = candidates.iter().filter(is_fit);
        let best = fit.filter_map(|c| self.cost_us(&hints, c)).min();
        let best = best.unwrap_or(0);
        Ok(by_steps(&candidates, |c| {
            let slower = self
                .cost_us(&hints, c)
                .map_or(0, |cost| cost.saturating_sub(best));
            let step = (slower / self.step_us).min(self.last_step);
            ((fitness(c), c.tier, step), slower)
        }))
    }
}

infergate_sdk::export_routing!(Latency);
