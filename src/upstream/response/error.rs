//! Errors of a response that began well and does not come to its end.
//!
//! No text for the client: that is the refusal's it becomes.

use infergate_core::Refusal;
use infergate_core::api::dialect::NotTranslatable;

use super::bounds::RESPONSE_BYTES_MAX;

/// Reason for which a response that began well cannot be passed on to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// An event that has to be read grew over its bound.
    #[error("the backend sent an event over {RESPONSE_BYTES_MAX} bytes")]
    EventTooLong,
    /// A response to be converted grew over its bound.
    #[error("the backend's answer is over {RESPONSE_BYTES_MAX} bytes")]
    ResponseTooLong,
    /// Not the shape this kind of backend answers with.
    #[error("the backend's answer has an unexpected shape")]
    Malformed,
    /// The stream closed in good order but without its end mark.
    #[error("the backend's stream ended without its end mark")]
    EndedEarly,
    /// The backend reported in its 200 that the process of the model is gone.
    #[error("the model's process is gone")]
    ServerCrashed,
    /// The backend reported a failure of its own after its 200.
    #[error("the backend reported a failure in its answer")]
    BackendFailed,
    /// The model's task does not let it pass: not the backend's doing.
    #[error("the model's task does not let the answer pass")]
    Refused(Box<Refusal>),
}

impl ResponseError {
    pub(super) fn refused(refusal: Refusal) -> ResponseError {
        ResponseError::Refused(Box::new(refusal))
    }
}

impl From<NotTranslatable> for ResponseError {
    fn from(_: NotTranslatable) -> ResponseError {
        ResponseError::Malformed
    }
}

impl From<ResponseError> for Refusal {
    fn from(error: ResponseError) -> Refusal {
        match error {
            ResponseError::Refused(refusal) => *refusal,
            _ => Refusal::UpstreamLost,
        }
    }
}
