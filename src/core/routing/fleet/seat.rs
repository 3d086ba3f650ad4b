//! State of one model at one node: its reported load, and the forwards from here since.
//!
//! Knows nothing of other nodes. Counts are requests.

use super::doubt::Doubt;
use super::past::Past;
use super::report::ModelLoad;
use super::rule::FleetRule;
use crate::Millis;

/// A refusal that is still valid.
#[derive(Clone, Copy, Debug)]
struct Full {
    until: Millis,
    /// Arrival of the refusal; reports made before it do not override it.
    at: Millis,
}

/// Requests sent in one share period.
#[derive(Clone, Copy, Debug, Default)]
struct Drawn {
    span: u64,
    sent: u32,
}

/// State of a model at a node.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    /// Slot of the node.
    pub node: u16,
    /// The node has unmet demand for the model.
    pub hungry: bool,
    /// Version of the report it stood in last.
    pub version: u64,
    pub load: ModelLoad,
    /// To the first token as seen from here, microseconds; 0 when not measured.
    pub ttft_us: u32,
    /// Requests from here that the report had counted already.
    counted: u32,
    ours: Past,
    full: Option<Full>,
    /// Backoff after its servers failed.
    pub doubt: Doubt,
    drawn: Drawn,
}

impl Seat {
    pub fn new(node: u16) -> Seat {
        Seat {
            node,
            hungry: false,
            version: 0,
            load: ModelLoad::default(),
            ttft_us: 0,
            counted: 0,
            ours: Past::default(),
            full: None,
            doubt: Doubt::default(),
            drawn: Drawn::default(),
        }
    }

    /// Applies a report made `age` ago.
    pub fn told(&mut self, load: ModelLoad, version: u64, age: Millis, now: Millis) {
        self.load = load;
        self.version = version;
        self.counted = self.ours.before(age, now);
        if self.full.is_some_and(|full| full.at <= now - age) {
            self.full = None;
        }
    }

    /// Returns the requests in flight from here.
    pub fn in_flight(&self) -> u32 {
        self.ours.count()
    }

    /// Estimated requests there, running or queued: the reported ones, plus those sent from here
    /// since, minus those returned.
    fn busy(&self) -> u32 {
        let used = self.load.permits.saturating_sub(self.load.free);
        let told = used.saturating_add(self.load.queued);
        let ours = self.ours.count();
        told.saturating_add(ours)
            .saturating_sub(self.counted)
            .max(ours)
    }

    /// Returns the estimated free permits.
    pub fn free(&self) -> u32 {
        self.load.permits.saturating_sub(self.busy())
    }

    /// Returns the permits of this node's requests that ended since the report. No other node has
    /// seen these permits free, so they can be reused from here.
    pub fn returned(&self) -> u32 {
        self.counted.saturating_sub(self.ours.count())
    }

    /// Returns the estimated free places in its queue.
    pub fn line_room(&self) -> u32 {
        let waiting = self.busy().saturating_sub(self.load.permits);
        let places = self.load.queue_room.saturating_add(self.load.queued);
        places.saturating_sub(waiting)
    }

    /// Returns whether a refusal is valid and no newer report has arrived.
    pub fn is_full(&self, now: Millis) -> bool {
        self.full.is_some_and(|full| now < full.until)
    }

    /// Returns the requests sent in this period on capacity that is free for all.
    pub fn sent_in(&self, span: u64) -> u32 {
        match self.drawn.span == span {
            true => self.drawn.sent,
            false => 0,
        }
    }

    pub fn sent(&mut self, span: u64, now: Millis) {
        let drawn = u32::from(self.returned() == 0);
        self.drawn = Drawn {
            span,
            sent: self.sent_in(span) + drawn,
        };
        self.ours.add(now);
    }

    /// Records the end of a request from here; if it was served its permit is free, whatever was
    /// refused before.
    pub fn ended(&mut self, served: bool, now: Millis) {
        self.ours.take(now);
        if served {
            self.full = None;
        }
    }

    /// Records a refusal, with the capacity it reported.
    pub fn refused(&mut self, free: u32, wait_ms: u32, rule: &FleetRule, now: Millis) {
        self.load.free = free;
        self.load.wait_ms = wait_ms;
        self.counted = self.ours.count();
        self.full = Some(Full {
            until: now + rule.full_for,
            at: now,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(free: u32, queued: u32) -> Seat {
        let mut seat = Seat::new(0);
        let load = ModelLoad {
            permits: 4,
            free,
            queued,
            queue_room: 2,
            ..ModelLoad::default()
        };
        seat.told(load, 1, Millis::ZERO, Millis(1_000));
        seat
    }

    #[test]
    fn what_was_sent_since_the_report_is_not_free_any_more() {
        let mut seat = told(2, 0);
        seat.sent(0, Millis(1_001));
        assert_eq!(seat.free(), 1);
        seat.sent(0, Millis(1_002));
        assert_eq!((seat.free(), seat.line_room()), (0, 2));
        seat.sent(0, Millis(1_003));
        assert_eq!((seat.free(), seat.line_room()), (0, 1));
    }

    #[test]
    fn a_permit_of_ours_that_came_back_is_free_unless_somebody_waits_there() {
        for (queued, free) in [(0, 1), (1, 0)] {
            let mut seat = told(4, 0);
            seat.sent(0, Millis(1_001));
            seat.told(
                ModelLoad {
                    free: 0,
                    queued,
                    ..seat.load
                },
                2,
                Millis::ZERO,
                Millis(2_000),
            );
            seat.ended(true, Millis(2_001));
            assert_eq!(seat.free(), free);
        }
    }

    #[test]
    fn a_report_that_is_older_than_what_was_sent_does_not_hide_it() {
        let mut seat = told(4, 0);
        for _ in 0..4 {
            seat.sent(0, Millis(5_000));
        }
        // Made before anything was sent: still four free by its account.
        seat.told(seat.load, 2, Millis(300), Millis(5_050));
        assert_eq!(seat.free(), 0);
    }

    #[test]
    fn never_more_is_believed_free_than_there_are_permits() {
        let mut seat = told(4, 0);
        for _ in 0..4 {
            seat.sent(0, Millis(5_000));
        }
        let load = seat.load;
        seat.told(load, 2, Millis::ZERO, Millis(6_000));
        assert_eq!(seat.free(), 0);
        (0..4).for_each(|_| seat.ended(true, Millis(6_001)));
        assert_eq!(seat.free(), 4);
    }

    #[test]
    fn a_refusal_holds_until_its_time_is_over_or_something_newer_is_told() {
        let rule = FleetRule::default();
        let mut seat = told(4, 0);
        seat.refused(0, 500, &rule, Millis(2_000));
        assert!(seat.is_full(Millis(2_999)) && !seat.is_full(Millis(3_000)));
        seat.told(seat.load, 2, Millis(200), Millis(2_100));
        assert!(seat.is_full(Millis(2_100)), "made before it refused");
        seat.told(seat.load, 3, Millis(50), Millis(2_100));
        assert!(!seat.is_full(Millis(2_100)));
    }
}
