//! Signals as futures: SIGTERM and SIGINT end the process, SIGHUP reloads it.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the process; the one that reloads is taken once.
pub struct Signals {
    term: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: Some(signal(SignalKind::hangup())?),
        })
    }

    /// The reload signal, for the one loop that answers it.
    pub fn hangup(&mut self) -> Option<Signal> {
        self.hangup.take()
    }

    /// Returns at the next signal that asks the process to end.
    pub async fn terminate(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
