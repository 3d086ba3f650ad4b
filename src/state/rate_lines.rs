//! Header lines that tell a client how much of its rates is left.
//!
//! The numbers are those of [`Rate`](infergate_core::admission::rate::Rate). Lines are written digit by digit into one text:
//! every answer to an account with limits has them.

use infergate_core::Millis;
use infergate_core::admission::rate::RateStatus;
use infergate_core::api::json_text::push_whole;
use smallvec::SmallVec;

/// Room for the values of one rate.
const RATE_TEXT_BYTES: usize = 32;
/// Names of the lines of requests a minute: limit, remaining, reset.
pub(super) const REQUEST_LINES: [&str; 3] = [
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
];
/// The same of tokens.
pub(super) const TOKEN_LINES: [&str; 3] = [
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
];

/// Header lines about the rates of an account: their values stand in one text.
#[derive(Default)]
pub struct RateLines {
    text: Vec<u8>,
    /// Names, and where their values end.
    ends: SmallVec<[(&'static str, usize); 6]>,
}

impl RateLines {
    /// Adds the lines of a rate under the names of the OpenAI API.
    pub(super) fn push_openai(&mut self, names: &[&'static str; 3], status: &RateStatus) {
        self.text.reserve(RATE_TEXT_BYTES);
        self.push(names[0], status.limit);
        self.push(names[1], status.remaining);
        self.push_span(names[2], status.reset);
    }

    /// Adds the lines of a rate as the Replicate API has them, with whole seconds until all of it is left.
    pub(super) fn push_replicate(&mut self, status: &RateStatus) {
        self.push("ratelimit-limit", status.limit);
        self.push("ratelimit-remaining", status.remaining);
        self.push("ratelimit-reset", status.reset.0.div_ceil(1000));
    }

    fn push(&mut self, name: &'static str, number: impl Into<u64>) {
        push_whole(&mut self.text, number.into());
        self.ends.push((name, self.text.len()));
    }

    /// Adds a time as `120ms`, `6.5s` or `1m0s`.
    fn push_span(&mut self, name: &'static str, span: Millis) {
        let text = &mut self.text;
        let (minutes, millis) = (span.0 / 60_000, span.0 % 60_000);
        if minutes == 0 && millis < 1000 {
            push_whole(text, millis);
            text.extend_from_slice(b"ms");
        } else {
            if minutes > 0 {
                push_whole(text, minutes);
                text.push(b'm');
            }
            push_whole(text, millis / 1000);
            push_fraction(text, millis % 1000);
            text.push(b's');
        }
        self.ends.push((name, text.len()));
    }

    /// Returns names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let mut from = 0;
        self.ends.iter().map(move |&(name, end)| {
            let value = &self.text[from..end];
            from = end;
            (name, value)
        })
    }
}

/// Adds thousandths behind a point, without zeros at the end.
fn push_fraction(text: &mut Vec<u8>, thousandths: u64) {
    if thousandths == 0 {
        return;
    }
    text.push(b'.');
    let mut left = thousandths;
    while left > 0 {
        push_whole(text, left / 100);
        left = left % 100 * 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_written_as_openai_writes_them() {
        let spans = [0, 120, 6_500, 60_000, 179_560].map(|ms| {
            let mut lines = RateLines::default();
            lines.push_span("a", Millis(ms));
            let (_, value) = lines.iter().next().unwrap();
            String::from_utf8(value.to_vec()).unwrap()
        });
        assert_eq!(spans, ["0ms", "120ms", "6.5s", "1m0s", "2m59.56s"]);
    }
}
