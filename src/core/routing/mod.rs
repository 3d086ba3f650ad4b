//! Where a request may go: which endpoints are fit for traffic, whether a failed try may be made
//! again, and which model is asked next.
//!
//! It does not choose among fit endpoints nor count permits (that is `admission`), and it sends
//! nothing: the shell tells it what it saw and acts on the answers.

pub mod affinity;
pub mod breaker;
pub mod budget;
pub mod ladder;
mod load;
pub mod policy;
mod window;

pub use breaker::{Change, Ejector, Health, Seen};
pub use budget::{Failure, RetryBudget, TRIES_MAX};
pub use ladder::{Descent, Missed, Rung};
pub use load::Load;
pub use policy::{Candidate, Choice, Hints, Policy, Ranking};
