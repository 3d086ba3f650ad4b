//! Files of the embedded store around its database: the lock, the checks before it is opened, the room it needs.
//!
//! Not the database itself. A store that was there is never replaced by an empty one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::wal::{self, WalDamage};

/// Name of the lock. Its content says that a store was made in the folder.
const LOCK: &str = "lock";
/// Lock of processes that have let go of the store and still run jobs of it.
const LIFE: &str = "former";
const USED: &[u8] = b"a store was made here\n";
/// File that is written to see whether there is room.
const PROBE: &str = "probe";
/// Room that a store which failed needs before it is opened again, so that it does not fail at the next write.
const ROOM_BYTES: usize = 1 << 20;

/// Reason for which the store is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoreFailure {
    /// Text for operators.
    pub text: String,
    /// The file is damaged: trying again soon does not help.
    pub is_damaged: bool,
    /// Data to be written may be found at the next start.
    pub is_outcome_unknown: bool,
}

impl StoreFailure {
    fn io(error: &io::Error) -> StoreFailure {
        StoreFailure {
            text: error.to_string(),
            is_damaged: false,
            is_outcome_unknown: false,
        }
    }
}

impl From<rusqlite::Error> for StoreFailure {
    fn from(error: rusqlite::Error) -> StoreFailure {
        let code = error.sqlite_error_code();
        StoreFailure {
            text: error.to_string(),
            is_damaged: matches!(
                code,
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ),
            // A sync that fails may come after the whole transaction.
            is_outcome_unknown: code == Some(ErrorCode::SystemIoFailure),
        }
    }
}

/// Locks the file by which a process that has let go of the store in `folder` shows that it lives. Several may.
///
/// # Errors
/// The file cannot be made.
pub(super) fn lock_life(folder: &Path) -> io::Result<File> {
    let life = open_life(folder)?;
    // The other side holds it for a moment only.
    life.lock_shared()?;
    Ok(life)
}

/// Returns whether a process lives that has let go of the store in `folder`. Without an answer of the file system it may.
pub(super) fn is_life_locked(folder: &Path) -> bool {
    open_life(folder).map_or(true, |life| life.try_lock().is_err())
}

fn open_life(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    options.open(folder.join(LIFE))
}

/// Files of a store. The kernel ends the lock with the process.
pub(super) struct StoreFiles {
    path: PathBuf,
    /// Lock on the folder: one process owns the store.
    lock: Option<File>,
    /// Damage that was logged.
    logged: Option<WalDamage>,
}

impl StoreFiles {
    /// Files of the database `path`; nothing is read yet.
    pub fn new(path: &Path) -> StoreFiles {
        StoreFiles {
            path: path.to_owned(),
            lock: None,
            logged: None,
        }
    }

    /// Folder of the store.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Locks the folder, which is made where there is none.
    pub fn lock(&mut self) -> Result<(), StoreFailure> {
        if self.lock.is_some() {
            return Ok(());
        }
        let folder = self.folder();
        let lock = fs::create_dir_all(folder).and_then(|()| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false);
            options.open(folder.join(LOCK))
        });
        let lock = lock.map_err(|error| StoreFailure::io(&error))?;
        match lock.try_lock() {
            Ok(()) => self.lock = Some(lock),
            Err(TryLockError::WouldBlock) => {
                return Err(StoreFailure {
                    text: "another process has it: it is opened when that ends".to_owned(),
                    is_damaged: false,
                    is_outcome_unknown: false,
                });
            }
            Err(TryLockError::Error(error)) => return Err(StoreFailure::io(&error)),
        }
        Ok(())
    }

    /// Lets go of the folder.
    pub fn unlock(&mut self) {
        self.lock = None;
    }

    /// Checks what SQLite would pass over in silence: a lost file, and a bad end of the write-ahead log.
    pub fn check(&mut self) -> Result<(), StoreFailure> {
        let log = self.log_path();
        let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
        let was_used = length(&self.folder().join(LOCK)) > 0 || length(&log) > 0;
        if was_used && length(&self.path) == 0 {
            let folder = self.folder().display();
            return Err(StoreFailure {
                text: format!(
                    "it is missing or empty, and a store was kept here: bring it back, or remove {folder} to begin with none"
                ),
                is_damaged: false,
                is_outcome_unknown: false,
            });
        }
        let damage = wal::find_damage(&log).map_err(|error| StoreFailure::io(&error))?;
        if let Some(damage) = damage
            && self.logged.as_ref() != Some(&damage)
        {
            let WalDamage {
                offset,
                frames,
                problem,
            } = damage;
            tracing::error!(
                file = %log.display(), offset, frames, problem,
                "the end of the store of jobs is torn or damaged: it starts on the last whole transaction before it"
            );
            self.logged = Some(damage);
        }
        Ok(())
    }

    /// Remembers that there is a store, so that its loss is noticed. A failure leaves it for the next start.
    pub fn mark_used(&self) {
        if let Some(mut lock) = self.lock.as_ref()
            && lock.metadata().is_ok_and(|file| file.len() == 0)
        {
            let _ = lock.write_all(USED).and_then(|()| lock.sync_all());
        }
    }

    /// Checks whether there is room for what waits to be written.
    pub fn check_room(&self) -> Result<(), StoreFailure> {
        let path = self.folder().join(PROBE);
        let written = File::create(&path).and_then(|mut probe| {
            probe.write_all(&vec![0; ROOM_BYTES])?;
            probe.sync_all()
        });
        // A probe that stays would be overwritten by the next one.
        let _ = fs::remove_file(&path);
        written.map_err(|error| StoreFailure {
            text: format!("there is no room to write 1 MiB: {error}"),
            is_damaged: false,
            is_outcome_unknown: false,
        })
    }

    fn log_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push("-wal");
        path.into()
    }
}
