//! What the status of a server's answer means: for the client, for the server's record, and for
//! another try.
//!
//! It reads no body. A path that the operator wrote (a `dumb-pipe`, a task's own path) may be any
//! application's, whose 404 or 303 is its answer; on the gateway's own paths such a status says that
//! the endpoint is configured wrong.

use super::breaker::Seen;
use crate::Millis;

/// Whose choice the path of the request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOwner {
    /// The gateway's, by the endpoint's protocol.
    Gateway,
    /// The operator's: a `dumb-pipe`, plain HTTP, or a task plugin's path.
    Operator,
}

/// What an answer's head means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An answer for the client.
    Answer,
    /// The request was wrong; the words are for the client.
    CallersFault,
    /// The server failed and says so; the status is for the client.
    ServerFailed,
    /// It has no room; another server may have.
    Busy,
    /// It does not serve at present, and has not begun to work.
    Unavailable,
    /// It does not take the path or the key that the operator configured: another server may.
    Rejected,
    /// No answer that a client can use, of a server that may have begun to work.
    Unusable,
}

impl Verdict {
    /// Judges a status. `is_useless` says that a 2xx carries a web page, or nothing.
    pub fn of_head(status: u16, is_useless: bool, path: PathOwner) -> Verdict {
        let is_ours = path == PathOwner::Gateway;
        match status {
            204 | 205 | 304 if is_ours => Verdict::Unusable,
            200..300 if is_useless && is_ours => Verdict::Unusable,
            200..300 | 304 => Verdict::Answer,
            401 | 402 | 403 | 407 => Verdict::Rejected,
            300..400 | 404 | 405 if is_ours => Verdict::Rejected,
            300..400 => Verdict::Answer,
            429 => Verdict::Busy,
            400..500 => Verdict::CallersFault,
            502 | 503 => Verdict::Unavailable,
            500..600 => Verdict::ServerFailed,
            // Interim answers that end one, and statuses that do not exist.
            _ => Verdict::Unusable,
        }
    }

    /// What it says about the server; a success is known only at the end of the answer.
    pub fn seen(self) -> Seen {
        match self {
            Verdict::Answer | Verdict::CallersFault => Seen::Nothing,
            Verdict::Busy => Seen::Busy,
            Verdict::Rejected => Seen::Unusable,
            Verdict::ServerFailed | Verdict::Unavailable | Verdict::Unusable => Seen::Failure,
        }
    }
}

/// The pause a server asks for in `retry-after-ms` or `Retry-After` (seconds; a date is not read).
pub fn pause(retry_after_ms: Option<&str>, retry_after: Option<&str>) -> Option<Millis> {
    let parse = |text: &str| text.trim().parse::<f64>().ok();
    let millis = retry_after_ms.and_then(parse);
    let millis = millis.or_else(|| Some(retry_after.and_then(parse)? * 1000.0));
    millis.filter(|ms| *ms > 0.0).map(|ms| Millis(ms as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operator_got_wrong_is_not_the_callers_fault() {
        for status in [301, 302, 303, 307, 308, 401, 402, 403, 404, 405, 407] {
            let verdict = Verdict::of_head(status, false, PathOwner::Gateway);
            assert_eq!(verdict, Verdict::Rejected, "{status}");
        }
        for status in [400, 406, 408, 409, 410, 411, 413, 415, 422, 424, 451, 499] {
            let verdict = Verdict::of_head(status, false, PathOwner::Gateway);
            assert_eq!(verdict, Verdict::CallersFault, "{status}");
        }
    }

    #[test]
    fn on_a_path_of_the_operators_only_5xx_and_refused_keys_count() {
        for status in 200..600 {
            let seen = Verdict::of_head(status, true, PathOwner::Operator).seen();
            let counts = matches!(seen, Seen::Failure | Seen::Unusable);
            let expected = status >= 500 || matches!(status, 401 | 402 | 403 | 407);
            assert_eq!(counts, expected, "{status}");
        }
    }

    #[test]
    fn an_answer_that_no_client_can_use_is_a_failure_that_may_have_begun() {
        for (status, is_useless) in [(200, true), (204, false), (205, false), (304, false)] {
            let verdict = Verdict::of_head(status, is_useless, PathOwner::Gateway);
            assert_eq!(verdict, Verdict::Unusable, "{status}");
        }
        for status in [0, 101, 199, 600, 700, 999] {
            for path in [PathOwner::Gateway, PathOwner::Operator] {
                let verdict = Verdict::of_head(status, false, path);
                assert_eq!(verdict, Verdict::Unusable, "{status}");
            }
        }
    }

    #[test]
    fn a_pause_is_read_in_seconds_or_milliseconds() {
        assert_eq!(pause(None, Some("17")), Some(Millis(17_000)));
        assert_eq!(pause(Some("250"), Some("17")), Some(Millis(250)));
        assert_eq!(pause(None, Some(" 1.5 ")), Some(Millis(1500)));
        for none in ["", "0", "-1", "NaN", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            assert_eq!(pause(None, Some(none)), None, "{none}");
        }
        assert_eq!(pause(None, None), None);
        assert!(pause(None, Some("1e300")).is_some());
    }
}
