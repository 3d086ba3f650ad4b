//! A connection that a fault may cut.
//!
//! Not the listener, which stands in `server.rs`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use super::concurrency::WorkSlot;
use super::fault::Fault;

/// The state of one connection that a fault changes.
#[derive(Default)]
pub(super) struct FaultableConnection {
    /// Close with RST instead of FIN.
    pub(super) reset: AtomicBool,
    /// The WebSocket that the connection goes on as; written and taken once.
    websocket: Mutex<Option<AcceptedWebSocket>>,
}

/// A WebSocket that is served once the head of its 101 has gone out.
pub(super) struct AcceptedWebSocket {
    pub(super) slot: WorkSlot,
    pub(super) fault: Option<Fault>,
    pub(super) is_realtime: bool,
}

/// The connection ends here, on purpose.
#[derive(Debug, thiserror::Error)]
#[error("connection cut by a simulated fault or by the client")]
pub(super) struct ConnectionCut;

impl FaultableConnection {
    /// Goes on as a WebSocket once the response has gone out.
    pub(super) fn go_on_as(&self, websocket: AcceptedWebSocket) {
        *self.websocket.lock() = Some(websocket);
    }

    /// Takes the WebSocket that the connection goes on as.
    pub(super) fn take_websocket(&self) -> Option<AcceptedWebSocket> {
        self.websocket.lock().take()
    }

    /// Arrange for RST; the caller returns the error, which ends the connection.
    pub(super) fn reset(&self) -> ConnectionCut {
        self.reset.store(true, Relaxed);
        ConnectionCut
    }
}
