//! Inputs of a configuration snapshot, and the node's identity, from the configuration.
//!
//! Snapshots are built by the reload loop.

use std::sync::Arc;

use infergate_core::client_address::TrustedProxies;
use infergate_core::model::ModelSpec;
use infergate_core::routing::cluster::NodeId;

use crate::config::{self, Config};
use crate::plugin::PluginSnapshot;
use crate::state::SnapshotParts;
use crate::telemetry::Clock;
use crate::telemetry::event_sink::Durability;

/// Identity of this node towards other nodes. Requests on their way to a former process of the same
/// name are lost; the wall clock distinguishes the two.
pub fn node_id(config: &Config, clock: Clock) -> NodeId {
    NodeId {
        name: Arc::clone(&config.node.id),
        generation: started_ms(clock),
    }
}

/// Number of a process that starts now: milliseconds of the wall clock, so that a later one has a larger number.
pub fn started_ms(clock: Clock) -> u64 {
    let now = clock.wall().unix_timestamp_nanos() / 1_000_000;
    u64::try_from(now).unwrap_or(0)
}

/// Inputs of a configuration snapshot, for a node of this name.
pub fn snapshot_plan(
    config: &Config,
    node: &config::NodeConfig,
    generation: u64,
    models: Vec<Arc<ModelSpec>>,
    plugins: PluginSnapshot,
) -> SnapshotParts {
    SnapshotParts {
        generation,
        node: Arc::clone(&node.id),
        site: Arc::clone(&node.site),
        models,
        tasks: config.tasks.iter().cloned().map(Arc::new).collect(),
        clients: config.clients.clone(),
        plugins,
        accounts: config.accounts.clone(),
        anonymous_allowed: config.anonymous == config::Anonymous::Allow,
        trusted_proxies: TrustedProxies::parse(&config.trusted_proxies),
        limits: config.limits.clone(),
        timeouts: config.timeouts.clone(),
        headers: config.headers.clone(),
        cors: config.cors.clone(),
        readiness: config.readiness.clone(),
        event_before_last_byte: config.events.durability == Durability::BeforeLastByte,
        tracing: config.tracing.clone(),
    }
}
