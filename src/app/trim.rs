//! Memory after a burst goes back to the kernel.
//!
//! The allocator keeps what was freed below a block that is still in use (`heap.rs` has it keep more). Memory
//! that thousands of connections took for a moment is returned to the system here, seldom and off the
//! workers.

use std::sync::Arc;

use infergate_core::Millis;
use tokio::task::spawn_blocking;

use crate::app::heap;
use crate::state::Shared;
use crate::telemetry::resident_bytes;

/// Between two trims, so that memory which every burst needs is not fetched anew all the time.
const TRIM_PAUSE: Millis = Millis::from_secs(10);
/// Growth that is worth a trim, bytes.
const GROWTH_MIN_BYTES: u64 = 16 << 20;

/// Trims after bursts; where the memory of the process is not known, never.
pub struct MemoryTrimmer {
    shared: Arc<Shared>,
    bursts: Option<Bursts>,
}

impl MemoryTrimmer {
    /// Begins with the memory that the process has now.
    pub fn new(shared: Arc<Shared>) -> MemoryTrimmer {
        MemoryTrimmer {
            shared,
            bursts: resident_bytes().map(Bursts::new),
        }
    }

    /// Trims where a burst is over. To be called about twice a second; one short file is read.
    pub async fn look(&mut self) {
        let (Some(bursts), Some(resident)) = (&mut self.bursts, resident_bytes()) else {
            return;
        };
        let now = self.shared.clock.now();
        let in_flight = self.shared.drain.in_flight() as u64;
        if bursts.is_over(now, resident, in_flight) {
            // A panic there leaves memory as it was.
            let _ = spawn_blocking(heap::trim).await;
            bursts.restart(now, resident_bytes().unwrap_or(resident), in_flight);
        }
    }
}

/// Bursts of requests and what they made of the process's memory.
struct Bursts {
    /// Resident bytes after the latest trim.
    base_bytes: u64,
    /// Most requests in flight since then.
    peak: u64,
    next_at: Millis,
}

impl Bursts {
    fn new(resident: u64) -> Bursts {
        Bursts {
            base_bytes: resident,
            peak: 0,
            next_at: Millis::ZERO,
        }
    }

    /// Returns whether memory has grown and the requests that made it grow are mostly gone.
    fn is_over(&mut self, now: Millis, resident: u64, in_flight: u64) -> bool {
        self.peak = self.peak.max(in_flight);
        // What shrank by itself is not growth later.
        self.base_bytes = self.base_bytes.min(resident);
        let has_grown = resident >= self.base_bytes + GROWTH_MIN_BYTES;
        now >= self.next_at && has_grown && in_flight * 2 <= self.peak
    }

    fn restart(&mut self, now: Millis, resident: u64, in_flight: u64) {
        self.base_bytes = resident;
        self.peak = in_flight;
        self.next_at = now + TRIM_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_goes_back_once_a_burst_is_over_and_not_twice_in_a_row() {
        let mut bursts = Bursts::new(20 * MIB);
        let at = Millis::from_secs;
        assert!(!bursts.is_over(at(1), 100 * MIB, 1000), "under way");
        assert!(bursts.is_over(at(2), 100 * MIB, 10));
        bursts.restart(at(2), 22 * MIB, 10);
        assert!(!bursts.is_over(at(3), 30 * MIB, 0), "no growth");
        assert!(!bursts.is_over(at(4), 100 * MIB, 1000), "the next one");
        assert!(!bursts.is_over(at(5), 100 * MIB, 0), "too soon");
        assert!(bursts.is_over(at(13), 100 * MIB, 0));
    }
}
