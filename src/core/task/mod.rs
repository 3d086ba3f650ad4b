//! Model tasks: input schema, payload for the model server, result for the client.
//!
//! Independent of API dialects and of kinds of servers. The body is the client's, the payload is posted
//! to a plain HTTP server, and the result stands in the Workers AI envelope. Every task has a
//! [`BuiltinTask`]. Its values are the plugin interface's, so that a Wasm task can replace it.

mod base64;
mod builtin;
mod embeddings;
mod generation;
mod image;
mod input;
mod json;
mod labels;
mod result;
mod single_text;
mod speech;
mod stream;
mod values;

pub use builtin::{BACKEND_PATH, BuiltinTask, backend_path};
pub use values::{
    BodyEdit, BodyField, EventEdit, FinishResult, METRIC_MAX, PrepareResult, Rejection,
    STATE_MAX_BYTES, StreamEvent, StreamResult, TaskBody, TaskDescription, TaskError, TaskHooks,
    TaskRequest, TaskResponse,
};

#[cfg(test)]
mod tests;
