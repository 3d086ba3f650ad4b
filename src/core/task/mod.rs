//! Model tasks: input schema, payload for the model server, result for the client.
//!
//! Chooses the implementation for a task and a kind of server; the logic itself is in `infergate_tasks`, shared
//! with the Wasm guests. Values are the plugin interface's, so that a Wasm task can replace a [`BuiltinTask`].

mod builtin;

pub use builtin::{BuiltinTask, backend_path};
pub use infergate_tasks::task::{
    BACKEND_PATH, BodyEdit, BodyField, EventEdit, FinishResult, METRIC_MAX, PrepareResult,
    Rejection, STATE_MAX_BYTES, StreamEvent, StreamResult, TaskBody, TaskDescription, TaskError,
    TaskHooks, TaskRequest, TaskResponse,
};

#[cfg(test)]
mod tests;
