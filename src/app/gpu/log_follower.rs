//! Output of an instance followed from its ring on disk, until its keeper has ended and all bytes were told.
//!
//! Asks neither the process nor its keeper: a crash of either ends no stream early. The file is looked at every
//! [`LOOK_EVERY`], aside from the workers. At most [`FOLLOWERS_MAX`] at a time; each keeps one piece of [`PIECE_BYTES`] and the
//! tail that it began with.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::admin::{GpuControlError, LogFollower, LogNews};
use crate::gpu::process::{
    InstanceId, LogPiece, LogReader, has_keeper, log_directory, log_file, run_directory,
};

/// Followers at a time: more than the people who look at a host.
const FOLLOWERS_MAX: usize = 32;
/// Between two looks at the file: short for people who watch.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Bytes that are read at once.
const PIECE_BYTES: u64 = 64 * 1024;
/// Time without output after which the connection is kept alive by a comment: half of what proxies wait for.
const QUIET_MAX: Duration = Duration::from_secs(15);
/// Bytes of a line without an end. Keepers cut lines at 16 KiB; of a file that is damaged no more is kept either.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Places of the followers.
pub(super) struct LogFollowers {
    places: Arc<Semaphore>,
}

impl Default for LogFollowers {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(FOLLOWERS_MAX));
        LogFollowers { places }
    }
}

impl LogFollowers {
    /// Follows an instance from its last `lines` lines on, in at most `bytes_max` bytes.
    ///
    /// # Errors
    /// All places are taken, or there is no log of the instance.
    pub async fn follow(
        &self,
        state_dir: &Path,
        instance: InstanceId,
        (lines, bytes_max): (usize, u64),
    ) -> Result<Option<FollowedLog>, GpuControlError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| {
            GpuControlError::Unavailable(format!(
                "{FOLLOWERS_MAX} logs are followed already: end one of them, or read without `follow`"
            ))
        })?;
        let path = log_file(&log_directory(state_dir), &instance);
        let opened = spawn_blocking(move || {
            let mut reader = LogReader::open(&path)?;
            let tail = reader.tail(lines, bytes_max)?;
            Ok::<_, io::Error>((reader, tail))
        });
        let Ok(Ok((reader, tail))) = opened.await else {
            return Ok(None);
        };
        let mut text = LogLines::default();
        let begin = text.push(&tail);
        Ok(Some(FollowedLog {
            reader: Some(reader),
            run_directory: run_directory(state_dir),
            instance,
            text,
            begin: Some(begin).filter(|lines| !lines.is_empty()),
            missed: None,
            _place: place,
        }))
    }
}

/// Log of an instance, followed.
pub(super) struct FollowedLog {
    /// None once all was told.
    reader: Option<LogReader>,
    run_directory: PathBuf,
    instance: InstanceId,
    text: LogLines,
    /// Lines that it begins with, until they are told.
    begin: Option<Vec<Vec<u8>>>,
    /// Lines behind missed bytes, until they are told.
    missed: Option<Vec<Vec<u8>>>,
    _place: OwnedSemaphorePermit,
}

#[async_trait]
impl LogFollower for FollowedLog {
    async fn next(&mut self) -> LogNews {
        if let Some(lines) = self.begin.take().or_else(|| self.missed.take()) {
            return LogNews::Lines(lines);
        }
        let since = Instant::now();
        while let Some(reader) = self.reader.take() {
            let Ok((reader, piece, is_there)) = self.look(reader).await else {
                break;
            };
            let is_all = piece.bytes.is_empty() && piece.missed == 0;
            if is_all && !is_there {
                break;
            }
            self.reader = Some(reader);
            if piece.missed > 0 {
                self.text.skip_to_next_line();
                let lines = self.text.push(&piece.bytes);
                self.missed = Some(lines).filter(|lines| !lines.is_empty());
                return LogNews::Missed(piece.missed);
            }
            let lines = self.text.push(&piece.bytes);
            if !lines.is_empty() {
                return LogNews::Lines(lines);
            }
            if since.elapsed() >= QUIET_MAX {
                return LogNews::Quiet;
            }
            if is_all {
                sleep(LOOK_EVERY).await;
            }
        }
        match self.text.take_rest() {
            Some(rest) => LogNews::Lines(vec![rest]),
            None => LogNews::Ended,
        }
    }
}

impl FollowedLog {
    /// Reads on, and says whether the keeper was there before: it writes all output before it ends.
    async fn look(&self, mut reader: LogReader) -> io::Result<(LogReader, LogPiece, bool)> {
        let (directory, instance) = (self.run_directory.clone(), self.instance.clone());
        let looked = spawn_blocking(move || {
            let is_there = has_keeper(&directory, &instance);
            let piece = reader.read(PIECE_BYTES)?;
            Ok((reader, piece, is_there))
        });
        looked.await.map_err(io::Error::other)?
    }
}

/// Bytes cut into lines, across pieces.
#[derive(Debug, Default)]
struct LogLines {
    /// Line without an end so far.
    rest: Vec<u8>,
    /// Bytes up to the next end of a line are of a line whose beginning is gone.
    is_skipping: bool,
}

impl LogLines {
    /// Adds bytes, and returns the lines that have ended.
    fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (part, has_end) = match part.strip_suffix(b"\n") {
                Some(part) => (part, true),
                None => (part, false),
            };
            if !self.is_skipping {
                self.rest.extend_from_slice(part);
            }
            if has_end && !std::mem::take(&mut self.is_skipping) || self.rest.len() > LINE_BYTES_MAX
            {
                lines.push(std::mem::take(&mut self.rest));
            }
        }
        lines
    }

    /// Drops the line that has begun: its next bytes are lost.
    fn skip_to_next_line(&mut self) {
        self.rest.clear();
        self.is_skipping = true;
    }

    /// Returns the last line, which has no end.
    fn take_rest(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.rest);
        (!rest.is_empty()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_across_pieces_and_one_without_its_beginning_is_left_out() {
        let mut text = LogLines::default();
        assert_eq!(text.push(b"one\ntw"), [b"one".to_vec()]);
        assert_eq!(text.push(b"o\n\n"), [b"two".to_vec(), Vec::new()]);
        assert_eq!(text.push(b"lost"), Vec::<Vec<u8>>::new());
        text.skip_to_next_line();
        assert_eq!(text.push(b"part"), Vec::<Vec<u8>>::new());
        assert_eq!(text.push(b" of it\nthree\nend"), [b"three".to_vec()]);
        assert_eq!(text.take_rest(), Some(b"end".to_vec()));
        assert_eq!(text.take_rest(), None);
        let long = text.push(&vec![b'a'; LINE_BYTES_MAX + 1]);
        assert_eq!(long.len(), 1, "a line without an end is bounded");
    }

    #[tokio::test(start_paused = true)]
    async fn places_of_followers_are_bounded_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let id = InstanceId::new("m#0", 1).unwrap();
        let logs = log_directory(dir.path());
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(log_file(&logs, &id), "").unwrap();
        let followers = LogFollowers::default();
        let follow = async || followers.follow(dir.path(), id.clone(), (10, 1000)).await;
        let mut followed = Vec::new();
        for _ in 0..FOLLOWERS_MAX {
            followed.push(follow().await.unwrap().unwrap());
        }
        let refused = follow().await;
        assert!(matches!(refused, Err(GpuControlError::Unavailable(_))));
        let mut last = followed.pop().unwrap();
        assert_eq!(last.next().await, LogNews::Ended, "it has no keeper");
        drop(last);
        assert!(follow().await.unwrap().is_some());
        let other = InstanceId::new("m#0", 2).unwrap();
        followed.clear();
        let none = followers.follow(dir.path(), other, (10, 1000)).await;
        assert!(none.unwrap().is_none());
    }
}
