//! The other nodes of the fleet: who they are, which one a request goes to, and the way there.
//!
//! It decides nothing: [`Fleet`](infergate_core::routing::Fleet) says who is asked. It knows no
//! client and no model server; the walk forwards through it, `app` feeds it with what is heard.
//!
//! ```text
//! settings (cluster, listen.peers)   gossip (who is there, how busy)   others (the locked fleet)
//! channel (requests to other nodes, over mutual TLS)                   tls (who they prove to be)
//! ```

mod others;
mod settings;

pub use others::{Others, Sent, Want};
pub use settings::{Cluster, NodeDiscovery};
