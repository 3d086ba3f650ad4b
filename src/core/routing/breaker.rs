//! Health of a model's endpoints, judged from requests and health checks.
//!
//! Sends no checks and blocks no requests: it returns [`UsabilityChange`]s, which the shell applies to the
//! model's admission queue. Two judges, kept apart because they know different things:
//!
//! - *Requests* (passive, see [outlier
//!   detection](https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier)):
//!   an endpoint that fails too often is ejected for a time that doubles with each relapse. Then
//!   the endpoint goes half open: its next response decides. A request says something only in
//!   comparison, so the last usable endpoint is never ejected; it is merely degraded. Failures that
//!   an input can cause count only as far as [`Evidence`](super::Evidence) corroborates them.
//! - *Checks* (active): an endpoint that fails them in a row is down until it passes some. A check
//!   is direct evidence, so even the last endpoint can be down; an ejected one is then put back to
//!   use, which is better than none. A check that fails during an ejection and passes again ends
//!   the ejection: the server was gone and is back. An endpoint in use whose requests have failed
//!   for refused connections alone is healthy again by checks that pass after them.
//!
//! An endpoint that asks for a pause (`Retry-After`) gets one, the last one too. A 4xx of the caller's
//! making says nothing. Endpoints are known by URL. O(log endpoints) per request.

mod record;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use infergate_tasks::policy::Health;

use super::evidence::{AccountKey, FAILURES_IN_A_ROW_MAX};
use crate::Millis;
use crate::model::EndpointSpec;
use record::{EjectionState, EndpointRecord};

/// A server without a listener: its process is gone, or not there yet.
pub const REFUSED: FailureCause = FailureCause::Named("refused");

/// A connection that its server has broken off.
const RESET: FailureCause = FailureCause::Named("reset");

/// Interval between checks that refused connections ask for. A server that restarts refuses every request at
/// once, and each check costs a connection.
pub const REFUSED_CHECK_INTERVAL: Millis = Millis(100);

/// Failed checks in a row that take an endpoint down: one or two may be lost in a busy moment.
const CHECKS_FAILED_MAX: u32 = 3;

/// Passed checks in a row that bring it back.
const CHECKS_PASSED_MIN: u32 = 2;

/// No endpoint is paused for longer, whatever its `Retry-After` says.
pub const PAUSE_MAX: Millis = Millis::from_secs(60);

/// An endpoint that has had no failure for so long no longer counts as failing.
const SICK_MAX: Millis = Millis::from_secs(60);

/// Records of endpoints that left are kept for so long: a discovery that blinks forgives nothing.
const ABSENCE_MAX: Millis = Millis::from_secs(60);

/// Signal about an endpoint from one attempt of a request, or from one health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointSignal {
    /// Valid response.
    Success,
    /// Response that says nothing about the endpoint.
    Neutral,
    /// Out of capacity.
    Busy,
    /// No response in time, a broken one, or a 5xx: the request may have caused it.
    Failure,
    /// No connection, no trusted certificate, or a refusal of the operator's path or key: no input
    /// causes these.
    Unusable,
}

/// Cause of an endpoint's failure, a word or an HTTP status, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// `refused`, `reset`, `timeout` and the like.
    Named(&'static str),
    /// An HTTP status.
    Status(u16),
    /// An HTTP status with the response's pause.
    Paused(u16),
    /// A health check failed by this cause; none where the check did not come to an end.
    Check(Option<&'static str>),
    /// A health check was answered with this status.
    CheckStatus(u16),
}

impl FailureCause {
    /// Returns whether a connection that could not be made says, by this cause, that the server's process is gone: its
    /// sockets are closed one after the other.
    pub fn is_process_gone(self) -> bool {
        self == REFUSED || self == RESET
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureCause::Named(word) => f.write_str(word),
            FailureCause::Status(status) => write!(f, "status {status}"),
            FailureCause::Paused(status) => write!(f, "status {status} with Retry-After"),
            FailureCause::Check(Some(word)) => write!(f, "health check: {word}"),
            FailureCause::Check(None) => f.write_str("health check: timeout"),
            FailureCause::CheckStatus(status) => write!(f, "health check: status {status}"),
        }
    }
}

/// Result of one attempt, with the account of the request.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Signal about the endpoint.
    pub signal: EndpointSignal,
    /// Cause of the failure, where it failed.
    pub cause: Option<FailureCause>,
    /// The account that asked.
    pub account: AccountKey,
    /// The pause that the endpoint asked for; at most [`PAUSE_MAX`] is obeyed.
    pub pause: Option<Millis>,
}

/// Change of an endpoint's health, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthChange {
    /// URL of the endpoint.
    pub url: Arc<str>,
    /// Health in the last report.
    pub from: Health,
    /// Health now.
    pub to: Health,
    /// The latest failure, where it is not healthy.
    pub cause: Option<FailureCause>,
    /// Changes between healthy and degraded since the last report.
    pub unreported: u32,
}

/// An endpoint became usable or stopped being it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsabilityChange {
    /// URL of the endpoint.
    pub url: Arc<str>,
    /// True when the endpoint may get requests from now on.
    pub usable: bool,
}

/// Ejection decisions for all endpoints of one model.
#[derive(Clone, Debug, Default)]
pub struct Ejector {
    /// Sorted, so that changes come in the same order on every run.
    records: BTreeMap<Arc<str>, EndpointRecord>,
    usable: usize,
    /// Latest success of a model of which every endpoint in use keeps failing.
    failing_since: Option<Millis>,
    /// For operators, until taken.
    reports: Vec<HealthChange>,
    /// Endpoints to be checked at once, until taken.
    checks: Vec<Arc<str>>,
}

impl Ejector {
    /// All endpoints are healthy until something else is seen.
    pub fn new(endpoints: &[EndpointSpec], now: Millis) -> Ejector {
        let mut ejector = Ejector::default();
        ejector.configure(endpoints, now);
        ejector
    }

    /// The model's endpoints changed: those that stay keep their record, and those that come back
    /// within a minute have theirs again; new ones begin with a clean one. The changes are of
    /// endpoints that came back unfit, and of ejected ones that are needed because others went.
    pub fn configure(&mut self, endpoints: &[EndpointSpec], now: Millis) -> Vec<UsabilityChange> {
        let stays = |url: &Arc<str>| endpoints.iter().any(|endpoint| endpoint.url == *url);
        self.records.retain(|url, record| {
            if stays(url) {
                return true;
            }
            let gone = *record.removed_since.get_or_insert(now);
            now.since(gone) < ABSENCE_MAX
        });
        let mut changes = Vec::new();
        for endpoint in endpoints {
            let record = || EndpointRecord::new(&endpoint.url, now);
            let entry = self.records.entry(endpoint.url.clone());
            let record = entry.or_insert_with(record);
            if record.removed_since.take().is_some() && !record.is_usable() {
                changes.push(UsabilityChange {
                    url: record.url.clone(),
                    usable: false,
                });
            }
        }
        let usable = |record: &&EndpointRecord| record.is_usable();
        self.usable = self.records.values().filter(usable).count();
        self.restore_if_none_usable(&mut changes);
        self.update_failing_since();
        self.report_all(now);
        changes
    }

    /// A request's try at `url` ended, before or with the head of the response.
    pub fn observe_request(
        &mut self,
        url: &str,
        observed: Observation,
        now: Millis,
    ) -> Vec<UsabilityChange> {
        let last = self.usable <= 1;
        let Some(record) = self.records.get_mut(url) else {
            return Vec::new();
        };
        // Of an endpoint that is not in use only stragglers report, and on what was before.
        if !record.is_usable() {
            return Vec::new();
        }
        if let Some(cause) = observed.cause {
            record.last_error = Some((cause, now));
        }
        let mut usable = true;
        match observed.signal {
            EndpointSignal::Neutral => {}
            EndpointSignal::Success => record.record_success(observed.account, now),
            EndpointSignal::Busy => record.is_proven = false,
            seen @ (EndpointSignal::Failure | EndpointSignal::Unusable) => {
                let relapsed = record.is_relapse(seen, now);
                record.record_failure(seen, (observed.account, observed.cause), now);
                let is_suspect = seen == EndpointSignal::Failure && record.evidence.should_check();
                if is_suspect || (observed.cause == Some(REFUSED) && record.may_check(now)) {
                    self.checks.push(record.url.clone());
                }
                let is_sick = relapsed || record.is_ejectable(now);
                if is_sick || record.ejectable_at.is_some() {
                    record.ejectable_at = Some(now);
                }
                if record.streak_at.is_some() || record.evidence.in_a_row() >= FAILURES_IN_A_ROW_MAX
                {
                    record.streak_at = Some(now);
                }
                if !last && is_sick {
                    record.eject(now);
                    usable = false;
                }
            }
        }
        if let Some(pause) = observed.pause.filter(|pause| pause.0 > 0) {
            record.paused_until = Some(now + pause.min(PAUSE_MAX));
            usable = false;
        }
        self.reports.extend(record.report(now));
        let mut changes = Vec::new();
        let may_fail = record.ejectable_at.is_some() || record.streak_at.is_some();
        if !usable {
            changes.push(UsabilityChange {
                url: record.url.clone(),
                usable: false,
            });
            self.usable -= 1;
            self.restore_if_none_usable(&mut changes);
        }
        if may_fail || !usable || self.failing_since.is_some() {
            self.update_failing_since();
        }
        changes
    }

    /// A health check of `url` ended; `cause` says why it failed.
    pub fn observe_check(
        &mut self,
        url: &str,
        seen: EndpointSignal,
        cause: Option<FailureCause>,
        now: Millis,
    ) -> Vec<UsabilityChange> {
        let Some(record) = self.records.get_mut(url) else {
            return Vec::new();
        };
        let was_usable = record.is_usable();
        match seen {
            EndpointSignal::Neutral | EndpointSignal::Busy => return Vec::new(),
            EndpointSignal::Success => {
                record.checks_failed_in_a_row = 0;
                record.checks_passed_in_a_row = record.checks_passed_in_a_row.saturating_add(1);
                if record.checks_passed_in_a_row >= CHECKS_PASSED_MIN {
                    if record.down {
                        record.down = false;
                        record.ejectable_at = None;
                        record.streak_at = None;
                        record.clear_counts();
                    }
                    if record.check_failed_while_ejected {
                        record.ejectable_at = None;
                        record.streak_at = None;
                        record.check_failed_while_ejected = false;
                        record.state = EjectionState::HalfOpen;
                    }
                    let is_in_use = matches!(record.state, EjectionState::InUse { .. });
                    if record.is_process_gone && is_in_use {
                        record.record_process_back();
                    }
                }
            }
            EndpointSignal::Failure | EndpointSignal::Unusable => {
                if let Some(cause) = cause {
                    record.last_error = Some((cause, now));
                }
                record.checks_passed_in_a_row = 0;
                record.checks_failed_in_a_row = record.checks_failed_in_a_row.saturating_add(1);
                record.down |= record.checks_failed_in_a_row >= CHECKS_FAILED_MAX;
                record.check_failed_while_ejected |=
                    matches!(record.state, EjectionState::Ejected { .. });
            }
        }
        let usable = record.is_usable();
        self.reports.extend(record.report(now));
        let mut changes = Vec::new();
        if usable != was_usable {
            changes.push(UsabilityChange {
                url: record.url.clone(),
                usable,
            });
            self.usable = if usable {
                self.usable + 1
            } else {
                self.usable - 1
            };
        }
        self.restore_if_none_usable(&mut changes);
        self.update_failing_since();
        changes
    }

    /// Ejections and pauses that are over at `now`. To be called about once a second.
    pub fn tick(&mut self, now: Millis) -> Vec<UsabilityChange> {
        let mut changes = Vec::new();
        for record in self.records.values_mut() {
            let was_usable = record.is_usable();
            if matches!(record.state, EjectionState::Ejected { until } if until <= now) {
                record.state = EjectionState::HalfOpen;
            }
            if record.paused_until.is_some_and(|until| until <= now) {
                record.paused_until = None;
            }
            for since in [&mut record.ejectable_at, &mut record.streak_at] {
                since.take_if(|at| now.since(*at) >= SICK_MAX);
            }
            if record.is_usable() && !was_usable {
                self.usable += 1;
                changes.push(UsabilityChange {
                    url: record.url.clone(),
                    usable: true,
                });
            }
        }
        self.update_failing_since();
        self.report_all(now);
        changes
    }

    /// The latest success of a model of which every endpoint in use keeps failing, or the beginning of
    /// time where there was none; `None` while one may serve.
    pub fn failing_since(&self) -> Option<Millis> {
        self.failing_since
    }

    /// Returns whether the endpoints in use failed two accounts, even if each endpoint failed only
    /// one: round-robin may send each account to a different endpoint.
    fn has_failed_two_accounts(&self) -> bool {
        let in_use = self.records.values().filter(|record| record.is_usable());
        let mut accounts = in_use.filter_map(|record| record.evidence.last_failed_account());
        let first = accounts.next();
        accounts.any(|account| Some(account) != first)
    }

    fn update_failing_since(&mut self) {
        let in_use = || self.records.values().filter(|record| record.is_usable());
        let is_sick = |record: &EndpointRecord| record.ejectable_at.is_some();
        let is_streak = |record: &EndpointRecord| is_sick(record) || record.streak_at.is_some();
        let is_failing = self.usable > 0
            && in_use().all(is_streak)
            && (in_use().all(is_sick) || self.has_failed_two_accounts());
        let latest = |record: &EndpointRecord| record.evidence.last_success();
        self.failing_since =
            is_failing.then(|| in_use().filter_map(latest).max().unwrap_or(Millis::ZERO));
    }

    fn report_all(&mut self, now: Millis) {
        for record in self.records.values_mut() {
            self.reports.extend(record.report(now));
        }
    }

    /// Returns changes of health that were not reported yet.
    pub fn take_reports(&mut self) -> Vec<HealthChange> {
        std::mem::take(&mut self.reports)
    }

    /// Endpoints whose health is to be checked at once.
    pub fn take_checks(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.checks)
    }

    /// Returns whether `url` is in use and its latest attempt succeeded, or there was none yet.
    pub fn is_proven(&self, url: &str) -> bool {
        let record = self.records.get(url);
        record.is_some_and(|record| record.is_usable() && record.is_proven)
    }

    /// The time until the shortest pause ends, where no endpoint is in use and at least one is
    /// paused.
    pub fn pause_left(&self, now: Millis) -> Option<Millis> {
        if self.usable > 0 {
            return None;
        }
        let present = self
            .records
            .values()
            .filter(|r| r.removed_since.is_none() && !r.down);
        let ends = present.filter_map(|record| record.paused_until);
        ends.min().map(|until| until.since(now))
    }

    /// The latest failure of `url` and when it was.
    pub fn last_error(&self, url: &str) -> Option<(FailureCause, Millis)> {
        self.records.get(url)?.last_error
    }

    /// Since when `url` has its present health.
    pub fn since(&self, url: &str) -> Option<Millis> {
        Some(self.records.get(url)?.present.1)
    }

    /// Ends the ejection of all endpoints that are not down, once none is usable.
    fn restore_if_none_usable(&mut self, changes: &mut Vec<UsabilityChange>) {
        if self.usable > 0 {
            return;
        }
        let fit = |record: &&mut EndpointRecord| {
            !record.down && record.paused_until.is_none() && record.removed_since.is_none()
        };
        for record in self.records.values_mut().filter(fit) {
            record.state = EjectionState::HalfOpen;
            self.usable += 1;
            changes.push(UsabilityChange {
                url: record.url.clone(),
                usable: true,
            });
        }
    }

    /// Forgets what was seen at `url`: another process is there.
    pub fn forget(&mut self, url: &str) {
        self.records.remove(url);
        self.usable = self
            .records
            .values()
            .filter(|record| record.is_usable())
            .count();
    }

    /// The endpoint's condition; of one that is not configured, that it drains.
    pub fn health(&self, url: &str) -> Health {
        let record = self.records.get(url);
        record.map_or(Health::Draining, EndpointRecord::health)
    }

    /// Until when `url` is ejected or paused, if it is.
    pub fn ejected_until(&self, url: &str) -> Option<Millis> {
        let record = self.records.get(url)?;
        match record.state {
            EjectionState::Ejected { until } => {
                Some(until.max(record.paused_until.unwrap_or(until)))
            }
            _ => record.paused_until,
        }
    }
}

#[cfg(test)]
mod tests;
