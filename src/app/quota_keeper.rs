//! Keeps the neurons of the day over a restart: one small file in `state_dir`, replaced whole.
//!
//! Counting is done by the quota store. The file is written within [`KEEP_TICK`] of a change, so
//! that a process that is killed grants again what was used in its last half second, and no more.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use infergate_core::billing::QuotaSnapshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::app::state_dir::{self, WriteDurability};
use crate::app::state_lock::StateLock;
use crate::state::QuotaStore;

/// Half of the second that may be granted again.
const KEEP_TICK: Duration = Duration::from_millis(500);
/// Between two log lines about a directory that is another process's: a minute.
const LOG_TICKS: u32 = 120;
/// The file's name in `state_dir`.
const FILE: &str = "neurons-of-the-day.json";
/// Far more than a line for each of 100,000 accounts.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Quota file of a former process; empty when there was none.
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

/// Keeps the neurons of the day in a directory that is this process's.
pub struct QuotaKeeper {
    store: Arc<QuotaStore>,
    lock: StateLock,
    state_dir: PathBuf,
    /// Usage at start. An excess in the file over it, at the moment the directory becomes this
    /// process's, was counted by the former process.
    at_start: QuotaSnapshot,
    /// The version that is kept.
    kept: u64,
    /// A write under way, with the version that it keeps: two at once would spoil the file.
    writing: Option<(u64, JoinHandle<io::Result<()>>)>,
    /// The process before this one lives, and keeps what both count when it ends.
    has_predecessor: Arc<AtomicBool>,
    /// Ticks since the last log line that nothing is being kept.
    silent_ticks: u32,
}

impl QuotaKeeper {
    /// Builds a keeper that has written nothing yet.
    pub fn new(
        store: Arc<QuotaStore>,
        lock: StateLock,
        state_dir: &Path,
        began_with: QuotaSnapshot,
    ) -> QuotaKeeper {
        QuotaKeeper {
            store,
            lock,
            state_dir: state_dir.to_owned(),
            at_start: began_with,
            kept: 0,
            writing: None,
            has_predecessor: Arc::default(),
            silent_ticks: 0,
        }
    }

    /// Writes what has changed, at most every half second, until `end`. Rests while nothing changes.
    pub async fn run_until<T>(&mut self, end: impl Future<Output = T>) -> T {
        tokio::pin!(end);
        loop {
            // A write under way is waited for by the next one.
            let kept = async {
                self.flush().await;
                sleep(KEEP_TICK).await;
                if self.is_kept() {
                    self.store.changed().await;
                }
            };
            tokio::select! {
                biased;
                ended = &mut end => return ended,
                () = kept => {}
            }
        }
    }

    /// Returns whether the file has all that there is to keep.
    fn is_kept(&self) -> bool {
        self.writing.is_none() && self.store.version() == self.kept
    }

    /// Marks this process as draining: its successor may start beside it.
    pub fn set_draining(&mut self) {
        self.lock.set_draining();
    }

    /// Writes what has changed since the last time.
    pub async fn flush(&mut self) {
        self.finish_write().await;
        let Some((version, snapshot)) = self.store.changes_since(self.kept) else {
            return;
        };
        if !self.lock.is_held() && !self.take_over() {
            return;
        }
        let (version, snapshot) = self
            .store
            .changes_since(self.kept)
            .unwrap_or((version, snapshot));
        let state_dir = self.state_dir.clone();
        let writing = tokio::task::spawn_blocking(move || write(&state_dir, &snapshot));
        self.writing = Some((version, writing));
        self.finish_write().await;
    }

    /// Waits for the write under way. Dropping the future leaves it where it is.
    async fn finish_write(&mut self) {
        let Some((version, writing)) = &mut self.writing else {
            return;
        };
        let (version, written) = (*version, writing.await);
        self.writing = None;
        match written {
            Ok(Ok(())) => self.kept = version,
            Ok(Err(error)) => {
                tracing::error!(%error, "the neurons of the day could not be kept; tried again");
            }
            Err(_) => {}
        }
    }

    /// Leaves the directory to the process before this one, while `has_predecessor`.
    pub fn wait_for(&mut self, has_predecessor: Arc<AtomicBool>) {
        self.has_predecessor = has_predecessor;
        // That the predecessor has the directory for a while is no news.
        self.silent_ticks = 1;
    }

    /// Asks for the directory, and counts what the process before has counted since this one began.
    fn take_over(&mut self) -> bool {
        if self.has_predecessor.load(Ordering::Acquire) {
            return false;
        }
        let taken = self.lock.acquire().and_then(|is_ours| match is_ours {
            true => read(&self.state_dir).map(Some),
            false => Ok(None),
        });
        match taken {
            Ok(Some(after)) => {
                let before = std::mem::take(&mut self.at_start);
                self.store.absorb(&before, &after);
                true
            }
            Ok(None) => {
                if self.silent_ticks.is_multiple_of(LOG_TICKS) {
                    tracing::warn!(
                        "another process has `state_dir`: the neurons of the day are not kept before it ends"
                    );
                }
                self.silent_ticks = self.silent_ticks.wrapping_add(1);
                false
            }
            Err(error) => {
                tracing::error!(%error, "the neurons of the day could not be kept; tried again");
                false
            }
        }
    }
}

fn write(state_dir: &Path, snapshot: &QuotaSnapshot) -> io::Result<()> {
    let text = serde_json::to_vec(snapshot)?;
    state_dir::replace(state_dir, FILE, &text, WriteDurability::Crash)
}

#[cfg(test)]
mod tests {
    use infergate_core::AccountId;

    use super::*;
    use crate::telemetry::clock::well_before_midnight;

    fn keeper(store: &Arc<QuotaStore>, dir: &Path) -> QuotaKeeper {
        let lock = StateLock::acquire_at_start(dir, true).unwrap();
        QuotaKeeper::new(Arc::clone(store), lock, dir, read(dir).unwrap())
    }

    #[tokio::test]
    async fn a_process_that_begins_beside_one_that_drains_counts_on_from_both() {
        let dir = tempfile::tempdir().unwrap();
        let begin = || QuotaStore::restore(&read(dir.path()).unwrap(), well_before_midnight());
        let account = AccountId::from("a");
        let spend = |store: &Arc<QuotaStore>, neurons| {
            store.reserve(&account, 1.0, 100).unwrap().settle(neurons);
        };
        let old = begin();
        let mut keeps_old = keeper(&old, dir.path());
        spend(&old, 4.0);
        keeps_old.flush().await;
        keeps_old.set_draining();
        let new = begin();
        let mut keeps_new = keeper(&new, dir.path());
        spend(&new, 3.0);
        spend(&old, 2.0);
        keeps_new.flush().await;
        keeps_old.flush().await;
        assert_eq!(begin().used(&account), 6.0, "only the first has written");
        drop(keeps_old);
        keeps_new.flush().await;
        assert_eq!((new.used(&account), begin().used(&account)), (9.0, 9.0));
    }

    #[tokio::test]
    async fn each_of_three_processes_in_a_row_is_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        let account = AccountId::from("a");
        let spend = |store: &Arc<QuotaStore>, neurons| {
            store.reserve(&account, 1.0, 1000).unwrap().settle(neurons);
        };
        let follow = |former: &Arc<QuotaStore>, gone: &Arc<AtomicBool>| {
            let kept = former.snapshot();
            let store = QuotaStore::restore(&kept, well_before_midnight());
            let lock = StateLock::acquire_at_start(dir.path(), true).unwrap();
            let mut keeper = QuotaKeeper::new(Arc::clone(&store), lock, dir.path(), kept);
            keeper.wait_for(Arc::clone(gone));
            (store, keeper)
        };
        let first = QuotaStore::restore(&QuotaSnapshot::default(), well_before_midnight());
        let mut keeps_first = keeper(&first, dir.path());
        spend(&first, 1.0);
        let lives = [
            Arc::new(AtomicBool::new(true)),
            Arc::new(AtomicBool::new(true)),
        ];
        let (second, mut keeps_second) = follow(&first, &lives[0]);
        spend(&second, 10.0);
        let (third, mut keeps_third) = follow(&second, &lives[1]);
        spend(&third, 100.0);
        assert_eq!(third.used(&account), 111.0);
        // The first ends, and the third looks before the second does.
        spend(&first, 2.0);
        keeps_first.flush().await;
        drop(keeps_first);
        lives[0].store(false, Ordering::Release);
        keeps_third.flush().await;
        spend(&second, 20.0);
        keeps_second.flush().await;
        drop(keeps_second);
        lives[1].store(false, Ordering::Release);
        keeps_third.flush().await;
        let kept = QuotaStore::restore(&read(dir.path()).unwrap(), well_before_midnight());
        assert_eq!((third.used(&account), kept.used(&account)), (133.0, 133.0));
    }

    #[tokio::test]
    async fn what_is_kept_is_read_again_and_a_damaged_file_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), QuotaSnapshot::default());
        let store = QuotaStore::restore(&QuotaSnapshot::default(), well_before_midnight());
        let account = AccountId::from("a");
        store.reserve(&account, 5.0, 10).unwrap().settle(4.0);
        let mut keeper = keeper(&store, dir.path());
        keeper.flush().await;
        assert!(store.changes_since(keeper.kept).is_none());
        let again = QuotaStore::restore(&read(dir.path()).unwrap(), well_before_midnight());
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
