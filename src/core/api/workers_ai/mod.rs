//! The Workers AI dialect: parses bodies of `run`, writes results, and lists the catalogue.
//!
//! Independent of model servers: requests become neutral structs whose values stay raw JSON, so that
//! a number or a string reaches the backend exactly as the client wrote it. Called by the backends,
//! which build requests from it and write results with it.

pub mod catalog;
mod descriptor;
mod error;
mod finetunes;
mod opaque;
mod request;
mod response;
mod routes;
#[cfg(test)]
mod tests;

pub(super) use descriptor::WorkersAi;
pub use finetunes::{FinetuneScope, finetunes};
pub use request::{GenerationInput, Parameter, TEXTS_MAX, TextEmbeddings, TextGeneration};
pub use response::{
    EmbeddingsResult, RequestedToolCall, TextResult, result_of, write_delta, write_embeddings,
    write_final_delta, write_result, write_text,
};
