//! Webhooks of one job: events and their filter, ids, the schedule of deliveries, the throttle of notifications.
//!
//! Sends nothing and keeps no bodies: the body is built when a delivery begins, so that the newest state wins.
//! Isolation between receivers is in [`Receivers`](super::receivers::Receivers). Times are milliseconds of the
//! caller's clock. O(1) everywhere.

use std::fmt;

use crate::Millis;

/// Delays between the attempts of one delivery, milliseconds; the first is the delay of the first attempt.
/// About 76 hours in all: a receiver that is down for a day gets everything.
pub const DELIVERY_DELAYS: [Millis; 12] = [
    Millis::ZERO,
    Millis::from_secs(5),
    Millis::from_secs(30),
    Millis::from_secs(2 * 60),
    Millis::from_secs(5 * 60),
    Millis::from_secs(30 * 60),
    Millis::from_secs(2 * 3600),
    Millis::from_secs(5 * 3600),
    Millis::from_secs(10 * 3600),
    Millis::from_secs(14 * 3600),
    Millis::from_secs(20 * 3600),
    Millis::from_secs(24 * 3600),
];

/// Longest `Retry-After` that is obeyed; a longer one counts as this.
pub const RETRY_AFTER_MAX: Millis = Millis::from_secs(3600);

/// Shortest time between two notifications of one kind: Cog sends its own no faster.
pub const INTERMEDIATE_INTERVAL: Millis = Millis(500);

/// Result of one attempt to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// Status 2xx.
    Accepted,
    /// Status 410: the receiver wants no more attempts.
    Gone,
    /// Any other status, or no answer.
    Failed {
        /// Status of the answer, if there was one. A redirect is not followed and counts as failed.
        status: Option<u16>,
        /// Span of the answer's `Retry-After`.
        retry_after: Option<Millis>,
    },
}

impl DeliveryResult {
    /// Returns the result that an answer means.
    pub fn of_status(status: u16, retry_after: Option<Millis>) -> DeliveryResult {
        match status {
            200..=299 => DeliveryResult::Accepted,
            410 => DeliveryResult::Gone,
            _ => DeliveryResult::Failed {
                status: Some(status),
                retry_after,
            },
        }
    }

    /// Decides about the next attempt.
    ///
    /// `attempts` counts those made, this one included; `random` spreads the delay by 20 % to either side, so
    /// that deliveries that failed together do not return together.
    pub fn decide(self, attempts: u32, random: u64, now: Millis) -> DeliveryDecision {
        let (status, retry_after) = match self {
            DeliveryResult::Accepted => return DeliveryDecision::Done,
            DeliveryResult::Gone => return DeliveryDecision::Dead,
            DeliveryResult::Failed {
                status,
                retry_after,
            } => (status, retry_after),
        };
        let attempts = usize::try_from(attempts.max(1)).unwrap_or(usize::MAX);
        let Some(delay) = DELIVERY_DELAYS.get(attempts) else {
            return DeliveryDecision::Dead;
        };
        let asked = match status {
            Some(429 | 503) => retry_after.unwrap_or(Millis::ZERO).min(RETRY_AFTER_MAX),
            _ => Millis::ZERO,
        };
        DeliveryDecision::RetryAt(now + spread(*delay, random).max(asked))
    }
}

/// Returns `delay` changed by at most a fifth.
fn spread(delay: Millis, random: u64) -> Millis {
    let fifth = delay.0 / 5;
    Millis(delay.0 - fifth + random % (2 * fifth + 1))
}

/// Decision about a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryDecision {
    /// Delivered.
    Done,
    /// Dead letter: no further attempt unless an operator asks for one.
    Dead,
    /// Next attempt not before this moment.
    RetryAt(Millis),
}

/// Kind of an event that a webhook reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WebhookEvent {
    /// The job was started.
    Start,
    /// New output.
    Output,
    /// New log lines.
    Logs,
    /// The job has ended, in whatever way.
    Completed,
}

impl WebhookEvent {
    /// All kinds.
    pub const ALL: [WebhookEvent; 4] = [
        WebhookEvent::Start,
        WebhookEvent::Output,
        WebhookEvent::Logs,
        WebhookEvent::Completed,
    ];

    /// Returns the kind that `word` names, in lower case.
    pub fn parse(word: &str) -> Option<WebhookEvent> {
        WebhookEvent::ALL
            .into_iter()
            .find(|event| event.as_str() == word)
    }

    /// Word of the kind in filters and ids.
    pub const fn as_str(self) -> &'static str {
        match self {
            WebhookEvent::Start => "start",
            WebhookEvent::Output => "output",
            WebhookEvent::Logs => "logs",
            WebhookEvent::Completed => "completed",
        }
    }

    /// Returns the header `webhook-id`, the same on every retry: `<job>-completed`, `<job>-output-<number>`.
    /// `number` counts notifications of one kind; `start` and `completed` occur once and carry none.
    pub fn webhook_id(self, job: &str, number: u64) -> String {
        match self {
            WebhookEvent::Start | WebhookEvent::Completed => format!("{job}-{self}"),
            WebhookEvent::Output | WebhookEvent::Logs => format!("{job}-{self}-{number}"),
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for WebhookEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Set of events that a webhook wants; all by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookFilter(u8);

/// An unknown word in a filter; its text is meant for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("webhook_events_filter takes start, output, logs and completed")]
pub struct WebhookFilterError;

impl WebhookFilter {
    /// Returns the set of the events named; without any, all: a webhook that wants nothing has no use.
    ///
    /// # Errors
    /// [`WebhookFilterError`] for any other word.
    pub fn parse<'a>(
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<WebhookFilter, WebhookFilterError> {
        let mut bits = 0;
        for word in words {
            bits |= WebhookEvent::parse(word).ok_or(WebhookFilterError)?.bit();
        }
        Ok(match bits {
            0 => WebhookFilter::default(),
            bits => WebhookFilter(bits),
        })
    }

    /// Returns whether `event` is wanted.
    pub const fn contains(self, event: WebhookEvent) -> bool {
        self.0 & event.bit() != 0
    }

    /// Returns the events wanted.
    pub fn events(self) -> impl Iterator<Item = WebhookEvent> {
        WebhookEvent::ALL
            .into_iter()
            .filter(move |event| self.contains(*event))
    }
}

impl Default for WebhookFilter {
    fn default() -> WebhookFilter {
        WebhookFilter(WebhookEvent::ALL.iter().fold(0, |bits, e| bits | e.bit()))
    }
}

/// Notification to send before the end of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntermediateNotification {
    /// Kind, never [`WebhookEvent::Completed`].
    pub event: WebhookEvent,
    /// Number among those of its kind, from 1.
    pub number: u64,
}

/// Notifications of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct IntermediateKind {
    /// Moment of the oldest offer not yet sent.
    offered_at: Option<Millis>,
    /// Earliest moment of the next one.
    free_at: Millis,
    sent: u64,
}

impl IntermediateKind {
    fn due(&self) -> Option<Millis> {
        Some(self.offered_at?.max(self.free_at))
    }
}

/// Throttle of a job's notifications before its end: each kind at most every [`INTERMEDIATE_INTERVAL`], one in
/// flight, none after the end.
#[derive(Clone, Debug)]
pub struct IntermediateThrottle {
    filter: WebhookFilter,
    /// By event: start, output, logs.
    kinds: [IntermediateKind; 3],
    in_flight: bool,
    closed: bool,
}

impl IntermediateThrottle {
    /// Creates the throttle of a job whose webhook wants the events of `filter`.
    pub fn new(filter: WebhookFilter) -> IntermediateThrottle {
        IntermediateThrottle {
            filter,
            kinds: [IntermediateKind::default(); 3],
            in_flight: false,
            closed: false,
        }
    }

    /// Records news of a kind. Several offers before a notification are one. `start` counts once;
    /// `completed` is no notification of this kind and is ignored.
    pub fn offer(&mut self, event: WebhookEvent, now: Millis) {
        if self.closed || !self.filter.contains(event) {
            return;
        }
        let Some(kind) = self.kinds.get_mut(event as usize) else {
            return;
        };
        if event == WebhookEvent::Start && kind.sent > 0 {
            return;
        }
        kind.offered_at.get_or_insert(now);
    }

    /// Earliest moment at which [`take`](Self::take) returns a notification; none while one is in flight.
    pub fn next_due(&self) -> Option<Millis> {
        if self.in_flight {
            return None;
        }
        self.kinds.iter().filter_map(IntermediateKind::due).min()
    }

    /// Takes the notification that has been due for the longest, `start` first; it is in flight from now on.
    pub fn take(&mut self, now: Millis) -> Option<IntermediateNotification> {
        if self.in_flight {
            return None;
        }
        let dues = self.kinds.iter().zip(WebhookEvent::ALL);
        let due = dues.filter_map(|(kind, event)| Some((kind.due()?, event)));
        let due = due.filter(|(at, _)| *at <= now);
        let (_, event) = due.min_by_key(|(at, event)| (*event != WebhookEvent::Start, *at))?;
        let kind = &mut self.kinds[event as usize];
        kind.offered_at = None;
        kind.free_at = now + INTERMEDIATE_INTERVAL;
        kind.sent = kind.sent.saturating_add(1);
        self.in_flight = true;
        Some(IntermediateNotification {
            event,
            number: kind.sent,
        })
    }

    /// Ends the notification in flight, delivered or not: none is repeated.
    pub fn finish(&mut self) {
        self.in_flight = false;
    }

    /// Returns whether a notification is under way.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Closes the throttle before the terminal write: nothing is due any more. The one in flight, if any, is
    /// the caller's to cut.
    pub fn close(&mut self) {
        self.closed = true;
        for kind in &mut self.kinds {
            kind.offered_at = None;
        }
    }
}

#[cfg(test)]
#[path = "tests/webhook.rs"]
mod tests;
