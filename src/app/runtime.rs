//! Keeps the flags that operators change while the gateway runs: one small file in `state_dir`.
//!
//! A change is on the disk before it is answered and before it is in force, so that what an operator
//! was promised holds after any restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::admin::{Controls, FlagChanges};
use crate::app::state_dir::{self, WriteDurability};
use crate::state::{RuntimeFlags, RuntimeSwitches};

/// The file's name in `state_dir`.
const FILE: &str = "runtime.json";
/// Far more than all flags there are.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The flags a former process kept; the defaults when there was none.
///
/// # Errors
/// The file is there and cannot be read: going on could open what an operator has closed.
fn read(state_dir: &Path) -> io::Result<RuntimeFlags> {
    let path = state_dir.join(FILE);
    let unusable = |why: String| {
        let path = path.display();
        io::Error::other(format!(
            "{path} {why}: mend it, or remove it to begin with the defaults"
        ))
    };
    let text = state_dir::read(&path, FILE_BYTES_MAX).map_err(|error| unusable(error.to_string()));
    match text? {
        Some(text) => {
            serde_json::from_slice(&text).map_err(|error| unusable(format!("is damaged ({error})")))
        }
        None => Ok(RuntimeFlags::default()),
    }
}

/// The flags as requests read them, as a former process kept them.
///
/// # Errors
/// As [`read`].
pub fn restore(state_dir: &Path) -> io::Result<Arc<RuntimeSwitches>> {
    Ok(Arc::new(RuntimeSwitches::restore(read(state_dir)?)))
}

/// Changes the flags for the admin listener.
pub struct RuntimeKeeper {
    runtime: Arc<RuntimeSwitches>,
    state_dir: PathBuf,
    /// Held by one change at a time, on a thread that may block, while it writes.
    changing: Mutex<()>,
}

impl RuntimeKeeper {
    /// Changes `runtime` and keeps it in `state_dir`.
    pub fn new(runtime: Arc<RuntimeSwitches>, state_dir: PathBuf) -> Arc<RuntimeKeeper> {
        Arc::new(RuntimeKeeper {
            runtime,
            state_dir,
            changing: Mutex::new(()),
        })
    }

    fn change(&self, changes: FlagChanges) -> io::Result<RuntimeFlags> {
        let _one_at_a_time = self.changing.lock();
        let flags = changes.apply_to(self.runtime.flags());
        let mut text = serde_json::to_vec(&flags)?;
        text.push(b'\n');
        state_dir::replace(&self.state_dir, FILE, &text, WriteDurability::PowerLoss)?;
        self.runtime.set(flags);
        tracing::info!(?flags, "runtime flags set");
        Ok(flags)
    }
}

#[async_trait]
impl Controls for RuntimeKeeper {
    fn flags(&self) -> RuntimeFlags {
        self.runtime.flags()
    }

    async fn set_flags(self: Arc<Self>, changes: FlagChanges) -> Result<RuntimeFlags, String> {
        let state_dir = self.state_dir.clone();
        let changing = tokio::task::spawn_blocking(move || self.change(changes)).await;
        let changed = changing.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        changed.map_err(|error| {
            tracing::error!(%error, "runtime flags could not be kept: they stay as they are");
            format!("{} cannot be written: {error}", state_dir.display())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARRED: RuntimeFlags = RuntimeFlags {
        allow_cloud_fallback: false,
    };

    fn barring() -> FlagChanges {
        serde_json::from_str(r#"{"allow_cloud_fallback":false}"#).unwrap()
    }

    #[tokio::test]
    async fn a_change_is_kept_before_it_is_in_force_and_read_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), RuntimeFlags::default());
        let runtime = Arc::new(RuntimeSwitches::default());
        let keeper = RuntimeKeeper::new(Arc::clone(&runtime), dir.path().to_owned());
        assert_eq!(Arc::clone(&keeper).set_flags(barring()).await, Ok(BARRED));
        assert_eq!(runtime.flags(), BARRED);
        assert_eq!(read(dir.path()).unwrap(), BARRED);
        // What is not named stays.
        assert_eq!(keeper.set_flags(FlagChanges::default()).await, Ok(BARRED));
    }

    #[tokio::test]
    async fn a_change_that_cannot_be_kept_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("no-directory");
        std::fs::write(&file, "").unwrap();
        let runtime = Arc::new(RuntimeSwitches::default());
        let keeper = RuntimeKeeper::new(Arc::clone(&runtime), file);
        assert!(keeper.set_flags(barring()).await.is_err());
        assert_eq!(runtime.flags(), RuntimeFlags::default());
    }

    #[test]
    fn a_damaged_file_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }
}
