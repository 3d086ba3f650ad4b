//! Routing decisions: usable endpoints, nodes with capacity, retries and model fallback.
//!
//! Does not choose among the usable endpoints of this node nor count their permits (that is
//! `admission`), and sends nothing: the shell reports observations and acts on the results.

pub mod affinity;
pub mod breaker;
pub mod budget;
mod capacity_retry;
pub mod cluster;
pub mod connection_reuse;
pub mod evidence;
pub mod fallback;
pub mod hops;
mod left_work;
mod load;
pub mod policy;
pub mod verdict;
mod window;

pub use breaker::{
    Ejector, EndpointSignal, FailureCause, Health, HealthChange, Observation, REFUSED,
    REFUSED_CHECK_INTERVAL, UsabilityChange,
};
pub use budget::{ATTEMPTS_MAX, AttemptBudget, AttemptFailure, RetryBudget, RetryTarget};
pub use capacity_retry::{CapacityAnswer, CapacityRetries, FAILED_DEPENDENCY, ends_before};
pub use cluster::{ClusterRule, ClusterView};
pub use evidence::{AccountKey, Evidence};
pub use fallback::{FallbackCandidate, FallbackReason, FallbackState, first_candidate};
pub use hops::Hops;
pub use left_work::{CancelReply, LeftWork, LeftWorkStep, SlotReport};
pub use load::{EndpointLoad, ServerLoad};
pub use policy::{BuiltinPolicy, Candidate, Choice, Hints};
pub use verdict::{PathOwner, ResponseVerdict};
