//! The source of the values that the admin listener shows.
//!
//! The implementation is in `app`, which knows the other modules.

use async_trait::async_trait;
use serde_json::Value;

use super::capture::{CaptureError, CaptureReport};
use super::state::{AccountsState, State};

/// Values that the listener shows. Each is exact at the moment of the call.
#[async_trait]
pub trait Insight: Send + Sync + 'static {
    /// The body of `/state`.
    fn state(&self) -> State;
    /// The body of `/accounts`.
    fn accounts(&self) -> AccountsState;
    /// The body of `/config`: the configuration that has effect, without secrets.
    fn config(&self) -> Value;
    /// Returns `Ok` when the node is ready for requests; the error gives the reason why not.
    fn readiness(&self) -> Result<(), String>;
    /// The body of `/metrics`.
    fn metrics_text(&self) -> String;
    /// The trace of a request, with the traces of nodes that it was forwarded to; none when it is not
    /// here, or not any more.
    async fn trace(&self, request_id: &str) -> Option<Value>;
    /// The last `count` requests with a trace, the newest first.
    fn recent_traces(&self, count: usize) -> Vec<Value>;

    /// Forgets another node and the usage of the day that it reported. False when nothing was known.
    fn forget(&self, node: &str) -> bool;

    /// Begins to write calls of a plugin to a file.
    async fn capture(&self, plugin: &str, calls: u32) -> Result<CaptureReport, CaptureError>;
}
