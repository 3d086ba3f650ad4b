//! Record of one endpoint: counts and state from requests and health checks.
//!
//! Counts and judges one endpoint alone; the ejector decides about ejection, which depends on the
//! other endpoints.

use std::sync::Arc;

use super::{EndpointSignal, FailureCause, Health, HealthChange, REFUSED_CHECK_INTERVAL};
use crate::Millis;
use crate::routing::evidence::{AccountKey, Evidence, FAILURES_IN_A_ROW_MAX};
use crate::routing::window::{SlidingCount, WINDOW};

/// Fewer responses in the window are no statistics.
const ANSWERS_MIN: u32 = 20;

/// Share of failures in the window that ejects although successes lie between them.
const FAILED_PERCENT_MAX: u64 = 50;

/// The first ejection: longer than a server's hiccup, shorter than a person's patience.
pub(super) const EJECTION_MIN: Millis = Millis::from_secs(5);

/// No ejection is longer: a repaired endpoint is back in two minutes whatever its past.
pub(super) const EJECTION_MAX: Millis = Millis::from_secs(120);

/// An endpoint in use for as long without an ejection starts again with the shortest one.
pub(super) const FORGIVEN_AFTER: Millis = Millis::from_secs(60);

/// Between two reports of an endpoint that goes back and forth between healthy and degraded.
const REPORT_EVERY: Millis = Millis::from_secs(10);

/// Ejection state of an endpoint, from requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EjectionState {
    InUse {
        since: Millis,
    },
    Ejected {
        until: Millis,
    },
    /// In use, on probation: the next success or failure decides.
    HalfOpen,
}

#[derive(Clone, Debug)]
pub(super) struct EndpointRecord {
    pub(super) url: Arc<str>,
    pub(super) state: EjectionState,
    /// Failures that an input may have caused.
    pub(super) evidence: Evidence,
    /// Failures in a row that no input causes.
    pub(super) unusable_in_a_row: u32,
    /// Cause of all these failures: no server process.
    pub(super) is_process_gone: bool,
    pub(super) successes: SlidingCount,
    pub(super) failures: SlidingCount,
    /// Failures in the window that no input causes.
    pub(super) unusable: SlidingCount,
    /// The latest try went well, or there was none.
    pub(super) is_proven: bool,
    /// The latest failure since failures were enough for an ejection, with no success since.
    pub(super) ejectable_at: Option<Millis>,
    /// The latest of failures in a row that would be enough, were they two accounts'.
    pub(super) streak_at: Option<Millis>,
    pub(super) paused_until: Option<Millis>,
    pub(super) last_error: Option<(FailureCause, Millis)>,
    /// Health in the last report, and its time.
    pub(super) reported: (Health, Option<Millis>),
    /// Health now, and since when.
    pub(super) present: (Health, Millis),
    pub(super) unreported: u32,
    /// Time of removal from the configuration.
    pub(super) removed_since: Option<Millis>,
    /// Ejections since it was last forgiven.
    pub(super) ejections: u32,
    pub(super) down: bool,
    /// Latest check that a refused connection has asked for.
    pub(super) refused_check_at: Option<Millis>,
    pub(super) checks_failed_in_a_row: u32,
    pub(super) checks_passed_in_a_row: u32,
    /// A check has failed since the ejection began.
    pub(super) check_failed_while_ejected: bool,
}

impl EndpointRecord {
    pub(super) fn new(url: &Arc<str>, now: Millis) -> EndpointRecord {
        EndpointRecord {
            url: url.clone(),
            state: EjectionState::InUse { since: now },
            evidence: Evidence::default(),
            unusable_in_a_row: 0,
            is_process_gone: false,
            successes: SlidingCount::default(),
            failures: SlidingCount::default(),
            unusable: SlidingCount::default(),
            is_proven: true,
            ejectable_at: None,
            streak_at: None,
            paused_until: None,
            last_error: None,
            reported: (Health::Healthy, None),
            present: (Health::Healthy, now),
            unreported: 0,
            removed_since: None,
            ejections: 0,
            down: false,
            refused_check_at: None,
            checks_failed_in_a_row: 0,
            checks_passed_in_a_row: 0,
            check_failed_while_ejected: false,
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.down
            && !matches!(self.state, EjectionState::Ejected { .. })
            && self.paused_until.is_none()
            && self.removed_since.is_none()
    }

    /// Returns whether a refused connection may ask for a check now, and counts that as one.
    pub(super) fn may_check(&mut self, now: Millis) -> bool {
        let is_due = |at: Millis| now.since(at) >= REFUSED_CHECK_INTERVAL;
        let may_check = self.refused_check_at.is_none_or(is_due);
        if may_check {
            self.refused_check_at = Some(now);
        }
        may_check
    }

    pub(super) fn is_ejectable(&mut self, now: Millis) -> bool {
        if self.unusable_in_a_row >= FAILURES_IN_A_ROW_MAX || self.evidence.is_conclusive(now) {
            return true;
        }
        let failures = self.failures.sum(now);
        let answers = failures.saturating_add(self.successes.sum(now));
        let is_share =
            |count: u32| u64::from(count) * 100 >= u64::from(answers) * FAILED_PERCENT_MAX;
        answers >= ANSWERS_MIN
            && (is_share(self.unusable.sum(now))
                || (is_share(failures) && self.evidence.is_corroborated_within(WINDOW, now)))
    }

    /// Returns whether one more failure of that kind ends a probation.
    pub(super) fn is_relapse(&self, seen: EndpointSignal, now: Millis) -> bool {
        self.state == EjectionState::HalfOpen
            && (seen == EndpointSignal::Unusable || self.evidence.is_corroborated(now))
    }

    pub(super) fn record_success(&mut self, account: AccountKey, now: Millis) {
        self.evidence.record_success(account, now);
        self.unusable_in_a_row = 0;
        self.is_process_gone = false;
        self.is_proven = true;
        self.ejectable_at = None;
        self.streak_at = None;
        self.successes.add(now);
        match self.state {
            EjectionState::HalfOpen => self.state = EjectionState::InUse { since: now },
            EjectionState::InUse { since } if now.since(since) >= FORGIVEN_AFTER => {
                self.ejections = 0;
            }
            _ => {}
        }
    }

    /// The process is there again, by checks that have passed since.
    pub(super) fn record_process_back(&mut self) {
        self.is_process_gone = false;
        self.unusable_in_a_row = 0;
        self.unusable.clear();
        if self.evidence.in_a_row() == 0 {
            self.is_proven = true;
            self.ejectable_at = None;
            self.streak_at = None;
        }
    }

    pub(super) fn record_failure(
        &mut self,
        seen: EndpointSignal,
        (account, cause): (AccountKey, Option<FailureCause>),
        now: Millis,
    ) {
        self.is_proven = false;
        self.failures.add(now);
        match seen {
            EndpointSignal::Unusable => {
                self.unusable_in_a_row = self.unusable_in_a_row.saturating_add(1);
                self.unusable.add(now);
                let is_first = self.unusable_in_a_row == 1;
                let is_gone = cause.is_some_and(FailureCause::is_process_gone);
                self.is_process_gone = is_gone && (is_first || self.is_process_gone);
                // A check that has passed before says nothing about it.
                self.checks_passed_in_a_row = 0;
            }
            _ => self.evidence.record_failure(account, now),
        }
    }

    pub(super) fn health(&self) -> Health {
        let failing = self.evidence.in_a_row() > 0
            || self.unusable_in_a_row > 0
            || self.checks_failed_in_a_row > 0;
        match self.state {
            _ if self.removed_since.is_some() => Health::Draining,
            _ if self.down => Health::Down,
            EjectionState::Ejected { .. } => Health::Ejected,
            _ if self.paused_until.is_some() => Health::Ejected,
            EjectionState::HalfOpen => Health::Degraded,
            EjectionState::InUse { .. } if failing => Health::Degraded,
            EjectionState::InUse { .. } => Health::Healthy,
        }
    }

    /// Records the present health. Returns the change if it is due for a report.
    pub(super) fn report(&mut self, now: Millis) -> Option<HealthChange> {
        let health = self.health();
        if health != self.present.0 {
            self.present = (health, now);
            self.unreported = self.unreported.saturating_add(1);
        }
        let (from, at) = self.reported;
        if health == from || self.removed_since.is_some() {
            return None;
        }
        let is_in_use = |health| matches!(health, Health::Healthy | Health::Degraded);
        let is_minor = is_in_use(from) && is_in_use(health);
        if is_minor && at.is_some_and(|at| now.since(at) < REPORT_EVERY) {
            return None;
        }
        self.reported = (health, Some(now));
        let unreported = std::mem::take(&mut self.unreported).saturating_sub(1);
        let error = self.last_error.filter(|_| health != Health::Healthy);
        Some(HealthChange {
            url: self.url.clone(),
            from,
            to: health,
            cause: error.map(|(cause, _)| cause),
            unreported,
        })
    }

    pub(super) fn eject(&mut self, now: Millis) {
        let doubled = EJECTION_MIN.0.saturating_mul(1 << self.ejections.min(16));
        self.state = EjectionState::Ejected {
            until: now + Millis(doubled).min(EJECTION_MAX),
        };
        self.ejections += 1;
        self.checks_passed_in_a_row = 0;
        self.check_failed_while_ejected = false;
        self.clear_counts();
    }

    pub(super) fn clear_counts(&mut self) {
        self.evidence.restart();
        self.unusable_in_a_row = 0;
        self.is_process_gone = false;
        self.failures.clear();
        self.unusable.clear();
        self.successes.clear();
    }
}
