//! Reason for an attempt without a usable response, and the consequence of it.
//!
//! Not the decision on another attempt, which is the core's retry budget.

use infergate_core::routing::{AttemptFailure, FallbackReason};
use infergate_core::{Millis, Refusal};

use crate::pipeline::fallback::ModelError;

/// Reason for an attempt without a response to pass on.
#[derive(Clone, Copy)]
pub enum AttemptError {
    NotConnected,
    /// The server could not prove who it is, and was sent nothing.
    NotTrusted,
    /// The server, or one of a node that had granted a permit, may have begun to work on the request.
    Lost,
    /// The head of an answer did not come within the model's `first_byte_timeout_secs`.
    Late,
    Busy,
    Unavailable,
    /// The server refused the operator's path or key, and has not begun.
    Rejected,
    /// Another node could not be reached, was lost, or its servers failed.
    Peer(AttemptFailure),
}

impl AttemptError {
    /// Returns the failure class for the retry budget; none when another attempt could do the work twice.
    pub fn retry_class(self) -> Option<AttemptFailure> {
        match self {
            AttemptError::NotConnected | AttemptError::NotTrusted => {
                Some(AttemptFailure::NotConnected)
            }
            AttemptError::Busy | AttemptError::Unavailable | AttemptError::Rejected => {
                Some(AttemptFailure::Failed)
            }
            AttemptError::Peer(failure) => Some(failure),
            AttemptError::Lost | AttemptError::Late => None,
        }
    }

    /// The same server would say the same again at once.
    pub fn is_final(self) -> bool {
        matches!(self, AttemptError::Busy | AttemptError::Rejected)
    }

    /// Returns the reason to leave the model for the next fallback.
    pub fn fallback_reason(self) -> FallbackReason {
        match self {
            AttemptError::Busy => FallbackReason::OutOfCapacity,
            _ => FallbackReason::Failed,
        }
    }

    /// Returns the request's result once its model makes no more attempts.
    pub fn into_model_error(self, expected_wait: Millis, pause: Option<Millis>) -> ModelError {
        match self {
            AttemptError::Lost => Refusal::UpstreamLost.into(),
            AttemptError::Late => Refusal::UpstreamTimeout.into(),
            AttemptError::Busy => {
                let refusal = match pause {
                    Some(retry_after) => Refusal::EndpointsPaused { retry_after },
                    None => Refusal::QueueFull {
                        retry_after: expected_wait,
                    },
                };
                ModelError::Fallback(FallbackReason::OutOfCapacity, refusal)
            }
            AttemptError::NotTrusted => {
                ModelError::Fallback(FallbackReason::Failed, Refusal::UpstreamNotTrusted)
            }
            AttemptError::Rejected => {
                ModelError::Fallback(FallbackReason::Failed, Refusal::UpstreamRejected)
            }
            AttemptError::NotConnected | AttemptError::Unavailable | AttemptError::Peer(_) => {
                ModelError::Fallback(FallbackReason::Failed, Refusal::UpstreamFailed)
            }
        }
    }
}
