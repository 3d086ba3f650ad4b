//! Files as their callers see them: kept, found, read, removed, and gone at their end.
//!
//! Not an API: objects are the callers'. A process has a single instance.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::BytesMut;
use infergate_core::{AccountId, Refusal};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::config::FilesConfig;
use super::file_id::FileId;
use super::index::{FileIndex, FilePlace};
use super::key::{DownloadKey, owner_of};
use super::local::LocalBlobs;
use super::records::{FileRecord, FoundRecords, RecordFolder};
use super::s3::S3Blobs;
use super::store::{BlobReader, BlobStore, BlobWriter};
use super::upload::FileError;
use super::urls::file_url;
use crate::state::Shared;
use crate::telemetry::Clock;

/// Pause between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Files that are removed at once.
const SWEEP_FILES: usize = 64;

/// Files of a process.
pub struct Files {
    blobs: Box<dyn BlobStore>,
    records: RecordFolder,
    /// Held for one look-up or one change.
    index: Mutex<FileIndex>,
    config: ArcSwap<FilesConfig>,
    key: DownloadKey,
    clock: Clock,
    /// Notified after each new file.
    added: Notify,
}

impl Files {
    /// Opens the store of the configuration.
    ///
    /// # Errors
    /// The folder or the key cannot be read or made.
    pub fn open(
        config: FilesConfig,
        state_dir: &Path,
        shared: &Arc<Shared>,
    ) -> io::Result<Arc<Files>> {
        let folder = config.folder(state_dir);
        let found = RecordFolder::open(folder.clone())?;
        match config.s3.clone() {
            None => Files::on_disk(config, state_dir, found, shared.clock),
            Some(s3) => {
                let kept = (found.folder.clone(), found.marks.clone());
                let blobs = Box::new(S3Blobs::open(&s3, kept, Arc::clone(shared))?);
                Files::with_store(config, state_dir, (found, blobs), shared.clock)
            }
        }
    }

    /// Opens the local store.
    #[cfg(test)]
    pub fn open_local(
        config: FilesConfig,
        state_dir: &Path,
        clock: Clock,
    ) -> io::Result<Arc<Files>> {
        let found = RecordFolder::open(config.folder(state_dir))?;
        Files::on_disk(config, state_dir, found, clock)
    }

    fn on_disk(
        config: FilesConfig,
        state_dir: &Path,
        found: FoundRecords,
        clock: Clock,
    ) -> io::Result<Arc<Files>> {
        let blobs = Box::new(LocalBlobs::new(config.folder(state_dir)));
        Files::with_store(config, state_dir, (found, blobs), clock)
    }

    fn with_store(
        config: FilesConfig,
        state_dir: &Path,
        (found, blobs): (FoundRecords, Box<dyn BlobStore>),
        clock: Clock,
    ) -> io::Result<Arc<Files>> {
        let mut index = FileIndex::default();
        for record in found.records {
            index.add(Arc::new(record));
        }
        Ok(Arc::new(Files {
            blobs,
            records: found.folder,
            index: Mutex::new(index),
            config: ArcSwap::from_pointee(config),
            key: DownloadKey::open(state_dir)?,
            clock,
            added: Notify::new(),
        }))
    }

    /// Applies other limits.
    pub fn configure(&self, config: FilesConfig) {
        self.config.store(Arc::new(config));
    }

    /// Returns the limits.
    pub fn config(&self) -> Arc<FilesConfig> {
        self.config.load_full()
    }

    /// Returns the kind of the store, and the bytes of all files.
    pub fn level(&self) -> (&'static str, u64) {
        let kind = match self.config.load().s3 {
            Some(_) => "s3",
            None => "local",
        };
        (kind, self.index.lock().bytes())
    }

    /// Returns the refusal of a file that is larger than one may be.
    pub fn too_large(&self) -> Refusal {
        FileError::TooLarge(self.config.load().file_max_mib).into()
    }

    /// Returns the present moment, milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        let wall = self.clock.wall().unix_timestamp_nanos() / 1_000_000;
        u64::try_from(wall).unwrap_or(0)
    }

    pub(super) fn reserve(&self, account: &AccountId, bytes: u64) -> bool {
        let max = self.config.load().account_max_mib << 20;
        self.index.lock().reserve(account, bytes, max)
    }

    pub(super) fn give_back(&self, account: &AccountId, bytes: u64) {
        self.index.lock().give_back(account, bytes);
    }

    pub(super) async fn begin_blob(&self, id: FileId) -> io::Result<Box<dyn BlobWriter>> {
        self.blobs.put(id).await
    }

    /// Keeps a file whose blob is whole.
    pub(super) async fn keep(&self, record: Arc<FileRecord>) -> io::Result<()> {
        if let Err(error) = self.records.write(Arc::clone(&record)).await {
            // The next start removes it where this fails too.
            let _ = self.blobs.delete(record.id).await;
            return Err(error);
        }
        self.index.lock().add(record);
        self.added.notify_one();
        Ok(())
    }

    /// Returns a file of an account.
    pub fn find(&self, account: &AccountId, id: FileId) -> Option<Arc<FileRecord>> {
        let found = self.index.lock().find(id, self.now_ms())?;
        (found.account == *account).then_some(found)
    }

    /// Returns the file that the query of a signed download names. A wrong, foreign or late one names none.
    pub fn find_signed(&self, id: FileId, query: &str) -> Option<Arc<FileRecord>> {
        let value = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let mut own = pairs.filter(|pair| pair.0 == name);
            own.next().map(|pair| pair.1)
        };
        let (owner, expiry) = (value("owner")?, value("expiry")?.parse::<u64>().ok()?);
        let is_signed = self.key.is_signed(id, owner, expiry, value("signature")?);
        let now = self.now_ms();
        if !is_signed || expiry.saturating_mul(1000) <= now {
            return None;
        }
        let found = self.index.lock().find(id, now)?;
        (owner_of(&found.account) == owner).then_some(found)
    }

    /// Returns the URL by which anyone may download a file until its end.
    pub fn download_url(&self, base_url: &str, record: &FileRecord) -> String {
        self.download_url_until(base_url, record, record.expires_ms)
    }

    /// Returns the URL by which anyone may download a file until a moment, milliseconds since 1970, or its end.
    pub fn download_url_until(&self, base_url: &str, record: &FileRecord, until_ms: u64) -> String {
        let owner = owner_of(&record.account);
        let expiry = until_ms.min(record.expires_ms).div_ceil(1000);
        let signature = self.key.sign(record.id, &owner, expiry);
        let url = file_url(base_url, record.id);
        format!("{url}/download?owner={owner}&expiry={expiry}&signature={signature}")
    }

    /// Returns files of an account, newest first, behind the place `after`.
    pub fn list(
        &self,
        account: &AccountId,
        after: Option<FilePlace>,
        limit: usize,
    ) -> Vec<Arc<FileRecord>> {
        let now = self.now_ms();
        self.index.lock().list(account, after, (limit, now))
    }

    /// Opens a range of a file.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn read(
        &self,
        record: &FileRecord,
        range: Range<u64>,
    ) -> io::Result<Box<dyn BlobReader>> {
        self.blobs.get(record.id, range).await
    }

    /// Reads a whole file, whose size the caller has looked at.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn read_whole(&self, record: &FileRecord) -> io::Result<BytesMut> {
        let mut reader = self.read(record, 0..record.size).await?;
        let mut bytes = BytesMut::new();
        while let Some(piece) = reader.read().await? {
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn remove(&self, id: FileId) -> io::Result<()> {
        self.records.remove(id).await?;
        self.index.lock().remove(id);
        self.blobs.delete(id).await
    }

    /// Removes files at their end, and what the store has left, until its future is dropped.
    pub async fn sweep(self: Arc<Self>) {
        tokio::join!(self.sweep_files(), self.blobs.clean());
    }

    /// Removes files at their end, at most each minute and only where one can have ended.
    async fn sweep_files(&self) {
        loop {
            let added = self.added.notified();
            let next = self.index.lock().next_end();
            let Some(next) = next else {
                added.await;
                continue;
            };
            let left = Duration::from_millis(next.saturating_sub(self.now_ms()));
            // Not beyond a minute: the wall clock may be set.
            tokio::time::sleep(left.clamp(Duration::from_secs(1), SWEEP_EVERY)).await;
            if self.sweep_once().await {
                tokio::time::sleep(SWEEP_EVERY).await;
            }
        }
    }

    /// Removes every file that has ended. Returns whether one had.
    async fn sweep_once(&self) -> bool {
        let mut has_any = false;
        loop {
            let ended = self.index.lock().ended(self.now_ms(), SWEEP_FILES);
            if ended.is_empty() {
                return has_any;
            }
            has_any = true;
            for id in ended {
                if let Err(error) = self.remove(id).await {
                    tracing::warn!(%id, %error, "a file cannot be removed");
                    return has_any;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileOrigin, NewFile, Upload};

    async fn kept(files: &Arc<Files>, expires_secs: u64) -> Arc<FileRecord> {
        let mut upload = Upload::begin(files, &AccountId::from("a")).await.unwrap();
        upload.push("abc".into()).await.unwrap();
        let facts = NewFile {
            name: "../../x\n".to_owned(),
            content_type: String::new(),
            metadata: serde_json::Map::new(),
            origin: FileOrigin::Upload,
            expires_secs,
        };
        upload.finish(facts).await.unwrap()
    }

    #[tokio::test]
    async fn a_file_outlasts_its_process_and_goes_at_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || Files::open_local(FilesConfig::default(), dir.path(), Clock::start()).unwrap();
        let files = open();
        let file = kept(&files, 3600).await;
        assert_eq!((&*file.name, file.size), ("../../x", 3));
        assert_eq!(&*file.md5, "900150983cd24fb0d6963f7d28e17f72");
        drop(Upload::begin(&files, &file.account).await.unwrap());
        let files = open();
        assert_eq!(&files.read_whole(&file).await.unwrap()[..], b"abc");
        let url = files.download_url("https://h", &file);
        let query = url.split_once('?').unwrap().1;
        assert!(files.find_signed(file.id, query).is_some());
        assert!(
            files
                .find_signed(file.id, &query.replace("expiry=", "expiry=1"))
                .is_none()
        );
        assert!(files.find_signed(FileId::random(), query).is_none());
        assert!(files.find(&AccountId::from("b"), file.id).is_none());
        let over = kept(&files, 0).await;
        assert!(files.find(&over.account, over.id).is_none());
        let late = files.download_url("https://h", &over);
        let query = late.split_once('?').unwrap().1;
        assert!(files.find_signed(over.id, query).is_none());
        assert!(files.sweep_once().await);
        assert!(!files.sweep_once().await);
        files.remove(file.id).await.unwrap();
        let left = std::fs::read_dir(dir.path().join("files")).unwrap();
        assert_eq!(left.count(), 0);
    }
}
