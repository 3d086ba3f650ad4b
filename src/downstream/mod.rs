//! Connections of clients and forwarding nodes: TLS, HTTP/1 and HTTP/2, request heads and bodies, and requests that are
//! answered without a model.
//!
//! Not the request pipeline: an inference request is handed to `pipeline` as soon as its body is whole.

mod body_pieces;
mod callbacks;
mod catalog;
mod connection;
mod connections;
mod forwarded;
mod handshakes;
mod health;
mod http2;
mod http2_stream;
mod http2_work;
mod listener;
mod multipart;
mod open_inference;
mod peer_requests;
mod preflight;
mod proxy_protocol;
mod receiver;
mod replicate;
mod request_body;
mod serve;
mod server;
mod session;
mod settings;
mod socket;

pub use callbacks::serve_callbacks;
pub use connections::ClientConnections;
pub use handshakes::{HandshakeBounds, Handshakes};
pub use listener::{AcceptedStream, ClientListener, ConnectionFault, ListenerProtocols};
#[cfg(any(test, fuzzing))]
pub use multipart::{FormReader, PartEvent};
#[cfg(any(test, fuzzing))]
pub use proxy_protocol::read as read_proxy_header;
pub use serve::serve_peer;
pub use server::DownstreamServer;
pub use settings::{ClientListenerConfig, ClientTls, Http2, ListenAddress};
