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

/// Rest of a request's body that has not come when the request begins.
pub struct ArrivingBody {
    check: FormRest,
    /// Bytes that have not come.
    left: u64,
    /// Way to the server; none once all has come.
    pieces: Option<mpsc::Sender<Bytes>>,
    rest: BodyRest,
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
        }
    }

    /// The rest as a server gets it.
    pub fn rest(&self) -> &BodyRest {
        &self.rest
    }

    /// Way to the server; none once all has come.
    pub fn way(&self) -> Option<mpsc::Sender<Bytes>> {
        self.pieces.clone()
    }

    /// Returns whether all of it has come.
    pub fn has_come(&self) -> bool {
        self.left == 0
    }

    /// Checks the next piece, which may go on then.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`]: the form is not as it must be.
    pub fn record(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        self.left = self.left.saturating_sub(piece.len() as u64);
        if self.left == 0 {
            self.pieces = None;
        }
        check_rest(&mut self.check, piece, self.left == 0)
    }
}
