//! Blobs as objects of a bucket, and the removal of what dropped writers and failed deletes have left.
//!
//! Not the records of files, which are on this node's disk. A blob that is begun or deleted has a mark there, so that a
//! killed process leaves nothing that its successor does not know.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::{ObjectStoreExt, RetryConfig};

use super::bucket::Bucket;
use super::connector::{RANGE_BYTES, S3Connector};
use super::digests::SignatureDigests;
use super::faults::fault;
use super::place::BucketPlace;
use super::writer::S3Writer;
use crate::files::config::S3FilesConfig;
use crate::files::file_id::FileId;
use crate::files::records::{BlobMark, RecordFolder};
use crate::files::store::{BlobReader, BlobStore, BlobWriter};
use crate::state::Shared;

/// Attempts after the first failed one.
const RETRIES_MAX: usize = 3;
/// Time after which a request is not repeated.
const RETRY_TIME: Duration = Duration::from_secs(60);
/// Pause after a failure to remove what is left.
const CLEAN_PAUSE: Duration = Duration::from_secs(30);
/// Blobs in a bucket.
pub struct S3Blobs {
    bucket: Arc<Bucket>,
}

impl S3Blobs {
    /// Opens a bucket; no request is sent yet. `kept` are the folder of the marks and the marks of a former process.
    ///
    /// # Errors
    /// The endpoint is no URL of a server.
    pub fn open(
        config: &S3FilesConfig,
        kept: (RecordFolder, Vec<BlobMark>),
        shared: Arc<Shared>,
    ) -> io::Result<S3Blobs> {
        let place = BucketPlace::of(config);
        let connector = S3Connector::new(&place.origin, shared);
        let connector =
            connector.ok_or_else(|| io::Error::other("files.s3.endpoint is no URL of a server"))?;
        let is_http = place.origin.starts_with("http://");
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&config.bucket)
            .with_region(&config.region)
            .with_endpoint(place.endpoint)
            .with_virtual_hosted_style_request(!config.path_style)
            .with_allow_http(is_http)
            // TLS protects the bytes, and a digest of 8 MiB holds a worker for milliseconds.
            .with_unsigned_payload(!is_http)
            .with_disable_bulk_delete(true)
            .with_crypto_provider(Arc::new(SignatureDigests))
            .with_http_connector(connector)
            .with_retry(RetryConfig {
                max_retries: RETRIES_MAX,
                retry_timeout: RETRY_TIME,
                ..RetryConfig::default()
            });
        builder = match (&config.access_key, &config.secret_key) {
            (Some(name), Some(secret)) => builder
                .with_access_key_id(name.reveal())
                .with_secret_access_key(secret.reveal()),
            _ => builder.with_skip_signature(true),
        };
        let s3 = builder.build().map_err(|error| fault(&error))?;
        let (marks, left) = kept;
        let bucket = Bucket::new(s3, config.prefix.clone(), marks, left);
        Ok(S3Blobs {
            bucket: Arc::new(bucket),
        })
    }
}

#[async_trait]
impl BlobStore for S3Blobs {
    async fn put(&self, id: FileId) -> io::Result<Box<dyn BlobWriter>> {
        self.bucket.marks.mark(id, String::new()).await?;
        Ok(Box::new(S3Writer::new(id, Arc::clone(&self.bucket))))
    }

    async fn get(&self, id: FileId, range: Range<u64>) -> io::Result<Box<dyn BlobReader>> {
        let mut reader = S3Reader {
            bucket: Arc::clone(&self.bucket),
            id,
            range,
            ahead: None,
        };
        // An object that is gone is told before the head of an answer.
        reader.ahead = reader.fetch().await?;
        Ok(Box::new(reader))
    }

    async fn delete(&self, id: FileId) -> io::Result<()> {
        let mark = BlobMark {
            id,
            text: String::new(),
        };
        if let Err(error) = self.bucket.remove(&mark).await {
            // The file is gone for its owner; its bytes follow.
            tracing::warn!(%id, %error, "a blob is deleted later");
            self.bucket.marks.mark(id, mark.text).await?;
            self.bucket.leave(id, None);
        }
        Ok(())
    }

    fn leave(&self, id: FileId, mark: String) {
        self.bucket.leave(id, Some(mark));
    }

    async fn clean(&self) {
        loop {
            self.bucket.added().await;
            while let Some(mark) = self.bucket.next_left() {
                let removed = self.bucket.remove(&mark).await;
                if let Err(error) = &removed {
                    tracing::warn!(id = %mark.id, %error, "a blob cannot be removed");
                }
                self.bucket.take_left(mark, removed.is_ok());
                if removed.is_err() {
                    tokio::time::sleep(CLEAN_PAUSE).await;
                }
            }
        }
    }
}

/// Reader of a range, one piece at a time, each by a request of its own: a slow client holds no connection.
struct S3Reader {
    bucket: Arc<Bucket>,
    id: FileId,
    range: Range<u64>,
    ahead: Option<Bytes>,
}

impl S3Reader {
    async fn fetch(&mut self) -> io::Result<Option<Bytes>> {
        if self.range.is_empty() {
            return Ok(None);
        }
        let end = self.range.end.min(self.range.start + RANGE_BYTES as u64);
        let path = self.bucket.path(self.id);
        let got = self.bucket.s3.get_range(&path, self.range.start..end).await;
        let piece = got.map_err(|error| fault(&error))?;
        if piece.len() as u64 != end - self.range.start {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.range.start = end;
        Ok(Some(piece))
    }
}

#[async_trait]
impl BlobReader for S3Reader {
    async fn read(&mut self) -> io::Result<Option<Bytes>> {
        match self.ahead.take() {
            Some(piece) => Ok(Some(piece)),
            None => self.fetch().await,
        }
    }
}
