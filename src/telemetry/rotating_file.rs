//! A file of lines that rotates by size: `path`, `path.1` … `path.keep`, oldest last.
//!
//! Neither buffers nor knows the content of lines. Every line in the file is whole: what a failed
//! write left of a line is cut off again, at the latest when the file is next opened. A file that
//! was moved away or deleted is made anew. Called by the writer thread of `sink` only, so it may
//! block on the disk.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Files that are opened in a row, where another process rotates each before it is locked.
const OPENS_MAX: usize = 16;

/// Account ids stand in the lines: the group may read them, the world may not.
const FILE_MODE: u32 = 0o640;

/// File of the lines, and the bounds of what is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileSettings {
    /// The current file.
    pub path: PathBuf,
    /// The file is rotated before it grows beyond this.
    pub size_max_bytes: u64,
    /// Rotated files kept.
    pub keep: u32,
}

/// Result of an [`append`](RotatingFile::append).
#[derive(Debug)]
pub(super) struct AppendResult {
    /// Whole lines that are in the file now, from the front; none where all of them are, which nobody counts.
    pub line_count: Option<usize>,
    /// Error that kept lines out of the file or prevented its rotation.
    pub problem: Option<io::Error>,
}

/// The file of [`FileSettings`], opened when first needed.
#[derive(Debug)]
pub(super) struct RotatingFile {
    settings: FileSettings,
    open: Option<OpenFile>,
    /// A device or pipe got half a line that cannot be cut off: begin the next with a line end.
    torn: bool,
    /// Another process appends to the same file.
    is_shared: bool,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Device and inode: tells whether `path` still names this file.
    identity: (u64, u64),
    len: u64,
    /// Not a device or pipe: has a length and can be cut and rotated.
    regular: bool,
    /// The directory entry is known to be on disk.
    entry_synced: bool,
}

impl RotatingFile {
    pub fn new(settings: FileSettings) -> RotatingFile {
        RotatingFile {
            settings,
            open: None,
            torn: false,
            is_shared: false,
        }
    }

    /// Says whether another process appends to the same file: each append, with its rotation, then excludes the other's.
    pub fn set_shared(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
    }

    /// Bytes of one batch that rotation can still divide files by.
    pub fn batch_max_bytes(&self) -> u64 {
        self.settings.size_max_bytes
    }

    /// Appends `lines`, each ended by `\n`, rotating first when they would not fit.
    pub fn append(&mut self, lines: &[u8]) -> AppendResult {
        let appended = self.append_whole(lines);
        if let (true, Some(open)) = (self.is_shared, &self.open)
            && let Err(error) = open.file.unlock()
        {
            tracing::debug!(%error, "a file of lines cannot be unlocked");
        }
        appended
    }

    fn append_whole(&mut self, lines: &[u8]) -> AppendResult {
        let rotation_problem = match self.make_room(lines.len() as u64) {
            Ok(problem) => problem,
            Err(problem) => {
                return AppendResult {
                    line_count: Some(0),
                    problem: Some(problem),
                };
            }
        };
        match self.write(lines) {
            Ok(()) => AppendResult {
                line_count: None,
                problem: rotation_problem,
            },
            Err((line_count, problem)) => AppendResult {
                line_count: Some(line_count),
                problem: Some(problem),
            },
        }
    }

    /// Waits until everything appended is on the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else {
            return Err(ErrorKind::NotFound.into());
        };
        if !open.regular {
            return Ok(());
        }
        open.file.sync_data()?;
        if !open.entry_synced {
            File::open(directory_of(&self.settings.path))?.sync_all()?;
            open.entry_synced = true;
        }
        Ok(())
    }

    /// Opens the file, or another one when `path` no longer names it or it is full. A file that
    /// cannot be rotated goes on growing: that is reported, and better than losing lines.
    fn make_room(&mut self, bytes: u64) -> io::Result<Option<io::Error>> {
        // Once, but where another process fills the new file before it is opened here.
        for _ in 0..OPENS_MAX {
            let size_max = self.settings.size_max_bytes;
            let open = self.open_file()?;
            let full = open.regular && open.len > 0 && open.len.saturating_add(bytes) > size_max;
            if !full {
                return Ok(None);
            }
            match rotate(&self.settings) {
                Ok(()) => self.open = None,
                Err(problem) => return Ok(Some(problem)),
            }
        }
        self.open_file().map(|_| None)
    }

    fn open_file(&mut self) -> io::Result<&mut OpenFile> {
        for _ in 0..OPENS_MAX {
            self.open = match self.same_file() {
                Some(open) => Some(open),
                None => open_for_append(&self.settings.path, self.is_shared)?,
            };
            let Some(open) = &self.open else { continue };
            if !self.is_shared {
                break;
            }
            if open.regular {
                open.file.lock()?;
            }
            // The other process may have rotated it before it let go of the lock.
            self.open = self.same_file();
            if self.open.is_some() {
                break;
            }
        }
        let gone = || io::Error::other("another process rotates it again and again");
        self.open.as_mut().ok_or_else(gone)
    }

    /// Returns the open file where `path` still names it, with its present length.
    fn same_file(&mut self) -> Option<OpenFile> {
        match (self.open.take(), fs::metadata(&self.settings.path)) {
            (Some(open), Ok(found)) if open.identity == identity(&found) => Some(OpenFile {
                len: found.len(),
                ..open
            }),
            _ => None,
        }
    }

    /// Writes the lines; on failure leaves whole lines only and says how many.
    fn write(&mut self, lines: &[u8]) -> Result<(), (usize, io::Error)> {
        let Some(open) = &mut self.open else {
            return Err((0, ErrorKind::NotFound.into()));
        };
        if self.torn {
            open.file.write_all(b"\n").map_err(|problem| (0, problem))?;
            self.torn = false;
        }
        let (written, problem) = write_counted(&mut open.file, lines);
        let Some(problem) = problem else {
            open.len += written as u64;
            return Ok(());
        };
        let whole = memchr::memrchr(b'\n', &lines[..written]).map_or(0, |at| at + 1);
        if open.regular {
            // When this fails too, opening the file again cuts the rest off.
            let _ = open.file.set_len(open.len + whole as u64);
        } else {
            self.torn = written > whole;
        }
        self.open = None;
        Err((count_lines(&lines[..whole]), problem))
    }
}

/// Writes `bytes`; returns the number that was written, and the error that stopped it.
fn write_counted(file: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Some(ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(problem) if problem.kind() == ErrorKind::Interrupted => {}
            Err(problem) => return (written, Some(problem)),
        }
    }
    (written, None)
}

fn count_lines(lines: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', lines).count()
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Opens the file at `path`; none where another process that shares it has moved it meanwhile.
fn open_for_append(path: &Path, is_shared: bool) -> io::Result<Option<OpenFile>> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(FILE_MODE)
        .open(path)?;
    let regular = file.metadata()?.is_file();
    if is_shared && regular {
        // Half a line may be one that is being written.
        file.lock()?;
    }
    let metadata = file.metadata()?;
    if is_shared && fs::metadata(path).ok().as_ref().map(identity) != Some(identity(&metadata)) {
        return Ok(None);
    }
    let len = if regular {
        cut_half_line(path, &file, metadata.len())?
    } else {
        0
    };
    Ok(Some(OpenFile {
        file,
        identity: identity(&metadata),
        len,
        regular,
        entry_synced: false,
    }))
}

/// Cuts off what a crash or a full disk left of a last line; gives the length after that.
fn cut_half_line(path: &Path, file: &File, len: u64) -> io::Result<u64> {
    const STEP_BYTES: u64 = 4096;
    if len == 0 {
        return Ok(0);
    }
    let mut reader = match File::open(path) {
        Ok(reader) => reader,
        // A file we may append to but not read is taken as it is.
        Err(problem) if problem.kind() == ErrorKind::PermissionDenied => return Ok(len),
        Err(problem) => return Err(problem),
    };
    let mut step = Vec::with_capacity(STEP_BYTES as usize);
    let mut end = len;
    let mut whole = 0;
    while end > 0 {
        let begin = end.saturating_sub(STEP_BYTES);
        reader.seek(SeekFrom::Start(begin))?;
        step.clear();
        Read::by_ref(&mut reader)
            .take(end - begin)
            .read_to_end(&mut step)?;
        if let Some(at) = memchr::memrchr(b'\n', &step) {
            whole = begin + at as u64 + 1;
            break;
        }
        end = begin;
    }
    if whole < len {
        file.set_len(whole)?;
    }
    Ok(whole)
}

/// Moves `path` to `path.1` and every older one a number up; the oldest is overwritten.
fn rotate(settings: &FileSettings) -> io::Result<()> {
    if settings.keep == 0 {
        return fs::remove_file(&settings.path);
    }
    for number in (1..settings.keep).rev() {
        match fs::rename(numbered(settings, number), numbered(settings, number + 1)) {
            Err(problem) if problem.kind() != ErrorKind::NotFound => return Err(problem),
            _ => {}
        }
    }
    fs::rename(&settings.path, numbered(settings, 1))
}

fn numbered(settings: &FileSettings, number: u32) -> PathBuf {
    let mut name = settings.path.clone().into_os_string();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct RotationFixture {
        directory: tempfile::TempDir,
        file: RotatingFile,
    }

    fn fixture(size_max_bytes: u64, keep: u32) -> RotationFixture {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let file = RotatingFile::new(FileSettings {
            path,
            size_max_bytes,
            keep,
        });
        RotationFixture { directory, file }
    }

    impl RotationFixture {
        fn append(&mut self, lines: &str) {
            let appended = self.file.append(lines.as_bytes());
            assert!(appended.problem.is_none(), "{appended:?}");
            assert_eq!(appended.line_count, None);
        }

        fn read(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.directory.path().join(name)).ok()
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }
    }

    #[test]
    fn a_full_file_becomes_number_one_and_the_oldest_goes() {
        let mut f = fixture(8, 2);
        for line in ["one-1\n", "two-2\n", "three\n", "four4\n"] {
            f.append(line);
        }
        assert_eq!(f.read("events.jsonl").as_deref(), Some("four4\n"));
        assert_eq!(f.read("events.jsonl.1").as_deref(), Some("three\n"));
        assert_eq!(f.read("events.jsonl.2").as_deref(), Some("two-2\n"));
        assert_eq!(f.read("events.jsonl.3"), None);
    }

    #[test]
    fn two_that_share_a_file_and_rotate_it_lose_no_line() {
        const LINES: usize = 500;
        let f = fixture(4096, 100);
        let writers = [0, 1].map(|writer| {
            let mut file = RotatingFile::new(f.file.settings.clone());
            file.set_shared(true);
            std::thread::spawn(move || {
                for number in 0..LINES {
                    let line = format!("{writer} {number} {}\n", "x".repeat(number % 50));
                    let appended = file.append(line.as_bytes());
                    assert!(appended.problem.is_none(), "{appended:?}");
                }
            })
        });
        writers.into_iter().for_each(|it| it.join().unwrap());
        let mut found = Vec::new();
        for entry in fs::read_dir(f.directory.path()).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            let end = &text[text.len().saturating_sub(80)..];
            assert!(
                text.len() <= 4096 && text.ends_with('\n'),
                "{} {end:?}",
                text.len()
            );
            let key = |line: &str| {
                let mut words = line.split(' ').map(str::to_owned);
                (words.next().unwrap(), words.next().unwrap())
            };
            found.extend(text.lines().map(key));
        }
        assert_eq!(found.len(), 2 * LINES);
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 2 * LINES);
    }

    #[test]
    fn with_nothing_to_keep_a_full_file_is_begun_anew() {
        let mut f = fixture(8, 0);
        f.append("one-1\n");
        f.append("two-2\n");
        assert_eq!(f.read("events.jsonl").as_deref(), Some("two-2\n"));
        assert_eq!(f.read("events.jsonl.1"), None);
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_anew() {
        let mut f = fixture(1000, 1);
        f.append("one\n");
        fs::rename(f.path("events.jsonl"), f.path("taken")).unwrap();
        f.append("two\n");
        fs::remove_file(f.path("events.jsonl")).unwrap();
        f.append("three\n");
        assert_eq!(f.read("taken").as_deref(), Some("one\n"));
        assert_eq!(f.read("events.jsonl").as_deref(), Some("three\n"));
    }

    #[test]
    fn half_a_line_left_by_a_crash_is_cut_off() {
        let mut f = fixture(1_000_000, 1);
        let half = "x".repeat(10_000);
        fs::write(f.path("events.jsonl"), format!("one\ntwo\n{half}")).unwrap();
        f.append("three\n");
        assert_eq!(f.read("events.jsonl").as_deref(), Some("one\ntwo\nthree\n"));
    }

    #[test]
    fn a_file_that_is_nothing_but_half_a_line_is_emptied() {
        let mut f = fixture(1_000_000, 1);
        fs::write(f.path("events.jsonl"), "{\"half").unwrap();
        f.append("one\n");
        assert_eq!(f.read("events.jsonl").as_deref(), Some("one\n"));
    }

    #[test]
    fn a_full_device_takes_no_line_and_is_tried_again() {
        let path = PathBuf::from("/dev/full");
        let mut file = RotatingFile::new(FileSettings {
            path,
            size_max_bytes: 1000,
            keep: 1,
        });
        for _ in 0..2 {
            let appended = file.append(b"one\n");
            assert_eq!(appended.line_count, Some(0));
            assert_eq!(appended.problem.unwrap().kind(), ErrorKind::StorageFull);
        }
    }

    /// A file system of `size_kib`, unmounted on drop; none where the test may not mount.
    struct SmallDisk(tempfile::TempDir);

    impl SmallDisk {
        fn mount(size_kib: u32) -> Option<SmallDisk> {
            let directory = tempfile::tempdir().unwrap();
            let mounted = std::process::Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={size_kib}k"), "tmpfs"])
                .arg(directory.path())
                .output()
                .is_ok_and(|output| output.status.success());
            mounted.then_some(SmallDisk(directory))
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount")
                .arg(self.0.path())
                .output();
        }
    }

    #[test]
    fn a_disk_that_fills_up_keeps_whole_lines_only_and_goes_on_when_there_is_room() {
        let Some(disk) = SmallDisk::mount(16) else {
            eprintln!("skipped: mounting a small tmpfs needs root");
            return;
        };
        let path = disk.0.path().join("events.jsonl");
        let mut file = RotatingFile::new(FileSettings {
            path: path.clone(),
            size_max_bytes: 1 << 20,
            keep: 1,
        });
        let lines = format!("{}\n", "x".repeat(99)).repeat(60);
        let mut written = 0;
        let problem = loop {
            let appended = file.append(lines.as_bytes());
            written += appended.line_count.unwrap_or(60);
            assert!(written < 1000, "16 KiB hold no 1,000 lines");
            if let Some(problem) = appended.problem {
                break problem;
            }
        };
        assert_eq!(problem.kind(), ErrorKind::StorageFull);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), written);
        assert!(text.lines().all(|line| line.len() == 99) && text.ends_with('\n'));

        fs::rename(&path, disk.0.path().join("old")).unwrap();
        fs::remove_file(disk.0.path().join("old")).unwrap();
        assert!(file.append(lines.as_bytes()).problem.is_none());
    }

    #[test]
    fn a_missing_directory_is_an_error_until_it_is_there() {
        let mut f = fixture(1000, 1);
        f.file.settings.path = f.path("later/events.jsonl");
        assert!(f.file.append(b"one\n").problem.is_some());
        fs::create_dir(f.path("later")).unwrap();
        f.append("two\n");
        assert_eq!(f.read("later/events.jsonl").as_deref(), Some("two\n"));
    }

    #[test]
    fn synced_lines_need_a_file() {
        let mut f = fixture(1000, 1);
        assert!(f.file.sync().is_err());
        f.append("one\n");
        f.file.sync().unwrap();
    }
}
