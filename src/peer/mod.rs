//! The other nodes of the fleet: who they are, which one a request goes to, and the way there.
//!
//! It decides nothing: [`Fleet`](infergate_core::routing::Fleet) says who is asked. It knows no
//! client and no model server; the walk forwards through it, `app` feeds it with what is heard.
//!
//! ```text
//! settings (cluster, listen.peers)   gossip (who is there, how busy)   others (the locked fleet)
//! channel (requests to other nodes, over mutual TLS)                   tls (who they prove to be)
//! names (what nodes may be called)   drift (whether they are configured alike)
//! visit (what a forwarded request carries in its head)   interim (what is said of it before its answer)
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
