//! `POST /plugins/{name}/capture?calls={n}`: asking for calls of a plugin to be written down.
//!
//! It captures nothing: `app` does, and says what came of it.

use serde::Serialize;

/// What is being written, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaptureReport {
    /// The plugin.
    pub plugin: String,
    /// Where its calls go, a line each.
    pub file: String,
    /// How many.
    pub calls: u32,
    /// It ends after so many seconds even when there were fewer calls.
    pub ends_within_secs: u64,
}

/// Why nothing is captured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureFailed {
    /// There is no such plugin.
    #[error("{0}")]
    NotFound(String),
    /// The question is wrong.
    #[error("{0}")]
    Wrong(String),
    /// Another one runs, or there are too many files.
    #[error("{0}")]
    Busy(String),
    /// There is nowhere to write to.
    #[error("{0}")]
    Unwritable(String),
}

impl CaptureFailed {
    /// The status it is told with.
    pub(super) fn status(&self) -> u16 {
        match self {
            CaptureFailed::NotFound(_) => 404,
            CaptureFailed::Wrong(_) => 400,
            CaptureFailed::Busy(_) => 409,
            CaptureFailed::Unwritable(_) => 503,
        }
    }
}

/// The plugin of such a path.
pub(super) fn plugin_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix("/plugins/")?.strip_suffix("/capture")?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// The number of calls in a query.
pub(super) fn calls_of(query: &str) -> Option<u32> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == "calls")?.1.parse().ok()
}
