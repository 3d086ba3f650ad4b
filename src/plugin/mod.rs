//! Wasm plugin host: tasks, billing formulas and routing policies of a model as sandboxed components.
//! Plugins are replaced under load, and a failing one has a fallback.
//!
//! Does not decide what a request gets when all fail, nor when a plugin is called: the request pipeline does.
//! Three lifetimes: the process ([`Host`]: engine, ticker, pool, cache), a revision (one component with one
//! set of settings, immutable), a call (a store with limits and a deadline). Three roles: a task shapes input
//! and answer, a formula prices, a policy orders. Each is asked through a slot of a [`PluginSnapshot`], and
//! each has a built-in one.

mod admit;
mod billing;
mod bindings;
mod body;
mod breaker;
mod builtin;
mod cache;
mod capture;
mod check;
mod compile;
pub mod encode;
mod engine;
mod expansion;
mod failure;
pub mod file;
mod fixture;
mod grants;
mod guest;
mod hook;
mod host;
mod json;
mod judge;
mod line;
mod plugins;
mod pointer;
mod repeat;
mod resolve;
mod revision;
mod routing;
mod rules;
mod schema;
mod shape;
mod side;
mod spec;
mod store;
mod tables;
mod tally;
mod task;
mod ticker;
mod values;
mod warm;
pub mod wit;
pub mod workshop;

#[cfg(test)]
mod tests;

use infergate_core::AccountId;

pub use billing::{BillingSlot, PriceResult};
pub use breaker::BreakerState;
pub use capture::{
    CAPTURE_MAX_CALLS, CAPTURE_MAX_SECS, Capture, CaptureBatch, CaptureStartError, Captures,
};
pub use compile::{COMPILER_COMMAND, CompileWait, compiler};
pub use failure::Failure;
pub use grants::CounterValue;
pub use host::{Host, HostCounts, HostError, HostSettings};
pub use json::{Outline, bytes_max as index_bytes_max};
pub use plugins::{PluginProblem, PluginSnapshot, PluginState};
pub use routing::{PolicyRanking, RoutingMode, RoutingSlot};
pub use schema::{Schema, SchemaError, SchemaViolation};
pub use shape::ComponentType;
pub use spec::{
    Bounds, InstancePolicy, OnFailure, OpenaiAnswers, PluginLimits, PluginSpec, RankMode, World,
};
pub use tables::COUNTERS_MAX;
pub use task::{TaskInput, TaskPayload, TaskSession, TaskSlot};

use crate::telemetry::event::PluginUse;
use rules::RevisionIdentity;

/// Account and request of a call.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Guests are never shared between accounts.
    pub account: &'a AccountId,
    /// For the log lines of the plugin.
    pub request_id: &'a str,
}

/// Records the use of a plugin, once a hook.
fn record_use(uses: &mut Vec<PluginUse>, identity: Option<&RevisionIdentity>, hook: &'static str) {
    let Some(RevisionIdentity {
        name,
        sha256,
        config,
    }) = identity
    else {
        return;
    };
    if uses
        .iter()
        .any(|known| known.hook == hook && known.sha256 == *sha256)
    {
        return;
    }
    uses.push(PluginUse {
        name: name.clone(),
        sha256: sha256.clone(),
        config: config.clone(),
        hook,
    });
}
