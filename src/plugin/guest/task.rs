//! The worlds `task-schema` and `task-schema-streaming`.
//!
//! Does not validate schemas nor edit bodies; the session does.

use infergate_core::task::{
    Description, Edit, Event, Field, Finished, Hooks, Out, Prepared, Rejection, Step,
};

use super::{ABSENT, args, believe, broken};
use crate::plugin::Caller;
use crate::plugin::bindings::{task as wit, task_stream as wit_stream};
use crate::plugin::check;
use crate::plugin::failure::Failure;
use crate::plugin::hook::Hook;
use crate::plugin::revision::Revision;
use crate::plugin::rules::{Answered, Asked, Identity, Seen, TaskRules};
use crate::plugin::schema::Schema;
use crate::plugin::store::{Crash, Instance};

/// Calls `describe` of a guest, under the deadline it was armed with.
pub fn describe(instance: &mut Instance) -> Result<Description, Box<Crash>> {
    let Instance { store, exports, .. } = instance;
    let Some(task) = &exports.task else {
        return Ok(Description::default());
    };
    let said = task
        .infergate_plugin_task()
        .call_describe(&mut *store)
        .map_err(|error| Crash::of(&error, store))?;
    let is_streaming = exports.stream.is_some();
    let description = Description {
        slug: said.slug,
        input_schema: said.input_schema,
        output_schema: said.output_schema,
        wants: said.wants,
        active: Hooks {
            prepare: said.active.contains(wit::Hooks::PREPARE),
            finish: said.active.contains(wit::Hooks::FINISH),
            events: said.active.contains(wit::Hooks::EVENTS) && is_streaming,
        },
    };
    let verdict = check::description(&description);
    believe(description, verdict)
        .map_err(|failure| Crash::without_trace(failure, instance.store.data().limits.memory_bytes))
}

impl TaskRules for Revision {
    fn description(&self) -> &Description {
        &self.described.description
    }

    fn input_schema(&self) -> Option<&Schema> {
        self.described.input.as_ref()
    }

    fn output_schema(&self) -> Option<&Schema> {
        self.described.output.as_ref()
    }

    fn identity(&self) -> Option<&Identity> {
        Some(&self.parts.identity)
    }

    fn is_asked(&self) -> bool {
        Revision::is_asked(self)
    }

    fn passed_over(&self) {
        Revision::passed_over(self, self.hook("prepare"));
    }

    fn lied(&self, caller: Caller<'_>, hook: &'static str, rule: &'static str) {
        Revision::lied(self, self.hook(hook), caller, rule);
    }

    fn prepare(&self, caller: Caller<'_>, asked: &Asked<'_>) -> Result<Prepared, Failure> {
        self.takes(self.hook("prepare"), asked.body.bytes())?;
        let fields = fields_in(asked.body);
        let attributes: Vec<wit::AttributeParam<'_>> = asked
            .attributes
            .iter()
            .map(|(name, value)| wit::AttributeParam { name, value })
            .collect();
        let request = wit::Request {
            model: asked.model,
            content_type: asked.content_type,
            body: view(asked.body, &fields),
            attributes: &attributes,
        };
        let bounds = &self.parts.bounds;
        let hook = self.hook("prepare").with_input(asked.body.bytes());
        let ended = self.call(hook, Some(caller), |store, exports| {
            let Some(task) = &exports.task else {
                return Ok(Err(ABSENT));
            };
            let said = task.infergate_plugin_task().call_prepare(store, request)?;
            Ok(said.map_err(fault).and_then(|said| {
                let prepared = prepared_out(said);
                let verdict = check::prepared(&prepared, bounds);
                believe(prepared, verdict)
            }))
        });
        let bytes = asked.body.bytes() + args::SMALL * asked.attributes.len();
        self.capture(hook, Some(caller), (&ended, bytes), || args::prepare(asked));
        ended
    }

    fn finish(&self, caller: Caller<'_>, answered: &Answered<'_>) -> Result<Finished, Failure> {
        self.takes(self.hook("finish"), answered.body.bytes())?;
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
            let said = task.infergate_plugin_task().call_finish(store, response)?;
            Ok(said.map_err(fault).and_then(|said| {
                let finished = Finished {
                    edit: edit_out(said.edit),
                    metrics: said.metrics,
                };
                let verdict = check::finished(&finished, bounds);
                believe(finished, verdict)
            }))
        });
        let bytes = answered.body.bytes();
        self.capture(hook, Some(caller), (&ended, bytes), || {
            args::finish(answered)
        });
        ended
    }

    fn push(&self, caller: Caller<'_>, state: &[u8], events: &[Event]) -> Result<Step, Failure> {
        let given_bytes = events.iter().map(|event| event.data.len()).sum();
        self.takes(self.stream_hook("push"), given_bytes)?;
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
            let said = stream.call_push(store, state, &given)?;
            Ok(said.map_err(broken).and_then(|said| {
                let step = step_out(said);
                let verdict = check::step(&step, Some(given.len()), output_max);
                believe(step, verdict)
            }))
        });
        let bytes = given_bytes;
        self.capture(hook, Some(caller), (&ended, bytes), || {
            args::push(state, events)
        });
        ended
    }

    fn close(&self, caller: Caller<'_>, state: &[u8], cut: bool) -> Result<Step, Failure> {
        let output_max = self.parts.bounds.output_bytes;
        let hook = self.stream_hook("close");
        let ended = self.call(hook, Some(caller), |store, exports| {
            let Some(stream) = &exports.stream else {
                return Ok(Err(ABSENT));
            };
            let stream = stream.infergate_plugin_task_stream();
            let said = stream.call_close(store, state, cut)?;
            Ok(said.map_err(broken).and_then(|said| {
                let step = step_out(said);
                let verdict = check::step(&step, None, output_max);
                believe(step, verdict)
            }))
        });
        let bytes = state.len();
        self.capture(hook, Some(caller), (&ended, bytes), || {
            args::close(state, cut)
        });
        ended
    }
}

impl Revision {
    fn hook(&self, name: &'static str) -> Hook {
        Hook {
            name,
            deadline_ms: self.parts.bounds.deadline_ms,
            input_bytes: 0,
        }
    }

    fn stream_hook(&self, name: &'static str) -> Hook {
        Hook {
            name,
            deadline_ms: self.parts.bounds.stream_deadline_ms,
            input_bytes: 0,
        }
    }
}

fn fields_in(seen: Seen<'_>) -> Vec<wit::FieldParam<'_>> {
    match seen {
        Seen::Whole(_) => Vec::new(),
        Seen::Fields(fields) => fields
            .iter()
            .map(|field| wit::FieldParam {
                pointer: &field.pointer,
                json: &field.json,
            })
            .collect(),
    }
}

fn view<'a>(seen: Seen<'a>, fields: &'a [wit::FieldParam<'a>]) -> wit::View<'a> {
    match seen {
        Seen::Whole(body) => wit::View::Whole(body),
        Seen::Fields(_) => wit::View::Fields(fields),
    }
}

fn fault(error: wit::TaskError) -> Failure {
    match error {
        wit::TaskError::Rejected(said) => Failure::Rejected(check::tame(Rejection {
            status: said.status,
            code: said.code,
            message: said.message,
            pointer: said.pointer,
        })),
        wit::TaskError::Broken(said) => broken(said),
    }
}

fn edit_out(edit: wit::Edit) -> Edit {
    match edit {
        wit::Edit::Keep => Edit::Keep,
        wit::Edit::Replace(body) => Edit::Replace(body),
        wit::Edit::Set(fields) => Edit::Set(
            fields
                .into_iter()
                .map(|field| Field {
                    pointer: field.pointer,
                    json: field.json,
                })
                .collect(),
        ),
    }
}

fn prepared_out(said: wit::Prepared) -> Prepared {
    Prepared {
        edit: edit_out(said.edit),
        backend_path: said.backend_path,
        attributes: said
            .attributes
            .into_iter()
            .map(|attribute| (attribute.name, attribute.value))
            .collect(),
        metrics: said.metrics,
        state: said.state,
    }
}

fn step_out(said: wit_stream::Step) -> Step {
    let out = |out| match out {
        wit_stream::Out::Keep => Out::Keep,
        wit_stream::Out::Drop => Out::Drop,
        wit_stream::Out::Replace(event) => Out::Replace(Event {
            name: event.name,
            data: event.data,
        }),
    };
    Step {
        events: said.events.into_iter().map(out).collect(),
        metrics: said.metrics,
        state: said.state,
    }
}
