//! State that requests share: the configuration snapshot, accounts, quota, budgets and drain.
//!
//! Not the request pipeline: nothing here knows a request's steps. A [`ConfigSnapshot`] is swapped whole by
//! a reload; everything else outlives reloads.

mod accounts;
mod backlog;
mod body_budget;
mod body_checks;
mod cors;
mod digests;
mod drain;
pub mod header_filter;
mod headers;
mod key_memory;
mod limits;
mod presented_key;
mod quota;
mod rate_lines;
mod readiness;
mod runtime;
mod shared;
mod snapshot;
mod timeouts;
mod trace_recording;

pub use accounts::{Account, AccountGuard};
pub use backlog::{Backlog, BacklogBudget, ReaderPace};
pub use body_budget::{BodyBudget, BodyShare};
pub use body_checks::{BodyCheckSlots, LARGE_BYTES};
pub use cors::{Cors, PageOrigin};
pub use drain::{Drain, InFlight, UnsentAnswers};
pub use headers::{Headers, header_name_error};
pub use limits::Limits;
pub use presented_key::has_key;
pub use quota::{QuotaGuard, QuotaStore};
pub use rate_lines::RateLines;
pub use readiness::Readiness;
pub use runtime::{RuntimeFlags, RuntimeSwitches};
pub use shared::Shared;
pub use snapshot::{ConfigSnapshot, SnapshotParts};
pub use timeouts::Timeouts;
pub use trace_recording::{TracingRuntime, trace_parent};
