//! WebSockets of clients to model servers: the handshake before the pipeline's steps, the relay behind them.
//!
//! The steps between are those of other requests: key, quota, rates, permit, attempt, event. The framework's way to
//! upgrade is not used ([decision 048](../../../docs/decisions/048-websocket.md)); rules of frames are the core's.
//!
//! ```text
//! handshake (checks of both heads)      relay (both directions, limits, usage)      lane (one direction)
//! end (causes and close codes)      parting (end of both connections)
//! ```

mod end;
mod handshake;
mod lane;
mod parting;
mod relay;

pub use handshake::{check_answer, check_request, server_lines};
pub use relay::relay;
