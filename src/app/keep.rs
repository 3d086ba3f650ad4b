//! Keeps the neurons of the day over a restart: one small file in `state_dir`, replaced whole.
//!
//! It counts nothing. The file is written within [`KEEP_TICK`] of a change, so that a process that
//! is killed grants again what was used in its last half second, and no more.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use infergate_core::billing::QuotaSnapshot;
use tokio::time::{MissedTickBehavior, interval};

use super::state_dir::{self, Outlasts};
use crate::proxy::Ledger;

/// Half of the second that may be granted again.
const KEEP_TICK: Duration = Duration::from_millis(500);
/// The file's name in `state_dir`.
const FILE: &str = "neurons-of-the-day.json";
/// Far more than a line for each of 100,000 accounts.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// What a former process kept; nothing when there was none.
///
/// # Errors
/// The file is there and cannot be read: going on would grant the day's neurons again.
pub fn read(state_dir: &Path) -> io::Result<QuotaSnapshot> {
    let path = state_dir.join(FILE);
    let unusable = |why: String| {
        let path = path.display();
        io::Error::other(format!(
            "{path} {why}: remove it to begin the day's count again"
        ))
    };
    let text = state_dir::read(&path, FILE_BYTES_MAX).map_err(|error| unusable(error.to_string()));
    match text? {
        Some(text) => {
            serde_json::from_slice(&text).map_err(|error| unusable(format!("is damaged ({error})")))
        }
        None => Ok(QuotaSnapshot::default()),
    }
}

/// Writes what has changed, for the life of the process.
pub async fn keep(ledger: Arc<Ledger>, state_dir: PathBuf) {
    let mut ticks = interval(KEEP_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut kept = 0;
    loop {
        ticks.tick().await;
        kept = keep_once(&ledger, &state_dir, kept).await;
    }
}

/// Writes what has changed since `kept`, and tells what is kept then.
pub async fn keep_once(ledger: &Ledger, state_dir: &Path, kept: u64) -> u64 {
    let Some((version, snapshot)) = ledger.news(kept) else {
        return kept;
    };
    let state_dir = state_dir.to_owned();
    let writing = tokio::task::spawn_blocking(move || write(&state_dir, &snapshot)).await;
    match writing {
        Ok(Ok(())) => version,
        Ok(Err(error)) => {
            tracing::error!(%error, "the neurons of the day could not be kept; tried again");
            kept
        }
        Err(_) => kept,
    }
}

fn write(state_dir: &Path, snapshot: &QuotaSnapshot) -> io::Result<()> {
    let text = serde_json::to_vec(snapshot)?;
    state_dir::replace(state_dir, FILE, &text, Outlasts::Crash)
}

#[cfg(test)]
mod tests {
    use infergate_core::AccountId;

    use super::*;
    use crate::telemetry::clock::well_before_midnight;

    #[tokio::test]
    async fn what_is_kept_is_read_again_and_a_damaged_file_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), QuotaSnapshot::default());
        let ledger = Ledger::restore(&QuotaSnapshot::default(), well_before_midnight());
        let account = AccountId::from("a");
        ledger.hold(&account, 5.0, 10).unwrap().settle(4.0);
        let kept = keep_once(&ledger, dir.path(), 0).await;
        assert!(ledger.news(kept).is_none());
        let again = Ledger::restore(&read(dir.path()).unwrap(), well_before_midnight());
        assert_eq!(again.used(&account), 4.0);

        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(
            read(dir.path())
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
    }
}
