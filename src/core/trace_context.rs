//! W3C Trace Context: identity of a request across services, and the decision whether it is recorded.
//!
//! Not a tracer: text and numbers only, without header maps, clock or randomness. Random bits are an
//! argument. Specification: <https://www.w3.org/TR/trace-context-2/>. Reading is strict, because a value
//! that another reader takes differently splits a trace. O(length of the text).

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

use thiserror::Error;

/// Name of the header with trace id, parent id and flags.
pub const TRACEPARENT: &str = "traceparent";
/// Name of the header with entries of other tracing systems.
pub const TRACESTATE: &str = "tracestate";

/// Bytes of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;
/// Entries of a `tracestate` (specification, section 3.3.1.1).
const TRACESTATE_MEMBERS_MAX: usize = 32;
/// Bytes of a `tracestate`: four times what every participant has to pass on.
pub const TRACESTATE_BYTES_MAX: usize = 2048;

/// Flag: the sender records the trace.
const SAMPLED: u8 = 0b01;
/// Flag: the lower 56 bits of the trace id are random.
const RANDOM: u8 = 0b10;

/// Bits of a trace id that decide about sampling.
const RANDOMNESS_BITS: u32 = 56;

/// Identifier of a trace: all spans of one request, at all services.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(NonZeroU128);

/// Identifier of a span within its trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(NonZeroU64);

/// Content of a `traceparent`: the trace, the span that sent the request, and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: TraceId,
    /// The sender's span: parent of the spans made here.
    pub span_id: SpanId,
    flags: u8,
}

/// Reason why a `traceparent` is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TraceContextError {
    /// Shorter or longer than its version allows.
    #[error("the length is wrong")]
    Length,
    /// No version, or the forbidden version ff.
    #[error("the version is wrong")]
    Version,
    /// A field is not lower-case hexadecimal, or is not separated by `-`.
    #[error("a field is not lower-case hexadecimal")]
    Field,
    /// The trace id or the parent id is all zeros.
    #[error("an id is zero")]
    ZeroId,
}

impl TraceId {
    /// Makes an identifier of 128 random bits.
    pub fn from_random(random: [u64; 2]) -> TraceId {
        let bits = u128::from(random[0]) << 64 | u128::from(random[1]);
        TraceId(NonZeroU128::new(bits).unwrap_or(NonZeroU128::MIN))
    }

    /// Returns the bytes, most significant first.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }

    /// Returns the bits that decide about sampling.
    fn randomness(self) -> u64 {
        self.0.get() as u64 & ((1 << RANDOMNESS_BITS) - 1)
    }
}

impl SpanId {
    /// Makes an identifier of 64 random bits.
    pub fn from_random(random: u64) -> SpanId {
        SpanId(NonZeroU64::new(random).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the identifier of a span's part of this ordinal: the same for the same ordinal, so that it
    /// needs no place and no random number. Output step of splitmix64
    /// (<https://prng.di.unimi.it/splitmix64.c>).
    pub fn child(self, ordinal: u64) -> SpanId {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut bits = self.0.get().wrapping_add(GOLDEN.wrapping_mul(ordinal + 1));
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        SpanId::from_random(bits ^ bits >> 31)
    }

    /// Returns the bytes, most significant first.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl TraceContext {
    /// Context of a trace that starts here, with `span_id` as its first span.
    pub fn root(trace_id: TraceId, span_id: SpanId, is_sampled: bool) -> TraceContext {
        TraceContext {
            trace_id,
            span_id,
            flags: RANDOM | u8::from(is_sampled),
        }
    }

    /// Parses the value of a `traceparent` header.
    ///
    /// # Errors
    /// [`TraceContextError`]; the caller then starts a trace of its own and ignores `tracestate`.
    pub fn parse(text: &[u8]) -> Result<TraceContext, TraceContextError> {
        let (head, rest) = text
            .split_at_checked(TRACEPARENT_BYTES)
            .ok_or(TraceContextError::Length)?;
        let version = hex(&head[..2]).ok_or(TraceContextError::Version)?;
        match (version, rest) {
            (0xff, _) => return Err(TraceContextError::Version),
            // Later versions may add fields behind another dash.
            (0, []) | (1.., [] | [b'-', ..]) => {}
            _ => return Err(TraceContextError::Length),
        }
        if [2, 35, 52].iter().any(|&at| head[at] != b'-') {
            return Err(TraceContextError::Field);
        }
        let field = |from: usize, to: usize| hex(&head[from..to]).ok_or(TraceContextError::Field);
        let (trace, span, flags) = (field(3, 35)?, field(36, 52)?, field(53, 55)?);
        let trace = NonZeroU128::new(trace).ok_or(TraceContextError::ZeroId)?;
        let span = NonZeroU64::new(span as u64).ok_or(TraceContextError::ZeroId)?;
        Ok(TraceContext {
            trace_id: TraceId(trace),
            span_id: SpanId(span),
            // Unknown flags are not passed on (specification, section 3.2.2.5.3).
            flags: flags as u8 & (SAMPLED | RANDOM),
        })
    }

    /// Returns whether the trace is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the context that a request sent within `span_id` carries.
    pub fn with_span(self, span_id: SpanId) -> TraceContext {
        TraceContext { span_id, ..self }
    }
}

/// Text of a `traceparent` of version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{}-{}-{:02x}",
            self.trace_id, self.span_id, self.flags
        )
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Decision which traces are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Randomness from which on a trace is recorded, 2^56 for none.
    threshold: u64,
    follows_parent: bool,
}

impl Sampler {
    /// Records the share `ratio` (0 to 1) of the traces that start here. With `follows_parent` a trace that
    /// came with the request is recorded exactly if its sender does; without, the ratio decides on it too.
    pub fn new(ratio: f64, follows_parent: bool) -> Sampler {
        let all = (1_u64 << RANDOMNESS_BITS) as f64;
        Sampler {
            threshold: ((1.0 - ratio.clamp(0.0, 1.0)) * all) as u64,
            follows_parent,
        }
    }

    /// Returns the context in which a request is recorded here, or none if it is not.
    ///
    /// `parent` came with the request; without one, a trace id is made of `random`. The span is new: every
    /// node decides alike on one trace id, so that a trace is recorded whole.
    pub fn start(
        &self,
        parent: Option<&TraceContext>,
        random: impl FnOnce() -> [u64; 3],
    ) -> Option<TraceContext> {
        if let Some(parent) = parent {
            let is_sampled = match self.follows_parent {
                true => parent.is_sampled(),
                false => self.takes(parent.trace_id),
            };
            return is_sampled.then(|| TraceContext {
                trace_id: parent.trace_id,
                span_id: SpanId::from_random(random()[2]),
                flags: parent.flags | SAMPLED,
            });
        }
        let [high, low, span] = random();
        let trace_id = TraceId::from_random([high, low]);
        self.takes(trace_id)
            .then(|| TraceContext::root(trace_id, SpanId::from_random(span), true))
    }

    fn takes(&self, trace_id: TraceId) -> bool {
        trace_id.randomness() >= self.threshold
    }
}

/// Returns the value of a `tracestate` if it is valid; `lines` are the values of the header's lines in order.
///
/// An invalid one is dropped whole (specification, section 3.3.1.5). Empty entries are removed.
pub fn parse_tracestate<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<String> {
    let mut keys: Vec<&str> = Vec::new();
    let mut state = String::new();
    for line in lines {
        for member in std::str::from_utf8(line).ok()?.split(',') {
            let member = member.trim_matches([' ', '\t']);
            if member.is_empty() {
                continue;
            }
            let (key, value) = member.split_once('=')?;
            let is_new = !keys.contains(&key);
            if !is_new || !is_key(key) || !is_value(value) || keys.len() == TRACESTATE_MEMBERS_MAX {
                return None;
            }
            keys.push(key);
            if !state.is_empty() {
                state.push(',');
            }
            state.push_str(member);
            if state.len() > TRACESTATE_BYTES_MAX {
                return None;
            }
        }
    }
    (!state.is_empty()).then_some(state)
}

/// Returns whether `key` is a key of `tracestate`: `name` or `tenant@system`.
fn is_key(key: &str) -> bool {
    let is_name = |name: &str, begins: fn(&u8) -> bool, bytes_max: usize| {
        let is_inner = |byte: &u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/".contains(byte)
        };
        let bytes = name.as_bytes();
        bytes.len() <= bytes_max && bytes.first().is_some_and(begins) && bytes.iter().all(is_inner)
    };
    match key.split_once('@') {
        Some((tenant, system)) => {
            let begins = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            is_name(tenant, begins, 241) && is_name(system, u8::is_ascii_lowercase, 14)
        }
        None => is_name(key, u8::is_ascii_lowercase, 256),
    }
}

/// Returns whether `value` is a value of `tracestate`; blanks at its end were removed.
fn is_value(value: &str) -> bool {
    let is_char = |byte: u8| matches!(byte, 0x20..=0x7e) && byte != b',' && byte != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(is_char)
}

/// The number of lower-case hexadecimal digits, at most 32 of them.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests;
