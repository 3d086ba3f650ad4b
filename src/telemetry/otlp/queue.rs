//! Requests that wait to be exported: a bounded queue between the pipeline and the exporter.
//!
//! Never blocks: an item that does not fit is dropped and counted. Sends nothing; `app` runs the exporter.
//! O(1) per item, one short lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Recorded requests that may wait: some seconds of the largest load at which all are recorded, and a few
/// MiB.
pub const QUEUE_MAX: usize = 4096;

/// Requests in one export. More than one second's usual load, and below the 4 MiB that collectors take.
pub const BATCH_MAX: usize = 256;

/// Counts of exported requests since the start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// Accepted by the collector.
    pub exported: u64,
    /// Dropped because the queue was full.
    pub dropped_overrun: u64,
    /// Dropped because the collector could not be reached or refused them.
    pub dropped_failed: u64,
    /// Export calls that failed, those that were tried again included.
    pub failures: u64,
}

/// Queue of recorded requests.
pub struct ExportQueue<T> {
    /// Items that the exporter has not taken. Held for one push or for one batch.
    waiting: Mutex<VecDeque<T>>,
    /// A full batch waits.
    filled: Notify,
    exported: AtomicU64,
    dropped_overrun: AtomicU64,
    dropped_failed: AtomicU64,
    failures: AtomicU64,
}

impl<T> Default for ExportQueue<T> {
    fn default() -> ExportQueue<T> {
        ExportQueue {
            waiting: Mutex::default(),
            filled: Notify::new(),
            exported: AtomicU64::new(0),
            dropped_overrun: AtomicU64::new(0),
            dropped_failed: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }
}

impl<T> ExportQueue<T> {
    /// Appends an item, or drops and counts it when the queue is full.
    pub fn push(&self, item: T) {
        let waiting = {
            let mut queue = self.waiting.lock();
            if queue.len() < QUEUE_MAX {
                queue.push_back(item);
            } else {
                self.dropped_overrun.fetch_add(1, Ordering::Relaxed);
            }
            queue.len()
        };
        if waiting == BATCH_MAX {
            self.filled.notify_one();
        }
    }

    /// Takes the oldest items, [`BATCH_MAX`] at most.
    pub fn take(&self) -> Vec<T> {
        let mut queue = self.waiting.lock();
        let count = queue.len().min(BATCH_MAX);
        queue.drain(..count).collect()
    }

    /// Completes when a full batch waits.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Returns whether a full batch waits.
    pub fn is_filled(&self) -> bool {
        self.waiting.lock().len() >= BATCH_MAX
    }

    /// Counts items that the collector accepted.
    pub fn record_exported(&self, count: usize) {
        self.exported.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts items that were given up.
    pub fn record_dropped(&self, count: usize) {
        self.dropped_failed
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts a failed export call.
    pub fn record_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts since the start.
    pub fn counts(&self) -> ExportCounts {
        ExportCounts {
            exported: self.exported.load(Ordering::Relaxed),
            dropped_overrun: self.dropped_overrun.load(Ordering::Relaxed),
            dropped_failed: self.dropped_failed.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts_and_keeps_the_oldest() {
        let queue = ExportQueue::default();
        for item in 0..QUEUE_MAX + 3 {
            queue.push(item);
        }
        assert_eq!(queue.counts().dropped_overrun, 3);
        assert!(queue.is_filled());
        let taken: Vec<usize> = std::iter::from_fn(|| Some(queue.take()))
            .take_while(|batch| !batch.is_empty())
            .inspect(|batch| assert!(batch.len() <= BATCH_MAX))
            .flatten()
            .collect();
        assert_eq!(taken, (0..QUEUE_MAX).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_full_batch_wakes_the_exporter() {
        let queue = ExportQueue::default();
        (0..BATCH_MAX).for_each(|item| queue.push(item));
        queue.filled().await;
        assert_eq!(queue.take().len(), BATCH_MAX);
        assert!(!queue.is_filled());
    }
}
