//! Arguments and results of a task's hooks; no logic.
//!
//! The same values as in the plugin interface `infergate:plugin/task`, so that a built-in task and a
//! Wasm one are interchangeable.

use alloc::string::String;
use alloc::vec::Vec;

/// Bytes of state a task may keep between its hooks for one request.
pub const STATE_MAX_BYTES: usize = 4096;

/// No metric is larger: the largest whole number that every JSON reader agrees on (2^53).
pub const METRIC_MAX: f64 = 9_007_199_254_740_992.0;

/// The hooks of a task that do something; the others are not called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskHooks {
    /// Builds the payload.
    pub prepare: bool,
    /// Converts the response.
    pub finish: bool,
    /// Converts a stream's events.
    pub events: bool,
}

/// Static description of a task, read once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskDescription {
    /// The task it is for, such as `text-generation`.
    pub slug: String,
    /// JSON Schema (2020-12) of the input; none means that `prepare` checks everything.
    pub input_schema: Option<String>,
    /// JSON Schema of the result.
    pub output_schema: Option<String>,
    /// JSON Pointers (RFC 6901) that the hooks read; empty is the whole body.
    pub wants: Vec<String>,
    /// Hooks that are implemented.
    pub active: TaskHooks,
}

/// A place in a body and the JSON that stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyField {
    /// RFC 6901.
    pub pointer: String,
    /// A single JSON value.
    pub json: String,
}

/// The part of a body that a hook has asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskBody {
    /// All of it.
    Whole(Vec<u8>),
    /// The requested places that exist.
    Fields(Vec<BodyField>),
}

/// Arguments of `prepare`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRequest {
    /// The model's id.
    pub model: String,
    /// `application/json`, or the type of an opaque body.
    pub content_type: String,
    /// The body.
    pub body: TaskBody,
    /// Facts established by the gateway: `face`, `stream`, `lora`.
    pub attributes: Vec<(String, String)>,
}

/// A change to a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BodyEdit {
    /// No change.
    #[default]
    Keep,
    /// Sets these places and keeps the rest.
    Set(Vec<BodyField>),
    /// Replaces the whole body.
    Replace(Vec<u8>),
}

/// Result of `prepare`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrepareResult {
    /// From the client's body to the server's.
    pub edit: BodyEdit,
    /// Path under the endpoint's base URL, for servers of the kind `http`.
    pub backend_path: Option<String>,
    /// Kept for later hooks.
    pub attributes: Vec<(String, String)>,
    /// Metrics known before the run.
    pub metrics: Vec<(String, f64)>,
    /// Handed back to the later hooks of the request; at most [`STATE_MAX_BYTES`].
    pub state: Vec<u8>,
}

/// Input that the task refuses: a client error, not a failure of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// 400 to 499.
    pub status: u16,
    /// Error code chosen by the task.
    pub code: String,
    /// Text for the caller.
    pub message: String,
    /// Place of the problem (RFC 6901).
    pub pointer: Option<String>,
}

/// Failure of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskError {
    /// Client error.
    Rejected(Rejection),
    /// Failure of the task itself.
    Broken(String),
}

/// Arguments of `finish`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskResponse {
    /// HTTP status of the model server.
    pub status: u16,
    /// Its content type.
    pub content_type: String,
    /// Its body.
    pub body: TaskBody,
    /// State kept by `prepare`.
    pub state: Vec<u8>,
}

/// Result of `finish`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FinishResult {
    /// From the server's body to the result.
    pub edit: BodyEdit,
    /// Metrics read from the response.
    pub metrics: Vec<(String, f64)>,
}

/// A server-sent event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEvent {
    /// `event:`, when it has one.
    pub name: Option<String>,
    /// `data:`, lines joined.
    pub data: Vec<u8>,
}

/// A change to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventEdit {
    /// Passes the event unchanged.
    Keep,
    /// Leaves the event out.
    Drop,
    /// Passes this event in its place.
    Replace(StreamEvent),
}

/// Result of a stream hook.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamResult {
    /// Changes, in the order of the events given.
    pub events: Vec<EventEdit>,
    /// Metrics of these events.
    pub metrics: Vec<(String, f64)>,
    /// Handed back to the next call.
    pub state: Vec<u8>,
}
