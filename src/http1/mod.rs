//! HTTP/1 as bytes: heads, framing, bodies, and what a response says of its connection.
//!
//! Pure: no socket, no timer. Both sides of the gateway read and write with it; the rules of RFC 9112 are here
//! and nowhere else. See `docs/decisions/031-own-http1-codec.md`.

mod body;
pub mod encode;
mod fields;
pub mod framing;
mod head;
pub mod spare;

pub use body::{BodyDecoder, BodyStep, BrokenBody};
pub use fields::{Fields, as_text};
pub use head::{MalformedHead, ParsedRequest, ParsedResponse, Version, may_end_head};

#[cfg(test)]
mod tests;
