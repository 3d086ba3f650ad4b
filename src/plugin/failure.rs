//! Why a plugin has no answer, by who is at fault.
//!
//! It does not say what the request gets then: that is the order of answerers in `line.rs`. Texts
//! are for the log; the caller of the gateway never sees a plugin's words about itself.

use infergate_core::task::Rejection;
use thiserror::Error;

/// A call that gave no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The plugin says that the client is wrong. Not a failure of the plugin.
    #[error("input not taken: {}", .0.message)]
    Rejected(Rejection),
    /// The plugin reported its own fault.
    #[error("the plugin reports: {0}")]
    Broken(String),
    /// The guest trapped.
    #[error("trapped: {0}")]
    Trapped(String),
    /// It ran past its deadline.
    #[error("ran past its deadline")]
    Deadline,
    /// It wanted more memory than it may have.
    #[error("wanted more memory than its limit")]
    Memory,
    /// It answered or logged more bytes than it may.
    #[error("handed over more bytes than its limit")]
    Overrun,
    /// Its answer breaks this rule.
    #[error("its answer breaks the rule `{0}`")]
    Invalid(&'static str),
    /// It was not asked.
    #[error("not asked: {0}")]
    Unavailable(&'static str),
    /// It ran past its deadline over an input that is large. The input's fault.
    #[error("ran past its deadline over {bytes} bytes")]
    TooSlow {
        /// What it was handed.
        bytes: usize,
    },
    /// It was not asked: what it would be handed is too large for its memory. The input's fault.
    #[error("not asked: {bytes} bytes are more than {max}, a quarter of `limits.memory_mib`")]
    TooLarge {
        /// What it would be handed.
        bytes: usize,
        /// What it takes.
        max: usize,
    },
}

impl Failure {
    /// The classes that count against a plugin, in the order of their counters.
    pub const CLASSES: [&'static str; 7] = [
        "broken",
        "trapped",
        "deadline",
        "memory",
        "overrun",
        "invalid",
        "unavailable",
    ];

    /// Its name in metrics, logs and fixtures.
    pub const fn class(&self) -> &'static str {
        match self {
            Failure::Rejected(_) => "rejected",
            Failure::Broken(_) => "broken",
            Failure::Trapped(_) => "trapped",
            Failure::Deadline => "deadline",
            Failure::Memory => "memory",
            Failure::Overrun => "overrun",
            Failure::Invalid(_) => "invalid",
            // The two of an input say nothing about the plugin.
            Failure::Unavailable(_) | Failure::TooLarge { .. } | Failure::TooSlow { .. } => {
                "unavailable"
            }
        }
    }
}
