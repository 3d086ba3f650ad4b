//! Ends of runs that the store does not take at the moment: their bound, and the pauses between attempts to write them.
//!
//! Not the ends themselves, which stay with their runs. In memory alone: a process that ends before they are written
//! leaves their jobs to the next one, which runs them again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of results and events that are kept. A run that ends beyond it is queued again instead.
pub const KEPT_BYTES_MAX: u64 = 256 << 20;
/// First pause between two attempts to write.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest pause, before its jitter of a quarter.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Ends that wait for the store. While there is one, the worker takes no job.
#[derive(Debug, Default)]
pub struct KeptEnds {
    bytes: AtomicU64,
    count: AtomicUsize,
}

impl KeptEnds {
    /// Counts an end until the guard is dropped. None where its bytes have no room.
    pub fn keep(self: &Arc<Self>, bytes: u64) -> Option<KeptEnd> {
        let grow = |kept: u64| {
            let more = kept.saturating_add(bytes);
            (more <= KEPT_BYTES_MAX).then_some(more)
        };
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.bytes.fetch_update(set, fetch, grow).ok()?;
        self.count.fetch_add(1, Ordering::AcqRel);
        Some(KeptEnd {
            ends: Arc::clone(self),
            bytes,
        })
    }

    /// Returns whether every end is written.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

/// End that is kept; no longer counted after its drop.
#[derive(Debug)]
pub struct KeptEnd {
    ends: Arc<KeptEnds>,
    bytes: u64,
}

impl Drop for KeptEnd {
    fn drop(&mut self) {
        self.ends.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.ends.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Pauses between attempts to write: each twice the one before.
#[derive(Debug, Default)]
pub struct WritePauses {
    attempts: u32,
}

impl WritePauses {
    /// Returns the next pause, with a jitter so that many ends do not come at one moment.
    pub fn next(&mut self) -> Duration {
        let pause = PAUSE_MIN
            .saturating_mul(1 << self.attempts.min(8))
            .min(PAUSE_MAX);
        self.attempts += 1;
        pause.mul_f64(fastrand::f64().mul_add(0.5, 0.75))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_kept_up_to_the_bound_and_make_room_again_by_drop() {
        let ends = Arc::new(KeptEnds::default());
        assert!(ends.is_empty());
        let most = ends.keep(KEPT_BYTES_MAX - 10).unwrap();
        let last = ends.keep(10).unwrap();
        assert!(ends.keep(1).is_none());
        assert!(!ends.is_empty());
        drop(most);
        assert!(
            ends.keep(KEPT_BYTES_MAX).is_none(),
            "the last is still kept"
        );
        drop(last);
        assert!(ends.is_empty());
        assert!(ends.keep(KEPT_BYTES_MAX).is_some());
    }

    #[test]
    fn pauses_grow_to_their_bound() {
        let mut pauses = WritePauses::default();
        let first = pauses.next();
        assert!(first >= PAUSE_MIN.mul_f64(0.75) && first <= PAUSE_MIN.mul_f64(1.25));
        for _ in 0..40 {
            assert!(pauses.next() <= PAUSE_MAX.mul_f64(1.25));
        }
        assert!(pauses.next() >= PAUSE_MAX.mul_f64(0.75));
    }
}
