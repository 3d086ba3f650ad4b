//! Connections of clients and forwarding nodes: HTTP/1, request heads, routes, and requests that are
//! answered without a model.
//!
//! Not the request pipeline: an inference request is handed to `pipeline` as soon as its account is known.

mod catalog;
mod connections;
mod forwarded;
mod framing;
mod peer_requests;
mod preflight;
mod serve;
mod server;

pub use connections::ClientConnections;
pub use serve::{serve_connection, serve_peer};
pub use server::DownstreamServer;
