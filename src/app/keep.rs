//! Keeps the neurons of the day over a restart: one small file in `state_dir`, replaced whole.
//!
//! It counts nothing. The file is written within [`KEEP_TICK`] of a change, so that a process that
//! is killed grants again what was used in its last half second, and no more.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use infergate_core::billing::QuotaSnapshot;
use tokio::time::{MissedTickBehavior, interval};

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
    match fs::metadata(&path) {
        Ok(found) if found.len() > FILE_BYTES_MAX => Err(unusable("is too large".into())),
        Ok(_) => {
            let text = fs::read(&path)?;
            serde_json::from_slice(&text).map_err(|error| unusable(format!("is damaged ({error})")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(QuotaSnapshot::default()),
        Err(error) => Err(error),
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

/// Beside the file and over it, so that there is always a whole one.
fn write(state_dir: &Path, snapshot: &QuotaSnapshot) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)?;
    let beside = state_dir.join(format!("{FILE}.new"));
    let mut file = File::create(&beside)?;
    file.write_all(&serde_json::to_vec(snapshot)?)?;
    file.sync_data()?;
    fs::rename(&beside, state_dir.join(FILE))
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

        fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(
            read(dir.path())
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
    }
}
