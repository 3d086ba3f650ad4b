//! A model's task for one request: input checked natively, payload and answer shaped, stream edited.
//!
//! It does not send anything. One request asks one revision from its first hook to its last; only a
//! revision that fails is left, and then for good. State between hooks is at most 4 KiB and lives
//! here. Called by the walk at steps 7 and 11.

use std::cell::OnceCell;
use std::sync::Arc;

use bytes::Bytes;
use infergate_core::billing::{MetricModes, Metrics, Source};
use infergate_core::model::{BackendKind, ModelSpec};
use infergate_core::task::{Edit, Event, Field, Out, Rejection};
use infergate_core::{AccountId, Refusal};
use serde_json::Value;

use super::failure::Failure;
use super::line::Line;
use super::rules::{Answered, Asked, Seen, TaskRules};
use super::spec::OnFailure;
use super::{Caller, check, pointer};
use crate::telemetry::event::PluginUse;

/// What the task of one model is, in one configuration generation.
#[derive(Clone)]
pub struct TaskSlot {
    line: Arc<Line<dyn TaskRules>>,
    modes: Arc<MetricModes>,
    /// The configuration names a task, or the server speaks no protocol of its own. Other servers'
    /// adapters know what their bodies look like.
    applies: bool,
}

/// What a client sent.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    /// The model's id.
    pub model: &'a str,
    /// Its type; JSON is checked against the schema, other bodies are opaque.
    pub content_type: &'a str,
    /// The body.
    pub body: &'a Bytes,
    /// Facts the gateway vouches for: `face`, `stream`, `lora`.
    pub attributes: Vec<(String, String)>,
}

/// What the model server is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The body.
    pub body: Bytes,
    /// It is not the client's body any more.
    pub changed: bool,
    /// Path under the endpoint's base URL, when the task names one.
    pub backend_path: Option<String>,
}

impl TaskSlot {
    pub(super) fn new(line: Arc<Line<dyn TaskRules>>, model: &ModelSpec) -> TaskSlot {
        TaskSlot {
            line,
            modes: Arc::new(model.metrics.clone()),
            applies: model.plugins.task.is_some() || model.backend == BackendKind::Http,
        }
    }

    /// False when there is nothing to check and nothing to call: skip it.
    pub fn is_active(&self) -> bool {
        self.applies
            && self.line.answerers().any(|rules| {
                let active = rules.description().active;
                rules.input_schema().is_some() || active.prepare || active.finish || active.events
            })
    }

    /// JSON Schema of the input, as its author wrote it.
    pub fn input_schema(&self) -> Option<Arc<str>> {
        let first = first_asked(&self.line)?;
        first.input_schema().map(|schema| Arc::clone(schema.text()))
    }

    /// JSON Schema of the result.
    pub fn output_schema(&self) -> Option<Arc<str>> {
        let first = first_asked(&self.line)?;
        first
            .output_schema()
            .map(|schema| Arc::clone(schema.text()))
    }

    /// Begins one request.
    pub fn begin(&self, caller: Caller<'_>) -> TaskSession {
        TaskSession {
            line: Arc::clone(&self.line),
            modes: Arc::clone(&self.modes),
            account: caller.account.clone(),
            request_id: caller.request_id.into(),
            pinned: first_asked(&self.line).cloned(),
            kept: None,
            state: Vec::new(),
            metrics: Metrics::default(),
            uses: Vec::new(),
            gave_up: false,
        }
    }
}

/// The task of one request. Dropping it at any point is safe.
pub struct TaskSession {
    line: Arc<Line<dyn TaskRules>>,
    modes: Arc<MetricModes>,
    account: AccountId,
    request_id: Arc<str>,
    /// Who answers this request; none once all have failed and bodies pass as they are.
    pinned: Option<Arc<dyn TaskRules>>,
    /// The input, for another revision to begin anew when the pinned one fails at the answer.
    kept: Option<Kept>,
    state: Vec<u8>,
    metrics: Metrics,
    uses: Vec<PluginUse>,
    /// A stream hook failed: the rest of the stream passes.
    gave_up: bool,
}

struct Kept {
    model: String,
    content_type: String,
    body: Bytes,
    attributes: Vec<(String, String)>,
}

impl TaskSession {
    /// Checks the input against the schema, then asks the `prepare` hook where there is one.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`] and [`Refusal::Rejected`] are the client's; [`Refusal::PluginFailed`]
    /// when nobody who may answer could.
    pub fn prepare(&mut self, input: Input<'_>) -> Result<Payload, Refusal> {
        let json = parse(&input)?;
        let line = Arc::clone(&self.line);
        for rules in line.answerers() {
            // Not even its schema counts: it would be pinned, and fail at the answer.
            if !rules.is_asked() {
                rules.passed_over();
                continue;
            }
            match self.prepare_by(rules, &input, json.as_ref()) {
                Ok(payload) => {
                    self.pin(rules, input);
                    return Ok(payload);
                }
                Err(Stop::Refused(refusal)) => return Err(refusal),
                Err(Stop::Failed) => {}
            }
        }
        self.pinned = None;
        match self.line.on_failure {
            OnFailure::Passthrough => Ok(unchanged(input.body)),
            OnFailure::Builtin | OnFailure::Closed | OnFailure::Cut => Err(Refusal::PluginFailed),
        }
    }

    /// Whether [`TaskSession::finish`] has something to do.
    pub fn shapes_answer(&self) -> bool {
        self.hooks().is_some_and(|active| active.finish)
    }

    /// Whether [`TaskSession::push`] has something to do.
    pub fn shapes_events(&self) -> bool {
        self.hooks().is_some_and(|active| active.events) && !self.gave_up
    }

    /// The result, from the model server's whole answer. Images and sounds pass untouched.
    ///
    /// # Errors
    /// [`Refusal::PluginFailed`] when nobody who may answer could; [`Refusal::Rejected`] when the
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
        let answer = Answer {
            status,
            content_type,
            json: OnceCell::new(),
            body,
        };
        match self.finish_by(&first, &answer) {
            Ok(result) => return Ok(result),
            Err(Stop::Refused(refusal)) => return Err(refusal),
            Err(Stop::Failed) => {}
        }
        self.finish_by_next(&first, answer)
    }

    /// What becomes of some events of a stream; one word for each, in order.
    ///
    /// # Errors
    /// [`Refusal::PluginFailed`] when the hook failed and its policy is to cut the stream.
    pub fn push(&mut self, events: Vec<Event>) -> Result<Vec<Out>, Refusal> {
        let passes = vec![Out::Keep; events.len()];
        let Some(rules) = self.pinned.clone().filter(|_| self.shapes_events()) else {
            return Ok(passes);
        };
        let step = rules.push(self.caller(), &self.state, &events);
        match step {
            Ok(step) => {
                self.say(&rules, "push");
                self.count(&step.metrics, Source::Answered);
                self.state = step.state;
                Ok(step.events)
            }
            Err(_) => {
                self.gave_up = true;
                match self.line.on_failure {
                    OnFailure::Passthrough | OnFailure::Builtin => Ok(passes),
                    OnFailure::Closed | OnFailure::Cut => Err(Refusal::PluginFailed),
                }
            }
        }
    }

    /// Ends the stream; `cut` when it broke off. Gives the events that go before the end mark.
    pub fn close(&mut self, cut: bool) -> Vec<Out> {
        let Some(rules) = self.pinned.clone().filter(|_| self.shapes_events()) else {
            return Vec::new();
        };
        self.gave_up = true;
        let Ok(step) = rules.close(self.caller(), &self.state, cut) else {
            return Vec::new();
        };
        self.say(&rules, "close");
        self.count(&step.metrics, Source::Answered);
        step.events
    }

    /// What the task has told so far: of the input as [`Source::Derived`], of the answer as
    /// [`Source::Answered`].
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Plugins that had a say so far.
    pub fn uses(&self) -> &[PluginUse] {
        &self.uses
    }

    fn prepare_by(
        &mut self,
        rules: &Arc<dyn TaskRules>,
        input: &Input<'_>,
        json: Option<&Value>,
    ) -> Result<Payload, Stop> {
        if let (Some(schema), Some(json)) = (rules.input_schema(), json) {
            schema.check(json).map_err(|misfit| {
                Stop::Refused(Refusal::BadRequest {
                    pointer: misfit.pointer,
                    message: misfit.message,
                })
            })?;
        }
        let description = rules.description();
        if !description.active.prepare {
            // What another revision made of it is no more.
            self.state.clear();
            self.metrics.clear();
            return Ok(unchanged(input.body));
        }
        let fields = seen_fields(&description.wants, json);
        let asked = Asked {
            model: input.model,
            content_type: input.content_type,
            body: seen(&description.wants, &fields, input.body),
            attributes: &input.attributes,
        };
        let prepared = rules.prepare(self.caller(), &asked).map_err(stop)?;
        let edited = apply(prepared.edit, input.body, json);
        let edited = edited.map_err(|rule| self.lied(rules, "prepare", rule))?;
        self.say(rules, "prepare");
        self.state = prepared.state;
        self.metrics.clear();
        self.count(&prepared.metrics, Source::Derived);
        Ok(Payload {
            changed: edited.is_some(),
            body: edited.unwrap_or_else(|| input.body.clone()),
            backend_path: prepared.backend_path,
        })
    }

    /// The request belongs to `rules` from now on.
    fn pin(&mut self, rules: &Arc<dyn TaskRules>, input: Input<'_>) {
        let is_last = self
            .line
            .answerers()
            .last()
            .is_some_and(|last| Arc::ptr_eq(last, rules));
        if rules.description().active.finish && !is_last {
            self.kept = Some(Kept {
                model: input.model.to_owned(),
                content_type: input.content_type.to_owned(),
                body: input.body.clone(),
                attributes: input.attributes,
            });
        }
        self.pinned = Some(Arc::clone(rules));
    }

    fn finish_by(
        &mut self,
        rules: &Arc<dyn TaskRules>,
        answer: &Answer<'_>,
    ) -> Result<Bytes, Stop> {
        let description = rules.description();
        if !description.active.finish {
            return Ok(answer.body.clone());
        }
        let fields = match description.wants.as_slice() {
            [] => Vec::new(),
            wants => seen_fields(wants, answer.json()),
        };
        let answered = Answered {
            status: answer.status,
            content_type: answer.content_type,
            body: seen(&description.wants, &fields, &answer.body),
            state: &self.state,
        };
        let finished = rules.finish(self.caller(), &answered);
        let finished = finished.map_err(|failure| match failure {
            // The model server's body, not the client's.
            Failure::TooLarge { .. } => Stop::Failed,
            other => stop(other),
        })?;
        let known = answer.json.get().and_then(Option::as_ref);
        let edited = apply(finished.edit, &answer.body, known);
        let edited = edited.map_err(|rule| self.lied(rules, "finish", rule))?;
        if let (Some(body), Some(schema)) = (&edited, rules.output_schema())
            && !serde_json::from_slice(body).is_ok_and(|value| schema.check(&value).is_ok())
        {
            return Err(self.lied(rules, "finish", "output-schema"));
        }
        self.say(rules, "finish");
        self.count(&finished.metrics, Source::Answered);
        Ok(edited.unwrap_or_else(|| answer.body.clone()))
    }

    /// The pinned one failed at the answer: the next in line begins anew with the kept input, so that
    /// the answer is still one revision's own.
    fn finish_by_next(
        &mut self,
        failed: &Arc<dyn TaskRules>,
        answer: Answer<'_>,
    ) -> Result<Bytes, Refusal> {
        let line = Arc::clone(&self.line);
        let after = line
            .answerers()
            .skip_while(|rules| !Arc::ptr_eq(rules, failed))
            .skip(1);
        if let Some(kept) = self.kept.take() {
            for rules in after {
                let input = Input {
                    model: &kept.model,
                    content_type: &kept.content_type,
                    body: &kept.body,
                    attributes: kept.attributes.clone(),
                };
                let json = parse(&input).ok().flatten();
                if self.prepare_by(rules, &input, json.as_ref()).is_ok()
                    && let Ok(result) = self.finish_by(rules, &answer)
                {
                    self.pinned = Some(Arc::clone(rules));
                    return Ok(result);
                }
            }
        }
        match self.line.on_failure {
            OnFailure::Passthrough => Ok(answer.body),
            OnFailure::Builtin | OnFailure::Closed | OnFailure::Cut => Err(Refusal::PluginFailed),
        }
    }

    fn hooks(&self) -> Option<infergate_core::task::Hooks> {
        self.pinned.as_ref().map(|rules| rules.description().active)
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            account: &self.account,
            request_id: &self.request_id,
        }
    }

    fn lied(&self, rules: &Arc<dyn TaskRules>, hook: &'static str, rule: &'static str) -> Stop {
        rules.lied(self.caller(), hook, rule);
        Stop::Failed
    }

    fn say(&mut self, rules: &Arc<dyn TaskRules>, hook: &'static str) {
        super::note(&mut self.uses, rules.identity(), hook);
    }

    fn count(&mut self, metrics: &[(String, f64)], source: Source) {
        self.metrics.report_all(metrics, source, &self.modes);
    }
}

/// Who answers now: a revision whose breaker is open has no say in anything. When nobody may be
/// asked it is the first, whose failure the policy is about.
fn first_asked(line: &Line<dyn TaskRules>) -> Option<&Arc<dyn TaskRules>> {
    let asked = line.answerers().find(|rules| rules.is_asked());
    asked.or_else(|| line.answerers().next())
}

struct Answer<'a> {
    status: u16,
    content_type: &'a str,
    body: Bytes,
    /// Made when somebody needs it: an answer may have tens of MiB.
    json: OnceCell<Option<Value>>,
}

impl Answer<'_> {
    fn json(&self) -> Option<&Value> {
        let json = self
            .json
            .get_or_init(|| serde_json::from_slice(&self.body).ok());
        json.as_ref()
    }
}

/// Why one answerer gave nothing.
enum Stop {
    /// The client is wrong; nobody else is asked.
    Refused(Refusal),
    /// The answerer is.
    Failed,
}

fn stop(failure: Failure) -> Stop {
    match failure {
        Failure::Rejected(rejection) => {
            let Rejection {
                status,
                message,
                pointer,
                ..
            } = check::tame(rejection);
            Stop::Refused(Refusal::Rejected {
                status,
                pointer: pointer.unwrap_or_default(),
                message,
            })
        }
        Failure::TooLarge { .. } => Stop::Refused(Refusal::BodyTooLarge),
        _ => Stop::Failed,
    }
}

/// The JSON of a JSON body; none of an opaque one.
fn parse(input: &Input<'_>) -> Result<Option<Value>, Refusal> {
    if !is_json(input.content_type) {
        return Ok(None);
    }
    serde_json::from_slice(input.body)
        .map(Some)
        .map_err(|error| Refusal::BadRequest {
            pointer: String::new(),
            message: format!("the body is not JSON: {error}"),
        })
}

fn unchanged(body: &Bytes) -> Payload {
    Payload {
        body: body.clone(),
        changed: false,
        backend_path: None,
    }
}

fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// A body without a type is JSON, as the faces take it.
fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type);
    essence.is_empty()
        || essence.eq_ignore_ascii_case("application/json")
        || essence.to_ascii_lowercase().ends_with("+json")
}

/// Images and sounds: no task has anything to say about their bytes.
fn is_binary(content_type: &str) -> bool {
    let essence = essence(content_type).to_ascii_lowercase();
    ["image/", "audio/", "video/"]
        .iter()
        .any(|kind| essence.starts_with(kind))
        || essence == "application/octet-stream"
}

fn seen_fields(wants: &[String], json: Option<&Value>) -> Vec<Field> {
    json.map_or_else(Vec::new, |json| pointer::pick(json, wants))
}

fn seen<'a>(wants: &[String], fields: &'a [Field], body: &'a Bytes) -> Seen<'a> {
    if wants.is_empty() {
        Seen::Whole(body)
    } else {
        Seen::Fields(fields)
    }
}

/// The edited body; none where it is kept.
fn apply(edit: Edit, body: &Bytes, json: Option<&Value>) -> Result<Option<Bytes>, &'static str> {
    match edit {
        Edit::Keep => Ok(None),
        Edit::Replace(body) => Ok(Some(body.into())),
        Edit::Set(fields) => {
            let mut root = match json {
                Some(json) => json.clone(),
                None => serde_json::from_slice(body).map_err(|_| "edit-body")?,
            };
            pointer::set_all(&mut root, &fields)?;
            Ok(Some(root.to_string().into()))
        }
    }
}
