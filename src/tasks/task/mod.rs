//! Model tasks: input schema, payload for a plain HTTP server, result for the client.
//!
//! Independent of API dialects and of kinds of servers. The body is the client's, the payload is posted
//! to a plain HTTP server, and the result stands in the Workers AI envelope. Values are the plugin
//! interface's, so that a Wasm task and a native one are interchangeable.

mod embeddings;
mod generation;
mod image;
mod input;
mod labels;
mod result;
mod single_text;
mod speech;
mod standard;
mod stream;
mod values;

pub use standard::{
    AUTOMATIC_SPEECH_RECOGNITION, BACKEND_PATH, DUMB_PIPE, IMAGE_CLASSIFICATION,
    IMAGE_TEXT_TO_TEXT, IMAGE_TO_TEXT, MULTIMODAL_EMBEDDINGS, OBJECT_DETECTION, SUMMARIZATION,
    Schemas, StandardTask, TEXT_CLASSIFICATION, TEXT_EMBEDDINGS, TEXT_GENERATION, TEXT_TO_IMAGE,
    TEXT_TO_SPEECH, TRANSLATION,
};
pub use values::{
    BodyEdit, BodyField, EventEdit, FinishResult, METRIC_MAX, PrepareResult, Rejection,
    STATE_MAX_BYTES, StreamEvent, StreamResult, TaskBody, TaskDescription, TaskError, TaskHooks,
    TaskRequest, TaskResponse,
};

#[cfg(test)]
mod tests;
