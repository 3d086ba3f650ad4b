//! Index of the files in memory: by id, by account, by the moment of their end, with the bytes of each account.
//!
//! Not the files: it is made from their records at the start, and from those that another process writes later.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::AccountId;

use super::file_id::FileId;
use super::records::FileRecord;

/// Bytes that a file counts at least: blob, record and their places on the disk.
const COUNTED_BYTES_MIN: u64 = 16 << 10;

/// Bytes that a file of this size counts.
pub fn counted(size: u64) -> u64 {
    size.max(COUNTED_BYTES_MIN)
}

/// Place of a file in the list of its account: the moment of its creation, milliseconds since 1970, and its id. It
/// stays one after the file is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePlace(pub u64, pub FileId);

impl FilePlace {
    /// Returns the place of a file.
    pub fn of(record: &FileRecord) -> FilePlace {
        FilePlace(record.created_ms, record.id)
    }

    /// Reads `<ms>.<id>`, as it is written.
    pub fn read(text: &str) -> Option<FilePlace> {
        let (ms, id) = text.split_once('.')?;
        Some(FilePlace(ms.parse().ok()?, id.parse().ok()?))
    }
}

impl fmt::Display for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[derive(Default)]
struct AccountFiles {
    /// Creation and id.
    files: BTreeSet<(u64, FileId)>,
    /// Counted bytes, those of uploads under way included.
    bytes: u64,
}

/// Index of the files.
#[derive(Default)]
pub struct FileIndex {
    by_id: HashMap<FileId, Arc<FileRecord>>,
    accounts: HashMap<AccountId, AccountFiles>,
    by_end: BTreeSet<(u64, FileId)>,
    /// Bytes of all files, as large as they are.
    bytes: u64,
}

impl FileIndex {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts bytes of an account; false, and nothing counted, where it would have more than `max`.
    pub fn reserve(&mut self, account: &AccountId, bytes: u64, max: u64) -> bool {
        let held = self.accounts.get(account).map_or(0, |files| files.bytes);
        if held + bytes > max {
            return false;
        }
        self.accounts.entry(account.clone()).or_default().bytes += bytes;
        true
    }

    /// Gives bytes of an upload back.
    pub fn give_back(&mut self, account: &AccountId, bytes: u64) {
        let Some(files) = self.accounts.get_mut(account) else {
            return;
        };
        files.bytes = files.bytes.saturating_sub(bytes);
        if files.bytes == 0 && files.files.is_empty() {
            self.accounts.remove(account);
        }
    }

    /// Adds a file, whose bytes are counted too. A file that is there stays as it is.
    pub fn add(&mut self, record: Arc<FileRecord>) {
        if self.by_id.contains_key(&record.id) {
            return;
        }
        let files = self.accounts.entry(record.account.clone()).or_default();
        files.bytes += counted(record.size);
        files.files.insert((record.created_ms, record.id));
        self.by_end.insert((record.expires_ms, record.id));
        self.bytes += record.size;
        self.by_id.insert(record.id, record);
    }

    /// Removes a file.
    pub fn remove(&mut self, id: FileId) -> Option<Arc<FileRecord>> {
        let record = self.by_id.remove(&id)?;
        self.by_end.remove(&(record.expires_ms, id));
        self.bytes = self.bytes.saturating_sub(record.size);
        if let Some(files) = self.accounts.get_mut(&record.account) {
            files.files.remove(&(record.created_ms, id));
        }
        self.give_back(&record.account, counted(record.size));
        Some(record)
    }

    /// Returns a file, which may have ended.
    pub fn get(&self, id: FileId) -> Option<Arc<FileRecord>> {
        self.by_id.get(&id).map(Arc::clone)
    }

    /// Returns a file that has not ended at `now_ms`.
    pub fn find(&self, id: FileId, now_ms: u64) -> Option<Arc<FileRecord>> {
        self.get(id).filter(|found| found.expires_ms > now_ms)
    }

    /// Returns files of an account that have not ended, newest first, behind the place `after`.
    pub fn list(
        &self,
        account: &AccountId,
        after: Option<FilePlace>,
        (limit, now_ms): (usize, u64),
    ) -> Vec<Arc<FileRecord>> {
        let Some(files) = self.accounts.get(account) else {
            return Vec::new();
        };
        let end = after.map_or(Bound::Unbounded, |place| {
            Bound::Excluded((place.0, place.1))
        });
        files
            .files
            .range((Bound::Unbounded, end))
            .rev()
            .filter_map(|(_, id)| self.find(*id, now_ms))
            .take(limit)
            .collect()
    }

    /// Returns the moment at which the next file ends.
    pub fn next_end(&self) -> Option<u64> {
        self.by_end.first().map(|(end, _)| *end)
    }

    /// Returns up to `limit` files that have ended.
    pub fn ended(&self, now_ms: u64, limit: usize) -> Vec<FileId> {
        let ended = self.by_end.iter().take_while(|(end, _)| *end <= now_ms);
        ended.take(limit).map(|(_, id)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::records::FileOrigin;

    fn record(account: &str, size: u64, created_ms: u64) -> Arc<FileRecord> {
        Arc::new(FileRecord {
            v: FileRecord::VERSION,
            id: FileId::random(),
            account: AccountId::from(account),
            name: "n".into(),
            content_type: "t".into(),
            size,
            sha256: "".into(),
            md5: "".into(),
            metadata: serde_json::Map::new(),
            origin: FileOrigin::Upload,
            created_ms,
            expires_ms: created_ms + 100,
        })
    }

    #[test]
    fn bytes_of_an_account_are_bounded_and_come_back() {
        let mut index = FileIndex::default();
        let account = AccountId::from("a");
        assert!(index.reserve(&account, 100_000, 120_000));
        assert!(!index.reserve(&account, 20_001, 120_000));
        assert!(index.reserve(&AccountId::from("b"), 20_001, 120_000));
        index.give_back(&account, 100_000);
        let small = record("a", 1, 5);
        index.add(Arc::clone(&small));
        assert_eq!(index.bytes(), 1);
        assert!(!index.reserve(&account, 120_000 - COUNTED_BYTES_MIN + 1, 120_000));
        assert!(index.remove(small.id).is_some());
        assert_eq!(index.bytes(), 0);
        assert!(index.reserve(&account, 120_000, 120_000));
    }

    #[test]
    fn files_end_in_order_and_are_unknown_from_then_on() {
        let mut index = FileIndex::default();
        let files = [record("a", 1, 5), record("a", 1, 7), record("b", 1, 6)];
        for file in &files {
            index.add(Arc::clone(file));
        }
        assert_eq!(index.next_end(), Some(105));
        assert!(index.find(files[0].id, 104).is_some());
        assert!(index.find(files[0].id, 105).is_none());
        assert_eq!(index.ended(106, 9), [files[0].id, files[2].id]);
        let listed = |after, limit| -> Vec<FileId> {
            let found = index.list(&AccountId::from("a"), after, (limit, 8));
            found.iter().map(|file| file.id).collect()
        };
        assert_eq!(listed(None, 9), [files[1].id, files[0].id]);
        let place = FilePlace::of(&files[1]);
        assert_eq!(listed(Some(place), 9), [files[0].id]);
        assert_eq!(listed(None, 1), [files[1].id]);
        assert_eq!(FilePlace::read(&place.to_string()), Some(place));
        assert_eq!(FilePlace::read(&files[1].id.to_string()), None);
        // A list that was begun goes on behind a file that has been deleted since.
        index.remove(files[1].id);
        let rest = index.list(&AccountId::from("a"), Some(place), (9, 8));
        assert_eq!(rest.len(), 1);
    }
}
