//! Cluster view: what is known of the other nodes, how far it is trusted, and which node a request
//! is forwarded to.
//!
//! Sends and receives nothing: the shell's gossip hands in [`NodeReport`]s, its peers listener and
//! its forwards report outcomes, and [`ClusterView::next_target`] returns the target. Queues and grants nothing
//! either: the receiving node does its own admission. Each process has one [`ClusterView`] under a small
//! mutex; a decision is O(1) where there is room and O(nodes) where there is none.
//!
//! Measures against herding of fifty nodes that see the same reports:
//!
//! - *Two choices*: of two random nodes the freer one is taken
//!   (<https://www.eecs.harvard.edu/~michaelm/postscripts/tpds2001.pdf>), nearer sites first.
//! - *Own account*: what was sent there since the report counts as used, what came back as free.
//! - *Shares*: a free permit that several nodes need belongs to each one only in part. Unmet
//!   demand is part of the reports, and shares are assigned anew for each period, so that about as
//!   many requests arrive as there are permits.
//! - *Age*: an older report is trusted less, and after some seconds not at all.
//! - *Refusals are remembered*: a node that refused is not tried again before a newer report.
//! - *Failures are remembered longer*: a node whose servers fail quickly looks free all the time.
//!
//! ```text
//! report, rule, history, backoff  ←  node, site order  ←  plan  ←  membership  ←  selection, forwards, liveness, views
//! ```
//!
//! Bounds: [`NODES_MAX`] nodes, [`MODELS_MAX`] models. Known in the source system as the world map.

mod failure_backoff;
mod forwards;
mod in_flight_history;
mod liveness;
mod membership;
mod node;
mod node_model;
mod plan;
mod report;
mod rule;
mod selection;
mod site_order;
mod views;

pub use forwards::{ForwardOutcome, ForwardTicket};
pub use liveness::{GIVEN_UP_AFTER, Liveness, QUEUED_EVERY, SILENCE_MAX};
pub use membership::{ClusterView, MODELS_MAX, NODES_MAX};
pub use report::{MembershipChange, ModelLoad, NodeId, NodeReport};
pub use rule::ClusterRule;
pub use selection::{ForwardTarget, Need, NodeQuery};
pub use site_order::SiteOrder;
pub use views::{NodeView, SkipReason};

#[cfg(test)]
mod tests;
