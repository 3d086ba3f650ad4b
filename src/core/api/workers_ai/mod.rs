//! The Workers AI `run` dialect: parses bodies and writes results.
//!
//! Independent of model servers: requests become neutral structs whose values stay raw JSON, so that
//! a number or a string reaches the backend exactly as the client wrote it. Called by the backends,
//! which build requests from it and write results with it.

mod request;
mod result;
#[cfg(test)]
mod tests;

pub use request::{GenerationInput, Parameter, TEXTS_MAX, TextEmbeddings, TextGeneration};
pub use result::{
    EmbeddingsResult, RequestedToolCall, TextResult, result_of, write_delta, write_embeddings,
    write_final_delta, write_result, write_text,
};
