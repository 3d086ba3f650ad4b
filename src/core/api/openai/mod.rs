//! The OpenAI dialect: chat, completions, embeddings, the list of models, and the APIs whose bodies pass.
//!
//! Requests are read by [`body`](super::body) and [`passed`](super::passed). Responses pass as the servers write
//! them, so that only routes, the list of models and errors are here. Specification:
//! <https://platform.openai.com/docs/api-reference>.

mod descriptor;
mod error;
mod models;
mod routes;

pub(super) use descriptor::OpenAi;
pub use models::{model, models};
