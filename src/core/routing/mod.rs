//! Where a request may go: which endpoints are fit for traffic, which other node has room, whether
//! a failed try may be made again, and which model is asked next.
//!
//! It does not choose among the fit endpoints of this node nor count their permits (that is
//! `admission`), and it sends nothing: the shell tells it what it saw and acts on the answers.

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
