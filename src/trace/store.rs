//! Ring of the latest traces, of fixed size.
//!
//! No index: keeping a trace costs one counter and one short lock of its slot. A look-up reads all slots,
//! newest first, which takes about a millisecond. A trace that is overwritten is freed outside the lock.
//!
//! Uneventful requests are sampled once there are thousands a second: they would push out the others, and a
//! ring that turns so fast evicts processor caches.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::record::RequestTrace;

/// Traces kept: some minutes at ten requests a second, enough of a burst at thousands to find an
/// example of everything in it, and a few MiB.
pub const TRACES_KEPT: usize = 4096;

/// Interval between two kept traces of uneventful requests, in the long run: 50 a second.
const PLAIN_EVERY_US: u64 = 20_000;
/// Traces of uneventful requests kept at once when few came before.
const PLAIN_BURST: u64 = 256;

/// The ring.
pub struct TraceStore {
    /// Each guards a pointer, held while a trace is stored or copied for a reader.
    slots: Box<[Mutex<Option<Box<RequestTrace>>>]>,
    /// Traces kept so far; the next one's slot by the remainder.
    kept: AtomicUsize,
    /// Moment at which the last plain trace kept so far would have come, had they come at their pace
    /// (generic cell rate algorithm).
    plain_until_us: AtomicU64,
}

impl Default for TraceStore {
    fn default() -> TraceStore {
        TraceStore::with_capacity(TRACES_KEPT)
    }
}

impl TraceStore {
    pub(super) fn with_capacity(capacity: usize) -> TraceStore {
        TraceStore {
            slots: (0..capacity).map(|_| Mutex::default()).collect(),
            kept: AtomicUsize::new(0),
            plain_until_us: AtomicU64::new(0),
        }
    }

    /// Keeps a trace in place of the oldest, unless it is one of many uneventful ones.
    pub fn keep(&self, trace: Box<RequestTrace>) {
        if trace.is_plain() && !self.admit_plain(trace.ended_us()) {
            return;
        }
        let number = self.kept.fetch_add(1, Ordering::Relaxed);
        let overwritten = self.slots[number % self.slots.len()].lock().replace(trace);
        drop(overwritten);
    }

    /// Returns whether there is room for another plain trace now.
    pub(super) fn admit_plain(&self, now_us: u64) -> bool {
        let order = Ordering::Relaxed;
        let taken = self.plain_until_us.fetch_update(order, order, |until| {
            let next = until.max(now_us) + PLAIN_EVERY_US;
            (next <= now_us + PLAIN_BURST * PLAIN_EVERY_US).then_some(next)
        });
        taken.is_ok()
    }

    /// The trace of a request, if it is still there.
    pub fn find(&self, request_id: &str) -> Option<RequestTrace> {
        self.newest_first().find_map(|slot| {
            let slot = slot.lock();
            let trace = slot.as_deref()?;
            (trace.request_id() == request_id).then(|| trace.clone())
        })
    }

    /// The last `count` traces, the newest first. A trace that is just being written may be missing.
    pub fn newest(&self, count: usize) -> Vec<RequestTrace> {
        let traces = self
            .newest_first()
            .filter_map(|slot| slot.lock().as_deref().cloned());
        traces.take(count).collect()
    }

    fn newest_first(&self) -> impl Iterator<Item = &Mutex<Option<Box<RequestTrace>>>> {
        let capacity = self.slots.len();
        let newest = self.kept.load(Ordering::Relaxed).wrapping_sub(1);
        (0..capacity).map(move |age| &self.slots[newest.wrapping_sub(age) % capacity])
    }
}
