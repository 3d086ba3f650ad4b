//! Exclusive use of a `state_dir` by one process: a lock on a file in it. The kernel releases the lock when
//! the process ends, in whatever way.
//!
//! Two that write the same files would each undo what the other has counted. A process that drains is the
//! exception: the one that follows it may begin beside it, and writes nothing before the other has ended.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::state_dir;

/// The file's name in `state_dir`.
const FILE: &str = "lock";
const FILE_MODE: u32 = 0o600;
/// Content of the file when its process drains.
const DRAINING: &str = "draining";
const SERVING: &str = "serving";
/// Environment variable of tests: starts beside a process that serves, as the successor of an upgrade.
const TAKE_OVER: &str = "INFERGATE_TAKE_OVER";

/// Claim of this process to the directory.
#[derive(Debug)]
pub struct StateLock {
    state_dir: PathBuf,
    /// Locked; none before it was asked for, or while another process has it.
    file: Option<File>,
}

impl StateLock {
    /// Asks for the directory where there is one. A directory that does not exist yet is claimed with the
    /// first write.
    ///
    /// # Errors
    /// A sentence: another process has it and does not drain, and this one `is_successor` of none.
    pub fn acquire_at_start(state_dir: &Path, is_successor: bool) -> Result<StateLock, String> {
        let mut lock = StateLock {
            state_dir: state_dir.to_owned(),
            file: None,
        };
        if !state_dir.is_dir() {
            return Ok(lock);
        }
        match lock.acquire() {
            Ok(true) => Ok(lock),
            Ok(false)
                if is_successor || lock.is_draining() || std::env::var_os(TAKE_OVER).is_some() =>
            {
                tracing::info!(
                    state_dir = %state_dir.display(),
                    "another process has this directory: nothing is kept before it has ended"
                );
                Ok(lock)
            }
            Ok(false) => Err(format!(
                "state_dir: {} is in use by another process: give each its own `state_dir`",
                state_dir.display()
            )),
            // A directory that is not ours to write may still be read; a failing write is reported later.
            Err(error) => {
                tracing::warn!(state_dir = %state_dir.display(), %error, "cannot be locked");
                Ok(lock)
            }
        }
    }

    /// Returns true when this process holds the directory.
    pub fn is_held(&self) -> bool {
        self.file.is_some()
    }

    /// Asks for it, again where another process had it. Claims the directory; returns true when
    /// this process holds it now.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn acquire(&mut self) -> io::Result<bool> {
        if self.is_held() {
            return Ok(true);
        }
        state_dir::create(&self.state_dir)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(self.state_dir.join(FILE))?;
        match file.try_lock() {
            Ok(()) => {
                write(&mut file, SERVING)?;
                self.file = Some(file);
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Marks this process as draining: its successor may start.
    pub fn set_draining(&mut self) {
        if let Some(file) = &mut self.file
            && let Err(error) = write(file, DRAINING)
        {
            tracing::warn!(%error, "the process that follows cannot begin before this one ends");
        }
    }

    /// Returns true when the process that holds the directory drains.
    fn is_draining(&self) -> bool {
        let mut text = String::new();
        let read = File::open(self.state_dir.join(FILE))
            .and_then(|mut file| file.read_to_string(&mut text));
        read.is_ok() && text.starts_with(DRAINING)
    }
}

fn write(file: &mut File, text: &str) -> io::Result<()> {
    file.rewind()?;
    file.set_len(0)?;
    writeln!(file, "{text} {}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_one_processes_and_the_next_ones_once_the_first_drains() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = StateLock::acquire_at_start(dir.path(), false).unwrap();
        assert!(first.is_held());
        // A second file description is as good as a second process.
        let refused = StateLock::acquire_at_start(dir.path(), false).unwrap_err();
        assert!(refused.contains("give each its own"), "{refused}");
        first.set_draining();
        let mut second = StateLock::acquire_at_start(dir.path(), false).unwrap();
        assert!(!second.is_held() && !second.acquire().unwrap());
        drop(first);
        assert!(second.acquire().unwrap() && second.is_held());
        assert!(
            StateLock::acquire_at_start(dir.path(), false).is_err(),
            "it serves, not drains"
        );
    }

    #[test]
    fn a_successor_begins_beside_a_process_that_serves() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateLock::acquire_at_start(dir.path(), false).unwrap();
        let second = StateLock::acquire_at_start(dir.path(), true).unwrap();
        assert!(first.is_held() && !second.is_held());
    }

    #[test]
    fn a_directory_that_is_not_there_is_made_with_the_first_write_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let mut lock = StateLock::acquire_at_start(&state, false).unwrap();
        assert!(!lock.is_held() && !state.exists());
        assert!(lock.acquire().unwrap() && state.exists());
    }
}
