//! The Anthropic dialect: `POST /v1/messages`, served by models that speak OpenAI chat completions.
//!
//! Not an implementation of the whole API: token counting, batches, files and tools that the API itself
//! runs are refused. A request is translated when it is parsed, a response after the model's task has seen
//! it, so that all steps between work on the OpenAI shape. Specification:
//! <https://docs.anthropic.com/en/api/messages>.

mod blocks;
mod descriptor;
mod error;
mod request;
mod response;
mod routes;
#[cfg(test)]
mod tests;

pub(super) use descriptor::Anthropic;
