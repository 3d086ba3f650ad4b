//! WebSocket (RFC 6455) as a relay sees it: the handshake, and which bytes of a direction may pass.
//!
//! No socket, no clock, no randomness, and no message is put together: payloads pass as they come. Called by
//! `pipeline::websocket` for each direction of a connection.

mod close;
mod frame;
mod handshake;
mod sha1;
#[cfg(test)]
mod tests;

pub use close::{CloseCode, close_frame};
pub use frame::{CONTROL_BYTES_MAX, CheckedFrames, FrameChecker, FrameFault, FrameSender};
pub use handshake::{HandshakeFault, accept_for, check_answer, check_request, offered_protocols};
