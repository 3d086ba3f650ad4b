//! Which endpoints of a model are fit for traffic, from what requests and health checks saw.
//!
//! It sends no check and keeps no request away: it answers with [`Change`]s, and the shell hands
//! them to the model's turnstile. Two judges, kept apart because they know different things:
//!
//! - *Requests* (passive, <https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier>):
//!   an endpoint that fails too often is ejected for a time that doubles with each relapse, then
//!   goes half open: it gets traffic again, and its next answer decides. A request says something
//!   only in comparison, so the last usable endpoint is never ejected; it is merely degraded.
//! - *Checks* (active): an endpoint that fails them in a row is down until it passes some. A check
//!   is direct evidence, so even the last endpoint can be down; an ejected one is then put back to
//!   use, which is better than none. A check that fails during an ejection and passes again ends
//!   the ejection: the server was gone and is back.
//!
//! A 4xx is the caller's fault and says nothing. Endpoints are known by URL. O(log endpoints) per request.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::window::Window;
use crate::Millis;
use crate::model::EndpointSpec;

/// Failures in a row that eject: a crashed server has them at once, a flaky one hardly ever.
const FAILURES_IN_A_ROW_MAX: u32 = 5;

/// Fewer answers in the window are no statistics.
const ANSWERS_MIN: u32 = 20;

/// Share of failures in the window that ejects although successes lie between them.
const FAILED_PERCENT_MAX: u32 = 50;

/// The first ejection: longer than a server's hiccup, shorter than a person's patience.
const EJECTION_MIN: Millis = Millis::from_secs(5);

/// No ejection is longer: a repaired endpoint is back in two minutes whatever its past.
const EJECTION_MAX: Millis = Millis::from_secs(120);

/// Who has been in use for as long without an ejection begins with the shortest one again.
const FORGIVEN_AFTER: Millis = Millis::from_secs(60);

/// Failed checks in a row that take an endpoint down: one or two may be lost in a busy moment.
const CHECKS_FAILED_MAX: u32 = 3;

/// Passed checks in a row that bring it back.
const CHECKS_PASSED_MIN: u32 = 2;

/// What one try of a request, or one health check, says about an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It answered as it should.
    Success,
    /// It answered, and the answer says nothing about it.
    Nothing,
    /// No connection, no answer in time, a broken one, or a 5xx.
    Failure,
}

impl Seen {
    /// What an answer's HTTP status says.
    pub const fn from_status(status: u16) -> Seen {
        match status {
            0..400 => Seen::Success,
            400..500 => Seen::Nothing,
            _ => Seen::Failure,
        }
    }
}

/// An endpoint's condition in one word, as `/state` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// In use, and nothing is wrong.
    Healthy,
    /// In use, and failing now and then or coming back from an ejection.
    Degraded,
    /// Not in use for a time, because requests failed there.
    Ejected,
    /// Not configured any more, finishing what it has. Set by the shell, which knows permits.
    Draining,
    /// Not in use, because health checks fail.
    Down,
}

impl Health {
    /// Every word, in the order of the metric's series.
    pub const ALL: [Health; 5] = [
        Health::Healthy,
        Health::Degraded,
        Health::Ejected,
        Health::Draining,
        Health::Down,
    ];

    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Degraded => "degraded",
            Health::Ejected => "ejected",
            Health::Draining => "draining",
            Health::Down => "down",
        }
    }
}

/// An endpoint became usable or stopped being it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which one.
    pub url: Arc<str>,
    /// Whether it may get requests from now on.
    pub usable: bool,
}

/// What requests have made of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
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
struct Record {
    url: Arc<str>,
    standing: Standing,
    failures_in_a_row: u32,
    successes: Window,
    failures: Window,
    /// Ejections since it was last forgiven.
    ejections: u32,
    down: bool,
    checks_failed_in_a_row: u32,
    checks_passed_in_a_row: u32,
    /// A check has failed since the ejection began.
    gone_while_ejected: bool,
}

impl Record {
    fn new(url: &Arc<str>, now: Millis) -> Record {
        Record {
            url: url.clone(),
            standing: Standing::InUse { since: now },
            failures_in_a_row: 0,
            successes: Window::default(),
            failures: Window::default(),
            ejections: 0,
            down: false,
            checks_failed_in_a_row: 0,
            checks_passed_in_a_row: 0,
            gone_while_ejected: false,
        }
    }

    fn is_usable(&self) -> bool {
        !self.down && !matches!(self.standing, Standing::Ejected { .. })
    }

    fn fails_too_often(&mut self, now: Millis) -> bool {
        if self.failures_in_a_row >= FAILURES_IN_A_ROW_MAX {
            return true;
        }
        let failures = self.failures.sum(now);
        let answers = failures.saturating_add(self.successes.sum(now));
        let failed_share = u64::from(failures) * 100;
        answers >= ANSWERS_MIN && failed_share >= u64::from(answers * FAILED_PERCENT_MAX)
    }

    fn eject(&mut self, now: Millis) {
        let doubled = EJECTION_MIN.0.saturating_mul(1 << self.ejections.min(16));
        self.standing = Standing::Ejected {
            until: now + Millis(doubled).min(EJECTION_MAX),
        };
        self.ejections += 1;
        self.checks_passed_in_a_row = 0;
        self.gone_while_ejected = false;
        self.forget_answers();
    }

    fn forget_answers(&mut self) {
        self.failures_in_a_row = 0;
        self.failures.clear();
        self.successes.clear();
    }
}

/// The judge of all endpoints of one model.
#[derive(Clone, Debug, Default)]
pub struct Ejector {
    /// Sorted, so that changes come in the same order on every run.
    records: BTreeMap<Arc<str>, Record>,
    usable: usize,
}

impl Ejector {
    /// All endpoints are healthy until something else is seen.
    pub fn new(endpoints: &[EndpointSpec], now: Millis) -> Ejector {
        let mut ejector = Ejector::default();
        ejector.configure(endpoints, now);
        ejector
    }

    /// The model's endpoints changed: who stays keeps its record, who is new or comes back starts
    /// with a clean one. What the turnstile makes of the same list agrees with it; the changes are
    /// of endpoints that stay, when one of those is needed because others went.
    pub fn configure(&mut self, endpoints: &[EndpointSpec], now: Millis) -> Vec<Change> {
        let stays = |url: &Arc<str>| endpoints.iter().any(|endpoint| endpoint.url == *url);
        self.records.retain(|url, _| stays(url));
        for endpoint in endpoints {
            let record = || Record::new(&endpoint.url, now);
            self.records
                .entry(endpoint.url.clone())
                .or_insert_with(record);
        }
        self.usable = self
            .records
            .values()
            .filter(|record| record.is_usable())
            .count();
        let mut changes = Vec::new();
        self.never_without(&mut changes);
        changes
    }

    /// A request's try at `url` ended, before or with the head of the answer.
    pub fn request_saw(&mut self, url: &str, seen: Seen, now: Millis) -> Vec<Change> {
        let last = self.usable <= 1;
        let Some(record) = self.records.get_mut(url) else {
            return Vec::new();
        };
        // Of an endpoint that is not in use only stragglers report, and on what was before.
        if !record.is_usable() {
            return Vec::new();
        }
        match seen {
            Seen::Nothing => Vec::new(),
            Seen::Success => {
                record.failures_in_a_row = 0;
                record.successes.add(now);
                match record.standing {
                    Standing::HalfOpen => record.standing = Standing::InUse { since: now },
                    Standing::InUse { since } if now.since(since) >= FORGIVEN_AFTER => {
                        record.ejections = 0;
                    }
                    _ => {}
                }
                Vec::new()
            }
            Seen::Failure => {
                record.failures_in_a_row = record.failures_in_a_row.saturating_add(1);
                record.failures.add(now);
                let relapsed = record.standing == Standing::HalfOpen;
                if last || !(relapsed || record.fails_too_often(now)) {
                    return Vec::new();
                }
                record.eject(now);
                self.usable -= 1;
                vec![Change {
                    url: record.url.clone(),
                    usable: false,
                }]
            }
        }
    }

    /// A health check of `url` ended.
    pub fn check_saw(&mut self, url: &str, seen: Seen) -> Vec<Change> {
        let Some(record) = self.records.get_mut(url) else {
            return Vec::new();
        };
        let was_usable = record.is_usable();
        match seen {
            Seen::Nothing => return Vec::new(),
            Seen::Success => {
                record.checks_failed_in_a_row = 0;
                record.checks_passed_in_a_row = record.checks_passed_in_a_row.saturating_add(1);
                if record.checks_passed_in_a_row >= CHECKS_PASSED_MIN {
                    if record.down {
                        record.down = false;
                        record.forget_answers();
                    }
                    if record.gone_while_ejected {
                        record.gone_while_ejected = false;
                        record.standing = Standing::HalfOpen;
                    }
                }
            }
            Seen::Failure => {
                record.checks_passed_in_a_row = 0;
                record.checks_failed_in_a_row = record.checks_failed_in_a_row.saturating_add(1);
                record.down |= record.checks_failed_in_a_row >= CHECKS_FAILED_MAX;
                record.gone_while_ejected |= matches!(record.standing, Standing::Ejected { .. });
            }
        }
        let usable = record.is_usable();
        let mut changes = Vec::new();
        if usable != was_usable {
            changes.push(Change {
                url: record.url.clone(),
                usable,
            });
            self.usable = if usable {
                self.usable + 1
            } else {
                self.usable - 1
            };
        }
        self.never_without(&mut changes);
        changes
    }

    /// Ejections that are over at `now`. To be called about once a second.
    pub fn tick(&mut self, now: Millis) -> Vec<Change> {
        let mut changes = Vec::new();
        for record in self.records.values_mut() {
            if matches!(record.standing, Standing::Ejected { until } if until <= now) {
                record.standing = Standing::HalfOpen;
                if record.is_usable() {
                    self.usable += 1;
                    changes.push(Change {
                        url: record.url.clone(),
                        usable: true,
                    });
                }
            }
        }
        changes
    }

    /// When nothing is usable, ejections are over for all that are not down.
    fn never_without(&mut self, changes: &mut Vec<Change>) {
        if self.usable > 0 {
            return;
        }
        for record in self.records.values_mut().filter(|record| !record.down) {
            record.standing = Standing::HalfOpen;
            self.usable += 1;
            changes.push(Change {
                url: record.url.clone(),
                usable: true,
            });
        }
    }

    /// The endpoint's condition; of one that is not configured, that it drains.
    pub fn health(&self, url: &str) -> Health {
        let Some(record) = self.records.get(url) else {
            return Health::Draining;
        };
        let failing = record.failures_in_a_row > 0 || record.checks_failed_in_a_row > 0;
        match record.standing {
            _ if record.down => Health::Down,
            Standing::Ejected { .. } => Health::Ejected,
            Standing::HalfOpen => Health::Degraded,
            Standing::InUse { .. } if failing => Health::Degraded,
            Standing::InUse { .. } => Health::Healthy,
        }
    }

    /// Until when `url` is ejected, if it is.
    pub fn ejected_until(&self, url: &str) -> Option<Millis> {
        match self.records.get(url)?.standing {
            Standing::Ejected { until } => Some(until),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
