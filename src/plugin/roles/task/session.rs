//! A model's task for one request: input checked natively, payload and answer shaped, stream edited.
//!
//! Sends nothing. A request uses one revision from its first hook to its last; only a revision that fails
//! is replaced, and then for good. State between hooks is at most 4 KiB and lives here. Called by the
//! request pipeline at steps 7 and 11.

use std::cell::OnceCell;
use std::sync::Arc;

use bytes::Bytes;
use infergate_core::api::ApiDialect;
use infergate_core::billing::{MetricModes, MetricSource, Metrics};
use infergate_core::task::{BodyEdit, EventEdit, Rejection, StreamEvent};
use infergate_core::{AccountId, Refusal};

use crate::plugin::failure::Failure;
use crate::plugin::json::{Outline, outline};
use crate::plugin::roles::chain::FallbackChain;
use crate::plugin::roles::task::body::{
    JsonBody, TaskInput, TaskPayload, apply, are_events, check_input, is_binary, is_json_edit,
    offer, read, selected_fields, view_of, without_handler,
};
use crate::plugin::roles::traits::{FinishInput, PrepareInput, TaskHandler};
use crate::plugin::roles::validate_output;
use crate::plugin::runtime::call::Caller;
use crate::plugin::spec::OnFailure;
use crate::telemetry::event::PluginUse;
use crate::telemetry::off_the_worker;

/// Bytes of a model server's answer from which on it is shaped off the worker.
const LARGE_ANSWER_BYTES: usize = 64 * 1024;

/// The task of one request. Dropping it at any point is safe.
pub struct TaskSession {
    chain: Arc<FallbackChain<dyn TaskHandler>>,
    modes: Arc<MetricModes>,
    handles_openai: bool,
    /// The answer is a result of `/ai/run`, of which the output schema speaks.
    is_result: bool,
    account: AccountId,
    request_id: Arc<str>,
    /// Handler of this request; none once all have failed and bodies pass as they are.
    pinned: Option<Arc<dyn TaskHandler>>,
    /// The input, for another revision to begin anew when the pinned one fails at the answer.
    retained: Option<RetainedInput>,
    state: Vec<u8>,
    metrics: Metrics,
    uses: Vec<PluginUse>,
    /// A stream hook failed: the rest of the stream passes.
    stream_failed: bool,
}

struct RetainedInput {
    model: String,
    content_type: String,
    body: Bytes,
    is_read: bool,
    attributes: Vec<(String, String)>,
}

impl TaskSession {
    /// Begins the session of a request.
    pub(crate) fn new(
        chain: Arc<FallbackChain<dyn TaskHandler>>,
        modes: Arc<MetricModes>,
        handles_openai: bool,
        caller: Caller<'_>,
    ) -> TaskSession {
        let pinned = chain.first_available().cloned();
        TaskSession {
            chain,
            modes,
            handles_openai,
            is_result: true,
            account: caller.account.clone(),
            request_id: caller.request_id.into(),
            pinned,
            retained: None,
            state: Vec::new(),
            metrics: Metrics::default(),
            uses: Vec::new(),
            stream_failed: false,
        }
    }

    /// Checks the input against the schema, then calls the `prepare` hook where there is one.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`] and [`Refusal::Rejected`] are the client's; [`Refusal::PluginFailed`]
    /// when every handler of the chain failed.
    pub fn prepare(&mut self, input: TaskInput<'_>) -> Result<TaskPayload, Refusal> {
        let json = read(&input)?;
        let chain = Arc::clone(&self.chain);
        let prepared = offer(
            &chain,
            json.as_ref(),
            input.is_checked,
            |rules| match self.prepare_by(rules, &input, json.as_ref()) {
                Ok(payload) => Some(Ok((payload, Arc::clone(rules)))),
                Err(HookError::Refused(refusal)) => Some(Err(refusal)),
                Err(HookError::Failed) => None,
            },
        )?;
        match prepared {
            Some((payload, rules)) => {
                self.pin(&rules, input);
                Ok(payload)
            }
            None => {
                self.pinned = None;
                without_handler(&chain, input.body)
            }
        }
    }

    /// Selects the API of the answer; true when the hooks for answers apply to it.
    pub fn select_dialect(&mut self, dialect: ApiDialect) -> bool {
        self.is_result = dialect.rules().has_task_results();
        self.is_result || self.handles_openai
    }

    /// True when [`TaskSession::finish`] has work to do.
    pub fn shapes_answer(&self) -> bool {
        self.hooks().is_some_and(|active| active.finish)
    }

    /// True when [`TaskSession::push`] has work to do.
    pub fn shapes_events(&self) -> bool {
        self.hooks().is_some_and(|active| active.events) && !self.stream_failed
    }

    /// The result, from the model server's whole answer. Images and sounds pass untouched.
    ///
    /// # Errors
    /// [`Refusal::PluginFailed`] when every handler of the chain failed, [`Refusal::InvalidResponse`] where no plugin
    /// is among them; [`Refusal::Rejected`] when the
    /// task finds the input wrong only now.
    pub fn finish(
        &mut self,
        status: u16,
        content_type: &str,
        body: Bytes,
    ) -> Result<Bytes, Refusal> {
        let Some(first) = self.pinned.clone().filter(|_| self.shapes_answer()) else {
            return Ok(body);
        };
        if is_binary(content_type) {
            return Ok(body);
        }
        let answer = ServerResponse {
            status,
            content_type,
            json: OnceCell::new(),
            body,
        };
        off_the_worker(answer.body.len() >= LARGE_ANSWER_BYTES, || {
            self.finish_with(&first, answer)
        })
    }

    fn finish_with(
        &mut self,
        first: &Arc<dyn TaskHandler>,
        answer: ServerResponse<'_>,
    ) -> Result<Bytes, Refusal> {
        match self.finish_by(first, &answer) {
            Ok(result) => return Ok(result),
            Err(HookError::Refused(refusal)) => return Err(refusal),
            Err(HookError::Failed) => {}
        }
        self.finish_by_next(first, answer)
    }

    /// Transforms events of a stream; returns one result for each, in order.
    ///
    /// # Errors
    /// [`Refusal::PluginFailed`] when the hook failed and its policy is to cut the stream.
    pub fn push(&mut self, events: Vec<StreamEvent>) -> Result<Vec<EventEdit>, Refusal> {
        let passes = vec![EventEdit::Keep; events.len()];
        let Some(rules) = self.pinned.clone().filter(|_| self.shapes_events()) else {
            return Ok(passes);
        };
        let step = rules.push(self.caller(), &self.state, &events);
        let given = events.iter().map(|event| outline::is_json(&event.data));
        let step = step.ok().filter(|step| {
            let is_good = are_events(&step.events, given.map(Some));
            if !is_good {
                rules.report_invalid(self.caller(), "push", "json");
            }
            is_good
        });
        let Some(step) = step else {
            self.stream_failed = true;
            return self.failed_in_stream(passes);
        };
        self.record_use(&rules, "push");
        self.count(&step.metrics, MetricSource::Answered);
        self.state = step.state;
        Ok(step.events)
    }

    /// Ends the stream; `cut` when it broke off. Gives the events that go before the end mark.
    ///
    /// # Errors
    /// [`Refusal::PluginFailed`] when the hook failed and its policy is to cut the stream.
    pub fn close(&mut self, cut: bool) -> Result<Vec<EventEdit>, Refusal> {
        let Some(rules) = self.pinned.clone().filter(|_| self.shapes_events()) else {
            return Ok(Vec::new());
        };
        self.stream_failed = true;
        let Ok(step) = rules.close(self.caller(), &self.state, cut) else {
            return self.failed_in_stream(Vec::new());
        };
        if !are_events(&step.events, std::iter::repeat(None)) {
            rules.report_invalid(self.caller(), "close", "json");
            return self.failed_in_stream(Vec::new());
        }
        self.record_use(&rules, "close");
        self.count(&step.metrics, MetricSource::Answered);
        Ok(step.events)
    }

    /// Result of a stream one of whose hooks has failed.
    fn failed_in_stream(&self, passes: Vec<EventEdit>) -> Result<Vec<EventEdit>, Refusal> {
        match self.chain.on_failure {
            OnFailure::Passthrough | OnFailure::Builtin => Ok(passes),
            OnFailure::Closed | OnFailure::Cut => Err(Refusal::PluginFailed),
        }
    }

    /// Metrics of the task so far: of the input as [`MetricSource::Derived`], of the answer as
    /// [`MetricSource::Answered`].
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Plugins whose hooks were used so far.
    pub fn uses(&self) -> &[PluginUse] {
        &self.uses
    }

    fn prepare_by(
        &mut self,
        rules: &Arc<dyn TaskHandler>,
        input: &TaskInput<'_>,
        json: Option<&JsonBody<'_>>,
    ) -> Result<TaskPayload, HookError> {
        let description = rules.description();
        if !description.active.prepare {
            // What another revision made of it is no more.
            self.state.clear();
            self.metrics.clear();
            return Ok(TaskPayload::unchanged(input.body));
        }
        let outline = |is_needed: bool| {
            let outline = json.filter(|_| is_needed).map(JsonBody::outline);
            outline.transpose().map_err(HookError::Refused)
        };
        let fields = selected_fields(&description.wants, outline(!description.wants.is_empty())?);
        let prepare_input = PrepareInput {
            model: input.model,
            content_type: input.content_type,
            body: view_of(&description.wants, &fields, input.body),
            attributes: &input.attributes,
        };
        let prepared = rules
            .prepare(self.caller(), &prepare_input)
            .map_err(hook_error)?;
        // What came as JSON goes on as JSON.
        let is_good = json.is_none() || is_json_edit(&prepared.edit);
        let is_spliced = matches!(prepared.edit, BodyEdit::Set(_));
        let edited = match is_good {
            true => apply(prepared.edit, input.body, outline(is_spliced)?),
            false => Err("json"),
        };
        let edited = edited.map_err(|rule| self.report_invalid(rules, "prepare", rule))?;
        self.record_use(rules, "prepare");
        self.state = prepared.state;
        self.metrics.clear();
        self.count(&prepared.metrics, MetricSource::Derived);
        Ok(TaskPayload {
            changed: edited.is_some(),
            body: edited.unwrap_or_else(|| input.body.clone()),
            backend_path: prepared.backend_path,
        })
    }

    /// The request belongs to `rules` from now on.
    fn pin(&mut self, rules: &Arc<dyn TaskHandler>, input: TaskInput<'_>) {
        let is_last = self
            .chain
            .candidates()
            .last()
            .is_some_and(|last| Arc::ptr_eq(last, rules));
        if rules.description().active.finish && !is_last {
            self.retained = Some(RetainedInput {
                model: input.model.to_owned(),
                content_type: input.content_type.to_owned(),
                body: input.body.clone(),
                is_read: input.is_read,
                attributes: input.attributes,
            });
        }
        self.pinned = Some(Arc::clone(rules));
    }

    fn finish_by(
        &mut self,
        rules: &Arc<dyn TaskHandler>,
        answer: &ServerResponse<'_>,
    ) -> Result<Bytes, HookError> {
        let description = rules.description();
        if !description.active.finish {
            return Ok(answer.body.clone());
        }
        let fields = match description.wants.as_slice() {
            [] => Vec::new(),
            wants => selected_fields(wants, answer.json()),
        };
        let answered = FinishInput {
            status: answer.status,
            content_type: answer.content_type,
            body: view_of(&description.wants, &fields, &answer.body),
            state: &self.state,
        };
        let finished = rules.finish(self.caller(), &answered);
        let finished = finished.map_err(|failure| match failure {
            // The model server's body, not the client's.
            Failure::TooLarge { .. } => HookError::Failed,
            other => hook_error(other),
        })?;
        let known = answer.json.get().and_then(Option::as_ref);
        // A result is JSON, whatever the server's answer was.
        let edited = match is_json_edit(&finished.edit) {
            true => apply(finished.edit, &answer.body, known),
            false => Err("json"),
        };
        let edited = edited.map_err(|rule| self.report_invalid(rules, "finish", rule))?;
        if let (Some(body), Some(schema)) = (&edited, rules.output_schema())
            && self.is_result
            && !Outline::read(body.clone()).is_ok_and(|body| schema.check(&body).is_ok())
        {
            return Err(self.report_invalid(rules, "finish", "output-schema"));
        }
        self.record_use(rules, "finish");
        self.count(&finished.metrics, MetricSource::Answered);
        Ok(edited.unwrap_or_else(|| answer.body.clone()))
    }

    /// The pinned one failed at the answer: the next in line begins anew with the kept input, so that
    /// the answer is still one revision's own.
    fn finish_by_next(
        &mut self,
        failed: &Arc<dyn TaskHandler>,
        answer: ServerResponse<'_>,
    ) -> Result<Bytes, Refusal> {
        let line = Arc::clone(&self.chain);
        let after = line
            .candidates()
            .skip_while(|rules| !Arc::ptr_eq(rules, failed))
            .skip(1);
        if let Some(kept) = self.retained.take() {
            for rules in after {
                let input = TaskInput {
                    model: &kept.model,
                    content_type: &kept.content_type,
                    body: &kept.body,
                    is_read: kept.is_read,
                    is_checked: false,
                    attributes: kept.attributes.clone(),
                };
                let json = read(&input).ok().flatten();
                if check_input(&**rules, json.as_ref()).is_ok()
                    && self.prepare_by(rules, &input, json.as_ref()).is_ok()
                    && let Ok(result) = self.finish_by(rules, &answer)
                {
                    self.pinned = Some(Arc::clone(rules));
                    return Ok(result);
                }
            }
        }
        match self.chain.on_failure {
            OnFailure::Passthrough => Ok(answer.body),
            OnFailure::Builtin if self.chain.is_native() => Err(Refusal::InvalidResponse),
            OnFailure::Builtin | OnFailure::Closed | OnFailure::Cut => Err(Refusal::PluginFailed),
        }
    }

    fn hooks(&self) -> Option<infergate_core::task::TaskHooks> {
        self.pinned.as_ref().map(|rules| rules.description().active)
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            account: &self.account,
            request_id: &self.request_id,
        }
    }

    fn report_invalid(
        &self,
        rules: &Arc<dyn TaskHandler>,
        hook: &'static str,
        rule: &'static str,
    ) -> HookError {
        rules.report_invalid(self.caller(), hook, rule);
        HookError::Failed
    }

    fn record_use(&mut self, rules: &Arc<dyn TaskHandler>, hook: &'static str) {
        crate::plugin::runtime::identity::record_use(&mut self.uses, rules.identity(), hook);
    }

    fn count(&mut self, metrics: &[(String, f64)], source: MetricSource) {
        self.metrics.report_all(metrics, source, &self.modes);
    }
}

struct ServerResponse<'a> {
    status: u16,
    content_type: &'a str,
    body: Bytes,
    /// Made on first use: an answer may have tens of MiB.
    json: OnceCell<Option<Outline>>,
}

impl ServerResponse<'_> {
    fn json(&self) -> Option<&Outline> {
        let json = self
            .json
            .get_or_init(|| Outline::read(self.body.clone()).ok());
        json.as_ref()
    }
}

/// Reason why a handler gave no result.
enum HookError {
    /// The client's fault; no other handler is tried.
    Refused(Refusal),
    /// The handler's fault.
    Failed,
}

fn hook_error(failure: Failure) -> HookError {
    match failure {
        Failure::Rejected(rejection) => {
            let Rejection {
                status,
                message,
                pointer,
                ..
            } = validate_output::sanitize(rejection);
            HookError::Refused(Refusal::Rejected {
                status,
                pointer: pointer.unwrap_or_default(),
                message,
            })
        }
        Failure::TooLarge { .. } | Failure::TooSlow { .. } => {
            HookError::Refused(Refusal::BodyTooLarge)
        }
        _ => HookError::Failed,
    }
}
