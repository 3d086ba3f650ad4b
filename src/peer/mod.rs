//! Other nodes of the cluster: membership by gossip, the choice of a node for a request, and the
//! client for it.
//!
//! Decisions are [`Fleet`](infergate_core::routing::Fleet)'s. Clients and model servers are not
//! known here; the pipeline forwards through it, `app` feeds it with what gossip brings.
//!
//! ```text
//! settings (cluster, listen.peers)   gossip (membership and load)   others (the locked view of the cluster)
//! channel (requests to other nodes, over mutual TLS)                   tls (mutual TLS)
//! names (permitted names)   drift (differences of configuration)
//! visit (head of a forwarded request)   interim (its status before the response)
//! ```

mod channel;
mod drift;
mod gossip;
mod interim;
mod names;
mod others;
mod settings;
#[cfg(test)]
mod tests;
mod tls;
mod visit;

pub use channel::{Channel, DRAINING_PATH, GENERATION_HEADER, NODE_HEADER, PING_PATH, STORY_PATH};
pub use drift::{Digests, Drift, Drifts};
pub use gossip::{ACCOUNTS_MAX, Bound, Gossip, News, Spent, bind};
pub use interim::{Hearing, Interim};
pub use names::{NodeNames, pattern_fault};
pub use others::{Others, Sent, Want, Watch};
pub use settings::{CRL, Cluster, NodeDiscovery, PeersListener, PeersTls};
pub use tls::{Credentials, FileFault, Guest, PeerName, node_name_fault};
pub use visit::{CameBack, Cause, NotOurs, VISIT_HEAD_BYTES_MAX, Visit, is_between_nodes};
