//! A synthetic GPU container: responds like vLLM, TGI, TEI, llama-server, Triton, Cog or any model
//! behind plain HTTP, without a GPU.
//!
//! No model runs here: the text is chosen by the seed and the prompt, and every response says so in
//! the header `x-infergate-simulator`. The simulator is the upstream of `infergate demo`, of the
//! tests and of the load benches. Kept from a real server: a bounded number of requests at once, a
//! time to first token, a token rate, and prompt notice of a client that leaves.
//!
//! Times are milliseconds, rates tokens per second. Called by `app` (one per process) and by tests
//! (many per process, each on its own listener).

mod body;
mod cog;
mod cog_runs;
mod concurrency;
mod config;
mod connection;
mod control;
mod dialect;
mod embedding;
mod fault;
mod handler;
mod identity;
mod llama_server;
mod loopback;
mod media;
mod openai;
mod pace;
mod passed;
mod request;
mod server;
mod sleep;
mod state;
mod stats;
mod task;
mod tei;
mod tensor;
#[cfg(test)]
mod tests;
mod text;
mod tgi;
mod triton;
mod usage;
mod vram;
mod websocket;
mod worker;

pub use config::{
    Config, CostMetric, Dialect, OverLimit, ProcessConfig, StreamUsage, Task, VramConfig,
};
pub use fault::{Fault, ServerFault};
pub use identity::{FINGERPRINT, SIMULATOR_HEADER};
pub use server::{Simulator, serve};
pub use stats::StatsSnapshot;
pub use worker::arrange_process;
