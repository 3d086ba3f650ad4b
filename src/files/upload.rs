//! Upload of one file: pieces in, digests on the way, a record at the end.
//!
//! An upload that is dropped leaves nothing: neither bytes on the disk nor bytes of the account.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use infergate_core::{AccountId, Refusal};
use md5::Md5;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::file_id::FileId;
use super::index::counted;
use super::records::{FileOrigin, FileRecord};
use super::service::Files;
use super::store::BlobWriter;

/// Longest name and content type that are kept, bytes.
const TEXT_BYTES_MAX: usize = 255;

/// Facts of a file that its bytes do not tell.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Name for shows; the id where it is empty.
    pub name: String,
    /// Content type; bytes where it is empty.
    pub content_type: String,
    /// Object that came with it.
    pub metadata: Map<String, Value>,
    /// Origin.
    pub origin: FileOrigin,
    /// Seconds that it is kept.
    pub expires_secs: u64,
}

/// Failure to keep a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Larger than a file may be.
    #[error("the file is larger than {0} MiB, the most that one may have (`files.file_max_mib`)")]
    TooLarge(u64),
    /// The account's files are as many bytes as they may be.
    #[error(
        "the account's files would have more than {0} MiB (`files.account_max_mib`): delete some, or wait for their end"
    )]
    AccountFull(u64),
    /// The store cannot be written.
    #[error(transparent)]
    Store(#[from] io::Error),
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Refusal {
        let status = match error {
            FileError::TooLarge(_) => 413,
            FileError::AccountFull(_) => 422,
            FileError::Store(error) => {
                tracing::warn!(%error, "a file cannot be kept");
                return Refusal::JobsUnavailable;
            }
        };
        Refusal::Rejected {
            status,
            pointer: String::new(),
            message: error.to_string(),
        }
    }
}

/// Upload under way.
pub struct Upload {
    files: Arc<Files>,
    account: AccountId,
    id: FileId,
    writer: Box<dyn BlobWriter>,
    sha256: Sha256,
    md5: Md5,
    size: u64,
    held: HeldBytes,
}

/// Bytes of an account that an upload holds; given back by drop.
struct HeldBytes {
    files: Arc<Files>,
    account: AccountId,
    bytes: u64,
}

impl HeldBytes {
    fn grow(&mut self, size: u64) -> bool {
        let more = counted(size) - self.bytes;
        if more > 0 && !self.files.reserve(&self.account, more) {
            return false;
        }
        self.bytes += more;
        true
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.files.give_back(&self.account, self.bytes);
    }
}

impl Upload {
    /// Begins an upload.
    ///
    /// # Errors
    /// [`FileError`].
    pub async fn begin(files: &Arc<Files>, account: &AccountId) -> Result<Upload, FileError> {
        let mut held = HeldBytes {
            files: Arc::clone(files),
            account: account.clone(),
            bytes: 0,
        };
        if !held.grow(0) {
            return Err(FileError::AccountFull(files.config().account_max_mib));
        }
        let id = FileId::random();
        Ok(Upload {
            writer: files.begin_blob(id).await?,
            files: Arc::clone(files),
            account: account.clone(),
            id,
            sha256: Sha256::new(),
            md5: Md5::new(),
            size: 0,
            held,
        })
    }

    /// Adds a piece.
    ///
    /// # Errors
    /// [`FileError`]; nothing further can be added then.
    pub async fn push(&mut self, piece: Bytes) -> Result<(), FileError> {
        let config = self.files.config();
        self.size += piece.len() as u64;
        if self.size > config.file_max_mib << 20 {
            return Err(FileError::TooLarge(config.file_max_mib));
        }
        if !self.held.grow(self.size) {
            return Err(FileError::AccountFull(config.account_max_mib));
        }
        self.sha256.update(&piece);
        self.md5.update(&piece);
        Ok(self.writer.write(piece).await?)
    }

    /// Keeps the file.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn finish(self, facts: NewFile) -> Result<Arc<FileRecord>, FileError> {
        let created_ms = self.files.now_ms();
        let record = Arc::new(FileRecord {
            v: FileRecord::VERSION,
            id: self.id,
            account: self.account,
            name: shown(&facts.name, || self.id.to_string()),
            content_type: shown(&facts.content_type, || {
                "application/octet-stream".to_owned()
            }),
            size: self.size,
            sha256: hex::encode(self.sha256.finalize()).into(),
            md5: hex::encode(self.md5.finalize()).into(),
            metadata: facts.metadata,
            origin: facts.origin,
            created_ms,
            expires_ms: created_ms + facts.expires_secs * 1000,
        });
        self.writer.finish().await?;
        self.files.keep(Arc::clone(&record)).await?;
        // Dropped now that the record counts.
        drop(self.held);
        Ok(record)
    }
}

/// Text of a user as it is kept: without control characters, and not too long.
fn shown(text: &str, other: impl FnOnce() -> String) -> Arc<str> {
    let mut kept = String::new();
    for letter in text.trim().chars().filter(|letter| !letter.is_control()) {
        if kept.len() + letter.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        kept.push(letter);
    }
    match kept.is_empty() {
        true => other().into(),
        false => kept.into(),
    }
}
