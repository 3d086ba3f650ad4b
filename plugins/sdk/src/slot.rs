//! Holder of an instance's configured plugin: one value, set once.

use std::sync::OnceLock;

use crate::{Plugin, Problem, Settings};

/// The configured plugin of this instance.
pub struct Slot<T>(OnceLock<T>);

impl<T: Plugin> Slot<T> {
    /// Not configured yet.
    pub const fn new() -> Slot<T> {
        Slot(OnceLock::new())
    }

    /// Configures the instance. A second call changes nothing: other settings are another instance.
    pub fn configure(&self, settings: &str) -> Result<(), Vec<Problem>> {
        let plugin = Settings::read::<T>(settings)?;
        let _ = self.0.set(plugin);
        Ok(())
    }

    /// The plugin, with the settings `{}` when it was not configured.
    pub fn get(&self) -> Result<&T, String> {
        if self.0.get().is_none() {
            self.configure("{}").map_err(|problems| {
                problems.first().map_or_else(String::new, |first| {
                    ["not configured: ", &first.path, ": ", &first.message].concat()
                })
            })?;
        }
        self.0.get().ok_or_else(String::new)
    }
}

impl<T: Plugin> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot::new()
    }
}
