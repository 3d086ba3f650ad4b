//! Periodic work of a node by one timer: health checks, samples of permits, sweeps of kept connections, leases of open
//! work and the return of memory.
//!
//! A round is due every [`PROBE_TICK`]. While no request is in flight and all servers are well, two rounds come
//! at once: an idle node wakes half as often. What is checked is decided elsewhere.

use std::ops::Range;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep_until};

use crate::app::insight::NodeInsight;
use crate::app::trim::MemoryTrimmer;
use crate::state::Shared;
use crate::telemetry::permit_window::SAMPLE_INTERVAL;
use crate::upstream::{PROBE_TICK, WorkReports, check_requested, probe_round};

/// A sample of permits is due in each round.
const _: () = assert!(SAMPLE_INTERVAL.as_millis() == PROBE_TICK.as_millis());
/// Rounds that come at once on an idle node.
const IDLE_ROUNDS: u32 = 2;

/// Keeps house for the life of the process.
pub async fn keep_house(shared: Arc<Shared>, insight: Arc<NodeInsight>) {
    let mut trimmer = MemoryTrimmer::new(Arc::clone(&shared));
    let mut rounds = Rounds::default();
    // At most one round of probes.
    let mut probing = FuturesUnordered::new();
    let mut reports = WorkReports::new(&shared.client, shared.clock);
    let mut last = Instant::now();
    let mut due = last;
    loop {
        tokio::select! {
            () = sleep_until(due) => {
                let passed = rounds.begin();
                let is_quiet = insight.sample(passed) && shared.drain.in_flight() == 0;
                shared.client.sweep();
                shared.peer_client.sweep();
                reports.look(shared.snapshot.load().models.iter());
                trimmer.look().await;
                rounds.is_idle = is_quiet && all_well(&shared);
                last = Instant::now();
            }
            () = check_requested(), if probing.is_empty() => rounds.request_check(),
            () = reports.run() => {}
            Some(()) = probing.next() => rounds.is_idle &= all_well(&shared),
        }
        due = last + PROBE_TICK * rounds.at_once();
        if probing.is_empty()
            && let Some(unprobed) = rounds.take_probes()
        {
            let models: Vec<_> = shared.snapshot.load().models.iter().cloned().collect();
            probing.push(probe_round(&shared.client, models.into_iter(), unprobed));
        }
    }
}

/// Returns whether all servers are healthy.
fn all_well(shared: &Shared) -> bool {
    let snapshot = shared.snapshot.load();
    let mut models = snapshot.models.iter();
    models.all(|model| model.gate.targets().iter().all(|(_, well)| *well))
}

/// Rounds since the start, and those that servers were checked for.
#[derive(Default)]
struct Rounds {
    current: u64,
    probed: u64,
    /// A server is to be checked between two rounds.
    is_check_requested: bool,
    /// Nothing runs, and nothing is to be watched closely.
    is_idle: bool,
}

impl Rounds {
    /// Begins the rounds that are due; returns their number.
    fn begin(&mut self) -> u32 {
        let passed = self.at_once();
        self.current += u64::from(passed);
        passed
    }

    /// Rounds that come at once next time.
    fn at_once(&self) -> u32 {
        match self.is_idle {
            true if self.current > 0 => IDLE_ROUNDS,
            _ => 1,
        }
    }

    fn request_check(&mut self) {
        self.is_check_requested = true;
        self.is_idle = false;
    }

    /// Rounds to check servers for now; an empty range for those that are not well alone. None where nothing
    /// is to be checked.
    fn take_probes(&mut self) -> Option<Range<u64>> {
        let unprobed = std::mem::replace(&mut self.probed, self.current)..self.current;
        let is_check_requested = std::mem::take(&mut self.is_check_requested);
        (is_check_requested || !unprobed.is_empty()).then_some(unprobed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_node_makes_two_rounds_at_once_and_misses_no_check() {
        let mut rounds = Rounds::default();
        assert_eq!((rounds.begin(), rounds.take_probes()), (1, Some(0..1)));
        assert_eq!(rounds.take_probes(), None);
        rounds.is_idle = true;
        assert_eq!((rounds.begin(), rounds.take_probes()), (2, Some(1..3)));
        // Rounds that come while servers are being checked are checked for later.
        rounds.begin();
        rounds.request_check();
        assert_eq!(rounds.begin(), 1);
        assert_eq!(rounds.take_probes(), Some(3..6));
        rounds.request_check();
        assert_eq!(
            rounds.take_probes(),
            Some(6..6),
            "servers that are not well"
        );
    }
}
