//! A whole body before it is read.
//!
//! Nothing of its shape is known here.

use serde_json::value::RawValue;

use super::error::ResponseError;

/// Returns the body without the byte order mark that some servers put before it.
pub(super) fn without_bom(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
}

/// Returns a single JSON value, without the space around it.
///
/// # Errors
/// The bytes are no JSON.
pub(super) fn json(bytes: &[u8]) -> Result<&[u8], ResponseError> {
    let value: &RawValue = serde_json::from_slice(bytes).map_err(|_| ResponseError::Malformed)?;
    Ok(value.get().as_bytes())
}
