//! Demand of a model since its latest line, from look to look: how a recording is made.
//!
//! Counts no request itself: each look has the counts that the queue keeps anyway. Waits are added up from the requests
//! that wait at a look, so that one which came and went between two looks adds nothing.

use std::collections::BTreeSet;

use super::lines::DemandLine;
use crate::Millis;
use crate::vram::demand_look::DemandLook;

/// Least time between two lines of a model.
pub const LINE_EVERY: Millis = Millis::from_secs(1);
/// Priority of a request without one.
const PRIORITY_USUAL: u8 = 5;

/// Demand of a model that no line has yet.
#[derive(Clone, Debug, Default)]
pub struct DemandTally {
    /// Moment of the latest look.
    looked: Millis,
    /// Moment of the latest line.
    written: Option<Millis>,
    /// Look before the first of the requests.
    begin: Millis,
    arrivals: u32,
    refused: u32,
    accounts: usize,
    priority: Option<u8>,
    service: Option<Millis>,
    waiting: usize,
    waited_ms: u64,
    longest: Millis,
}

impl DemandTally {
    /// Returns a tally that begins now.
    pub fn new(now: Millis) -> DemandTally {
        DemandTally {
            looked: now,
            ..DemandTally::default()
        }
    }

    /// Adds a look. `service` is the mean time that requests have a permit.
    pub fn add(&mut self, look: &DemandLook, service: Option<Millis>, now: Millis) {
        let refused = u32::try_from(look.refused.len()).unwrap_or(u32::MAX);
        if self.arrivals == 0 && self.refused == 0 {
            self.begin = self.looked;
        }
        self.arrivals = self.arrivals.saturating_add(look.arrivals);
        self.refused = self.refused.saturating_add(refused);
        let accounts: BTreeSet<_> = look.waiting.iter().map(|it| &it.account).collect();
        self.accounts = self.accounts.max(accounts.len());
        let waiting = look.waiting.iter().map(|it| it.priority);
        let urgent = look.most_urgent.into_iter().chain(waiting).min();
        self.priority = self.priority.into_iter().chain(urgent).min();
        self.service = service.or(self.service);
        self.add_waits(look, now);
        self.looked = now;
    }

    /// Adds the waits since the latest look. Requests that have left meanwhile count for half of that time.
    fn add_waits(&mut self, look: &DemandLook, now: Millis) {
        let mut stayed = 0;
        for request in &look.waiting {
            stayed += usize::from(request.joined <= self.looked);
            self.waited_ms += now.since(request.joined.max(self.looked)).0;
            self.longest = self.longest.max(now.since(request.joined));
        }
        let left = self.waiting.saturating_sub(stayed) as u64;
        self.waited_ms += left * now.since(self.looked).0 / 2;
        self.waiting = look.waiting.len();
    }

    /// Returns the line that is due: requests have come since the latest one, or the last of them waits no more.
    pub fn take_line(&mut self, now: Millis) -> Option<DemandLine> {
        let is_rest = self.waited_ms > 0 && self.waiting == 0;
        let has_news = self.arrivals > 0 || self.refused > 0 || is_rest;
        let is_early = self.written.is_some_and(|it| now.since(it) < LINE_EVERY);
        if !has_news || is_early {
            return None;
        }
        let line = DemandLine {
            span_ms: now.since(self.begin).0,
            arrivals: self.arrivals,
            refused: self.refused,
            accounts: u32::try_from(self.accounts.max(1)).unwrap_or(u32::MAX),
            priority: self.priority.unwrap_or(PRIORITY_USUAL),
            service_ms: self.service.map(|it| it.0),
            waiting: u32::try_from(self.waiting).unwrap_or(u32::MAX),
            waited_ms: self.waited_ms,
            longest_wait_ms: self.longest.0,
        };
        *self = DemandTally {
            looked: self.looked,
            written: Some(now),
            waiting: self.waiting,
            service: self.service,
            ..DemandTally::default()
        };
        Some(line)
    }
}
