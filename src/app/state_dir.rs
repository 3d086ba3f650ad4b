//! Small files in `state_dir`, replaced whole and read back whole.
//!
//! The meaning of the files is unknown here. A write goes beside the old file, is synced and renamed over it,
//! so that a whole file always exists. Writing blocks for as long as the disk takes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Only the owner reads what the gateway keeps.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Reads the file; none when it does not exist.
///
/// # Errors
/// The file exists and cannot be read, or is larger than `max_bytes`.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Ok(found) if found.len() > max_bytes => Err(io::Error::other("is too large")),
        Ok(_) => fs::read(path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the directory, and those above it, for its owner alone; one that is there stays as it is.
pub fn create(state_dir: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(state_dir)
}

/// Puts `bytes` in place of the file called `name`. On return they outlast a crash of the process;
/// with `Outlasts::PowerLoss`, one of the machine too.
pub fn replace(
    state_dir: &Path,
    name: &str,
    bytes: &[u8],
    outlasts: WriteDurability,
) -> io::Result<()> {
    create(state_dir)?;
    let beside = state_dir.join(format!("{name}.new"));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(&beside)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&beside, state_dir.join(name))?;
    match outlasts {
        WriteDurability::Crash => Ok(()),
        // The new name is the directory's to keep. The file is in its place whatever comes of this, so
        // that to call it a failure would be the lesser truth.
        WriteDurability::PowerLoss => {
            if let Err(error) = File::open(state_dir).and_then(|dir| dir.sync_all()) {
                tracing::error!(%error, file = name, "kept, but a power loss may bring the former one back");
            }
            Ok(())
        }
    }
}

/// Failures that a replaced file survives. Either way it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDurability {
    /// The process; after a power loss the former one may be back.
    Crash,
    /// The machine.
    PowerLoss,
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let path = state.join("flags");
        assert!(read(&path, 10).unwrap().is_none());
        for text in ["first one", "second"] {
            replace(&state, "flags", text.as_bytes(), WriteDurability::PowerLoss).unwrap();
            assert_eq!(read(&path, 10).unwrap().unwrap(), text.as_bytes());
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&state)), (0o600, 0o700));
        assert!(read(&path, 5).is_err());
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
    }
}
