//! Traits, one a role: calls that the gateway makes of a task, a formula and a policy, built in or Wasm.
//!
//! Built-in ones and Wasm revisions implement the same traits, so that no plugin means built-in
//! behaviour and either can stand in for the other. Answers have passed the checks of `check.rs`.

use std::sync::Arc;

use infergate_core::billing::{Charge, UsageReport};
use infergate_core::model::Tariff;
use infergate_core::routing::{Candidate, Choice, Hints};
use infergate_core::task::{
    BodyField, FinishResult, PrepareResult, StreamEvent, StreamResult, TaskDescription,
};

use crate::plugin::failure::Failure;
use crate::plugin::json::schema::Schema;
use crate::plugin::runtime::call::Caller;
use crate::telemetry::event::PluginIdentity;

/// Part of a body that a task selects.
#[derive(Clone, Copy, Debug)]
pub enum BodyView<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// Selected places that exist.
    Fields(&'a [BodyField]),
}

impl BodyView<'_> {
    /// Bytes that are handed over.
    pub fn bytes(&self) -> usize {
        match self {
            BodyView::Whole(body) => body.len(),
            BodyView::Fields(fields) => {
                let bytes = fields
                    .iter()
                    .map(|field| field.pointer.len() + field.json.len());
                bytes.sum()
            }
        }
    }
}

/// Input of `prepare`.
#[derive(Clone, Copy, Debug)]
pub struct PrepareInput<'a> {
    /// The model's id.
    pub model: &'a str,
    /// Type of the body.
    pub content_type: &'a str,
    /// The body.
    pub body: BodyView<'a>,
    /// Facts added by the gateway.
    pub attributes: &'a [(String, String)],
}

/// Input of `finish`.
#[derive(Clone, Copy, Debug)]
pub struct FinishInput<'a> {
    /// HTTP status of the server.
    pub status: u16,
    /// Type of its body.
    pub content_type: &'a str,
    /// Its body.
    pub body: BodyView<'a>,
    /// State that `prepare` returned.
    pub state: &'a [u8],
}

/// A task. Hooks that [`TaskDescription::active`] leaves out are not called.
pub trait TaskHandler: Send + Sync {
    /// Description of the task.
    fn description(&self) -> &TaskDescription;
    /// Its input schema, compiled.
    fn input_schema(&self) -> Option<&Schema>;
    /// Its output schema, compiled.
    fn output_schema(&self) -> Option<&Schema>;
    /// Identity in events; none for a built-in one.
    fn identity(&self) -> Option<&Arc<PluginIdentity>>;
    /// True when a call would be made now; false while the breaker is open and no probe is due.
    fn is_available(&self) -> bool;
    /// Counts that the revision was skipped because its breaker is open.
    fn count_skipped(&self);
    /// Reports an answer to `hook` that could not be used: it breaks `rule`.
    fn report_invalid(&self, caller: Caller<'_>, hook: &'static str, rule: &'static str);
    /// Shapes the payload.
    fn prepare(
        &self,
        caller: Caller<'_>,
        input: &PrepareInput<'_>,
    ) -> Result<PrepareResult, Failure>;
    /// Shapes the answer.
    fn finish(
        &self,
        caller: Caller<'_>,
        answered: &FinishInput<'_>,
    ) -> Result<FinishResult, Failure>;
    /// Shapes events.
    fn push(
        &self,
        caller: Caller<'_>,
        state: &[u8],
        events: &[StreamEvent],
    ) -> Result<StreamResult, Failure>;
    /// Ends the events.
    fn close(&self, caller: Caller<'_>, state: &[u8], cut: bool) -> Result<StreamResult, Failure>;
}

/// A billing formula.
pub trait BillingFormula: Send + Sync {
    /// Identity in events; none for the built-in one.
    fn identity(&self) -> Option<&Arc<PluginIdentity>>;
    /// The charge of a request.
    fn price(
        &self,
        caller: Caller<'_>,
        tariff: &Tariff,
        report: &UsageReport<'_>,
    ) -> Result<Charge, Failure>;
    /// Metrics by its own count; none where it does not count.
    fn estimate(
        &self,
        caller: Caller<'_>,
        input: &[u8],
        output: &[u8],
    ) -> Result<Vec<(String, f64)>, Failure>;
}

/// A routing policy.
pub trait RoutingPolicy: Send + Sync {
    /// Identity in events; none for a built-in one.
    fn identity(&self) -> Option<&Arc<PluginIdentity>>;
    /// The candidates in order, each once.
    fn rank(
        &self,
        caller: Option<Caller<'_>>,
        hints: &Hints,
        candidates: &[Candidate],
    ) -> Result<Vec<Choice>, Failure>;
}
