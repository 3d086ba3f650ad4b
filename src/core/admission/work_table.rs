//! Work that may go on at a server after its response, with the permits that are held for it.
//!
//! Neither a connection nor a permit: a guard of any kind stands for the permit, and the caller drops what it gets back.
//! Work begins before its request is sent, so that a report which overtakes the response counts. When the response has
//! ended the permit is detached: the server's report takes it out again, or else the end of its lease. A permit comes out
//! once, by whichever is first. At most `OPEN_WORK_MAX` works are open; further ones hold their permits for the time of
//! the response alone. Times are milliseconds of one clock. O(log works) each.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::Millis;

/// Works that are open at an endpoint: as many as it may have permits.
const OPEN_WORK_MAX: usize = 65_536;

/// Pause before the first attempt to hear a server's reports again.
const RECONNECT_MIN: Millis = Millis(100);

/// Longest such pause: a lease is longer.
const RECONNECT_MAX: Millis = Millis::from_secs(10);

/// State of a work.
enum Work<G> {
    /// The response has not ended.
    Responding { is_reported: bool },
    /// The response has ended, and no report has come.
    Detached { guard: G, lease_until: Millis },
}

/// Open works of one endpoint, by the ids of their requests.
pub struct WorkTable<G> {
    works: HashMap<Arc<str>, Work<G>>,
    /// Ends of leases, the soonest first.
    leases: BTreeSet<(Millis, Arc<str>)>,
    max: usize,
    /// Reports are not read any more.
    is_closed: bool,
}

impl<G> Default for WorkTable<G> {
    fn default() -> WorkTable<G> {
        WorkTable::with_limit(OPEN_WORK_MAX)
    }
}

impl<G> WorkTable<G> {
    /// Creates an empty table for at most `max` works.
    pub fn with_limit(max: usize) -> WorkTable<G> {
        WorkTable {
            works: HashMap::new(),
            leases: BTreeSet::new(),
            max,
            is_closed: false,
        }
    }

    /// Begins the work of a request that is about to be sent. Returns false where its permit is held for the response
    /// alone: the table is full or closed, or there is work under this id.
    pub fn begin(&mut self, request: &Arc<str>) -> bool {
        if self.is_closed || self.works.len() >= self.max || self.works.contains_key(request) {
            return false;
        }
        let work = Work::Responding { is_reported: false };
        self.works.insert(Arc::clone(request), work);
        true
    }

    /// Forgets work that the server has not taken.
    pub fn cancel(&mut self, request: &str) {
        if let Some(Work::Responding { .. }) = self.works.get(request) {
            self.works.remove(request);
        }
    }

    /// Detaches the permit of work whose response has ended at `now`, for `lease` at most. Returns the guard where the
    /// permit is free already.
    pub fn detach(
        &mut self,
        request: &Arc<str>,
        guard: G,
        now: Millis,
        lease: Millis,
    ) -> Option<G> {
        let Some(Work::Responding { is_reported }) = self.works.get(request) else {
            return Some(guard);
        };
        if *is_reported || self.is_closed {
            self.works.remove(request);
            return Some(guard);
        }
        let lease_until = now + lease;
        let work = Work::Detached { guard, lease_until };
        self.works.insert(Arc::clone(request), work);
        self.leases.insert((lease_until, Arc::clone(request)));
        None
    }

    /// Records the server's report that work has ended. Returns its guard where the response has ended too.
    pub fn report(&mut self, request: &str) -> Option<G> {
        if let Some(Work::Responding { is_reported }) = self.works.get_mut(request) {
            *is_reported = true;
            return None;
        }
        self.take(request)
    }

    /// Returns the guards whose leases are over at `now`: their reports are lost.
    pub fn expire(&mut self, now: Millis) -> Vec<G> {
        let mut expired = Vec::new();
        while self.leases.first().is_some_and(|(until, _)| *until <= now) {
            let Some((_, request)) = self.leases.pop_first() else {
                break;
            };
            expired.extend(self.take(&request));
        }
        expired
    }

    /// Number of works whose response has ended and whose permit is held.
    pub fn detached(&self) -> usize {
        self.leases.len()
    }

    /// Closes the table, whose reports nobody hears any more. Returns all guards.
    pub fn close(&mut self) -> Vec<G> {
        self.is_closed = true;
        self.expire(Millis::MAX)
    }

    /// Takes a detached permit out.
    fn take(&mut self, request: &str) -> Option<G> {
        let (id, work) = self.works.remove_entry(request)?;
        match work {
            Work::Detached { guard, lease_until } => {
                self.leases.remove(&(lease_until, id));
                Some(guard)
            }
            work @ Work::Responding { .. } => {
                self.works.insert(id, work);
                None
            }
        }
    }
}

/// Returns the pause before another attempt to hear a server's reports, after `failures` in a row. `random` is any number.
pub fn reconnect_pause(failures: u32, random: u64) -> Millis {
    let doubled = RECONNECT_MIN.0 << failures.saturating_sub(1).min(8);
    let pause = doubled.min(RECONNECT_MAX.0);
    // Nodes that lost a server together do not come back together.
    Millis(pause / 2 + random % (pause / 2 + 1))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    const LEASE: Millis = Millis(1000);

    /// Counts the permits that are out.
    struct Guard(Rc<Cell<usize>>);

    impl Guard {
        fn take(out: &Rc<Cell<usize>>) -> Guard {
            out.set(out.get() + 1);
            Guard(Rc::clone(out))
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    fn id(number: usize) -> Arc<str> {
        number.to_string().into()
    }

    #[test]
    fn a_report_after_the_response_takes_the_permit_out_once() {
        let mut table = WorkTable::default();
        assert!(table.begin(&id(1)));
        assert_eq!(table.detach(&id(1), "permit", Millis(5), LEASE), None);
        assert_eq!(table.report("1"), Some("permit"));
        assert_eq!(table.report("1"), None);
        assert!(table.expire(Millis::MAX).is_empty());
    }

    #[test]
    fn a_report_before_the_end_of_the_response_counts() {
        let mut table = WorkTable::default();
        table.begin(&id(1));
        assert_eq!(table.report("1"), None);
        assert_eq!(
            table.detach(&id(1), "permit", Millis(5), LEASE),
            Some("permit")
        );
        assert!(table.begin(&id(1)), "the work is forgotten");
    }

    #[test]
    fn a_lost_report_costs_the_lease() {
        let mut table = WorkTable::default();
        table.begin(&id(1));
        assert_eq!(table.detach(&id(1), "permit", Millis(5), LEASE), None);
        assert!(table.expire(Millis(1004)).is_empty());
        assert_eq!(table.expire(Millis(1005)), ["permit"]);
        assert_eq!(table.report("1"), None);
    }

    #[test]
    fn work_that_the_server_has_not_taken_holds_nothing() {
        let mut table = WorkTable::default();
        table.begin(&id(1));
        table.cancel("1");
        assert_eq!(
            table.detach(&id(1), "permit", Millis(5), LEASE),
            Some("permit")
        );
    }

    #[test]
    fn a_full_table_holds_no_further_permit() {
        let mut table = WorkTable::with_limit(1);
        assert!(table.begin(&id(1)));
        assert!(!table.begin(&id(2)));
        assert_eq!(
            table.detach(&id(2), "permit", Millis(5), LEASE),
            Some("permit")
        );
    }

    #[test]
    fn a_closed_table_holds_nothing_any_more() {
        let mut table = WorkTable::default();
        table.begin(&id(1));
        table.begin(&id(2));
        assert_eq!(table.detach(&id(1), "permit", Millis(5), LEASE), None);
        assert_eq!(table.close(), ["permit"]);
        assert_eq!(
            table.detach(&id(2), "second", Millis(5), LEASE),
            Some("second")
        );
        assert!(!table.begin(&id(3)));
    }

    #[test]
    fn pauses_before_a_reconnect_double_up_to_ten_seconds() {
        let longest = |failures| reconnect_pause(failures, 0).0 * 2;
        let pauses = [1, 2, 3, 4, 8, 9, u32::MAX].map(longest);
        assert_eq!(pauses, [100, 200, 400, 800, 10_000, 10_000, 10_000]);
        assert!(reconnect_pause(1, u64::MAX) <= Millis(100));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn a_permit_comes_back_by_its_report_or_its_lease_and_never_twice(
            steps in prop::collection::vec((0..6_u8, 0..6_usize, 0..700_u64), 0..80),
        ) {
            let out = Rc::new(Cell::new(0));
            let mut table = WorkTable::with_limit(4);
            // Permits of requests whose response goes on, and the ends of the leases of others.
            let mut responding: Vec<(usize, Guard)> = Vec::new();
            let mut detached: Vec<(usize, Millis)> = Vec::new();
            let mut reported: Vec<usize> = Vec::new();
            let mut now = Millis(1);
            for (step, number, pause) in steps {
                now = now + Millis(pause);
                let is_open = responding.iter().any(|(it, _)| *it == number);
                match step {
                    0 | 1 if !is_open => {
                        let is_known = detached.iter().any(|(it, _)| *it == number);
                        let has_room = responding.len() + detached.len() < 4 && !is_known;
                        prop_assert_eq!(table.begin(&id(number)), has_room);
                        if has_room {
                            responding.push((number, Guard::take(&out)));
                        }
                    }
                    2 if is_open => {
                        let at = responding.iter().position(|(it, _)| *it == number).expect("open");
                        let (_, guard) = responding.swap_remove(at);
                        let free = table.detach(&id(number), guard, now, LEASE);
                        let was_reported = reported.contains(&number);
                        prop_assert_eq!(free.is_some(), was_reported);
                        reported.retain(|it| *it != number);
                        if !was_reported {
                            detached.push((number, now + LEASE));
                        }
                    }
                    3 => {
                        let guard = table.report(&number.to_string());
                        let was_detached = detached.iter().any(|(it, _)| *it == number);
                        prop_assert_eq!(guard.is_some(), was_detached);
                        detached.retain(|(it, _)| *it != number);
                        if is_open {
                            reported.push(number);
                        }
                    }
                    4 if is_open => {
                        table.cancel(&number.to_string());
                        responding.retain(|(it, _)| *it != number);
                        reported.retain(|it| *it != number);
                    }
                    5 => {
                        let expired = table.expire(now).len();
                        let over = detached.iter().filter(|(_, until)| *until <= now).count();
                        prop_assert_eq!(expired, over);
                        detached.retain(|(_, until)| *until > now);
                    }
                    _ => {}
                }
                prop_assert_eq!(out.get(), responding.len() + detached.len());
            }
            drop(responding);
            table.close();
            prop_assert_eq!(out.get(), 0);
        }
    }
}
