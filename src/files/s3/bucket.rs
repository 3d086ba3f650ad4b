//! Bucket with what is to be removed from it.
//!
//! Not the moments at which that is tried.

use std::io;

use object_store::aws::AmazonS3;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::faults::fault;
use crate::files::file_id::FileId;
use crate::files::records::{BlobMark, RecordFolder};

/// Blobs that wait to be removed; the next start finds further ones by their marks.
const LEFT_MAX: usize = 16 << 10;

/// Bucket with what is known about it here.
pub(super) struct Bucket {
    pub(super) s3: AmazonS3,
    pub(super) marks: RecordFolder,
    prefix: String,
    left: Mutex<Vec<BlobMark>>,
    added: Notify,
}

impl Bucket {
    /// Opens a bucket; `left` are the marks of a former process.
    pub(super) fn new(
        s3: AmazonS3,
        prefix: String,
        marks: RecordFolder,
        left: Vec<BlobMark>,
    ) -> Bucket {
        let added = Notify::new();
        added.notify_one();
        Bucket {
            s3,
            marks,
            prefix,
            left: Mutex::new(left),
            added,
        }
    }

    /// Waits until there may be something to remove.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    /// Name of the object.
    pub(super) fn path(&self, id: FileId) -> Path {
        Path::from(format!("{}{id}", self.prefix))
    }

    /// Leaves a blob to be removed; `upload` is the id of its parts, if it has any.
    pub(super) fn leave(&self, id: FileId, upload: Option<String>) {
        let text = upload.unwrap_or_default();
        let mark = BlobMark { id, text };
        let mut left = self.left.lock();
        // One that waits for a long time is found again by its mark.
        if left.len() < LEFT_MAX && !left.contains(&mark) {
            left.push(mark);
            self.added.notify_one();
        }
    }

    /// Returns the blob to be removed next, which stays in the list until it is.
    pub(super) fn next_left(&self) -> Option<BlobMark> {
        self.left.lock().last().cloned()
    }

    /// Takes a blob from the list, or puts it behind the others.
    pub(super) fn take_left(&self, mark: BlobMark, is_removed: bool) {
        let mut left = self.left.lock();
        left.retain(|other| *other != mark);
        if !is_removed {
            left.insert(0, mark);
        }
    }

    /// Removes a blob, its parts and its mark.
    pub(super) async fn remove(&self, mark: &BlobMark) -> io::Result<()> {
        let path = self.path(mark.id);
        if !mark.text.is_empty() {
            let aborted = self.s3.abort_multipart(&path, &mark.text).await;
            gone(aborted)?;
        }
        gone(self.s3.delete(&path).await)?;
        self.marks.unmark(mark.id).await
    }
}

/// An object that is not there counts as removed.
fn gone(removed: Result<(), Error>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(fault(&error)),
    }
}
