//! Request of a job and its result, as stores keep them: documents of JSON with a version.
//!
//! Not the object that an API shows: that is made of both when it is read.

use std::sync::Arc;

use infergate_core::ModelId;
use infergate_core::api::Operation;
use infergate_core::job::JobId;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::files::FileId;

/// Version of both documents.
const DOCUMENT_VERSION: u8 = 1;

/// Beginning of a document whose input is in a file, up to the id of that.
const INPUT_FILE_PREFIX: &str = r#"{"v":1,"input_file":{"id":""#;
/// First bytes of a document that tell whether its input is in a file, and in which one.
pub const INPUT_FILE_BYTES: usize = INPUT_FILE_PREFIX.len() + 32;

/// File with the input of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// Its id.
    pub id: FileId,
    /// Its length.
    pub bytes: u64,
}

impl InputFile {
    /// Returns the id of the file that a document names by its first [`INPUT_FILE_BYTES`]; none where the input is in it.
    pub fn id_of(document: &[u8]) -> Option<FileId> {
        let rest = document.strip_prefix(INPUT_FILE_PREFIX.as_bytes())?;
        let id = rest.get(..INPUT_FILE_BYTES - INPUT_FILE_PREFIX.len())?;
        std::str::from_utf8(id).ok()?.parse().ok()
    }
}

/// Request of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredRequest {
    /// Version of the document.
    pub v: u8,
    /// File with the input, where that is too large for the document: `input` is null then. The second member, so that
    /// it is found in the first bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_file: Option<InputFile>,
    /// Input of the model, as the client sent it.
    pub input: Box<RawValue>,
    /// Model as the object names it.
    pub shown_model: Arc<str>,
    /// Version of the model.
    pub version: Arc<str>,
    /// Scheme and host under which the client came, for the object's URLs.
    pub base_url: Arc<str>,
    /// API of the submit, by its name in events.
    pub api: Arc<str>,
    /// Receiver of notifications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Arc<str>>,
    /// Events that the receiver wants; every one where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_events: Option<Vec<Arc<str>>>,
    /// Deployment as `owner/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<Arc<str>>,
    /// Token of the stream of the output, where the model's output is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_token: Option<Arc<str>>,
    /// Destination of a training as `owner/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Arc<str>>,
    /// `traceparent` of the submit, where it was valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Arc<str>>,
    /// Job whose request it repeats, where an operator has queued it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<JobId>,
}

impl StoredRequest {
    /// Version of the present documents.
    pub const VERSION: u8 = DOCUMENT_VERSION;

    /// Reads a stored request.
    ///
    /// # Errors
    /// The document is damaged, or of another version.
    pub fn read(payload: &[u8]) -> Result<StoredRequest, serde_json::Error> {
        let request: StoredRequest = serde_json::from_slice(payload)?;
        match request.v {
            DOCUMENT_VERSION => Ok(request),
            other => Err(serde::de::Error::custom(format!("version {other}"))),
        }
    }

    /// Returns whether a receiver wants to hear of the end.
    pub fn wants_completed(&self) -> bool {
        let events = self.webhook_events.as_ref();
        let is_wanted =
            events.is_none_or(|events| events.iter().any(|event| &**event == "completed"));
        self.webhook.is_some() && is_wanted
    }

    /// Returns the document.
    pub fn to_payload(&self) -> Vec<u8> {
        // Texts and raw JSON: there is nothing that could not be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Makes a token of a stream that cannot be guessed, also by those who know many others.
///
/// # Errors
/// The system has no random bytes.
pub fn stream_token() -> Result<Arc<str>, getrandom::Error> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)?;
    Ok(hex::encode(random).into())
}

/// Request line of a job's run: as if the model had been called live.
pub fn run_target(model: &ModelId) -> (Operation, String) {
    let mut target = String::from("/ai/run/");
    for byte in model.as_str().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'@' => {
                target.push(char::from(byte));
            }
            _ => target.push_str(&format!("%{byte:02X}")),
        }
    }
    (Operation::Run, target)
}

/// Result of a job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JobResult {
    /// Version of the document.
    pub v: u8,
    /// Output; null where there is none.
    pub output: Option<Box<RawValue>>,
    /// Sentence for the user; none of a success.
    #[serde(default)]
    pub error: Option<String>,
    /// Last lines of the logs.
    #[serde(default)]
    pub logs: String,
    /// Metrics of the run by name; `predict_time` is in seconds.
    #[serde(default)]
    pub metrics: Map<String, Value>,
    /// Charge, neurons.
    #[serde(default)]
    pub neurons: f64,
    /// Endpoint of the last attempt.
    #[serde(default)]
    pub upstream: Option<Arc<str>>,
}

impl JobResult {
    /// Result without an output.
    pub fn failed(error: impl Into<String>) -> JobResult {
        JobResult {
            v: DOCUMENT_VERSION,
            error: Some(error.into()),
            ..JobResult::default()
        }
    }

    /// Result of a run that goes on.
    pub fn partial(pieces: &[String]) -> JobResult {
        let output = (!pieces.is_empty()).then(|| serde_json::value::to_raw_value(pieces));
        JobResult {
            v: DOCUMENT_VERSION,
            output: output.and_then(Result::ok),
            ..JobResult::default()
        }
    }

    /// Reads a stored result; one that is damaged has no output.
    pub fn read(result: &[u8]) -> JobResult {
        serde_json::from_slice(result)
            .unwrap_or_else(|_| JobResult::failed("The result of the job is damaged."))
    }

    /// Returns the document.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_in_a_target_is_one_segment() {
        let (_, target) = run_target(&ModelId::from("@cf/meta/a b?c"));
        assert_eq!(target, "/ai/run/@cf%2Fmeta%2Fa%20b%3Fc");
    }

    #[test]
    fn a_document_tells_the_file_of_its_input_by_its_first_bytes() {
        let text = r#"{"v":1,"input":{"input_file":{"id":"x"}},"shown_model":"a/b","version":"c","base_url":"http://h","api":"replicate"}"#;
        let mut request = StoredRequest::read(text.as_bytes()).unwrap();
        assert_eq!(InputFile::id_of(text.as_bytes()), None);
        let id = FileId::random();
        request.input_file = Some(InputFile { id, bytes: 7 });
        let document = request.to_payload();
        assert_eq!(InputFile::id_of(&document), Some(id));
        assert_eq!(InputFile::id_of(&document[..INPUT_FILE_BYTES]), Some(id));
        assert_eq!(InputFile::id_of(&document[..INPUT_FILE_BYTES - 1]), None);
        let read = StoredRequest::read(&document).unwrap();
        assert_eq!(read.input_file, request.input_file);
    }

    #[test]
    fn a_document_of_another_version_is_refused() {
        let text = r#"{"v":1,"input":{"prompt":"x"},"shown_model":"a/b","version":"c","base_url":"http://h","api":"replicate"}"#;
        let request = StoredRequest::read(text.as_bytes()).unwrap();
        assert_eq!(request.input.get(), r#"{"prompt":"x"}"#);
        assert_eq!(request.to_payload(), text.as_bytes());
        assert!(StoredRequest::read(text.replace("\"v\":1", "\"v\":2").as_bytes()).is_err());
        assert_eq!(
            JobResult::read(b"{").error.unwrap(),
            "The result of the job is damaged."
        );
    }
}
