//! Writer of one object: one request for a small one, parts of 8 MiB for others.
//!
//! A single part is in memory at a time. A writer that is dropped leaves its parts to be removed.

use std::io;
use std::mem;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use object_store::multipart::{MultipartStore, PartId};
use object_store::{ObjectStoreExt, PutPayload};

use super::bucket::Bucket;
use super::faults::fault;
use crate::files::file_id::FileId;
use crate::files::store::BlobWriter;

/// Bytes of a part; stores allow 10,000 parts of at least 5 MiB.
const PART_BYTES: usize = 8 << 20;

/// Writer of an object.
pub(super) struct S3Writer {
    id: FileId,
    bucket: Arc<Bucket>,
    pending: BytesMut,
    /// Id of the upload in parts.
    upload: Option<String>,
    parts: Vec<PartId>,
    is_whole: bool,
}

impl S3Writer {
    /// Begins; the mark is there already.
    pub(super) fn new(id: FileId, bucket: Arc<Bucket>) -> S3Writer {
        S3Writer {
            id,
            bucket,
            pending: BytesMut::new(),
            upload: None,
            parts: Vec::new(),
            is_whole: false,
        }
    }

    async fn send_part(&mut self) -> io::Result<()> {
        let path = self.bucket.path(self.id);
        let s3 = &self.bucket.s3;
        let upload = match &self.upload {
            Some(upload) => upload.clone(),
            None => {
                let created = s3.create_multipart(&path).await;
                let upload = created.map_err(|error| fault(&error))?;
                self.upload = Some(upload.clone());
                self.bucket.marks.mark(self.id, upload.clone()).await?;
                upload
            }
        };
        let part = PutPayload::from(mem::take(&mut self.pending).freeze());
        let sent = s3.put_part(&path, &upload, self.parts.len(), part).await;
        self.parts.push(sent.map_err(|error| fault(&error))?);
        Ok(())
    }
}

impl Drop for S3Writer {
    fn drop(&mut self) {
        if !self.is_whole {
            self.bucket.leave(self.id, self.upload.take());
        }
    }
}

#[async_trait]
impl BlobWriter for S3Writer {
    async fn write(&mut self, mut piece: Bytes) -> io::Result<()> {
        while !piece.is_empty() {
            if self.pending.capacity() == 0 {
                // Not doubled as it grows, which would copy it; what is not written takes no memory.
                self.pending.reserve(PART_BYTES);
            }
            let room = PART_BYTES - self.pending.len();
            self.pending
                .extend_from_slice(&piece.split_to(piece.len().min(room)));
            if self.pending.len() == PART_BYTES {
                self.send_part().await?;
            }
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> io::Result<()> {
        if self.upload.is_some() && !self.pending.is_empty() {
            self.send_part().await?;
        }
        let path = self.bucket.path(self.id);
        let s3 = &self.bucket.s3;
        let parts = mem::take(&mut self.parts);
        let done = match &self.upload {
            Some(upload) => s3.complete_multipart(&path, upload, parts).await,
            None => {
                let whole = mem::take(&mut self.pending).freeze();
                s3.put(&path, whole.into()).await
            }
        };
        done.map_err(|error| fault(&error))?;
        self.is_whole = true;
        Ok(())
    }
}
