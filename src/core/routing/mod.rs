//! Routing decisions: usable endpoints, nodes with capacity, retries and model fallback.
//!
//! Does not choose among the usable endpoints of this node nor count their permits (that is
//! `admission`), and sends nothing: the shell reports observations and acts on the results.

pub mod affinity;
pub mod breaker;
pub mod budget;
pub mod evidence;
pub mod fleet;
pub mod hops;
pub mod ladder;
mod load;
pub mod policy;
pub mod reuse;
pub mod verdict;
mod window;

pub use breaker::{Change, Ejector, FailureCause, Health, HealthChange, Observation, Seen};
pub use budget::{Failure, RetryBudget, RetryTarget, TRIES_MAX, Tries};
pub use evidence::{AccountKey, Evidence};
pub use fleet::{Fleet, FleetRule};
pub use hops::Hops;
pub use ladder::{Descent, Missed, Rung};
pub use load::Load;
pub use policy::{Candidate, Choice, Hints, Policy, Ranking};
pub use verdict::{PathOwner, Verdict};
