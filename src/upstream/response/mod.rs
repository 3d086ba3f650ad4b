//! Responses of model servers on their way to the client.
//!
//! Bytes in, bytes out: no socket, no clock, and no retry is decided here.
//!
//! ```text
//! transformer (one response, for the pipeline)   decoder (the trait of the protocols)
//! passthrough, convert, posted, tensors, generated (decoders)   openai (its JSON)   body_kind, model_name, client_error
//! chat_form (a completion as a chat response)
//! passed, rerank (APIs beside chat, completions and embeddings)
//! event_template, event_text (events that are not parsed)
//! task_transform (the model's task)              stats, output_sample, reported_metrics (what it cost)
//! ```

mod body_kind;
mod bounds;
mod chat_form;
mod client_error;
mod convert;
mod decoder;
mod error;
mod event_template;
mod event_text;
mod generated;
mod model_name;
mod openai;
mod output_sample;
mod passed;
mod passthrough;
mod posted;
mod prediction;
mod reported_metrics;
mod rerank;
mod stats;
mod task_transform;
mod tensors;
#[cfg(test)]
mod tests;
mod transformer;

pub(super) use convert::{ConvertingDecoder, Delta, FormatDecoder, no_events, write_rows};
pub use decoder::{PushOutput, ResponseDecoder};
pub use error::ResponseError;
pub(super) use generated::GeneratedAnswer;
pub(super) use openai::{OPENAI_EMBEDDINGS, OPENAI_TEXT};
pub(super) use passed::PassedAnswer;
pub(super) use passthrough::Passthrough;
pub(super) use posted::{Opaque, TaskResult};
pub(super) use prediction::PredictionResult;
pub use reported_metrics::ReportedMetrics;
pub(super) use rerank::RerankAnswer;
pub(super) use tensors::{TensorAnswer, TensorResult};
pub use transformer::ResponseTransformer;
