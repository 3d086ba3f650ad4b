//! Model tasks: input schema, payload for the model server, result for the client.
//!
//! Independent of API dialects and of kinds of servers. The body is the client's, the payload is posted
//! to a plain HTTP server, and the result stands in the Workers AI envelope. Every task has a
//! [`Builtin`]. Its values are the plugin interface's, so that a Wasm task can replace it.

mod answer;
mod base64;
mod builtin;
mod embeddings;
mod generation;
mod image;
mod input;
mod json;
mod labels;
mod single_text;
mod speech;
mod stream;
mod values;

pub use builtin::{BACKEND_PATH, Builtin, backend_path};
pub use values::{
    Description, Edit, Event, Field, Finished, Hooks, METRIC_MAX, Out, Prepared, Rejection,
    Request, Response, STATE_MAX_BYTES, Step, TaskError, View,
};

#[cfg(test)]
mod tests;
