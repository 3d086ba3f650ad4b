//! Reads of the files of models, each on a thread of its own: a disk that does not answer holds up its own models alone.
//!
//! Knows no file: a read is a function, which may block for ever. A model has one read under way of each [`FileReads`],
//! so that no further thread waits for its disk; all of them together have [`READS_MAX`]. The reads of a group begin
//! [`READS_AT_ONCE`] at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use infergate_core::ModelId;
use infergate_core::model::ModelSpec;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Time for the files of a model to be read. A header takes milliseconds, also from a disk that is far away.
pub(super) const READ_WAIT: Duration = Duration::from_secs(2);
/// Reads of a group that run at a time: as many as a disk works on well.
const READS_AT_ONCE: usize = 32;
/// Reads under way at a time, whoever asks: the threads that a dead disk takes from all other work. Room for two groups,
/// and for as many loads.
const READS_MAX: usize = 128;

/// A read is under way.
const UNDER_WAY: u8 = 0;
/// The read has ended in time.
const ENDED: u8 = 1;
/// The read is not waited for any more.
const LATE: u8 = 2;

/// Readers, such as models or slots, with a read under way.
#[derive(Clone, Debug)]
pub(super) struct FileReads {
    readers: Arc<Mutex<BTreeSet<String>>>,
    /// Room for reads, shared with other readers.
    room: Arc<Semaphore>,
}

/// Place of a reader among those with a read under way, given back by drop.
struct ReadPlace {
    reads: FileReads,
    reader: String,
}

impl Drop for ReadPlace {
    fn drop(&mut self) {
        self.reads.readers.lock().remove(&self.reader);
    }
}

impl FileReads {
    /// Returns readers without a read.
    pub fn new() -> FileReads {
        FileReads {
            readers: Arc::default(),
            room: Arc::new(Semaphore::new(READS_MAX)),
        }
    }

    /// Returns readers of their own that share the room of these.
    pub fn sibling(&self) -> FileReads {
        FileReads {
            readers: Arc::default(),
            room: Arc::clone(&self.room),
        }
    }

    /// Reads about one model; none where that takes longer than `wait`, or where a former read of the reader has not
    /// ended. Gives what a read finds that took too long to `late`.
    pub async fn read<T: Send + 'static>(
        &self,
        (reader, spec): (String, Arc<ModelSpec>),
        wait: Duration,
        read: impl FnOnce(&ModelSpec) -> T + Send + 'static,
        late: impl FnOnce(T) + Send + 'static,
    ) -> Option<T> {
        if !self.readers.lock().insert(reader.clone()) {
            return None;
        }
        let reads = self.clone();
        let place = ReadPlace { reads, reader };
        let room = timeout(wait, Arc::clone(&self.room).acquire_owned()).await;
        let permit = room.ok()?.ok()?;
        let state = Arc::new(AtomicU8::new(UNDER_WAY));
        let seen = Arc::clone(&state);
        let mut reading = spawn_blocking(move || {
            let found = read(&spec);
            let is_late = state.swap(ENDED, Ordering::SeqCst) == LATE;
            drop((place, permit));
            if is_late {
                late(found);
                return None;
            }
            Some(found)
        });
        if let Ok(found) = timeout(wait, &mut reading).await {
            return found.ok()?;
        }
        match seen.swap(LATE, Ordering::SeqCst) {
            // Its end came with the end of the wait.
            ENDED => reading.await.ok()?,
            _ => None,
        }
    }

    /// Reads about several models; none for those that do not answer. Gives what each of them finds later to `late`.
    pub async fn read_all<T: Send + 'static>(
        &self,
        specs: &[Arc<ModelSpec>],
        read: impl Fn(&ModelSpec) -> T + Clone + Send + 'static,
        late: impl Fn(Arc<ModelSpec>, T) + Clone + Send + 'static,
    ) -> BTreeMap<ModelId, Option<T>> {
        let mut found = BTreeMap::new();
        for specs in specs.chunks(READS_AT_ONCE) {
            let reads = specs.iter().map(|spec| {
                let asked = (spec.id.as_str().to_owned(), Arc::clone(spec));
                let (late, of) = (late.clone(), Arc::clone(spec));
                self.read(asked, READ_WAIT, read.clone(), move |found| late(of, found))
            });
            let ids = specs.iter().map(|spec| spec.id.clone());
            found.extend(ids.zip(join_all(reads).await));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    fn spec(id: &str) -> Arc<ModelSpec> {
        let text = format!(r#"{{"id":"{id}","task":"text-generation","backend":"openai"}}"#);
        Arc::new(serde_json::from_str(&text).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_hangs_holds_up_no_other_model_and_is_told_once_it_ends() {
        let reads = FileReads::new();
        let specs = ["a", "hangs", "z"].map(spec);
        let (open, gate) = mpsc::sync_channel::<()>(1);
        let gate = Arc::new(Mutex::new(gate));
        let read = move |spec: &ModelSpec| {
            if spec.id.as_str() == "hangs" {
                let _ = gate.lock().recv();
            }
            spec.id.as_str().len()
        };
        let (ended, end) = mpsc::sync_channel(8);
        let late = move |spec: Arc<ModelSpec>, found| ended.send((spec.id.clone(), found)).unwrap();
        let until_late = async {
            // Time stands still while a thread reads.
            while reads.readers.lock().len() != 1 {
                yield_now().await;
            }
            advance(READ_WAIT).await;
        };
        let all = reads.read_all(&specs, read.clone(), late.clone());
        let (found, ()) = tokio::join!(all, until_late);
        let again = reads.read_all(&specs, read.clone(), late.clone()).await;
        for found in [found, again] {
            let found: Vec<Option<usize>> = found.into_values().collect();
            assert_eq!(found, [Some(1), None, Some(1)]);
        }
        assert_eq!(reads.readers.lock().len(), 1, "one thread waits");
        open.send(()).unwrap();
        let hangs = ModelId::from("hangs");
        assert_eq!(
            end.recv().unwrap(),
            (hangs.clone(), 5),
            "what it has read counts"
        );
        drop(open);
        let found = reads.read_all(&specs, read, late).await;
        assert_eq!(found[&hangs], Some(5));
        assert!(end.try_recv().is_err(), "it was told once");
    }

    #[tokio::test(start_paused = true)]
    async fn readers_share_their_room_and_one_without_it_does_not_answer() {
        let (reads, model) = (FileReads::new(), spec("m"));
        let held = Arc::clone(&reads.room);
        let held = held.acquire_many_owned(READS_MAX as u32).await.unwrap();
        let other = reads.sibling();
        let asked = || ("m".to_owned(), Arc::clone(&model));
        assert_eq!(other.read(asked(), READ_WAIT, |_| 1, |_| {}).await, None);
        drop(held);
        assert_eq!(other.read(asked(), READ_WAIT, |_| 1, |_| {}).await, Some(1));
    }
}
