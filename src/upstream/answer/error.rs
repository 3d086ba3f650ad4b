//! Errors of a response that began well and does not come to its end.
//!
//! No text for the client: that is the refusal's it becomes.

use infergate_core::Refusal;

use super::ANSWER_BYTES_MAX;

/// Why a response that began well cannot be passed on to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// An event that has to be read grew over its bound.
    #[error("the backend sent an event over {ANSWER_BYTES_MAX} bytes")]
    EventTooLong,
    /// A response to be converted grew over its bound.
    #[error("the backend's answer is over {ANSWER_BYTES_MAX} bytes")]
    AnswerTooLong,
    /// Not the shape this kind of backend answers with.
    #[error("the backend's answer has an unexpected shape")]
    Malformed,
    /// The stream closed in good order but without its end mark.
    #[error("the backend's stream ended without its end mark")]
    EndedEarly,
    /// The backend reported a failure of its own after its 200.
    #[error("the backend reported a failure in its answer")]
    BackendFailed,
    /// The model's task does not let it pass: not the backend's doing.
    #[error("the model's task does not let the answer pass")]
    Refused(Box<Refusal>),
}

impl AnswerError {
    pub(super) fn refused(refusal: Refusal) -> AnswerError {
        AnswerError::Refused(Box::new(refusal))
    }
}

impl From<AnswerError> for Refusal {
    fn from(error: AnswerError) -> Refusal {
        match error {
            AnswerError::Refused(refusal) => *refusal,
            _ => Refusal::UpstreamLost,
        }
    }
}
