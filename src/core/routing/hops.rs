//! Forwarding state of a request between nodes: visited nodes, remaining time and remaining budget.
//!
//! Values and their text form only. Proves nothing: the shell trusts the text only on the peers
//! listener, which authenticates by TLS, and strips it from clients. Account and request id travel
//! in headers of their own. Known in the source system as the in-flight header.
//!
//! ```text
//! 1; visited=a1,b2; deadline_ms=29500; errors=2; capacity=4; hops=1; wait_ms=0; in_flight=3
//! ```
//!
//! Reading is strict: these fields, each once, in this order, numbers in plain decimal and within
//! their bounds. Anything else is an error, for only our own nodes write it.

use std::fmt::{self, Write};
use std::sync::Arc;

use thiserror::Error;

use super::budget::{AttemptBudget, CAPACITY_ATTEMPTS_SMALL, ERRORS_MAX};
use crate::Millis;

/// Forwards of a request one behind the other: one where everybody sees everybody, two when a node
/// has to go through a third one. Each costs a round trip for every chunk of a stream.
pub const HOPS_MAX: u32 = 2;

/// Remaining out-of-capacity responses at which a request that cannot queue here stops insisting on
/// a free permit. Two reported permits were already taken, so a place in a queue is worth more than
/// another stale report.
pub const QUEUE_ALLOWED_AT: u32 = 3;

/// Nodes that may see a request: the first, and one for each error and out-of-capacity answer.
pub const VISITED_MAX: usize = 1 + (ERRORS_MAX + CAPACITY_ATTEMPTS_SMALL) as usize;

/// Bytes of a node's name: a DNS label with one to spare.
pub const NAME_BYTES_MAX: usize = 64;

/// No longer text is read: every name at its longest, and the numbers.
pub const TEXT_BYTES_MAX: usize = VISITED_MAX * (NAME_BYTES_MAX + 1) + 160;

/// A deadline further away is none of ours: the ceiling of a request is minutes.
pub const DEADLINE_LEFT_MAX: Millis = Millis::from_secs(24 * 60 * 60);

/// Version of the text form, and its first character.
const VERSION: &str = "1";

/// Forwarding state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hops {
    /// Names of the nodes that have seen it, in order; the last one has it now.
    pub visited: Vec<Arc<str>>,
    /// Time until the whole response must be out. A span, so that clocks need not agree.
    pub deadline_left: Millis,
    /// Its budget, or the part of it that was lent with this forward.
    pub budget: AttemptBudget,
    /// Forwards that may still follow one behind the other.
    pub hops_left: u32,
    /// The longest the receiver may let it wait in its line; zero asks for a permit or a refusal.
    pub wait_max: Millis,
    /// Requests of this model that the sender has at the receiver, this one included: for people
    /// looks at the traffic.
    pub in_flight: u32,
}

/// Reason why a text is invalid, or why a request may not enter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HopsError {
    /// Longer than [`TEXT_BYTES_MAX`].
    #[error("the text is longer than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// Not the version we speak.
    #[error("the text is not of version {VERSION}")]
    Version,
    /// A field is missing, repeated, out of order or unknown.
    #[error("expected the field `{0}`")]
    Field(&'static str),
    /// A number is not plain decimal, or beyond its bound.
    #[error("`{0}` is not a number within its bounds")]
    Number(&'static str),
    /// The list of visited nodes is empty, too long, repeats a node or has an invalid name.
    #[error("`visited` is not a list of 1 to {VISITED_MAX} different names")]
    Visited,
    /// The request has already been at this node.
    #[error("the request has been here before")]
    Loop,
    /// The returned state does not follow from the sent one.
    #[error("the answer does not belong to this forward")]
    NotOurs,
}

/// Returns whether `name` is a valid node name: letters, digits, `.`, `_` and `-`, 1 to
/// [`NAME_BYTES_MAX`] of them.
pub fn is_node_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

/// Returns the longest wait at another node, for a request with this budget that can wait nowhere here:
/// zero at first, then `left`.
pub fn forward_wait_max(budget: AttemptBudget, left: Millis) -> Millis {
    match budget.capacity_left <= QUEUE_ALLOWED_AT {
        true => left,
        false => Millis::ZERO,
    }
}

impl Hops {
    /// Returns the state of a request that a client sent to `here`.
    pub fn new(here: &Arc<str>, deadline_left: Millis, body_bytes: u64) -> Hops {
        Hops {
            visited: vec![here.clone()],
            deadline_left,
            budget: AttemptBudget::for_body(body_bytes),
            hops_left: HOPS_MAX,
            wait_max: Millis::MAX,
            in_flight: 0,
        }
    }

    /// Returns whether the request may be sent to a further node.
    pub fn may_forward(&self) -> bool {
        self.budget.errors_left > 0
            && self.budget.capacity_left > 0
            && self.hops_left > 0
            && self.visited.len() < VISITED_MAX
    }

    /// Longest wait of the next forward at its target, for a request that can wait nowhere here:
    /// zero at first, then `left`.
    pub fn may_wait(&self, left: Millis) -> Millis {
        forward_wait_max(self.budget, left)
    }

    /// Nodes that a queued request is not sent to. The first `way` of them, which forwarded it to
    /// here, always count, to avoid a loop. The others may have room by now and count only while
    /// few have refused.
    pub fn excluded_for_waiter(&self, way: usize) -> &[Arc<str>] {
        match self.budget.capacity_left > QUEUE_ALLOWED_AT {
            true => &self.visited[..way.min(self.visited.len())],
            false => &self.visited,
        }
    }

    /// Returns the state to send along to `to`, which counts as visited from now on. `onward`: `to`
    /// may forward the request again, as far as hops are left.
    pub fn forward(
        &mut self,
        to: &Arc<str>,
        deadline_left: Millis,
        wait_max: Millis,
        in_flight: u32,
        onward: bool,
    ) -> Hops {
        let sent = Hops {
            visited: self.visited.clone(),
            deadline_left: deadline_left.min(DEADLINE_LEFT_MAX),
            budget: self.budget.lend(),
            hops_left: match onward {
                true => self.hops_left.saturating_sub(1),
                false => 0,
            },
            wait_max: wait_max.min(DEADLINE_LEFT_MAX),
            in_flight,
        };
        self.visited.push(to.clone());
        sent
    }

    /// Allows `to`, which had no room before, to be tried again.
    pub fn revisit(&mut self, to: &str) {
        self.visited.retain(|name| **name != *to);
    }

    /// Records the arrival at `here`.
    ///
    /// # Errors
    /// [`HopsError::Loop`] when it was here before, [`HopsError::Visited`] when it was everywhere.
    pub fn arrive(&mut self, here: &Arc<str>) -> Result<(), HopsError> {
        if self.visited.contains(here) {
            return Err(HopsError::Loop);
        }
        if self.visited.len() >= VISITED_MAX {
            return Err(HopsError::Visited);
        }
        self.visited.push(here.clone());
        Ok(())
    }

    /// Settles a forward that the node rejected: refused, or failed. Nodes visited there are not
    /// tried again.
    ///
    /// # Errors
    /// [`HopsError::NotOurs`] when `left` does not follow from `sent`. Then nothing was settled, and
    /// the forward is to be taken for [lost](Hops::settle_lost).
    pub fn settle_returned(&mut self, sent: &Hops, left: &Hops) -> Result<(), HopsError> {
        let seen = left.visited.starts_with(&self.visited);
        let less = left.budget.errors_left <= sent.budget.errors_left
            && left.budget.capacity_left <= sent.budget.capacity_left;
        if !seen || !less {
            return Err(HopsError::NotOurs);
        }
        self.visited.clone_from(&left.visited);
        self.budget.settle(sent.budget, left.budget);
        Ok(())
    }

    /// Settles a forward that was lost after the request was sent. Returns whether another attempt
    /// may be made.
    pub fn settle_lost(&mut self, sent: &Hops) -> bool {
        self.budget.settle_lost(sent.budget)
    }

    /// Settles a forward that was lost before a permit was granted. No work has begun, so it uses
    /// only its own attempt and counts as out of capacity. Returns whether another attempt may be
    /// made.
    pub fn settle_lost_in_queue(&mut self) -> bool {
        self.budget.record_out_of_capacity();
        self.budget.record_error()
    }

    /// Returns whether names and numbers are within their bounds, as [`Hops::parse`] has them.
    pub fn is_valid(&self) -> bool {
        let names = &self.visited;
        let is_new = |at: usize| !names[..at].contains(&names[at]);
        (1..=VISITED_MAX).contains(&names.len())
            && names.iter().all(|name| is_node_name(name))
            && (1..names.len()).all(is_new)
            && self.deadline_left <= DEADLINE_LEFT_MAX
            && self.budget.errors_left <= ERRORS_MAX
            && self.budget.capacity_left <= CAPACITY_ATTEMPTS_SMALL
            && self.hops_left <= HOPS_MAX
            && self.wait_max <= DEADLINE_LEFT_MAX
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// The text is malformed; the [`HopsError`] names the fault.
    pub fn parse(text: &str) -> Result<Hops, HopsError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(HopsError::TooLong);
        }
        let mut fields = text.split("; ");
        if fields.next() != Some(VERSION) {
            return Err(HopsError::Version);
        }
        let mut field = |name: &'static str| {
            let field = fields.next().and_then(|field| field.strip_prefix(name));
            let value = field.and_then(|rest| rest.strip_prefix('='));
            value.ok_or(HopsError::Field(name))
        };
        let visited = parse_names(field("visited")?)?;
        let mut count = |name, max| parse_number(field(name)?, max).ok_or(HopsError::Number(name));
        let hops = Hops {
            visited,
            deadline_left: Millis(count("deadline_ms", DEADLINE_LEFT_MAX.0)?),
            budget: AttemptBudget {
                errors_left: count("errors", ERRORS_MAX.into())? as u32,
                capacity_left: count("capacity", CAPACITY_ATTEMPTS_SMALL.into())? as u32,
            },
            hops_left: count("hops", HOPS_MAX.into())? as u32,
            wait_max: Millis(count("wait_ms", DEADLINE_LEFT_MAX.0)?),
            in_flight: count("in_flight", u32::MAX.into())? as u32,
        };
        match fields.next() {
            Some(_) => Err(HopsError::Field("nothing further")),
            None => Ok(hops),
        }
    }
}

/// The text form, which [`Hops::parse`] reads when every name passes [`is_node_name`].
impl fmt::Display for Hops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}; visited=")?;
        for (at, name) in self.visited.iter().enumerate() {
            if at > 0 {
                f.write_char(',')?;
            }
            f.write_str(name)?;
        }
        let AttemptBudget {
            errors_left,
            capacity_left,
        } = self.budget;
        let deadline_ms = self.deadline_left.min(DEADLINE_LEFT_MAX).0;
        let wait_ms = self.wait_max.min(DEADLINE_LEFT_MAX).0;
        write!(
            f,
            "; deadline_ms={deadline_ms}; errors={errors_left}; capacity={capacity_left}; \
             hops={}; wait_ms={wait_ms}; in_flight={}",
            self.hops_left, self.in_flight
        )
    }
}

fn parse_names(text: &str) -> Result<Vec<Arc<str>>, HopsError> {
    let mut names: Vec<Arc<str>> = Vec::new();
    for name in text.split(',') {
        let repeated = names.iter().any(|known| **known == *name);
        if !is_node_name(name) || repeated || names.len() == VISITED_MAX {
            return Err(HopsError::Visited);
        }
        names.push(name.into());
    }
    Ok(names)
}

/// Plain decimal up to `max`: digits only, without a zero in front.
fn parse_number(text: &str, max: u64) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text.len() > 1 && text.starts_with('0')) {
        return None;
    }
    text.parse().ok().filter(|&number| number <= max)
}

#[cfg(test)]
mod tests;
