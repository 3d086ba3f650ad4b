//! Body that goes on to its server as it comes from the client: a form with a large file.
//!
//! No part of the file is kept, so that memory does not grow with it. Once a server has had a piece, the request cannot
//! go to another one. What follows the file is checked before it goes on.

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::arriving_form::FormRest;
use infergate_core::api::passed::check_rest;
use tokio::sync::mpsc;

use crate::upstream::BodyRest;

/// Progress of a request's body: all of it is here, or one side waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyProgress {
    /// All of it has come.
    Whole,
    /// The server would take more.
    WaitsForClient,
    /// The server has not taken what has come.
    WaitsForServer,
}

/// Rest of a request's body that has not come when the request begins.
pub struct ArrivingBody {
    check: FormRest,
    /// Bytes that have not come.
    left: u64,
    /// Way to the server; none once all has come.
    pieces: Option<mpsc::Sender<Bytes>>,
    rest: BodyRest,
    progress: BodyProgress,
    /// Moment at which the last of it came; 0 before.
    came_us: u64,
}

impl ArrivingBody {
    /// The rest of a form of which `left` bytes have not come.
    pub fn new(check: FormRest, left: u64) -> ArrivingBody {
        let (pieces, rest) = BodyRest::new(left);
        ArrivingBody {
            check,
            left,
            pieces: Some(pieces),
            rest,
            progress: BodyProgress::WaitsForServer,
            came_us: 0,
        }
    }

    /// Returns how far it has come.
    pub fn progress(&self) -> BodyProgress {
        self.progress
    }

    /// Sets who is waited for.
    pub fn set_progress(&mut self, progress: BodyProgress) {
        self.progress = progress;
    }

    /// Returns the moment at which the last of it came, in microseconds on the clock.
    pub fn came_us(&self) -> Option<u64> {
        (self.came_us > 0).then_some(self.came_us)
    }

    /// The rest as a server gets it.
    pub fn rest(&self) -> &BodyRest {
        &self.rest
    }

    /// Way to the server; none once all has come.
    pub fn way(&self) -> Option<mpsc::Sender<Bytes>> {
        self.pieces.clone()
    }

    /// Checks the next piece, which came at `now_us` and may go on then.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`]: the form is not as it must be.
    pub fn record(&mut self, piece: &[u8], now_us: u64) -> Result<(), Refusal> {
        self.left = self.left.saturating_sub(piece.len() as u64);
        check_rest(&mut self.check, piece, self.left == 0)?;
        if self.left == 0 {
            self.pieces = None;
            (self.progress, self.came_us) = (BodyProgress::Whole, now_us);
        }
        Ok(())
    }
}
