//! State of one model at one node: its reported load, and the forwards from here since.
//!
//! Knows nothing of other nodes. Counts are requests.

use super::failure_backoff::FailureBackoff;
use super::in_flight_history::InFlightHistory;
use super::report::ModelLoad;
use super::rule::ClusterRule;
use crate::Millis;

/// A refusal that is still valid.
#[derive(Clone, Copy, Debug)]
struct RecentRefusal {
    until: Millis,
    /// Arrival of the refusal; reports made before it do not override it.
    at: Millis,
}

/// Requests sent in one share period.
#[derive(Clone, Copy, Debug, Default)]
struct ShareUse {
    span: u64,
    sent: u32,
}

/// State of a model at a node.
#[derive(Clone, Debug)]
pub(super) struct NodeModelState {
    /// Slot of the node.
    pub node: u16,
    /// The node has unmet demand for the model.
    pub has_unmet_demand: bool,
    /// Version of the report it stood in last.
    pub version: u64,
    pub load: ModelLoad,
    /// To the first token as seen from here, microseconds; 0 when not measured.
    pub ttft_us: u32,
    /// Requests from here that the report had counted already.
    counted_in_report: u32,
    in_flight_history: InFlightHistory,
    refusal: Option<RecentRefusal>,
    /// Backoff after its servers failed.
    pub backoff: FailureBackoff,
    share: ShareUse,
}

impl NodeModelState {
    pub fn new(node: u16) -> NodeModelState {
        NodeModelState {
            node,
            has_unmet_demand: false,
            version: 0,
            load: ModelLoad::default(),
            ttft_us: 0,
            counted_in_report: 0,
            in_flight_history: InFlightHistory::default(),
            refusal: None,
            backoff: FailureBackoff::default(),
            share: ShareUse::default(),
        }
    }

    /// Applies a report made `age` ago.
    pub fn apply_report(&mut self, load: ModelLoad, version: u64, age: Millis, now: Millis) {
        self.load = load;
        self.version = version;
        self.counted_in_report = self.in_flight_history.count_before(age, now);
        if self.refusal.is_some_and(|full| full.at <= now - age) {
            self.refusal = None;
        }
    }

    /// Returns the requests in flight from here.
    pub fn in_flight(&self) -> u32 {
        self.in_flight_history.count()
    }

    /// Estimated requests there, running or queued: the reported ones, plus those sent from here
    /// since, minus those returned.
    fn busy(&self) -> u32 {
        let used = self.load.permits.saturating_sub(self.load.free);
        let reported = used.saturating_add(self.load.queued);
        let ours = self.in_flight_history.count();
        reported
            .saturating_add(ours)
            .saturating_sub(self.counted_in_report)
            .max(ours)
    }

    /// Returns the estimated free permits.
    pub fn free(&self) -> u32 {
        self.load.permits.saturating_sub(self.busy())
    }

    /// Returns the permits of this node's requests that ended since the report. No other node has
    /// seen these permits free, so they can be reused from here.
    pub fn returned(&self) -> u32 {
        self.counted_in_report
            .saturating_sub(self.in_flight_history.count())
    }

    /// Returns the estimated free places in its queue.
    pub fn queue_room(&self) -> u32 {
        let waiting = self.busy().saturating_sub(self.load.permits);
        let places = self.load.queue_room.saturating_add(self.load.queued);
        places.saturating_sub(waiting)
    }

    /// Returns whether a refusal is valid and no newer report has arrived.
    pub fn has_refused(&self, now: Millis) -> bool {
        self.refusal.is_some_and(|full| now < full.until)
    }

    /// Returns the requests sent in this period on capacity that is free for all.
    pub fn sent_in(&self, span: u64) -> u32 {
        match self.share.span == span {
            true => self.share.sent,
            false => 0,
        }
    }

    pub fn record_sent(&mut self, span: u64, now: Millis) {
        let drawn = u32::from(self.returned() == 0);
        self.share = ShareUse {
            span,
            sent: self.sent_in(span) + drawn,
        };
        self.in_flight_history.increment(now);
    }

    /// Records the end of a request from here; if it was served its permit is free, whatever was
    /// refused before.
    pub fn record_end(&mut self, served: bool, now: Millis) {
        self.in_flight_history.decrement(now);
        if served {
            self.refusal = None;
        }
    }

    /// Records a refusal, with the capacity it reported.
    pub fn record_refusal(&mut self, free: u32, wait_ms: u32, rule: &ClusterRule, now: Millis) {
        self.load.free = free;
        self.load.wait_ms = wait_ms;
        self.counted_in_report = self.in_flight_history.count();
        self.refusal = Some(RecentRefusal {
            until: now + rule.refusal_valid_for,
            at: now,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(free: u32, queued: u32) -> NodeModelState {
        let mut state = NodeModelState::new(0);
        let load = ModelLoad {
            permits: 4,
            free,
            queued,
            queue_room: 2,
            ..ModelLoad::default()
        };
        state.apply_report(load, 1, Millis::ZERO, Millis(1_000));
        state
    }

    #[test]
    fn what_was_sent_since_the_report_is_not_free_any_more() {
        let mut state = reported(2, 0);
        state.record_sent(0, Millis(1_001));
        assert_eq!(state.free(), 1);
        state.record_sent(0, Millis(1_002));
        assert_eq!((state.free(), state.queue_room()), (0, 2));
        state.record_sent(0, Millis(1_003));
        assert_eq!((state.free(), state.queue_room()), (0, 1));
    }

    #[test]
    fn a_permit_of_ours_that_came_back_is_free_unless_somebody_waits_there() {
        for (queued, free) in [(0, 1), (1, 0)] {
            let mut state = reported(4, 0);
            state.record_sent(0, Millis(1_001));
            state.apply_report(
                ModelLoad {
                    free: 0,
                    queued,
                    ..state.load
                },
                2,
                Millis::ZERO,
                Millis(2_000),
            );
            state.record_end(true, Millis(2_001));
            assert_eq!(state.free(), free);
        }
    }

    #[test]
    fn a_report_that_is_older_than_what_was_sent_does_not_hide_it() {
        let mut state = reported(4, 0);
        for _ in 0..4 {
            state.record_sent(0, Millis(5_000));
        }
        // Made before anything was sent: still four free by its account.
        state.apply_report(state.load, 2, Millis(300), Millis(5_050));
        assert_eq!(state.free(), 0);
    }

    #[test]
    fn never_more_is_believed_free_than_there_are_permits() {
        let mut state = reported(4, 0);
        for _ in 0..4 {
            state.record_sent(0, Millis(5_000));
        }
        let load = state.load;
        state.apply_report(load, 2, Millis::ZERO, Millis(6_000));
        assert_eq!(state.free(), 0);
        (0..4).for_each(|_| state.record_end(true, Millis(6_001)));
        assert_eq!(state.free(), 4);
    }

    #[test]
    fn a_refusal_holds_until_its_time_is_over_or_something_newer_is_told() {
        let rule = ClusterRule::default();
        let mut state = reported(4, 0);
        state.record_refusal(0, 500, &rule, Millis(2_000));
        assert!(state.has_refused(Millis(2_999)) && !state.has_refused(Millis(3_000)));
        state.apply_report(state.load, 2, Millis(200), Millis(2_100));
        assert!(state.has_refused(Millis(2_100)), "made before it refused");
        state.apply_report(state.load, 3, Millis(50), Millis(2_100));
        assert!(!state.has_refused(Millis(2_100)));
    }
}
