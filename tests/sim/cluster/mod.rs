//! Clusters of three to fifty nodes: real admission queues, real views of each other, gossip that is late
//! and lossy, and requests that go where there is room.
//!
//! The promises are asserted at every step: no node sees a request twice, no backend has more than
//! its permits, no request is tried or refused more than its budget. At the end every permit
//! and every ticket is back.

mod crowd;
mod disasters;
mod net;
mod overload;
mod request_path;
mod shape;
mod world;
