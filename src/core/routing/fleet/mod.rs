//! The other nodes: what is known of them, how far it is believed, and which one a request goes to.
//!
//! It sends nothing and hears nothing: the shell's gossip hands in [`NodeReport`]s, its peers
//! listener and its forwards say how they ended, and [`Fleet::next`] answers where to go now. Nor
//! does it queue or grant: the node that is asked does its own admission. One [`Fleet`] per process
//! under a small mutex; a decision is O(1) where there is room and O(nodes) where there is none.
//!
//! What keeps fifty nodes that look at the same picture from all doing the same:
//!
//! - *Two choices*: of two nodes drawn by lot the freer one is asked
//!   (<https://www.eecs.harvard.edu/~michaelm/postscripts/tpds2001.pdf>), nearer sites first.
//! - *Own account*: what was sent there since the report counts as used, what came back as free.
//! - *Lots*: a free permit that several nodes want is each one's only in part. Who is hungry is in
//!   the reports, and the part is drawn anew for each span of time, so that about as many requests
//!   come as there are permits.
//! - *Age*: an older picture is believed less, and after some seconds not at all.
//! - *A no is remembered*: who refused is not asked again before it has told something newer.
//! - *Failures are remembered longer*: a node whose servers fail quickly looks free all the time.
//!
//! ```text
//! report, rule, past, doubt  ←  seat, node, order  ←  plan  ←  world  ←  choose, account, liveness, views
//! ```
//!
//! Bounds: [`NODES_MAX`] nodes, [`MODELS_MAX`] models. Known in the source system as the world map.

mod account;
mod choose;
mod doubt;
mod liveness;
mod node;
mod order;
mod past;
mod plan;
mod report;
mod rule;
mod seat;
mod views;
mod world;

pub use account::{Ended, Ticket};
pub use choose::{Chosen, Seek, Wants};
pub use liveness::{GIVEN_UP_AFTER, Liveness, QUEUED_EVERY, SILENCE_MAX};
pub use order::SiteOrder;
pub use report::{Change, ModelLoad, NodeId, NodeReport};
pub use rule::FleetRule;
pub use views::{NodeView, NotAsked};
pub use world::{Fleet, MODELS_MAX, NODES_MAX};

#[cfg(test)]
mod tests;
