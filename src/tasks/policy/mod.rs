//! Routing policies: the order in which a request tries endpoints or sites; no choice is made here.
//!
//! Integer arithmetic only, so that a ranking is the same on every machine and in WebAssembly. A policy ranks
//! [`CANDIDATES_MAX`] candidates at most; randomness comes from [`Hints::seed`]. The gateway completes a ranking
//! before it is used.

mod affinity;
mod flow;
mod forced;
mod latency;
mod order;
mod random;
mod settings;
mod splitmix;
mod values;

pub use affinity::Affinity;
pub use flow::ResourceFlow;
pub use forced::ForcedSite;
pub use latency::Latency;
pub use order::in_order;
pub use random::Random;
pub use settings::SettingsReader;
pub use splitmix::SplitMix64;
pub use values::{
    CANDIDATES_MAX, Candidate, Choice, Health, Hints, RankCandidates, WHOLE, site_number,
};

#[cfg(test)]
mod tests;
