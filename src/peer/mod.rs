//! Other nodes of the cluster: membership by gossip, the choice of a node for a request, and the
//! client for it.
//!
//! Decisions are [`ClusterView`](infergate_core::routing::ClusterView)'s. Clients and model servers are not
//! known here; the pipeline forwards through it, `app` feeds it with what gossip brings.
//!
//! ```text
//! settings (cluster, listen.peers)   gossip (membership and load)   cluster (the locked view of it)
//! client (requests to other nodes, over mutual TLS)   credentials (certificate of this node)
//! names (permitted names)   drift (differences of configuration)
//! protocol (its version)   forwarded_head (metadata of a forward)   progress (status before its response)
//! ```

mod client;
mod cluster;
mod credentials;
mod drift;
mod forwarded_head;
mod gossip;
mod names;
mod progress;
mod protocol;
mod settings;
#[cfg(test)]
mod tests;

pub use client::{
    DRAINING_PATH, EXPLAIN_PATH, GENERATION_HEADER, NODE_HEADER, PING_PATH, PeerClient,
};
pub use cluster::{CapacityWatch, ClusterHandle, ForwardGuard, NodeWatch};
pub use credentials::{NodeCredentials, PeerStream, node_name_fault};
pub use drift::{ConfigDigests, ConfigDrift};
pub use forwarded_head::{
    FORWARDED_HEAD_BYTES_MAX, ForwardRejection, ForwardedHead, RejectionCause, UnfitCause,
    is_between_nodes,
};
pub use gossip::{
    ACCOUNTS_MAX, AccountUsage, Gossip, GossipIdentity, GossipSocket, GossipUpdate, bind,
};
#[cfg(any(test, fuzzing))]
pub use gossip::{check_gossip_datagram, check_gossip_value};
pub use names::{NodeNames, pattern_fault};
pub use progress::{ForwardProgress, ForwardStatus};
pub use protocol::{IncompatibleNode, PROTOCOL_VERSION};
pub use settings::{Cluster, NodeDiscovery, PeersListener};
