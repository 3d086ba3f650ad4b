//! Decides whether an upstream connection is reused, and whether a request that lost its connection
//! is sent once more.
//!
//! Holds no connections and reads no socket: the shell's pool does both. Times are [`Millis`] on
//! the pool's clock. Bounds: [`IDLE_MAX_PLAIN`], [`IDLE_MAX_TLS`], [`CONNECTION_AGE_MAX`], [`RESEND_WITHIN`].
//! A server's `Keep-Alive` hint only shortens them (hint of RFC 2068, section 19.7.1.1).

use crate::Millis;

/// Longest idle time of a connection without TLS, where the server gives no hint. Below the five
/// seconds after which uvicorn, Node and cpp-httplib close; a new one costs a round trip.
pub const IDLE_MAX_PLAIN: Millis = Millis(4_000);
/// The same for TLS, where a new connection costs a handshake. Below the sixty seconds that are usual
/// for load balancers.
pub const IDLE_MAX_TLS: Millis = Millis(50_000);
/// Longest life of a connection, so that servers behind one address get their share after a restart.
pub const CONNECTION_AGE_MAX: Millis = Millis(600_000);
/// A connection that breaks so soon after the request was written, without a byte, was closed for
/// being idle. After that time the break may be a crash of the server.
pub const RESEND_WITHIN: Millis = Millis(100);

/// The break is seen a round trip after the write; of that at most so much is allowed for.
pub const ROUND_TRIP_MAX: Millis = Millis(250);

/// Earlier than the server's own limit by so much: the request must arrive before it.
const IDLE_MARGIN: Millis = Millis(1_000);
/// A close within this time after a response belongs to that response, not to idleness.
const EARLY_CLOSE: Millis = Millis(1_000);
/// So many of them without a reuse in between, and the server closes after each response.
const EARLY_CLOSES_MAX: u8 = 3;
/// Connections to such a server are not kept for so long.
const NOT_KEPT_FOR: Millis = Millis(30_000);

/// A server's `Keep-Alive` header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepAlive {
    /// `timeout`: idle time after which the server closes.
    pub timeout: Option<Millis>,
    /// `max`: responses on one connection, or those that are left, depending on the server.
    pub max: Option<u32>,
}

impl KeepAlive {
    /// Reads `timeout=5, max=100`. Unknown and malformed members are skipped.
    pub fn parse(value: &[u8]) -> KeepAlive {
        let mut hint = KeepAlive::default();
        let text = std::str::from_utf8(value).unwrap_or_default();
        for member in text.split(',') {
            let Some((name, value)) = member.split_once('=') else {
                continue;
            };
            let (name, value) = (name.trim(), value.trim());
            if name.eq_ignore_ascii_case("timeout") {
                hint.timeout = value.parse().ok().map(Millis::from_secs);
            } else if name.eq_ignore_ascii_case("max") {
                hint.max = value.parse().ok();
            }
        }
        hint
    }
}

/// Use of a connection so far.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionUse {
    opened: Millis,
    /// Answers read whole.
    answers: u32,
    answers_max: u32,
    idle_since: Millis,
    idle_max: Millis,
}

impl ConnectionUse {
    /// Begins with a new connection, which may lie idle for `idle_max` unless the server says less.
    pub fn new(now: Millis, idle_max: Millis) -> ConnectionUse {
        ConnectionUse {
            opened: now,
            answers: 0,
            answers_max: u32::MAX,
            idle_since: now,
            idle_max,
        }
    }

    /// Records a response read to its end, with the server's hint in it.
    pub fn record_answer(&mut self, now: Millis, hint: KeepAlive) {
        self.answers = self.answers.saturating_add(1);
        self.idle_since = now;
        if let Some(timeout) = hint.timeout {
            let margin = IDLE_MARGIN.min(Millis(timeout.0 / 2));
            self.idle_max = self.idle_max.min(timeout - margin);
        }
        if let Some(max) = hint.max {
            // Servers that count down are left a little early.
            self.answers_max = self.answers_max.min(max);
        }
    }

    /// Returns whether the connection may carry another request at `now`.
    pub fn may_serve(&self, now: Millis) -> bool {
        self.answers < self.answers_max
            && now.since(self.idle_since) < self.idle_max
            && now.since(self.opened) < CONNECTION_AGE_MAX
    }

    /// Returns whether the connection has been reused after its first response.
    pub fn was_reused(&self) -> bool {
        self.answers > 1
    }

    /// Time since the last response.
    pub fn idle_for(&self, now: Millis) -> Millis {
        now.since(self.idle_since)
    }
}

/// History of closed connections: decides whether a server keeps its connections open.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloseHistory {
    early: u8,
    not_kept_until: Millis,
}

impl CloseHistory {
    /// Records that a kept connection was found closed after being idle for `idle`.
    pub fn record_close(&mut self, now: Millis, idle: Millis) {
        if idle >= EARLY_CLOSE {
            return;
        }
        self.early = self.early.saturating_add(1);
        if self.early >= EARLY_CLOSES_MAX {
            self.early = EARLY_CLOSES_MAX - 1;
            self.not_kept_until = now + NOT_KEPT_FOR;
        }
    }

    /// Records that a kept connection carried another response.
    pub fn record_reuse(&mut self) {
        self.early = 0;
    }

    /// Returns whether connections to the server are kept at `now`.
    pub fn may_keep(&self, now: Millis) -> bool {
        now >= self.not_kept_until
    }

    /// Returns whether anything is remembered at `now`.
    pub fn is_empty(&self, now: Millis) -> bool {
        self.early == 0 && self.may_keep(now)
    }
}

/// Returns whether a request may be resent after its kept connection broke: the server read nothing
/// of it, as far as can be known. `answered` says that bytes of a response came, interim ones
/// included; `round_trip` is that to a server outside the own network, and zero else.
pub fn may_resend(answered: bool, since_written: Millis, round_trip: Millis) -> bool {
    !answered && since_written < RESEND_WITHIN + round_trip.min(ROUND_TRIP_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Millis {
        Millis(ms)
    }

    #[test]
    fn a_hint_is_read_whatever_its_spelling_and_nonsense_is_skipped() {
        let hint = |timeout: Option<u64>, max| KeepAlive {
            timeout: timeout.map(Millis::from_secs),
            max,
        };
        for (text, expected) in [
            ("timeout=5, max=100", hint(Some(5), Some(100))),
            ("Max = 7 ,TIMEOUT=60", hint(Some(60), Some(7))),
            ("timeout=soon, max=-1, x", hint(None, None)),
            ("", hint(None, None)),
        ] {
            assert_eq!(KeepAlive::parse(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(KeepAlive::parse(b"\xff=1"), KeepAlive::default());
    }

    #[test]
    fn a_connection_is_left_before_the_server_closes_it() {
        let mut used = ConnectionUse::new(at(0), IDLE_MAX_TLS);
        used.record_answer(at(10), KeepAlive::parse(b"timeout=5"));
        assert!(used.may_serve(at(4_009)));
        assert!(!used.may_serve(at(4_010)));
        // A hint of more than our own bound does not lengthen it.
        let mut used = ConnectionUse::new(at(0), IDLE_MAX_PLAIN);
        used.record_answer(at(0), KeepAlive::parse(b"timeout=600"));
        assert!(!used.may_serve(IDLE_MAX_PLAIN));
        let mut used = ConnectionUse::new(at(0), IDLE_MAX_PLAIN);
        used.record_answer(at(0), KeepAlive::parse(b"timeout=0"));
        assert!(!used.may_serve(at(0)));
    }

    #[test]
    fn a_connection_carries_no_more_answers_than_the_server_allows_and_grows_no_older_than_its_bound()
     {
        let mut constant = ConnectionUse::new(at(0), IDLE_MAX_PLAIN);
        for _ in 0..3 {
            assert!(constant.may_serve(at(1)));
            constant.record_answer(at(1), KeepAlive::parse(b"max=3"));
        }
        assert!(!constant.may_serve(at(1)));
        let mut old = ConnectionUse::new(at(0), IDLE_MAX_PLAIN);
        old.record_answer(CONNECTION_AGE_MAX - at(1), KeepAlive::default());
        assert!(old.may_serve(CONNECTION_AGE_MAX - at(1)));
        assert!(!old.may_serve(CONNECTION_AGE_MAX));
    }

    #[test]
    fn a_server_that_closes_after_each_answer_is_remembered_for_a_while() {
        let mut history = CloseHistory::default();
        history.record_close(at(0), at(5_000));
        history.record_close(at(1), at(3));
        history.record_close(at(2), at(3));
        history.record_reuse();
        history.record_close(at(3), at(3));
        history.record_close(at(4), at(3));
        assert!(history.may_keep(at(4)));
        history.record_close(at(5), at(3));
        assert!(!history.may_keep(at(5)));
        let later = at(5) + NOT_KEPT_FOR;
        assert!(history.may_keep(later));
        // Tried again with one connection: a single close is enough then.
        history.record_close(later, at(3));
        assert!(!history.may_keep(later));
    }

    #[test]
    fn a_request_is_sent_again_only_without_a_byte_and_at_once() {
        assert!(may_resend(false, at(99), at(0)));
        assert!(!may_resend(false, at(100), at(0)));
        assert!(!may_resend(true, at(0), at(0)));
        // The word of a server far away takes a while.
        assert!(may_resend(false, at(219), at(120)));
        assert!(!may_resend(false, at(220), at(120)));
        assert!(!may_resend(false, at(350), at(10_000)));
    }
}
