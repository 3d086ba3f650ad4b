//! Errors that end the request pipeline before a response is complete.
//!
//! Not the text for the caller, which `respond` writes from a refusal.

use infergate_core::Refusal;

/// Reason to leave the pipeline early.
#[derive(Debug)]
pub enum RequestError {
    /// The request is refused; the caller gets it in its dialect.
    Refused(Refusal),
    /// The response had started and broke off, or the receiver has left. No more bytes are sent.
    Aborted,
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> RequestError {
        RequestError::Refused(refusal)
    }
}
