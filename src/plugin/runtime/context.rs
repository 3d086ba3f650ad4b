//! Context of the host that all its revisions share: engine, pool, background thread, metrics, captures.
//!
//! Decides nothing; made once a process, with the first Wasm plugin.

use std::sync::Arc;

use crate::plugin::runtime::background::BackgroundQueue;
use crate::plugin::runtime::capture::Captures;
use crate::plugin::runtime::engine::WasmRuntime;
use crate::plugin::runtime::instance_pool::InstancePool;
use crate::telemetry::PluginMetricsRegistry;

/// Context shared by all revisions of a host.
pub struct HostContext {
    pub runtime: WasmRuntime,
    pub pool: Arc<InstancePool>,
    /// Queue of revisions that are checked beside the requests.
    pub background: BackgroundQueue,
    pub metrics: Arc<PluginMetricsRegistry>,
    pub captures: Arc<Captures>,
}
