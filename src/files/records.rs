//! Records of files, each a JSON document beside its blob.
//!
//! A file exists where its record does: the record is written last and removed first. A store away from this disk leaves
//! a mark before it writes, so that what a killed process has left there is found.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

impl RecordFolder {
    /// Opens the folder, which is made where there is none, and reads its records. Parts of what was under way when the
    /// process ended are removed.
    ///
    /// # Errors
    /// The system's.
    pub fn open(folder: PathBuf) -> io::Result<FoundRecords> {
        create_folder(&folder)?;
        let (mut records, mut blobs, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let id = |suffix| name.strip_suffix(suffix).map(str::parse::<FileId>);
            if let Some(id) = name.strip_suffix(RECORD_SUFFIX) {
                match read(&entry.path(), id) {
                    Some(record) => records.push(record),
                    None => tracing::warn!(file = name, "the record of a file is damaged"),
                }
            } else if name.ends_with(PART_SUFFIX) {
                remove(&entry.path())?;
            } else if let Some(Ok(id)) = id(MARK_SUFFIX) {
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                marks.push(BlobMark { id, text });
            } else if let Some(Ok(id)) = id(BLOB_SUFFIX) {
                blobs.push(id);
            }
        }
        let known: hashbrown::HashSet<FileId> = records.iter().map(|record| record.id).collect();
        for id in blobs.into_iter().filter(|id| !known.contains(id)) {
            remove(&folder.join(format!("{id}{BLOB_SUFFIX}")))?;
        }
        let folder = RecordFolder { folder };
        for mark in marks.iter().filter(|mark| known.contains(&mark.id)) {
            remove(&folder.mark_path(mark.id))?;
        }
        marks.retain(|mark| !known.contains(&mark.id));
        Ok(FoundRecords {
            folder,
            records,
            marks,
        })
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

/// Reads a record by its path; none where it is not this file's, or of another version.
fn read(path: &Path, id: &str) -> Option<FileRecord> {
    let record: FileRecord = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let is_own = Ok(record.id) == id.parse() && record.v == DOCUMENT_VERSION;
    is_own.then_some(record)
}
