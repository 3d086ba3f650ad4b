//! Headers between nodes: that of a forwarded request and those of its rejection, beside what its client
//! sent.
//!
//! Text only: sending and trust are elsewhere. Valid on the peers listener alone, where TLS proves
//! which node speaks; the clients' listener drops what a client sends under these names. Reading is
//! strict, for only our own nodes write it. Known in the source as the hop headers.
//!
//! ```text
//! x-infergate-hops: 3;numbers;texts
//! x-infergate-client-address: 203.0.113.7
//! ```
//!
//! The value begins with the version of the protocol, as that of each version does. Then come the numbers in the
//! order of `Numbers`, in plain decimal, each with a `;` behind it. Then come the texts, each as its length
//! in bytes, `:` and the bytes: nothing in a name or a tariff has to be escaped.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use bytes::BytesMut;
use infergate_core::client_address::ClientAddress;
use infergate_core::model::TARIFF_TEXT_BYTES_MAX;
use infergate_core::routing::Hops;
use infergate_core::routing::budget::AttemptBudget;
use infergate_core::routing::hops::VISITED_MAX;
use infergate_core::{AccountId, Millis, ModelId, Refusal};
use thiserror::Error;

use super::protocol::PROTOCOL_VERSION;
use crate::http1::{Fields, as_text};

/// Name for all versions: a request without it is no forward. On a rejection the value is the text form of
/// [`Hops`].
const HOPS: &str = "x-infergate-hops";
/// Address of the client, for the event; `unix` stands before it over a socket in the file system. Nodes of before know no
/// such line and drop it.
const CLIENT_ADDRESS: &str = "x-infergate-client-address";
const UNIX_PREFIX: &str = "unix ";
const MODEL: &str = "x-infergate-model";
const LOAD_MS: &str = "x-infergate-load-ms";
const ATTEMPTS: &str = "x-infergate-attempts";
/// Name for all versions from 2 on: a node has to recognise a rejection that it cannot read.
const FORWARD_REJECTED: &str = "x-infergate-forward-rejected";
/// The same in version 1 of the protocol.
const FORWARD_REJECTED_V1: &str = "x-infergate-came-back";
const FREE_PERMITS: &str = "x-infergate-free-permits";
const EXPECTED_WAIT_MS: &str = "x-infergate-expected-wait-ms";
/// Beside a rejection for no capacity, which is how a node reads it that does not know this line.
const UNFIT: &str = "x-infergate-forward-unfit";

const NO_CAPACITY: &str = "no-capacity";
const FAILED: &str = "failed";
const MALFORMED: &str = "malformed";

/// Bytes of one name, of whatever kind; the configuration allows no longer ones.
const NAME_BYTES_MAX: usize = 256;

/// Bytes that this adds to a head at most: names at their longest, and a tariff.
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
    /// Address of the client, where it is known.
    pub client: ClientAddress,
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
    /// Lack of something that the request needs, whatever room the node has.
    Unfit(UnfitCause),
    /// Its model servers failed.
    Failed,
}

/// Lack of a node for a request: its configuration or its disk is not as that of the node before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfitCause {
    /// The finetune that the request names.
    NoSuchFinetune,
    /// Files of that finetune.
    FinetuneIncomplete,
}

impl UnfitCause {
    const ALL: [UnfitCause; 2] = [UnfitCause::NoSuchFinetune, UnfitCause::FinetuneIncomplete];

    /// Returns the cause of a refusal that another node may not have to give; none of others.
    pub fn of(refusal: &Refusal) -> Option<UnfitCause> {
        let mut all = UnfitCause::ALL.into_iter();
        all.find(|cause| cause.refusal() == *refusal)
    }

    /// Returns the refusal for the client, where no node serves the request.
    pub fn refusal(self) -> Refusal {
        match self {
            UnfitCause::NoSuchFinetune => Refusal::NoSuchFinetune,
            UnfitCause::FinetuneIncomplete => Refusal::FinetuneIncomplete,
        }
    }
}

/// A head that does not have the form that nodes write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is missing, repeated or not as nodes write it")]
pub struct InvalidHead(pub &'static str);

/// The part of a head that says which version of the protocol it is of.
const PROTOCOL: &str = "protocol";

impl InvalidHead {
    /// Returns whether the head is of another version of the protocol.
    pub fn is_of_other_protocol(self) -> bool {
        self.0 == PROTOCOL
    }
}

impl ForwardedHead {
    /// Appends the header line.
    pub fn write(&self, out: &mut BytesMut) {
        for part in [HOPS, ": "] {
            out.extend_from_slice(part.as_bytes());
        }
        write_number(out, PROTOCOL_VERSION.into(), b';');
        for number in Numbers::of(self).in_order() {
            write_number(out, number, b';');
        }
        let names = [
            &*self.from,
            &self.request_id,
            self.account.as_str(),
            self.model.as_str(),
        ];
        let visited = self.hops.visited.iter().map(|name| &**name);
        let path = self.path.iter().map(|place| &**place);
        let requested_model = self.requested_model.as_ref().map(ModelId::as_str);
        let optional = [
            requested_model,
            self.forced_site.as_deref(),
            self.tariff.as_deref(),
        ];
        let optional = optional.into_iter().flatten();
        for text in names.into_iter().chain(visited).chain(path).chain(optional) {
            write_number(out, text.len() as u64, b':');
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        write_client(self.client, out);
    }

    /// Reads the head of a request.
    ///
    /// # Errors
    /// The part of it that is not as it should be.
    pub fn read(headers: &Fields) -> Result<ForwardedHead, InvalidHead> {
        Ok(ForwardedHead {
            client: read_client(headers)?,
            ..ForwardedHead::parse(text(headers, HOPS)?)?
        })
    }

    /// Reads the value of the header of hops.
    ///
    /// # Errors
    /// The part of it that is not as it should be.
    pub fn parse(value: &str) -> Result<ForwardedHead, InvalidHead> {
        if value.len() > FORWARDED_HEAD_BYTES_MAX {
            return Err(InvalidHead(HOPS));
        }
        let mut parts = ValueParts { rest: value };
        if parts.number(HOPS, b';', u64::MAX)? != u64::from(PROTOCOL_VERSION) {
            return Err(InvalidHead(PROTOCOL));
        }
        let numbers = Numbers::read(&mut parts)?;
        let mut name = |which| parts.text(which, 1, NAME_BYTES_MAX);
        let (from, request_id) = (name("node")?, name("request-id")?);
        let (account, model) = (name("account")?, name("model")?);
        let mut names = |which, count: u64| {
            let name = |_| name(which).map(Arc::<str>::from);
            (0..count).map(name).collect::<Result<Vec<_>, _>>()
        };
        let visited = names("visited", numbers.visited)?;
        let path = names("path", numbers.path)?;
        if path.is_empty() || !path.iter().all(|place| place.contains('/')) {
            return Err(InvalidHead("path"));
        }
        let mut optional = |which, bit, bytes_max| match numbers.optional & bit {
            0 => Ok(None),
            _ => parts.text(which, 0, bytes_max).map(Some),
        };
        let requested = optional("requested-model", REQUESTED_MODEL_BIT, NAME_BYTES_MAX)?;
        let forced_site = optional("forced-site", FORCED_SITE_BIT, NAME_BYTES_MAX)?;
        let tariff = optional("tariff", TARIFF_BIT, TARIFF_TEXT_BYTES_MAX)?;
        if !parts.rest.is_empty() {
            return Err(InvalidHead(HOPS));
        }
        Ok(ForwardedHead {
            from: from.into(),
            generation: numbers.generation,
            hops: numbers.hops(visited)?,
            request_id: request_id.into(),
            client: ClientAddress::default(),
            account: account.into(),
            is_limited: numbers.is_limited > 0,
            model: model.into(),
            requested_model: requested.map(ModelId::from),
            path,
            attempts: narrow(numbers.attempts),
            elapsed_us: numbers.elapsed_us,
            queued_us: numbers.queued_us,
            forced_site: forced_site.map(Arc::from),
            tariff: tariff.map(Arc::from),
        })
    }
}

fn write_client(client: ClientAddress, out: &mut BytesMut) {
    if client == ClientAddress::default() {
        return;
    }
    let prefix = match client.over_unix_socket {
        true => UNIX_PREFIX,
        false => "",
    };
    let address = client.ip.map(|address| address.to_string());
    for part in [
        CLIENT_ADDRESS,
        ": ",
        prefix,
        address.as_deref().unwrap_or("-"),
        "\r\n",
    ] {
        out.extend_from_slice(part.as_bytes());
    }
}

fn read_client(headers: &Fields) -> Result<ClientAddress, InvalidHead> {
    if headers.get(CLIENT_ADDRESS).is_none() {
        return Ok(ClientAddress::default());
    }
    let value = text(headers, CLIENT_ADDRESS)?;
    let (over_unix_socket, address) = match value.strip_prefix(UNIX_PREFIX) {
        Some(address) => (true, address),
        None => (false, value),
    };
    let ip = match address {
        "-" => None,
        address => Some(
            address
                .parse::<IpAddr>()
                .map_err(|_| InvalidHead(CLIENT_ADDRESS))?,
        ),
    };
    Ok(ClientAddress {
        ip,
        over_unix_socket,
    })
}

const REQUESTED_MODEL_BIT: u64 = 1;
const FORCED_SITE_BIT: u64 = 2;
const TARIFF_BIT: u64 = 4;

/// The numbers of a head, in the order in which they are written.
struct Numbers {
    generation: u64,
    deadline_ms: u64,
    errors: u64,
    capacity: u64,
    hops: u64,
    wait_ms: u64,
    in_flight: u64,
    /// 1 where the day of the account has a limit.
    is_limited: u64,
    attempts: u64,
    elapsed_us: u64,
    queued_us: u64,
    /// Number of the names of visited nodes.
    visited: u64,
    /// Number of the places of the path.
    path: u64,
    /// Sum of the bits of the optional texts that follow.
    optional: u64,
}

impl Numbers {
    fn of(head: &ForwardedHead) -> Numbers {
        let hops = &head.hops;
        let bit = |is_there: bool, bit: u64| u64::from(is_there) * bit;
        Numbers {
            generation: head.generation,
            deadline_ms: hops.deadline_left.0,
            errors: hops.budget.errors_left.into(),
            capacity: hops.budget.capacity_left.into(),
            hops: hops.hops_left.into(),
            wait_ms: hops.wait_max.0,
            in_flight: hops.in_flight.into(),
            is_limited: head.is_limited.into(),
            attempts: head.attempts.into(),
            elapsed_us: head.elapsed_us,
            queued_us: head.queued_us,
            visited: hops.visited.len() as u64,
            path: head.path.len() as u64,
            optional: bit(head.requested_model.is_some(), REQUESTED_MODEL_BIT)
                + bit(head.forced_site.is_some(), FORCED_SITE_BIT)
                + bit(head.tariff.is_some(), TARIFF_BIT),
        }
    }

    fn in_order(&self) -> [u64; 14] {
        [
            self.generation,
            self.deadline_ms,
            self.errors,
            self.capacity,
            self.hops,
            self.wait_ms,
            self.in_flight,
            self.is_limited,
            self.attempts,
            self.elapsed_us,
            self.queued_us,
            self.visited,
            self.path,
            self.optional,
        ]
    }

    fn read(parts: &mut ValueParts<'_>) -> Result<Numbers, InvalidHead> {
        let mut number = |which, max| parts.number(which, b';', max);
        let (u32_max, list_max) = (u32::MAX.into(), VISITED_MAX as u64);
        Ok(Numbers {
            generation: number("generation", u64::MAX)?,
            // The bounds of the hops are checked with their names.
            deadline_ms: number("deadline", u64::MAX)?,
            errors: number("errors", u32_max)?,
            capacity: number("capacity", u32_max)?,
            hops: number("hops", u32_max)?,
            wait_ms: number("wait", u64::MAX)?,
            in_flight: number("in-flight", u32_max)?,
            is_limited: number("quota-limited", 1)?,
            attempts: number(ATTEMPTS, ATTEMPTS_MAX.into())?,
            elapsed_us: number("elapsed", LIFE_US_MAX)?,
            queued_us: number("queued", LIFE_US_MAX)?,
            visited: number("visited", list_max)?,
            path: number("path", list_max)?,
            optional: number(
                "optional",
                REQUESTED_MODEL_BIT | FORCED_SITE_BIT | TARIFF_BIT,
            )?,
        })
    }

    fn hops(&self, visited: Vec<Arc<str>>) -> Result<Hops, InvalidHead> {
        let hops = Hops {
            visited,
            deadline_left: Millis(self.deadline_ms),
            budget: AttemptBudget {
                errors_left: narrow(self.errors),
                capacity_left: narrow(self.capacity),
            },
            hops_left: narrow(self.hops),
            wait_max: Millis(self.wait_ms),
            in_flight: narrow(self.in_flight),
        };
        match hops.is_valid() {
            true => Ok(hops),
            false => Err(InvalidHead("hops")),
        }
    }
}

/// A number that was read with a bound of 32 bits.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The unread part of a value.
struct ValueParts<'a> {
    rest: &'a str,
}

impl<'a> ValueParts<'a> {
    /// Plain decimal up to `max`, without a zero in front, and the `end` behind it.
    fn number(&mut self, which: &'static str, end: u8, max: u64) -> Result<u64, InvalidHead> {
        let bytes = self.rest.as_bytes();
        let digits = bytes
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let is_plain = digits == 1 || (digits > 1 && bytes[0] != b'0');
        if !is_plain || bytes.get(digits) != Some(&end) {
            return Err(InvalidHead(which));
        }
        let number = self.rest[..digits].parse().ok();
        self.rest = &self.rest[digits + 1..];
        number
            .filter(|number| *number <= max)
            .ok_or(InvalidHead(which))
    }

    /// A text of `bytes_min` to `bytes_max` bytes.
    fn text(
        &mut self,
        which: &'static str,
        bytes_min: usize,
        bytes_max: usize,
    ) -> Result<&'a str, InvalidHead> {
        let length = self.number(which, b':', bytes_max as u64)?;
        let length = usize::try_from(length).map_err(|_| InvalidHead(which))?;
        let split = self.rest.split_at_checked(length);
        let (text, rest) = split.ok_or(InvalidHead(which))?;
        self.rest = rest;
        match text.len() >= bytes_min {
            true => Ok(text),
            false => Err(InvalidHead(which)),
        }
    }
}

/// Digits of the largest number.
const DIGITS_MAX: usize = 20;

/// Appends a number in decimal, and `end`: a dozen of them stand in each forward.
fn write_number(out: &mut BytesMut, number: u64, end: u8) {
    let mut digits = [0; DIGITS_MAX];
    let (mut at, mut left) = (DIGITS_MAX, number);
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(&[end]);
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
            RejectionCause::Unfit(cause) => lines.extend([
                (FORWARD_REJECTED, NO_CAPACITY.to_owned()),
                (FREE_PERMITS, 0.to_string()),
                (EXPECTED_WAIT_MS, 0.to_string()),
                (UNFIT, cause.refusal().cause().to_owned()),
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
        let unfit = optional(headers, UNFIT)?.and_then(|name| {
            let mut all = UnfitCause::ALL.into_iter();
            all.find(|cause| cause.refusal().cause() == name)
        });
        let cause = match (cause, unfit) {
            (NO_CAPACITY, Some(cause)) => RejectionCause::Unfit(cause),
            (NO_CAPACITY, None) => RejectionCause::NoCapacity {
                free: number(headers, FREE_PERMITS)?,
                wait_ms: number(headers, EXPECTED_WAIT_MS)?,
            },
            (FAILED, _) => RejectionCause::Failed,
            _ => return Err(InvalidHead(FORWARD_REJECTED)),
        };
        Ok(Some(ForwardRejection {
            cause,
            hops: hops(headers)?,
            attempts: at_most(ATTEMPTS_MAX, headers, ATTEMPTS)?,
        }))
    }
}

/// Returns whether a header is between nodes only; clients get to see which model stood in, and how long it loaded.
pub fn is_between_nodes(name: &str) -> bool {
    name.starts_with("x-infergate-") && name != MODEL && name != LOAD_MS
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
mod tests;
