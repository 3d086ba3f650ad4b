//! The values that go into and come out of a task's hooks.
//!
//! They are those of the plugin interface `infergate:plugin/task`, so that a built-in task and a
//! Wasm one are interchangeable. Nothing is decided here.

/// Bytes of state a task may keep between its hooks for one request.
pub const STATE_MAX_BYTES: usize = 4096;

/// No metric is larger: the largest whole number that every JSON reader agrees on (2^53).
pub const METRIC_MAX: f64 = 9_007_199_254_740_992.0;

/// The hooks of a task that do something; the others are not called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Shapes the payload.
    pub prepare: bool,
    /// Shapes the answer.
    pub finish: bool,
    /// Shapes a stream's events.
    pub events: bool,
}

/// What a task says about itself, once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The task it is for, such as `text-generation`.
    pub slug: String,
    /// JSON Schema (2020-12) of the input; none means that `prepare` checks everything.
    pub input_schema: Option<String>,
    /// JSON Schema of the result.
    pub output_schema: Option<String>,
    /// JSON Pointers (RFC 6901) the hooks want to see; empty is the whole body.
    pub wants: Vec<String>,
    /// Which hooks do something.
    pub active: Hooks,
}

/// A place in a body and the JSON that stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// RFC 6901.
    pub pointer: String,
    /// One JSON value.
    pub json: String,
}

/// As much of a body as was wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// All of it.
    Whole(Vec<u8>),
    /// The wanted places that exist.
    Fields(Vec<Field>),
}

/// What `prepare` is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The model's id.
    pub model: String,
    /// `application/json`, or the type of an opaque body.
    pub content_type: String,
    /// The body.
    pub body: View,
    /// Facts the gateway vouches for: `face`, `stream`, `lora`.
    pub attributes: Vec<(String, String)>,
}

/// What becomes of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Edit {
    /// Nothing.
    #[default]
    Keep,
    /// These places are set, the rest stays.
    Set(Vec<Field>),
    /// It is replaced.
    Replace(Vec<u8>),
}

/// What `prepare` answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prepared {
    /// From the client's body to the server's.
    pub edit: Edit,
    /// Path under the endpoint's base URL, for servers of the kind `http`.
    pub backend_path: Option<String>,
    /// Kept for later hooks.
    pub attributes: Vec<(String, String)>,
    /// Metrics known before the run.
    pub metrics: Vec<(String, f64)>,
    /// Handed back to the later hooks of the request; at most [`STATE_MAX_BYTES`].
    pub state: Vec<u8>,
}

/// Input the task does not take: the caller's fault, not the task's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// 400 to 499.
    pub status: u16,
    /// The task's own word for it.
    pub code: String,
    /// For the caller to read.
    pub message: String,
    /// Where, RFC 6901.
    pub pointer: Option<String>,
}

/// Why a hook has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskError {
    /// The caller's fault.
    Rejected(Rejection),
    /// The task's own.
    Broken(String),
}

/// What `finish` is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status of the server.
    pub status: u16,
    /// Its content type.
    pub content_type: String,
    /// Its body.
    pub body: View,
    /// What `prepare` kept.
    pub state: Vec<u8>,
}

/// What `finish` answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finished {
    /// From the server's body to the result.
    pub edit: Edit,
    /// Metrics read from the answer.
    pub metrics: Vec<(String, f64)>,
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `event:`, when it has one.
    pub name: Option<String>,
    /// `data:`, lines joined.
    pub data: Vec<u8>,
}

/// What becomes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// It passes.
    Keep,
    /// It is left out.
    Drop,
    /// It passes in this form.
    Replace(Event),
}

/// What a stream hook answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// One for each event given, in order.
    pub events: Vec<Out>,
    /// Metrics of these events.
    pub metrics: Vec<(String, f64)>,
    /// Handed back to the next call.
    pub state: Vec<u8>,
}
