//! Connections of clients and forwarding nodes: HTTP/1, request heads and bodies, and requests that are
//! answered without a model.
//!
//! Not the request pipeline: an inference request is handed to `pipeline` as soon as its body is whole.

mod body_pieces;
mod callbacks;
mod catalog;
mod connection;
mod connections;
mod forwarded;
mod http1;
mod multipart;
mod open_inference;
mod peer_requests;
mod preflight;
mod replicate;
mod request_body;
mod serve;
mod server;
mod session;

pub use callbacks::serve_callbacks;
pub use connections::ClientConnections;
pub use serve::{serve_connection, serve_peer};
pub use server::DownstreamServer;
