//! Disk work away from the threads that serve requests.
//!
//! Not a queue: each caller waits for its own piece of work, so that there are never more than callers.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Only the owner reads what users have sent.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Runs work that blocks for as long as the disk takes.
///
/// # Errors
/// The error of the work, or that the process ends.
pub async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::other("the disk work was cut off")),
    }
}

/// Creates a file that is not there yet, for its owner alone.
///
/// # Errors
/// The system's.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)
}

/// Creates a folder, and those above it, for its owner alone.
///
/// # Errors
/// The system's.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)
}

/// Makes names of a folder outlast a power loss.
///
/// # Errors
/// The system's.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes a file; one that is not there is removed already.
///
/// # Errors
/// The system's.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
