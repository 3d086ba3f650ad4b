//! What a model's task takes and gives: input schema, payload for the server, result for the client.
//!
//! It knows no dialect and no server: the body is what the client sent, the payload what a plain
//! HTTP server is posted, the result what stands in the Workers AI envelope. Every task has a
//! [`Builtin`]; its values are those of the plugin interface, so that a Wasm task can stand in its
//! place.

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
