//! Meaning of an upstream response status for the client, the endpoint's record and a retry.
//!
//! Reads no body. The path of the operator (a `dumb-pipe`, a task's own path) may belong to any
//! application, whose 404 or 303 is a valid response. On the gateway's own paths such a status
//! means a misconfigured endpoint.

use super::breaker::EndpointSignal;
use super::capacity_retry::FAILED_DEPENDENCY;
use crate::Millis;

/// Owner of the request path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOwner {
    /// The gateway's, by the endpoint's protocol.
    Gateway,
    /// The operator's: a `dumb-pipe`, plain HTTP, or a task plugin's path.
    Operator,
}

/// Meaning of a response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseVerdict {
    /// A response for the client.
    Accepted,
    /// The request was wrong; the words are for the client.
    RequestInvalid,
    /// The server failed and says so; the status is for the client.
    ServerFailed,
    /// Out of capacity; another server may have capacity.
    Busy,
    /// Unavailable; the server has not begun to work.
    Unavailable,
    /// The configured path or key was rejected; another server may accept it.
    Rejected,
    /// No response that a client can use, of a server that may have begun to work.
    Unusable,
}

impl ResponseVerdict {
    /// Judges a status. `is_useless` says that a 2xx carries a web page, or nothing.
    pub fn of_head(status: u16, is_useless: bool, path: PathOwner) -> ResponseVerdict {
        let is_ours = path == PathOwner::Gateway;
        match status {
            204 | 205 | 304 if is_ours => ResponseVerdict::Unusable,
            200..300 if is_useless && is_ours => ResponseVerdict::Unusable,
            200..300 | 304 => ResponseVerdict::Accepted,
            401 | 402 | 403 | 407 => ResponseVerdict::Rejected,
            300..400 | 404 | 405 if is_ours => ResponseVerdict::Rejected,
            300..400 => ResponseVerdict::Accepted,
            429 => ResponseVerdict::Busy,
            400..500 => ResponseVerdict::RequestInvalid,
            502 | 503 => ResponseVerdict::Unavailable,
            500..600 => ResponseVerdict::ServerFailed,
            // Interim responses that end one, and statuses that do not exist.
            _ => ResponseVerdict::Unusable,
        }
    }

    /// Judges the status of a prediction of Cog, whose path is the gateway's. 409 is a server without a free slot.
    /// 202 is a run under the same id that goes on there: it is canceled, and its slot is as good as taken.
    pub fn of_prediction(status: u16, is_useless: bool) -> ResponseVerdict {
        match status {
            202 | 409 => ResponseVerdict::Busy,
            _ => ResponseVerdict::of_head(status, is_useless, PathOwner::Gateway),
        }
    }

    /// Takes 424 for want of capacity, where it `means_capacity` by the word of the model's operator. A client has
    /// to read it otherwise.
    pub fn with_failed_dependency(self, status: u16, means_capacity: bool) -> ResponseVerdict {
        match (self, status) {
            (ResponseVerdict::RequestInvalid, FAILED_DEPENDENCY) if means_capacity => {
                ResponseVerdict::Busy
            }
            (verdict, _) => verdict,
        }
    }

    /// Returns the signal about the server; a success is known only at the end of the response.
    pub fn signal(self) -> EndpointSignal {
        match self {
            ResponseVerdict::Accepted | ResponseVerdict::RequestInvalid => EndpointSignal::Neutral,
            ResponseVerdict::Busy => EndpointSignal::Busy,
            ResponseVerdict::Rejected => EndpointSignal::Unusable,
            ResponseVerdict::ServerFailed
            | ResponseVerdict::Unavailable
            | ResponseVerdict::Unusable => EndpointSignal::Failure,
        }
    }
}

/// Pauses after which a prediction is sent again to a server of Cog that had no free slot: 5 ms, then twice the one
/// before; 1.3 s in all.
const FULL_PAUSES_MAX: u32 = 8;

/// Pauses that are made although another server can be asked.
const FULL_PAUSES_BEFORE_OTHERS: u32 = 2;

/// Returns the pause before a prediction is sent again to a server that answered 409, after `pauses` of them; none where
/// it is not. Cog 0.23 answers a request some milliseconds before it frees the slot of it.
pub fn full_server_pause(pauses: u32, has_others: bool) -> Option<Millis> {
    let most = match has_others {
        true => FULL_PAUSES_BEFORE_OTHERS,
        false => FULL_PAUSES_MAX,
    };
    (pauses < most).then(|| Millis(5 << pauses))
}

/// The pause a server asks for in `retry-after-ms` or `Retry-After`: seconds, or a date, which counts from
/// the server's own `date`, or from `now_unix_secs` where it has given none.
pub fn retry_after<'a>(
    header: impl Fn(&'static str) -> Option<&'a str>,
    now_unix_secs: impl FnOnce() -> i64,
) -> Option<Millis> {
    let (retry_after_ms, retry_after) = (header("retry-after-ms"), header("retry-after"));
    let parse = |text: &str| text.trim().parse::<f64>().ok();
    let date = || header("date").and_then(unix_secs);
    let until = |at: i64| (at - date().unwrap_or_else(now_unix_secs)) as f64;
    let secs = |text: &str| parse(text).or_else(|| unix_secs(text).map(until));
    let millis = retry_after_ms.and_then(parse);
    let millis = millis.or_else(|| Some(retry_after.and_then(secs)? * 1000.0));
    millis.filter(|ms| *ms > 0.0).map(|ms| Millis(ms as u64))
}

/// Seconds from 1970 to an HTTP date in the form that servers have to write (RFC 9110 section 5.6.7).
fn unix_secs(date: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (_, rest) = date.trim().strip_suffix(" GMT")?.split_once(", ")?;
    let mut parts = rest.split([' ', ':']);
    let mut number = |max: i64, name: fn(&str) -> Option<i64>| {
        let part = parts.next()?;
        let number = name(part)?;
        (0..=max).contains(&number).then_some(number)
    };
    let digits = |part: &str| part.parse().ok();
    let day = number(31, digits)?;
    let month = number(12, |part| {
        Some(MONTHS.iter().position(|month| *month == part)? as i64 + 1)
    })?;
    let year = number(9999, digits)?;
    let (hour, minute, second) = (
        number(23, digits)?,
        number(59, digits)?,
        number(60, digits)?,
    );
    if parts.next().is_some() {
        return None;
    }
    // <https://howardhinnant.github.io/date_algorithms.html#days_from_civil>: a year begins in March.
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operator_got_wrong_is_not_the_callers_fault() {
        for status in [301, 302, 303, 307, 308, 401, 402, 403, 404, 405, 407] {
            let verdict = ResponseVerdict::of_head(status, false, PathOwner::Gateway);
            assert_eq!(verdict, ResponseVerdict::Rejected, "{status}");
        }
        for status in [400, 406, 408, 409, 410, 411, 413, 415, 422, 424, 451, 499] {
            let verdict = ResponseVerdict::of_head(status, false, PathOwner::Gateway);
            assert_eq!(verdict, ResponseVerdict::RequestInvalid, "{status}");
        }
    }

    #[test]
    fn on_a_path_of_the_operators_only_5xx_and_refused_keys_count() {
        for status in 200..600 {
            let seen = ResponseVerdict::of_head(status, true, PathOwner::Operator).signal();
            let counts = matches!(seen, EndpointSignal::Failure | EndpointSignal::Unusable);
            let expected = status >= 500 || matches!(status, 401 | 402 | 403 | 407);
            assert_eq!(counts, expected, "{status}");
        }
    }

    #[test]
    fn an_answer_that_no_client_can_use_is_a_failure_that_may_have_begun() {
        for (status, is_useless) in [(200, true), (204, false), (205, false), (304, false)] {
            let verdict = ResponseVerdict::of_head(status, is_useless, PathOwner::Gateway);
            assert_eq!(verdict, ResponseVerdict::Unusable, "{status}");
        }
        for status in [0, 101, 199, 600, 700, 999] {
            for path in [PathOwner::Gateway, PathOwner::Operator] {
                let verdict = ResponseVerdict::of_head(status, false, path);
                assert_eq!(verdict, ResponseVerdict::Unusable, "{status}");
            }
        }
    }

    #[test]
    fn a_server_of_cog_without_a_free_slot_is_busy_and_not_the_callers_fault() {
        for (status, expected) in [
            (200, ResponseVerdict::Accepted),
            (202, ResponseVerdict::Busy),
            (409, ResponseVerdict::Busy),
            (404, ResponseVerdict::Rejected),
            (422, ResponseVerdict::RequestInvalid),
            (500, ResponseVerdict::ServerFailed),
            (503, ResponseVerdict::Unavailable),
        ] {
            let verdict = ResponseVerdict::of_prediction(status, false);
            assert_eq!(verdict, expected, "{status}");
        }
    }

    #[test]
    fn a_failed_dependency_is_want_of_capacity_where_the_operator_says_so_and_nothing_else_is() {
        for status in 200..600 {
            let verdict = ResponseVerdict::of_head(status, false, PathOwner::Gateway);
            assert_eq!(verdict.with_failed_dependency(status, false), verdict);
            let expected = match status {
                424 => ResponseVerdict::Busy,
                _ => verdict,
            };
            assert_eq!(
                verdict.with_failed_dependency(status, true),
                expected,
                "{status}"
            );
        }
    }

    #[test]
    fn a_full_server_is_asked_again_for_a_second_or_so_and_less_where_there_are_others() {
        let pauses = |has_others| {
            let all = (0..20).map_while(|pauses| full_server_pause(pauses, has_others));
            all.map(|pause| pause.0).collect::<Vec<_>>()
        };
        assert_eq!(pauses(false), [5, 10, 20, 40, 80, 160, 320, 640]);
        assert_eq!(pauses(true), [5, 10]);
    }

    #[test]
    fn a_pause_is_read_in_seconds_or_milliseconds() {
        let pause = |ms, after| paused(ms, after, None, NOW);
        assert_eq!(pause(None, Some("17")), Some(Millis(17_000)));
        assert_eq!(pause(Some("250"), Some("17")), Some(Millis(250)));
        assert_eq!(pause(None, Some(" 1.5 ")), Some(Millis(1500)));
        for none in ["", "0", "-1", "NaN", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            assert_eq!(pause(None, Some(none)), None, "{none}");
        }
        assert_eq!(pause(None, None), None);
        assert!(pause(None, Some("1e300")).is_some());
    }

    fn paused(
        ms: Option<&str>,
        after: Option<&str>,
        date: Option<&str>,
        now: i64,
    ) -> Option<Millis> {
        let header = |name| match name {
            "retry-after-ms" => ms,
            "retry-after" => after,
            _ => date,
        };
        retry_after(header, || now)
    }

    /// Sun, 06 Nov 1994 08:49:37 GMT, and a moment of today.
    const THEN: i64 = 784_111_777;
    const NOW: i64 = 1_795_000_000;

    #[test]
    fn a_pause_until_a_date_is_counted_by_the_servers_own_clock() {
        let until = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(paused(None, until, None, THEN - 30), Some(Millis(30_000)));
        let date = Some("Sun, 06 Nov 1994 08:49:20 GMT");
        assert_eq!(paused(None, until, date, NOW), Some(Millis(17_000)));
        assert_eq!(paused(None, until, None, NOW), None, "gone by");
        assert_eq!(paused(None, until, Some("?"), THEN - 1), Some(Millis(1000)));
        for (date, secs) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Tue, 29 Feb 2000 23:59:59 GMT", Some(951_868_799)),
            ("Wed, 01 Mar 2000 00:00:00 GMT", Some(951_868_800)),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 06 Foo 1994 08:49:37 GMT", None),
            ("Sun, 32 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov -1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37:00 GMT", None),
        ] {
            assert_eq!(unix_secs(date), secs, "{date}");
        }
    }
}
