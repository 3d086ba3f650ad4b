//! `GET` and `PUT /config/runtime`: flags that operators change while it runs.
//!
//! State stays with `app`, behind [`Controls`]. A change is answered when it is in force and would
//! survive a crash.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use crate::state::RuntimeFlags;

/// Changes that the listener may make.
#[async_trait]
pub trait Controls: Send + Sync + 'static {
    /// The flags as they stand.
    fn flags(&self) -> RuntimeFlags;
    /// Sets and keeps the given flags, and returns all of them; the error is the reason why they
    /// stay as they were.
    async fn set_flags(self: Arc<Self>, changes: FlagChanges) -> Result<RuntimeFlags, String>;
}

/// The body of `PUT /config/runtime`. A flag that is left out stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlagChanges {
    allow_cloud_fallback: Option<bool>,
}

impl FlagChanges {
    /// `flags` with what is wanted put over them.
    pub fn apply_to(self, flags: RuntimeFlags) -> RuntimeFlags {
        RuntimeFlags {
            allow_cloud_fallback: self
                .allow_cloud_fallback
                .unwrap_or(flags.allow_cloud_fallback),
        }
    }
}
