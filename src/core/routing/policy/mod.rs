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

pub use order::SplitMix64;
pub use ranking::{Ranking, complete_ranking};
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
pub struct BuiltinPolicy(PolicyKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PolicyKind {
    Latency(Latency),
    Random(Random),
    ForcedSite(ForcedSite),
    ResourceFlow(ResourceFlow),
    Affinity(Affinity),
}

impl BuiltinPolicy {
    /// The names [`BuiltinPolicy::named`] knows.
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
    ) -> Option<Result<BuiltinPolicy, Vec<SettingProblem>>> {
        let kind = match name {
            "latency" => Latency::configure(settings).map(PolicyKind::Latency),
            "random" => Random::configure(settings).map(PolicyKind::Random),
            "forced-site" => ForcedSite::configure(settings).map(PolicyKind::ForcedSite),
            "resource-flow" => ResourceFlow::configure(settings).map(PolicyKind::ResourceFlow),
            "affinity" => Affinity::configure(settings).map(PolicyKind::Affinity),
            _ => return None,
        };
        Some(kind.map(BuiltinPolicy))
    }

    /// Name of the policy.
    pub fn name(&self) -> &'static str {
        match self.0 {
            PolicyKind::Latency(_) => "latency",
            PolicyKind::Random(_) => "random",
            PolicyKind::ForcedSite(_) => "forced-site",
            PolicyKind::ResourceFlow(_) => "resource-flow",
            PolicyKind::Affinity(_) => "affinity",
        }
    }

    /// Returns whether the ranking depends on the single request: its seed, adapter or prompt. A cached
    /// ranking of such a policy would send all requests to one endpoint.
    pub fn is_per_request(&self) -> bool {
        matches!(
            self.0,
            PolicyKind::Random(_) | PolicyKind::ResourceFlow(_) | PolicyKind::Affinity(_)
        )
    }

    /// Ranks the candidates, best first. Missing ones are added by [`complete_ranking`].
    pub fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice> {
        let candidates = &candidates[..candidates.len().min(CANDIDATES_MAX)];
        match &self.0 {
            PolicyKind::Latency(policy) => policy.rank(hints, candidates),
            PolicyKind::Random(policy) => policy.rank(hints, candidates),
            PolicyKind::ForcedSite(policy) => policy.rank(hints, candidates),
            PolicyKind::ResourceFlow(policy) => policy.rank(hints, candidates),
            PolicyKind::Affinity(policy) => policy.rank(hints, candidates),
        }
    }
}

#[cfg(test)]
mod tests;
