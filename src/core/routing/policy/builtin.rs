//! The built-in policies: a name and settings make one.

use infergate_tasks::policy::{
    Affinity, CANDIDATES_MAX, Candidate, Choice, ForcedSite, Hints, Latency, Random,
    RankCandidates, ResourceFlow,
};
use serde_json::{Map, Value};

use super::settings::{PolicySettings, SettingProblem};

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
        let mut settings = PolicySettings::of(settings);
        let kind = match name {
            "latency" => PolicyKind::Latency(Latency::configure(&mut settings)),
            "random" => PolicyKind::Random(Random::configure(&mut settings)),
            "forced-site" => PolicyKind::ForcedSite(ForcedSite::configure(&mut settings)),
            "resource-flow" => PolicyKind::ResourceFlow(ResourceFlow::configure(&mut settings)),
            "affinity" => PolicyKind::Affinity(Affinity::configure(&mut settings)),
            _ => return None,
        };
        Some(settings.finish(BuiltinPolicy(kind)))
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

    /// Ranks the candidates, best first. Missing ones are added by
    /// [`complete_ranking`](super::complete_ranking).
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
