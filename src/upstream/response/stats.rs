//! Facts learned from the bytes of a response as they pass.
//!
//! Counts and, where an estimate needs one, a bounded sample; no dialect is read here.

use infergate_core::api::open_inference::ReportedCosts;
use infergate_core::billing::{TextCount, Usage};
use serde_json::value::RawValue;

use super::event_text::count_text;
use super::output_sample::OutputSample;
use super::reported_metrics::MetricModes;

/// Facts learned from the bytes that passed.
#[derive(Debug, Default)]
pub struct ResponseStats {
    /// Tokens that the backend has reported so far.
    pub(super) usage: Option<Usage>,
    /// Figures beside tokens that the response tells, by the names of their metrics.
    pub(super) measures: Vec<(&'static str, f64)>,
    /// Costs that the backend has reported in tensors so far.
    pub(super) costs: ReportedCosts,
    /// Bytes of JSON before the tensors of the client's answer.
    pub(super) tensor_json_bytes: Option<usize>,
    pub(super) modes: MetricModes,
    pub(super) token: bool,
    /// All text generated on a stream.
    pub(super) text: TextCount,
    /// Its tokens when the backend last reported how many it had generated.
    pub(super) reported_at: u64,
    /// Index of the known place the last token stood at.
    pub(super) text_place: Option<usize>,
    /// Sample for an estimate; of a stream only where the backend's own count is not believed.
    pub(super) output: Option<OutputSample>,
    /// Choices that have begun, and those with a finish reason: a bit for each number.
    pub(super) choices: u128,
    pub(super) finished: u128,
    pub(super) end: StreamEnd,
    /// A whole response that passes has a top-level `error`.
    pub(super) names_error: bool,
    /// A whole response has generated text in it.
    pub(super) has_text: bool,
    /// The client has a part of an event that is too long to be held, and not its end.
    pub(super) is_in_long_event: bool,
}

impl ResponseStats {
    pub(super) fn report(&mut self, usage: Option<Usage>) {
        if usage.is_some_and(|usage| usage.output_tokens > 0) {
            self.reported_at = self.text.tokens();
        }
        self.usage = self.modes.fold(self.usage, usage);
    }

    /// Takes a figure beside tokens, in place of an earlier one of the name. There are a few names.
    pub(super) fn measure(&mut self, name: &'static str, value: f64) {
        match self.measures.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.measures.push((name, value)),
        }
    }

    /// Returns the figure of this name.
    pub(super) fn measured(&self, name: &str) -> Option<f64> {
        let found = self.measures.iter().find(|(known, _)| *known == name)?;
        Some(found.1)
    }

    /// An event speaks of this choice; those beyond 128 are never known to be finished.
    pub(super) fn choice(&mut self, number: u32, finished: bool) {
        let bit = 1_u128.checked_shl(number).unwrap_or(0);
        self.choices |= bit;
        if finished {
            self.finished |= bit;
        }
    }

    /// Returns whether all of `choices` have a finish reason.
    pub(super) fn is_finished(&self, choices: u32) -> bool {
        self.finished == self.choices && self.finished.count_ones() >= choices
    }

    /// Counts a generated text, a JSON string.
    pub(super) fn generated(&mut self, text: &RawValue) {
        let quoted = text.get().strip_prefix('"');
        let inner = quoted.and_then(|text| text.strip_suffix('"'));
        if !inner.is_some_and(|inner| count_text(inner.as_bytes(), &mut self.text)) {
            return;
        }
        if let Some(output) = &mut self.output {
            output.text(text);
        }
    }

    /// Adds a piece of a whole response to the sample, which begins with it where text is generated.
    pub(super) fn keep_whole(&mut self, bytes: &[u8]) {
        if self.has_text {
            self.output.get_or_insert_default();
        }
        self.keep(bytes);
    }

    /// Adds a piece of a response that is no stream to the sample.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        if let Some(output) = &mut self.output {
            output.bytes(bytes);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StreamEnd {
    #[default]
    Open,
    /// The client has everything.
    Complete,
    /// The client got an error event: no more follows.
    Broken,
}
