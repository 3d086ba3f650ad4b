//! Output of a run, gathered from the response of the pipeline.
//!
//! Not a response of its own: events, results and bytes become the value that the object of a job shows. Bounded by
//! the model's `output_max_mib`.

use std::sync::Arc;

use infergate_core::api::sse::{self, EventSplitter};
use infergate_core::api::workers_ai::result_of;
use serde_json::value::RawValue;

use super::live::SharedPieces;
use crate::telemetry::Clock;

/// Longest time that tokens are joined into one piece of the output.
const JOIN_MS: u64 = 100;
/// Longest single event.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// Form of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OutputForm {
    /// No head yet.
    Unknown,
    /// Events with texts.
    Events,
    /// JSON, with or without an envelope.
    Json,
    /// An image or a sound, with its content type.
    Bytes(String),
}

/// Text that was added to a running job's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputText(pub String);

/// Collector of one output.
pub struct OutputCollector {
    form: OutputForm,
    clock: Clock,
    bytes: usize,
    bytes_max: usize,
    body: Vec<u8>,
    splitter: EventSplitter,
    pieces: SharedPieces,
    joined_since_ms: u64,
    /// Error that the stream told.
    error: Option<String>,
    is_done: bool,
}

/// The output is larger than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputTooLarge;

impl OutputCollector {
    /// Creates a collector of at most `bytes_max` bytes.
    pub fn new(clock: Clock, bytes_max: usize) -> OutputCollector {
        OutputCollector {
            form: OutputForm::Unknown,
            clock,
            bytes: 0,
            bytes_max,
            body: Vec::new(),
            splitter: EventSplitter::with_limit(EVENT_BYTES_MAX),
            pieces: SharedPieces::default(),
            joined_since_ms: 0,
            error: None,
            is_done: false,
        }
    }

    /// Sets the form by the content type of the response.
    pub fn begin(&mut self, content_type: Option<&[u8]>) {
        let kind = content_type.and_then(|kind| std::str::from_utf8(kind).ok());
        let kind = kind.unwrap_or("application/json").to_ascii_lowercase();
        self.form = match kind.split(';').next().unwrap_or_default().trim() {
            "text/event-stream" => OutputForm::Events,
            "application/json" => OutputForm::Json,
            other => OutputForm::Bytes(other.to_owned()),
        };
    }

    /// Adds a part of the body. Returns the texts that it added to the output.
    ///
    /// # Errors
    /// [`OutputTooLarge`].
    pub fn push(&mut self, chunk: &[u8]) -> Result<Option<OutputText>, OutputTooLarge> {
        self.bytes += chunk.len();
        if self.bytes > self.bytes_max {
            return Err(OutputTooLarge);
        }
        if self.form != OutputForm::Events {
            self.body.extend_from_slice(chunk);
            return Ok(None);
        }
        let mut added = String::new();
        let (error, is_done) = (&mut self.error, &mut self.is_done);
        let split = self.splitter.push(chunk, &mut |event: &[u8]| {
            let Some(data) = sse::data(event) else { return };
            if sse::is_done(&data) {
                *is_done = true;
            } else if let Ok(read) = serde_json::from_slice::<EventText>(&data) {
                added.push_str(read.text());
                if let Some(found) = read.error_text() {
                    *error = Some(found);
                }
            }
        });
        split.map_err(|_| OutputTooLarge)?;
        if added.is_empty() {
            return Ok(None);
        }
        self.join(&added);
        Ok(Some(OutputText(added)))
    }

    fn join(&mut self, added: &str) {
        let now = self.clock.now().0;
        let mut pieces = self.pieces.lock();
        match pieces.last_mut() {
            Some(last) if now.saturating_sub(self.joined_since_ms) < JOIN_MS => {
                last.push_str(added)
            }
            _ => {
                self.joined_since_ms = now;
                pieces.push(added.to_owned());
            }
        }
    }

    /// Returns the texts so far.
    pub fn pieces(&self) -> SharedPieces {
        Arc::clone(&self.pieces)
    }

    /// Returns whether a stream has told its end.
    pub fn is_stream_cut(&self) -> bool {
        self.form == OutputForm::Events && !self.is_done
    }

    /// Returns the error that the response tells.
    pub fn error(&self) -> Option<String> {
        match self.form {
            OutputForm::Events => self.error.clone(),
            _ => serde_json::from_slice::<EventText>(&self.body)
                .ok()?
                .error_text(),
        }
    }

    /// Returns the output as JSON; none where nothing came.
    pub fn output(&self) -> Option<Box<RawValue>> {
        match &self.form {
            OutputForm::Unknown => None,
            OutputForm::Events => {
                let pieces = self.pieces.lock();
                let has_any = !pieces.is_empty() || self.is_done;
                has_any.then(|| to_raw(&*pieces)).flatten()
            }
            OutputForm::Json => {
                let body = result_of(&self.body).unwrap_or(&self.body);
                let text = std::str::from_utf8(body).ok()?;
                match serde_json::from_str::<TextOutput>(text) {
                    // A text is a list of one piece, as it is where it was streamed.
                    Ok(TextOutput {
                        response: Some(text),
                        ..
                    }) => to_raw(&[text]),
                    _ => RawValue::from_string(text.to_owned()).ok(),
                }
            }
            OutputForm::Bytes(kind) => to_raw(&data_uri(kind, &self.body)),
        }
    }
}

fn to_raw<T: serde::Serialize + ?Sized>(value: &T) -> Option<Box<RawValue>> {
    serde_json::value::to_raw_value(value).ok()
}

/// Returns bytes as a data URI (<https://www.rfc-editor.org/rfc/rfc2397>).
pub fn data_uri(kind: &str, bytes: &[u8]) -> String {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
    format!("data:{kind};base64,{encoded}")
}

/// Result of a text generation.
#[derive(serde::Deserialize)]
struct TextOutput {
    response: Option<String>,
}

/// Members of an event, and of an error.
#[derive(serde::Deserialize)]
struct EventText {
    #[serde(default)]
    response: Option<String>,
    /// A task that leaves the server's own shape has its texts here.
    #[serde(default)]
    choices: Vec<ChoiceText>,
    #[serde(default)]
    errors: Vec<ErrorEntry>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(serde::Deserialize)]
struct ChoiceText {
    #[serde(default)]
    delta: Option<DeltaText>,
    #[serde(default)]
    text: Option<String>,
}

#[derive(serde::Deserialize)]
struct DeltaText {
    #[serde(default)]
    content: Option<String>,
}

#[derive(serde::Deserialize)]
struct ErrorEntry {
    message: String,
}

impl EventText {
    /// Text that the event adds.
    fn text(&self) -> &str {
        let first = self.choices.first();
        let chosen = first.and_then(|choice| {
            let delta = choice
                .delta
                .as_ref()
                .and_then(|delta| delta.content.as_deref());
            delta.or(choice.text.as_deref())
        });
        self.response.as_deref().or(chosen).unwrap_or_default()
    }

    fn error_text(&self) -> Option<String> {
        if let Some(first) = self.errors.first() {
            return Some(first.message.clone());
        }
        let error = self.error.as_ref()?;
        let text = error.get("message").and_then(|text| text.as_str());
        Some(text.map_or_else(|| error.to_string(), str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector() -> OutputCollector {
        OutputCollector::new(Clock::start(), 1000)
    }

    fn text(output: Option<Box<RawValue>>) -> String {
        output.map_or_else(|| "none".to_owned(), |raw| raw.get().to_owned())
    }

    #[test]
    fn events_become_a_list_of_texts() {
        let mut output = collector();
        output.begin(Some(b"text/event-stream"));
        assert_eq!(text(output.output()), "none");
        output
            .push(b"data: {\"response\":\"a\"}\n\ndata: {\"resp")
            .unwrap();
        let added = output.push(b"onse\":\"b\"}\n\n").unwrap();
        assert_eq!(added, Some(OutputText("b".to_owned())));
        assert!(output.is_stream_cut());
        output.push(b"data: [DONE]\n\n").unwrap();
        assert!(!output.is_stream_cut());
        assert_eq!(text(output.output()), r#"["ab"]"#);
    }

    #[test]
    fn an_envelope_is_taken_off_and_a_text_is_a_list() {
        for (body, expected) in [
            (
                r#"{"result":{"shape":[1]},"success":true,"errors":[],"messages":[]}"#,
                r#"{"shape":[1]}"#,
            ),
            (
                r#"{"result":{"response":"hi"},"success":true,"errors":[],"messages":[]}"#,
                r#"["hi"]"#,
            ),
            (r#"{"any":1}"#, r#"{"any":1}"#),
        ] {
            let mut output = collector();
            output.begin(Some(b"application/json; charset=utf-8"));
            output.push(body.as_bytes()).unwrap();
            assert_eq!(text(output.output()), expected);
        }
    }

    #[test]
    fn bytes_are_a_data_uri_and_too_many_are_refused() {
        let mut output = collector();
        output.begin(Some(b"image/png"));
        output.push(b"abc").unwrap();
        assert_eq!(text(output.output()), r#""data:image/png;base64,YWJj""#);
        assert_eq!(output.push(&[0; 1000]), Err(OutputTooLarge));
    }

    #[test]
    fn an_error_is_found_in_its_envelope_and_in_an_event() {
        let mut output = collector();
        output.begin(Some(b"application/json"));
        output.push(br#"{"result":null,"success":false,"errors":[{"code":1,"message":"bad"}],"messages":[]}"#).unwrap();
        assert_eq!(output.error().unwrap(), "bad");
        let mut events = collector();
        events.begin(Some(b"text/event-stream"));
        events
            .push(b"data: {\"error\":{\"message\":\"cut\"}}\n\n")
            .unwrap();
        assert_eq!(events.error().unwrap(), "cut");
    }
}
