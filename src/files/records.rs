//! Records of files, each a JSON document beside its blob.
//!
//! A file exists where its record does: the record is written last and removed first. A store away from this disk leaves
//! a mark before it writes, so that what a killed process has left there is found. Two processes share the folder while
//! one takes over from the other: what the other one may still write stays.

use std::fs::{self, DirEntry, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::AccountId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::disk::{create_folder, create_new, on_disk, remove, sync_folder};
use super::file_id::FileId;
use super::local::{BLOB_SUFFIX, PART_SUFFIX};

/// End of the name of a record.
const RECORD_SUFFIX: &str = ".json";
/// End of the name of a mark.
const MARK_SUFFIX: &str = ".put";
/// Version of the documents.
const DOCUMENT_VERSION: u8 = 1;
/// Longest record that is read, bytes: its metadata has at most 64 KiB, and each of its letters grows to six at most.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Age from which a part, a mark or a blob without a record is no living process's: `timeouts.ceiling_secs` is at most a
/// day, and no upload takes longer.
const LEFT_AFTER: Duration = Duration::from_secs(86_400);

/// Origin of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOrigin {
    /// Upload of a client.
    Upload,
    /// Data URI in the input of a job.
    Input,
    /// Part of the output of a job.
    Output,
}

/// Record of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileRecord {
    /// Version of the document.
    pub v: u8,
    /// Id.
    pub id: FileId,
    /// Owner.
    pub account: AccountId,
    /// Name as the client gave it, for shows alone.
    pub name: Arc<str>,
    /// Content type as the client gave it.
    pub content_type: Arc<str>,
    /// Bytes.
    pub size: u64,
    /// SHA-256, hex.
    pub sha256: Arc<str>,
    /// MD5, hex.
    pub md5: Arc<str>,
    /// Object that came with the upload.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// Origin.
    pub origin: FileOrigin,
    /// Moment of its end of upload, milliseconds since 1970.
    pub created_ms: u64,
    /// Moment from which on it is gone, milliseconds since 1970.
    pub expires_ms: u64,
}

impl FileRecord {
    /// Version of the present documents.
    pub const VERSION: u8 = DOCUMENT_VERSION;
}

/// Folder of the records.
#[derive(Clone, Debug)]
pub struct RecordFolder {
    folder: PathBuf,
    /// Held shared by each process that may write here, until it ends.
    life: Arc<File>,
}

/// Mark of a blob that was written or deleted when its process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobMark {
    /// Id.
    pub id: FileId,
    /// Text of the store.
    pub text: String,
}

/// Content of the folder at the start.
pub struct FoundRecords {
    /// The folder.
    pub folder: RecordFolder,
    /// Records of files.
    pub records: Vec<FileRecord>,
    /// Marks of blobs without a record.
    pub marks: Vec<BlobMark>,
}

/// Names of the folder by their kind.
#[derive(Default)]
struct FoundNames {
    /// Files with a record.
    recorded: Vec<FileId>,
    /// Parts, marks and blobs that are old enough to be nobody's.
    parts: Vec<PathBuf>,
    marks: Vec<FileId>,
    blobs: Vec<FileId>,
}

impl FoundNames {
    fn add(&mut self, entry: &DirEntry, left_after: Duration) {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { return };
        let id = |suffix| name.strip_suffix(suffix)?.parse::<FileId>().ok();
        if let Some(id) = id(RECORD_SUFFIX) {
            self.recorded.push(id);
        } else if !is_older(entry, left_after) {
            // Another process may be writing it.
        } else if name.ends_with(PART_SUFFIX) {
            self.parts.push(entry.path());
        } else if let Some(id) = id(MARK_SUFFIX) {
            self.marks.push(id);
        } else if let Some(id) = id(BLOB_SUFFIX) {
            self.blobs.push(id);
        }
    }
}

impl RecordFolder {
    /// Opens the folder, which is made where there is none, and reads its records. Parts of what was under way when the
    /// process ended are removed, unless another process lives that may be writing them.
    ///
    /// # Errors
    /// The system's.
    pub fn open(folder: PathBuf) -> io::Result<FoundRecords> {
        create_folder(&folder)?;
        let life = File::open(&folder)?;
        let left_after = match life.try_lock() {
            Ok(()) => Duration::ZERO,
            Err(_) => LEFT_AFTER,
        };
        let folder = RecordFolder {
            folder,
            life: Arc::new(life),
        };
        let names = folder.names(left_after)?;
        let mut records = Vec::new();
        for id in &names.recorded {
            records.extend(folder.read_now(*id)?);
        }
        let known: hashbrown::HashSet<FileId> = records.iter().map(|record| record.id).collect();
        let marks = folder.remove_left(names, |id| known.contains(&id))?;
        if let Err(error) = folder.life.lock_shared() {
            // Nobody can be alone in such a folder either: leavings go by their age.
            tracing::warn!(%error, "the folder of the files cannot be locked");
        }
        Ok(FoundRecords {
            folder,
            records,
            marks,
        })
    }

    fn names(&self, left_after: Duration) -> io::Result<FoundNames> {
        let mut found = FoundNames::default();
        for entry in fs::read_dir(&self.folder)? {
            found.add(&entry?, left_after);
        }
        Ok(found)
    }

    /// Removes what was left by a process that has ended, but for blobs of marks without a record, which it returns.
    fn remove_left(
        &self,
        names: FoundNames,
        is_known: impl Fn(FileId) -> bool,
    ) -> io::Result<Vec<BlobMark>> {
        for part in names.parts {
            remove(&part)?;
        }
        for id in names.blobs.into_iter().filter(|id| !is_known(*id)) {
            remove(&self.folder.join(format!("{id}{BLOB_SUFFIX}")))?;
        }
        let mut marks = Vec::new();
        for id in names.marks {
            if is_known(id) {
                remove(&self.mark_path(id))?;
                continue;
            }
            let text = fs::read_to_string(self.mark_path(id)).unwrap_or_default();
            marks.push(BlobMark { id, text });
        }
        Ok(marks)
    }

    /// Returns the files of records that `is_known` does not name: another process has kept them. Parts and
    /// blobs without a record go once they are a day old; marks of such blobs are returned.
    ///
    /// # Errors
    /// The system's.
    pub async fn look(
        &self,
        is_known: impl Fn(FileId) -> bool + Send + 'static,
    ) -> io::Result<(Vec<FileId>, Vec<BlobMark>)> {
        let folder = self.clone();
        on_disk(move || {
            let names = folder.names(LEFT_AFTER)?;
            let recorded: hashbrown::HashSet<FileId> = names.recorded.iter().copied().collect();
            let others = names.recorded.iter().copied();
            let others = others.filter(|id| !is_known(*id)).collect();
            let marks = folder.remove_left(names, |id| recorded.contains(&id) || is_known(id))?;
            Ok((others, marks))
        })
        .await
    }

    /// Reads the record of a file; none where there is none, or a damaged one.
    ///
    /// # Errors
    /// The system's.
    pub async fn read(&self, id: FileId) -> io::Result<Option<FileRecord>> {
        let folder = self.clone();
        on_disk(move || folder.read_now(id)).await
    }

    fn read_now(&self, id: FileId) -> io::Result<Option<FileRecord>> {
        let file = match File::open(self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut text = Vec::new();
        file.take(RECORD_BYTES_MAX).read_to_end(&mut text)?;
        let record = serde_json::from_slice::<FileRecord>(&text).ok();
        let own = record.filter(|record| record.id == id && record.v == DOCUMENT_VERSION);
        if own.is_none() {
            tracing::warn!(%id, "the record of a file is damaged");
        }
        Ok(own)
    }

    fn mark_path(&self, id: FileId) -> PathBuf {
        self.folder.join(format!("{id}{MARK_SUFFIX}"))
    }

    /// Writes a mark, or another text for it. It outlasts the process.
    ///
    /// # Errors
    /// The system's.
    pub async fn mark(&self, id: FileId, text: String) -> io::Result<()> {
        let path = self.mark_path(id);
        on_disk(move || {
            remove(&path)?;
            create_new(&path)?.write_all(text.as_bytes())
        })
        .await
    }

    /// Removes a mark.
    ///
    /// # Errors
    /// The system's.
    pub async fn unmark(&self, id: FileId) -> io::Result<()> {
        let path = self.mark_path(id);
        on_disk(move || remove(&path)).await
    }

    fn path(&self, id: FileId) -> PathBuf {
        self.folder.join(format!("{id}{RECORD_SUFFIX}"))
    }

    /// Writes a record, which outlasts a power loss then. Its mark goes.
    ///
    /// # Errors
    /// The system's.
    pub async fn write(&self, record: Arc<FileRecord>) -> io::Result<()> {
        let (folder, path) = (self.folder.clone(), self.path(record.id));
        let mark = self.mark_path(record.id);
        let part = self
            .folder
            .join(format!("{}{RECORD_SUFFIX}{PART_SUFFIX}", record.id));
        on_disk(move || {
            let mut file = create_new(&part)?;
            file.write_all(&serde_json::to_vec(&*record)?)?;
            file.sync_data()?;
            fs::rename(part, path)?;
            sync_folder(&folder)?;
            remove(&mark)
        })
        .await
    }

    /// Removes a record.
    ///
    /// # Errors
    /// The system's.
    pub async fn remove(&self, id: FileId) -> io::Result<()> {
        let path = self.path(id);
        on_disk(move || remove(&path)).await
    }
}

/// Returns whether nothing was written to a file for so long. A file that is gone meanwhile is another process's.
fn is_older(entry: &DirEntry, age: Duration) -> bool {
    if age.is_zero() {
        return true;
    }
    let modified = entry.metadata().and_then(|facts| facts.modified());
    let since = modified.ok().and_then(|at| at.elapsed().ok());
    since.is_some_and(|since| since >= age)
}
