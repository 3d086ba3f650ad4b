//! Files as their callers see them: kept, found, read, removed, and gone at their end.
//!
//! Not an API: objects are the callers'. A process has a single instance. While it takes over from another process, that
//! one's new files are found on the disk, one look at a time.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::BytesMut;
use infergate_core::{AccountId, Refusal};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

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
/// Pause between two looks for what other processes have kept or left: a file is found by its id without one.
const LOOK_EVERY: Duration = Duration::from_secs(900);

/// Files of a process.
pub struct Files {
    blobs: Box<dyn BlobStore>,
    records: RecordFolder,
    /// Held for one look-up or one change.
    index: Mutex<FileIndex>,
    /// Held while a record that the index does not have is looked for. Reads of the disk come one at a time by it, and a
    /// file that is removed meanwhile does not come back.
    lookup: Semaphore,
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
            lookup: Semaphore::new(1),
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
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn find(
        &self,
        account: &AccountId,
        id: FileId,
    ) -> Result<Option<Arc<FileRecord>>, Refusal> {
        let found = self.find_any(id).await?;
        Ok(found.filter(|found| found.account == *account))
    }

    /// Returns the file that the query of a signed download names. A wrong, foreign or late one names none.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn find_signed(
        &self,
        id: FileId,
        query: &str,
    ) -> Result<Option<Arc<FileRecord>>, Refusal> {
        // Before the disk is looked at: strangers have no signature.
        let Some(owner) = self.signed_owner(id, query) else {
            return Ok(None);
        };
        let found = self.find_any(id).await?;
        Ok(found.filter(|found| owner_of(&found.account) == owner))
    }

    fn signed_owner<'a>(&self, id: FileId, query: &'a str) -> Option<&'a str> {
        let value = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let mut own = pairs.filter(|pair| pair.0 == name);
            own.next().map(|pair| pair.1)
        };
        let (owner, expiry) = (value("owner")?, value("expiry")?.parse::<u64>().ok()?);
        let is_signed = self.key.is_signed(id, owner, expiry, value("signature")?);
        (is_signed && expiry.saturating_mul(1000) > self.now_ms()).then_some(owner)
    }

    /// Returns a file that has not ended, also one that another process has kept since this one began.
    async fn find_any(&self, id: FileId) -> Result<Option<Arc<FileRecord>>, Refusal> {
        let known = self.index.lock().get(id);
        let found = match known {
            Some(known) => Some(known),
            None => self.load(id).await.map_err(|error| {
                tracing::warn!(%id, %error, "the record of a file cannot be read");
                Refusal::JobsUnavailable
            })?,
        };
        let now = self.now_ms();
        Ok(found.filter(|found| found.expires_ms > now))
    }

    /// Reads a record that the index does not have, and adds it.
    async fn load(&self, id: FileId) -> io::Result<Option<Arc<FileRecord>>> {
        let _lookup = self.lookup.acquire().await.map_err(io::Error::other)?;
        // The one before may have looked for the same file.
        if let Some(known) = self.index.lock().get(id) {
            return Ok(Some(known));
        }
        let Some(record) = self.records.read(id).await?.map(Arc::new) else {
            return Ok(None);
        };
        self.index.lock().add(Arc::clone(&record));
        self.added.notify_one();
        Ok(Some(record))
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

    /// Removes files at their end, and what was left by others or by the store, until its future is dropped.
    pub async fn sweep(self: Arc<Self>) {
        tokio::join!(self.sweep_files(), self.look_around(), self.blobs.clean());
    }

    /// Adds what other processes have kept, and removes what they have left, time and again.
    async fn look_around(self: &Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Err(error) = self.look_around_once().await {
                tracing::warn!(%error, "the folder of the files cannot be looked through");
            }
        }
    }

    async fn look_around_once(self: &Arc<Self>) -> io::Result<()> {
        let files = Arc::clone(self);
        let is_known = move |id| files.index.lock().get(id).is_some();
        let (others, marks) = self.records.look(is_known).await?;
        for id in others {
            self.load(id).await?;
        }
        for mark in marks {
            self.blobs.leave(mark.id, mark.text);
        }
        Ok(())
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

    async fn signed(files: &Files, id: FileId, query: &str) -> bool {
        files.find_signed(id, query).await.unwrap().is_some()
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
        assert!(signed(&files, file.id, query).await);
        let other = query.replace("expiry=", "expiry=1");
        assert!(!signed(&files, file.id, &other).await);
        assert!(!signed(&files, FileId::random(), query).await);
        let found = files.find(&AccountId::from("b"), file.id).await.unwrap();
        assert!(found.is_none());
        let over = kept(&files, 0).await;
        let found = files.find(&over.account, over.id).await.unwrap();
        assert!(found.is_none());
        let late = files.download_url("https://h", &over);
        let query = late.split_once('?').unwrap().1;
        assert!(!signed(&files, over.id, query).await);
        assert!(files.sweep_once().await);
        assert!(!files.sweep_once().await);
        files.remove(file.id).await.unwrap();
        let left = std::fs::read_dir(dir.path().join("files")).unwrap();
        assert_eq!(left.count(), 0);
    }

    #[tokio::test]
    async fn a_successor_finds_what_its_predecessor_keeps_later() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || Files::open_local(FilesConfig::default(), dir.path(), Clock::start()).unwrap();
        let (former, next) = (open(), open());
        let file = kept(&former, 3600).await;
        let found = next.find(&file.account, file.id).await.unwrap().unwrap();
        assert_eq!(&next.read_whole(&found).await.unwrap()[..], b"abc");
        assert_eq!(next.level().1, 3);
        let query = former.download_url("https://h", &file);
        let query = query.split_once('?').unwrap().1;
        let other = kept(&former, 3600).await;
        assert!(!signed(&next, other.id, query).await);
        assert!(signed(&next, file.id, query).await);
        // Those that nobody has asked for are in lists and are swept all the same.
        next.look_around_once().await.unwrap();
        assert_eq!(next.list(&file.account, None, 9).len(), 2);
        assert_eq!(next.level().1, 6);
        next.remove(file.id).await.unwrap();
        assert!(next.find(&file.account, file.id).await.unwrap().is_none());
    }

    /// Names of the folder's files with an end.
    fn ends_with(dir: &Path, end: &str) -> usize {
        let entries = std::fs::read_dir(dir.join("files")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_str().unwrap().ends_with(end))
            .count()
    }

    #[tokio::test]
    async fn what_a_living_predecessor_writes_stays_and_what_is_old_or_of_nobody_goes() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || Files::open_local(FilesConfig::default(), dir.path(), Clock::start()).unwrap();
        let former = open();
        let upload = Upload::begin(&former, &AccountId::from("a")).await.unwrap();
        let write = |name: String, age_secs: u64| {
            let path = dir.path().join("files").join(name);
            let file = std::fs::File::create(path).unwrap();
            let now = file.metadata().unwrap().modified().unwrap();
            let at = now - Duration::from_secs(age_secs);
            file.set_modified(at).unwrap();
        };
        for age_secs in [60, 90_000] {
            write(format!("{}.blob", FileId::random()), age_secs);
            write(format!("{}.put", FileId::random()), age_secs);
            write(format!("{}.blob.part", FileId::random()), age_secs);
        }
        let next = open();
        let count = |end| ends_with(dir.path(), end);
        // Marks are the store's, which removes them after their blobs.
        assert_eq!((count(".blob"), count(".part"), count(".put")), (1, 2, 2));
        write(format!("{}.blob.part", FileId::random()), 90_000);
        next.look_around_once().await.unwrap();
        assert_eq!((count(".blob"), count(".part")), (1, 2));
        let facts = NewFile {
            name: String::new(),
            content_type: String::new(),
            metadata: serde_json::Map::new(),
            origin: FileOrigin::Upload,
            expires_secs: 60,
        };
        let file = upload.finish(facts).await.unwrap();
        assert!(next.find(&file.account, file.id).await.unwrap().is_some());
        drop((former, next));
        // Nobody lives who could go on with the rest.
        let alone = open();
        assert_eq!((count(".blob"), count(".part")), (1, 0));
        assert!(alone.find(&file.account, file.id).await.unwrap().is_some());
    }

    #[test]
    fn marks_of_a_living_predecessor_are_not_the_successors_to_clean() {
        let dir = tempfile::tempdir().unwrap();
        let open = || RecordFolder::open(dir.path().to_owned()).unwrap();
        let former = open();
        let path = dir.path().join(format!("{}.put", FileId::random()));
        std::fs::write(path, "parts").unwrap();
        assert!(open().marks.is_empty());
        drop(former);
        assert_eq!(open().marks.len(), 1);
    }
}
