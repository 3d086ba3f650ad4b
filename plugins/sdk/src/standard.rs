//! The standard tasks and routing policies of `infergate-tasks` as hooks of a plugin: conversions, no logic.
//!
//! A plugin that changes one thing of a standard task calls these functions and edits what it passes or returns.

use infergate_tasks::policy::{self, RankCandidates};
use infergate_tasks::task::{
    BodyEdit, BodyField, EventEdit, StandardTask, StreamEvent, StreamResult, TaskBody, TaskRequest,
    TaskResponse,
};

use crate::{
    Attribute, Candidate, Choice, Description, Edit, Event, Field, Finished, Health, Hints, Hooks,
    Out, Prepared, Rejection, Request, Response, Settings, Step, TaskError, View,
};

pub use infergate_tasks::policy::{Affinity, ForcedSite, Latency, Random, ResourceFlow};
pub use infergate_tasks::task::TaskHooks;
pub use infergate_tasks::task::{
    AUTOMATIC_SPEECH_RECOGNITION, DUMB_PIPE, IMAGE_CLASSIFICATION, IMAGE_TEXT_TO_TEXT,
    IMAGE_TO_TEXT, MULTIMODAL_EMBEDDINGS, OBJECT_DETECTION, SUMMARIZATION, TEXT_CLASSIFICATION,
    TEXT_EMBEDDINGS, TEXT_GENERATION, TEXT_TO_IMAGE, TEXT_TO_SPEECH, TRANSLATION,
};

/// The hooks of a task, or none with the setting `shape: false`, for models whose server speaks a protocol of its own
/// (OpenAI, TGI, …). The gateway itself builds payload and result there, and the task is its schemas only.
pub fn hooks(task: &StandardTask, settings: &mut Settings) -> TaskHooks {
    match settings.switch("shape", true) {
        true => task.hooks(),
        false => TaskHooks::default(),
    }
}

/// The description of a task with these hooks.
pub fn describe(task: &StandardTask, hooks: TaskHooks) -> Description {
    let description = task.description(hooks);
    let mut active = Hooks::empty();
    active.set(Hooks::PREPARE, hooks.prepare);
    active.set(Hooks::FINISH, hooks.finish);
    active.set(Hooks::EVENTS, hooks.events);
    Description {
        slug: description.slug,
        input_schema: description.input_schema,
        output_schema: description.output_schema,
        wants: description.wants,
        active,
    }
}

/// From the client's body to the server's.
pub fn prepare(task: &StandardTask, request: Request) -> Result<Prepared, TaskError> {
    let attributes = request.attributes.into_iter();
    let request = TaskRequest {
        model: request.model,
        content_type: request.content_type,
        body: body_in(request.body),
        attributes: attributes.map(|one| (one.name, one.value)).collect(),
    };
    let prepared = task.prepare(&request).map_err(error_out)?;
    let attributes = prepared.attributes.into_iter();
    Ok(Prepared {
        edit: edit_out(prepared.edit),
        backend_path: prepared.backend_path,
        attributes: attributes
            .map(|(name, value)| Attribute { name, value })
            .collect(),
        metrics: prepared.metrics,
        state: prepared.state,
    })
}

/// From the server's body to the result.
pub fn finish(task: &StandardTask, response: Response) -> Result<Finished, TaskError> {
    let response = TaskResponse {
        status: response.status,
        content_type: response.content_type,
        body: body_in(response.body),
        state: response.state,
    };
    let finished = task.finish(&response).map_err(error_out)?;
    Ok(Finished {
        edit: edit_out(finished.edit),
        metrics: finished.metrics,
    })
}

/// The next events of a stream.
pub fn push(task: &StandardTask, state: &[u8], events: Vec<Event>) -> Result<Step, String> {
    let events = events.into_iter().map(|event| StreamEvent {
        name: event.name,
        data: event.data,
    });
    let events: Vec<StreamEvent> = events.collect();
    Ok(step_out(task.push(state, &events)?))
}

/// The end of a stream; `cut` when before its time.
pub fn close(task: &StandardTask, state: &[u8], cut: bool) -> Result<Step, String> {
    Ok(step_out(task.close(state, cut)?))
}

/// The ranking of a policy.
pub fn rank(policy: &impl RankCandidates, hints: Hints, candidates: Vec<Candidate>) -> Vec<Choice> {
    let hints = policy::Hints {
        model: hints.model,
        source_site: hints.source_site,
        body_bytes: hints.body_bytes,
        attempt: hints.attempt,
        streaming: hints.streaming,
        priority: hints.priority,
        deadline_ms: hints.deadline_ms,
        lora: hints.lora,
        forced_site: hints.forced_site,
        seed: hints.seed,
    };
    let candidates: Vec<policy::Candidate> = candidates.into_iter().map(candidate_in).collect();
    let choices = policy.rank(&hints, &candidates).into_iter();
    choices
        .map(|choice| Choice {
            id: choice.id,
            step: choice.step,
        })
        .collect()
}

fn candidate_in(candidate: Candidate) -> policy::Candidate {
    policy::Candidate {
        id: candidate.id,
        site: candidate.site,
        node: candidate.node,
        health: health_in(candidate.health),
        permits_free: candidate.permits_free,
        permits_total: candidate.permits_total,
        queue_len: candidate.queue_len,
        rtt_us: candidate.rtt_us,
        ttft_us: candidate.ttft_us,
        latency_us: candidate.latency_us,
        error_ppm: candidate.error_ppm,
        lora_affinity: candidate.lora_affinity,
        prefix_affinity: candidate.prefix_affinity,
        tier: candidate.tier,
        ooc: candidate.ooc,
    }
}

/// The condition of a candidate, in the type that policies use.
pub(crate) fn health_in(health: Health) -> policy::Health {
    match health {
        Health::Healthy => policy::Health::Healthy,
        Health::Degraded => policy::Health::Degraded,
        Health::Ejected => policy::Health::Ejected,
        Health::Draining => policy::Health::Draining,
        Health::Down => policy::Health::Down,
    }
}

fn body_in(view: View) -> TaskBody {
    match view {
        View::Whole(body) => TaskBody::Whole(body),
        View::Fields(fields) => TaskBody::Fields(
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

fn edit_out(edit: BodyEdit) -> Edit {
    match edit {
        BodyEdit::Keep => Edit::Keep,
        BodyEdit::Replace(body) => Edit::Replace(body),
        BodyEdit::Set(fields) => Edit::Set(
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

fn error_out(error: infergate_tasks::task::TaskError) -> TaskError {
    match error {
        infergate_tasks::task::TaskError::Broken(message) => TaskError::Broken(message),
        infergate_tasks::task::TaskError::Rejected(rejection) => TaskError::Rejected(Rejection {
            status: rejection.status,
            code: rejection.code,
            message: rejection.message,
            pointer: rejection.pointer,
        }),
    }
}

fn step_out(step: StreamResult) -> Step {
    let events = step.events.into_iter().map(|event| match event {
        EventEdit::Keep => Out::Keep,
        EventEdit::Drop => Out::Drop,
        EventEdit::Replace(event) => Out::Replace(Event {
            name: event.name,
            data: event.data,
        }),
    });
    Step {
        events: events.collect(),
        metrics: step.metrics,
        state: step.state,
    }
}
