//! Switches that operators change at run time, beside the configuration file.
//!
//! Not persistent: `app` stores the flags before it sets them here.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

/// The flags as they are shown and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuntimeFlags {
    /// Fallbacks may use models on external servers.
    pub allow_cloud_fallback: bool,
}

impl Default for RuntimeFlags {
    fn default() -> Self {
        RuntimeFlags {
            allow_cloud_fallback: true,
        }
    }
}

/// The flags as requests read them.
#[derive(Default)]
pub struct RuntimeSwitches {
    no_cloud_fallback: AtomicBool,
}

impl RuntimeSwitches {
    /// Flags that stand as they were kept.
    pub fn restore(flags: RuntimeFlags) -> RuntimeSwitches {
        let runtime = RuntimeSwitches::default();
        runtime.set(flags);
        runtime
    }

    /// As they stand.
    pub fn flags(&self) -> RuntimeFlags {
        RuntimeFlags {
            allow_cloud_fallback: !self.no_cloud_fallback.load(Ordering::Relaxed),
        }
    }

    /// From now on they stand so, for requests under way too.
    pub fn set(&self, flags: RuntimeFlags) {
        let barred = !flags.allow_cloud_fallback;
        self.no_cloud_fallback.store(barred, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cloud_is_allowed_until_told_otherwise() {
        let runtime = RuntimeSwitches::default();
        assert_eq!(runtime.flags(), RuntimeFlags::default());
        assert!(runtime.flags().allow_cloud_fallback);
        let barred = RuntimeFlags {
            allow_cloud_fallback: false,
        };
        runtime.set(barred);
        assert_eq!(runtime.flags(), barred);
        assert_eq!(RuntimeSwitches::restore(barred).flags(), barred);
    }
}
