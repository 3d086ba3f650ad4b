//! Headers between nodes: those of a forwarded request and of its rejection, beside what its client
//! sent.
//!
//! Text only: sending and trust are elsewhere. Valid on the peers listener alone, where TLS proves
//! which node speaks; the clients' listener drops what a client sends under these names. Reading is
//! strict, for only our own nodes write it. Known in the source as the hop headers.

use std::fmt::Write;
use std::str::FromStr;
use std::sync::Arc;

use bytes::BytesMut;
use infergate_core::model::TARIFF_TEXT_BYTES_MAX;
use infergate_core::routing::Hops;
use infergate_core::routing::hops::VISITED_MAX;
use infergate_core::{AccountId, ModelId};
use thiserror::Error;

use super::client::{GENERATION_HEADER, NODE_HEADER};
use super::protocol::{PROTOCOL_HEADER, PROTOCOL_VERSION};
use crate::http1::{Fields, as_text};

const HOPS: &str = "x-infergate-hops";
const ACCOUNT: &str = "x-infergate-account";
const MODEL: &str = "x-infergate-model";
const REQUESTED_MODEL: &str = "x-infergate-requested-model";
const NODE_PATH: &str = "x-infergate-node-path";
const ATTEMPTS: &str = "x-infergate-attempts";
const ELAPSED: &str = "x-infergate-elapsed-us";
const QUEUED: &str = "x-infergate-queued-us";
const QUOTA_LIMITED: &str = "x-infergate-quota-limited";
const FORCED_SITE: &str = "x-infergate-forced-site";
const TARIFF: &str = "x-infergate-tariff";
const REQUEST_ID: &str = "x-request-id";
/// Name for all versions from 2 on: a node has to recognise a rejection that it cannot read.
const FORWARD_REJECTED: &str = "x-infergate-forward-rejected";
/// The same in version 1 of the protocol.
const FORWARD_REJECTED_V1: &str = "x-infergate-came-back";
const FREE_PERMITS: &str = "x-infergate-free-permits";
const EXPECTED_WAIT_MS: &str = "x-infergate-expected-wait-ms";

const NO_CAPACITY: &str = "no-capacity";
const FAILED: &str = "failed";
const MALFORMED: &str = "malformed";

/// Bytes of one name, of whatever kind; the configuration allows no longer ones.
const NAME_BYTES_MAX: usize = 256;

/// Bytes that these headers add to a head at most: names at their longest, and a tariff.
pub const FORWARDED_HEAD_BYTES_MAX: usize = 8 * 1024 + TARIFF_TEXT_BYTES_MAX;

/// Attempts at model servers for one request: each fallback may take some.
const ATTEMPTS_MAX: u32 = 100;

/// Bound of the age of a request, microseconds: a day. Times of events are reckoned back from it.
const LIFE_US_MAX: u64 = 24 * 3600 * 1_000_000;

/// Head of a request that one node forwards to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedHead {
    /// The node that hands it over, which its certificate has to bear out.
    pub from: Arc<str>,
    /// Generation of its process.
    pub generation: u64,
    /// Visited nodes, and the remaining time and budget.
    pub hops: Hops,
    /// Its name at every node.
    pub request_id: Arc<str>,
    /// Account that pays, as the node that the client connected to found out.
    pub account: AccountId,
    /// The account's day has a limit: what it comes to is counted, whether the account is known or not.
    pub is_limited: bool,
    /// The model it is to be served by, whatever the body names.
    pub model: ModelId,
    /// The model that the client requested, where a fallback takes its place.
    pub requested_model: Option<ModelId>,
    /// `site/node` of each node it has been at, the first being the client's.
    pub path: Vec<Arc<str>>,
    /// Requests sent to model servers so far.
    pub attempts: u32,
    /// Since its client sent it, microseconds: events count from there.
    pub elapsed_us: u64,
    /// Part of it spent waiting for permits.
    pub queued_us: u64,
    /// The only site it may be served at.
    pub forced_site: Option<Arc<str>>,
    /// Tariff of the model at the node that the client asked, as [`infergate_core::model::tariff_text`]
    /// writes it. None where it is too long for a header.
    pub tariff: Option<Arc<str>>,
}

/// Rejection of a forwarded request: no response has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardRejection {
    /// Cause of the rejection.
    pub cause: RejectionCause,
    /// Remaining time and budget of what was lent to it.
    pub hops: Hops,
    /// Requests sent to model servers so far.
    pub attempts: u32,
}

/// Reason for the rejection of a forwarded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionCause {
    /// No permit is free, nor a place in the queue.
    NoCapacity {
        /// Permits free there.
        free: u32,
        /// Expected wait there, milliseconds.
        wait_ms: u32,
    },
    /// Its model servers failed.
    Failed,
}

/// A head that does not have the form that nodes write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is missing, repeated or not as nodes write it")]
pub struct InvalidHead(pub &'static str);

impl InvalidHead {
    /// Returns whether the head is of another version of the protocol.
    pub fn is_of_other_protocol(self) -> bool {
        self.0 == PROTOCOL_HEADER
    }
}

impl ForwardedHead {
    /// Appends the header lines.
    pub fn write(&self, out: &mut BytesMut) {
        line(out, PROTOCOL_HEADER, &PROTOCOL_VERSION);
        line(out, NODE_HEADER, &self.from);
        line(out, GENERATION_HEADER, &self.generation);
        line(out, HOPS, &self.hops);
        line(out, REQUEST_ID, &self.request_id);
        line(out, ACCOUNT, &self.account.as_str());
        line(out, QUOTA_LIMITED, &u8::from(self.is_limited));
        line(out, MODEL, &self.model.as_str());
        if let Some(requested) = &self.requested_model {
            line(out, REQUESTED_MODEL, &requested.as_str());
        }
        line(out, NODE_PATH, &self.path.join(" "));
        line(out, ATTEMPTS, &self.attempts);
        line(out, ELAPSED, &self.elapsed_us);
        line(out, QUEUED, &self.queued_us);
        if let Some(site) = &self.forced_site {
            line(out, FORCED_SITE, site);
        }
        if let Some(tariff) = &self.tariff {
            line(out, TARIFF, tariff);
        }
    }

    /// Reads them.
    ///
    /// # Errors
    /// The header that is not as it should be.
    pub fn read(headers: &Fields) -> Result<ForwardedHead, InvalidHead> {
        // Every version has hops: a request without them is no forward.
        text(headers, HOPS)?;
        if number::<u32>(headers, PROTOCOL_HEADER)? != PROTOCOL_VERSION {
            return Err(InvalidHead(PROTOCOL_HEADER));
        }
        let path: Vec<Arc<str>> = text(headers, NODE_PATH)?
            .split(' ')
            .map(Arc::from)
            .collect();
        let is_place = |place: &Arc<str>| place.contains('/') && place.len() <= NAME_BYTES_MAX;
        if path.len() > VISITED_MAX || !path.iter().all(is_place) {
            return Err(InvalidHead(NODE_PATH));
        }
        Ok(ForwardedHead {
            from: name(headers, NODE_HEADER)?.into(),
            generation: number(headers, GENERATION_HEADER)?,
            hops: hops(headers)?,
            request_id: name(headers, REQUEST_ID)?.into(),
            account: name(headers, ACCOUNT)?.into(),
            is_limited: number::<u8>(headers, QUOTA_LIMITED)? > 0,
            model: name(headers, MODEL)?.into(),
            requested_model: optional(headers, REQUESTED_MODEL)?.map(ModelId::from),
            path,
            attempts: at_most(ATTEMPTS_MAX, headers, ATTEMPTS)?,
            elapsed_us: at_most(LIFE_US_MAX, headers, ELAPSED)?,
            queued_us: at_most(LIFE_US_MAX, headers, QUEUED)?,
            forced_site: optional(headers, FORCED_SITE)?.map(Arc::from),
            tariff: tariff(headers)?.map(Arc::from),
        })
    }
}

impl ForwardRejection {
    /// The header lines, as names with values.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            (HOPS, self.hops.to_string()),
            (ATTEMPTS, self.attempts.to_string()),
        ];
        match self.cause {
            RejectionCause::NoCapacity { free, wait_ms } => lines.extend([
                (FORWARD_REJECTED, NO_CAPACITY.to_owned()),
                (FREE_PERMITS, free.to_string()),
                (EXPECTED_WAIT_MS, wait_ms.to_string()),
            ]),
            RejectionCause::Failed => lines.push((FORWARD_REJECTED, FAILED.to_owned())),
        }
        lines
    }

    /// The header line of a response to a forward that cannot be read. Its sender takes the forward for lost.
    pub fn malformed_line() -> (&'static str, &'static str) {
        (FORWARD_REJECTED, MALFORMED)
    }

    /// Reads the head of a response; none when it is one for the client.
    ///
    /// # Errors
    /// The header that is not as it should be.
    pub fn read(headers: &Fields) -> Result<Option<ForwardRejection>, InvalidHead> {
        let Some(cause) = optional(headers, FORWARD_REJECTED)? else {
            // A process of version 1 may have taken the address over a moment ago.
            return match headers.contains(FORWARD_REJECTED_V1) {
                true => Err(InvalidHead(FORWARD_REJECTED_V1)),
                false => Ok(None),
            };
        };
        let cause = match cause {
            NO_CAPACITY => RejectionCause::NoCapacity {
                free: number(headers, FREE_PERMITS)?,
                wait_ms: number(headers, EXPECTED_WAIT_MS)?,
            },
            FAILED => RejectionCause::Failed,
            _ => return Err(InvalidHead(FORWARD_REJECTED)),
        };
        Ok(Some(ForwardRejection {
            cause,
            hops: hops(headers)?,
            attempts: at_most(ATTEMPTS_MAX, headers, ATTEMPTS)?,
        }))
    }
}

/// Returns whether a header is between nodes only; clients get to see which model stood in.
pub fn is_between_nodes(name: &str) -> bool {
    name.starts_with("x-infergate-") && name != MODEL
}

fn line(out: &mut BytesMut, name: &str, value: &dyn std::fmt::Display) {
    // Writing to memory does not fail.
    let _ = write!(out, "{name}: {value}\r\n");
}

fn optional<'a>(headers: &'a Fields, name: &'static str) -> Result<Option<&'a str>, InvalidHead> {
    let mut values = headers.get_all(name);
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => as_text(value).map(Some).ok_or(InvalidHead(name)),
        (Some(_), Some(_)) => Err(InvalidHead(name)),
    }
}

fn text<'a>(headers: &'a Fields, name: &'static str) -> Result<&'a str, InvalidHead> {
    optional(headers, name)?.ok_or(InvalidHead(name))
}

fn name<'a>(headers: &'a Fields, header: &'static str) -> Result<&'a str, InvalidHead> {
    let name = text(headers, header)?;
    match (1..=NAME_BYTES_MAX).contains(&name.len()) {
        true => Ok(name),
        false => Err(InvalidHead(header)),
    }
}

fn tariff(headers: &Fields) -> Result<Option<&str>, InvalidHead> {
    match optional(headers, TARIFF)? {
        Some(text) if text.len() > TARIFF_TEXT_BYTES_MAX => Err(InvalidHead(TARIFF)),
        text => Ok(text),
    }
}

fn number<T: FromStr>(headers: &Fields, name: &'static str) -> Result<T, InvalidHead> {
    let digits = text(headers, name)?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| is_plain);
    number.ok_or(InvalidHead(name))
}

fn at_most<T: FromStr + PartialOrd>(
    most: T,
    headers: &Fields,
    name: &'static str,
) -> Result<T, InvalidHead> {
    let number = number(headers, name)?;
    match number <= most {
        true => Ok(number),
        false => Err(InvalidHead(name)),
    }
}

fn hops(headers: &Fields) -> Result<Hops, InvalidHead> {
    Hops::parse(text(headers, HOPS)?).map_err(|_| InvalidHead(HOPS))
}

#[cfg(test)]
mod tests {
    use infergate_core::Millis;

    use super::*;

    fn sample_head() -> ForwardedHead {
        let mut hops = Hops::new(&"a".into(), Millis(9), 10);
        let hops = hops.forward(&"b".into(), Millis(9), Millis(7), 1, true);
        ForwardedHead {
            from: "a".into(),
            generation: 7,
            hops,
            request_id: "r1".into(),
            account: "acme".into(),
            is_limited: true,
            model: "@cf/m".into(),
            requested_model: Some("big".into()),
            path: vec!["fra/a".into(), "ams/b".into()],
            attempts: 2,
            elapsed_us: 5_000_000_000,
            queued_us: 17,
            forced_site: Some("ams".into()),
            tariff: Some(r#"{"cost_per_infer":1.5,"coefficients":{}}"#.into()),
        }
    }

    fn headers(lines: &str) -> Fields {
        let lines = lines.split_terminator("\r\n");
        let lines: Vec<_> = lines.map(|line| line.split_once(": ").unwrap()).collect();
        Fields::from_lines(&lines)
    }

    fn written(head: &ForwardedHead) -> String {
        let mut out = BytesMut::new();
        head.write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn what_one_node_writes_the_other_reads() {
        for requested_model in [None, Some("big".into())] {
            let head = ForwardedHead {
                requested_model,
                ..sample_head()
            };
            assert_eq!(ForwardedHead::read(&headers(&written(&head))), Ok(head));
        }
        let hops = sample_head().hops;
        let no_room = RejectionCause::NoCapacity {
            free: 3,
            wait_ms: 40,
        };
        for cause in [no_room, RejectionCause::Failed] {
            let rejection = ForwardRejection {
                cause,
                hops: hops.clone(),
                attempts: 1,
            };
            let lines = rejection.lines().into_iter();
            let lines: String = lines.map(|(n, v)| format!("{n}: {v}\r\n")).collect();
            assert_eq!(
                ForwardRejection::read(&headers(&lines)),
                Ok(Some(rejection))
            );
        }
        assert_eq!(ForwardRejection::read(&Fields::default()), Ok(None));
    }

    #[test]
    fn a_line_that_is_missing_repeated_or_spoilt_is_refused_by_its_name() {
        let whole = written(&sample_head());
        let lines: Vec<&str> = whole.split_inclusive("\r\n").collect();
        for (at, line) in lines.iter().enumerate() {
            let (name, _) = line.split_once(':').unwrap();
            let mut without = lines.clone();
            without.remove(at);
            let read = ForwardedHead::read(&headers(&without.concat()));
            let may_be_missing = [REQUESTED_MODEL, FORCED_SITE, TARIFF].contains(&name);
            assert_eq!(read.is_ok(), may_be_missing, "{name} missing");
            let twice = ForwardedHead::read(&headers(&format!("{whole}{line}")));
            assert_eq!(twice.unwrap_err().0, name, "{name} twice");
        }
        for (from, to) in [
            ("attempts: 2", "attempts: +2"),
            ("attempts: 2", "attempts: 99999999999"),
            ("attempts: 2", "attempts: 101"),
            ("elapsed-us: 5000000000", "elapsed-us: 86400000001"),
            ("queued-us: 17", "queued-us: 86400000001"),
            ("hops: 1;", "hops: 2;"),
            ("node-path: fra/a ams/b", "node-path: fra"),
            ("account: acme", "account: "),
            ("protocol: 2", "protocol: 1"),
        ] {
            let spoilt = whole.replace(from, to);
            assert_ne!(spoilt, whole);
            assert!(ForwardedHead::read(&headers(&spoilt)).is_err(), "{to}");
        }
    }

    #[test]
    fn a_rejection_by_a_node_of_version_1_is_no_response_for_the_client() {
        let read = ForwardRejection::read(&headers("x-infergate-came-back: not-read\r\n"));
        assert!(read.is_err());
        let answer = ForwardRejection::read(&headers("content-type: text/plain\r\n"));
        assert!(answer.unwrap().is_none());
    }
}
