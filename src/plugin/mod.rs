//! Wasm plugin host: tasks, billing formulas and routing policies of a model as sandboxed components.
//! Plugins are replaced under load, and a failing one has a fallback.
//!
//! Does not decide what a request gets when all fail, nor when a plugin is called: the request pipeline does.
//! Three layers, each of which uses those before it. `runtime` runs the instances of a component. `roles`
//! turns calls of a task, a formula or a policy into calls of instances and validates their answers.
//! `loading` goes from a component file to a snapshot. Beside them stand values that all three use: the
//! configuration of a plugin (`spec`), failures (`failure`) and JSON bodies (`json`).
//!
//! Three lifetimes: the process ([`Host`]: engine, ticker, pool, cache), a revision (one component with one
//! set of settings, immutable), a call (a store with limits and a deadline). The request pipeline sees slots of
//! a [`PluginSnapshot`], each with a built-in fallback.

pub(crate) mod failure;
pub(crate) mod json;
pub(crate) mod loading;
pub(crate) mod roles;
pub(crate) mod runtime;
pub(crate) mod spec;
pub mod wit;

#[cfg(test)]
pub(crate) mod tests;

pub use json::schema::Schema;
pub use json::{Outline, bytes_max as index_bytes_max};
pub use loading::compile::{COMPILER_COMMAND, CompileWait, compiler};
pub use loading::component_type::ComponentType;
pub use loading::grants::COUNTERS_MAX;
pub use loading::host::{Host, HostCounts, HostError, HostSettings};
pub use loading::snapshot::{PluginProblem, PluginSnapshot, PluginState};
pub use roles::billing::slot::BillingSlot;
pub use roles::routing::slot::{RoutingMode, RoutingSlot};
pub use roles::task::body::{TaskInput, TaskPayload};
pub use roles::task::session::TaskSession;
pub use roles::task::slot::TaskSlot;
#[cfg(test)]
pub use roles::{billing::slot::PriceResult, routing::slot::PolicyRanking};
pub use runtime::breaker::BreakerState;
pub use runtime::call::Caller;
pub use runtime::capture::{CAPTURE_MAX_SECS, Capture, CaptureBatch, CaptureStartError, Captures};
#[cfg(test)]
pub use spec::{InstancePolicy, RankMode};
pub use spec::{OnFailure, PluginLimits, PluginSpec, World, is_secret_setting};
