//! Routing policies: the order in which a request tries endpoints or sites; no choice is made here.
//!
//! The admission queue takes the first candidate of the ranking with a free permit. Integer arithmetic
//! only, so that a Wasm policy of the same rules agrees bit for bit. A policy ranks [`CANDIDATES_MAX`]
//! candidates at most; randomness comes from [`Hints::seed`].

mod affinity;
mod flow;
mod forced;
mod latency;
mod order;
mod random;
mod ranking;
mod settings;
mod values;

pub use order::Dice;
pub use ranking::{Ranking, check};
pub use settings::SettingProblem;
pub use values::{CANDIDATES_MAX, Candidate, Choice, Hints, WHOLE, site_number};

use affinity::Affinity;
use flow::ResourceFlow;
use forced::ForcedSite;
use latency::Latency;
use random::Random;
use serde_json::{Map, Value};

/// A policy with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Latency(Latency),
    Random(Random),
    ForcedSite(ForcedSite),
    ResourceFlow(ResourceFlow),
    Affinity(Affinity),
}

impl Policy {
    /// The names [`Policy::named`] knows.
    pub const NAMES: [&str; 5] = [
        "latency",
        "random",
        "forced-site",
        "resource-flow",
        "affinity",
    ];

    /// The policy of that name, if there is one, with `settings` over its defaults. Unknown keys and invalid
    /// values are problems.
    pub fn named(
        name: &str,
        settings: &Map<String, Value>,
    ) -> Option<Result<Policy, Vec<SettingProblem>>> {
        let kind = match name {
            "latency" => Latency::configure(settings).map(Kind::Latency),
            "random" => Random::configure(settings).map(Kind::Random),
            "forced-site" => ForcedSite::configure(settings).map(Kind::ForcedSite),
            "resource-flow" => ResourceFlow::configure(settings).map(Kind::ResourceFlow),
            "affinity" => Affinity::configure(settings).map(Kind::Affinity),
            _ => return None,
        };
        Some(kind.map(Policy))
    }

    /// Name of the policy.
    pub fn name(&self) -> &'static str {
        match self.0 {
            Kind::Latency(_) => "latency",
            Kind::Random(_) => "random",
            Kind::ForcedSite(_) => "forced-site",
            Kind::ResourceFlow(_) => "resource-flow",
            Kind::Affinity(_) => "affinity",
        }
    }

    /// Returns whether the ranking depends on the single request: its seed, adapter or prompt. A cached
    /// ranking of such a policy would send all requests to one endpoint.
    pub fn is_per_request(&self) -> bool {
        matches!(
            self.0,
            Kind::Random(_) | Kind::ResourceFlow(_) | Kind::Affinity(_)
        )
    }

    /// Ranks the candidates, best first. Missing ones are added by [`check`].
    pub fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice> {
        let candidates = &candidates[..candidates.len().min(CANDIDATES_MAX)];
        match &self.0 {
            Kind::Latency(policy) => policy.rank(hints, candidates),
            Kind::Random(policy) => policy.rank(hints, candidates),
            Kind::ForcedSite(policy) => policy.rank(hints, candidates),
            Kind::ResourceFlow(policy) => policy.rank(hints, candidates),
            Kind::Affinity(policy) => policy.rank(hints, candidates),
        }
    }
}

#[cfg(test)]
mod tests;
