//! Output of an instance in a ring file: the newest bytes up to its size, readable while it is written and after.
//!
//! Written by the keeper alone, read by any. The file begins with a head of [`HEAD_BYTES`] bytes: a magic number, the
//! size of the ring, bytes written since the beginning, the same inverted, and bytes dropped. Byte `n` of the output
//! stands at `HEAD_BYTES + n % size`. Mode 0600. A full disk drops and counts.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::identity::InstanceId;

const MAGIC: &[u8; 8] = b"IGLOGS\x00\x01";
const HEAD_BYTES: u64 = 64;
/// Size of a ring, bytes.
const RING_BYTES_MIN: u64 = 4 * 1024;
const RING_BYTES_MAX: u64 = 1 << 32;
/// Bytes of a line. A longer one is cut into several.
const LINE_BYTES_MAX: usize = 16 * 1024;
const FILE_MODE: u32 = 0o600;
/// Between two looks of a reader that waits: short for people who watch.
const FOLLOW_TICK: Duration = Duration::from_millis(100);
/// Looks at the head while a writer is between its two halves.
const HEAD_TRIES: u32 = 100;

/// Returns the directory of the rings of a gateway.
pub fn log_directory(state_dir: &Path) -> PathBuf {
    state_dir.join("gpu/logs")
}

/// Returns the ring of an instance.
pub fn log_file(log_directory: &Path, instance: &InstanceId) -> PathBuf {
    log_directory.join(format!("{}.log", instance.file_stem()))
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct LogWriter {
    file: File,
    head: RingHead,
    /// Bytes of the line that is being written.
    column: usize,
}

/// Figures at the beginning of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RingHead {
    size: u64,
    written: u64,
    dropped: u64,
}

impl RingHead {
    fn to_bytes(self) -> [u8; HEAD_BYTES as usize] {
        let mut bytes = [0; HEAD_BYTES as usize];
        bytes[..8].copy_from_slice(MAGIC);
        let figures = [self.size, self.written, !self.written, self.dropped];
        for (at, figure) in figures.into_iter().enumerate() {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&figure.to_le_bytes());
        }
        bytes
    }

    /// None while the writer is between two halves, or has not begun.
    fn parse(bytes: &[u8; HEAD_BYTES as usize]) -> Option<RingHead> {
        let mut figures = [0; 4];
        for (at, figure) in figures.iter_mut().enumerate() {
            let bytes = bytes[8 + 8 * at..16 + 8 * at].try_into().ok()?;
            *figure = u64::from_le_bytes(bytes);
        }
        let [size, written, inverted, dropped] = figures;
        let is_whole = bytes[..8] == *MAGIC && inverted == !written && size > 0;
        is_whole.then_some(RingHead {
            size,
            written,
            dropped,
        })
    }
}

impl LogWriter {
    /// Makes an empty ring for the owner alone, of 4 KiB to 4 GiB.
    ///
    /// # Errors
    /// The file cannot be made. A full disk is no error.
    pub fn create(path: &Path, size: u64) -> io::Result<LogWriter> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let file = options.mode(FILE_MODE).open(path)?;
        let head = RingHead {
            size: size.clamp(RING_BYTES_MIN, RING_BYTES_MAX),
            ..RingHead::default()
        };
        let _ = file.write_all_at(&head.to_bytes(), 0);
        Ok(LogWriter {
            file,
            head,
            column: 0,
        })
    }

    /// Bytes that could not be kept.
    pub fn dropped(&self) -> u64 {
        self.head.dropped
    }

    /// Writes output, with an end of line in lines that are too long.
    pub fn append(&mut self, output: &[u8]) {
        let mut cut = Vec::with_capacity(output.len() + output.len() / LINE_BYTES_MAX + 1);
        for line in output.split_inclusive(|byte| *byte == b'\n') {
            let mut rest = line;
            while self.column + rest.len() > LINE_BYTES_MAX {
                let (part, more) = rest.split_at(LINE_BYTES_MAX - self.column);
                // The end of a line that just fits is its own.
                if more == b"\n" {
                    break;
                }
                cut.extend_from_slice(part);
                cut.push(b'\n');
                (rest, self.column) = (more, 0);
            }
            cut.extend_from_slice(rest);
            self.column = match rest.last() {
                Some(b'\n') => 0,
                _ => self.column + rest.len(),
            };
        }
        self.put(&cut);
        // Behind the bytes that it counts: a reader never sees what is not there.
        let _ = self.file.write_all_at(&self.head.to_bytes(), 0);
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = self.head.written % self.head.size;
            let room = usize::try_from(self.head.size - at).unwrap_or(usize::MAX);
            let (part, rest) = bytes.split_at(bytes.len().min(room));
            match self.file.write_all_at(part, HEAD_BYTES + at) {
                Ok(()) => self.head.written += part.len() as u64,
                Err(_) => self.head.dropped += part.len() as u64,
            }
            bytes = rest;
        }
    }
}

/// The reading end of a ring, at a place in the output.
#[derive(Debug)]
pub struct LogReader {
    file: File,
    /// Bytes of the output before this place.
    position: u64,
}

/// A piece of output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPiece {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Bytes before them that were overwritten unread.
    pub missed: u64,
}

impl LogReader {
    /// Opens a ring at the beginning of what it has.
    ///
    /// # Errors
    /// There is no such file.
    pub fn open(path: &Path) -> io::Result<LogReader> {
        let file = File::open(path)?;
        let head = read_head(&file)?;
        Ok(LogReader {
            file,
            position: head.written.saturating_sub(head.size),
        })
    }

    /// Returns the last `lines` lines, in at most `bytes_max` bytes, and goes behind them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn tail(&mut self, lines: usize, bytes_max: u64) -> io::Result<Vec<u8>> {
        let written = read_head(&self.file)?.written;
        let begin = written.saturating_sub(bytes_max);
        let is_cut = begin > self.position || self.position > 0;
        self.position = self.position.max(begin);
        let piece = self.read(bytes_max)?;
        let mut text = &piece.bytes[..];
        if is_cut || piece.missed > 0 {
            // The first line may lack its beginning.
            let end = memchr::memchr(b'\n', text);
            text = end.map_or(text, |end| &text[end + 1..]);
        }
        let ends = memchr::memrchr_iter(b'\n', text.strip_suffix(b"\n").unwrap_or(text));
        let begin = match lines.checked_sub(1) {
            None => text.len(),
            Some(nth) => ends.into_iter().nth(nth).map_or(0, |end| end + 1),
        };
        Ok(text[begin..].to_vec())
    }

    /// Waits for output from here on, and returns at most `bytes_max` bytes of it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn follow(&mut self, bytes_max: u64) -> io::Result<LogPiece> {
        loop {
            let piece = self.read(bytes_max)?;
            if piece != LogPiece::default() {
                return Ok(piece);
            }
            tokio::time::sleep(FOLLOW_TICK).await;
        }
    }

    /// Returns output from here on, at most `bytes_max` bytes; nothing when there is no more yet.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, bytes_max: u64) -> io::Result<LogPiece> {
        let head = read_head(&self.file)?;
        let from = self
            .position
            .max(head.written.saturating_sub(head.size))
            .min(head.written);
        let count = (head.written - from).min(bytes_max).min(head.size);
        let mut bytes = vec![0; usize::try_from(count).unwrap_or(0)];
        let at = from % head.size;
        let first = usize::try_from((head.size - at).min(count)).unwrap_or(0);
        let (until_end, wrapped) = bytes.split_at_mut(first);
        self.file.read_exact_at(until_end, HEAD_BYTES + at)?;
        self.file.read_exact_at(wrapped, HEAD_BYTES)?;
        // What the writer has gone over meanwhile is another line's.
        let oldest = read_head(&self.file)?.written.saturating_sub(head.size);
        let torn = oldest.saturating_sub(from).min(count);
        bytes.drain(..usize::try_from(torn).unwrap_or(0));
        let missed = from.saturating_sub(self.position) + torn;
        self.position = from + count;
        Ok(LogPiece { bytes, missed })
    }
}

/// Reads the figures; a file without a beginning, as of a full disk, has none.
fn read_head(file: &File) -> io::Result<RingHead> {
    for _ in 0..HEAD_TRIES {
        let mut bytes = [0; HEAD_BYTES as usize];
        match file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            other => other?,
        }
        if let Some(head) = RingHead::parse(&bytes) {
            return Ok(head);
        }
    }
    Ok(RingHead {
        size: 1,
        ..RingHead::default()
    })
}

/// Rings of former instances that stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// Rings that stay, the newest first.
    pub count: usize,
    /// Time since the last output.
    pub age: Duration,
}

/// Removes rings beyond the bounds. Rings of `present` instances stay and do not count.
///
/// # Errors
/// The directory cannot be listed.
pub fn remove_former(
    log_directory: &Path,
    present: &BTreeSet<InstanceId>,
    bounds: LogBounds,
) -> io::Result<()> {
    let present: BTreeSet<PathBuf> = present
        .iter()
        .map(|instance| log_file(log_directory, instance))
        .collect();
    let mut rings = Vec::new();
    for entry in std::fs::read_dir(log_directory)? {
        let entry = entry?;
        let path = entry.path();
        let is_ring = path.extension().is_some_and(|extension| extension == "log");
        if is_ring
            && !present.contains(&path)
            && let Ok(changed) = entry.metadata().and_then(|found| found.modified())
        {
            rings.push((changed, path));
        }
    }
    rings.sort();
    let surplus = rings.len().saturating_sub(bounds.count);
    for (nth, (changed, path)) in rings.iter().enumerate() {
        // A clock that was set back makes nothing old.
        let is_old = changed.elapsed().is_ok_and(|age| age > bounds.age);
        if nth < surplus || is_old {
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn ring(size: u64) -> (tempfile::TempDir, LogWriter, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m#0-00000001.log");
        let writer = LogWriter::create(&path, size).unwrap();
        (dir, writer, path)
    }

    fn tail(path: &Path, lines: usize) -> String {
        let tail = LogReader::open(path).unwrap().tail(lines, 1 << 20).unwrap();
        String::from_utf8(tail).unwrap()
    }

    #[test]
    fn the_ring_wraps_and_keeps_its_newest_lines_whole() {
        let (_dir, mut writer, path) = ring(4096);
        for number in 0..1000 {
            writer.append(format!("line {number}\n").as_bytes());
        }
        assert_eq!(tail(&path, 2), "line 998\nline 999\n");
        let all = tail(&path, usize::MAX);
        assert!(all.starts_with("line ") && all.len() <= 4096, "{all}");
        assert!(all.lines().count() > 400);
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), 4096 + HEAD_BYTES);
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(tail(&path, 0), "");
    }

    #[test]
    fn a_reader_follows_and_counts_the_bytes_that_it_missed() {
        let (_dir, mut writer, path) = ring(4096);
        let mut reader = LogReader::open(&path).unwrap();
        assert_eq!(reader.read(100).unwrap(), LogPiece::default());
        writer.append(b"one\n");
        assert_eq!(reader.read(100).unwrap().bytes, b"one\n");
        writer.append(&b"0123456\n".repeat(1024));
        let piece = reader.read(1 << 20).unwrap();
        assert_eq!((piece.bytes.len(), piece.missed), (4096, 4096));
        assert_eq!(reader.read(100).unwrap(), LogPiece::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_waits_gets_what_is_written_next() {
        let (_dir, mut writer, path) = ring(4096);
        let mut reader = LogReader::open(&path).unwrap();
        let write = async {
            tokio::time::sleep(FOLLOW_TICK * 3).await;
            writer.append(b"late\n");
        };
        let (piece, ()) = tokio::join!(reader.follow(100), write);
        assert_eq!(piece.unwrap().bytes, b"late\n");
    }

    #[test]
    fn a_line_of_any_length_is_cut_and_one_that_just_fits_is_not() {
        let (_dir, mut writer, path) = ring(1 << 20);
        writer.append(&vec![b'a'; LINE_BYTES_MAX]);
        writer.append(b"\n");
        for _ in 0..3 {
            writer.append(&vec![b'b'; LINE_BYTES_MAX]);
        }
        let lengths: Vec<_> = tail(&path, 9).lines().map(str::len).collect();
        assert_eq!(lengths, [LINE_BYTES_MAX; 4]);
    }

    #[test]
    fn a_file_without_a_head_has_no_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty.log");
        std::fs::write(&path, "").unwrap();
        assert_eq!(tail(&path, 5), "");
    }

    #[test]
    fn former_rings_go_but_the_newest_and_those_of_instances_that_run() {
        let (dir, _writer, running) = ring(4096);
        for name in ["m#0-00000002.log", "m#0-00000003.log", "notes.txt"] {
            LogWriter::create(&dir.path().join(name), 4096).unwrap();
        }
        let present = BTreeSet::from([InstanceId::new("m#0", 1).unwrap()]);
        let day = Duration::from_secs(86_400);
        let bounds = LogBounds { count: 1, age: day };
        remove_former(dir.path(), &present, bounds).unwrap();
        assert!(running.exists() && dir.path().join("notes.txt").exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        let old = dir.path().join("m#0-00000004.log");
        let file = File::create(&old).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_modified(modified - 2 * day).unwrap();
        remove_former(dir.path(), &present, LogBounds { count: 9, age: day }).unwrap();
        assert!(!old.exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
