//! `POST /plugins/{name}/capture?calls={n}`: asking for calls of a plugin to be written down.
//!
//! Captures are made and reported by `app`.

use serde::Serialize;

/// Plugin whose calls are being written, and the file they go to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaptureReport {
    /// The plugin.
    pub plugin: String,
    /// File that its calls are written to, a line each.
    pub file: String,
    /// Number of calls.
    pub calls: u32,
    /// The capture ends after so many seconds even when there were fewer calls.
    pub ends_within_secs: u64,
}

/// Reason for a capture that does not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// No plugin has this name.
    #[error("{0}")]
    NotFound(String),
    /// The question is wrong.
    #[error("{0}")]
    Wrong(String),
    /// Another one runs, or there are too many files.
    #[error("{0}")]
    Busy(String),
    /// No file can be written.
    #[error("{0}")]
    Unwritable(String),
}

impl CaptureError {
    /// HTTP status of the error.
    pub(super) fn status(&self) -> u16 {
        match self {
            CaptureError::NotFound(_) => 404,
            CaptureError::Wrong(_) => 400,
            CaptureError::Busy(_) => 409,
            CaptureError::Unwritable(_) => 503,
        }
    }
}

/// The plugin of such a path.
pub(super) fn plugin_in_path(path: &str) -> Option<&str> {
    let name = path.strip_prefix("/plugins/")?.strip_suffix("/capture")?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// The number of calls in a query.
pub(super) fn calls_in_query(query: &str) -> Option<u32> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == "calls")?.1.parse().ok()
}
