//! `cluster`: how nodes find each other.
//!
//! Values only. Nodes of a fleet speak to each other only where `listen.peers` is configured as well.

use std::net::SocketAddr;

use infergate_core::model::Secret;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How nodes find each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// UDP address for gossip: IP address and port. Other nodes must be able to send there.
    #[schemars(extend("format" = "socket-address"))]
    pub gossip: SocketAddr,
    /// Nodes to begin with, `host:port` of their gossip; with `discovery: dns` every address of
    /// each name is one.
    #[serde(default)]
    pub seeds: Vec<String>,
    /// Where seeds come from.
    #[serde(default)]
    pub discovery: NodeDiscovery,
    /// Known to all nodes of the fleet and to nobody else: it signs every datagram.
    #[serde(default, skip_serializing)]
    pub secret: Option<Secret>,
}

/// Where seeds come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeDiscovery {
    /// They are `seeds`.
    #[default]
    Static,
    /// They are the addresses that the names in `seeds` have.
    Dns,
    /// They are the instances of a service in Consul.
    Consul,
}
