//! The table of backends: one row for each kind of model server that the gateway speaks with.
//!
//! No protocol is here: each row is the descriptor of a file of its own in this folder. The schema, the
//! checks and the reference of the configuration are made from this table.

mod cog;
mod descriptor;
mod http;
mod json_object;
mod llama_server;
mod openai;
mod server_metrics;
mod sglang;
mod tei;
#[cfg(test)]
mod tests;
mod tgi;
mod triton;
mod vllm;

pub use descriptor::{
    AdapterForm, Backend, MetricsPage, Probe, ProbeReport, UpstreamRequest, path_segment,
};
pub use server_metrics::ServerMetrics;

/// Every backend, in the order of the reference.
pub static BACKENDS: &[&Backend] = &[
    &openai::OPENAI,
    &vllm::VLLM,
    &sglang::SGLANG,
    &tgi::TGI,
    &tei::TEI,
    &llama_server::LLAMA_SERVER,
    &triton::TRITON,
    &cog::COG,
    &http::HTTP,
];

/// The backend of this name; none where the table has none.
pub fn backend(name: &str) -> Option<&'static Backend> {
    BACKENDS.iter().copied().find(|row| row.name == name)
}
