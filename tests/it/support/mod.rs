//! Fixtures of the integration tests: a gateway as a child process, model servers in this process, and
//! a client that sees every byte.
//!
//! No fixture waits for a fixed time: [`eventually`] polls a state under a generous limit.

mod backend;
mod client;
mod cluster;
mod collector;
mod component;
pub mod gpu_host;
mod handled;
mod http2;
mod http2_server;
mod node;
mod nvml;
mod old_node;
mod ports;
mod tls;
pub mod websocket;

use std::time::Duration;

pub use backend::{
    ANSWER, KeepAliveServer, RefusingServer, STREAM_HEAD, ScriptedServer, SimulatedServer, chunk,
    early, json_answer,
};
pub use client::{TestClient, TestResponse};
pub use cluster::{Cluster, ClusterCredentials, ClusterMember};
pub use collector::{CollectedSpan, Collector, SpanTree, attribute_number, attribute_text};
pub use component::{flat_price, refusing_settings, slow_to_compile, trapping_price};
pub use handled::{DeafServer, HandledServer, Reaction};
pub use http2::{Http2Client, chat_request};
pub use http2_server::{Http2Server, LARGE_BYTES};
pub use node::{A_WHILE, Node, PendingPost, accounts, endpoint, model, model_of, one_model};
pub use nvml::NvmlDouble;
pub use old_node::OldNode;
pub use ports::free_address;
pub use tls::{
    Authority, Certificate, TlsFront, client_config, handshake, handshake_by, over_tls,
    server_config,
};

/// Limit for reaching any state in these tests. Generous enough for a machine ten times slower than a
/// busy two-core one, so only a hang exceeds the limit.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Polls `state` until it gives something, and panics with `what` when it does not in time.
pub async fn eventually<T>(what: &str, mut state: impl AsyncFnMut() -> Option<T>) -> T {
    let polling = async {
        loop {
            if let Some(found) = state().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(LIMIT, polling).await {
        Ok(found) => found,
        Err(_) => panic!("did not happen in {LIMIT:?}: {what}"),
    }
}

/// A chat request of `model`, with further top-level members.
pub fn chat(model: &str, more: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]{more}}}"#)
}
