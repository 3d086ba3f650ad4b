//! Captured calls of plugins on their way to files below `state_dir`, for `infergate plugin replay`.
//!
//! The selection of calls to capture is made in `plugin`. A file is made when a capture begins, for its owner
//! alone, and grows every [`WRITE_TICK`] until the capture has ended. The file holds input of clients: only
//! the user that may read `state_dir` can read it, and only an operator removes it. At most [`FILES_MAX`]
//! files are made.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::admin::{CaptureError, CaptureReport};
use crate::plugin::{CAPTURE_MAX_SECS, Capture, CaptureBatch, CaptureStartError, Captures};
use crate::telemetry::Clock;

/// Between two writes.
const WRITE_TICK: Duration = Duration::from_millis(250);
/// The folder in `state_dir`.
const FOLDER: &str = "captures";
/// Files of captures that are kept, of 64 MiB at most.
const FILES_MAX: usize = 16;

/// Writes captures to files.
pub struct CaptureRecorder {
    captures: Arc<Captures>,
    folder: PathBuf,
    clock: Clock,
    /// Captures that run. Locked for a look at the list, and by the writer for a write.
    running: Arc<Mutex<Vec<ActiveCapture>>>,
    /// Notified when a capture has started.
    started: Notify,
}

struct ActiveCapture {
    plugin: String,
    capture: Arc<Capture>,
    file: File,
    path: PathBuf,
}

impl CaptureRecorder {
    /// Writes below `state_dir`.
    pub fn new(
        captures: Arc<Captures>,
        state_dir: &std::path::Path,
        clock: Clock,
    ) -> CaptureRecorder {
        CaptureRecorder {
            captures,
            folder: state_dir.join(FOLDER),
            clock,
            running: Arc::default(),
            started: Notify::new(),
        }
    }

    /// Begins to capture the next `calls` calls of a plugin that is loaded. Blocks for a small file.
    pub fn start(&self, plugin: &str, calls: u32) -> Result<CaptureReport, CaptureError> {
        let mut running = self.running.lock();
        let capture = self.captures.start(plugin, calls, self.clock.now());
        let capture = capture.map_err(|refused| match refused {
            CaptureStartError::NoSuchPlugin => CaptureError::NotFound(refused.to_string()),
            CaptureStartError::Calls => CaptureError::Wrong(refused.to_string()),
            CaptureStartError::Running => CaptureError::Busy(refused.to_string()),
        })?;
        let (file, path) = self.make(plugin).inspect_err(|_| capture.abort())?;
        tracing::warn!(
            plugin,
            calls,
            file = %path.display(),
            "calls of this plugin are written to a file, with what clients send"
        );
        running.push(ActiveCapture {
            plugin: plugin.to_owned(),
            capture,
            file,
            path: path.clone(),
        });
        self.started.notify_one();
        Ok(CaptureReport {
            plugin: plugin.to_owned(),
            file: path.display().to_string(),
            calls,
            ends_within_secs: CAPTURE_MAX_SECS,
        })
    }

    fn make(&self, plugin: &str) -> Result<(File, PathBuf), CaptureError> {
        let shown = self.folder.display();
        let unusable = |error: io::Error| CaptureError::Unwritable(format!("{shown}: {error}"));
        let mut folders = DirBuilder::new();
        let made = folders.recursive(true).mode(0o700).create(&self.folder);
        made.map_err(unusable)?;
        let files = fs::read_dir(&self.folder).map_err(unusable)?.count();
        if files >= FILES_MAX {
            let why = format!("{shown} has {files} files: remove some first");
            return Err(CaptureError::Busy(why));
        }
        let path = self
            .folder
            .join(format!("{plugin}-{}.jsonl", stamp(self.clock.wall())));
        let mut options = OpenOptions::new();
        let options = options.append(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(unusable)?;
        Ok((file, path))
    }

    /// Writes what has been captured since the last time. Blocks for as long as the disk takes.
    pub fn write(&self) {
        let now = self.clock.now();
        self.running.lock().retain_mut(|one| one.write(now));
    }

    /// Returns true when no capture is running. A capture that is being opened holds the lock while the disk
    /// is busy, and does not count yet.
    fn is_idle(&self) -> bool {
        self.running
            .try_lock()
            .is_none_or(|running| running.is_empty())
    }
}

impl ActiveCapture {
    /// False once it has ended.
    fn write(&mut self, now: infergate_core::Millis) -> bool {
        let CaptureBatch { lines, ended } = self.capture.fetch(now);
        if let Err(error) = self.file.write_all(&lines) {
            tracing::error!(%error, file = %self.path.display(), "a capture ends early");
            self.capture.abort();
            return false;
        }
        let Some((calls, left_out)) = ended else {
            return true;
        };
        tracing::info!(
            plugin = self.plugin,
            calls,
            left_out,
            file = %self.path.display(),
            "a capture has ended"
        );
        false
    }
}

/// Writes captures while there are any, for the life of the process.
pub async fn record(recorder: Arc<CaptureRecorder>) {
    loop {
        if recorder.is_idle() {
            recorder.started.notified().await;
        }
        sleep(WRITE_TICK).await;
        let recorder = Arc::clone(&recorder);
        // A panic in there was logged where it happened; the next round tries again.
        let _ = tokio::task::spawn_blocking(move || recorder.write()).await;
    }
}

/// `20261120T100000123Z`: a part of a file's name.
fn stamp(at: OffsetDateTime) -> String {
    let text = crate::telemetry::clock::rfc3339(at);
    text.chars().filter(char::is_ascii_alphanumeric).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_its_owners_alone_and_only_so_many_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = CaptureRecorder::new(Arc::default(), dir.path(), Clock::start());
        let mode =
            |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (_, path) = recorder.make("p").unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        for n in 1..FILES_MAX {
            fs::write(recorder.folder.join(n.to_string()), "").unwrap();
        }
        let refused = recorder.make("p").unwrap_err();
        assert!(
            matches!(&refused, CaptureError::Busy(why) if why.contains("remove some")),
            "{refused:?}"
        );
    }

    #[test]
    fn a_plugin_that_is_not_loaded_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = CaptureRecorder::new(Arc::default(), dir.path(), Clock::start());
        let refused = recorder.start("p", 1).unwrap_err();
        assert!(matches!(refused, CaptureError::NotFound(_)), "{refused:?}");
        assert!(!recorder.folder.exists() && recorder.is_idle());
    }
}
