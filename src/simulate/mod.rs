//! A synthetic GPU container: responds like vLLM, TGI, TEI, llama-server or any model behind plain
//! HTTP, without a GPU.
//!
//! No model runs here: the text is chosen by the seed and the prompt, and every response says so in
//! the header `x-infergate-simulator`. The simulator is the upstream of `infergate demo`, of the
//! tests and of the load benches. Kept from a real server: a bounded number of requests at once, a
//! time to first token, a token rate, and prompt notice of a client that leaves.
//!
//! Times are milliseconds, rates tokens per second. Called by `app` (one per process) and by tests
//! (many per process, each on its own listener).

mod body;
mod concurrency;
mod config;
mod control;
mod dialect;
mod embedding;
mod fault;
mod handler;
mod llama_server;
mod media;
mod openai;
mod pace;
mod request;
mod server;
mod stats;
mod task;
mod tei;
#[cfg(test)]
mod tests;
mod text;
mod tgi;

use std::future::Future;
use std::io;

use tokio::net::TcpListener;

pub use config::{Config, CostMetric, Dialect, OverLimit, StreamUsage, Task};
pub use fault::{Fault, ServerFault};
pub use server::Simulator;
pub use stats::StatsSnapshot;

/// Marks every response of the simulator, errors included.
pub const SIMULATOR_HEADER: &str = "x-infergate-simulator";

/// Value in place of a real server's build name.
pub const FINGERPRINT: &str = "infergate-simulator";

/// Serve on `listener` until `shutdown` resolves; connections still open are then closed.
///
/// A test that wants to read the counts while it runs builds a [`Simulator`] itself.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    Simulator::new(config).serve(listener, shutdown).await
}
