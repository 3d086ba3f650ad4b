//! Store of blobs, as every kind of store has it: streamed writes, ranges, deletes.
//!
//! Not the records of files: a store knows names and bytes.

use std::io;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;

use super::file_id::FileId;

/// Store of blobs.
#[async_trait]
pub trait BlobStore: Send + Sync {
    /// Begins a blob, which is there once its writer has finished. A writer that is dropped leaves nothing.
    async fn put(&self, id: FileId) -> io::Result<Box<dyn BlobWriter>>;

    /// Opens a range of a blob. Only a store on a disk goes on to read it after a delete.
    async fn get(&self, id: FileId, range: Range<u64>) -> io::Result<Box<dyn BlobReader>>;

    /// Deletes a blob; one that is not there is deleted already.
    async fn delete(&self, id: FileId) -> io::Result<()>;

    /// Leaves a blob to be removed whose process has ended, with the text of its mark. A store without marks has none.
    fn leave(&self, _id: FileId, _mark: String) {}

    /// Removes what dropped writers and failed deletes have left, until its future is dropped.
    async fn clean(&self) {
        std::future::pending().await
    }
}

/// Writer of one blob.
#[async_trait]
pub trait BlobWriter: Send {
    /// Adds a piece. A future that is dropped spoils the writer.
    async fn write(&mut self, piece: Bytes) -> io::Result<()>;

    /// Makes the blob whole and lasting.
    async fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Reader of a range.
#[async_trait]
pub trait BlobReader: Send {
    /// Returns the next piece, of a bounded size; none at the end.
    async fn read(&mut self) -> io::Result<Option<Bytes>>;
}
