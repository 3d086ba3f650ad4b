//! The OpenAI dialect: chat, completions, embeddings and the list of models.
//!
//! Requests are read by [`body`](super::body) and responses pass as the servers write them, so that only
//! routes, the list of models and errors are here. Specification:
//! <https://platform.openai.com/docs/api-reference>.

mod descriptor;
mod error;
mod models;
mod routes;

pub(super) use descriptor::OpenAi;
pub use models::{model, models};
