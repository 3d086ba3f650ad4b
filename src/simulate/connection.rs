//! A connection that a fault may cut.
//!
//! Not the listener, which stands in `server.rs`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The state of one connection that a fault changes.
#[derive(Default)]
pub(super) struct FaultableConnection {
    /// Close with RST instead of FIN.
    pub(super) reset: AtomicBool,
}

/// The connection ends here, on purpose.
#[derive(Debug, thiserror::Error)]
#[error("connection cut by a simulated fault or by the client")]
pub(super) struct ConnectionCut;

impl FaultableConnection {
    /// Arrange for RST; the caller returns the error, which ends the connection.
    pub(super) fn reset(&self) -> ConnectionCut {
        self.reset.store(true, Relaxed);
        ConnectionCut
    }
}
