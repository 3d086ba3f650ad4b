//! Status of a forwarded request before its response: that it is queued, and that a permit was
//! granted.
//!
//! `queued` is sent at once and again every [`QUEUED_EVERY`]: no work has begun, and the request
//! may be repeated elsewhere. `granted` is sent once, before the request goes to a model server:
//! from then on work may have begun. Both are interim responses of HTTP (RFC 9110 section 15.2),
//! which a node that passes a request on passes back. [`ForwardProgress`] records, at the node that
//! forwards, which statuses came and when; decisions are made elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use infergate_core::Millis;
use tokio::sync::Notify;

use crate::http1::Fields;
use crate::telemetry::Clock;
use crate::upstream::InterimObserver;

#[cfg(doc)]
use infergate_core::routing::cluster::QUEUED_EVERY;

const NAME: &str = "x-infergate-forward";

/// Status of a forwarded request before its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardStatus {
    /// Queued: no work has begun.
    Queued,
    /// A permit was granted: a model server may have begun.
    Granted,
}

impl ForwardStatus {
    /// HTTP status: processing, and early hints.
    pub const fn status(self) -> u16 {
        match self {
            ForwardStatus::Queued => 102,
            ForwardStatus::Granted => 103,
        }
    }

    /// The header line, as name and value.
    pub const fn line(self) -> (&'static str, &'static str) {
        match self {
            ForwardStatus::Queued => (NAME, "queued"),
            ForwardStatus::Granted => (NAME, "granted"),
        }
    }

    fn parse(headers: &Fields) -> Option<ForwardStatus> {
        match headers.get(NAME)? {
            b"queued" => Some(ForwardStatus::Queued),
            b"granted" => Some(ForwardStatus::Granted),
            _ => None,
        }
    }
}

/// Progress of one forwarded request, as its node reports it.
pub struct ForwardProgress {
    clock: Clock,
    /// Begin, or the last sign of progress, milliseconds.
    last_ms: AtomicU64,
    connected: AtomicBool,
    granted: AtomicBool,
    changed: Notify,
}

impl ForwardProgress {
    /// Progress of a request that is about to be sent.
    pub fn new(clock: Clock) -> ForwardProgress {
        ForwardProgress {
            clock,
            last_ms: AtomicU64::new(clock.now().0),
            connected: AtomicBool::new(false),
            granted: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// Time since the last sign of progress.
    pub fn silence(&self) -> Millis {
        self.clock
            .now()
            .since(Millis(self.last_ms.load(Ordering::Relaxed)))
    }

    /// The request was sent, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// A model server may have begun.
    pub fn is_granted(&self) -> bool {
        self.granted.load(Ordering::Relaxed)
    }

    /// Returns once a permit was granted; to be waited for once.
    pub async fn wait_granted(&self) {
        while !self.is_granted() {
            self.changed.notified().await;
        }
    }

    fn touch(&self) {
        self.last_ms.store(self.clock.now().0, Ordering::Relaxed);
    }
}

impl InterimObserver for ForwardProgress {
    fn on_connected(&self) {
        self.touch();
        self.connected.store(true, Ordering::Relaxed);
    }

    fn on_interim(&self, headers: &Fields) -> bool {
        let Some(interim) = ForwardStatus::parse(headers) else {
            return false;
        };
        self.touch();
        if interim == ForwardStatus::Granted {
            self.granted.store(true, Ordering::Relaxed);
            self.changed.notify_one();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_grant_is_heard_and_what_is_no_word_of_a_node_is_not() {
        let hearing = ForwardProgress::new(Clock::start());
        assert!(!hearing.is_connected());
        hearing.on_connected();
        let headers = |interim: ForwardStatus| Fields::from_lines(&[interim.line()]);
        assert!(!hearing.on_interim(&Fields::default()));
        assert!(hearing.on_interim(&headers(ForwardStatus::Queued)));
        assert!(hearing.is_connected() && !hearing.is_granted());
        assert!(futures_util::poll!(Box::pin(hearing.wait_granted())).is_pending());
        assert!(hearing.on_interim(&headers(ForwardStatus::Granted)));
        assert!(hearing.on_interim(&headers(ForwardStatus::Queued)));
        hearing.wait_granted().await;
        assert!(hearing.is_granted(), "it stays so");
    }
}
