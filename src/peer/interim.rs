//! Status of a forwarded request before its response: that it is queued, and that a permit was
//! granted.
//!
//! `queued` is sent at once and again every [`QUEUED_EVERY`]: no work has begun, and the request
//! may be repeated elsewhere. `granted` is sent once, before the request goes to a model server:
//! from then on work may have begun. Both are interim responses of HTTP (RFC 9110 section 15.2),
//! which a node that passes a request on passes back. [`Hearing`] records, at the node that
//! forwards, which statuses came and when; decisions are made elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::HeaderMap;
use infergate_core::Millis;
use tokio::sync::Notify;

use crate::telemetry::Clock;
use crate::upstream::Hears;

#[cfg(doc)]
use infergate_core::routing::fleet::QUEUED_EVERY;

const NAME: &str = "x-infergate-forward";

/// Status of a forwarded request before its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interim {
    /// Queued: no work has begun.
    Queued,
    /// A permit was granted: a model server may have begun.
    Granted,
}

impl Interim {
    /// HTTP status: processing, and early hints.
    pub const fn status(self) -> u16 {
        match self {
            Interim::Queued => 102,
            Interim::Granted => 103,
        }
    }

    /// The header line, as name and value.
    pub const fn line(self) -> (&'static str, &'static str) {
        match self {
            Interim::Queued => (NAME, "queued"),
            Interim::Granted => (NAME, "granted"),
        }
    }

    fn read(headers: &HeaderMap) -> Option<Interim> {
        match headers.get(NAME)?.as_bytes() {
            b"queued" => Some(Interim::Queued),
            b"granted" => Some(Interim::Granted),
            _ => None,
        }
    }
}

/// Progress of one forwarded request, as its node reports it.
pub struct Hearing {
    clock: Clock,
    /// Begin, or the last sign of progress, milliseconds.
    heard_ms: AtomicU64,
    connected: AtomicBool,
    granted: AtomicBool,
    news: Notify,
}

impl Hearing {
    /// Progress of a request that is about to be sent.
    pub fn begin(clock: Clock) -> Hearing {
        Hearing {
            clock,
            heard_ms: AtomicU64::new(clock.now().0),
            connected: AtomicBool::new(false),
            granted: AtomicBool::new(false),
            news: Notify::new(),
        }
    }

    /// Time since the last sign of progress.
    pub fn silent(&self) -> Millis {
        self.clock
            .now()
            .since(Millis(self.heard_ms.load(Ordering::Relaxed)))
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
    pub async fn grant(&self) {
        while !self.is_granted() {
            self.news.notified().await;
        }
    }

    fn heard(&self) {
        self.heard_ms.store(self.clock.now().0, Ordering::Relaxed);
    }
}

impl Hears for Hearing {
    fn connected(&self) {
        self.heard();
        self.connected.store(true, Ordering::Relaxed);
    }

    fn interim(&self, headers: &HeaderMap) -> bool {
        let Some(interim) = Interim::read(headers) else {
            return false;
        };
        self.heard();
        if interim == Interim::Granted {
            self.granted.store(true, Ordering::Relaxed);
            self.news.notify_one();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[tokio::test]
    async fn a_grant_is_heard_and_what_is_no_word_of_a_node_is_not() {
        let hearing = Hearing::begin(Clock::start());
        assert!(!hearing.is_connected());
        hearing.connected();
        let headers = |interim: Interim| {
            let (name, value) = interim.line();
            let line = (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
            HeaderMap::from_iter([line])
        };
        assert!(!hearing.interim(&HeaderMap::new()));
        assert!(hearing.interim(&headers(Interim::Queued)));
        assert!(hearing.is_connected() && !hearing.is_granted());
        assert!(futures_util::poll!(Box::pin(hearing.grant())).is_pending());
        assert!(hearing.interim(&headers(Interim::Granted)));
        assert!(hearing.interim(&headers(Interim::Queued)));
        hearing.grant().await;
        assert!(hearing.is_granted(), "it stays so");
    }
}
