//! Task slot of a model: its handlers in order, and the session that a request begins with it.
//!
//! Calls nothing itself; `session.rs` does. A request that no hook looks at is checked without a session.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::billing::MetricModes;
use infergate_core::model::{ModelSpec, Payload};

use crate::plugin::json::fast;
use crate::plugin::json::schema::Schema;
use crate::plugin::roles::chain::FallbackChain;
use crate::plugin::roles::task::body::{TaskInput, TaskPayload, offer, read, without_handler};
use crate::plugin::roles::task::session::TaskSession;
use crate::plugin::roles::traits::TaskHandler;
use crate::plugin::runtime::call::Caller;
use crate::plugin::spec::OpenaiAnswers;

/// Largest body that is looked at on a worker, bytes. To skip its texts takes a tenth of a millisecond.
const AT_ONCE_BYTES_MAX: usize = 2 << 20;
/// Steps of a look on a worker: values and short names, at most half a millisecond of them.
const AT_ONCE_STEPS_MAX: u64 = 30_000;

/// Task of one model, in one configuration generation.
#[derive(Clone)]
pub struct TaskSlot {
    chain: Arc<FallbackChain<dyn TaskHandler>>,
    modes: Arc<MetricModes>,
    /// There is something to check or to call. The configuration names a task, or the server speaks no
    /// protocol of its own. Other servers' adapters know what their bodies look like.
    is_active: bool,
    has_hooks: bool,
    /// The hooks for answers know those of the OpenAI API.
    handles_openai: bool,
}

impl TaskSlot {
    pub(crate) fn new(line: Arc<FallbackChain<dyn TaskHandler>>, model: &ModelSpec) -> TaskSlot {
        let applies = model.plugins.task.is_some() || model.backend.payload() == Payload::Task;
        let has_hooks = line.candidates().any(|rules| {
            let active = rules.description().active;
            active.prepare || active.finish || active.events
        });
        let has_schema = line
            .candidates()
            .any(|rules| rules.input_schema().is_some());
        TaskSlot {
            is_active: applies && (has_hooks || has_schema),
            has_hooks,
            chain: line,
            modes: Arc::new(model.metrics.clone()),
            handles_openai: false,
        }
    }

    /// The same task, with the configuration's choice for answers of the OpenAI API.
    pub(crate) fn for_openai(self, answers: Option<OpenaiAnswers>) -> TaskSlot {
        TaskSlot {
            handles_openai: answers == Some(OpenaiAnswers::Shape),
            ..self
        }
    }

    /// False when there is nothing to check and nothing to call: skip it.
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// True when a hook of a handler may be called: a request needs a session then.
    pub fn has_hooks(&self) -> bool {
        self.has_hooks
    }

    /// Checks the input of a task without hooks. The payload is the body as it came.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`] is the client's; [`Refusal::PluginFailed`] when no handler is available.
    pub fn check(&self, input: &TaskInput<'_>) -> Result<TaskPayload, Refusal> {
        let json = read(input)?;
        let passes = offer(&self.chain, json.as_ref(), input.is_checked, |_| {
            Some(Ok(TaskPayload::unchanged(input.body)))
        })?;
        passes.map_or_else(|| without_handler(&self.chain, input.body), Ok)
    }

    /// Returns whether the schema in force accepts a JSON body, as far as that is found in no more time than a
    /// worker has. False where a hook or a second schema is to look at the body.
    pub fn passes_at_once(&self, body: &[u8]) -> bool {
        let in_force = self.chain.candidates().next();
        let Some(rules) = in_force.filter(|rules| rules.is_available()) else {
            return false;
        };
        if rules.description().active.prepare || body.len() > AT_ONCE_BYTES_MAX {
            return false;
        }
        match rules.input_schema() {
            Some(schema) => !schema.is_heavy() && schema.accepts_within(body, AT_ONCE_STEPS_MAX),
            None => fast::INDEXABLE.accepts_within(body, AT_ONCE_STEPS_MAX),
        }
    }

    /// True when even a small body takes so long to check that it should leave its worker.
    pub fn is_heavy(&self) -> bool {
        let mut schemas = self
            .chain
            .candidates()
            .filter_map(|rules| rules.input_schema());
        schemas.any(Schema::is_heavy)
    }

    /// JSON Schema of the input, as its author wrote it.
    pub fn input_schema(&self) -> Option<Arc<str>> {
        let first = self.chain.candidates().next()?;
        first.input_schema().map(|schema| Arc::clone(schema.text()))
    }

    /// Members of the input that are files in base64: a URL in their place is none.
    pub fn encoded_members(&self) -> Arc<[Box<str>]> {
        let first = self.chain.candidates().next();
        let schema = first.and_then(|rules| rules.input_schema());
        schema.map_or_else(Arc::default, |schema| Arc::clone(schema.encoded()))
    }

    /// JSON Schema of the result.
    pub fn output_schema(&self) -> Option<Arc<str>> {
        let first = self.chain.first_available()?;
        first
            .output_schema()
            .map(|schema| Arc::clone(schema.text()))
    }

    /// Begins one request.
    pub fn begin(&self, caller: Caller<'_>) -> TaskSession {
        TaskSession::new(
            Arc::clone(&self.chain),
            Arc::clone(&self.modes),
            self.handles_openai,
            caller,
        )
    }
}
