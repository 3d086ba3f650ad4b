//! Sample of what a model generated, for the gateway's own count of it: of models whose figures are
//! not believed, and of whole responses whose server may report none.
//!
//! Counting is the estimator's: it says what tokens a sample of at most [`SAMPLE_BYTES_MAX`] makes.

use std::borrow::Cow;

use serde_json::value::RawValue;

/// Bytes of output that are kept. A stream of 131,072 tokens is well below; of a larger response
/// the beginning has to do.
pub const SAMPLE_BYTES_MAX: usize = 1 << 20;

/// The output so far.
#[derive(Debug, Default)]
pub(super) struct OutputSample {
    /// A whole response, or the texts of a stream as a JSON list that lacks its end.
    sample: Vec<u8>,
    is_list: bool,
    full: bool,
}

impl OutputSample {
    /// The text of one event, a JSON string.
    pub(super) fn text(&mut self, text: &RawValue) {
        let text = text.get().as_bytes();
        self.full |= self.sample.len() + text.len() + 2 > SAMPLE_BYTES_MAX;
        if self.full {
            return;
        }
        self.sample.push(if self.is_list { b',' } else { b'[' });
        self.is_list = true;
        self.sample.extend_from_slice(text);
    }

    /// A piece of a response that is no stream.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let room = SAMPLE_BYTES_MAX.saturating_sub(self.sample.len());
        self.full |= bytes.len() > room;
        self.sample
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// A whole response as it came, or the texts of a stream as a JSON list.
    pub(super) fn sample(&self) -> Cow<'_, [u8]> {
        match self.is_list {
            true => Cow::Owned([&self.sample[..], b"]"].concat()),
            false => Cow::Borrowed(&self.sample),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: &mut OutputSample, json: &str) {
        output.text(&RawValue::from_string(json.to_owned()).unwrap());
    }

    #[test]
    fn the_texts_of_a_stream_are_a_list() {
        let mut output = OutputSample::default();
        assert_eq!(&output.sample()[..], b"");
        for json in [r#""one tw""#, r#""o\nthree""#] {
            text(&mut output, json);
        }
        assert_eq!(&output.sample()[..], br#"["one tw","o\nthree"]"#);
    }

    #[test]
    fn the_sample_is_bounded() {
        let mut output = OutputSample::default();
        let long = format!("\"{}\"", "x".repeat(SAMPLE_BYTES_MAX - 10));
        for json in [&*long, "\" second word\"", "\" third\""] {
            text(&mut output, json);
        }
        assert_eq!(output.sample().len(), long.len() + 2);
        let mut output = OutputSample::default();
        output.bytes(&[b'x'; SAMPLE_BYTES_MAX - 1]);
        output.bytes(b"yz");
        assert_eq!(output.sample().len(), SAMPLE_BYTES_MAX);
    }
}
