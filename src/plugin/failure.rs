//! Failures of a plugin call, classified by their cause.
//!
//! Does not decide what the request gets then: the fallback chain does (`line.rs`). Texts are for the log;
//! the caller of the gateway never sees a plugin's error text.

use infergate_core::task::Rejection;
use serde_json::{Value, json};
use thiserror::Error;

/// A call that gave no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// Rejection of the client's input by the plugin; not a failure of the plugin.
    #[error("input not taken: {}", .0.message)]
    Rejected(Rejection),
    /// The plugin reported its own fault.
    #[error("the plugin reports: {0}")]
    Broken(String),
    /// The guest trapped.
    #[error("trapped: {0}")]
    Trapped(String),
    /// Deadline exceeded.
    #[error("ran past its deadline")]
    Deadline,
    /// More memory requested than granted.
    #[error("wanted more memory than its limit")]
    Memory,
    /// More bytes answered or logged than granted.
    #[error("handed over more bytes than its limit")]
    Overrun,
    /// Its answer breaks this rule.
    #[error("its answer breaks the rule `{0}`")]
    Invalid(&'static str),
    /// Not called.
    #[error("not called: {0}")]
    Unavailable(&'static str),
    /// Deadline exceeded over a large input. The input's fault.
    #[error("ran past its deadline over {bytes} bytes")]
    TooSlow {
        /// Size of the input.
        bytes: usize,
    },
    /// Not called: the input is too large for the guest's memory. The input's fault.
    #[error("not called: {bytes} bytes are more than {max}, a quarter of `limits.memory_mib`")]
    TooLarge {
        /// Size of the input.
        bytes: usize,
        /// Largest input of the plugin.
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
            // The two of an input do not count against the plugin.
            Failure::Unavailable(_) | Failure::TooLarge { .. } | Failure::TooSlow { .. } => {
                "unavailable"
            }
        }
    }

    /// A failure as `expect-error` spells it.
    pub fn expectation(&self) -> Value {
        match self {
            Failure::Rejected(detail) => json!({
                "class": "rejected", "status": detail.status, "code": detail.code,
                "message": detail.message, "pointer": detail.pointer,
            }),
            Failure::Invalid(rule) => json!({ "class": "invalid", "rule": rule }),
            Failure::Broken(detail) => json!({ "class": "broken", "message": detail }),
            other => json!({ "class": other.class() }),
        }
    }
}
