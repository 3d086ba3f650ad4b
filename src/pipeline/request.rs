//! Inference request as the pipeline gets it: authenticated, with its body whole.
//!
//! Not its state under way, which is the context.

use std::sync::Arc;

use bytes::Bytes;
use infergate_core::api::Operation;

use super::request_head::AuthenticatedRequest;
use crate::state::BodyShare;
use crate::upstream::{ModelRuntime, Permit};

/// Input of the pipeline.
pub struct InferenceRequest {
    /// Account, and the fields that pass.
    pub authenticated: AuthenticatedRequest,
    /// Operation that the route names.
    pub operation: Operation,
    /// Model that stood in the path.
    pub path_model: Option<String>,
    /// The same, where it was found already.
    pub model: Option<Arc<ModelRuntime>>,
    /// Body as received.
    pub body: Bytes,
    /// Memory that the body holds.
    pub body_share: BodyShare,
    /// Permit of the model that was granted before; the first attempt uses it.
    pub permit: Option<Permit>,
}

/// Request as received, until a response has started: a reload while it waits parses it again, and another node gets
/// it unchanged. The other owner of body bytes is the [`Call`](infergate_core::api::Call) of the present step.
pub struct ReceivedRequest {
    /// Account, and the fields that pass.
    pub authenticated: AuthenticatedRequest,
    /// Body as received.
    pub body: Bytes,
}
