//! The worlds `task-schema` and `task-schema-streaming`.
//!
//! Does not validate schemas nor edit bodies; the session does.

use std::sync::Arc;

use infergate_core::task::{
    BodyEdit, BodyField, EventEdit, FinishResult, PrepareResult, Rejection, StreamEvent,
    StreamResult, TaskDescription, TaskHooks,
};

use crate::plugin::failure::Failure;
use crate::plugin::json::schema::Schema;
use crate::plugin::roles::captured_args;
use crate::plugin::roles::guest::{ABSENT, broken, validated};
use crate::plugin::roles::traits::{BodyView, FinishInput, PrepareInput, TaskHandler};
use crate::plugin::roles::validate_output;
use crate::plugin::runtime::bindings::{task as wit, task_stream as wit_stream};
use crate::plugin::runtime::call::Caller;
use crate::plugin::runtime::call::HookCall;
use crate::plugin::runtime::revision::Revision;
use crate::plugin::runtime::store::{CallError, GuestInstance};
use crate::telemetry::event::PluginIdentity;

/// Calls `describe` of a guest, under the deadline it was armed with.
pub fn describe(instance: &mut GuestInstance) -> Result<TaskDescription, Box<CallError>> {
    let GuestInstance { store, exports, .. } = instance;
    let Some(task) = &exports.task else {
        return Ok(TaskDescription::default());
    };
    let returned = task
        .infergate_plugin_task()
        .call_describe(&mut *store)
        .map_err(|error| CallError::of(&error, store))?;
    let is_streaming = exports.stream.is_some();
    let description = TaskDescription {
        slug: returned.slug,
        input_schema: returned.input_schema,
        output_schema: returned.output_schema,
        wants: returned.wants,
        active: TaskHooks {
            prepare: returned.active.contains(wit::Hooks::PREPARE),
            finish: returned.active.contains(wit::Hooks::FINISH),
            events: returned.active.contains(wit::Hooks::EVENTS) && is_streaming,
        },
    };
    let verdict = validate_output::description(&description);
    validated(description, verdict).map_err(|failure| {
        CallError::without_trace(failure, instance.store.data().limits.memory_bytes)
    })
}

impl TaskHandler for Revision {
    fn description(&self) -> &TaskDescription {
        &self.described.description
    }

    fn input_schema(&self) -> Option<&Schema> {
        self.described.input.as_ref()
    }

    fn output_schema(&self) -> Option<&Schema> {
        self.described.output.as_ref()
    }

    fn identity(&self) -> Option<&Arc<PluginIdentity>> {
        Some(&self.parts.identity)
    }

    fn is_available(&self) -> bool {
        Revision::is_available(self)
    }

    fn count_skipped(&self) {
        Revision::count_skipped(self, self.hook("prepare"));
    }

    fn report_invalid(&self, caller: Caller<'_>, hook: &'static str, rule: &'static str) {
        Revision::report_invalid(self, self.hook(hook), caller, rule);
    }

    fn prepare(
        &self,
        caller: Caller<'_>,
        input: &PrepareInput<'_>,
    ) -> Result<PrepareResult, Failure> {
        self.check_input_size(self.hook("prepare"), input.body.bytes())?;
        let fields = fields_in(input.body);
        let attributes: Vec<wit::AttributeParam<'_>> = input
            .attributes
            .iter()
            .map(|(name, value)| wit::AttributeParam { name, value })
            .collect();
        let request = wit::Request {
            model: input.model,
            content_type: input.content_type,
            body: view(input.body, &fields),
            attributes: &attributes,
        };
        let bounds = &self.parts.bounds;
        let hook = self.hook("prepare").with_input(input.body.bytes());
        let ended = self.call(hook, Some(caller), |store, exports| {
            let Some(task) = &exports.task else {
                return Ok(Err(ABSENT));
            };
            let returned = task.infergate_plugin_task().call_prepare(store, request)?;
            Ok(returned.map_err(task_failure).and_then(|returned| {
                let prepared = prepared_out(returned);
                let verdict = validate_output::prepared(&prepared, bounds);
                validated(prepared, verdict)
            }))
        });
        let bytes = input.body.bytes() + captured_args::SMALL * input.attributes.len();
        self.capture(hook, Some(caller), (&ended, bytes), || {
            captured_args::prepare(input)
        });
        ended
    }

    fn finish(
        &self,
        caller: Caller<'_>,
        answered: &FinishInput<'_>,
    ) -> Result<FinishResult, Failure> {
        self.check_input_size(self.hook("finish"), answered.body.bytes())?;
        let fields = fields_in(answered.body);
        let response = wit::Response {
            status: answered.status,
            content_type: answered.content_type,
            body: view(answered.body, &fields),
            state: answered.state,
        };
        let bounds = &self.parts.bounds;
        let hook = self.hook("finish").with_input(answered.body.bytes());
        let ended = self.call(hook, Some(caller), |store, exports| {
            let Some(task) = &exports.task else {
                return Ok(Err(ABSENT));
            };
            let returned = task.infergate_plugin_task().call_finish(store, response)?;
            Ok(returned.map_err(task_failure).and_then(|returned| {
                let finished = FinishResult {
                    edit: edit_out(returned.edit),
                    metrics: returned.metrics,
                };
                let verdict = validate_output::finished(&finished, bounds);
                validated(finished, verdict)
            }))
        });
        let bytes = answered.body.bytes();
        self.capture(hook, Some(caller), (&ended, bytes), || {
            captured_args::finish(answered)
        });
        ended
    }

    fn push(
        &self,
        caller: Caller<'_>,
        state: &[u8],
        events: &[StreamEvent],
    ) -> Result<StreamResult, Failure> {
        let given_bytes = events.iter().map(|event| event.data.len()).sum();
        self.check_input_size(self.stream_hook("push"), given_bytes)?;
        let given: Vec<wit_stream::EventParam<'_>> = events
            .iter()
            .map(|event| wit_stream::EventParam {
                name: event.name.as_deref(),
                data: &event.data,
            })
            .collect();
        let output_max = self.parts.bounds.output_bytes;
        let hook = self.stream_hook("push");
        let ended = self.call(hook, Some(caller), |store, exports| {
            let Some(stream) = &exports.stream else {
                return Ok(Err(ABSENT));
            };
            let stream = stream.infergate_plugin_task_stream();
            let returned = stream.call_push(store, state, &given)?;
            Ok(returned.map_err(broken).and_then(|returned| {
                let step = step_out(returned);
                let verdict = validate_output::step(&step, Some(given.len()), output_max);
                validated(step, verdict)
            }))
        });
        let bytes = given_bytes;
        self.capture(hook, Some(caller), (&ended, bytes), || {
            captured_args::push(state, events)
        });
        ended
    }

    fn close(&self, caller: Caller<'_>, state: &[u8], cut: bool) -> Result<StreamResult, Failure> {
        let output_max = self.parts.bounds.output_bytes;
        let hook = self.stream_hook("close");
        let ended = self.call(hook, Some(caller), |store, exports| {
            let Some(stream) = &exports.stream else {
                return Ok(Err(ABSENT));
            };
            let stream = stream.infergate_plugin_task_stream();
            let returned = stream.call_close(store, state, cut)?;
            Ok(returned.map_err(broken).and_then(|returned| {
                let step = step_out(returned);
                let verdict = validate_output::step(&step, None, output_max);
                validated(step, verdict)
            }))
        });
        let bytes = state.len();
        self.capture(hook, Some(caller), (&ended, bytes), || {
            captured_args::close(state, cut)
        });
        ended
    }
}

impl Revision {
    fn hook(&self, name: &'static str) -> HookCall {
        HookCall {
            name,
            deadline_ms: self.parts.bounds.deadline_ms,
            input_bytes: 0,
        }
    }

    fn stream_hook(&self, name: &'static str) -> HookCall {
        HookCall {
            name,
            deadline_ms: self.parts.bounds.stream_deadline_ms,
            input_bytes: 0,
        }
    }
}

fn fields_in(seen: BodyView<'_>) -> Vec<wit::FieldParam<'_>> {
    match seen {
        BodyView::Whole(_) => Vec::new(),
        BodyView::Fields(fields) => fields
            .iter()
            .map(|field| wit::FieldParam {
                pointer: &field.pointer,
                json: &field.json,
            })
            .collect(),
    }
}

fn view<'a>(seen: BodyView<'a>, fields: &'a [wit::FieldParam<'a>]) -> wit::View<'a> {
    match seen {
        BodyView::Whole(body) => wit::View::Whole(body),
        BodyView::Fields(_) => wit::View::Fields(fields),
    }
}

fn task_failure(error: wit::TaskError) -> Failure {
    match error {
        wit::TaskError::Rejected(returned) => {
            Failure::Rejected(validate_output::sanitize(Rejection {
                status: returned.status,
                code: returned.code,
                message: returned.message,
                pointer: returned.pointer,
            }))
        }
        wit::TaskError::Broken(returned) => broken(returned),
    }
}

fn edit_out(edit: wit::Edit) -> BodyEdit {
    match edit {
        wit::Edit::Keep => BodyEdit::Keep,
        wit::Edit::Replace(body) => BodyEdit::Replace(body),
        wit::Edit::Set(fields) => BodyEdit::Set(
            fields
                .into_iter()
                .map(|field| BodyField {
                    pointer: field.pointer,
                    json: field.json,
                })
                .collect(),
        ),
    }
}

fn prepared_out(returned: wit::Prepared) -> PrepareResult {
    PrepareResult {
        edit: edit_out(returned.edit),
        backend_path: returned.backend_path,
        attributes: returned
            .attributes
            .into_iter()
            .map(|attribute| (attribute.name, attribute.value))
            .collect(),
        metrics: returned.metrics,
        state: returned.state,
    }
}

fn step_out(returned: wit_stream::Step) -> StreamResult {
    let out = |out| match out {
        wit_stream::Out::Keep => EventEdit::Keep,
        wit_stream::Out::Drop => EventEdit::Drop,
        wit_stream::Out::Replace(event) => EventEdit::Replace(StreamEvent {
            name: event.name,
            data: event.data,
        }),
    };
    StreamResult {
        events: returned.events.into_iter().map(out).collect(),
        metrics: returned.metrics,
        state: returned.state,
    }
}
