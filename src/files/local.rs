//! Blobs in a folder: written under a temporary name, synced, renamed.
//!
//! Names are ids. Each writer and each reader holds at most [`PIECE_BYTES`] and one piece of its caller.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};

use super::disk::{create_new, on_disk, remove, sync_folder};
use super::file_id::FileId;
use super::store::{BlobReader, BlobStore, BlobWriter};

/// Bytes of one write or read.
const PIECE_BYTES: usize = 256 << 10;
/// End of the name of a whole blob.
pub const BLOB_SUFFIX: &str = ".blob";
/// End of a temporary name.
pub const PART_SUFFIX: &str = ".part";

/// Blobs of one folder.
pub struct LocalBlobs {
    folder: PathBuf,
}

impl LocalBlobs {
    /// Names the folder, which exists.
    pub fn new(folder: PathBuf) -> LocalBlobs {
        LocalBlobs { folder }
    }

    fn path(&self, id: FileId) -> PathBuf {
        self.folder.join(format!("{id}{BLOB_SUFFIX}"))
    }
}

#[async_trait]
impl BlobStore for LocalBlobs {
    async fn put(&self, id: FileId) -> io::Result<Box<dyn BlobWriter>> {
        let part = PartFile(self.folder.join(format!("{id}{BLOB_SUFFIX}{PART_SUFFIX}")));
        let path = part.0.clone();
        let file = on_disk(move || create_new(&path)).await?;
        Ok(Box::new(LocalWriter {
            file: Some(file),
            pending: BytesMut::new(),
            part,
            whole: self.path(id),
        }))
    }

    async fn get(&self, id: FileId, range: Range<u64>) -> io::Result<Box<dyn BlobReader>> {
        let path = self.path(id);
        let start = range.start;
        let file = on_disk(move || {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(start))?;
            Ok(file)
        })
        .await?;
        Ok(Box::new(LocalReader {
            file: Some(file),
            left: range.end - range.start,
        }))
    }

    async fn delete(&self, id: FileId) -> io::Result<()> {
        let path = self.path(id);
        on_disk(move || remove(&path)).await
    }
}

/// Temporary file, removed by drop.
struct PartFile(PathBuf);

impl Drop for PartFile {
    fn drop(&mut self) {
        // The next start removes what is left.
        let _ = remove(&self.0);
    }
}

struct LocalWriter {
    /// Absent while it is written to, and after a failure.
    file: Option<File>,
    pending: BytesMut,
    part: PartFile,
    whole: PathBuf,
}

fn spoiled() -> io::Error {
    io::Error::other("an earlier write has failed")
}

impl LocalWriter {
    async fn flush(&mut self) -> io::Result<File> {
        let mut file = self.file.take().ok_or_else(spoiled)?;
        let bytes = self.pending.split().freeze();
        on_disk(move || {
            file.write_all(&bytes)?;
            Ok(file)
        })
        .await
    }
}

#[async_trait]
impl BlobWriter for LocalWriter {
    async fn write(&mut self, piece: Bytes) -> io::Result<()> {
        self.pending.extend_from_slice(&piece);
        if self.pending.len() >= PIECE_BYTES {
            let file = self.flush().await?;
            self.file = Some(file);
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> io::Result<()> {
        let file = self.flush().await?;
        let (part, whole) = (self.part.0.clone(), self.whole.clone());
        on_disk(move || {
            file.sync_data()?;
            fs::rename(part, &whole)?;
            sync_folder(whole.parent().unwrap_or(Path::new(".")))
        })
        .await
    }
}

struct LocalReader {
    /// Absent while it is read.
    file: Option<File>,
    left: u64,
}

#[async_trait]
impl BlobReader for LocalReader {
    async fn read(&mut self) -> io::Result<Option<Bytes>> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut file = self.file.take().ok_or_else(spoiled)?;
        let size = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(PIECE_BYTES);
        let (file, piece) = on_disk(move || {
            let mut piece = vec![0; size];
            file.read_exact(&mut piece)?;
            Ok((file, piece))
        })
        .await?;
        self.file = Some(file);
        self.left -= piece.len() as u64;
        Ok(Some(piece.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[tokio::test]
    async fn a_blob_is_there_once_it_is_whole_and_its_ranges_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = LocalBlobs::new(folder.path().to_owned());
        let id = FileId::random();
        let mut writer = blobs.put(id).await.unwrap();
        let piece = Bytes::from(vec![7; PIECE_BYTES]);
        writer.write(piece).await.unwrap();
        writer.write(Bytes::from_static(b"end")).await.unwrap();
        assert!(blobs.get(id, 0..1).await.is_err());
        writer.finish().await.unwrap();
        assert_eq!(names(folder.path()), [format!("{id}.blob")]);
        let at = PIECE_BYTES as u64;
        let mut reader = blobs.get(id, at - 1..at + 3).await.unwrap();
        assert_eq!(&reader.read().await.unwrap().unwrap()[..], b"\x07end");
        assert!(reader.read().await.unwrap().is_none());
        blobs.delete(id).await.unwrap();
        blobs.delete(id).await.unwrap();
        assert!(names(folder.path()).is_empty());
    }

    #[tokio::test]
    async fn a_writer_that_is_dropped_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = LocalBlobs::new(folder.path().to_owned());
        let mut writer = blobs.put(FileId::random()).await.unwrap();
        writer.write(Bytes::from_static(b"x")).await.unwrap();
        drop(writer);
        assert!(names(folder.path()).is_empty());
    }
}
