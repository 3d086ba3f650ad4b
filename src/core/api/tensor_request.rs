//! Parts of a request of tensors beside its body.
//!
//! Not parsed here: the Open Inference dialect does.

/// Header with the bytes of JSON before the tensors of a body, in lower case.
pub const JSON_BYTES_HEADER: &str = "inference-header-content-length";

/// Parts of an inference request beside its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorRequest {
    /// Version of the model at its server.
    pub version: Option<String>,
    /// Bytes of JSON before the tensors; none where all of the body is JSON.
    pub json_bytes: Option<usize>,
    /// Outputs for the client; empty for all.
    pub outputs: Vec<String>,
}
