//! Cog's protocol: the input of a prediction, its answer, and the health of its server.
//!
//! Bytes in, values out; paths and statuses are the callers'. A model that fails is answered with 200, so that the
//! body decides. Forms are those of Cog 0.16 and 0.23 (<https://github.com/replicate/cog/blob/main/docs/http.md>).

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::{bad, each_member, push_text};
use super::open_inference::ReportedCosts;
use crate::Refusal;

/// Longest text of a model that failed, bytes: as that of other errors of servers.
const FAILURE_BYTES_MAX: usize = 4096;

/// Logs of a setup that are kept, bytes, the last ones: the cause stands at the end.
pub const SETUP_LOG_BYTES_MAX: usize = 20 * 1024;

/// Header of files whose kind is not known.
const DATA_URI: &str = "data:application/octet-stream;base64,";

/// Members of a task's payload that are files in base64, which Cog takes as data URIs.
const FILES: [&str; 3] = ["audio", "image", "mask"];

/// Kind of payload that becomes an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CogPayload {
    /// The model's own input, unchanged.
    Own,
    /// Payload of a task, whose files are base64.
    Task,
    /// Payload of a task that generates text; `stream` in it is the gateway's.
    Text,
}

/// Returns the body of a prediction with `payload` as its input.
///
/// # Errors
/// The payload is no JSON object.
pub fn prediction_body(payload: &[u8], kind: CogPayload) -> Result<Vec<u8>, Refusal> {
    let mut body = Vec::with_capacity(payload.len() + 64);
    body.extend_from_slice(br#"{"input":{"#);
    let begin = body.len();
    each_member(payload, |name, value| {
        if kind == CogPayload::Text && name == "stream" {
            return Ok(());
        }
        if body.len() > begin {
            body.push(b',');
        }
        push_text(&mut body, name);
        body.push(b':');
        match base64_of(name, value).filter(|_| kind != CogPayload::Own) {
            Some(base64) => {
                body.push(b'"');
                body.extend_from_slice(DATA_URI.as_bytes());
                body.extend_from_slice(base64.as_bytes());
                body.push(b'"');
            }
            None => body.extend_from_slice(value.get().as_bytes()),
        }
        Ok(())
    })
    .map_err(|_| {
        bad(
            "",
            "expected a JSON object: its members are the inputs of the model, files as URLs or data URIs",
        )
    })?;
    body.extend_from_slice(b"}}");
    Ok(body)
}

/// The base64 of a member that is a file; none of a URL.
fn base64_of<'a>(name: &str, value: &'a RawValue) -> Option<&'a str> {
    let text = value.get().strip_prefix('"')?.strip_suffix('"')?;
    (FILES.contains(&name) && !text.contains(':')).then_some(text)
}

/// Prediction that has succeeded.
#[derive(Debug)]
pub struct Prediction<'a> {
    /// Output, as JSON; `null` where the model made none.
    pub output: &'a str,
    /// Metrics of the run, by the names that a tariff has for them.
    pub costs: ReportedCosts,
}

/// Reason for which a prediction has no output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PredictionError {
    /// Not a prediction that has ended.
    Malformed,
    /// The model failed with this text, or its run was canceled.
    Failed(String),
    /// The process of the model is gone, and its server has not begun another.
    Crashed,
}

#[derive(Deserialize)]
struct WirePrediction<'a> {
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow, default)]
    output: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    metrics: Option<&'a RawValue>,
}

/// Reads the answer to a prediction.
///
/// # Errors
/// [`PredictionError`].
pub fn read_prediction(body: &[u8]) -> Result<Prediction<'_>, PredictionError> {
    let read: WirePrediction<'_> =
        serde_json::from_slice(body).map_err(|_| PredictionError::Malformed)?;
    match &*read.status {
        "succeeded" => Ok(Prediction {
            output: read.output.map_or("null", RawValue::get),
            costs: read.metrics.map(costs_of).unwrap_or_default(),
        }),
        "failed" => {
            let text = read.error.map(text_of).unwrap_or_default();
            match text {
                text if is_crash(&text) => Err(PredictionError::Crashed),
                text if text.is_empty() => {
                    Err(PredictionError::Failed("the model failed".to_owned()))
                }
                text => {
                    let end = text.floor_char_boundary(FAILURE_BYTES_MAX);
                    Err(PredictionError::Failed(text[..end].to_owned()))
                }
            }
        }
        "canceled" => {
            let text = "the run was canceled at the model server";
            Err(PredictionError::Failed(text.to_owned()))
        }
        _ => Err(PredictionError::Malformed),
    }
}

/// A text of the server about its worker. Exceptions of a model begin with other words.
fn is_crash(text: &str) -> bool {
    let text = text.trim_start();
    [
        "Worker crashed",
        "Failed to send on slot socket",
        "Slot socket",
    ]
    .iter()
    .any(|begin| text.starts_with(begin))
}

fn text_of(value: &RawValue) -> String {
    serde_json::from_str(value.get()).unwrap_or_else(|_| match value.get() {
        "null" => String::new(),
        other => other.to_owned(),
    })
}

/// Numbers among the metrics of a run. Names that a tariff has others for get these.
fn costs_of(metrics: &RawValue) -> ReportedCosts {
    let mut costs = ReportedCosts::default();
    let read = each_member(metrics.get().as_bytes(), |name, value| {
        let name = match name {
            "predict_time" => "predict_secs",
            "input_token_count" => "input_tokens",
            "output_token_count" => "output_tokens",
            // The gateway's own name for a longer time.
            "total_secs" => return Ok(()),
            other => other,
        };
        if let Ok(number) = value.get().parse::<f64>() {
            costs.add(name, number);
        }
        Ok(())
    });
    // Metrics in another form say nothing.
    let _ = read;
    costs
}

/// Returns the pieces of a text that a model made: one, or a list of them; none of another output.
pub fn text_pieces(output: &str) -> Option<Vec<&RawValue>> {
    let is_text = |value: &&RawValue| value.get().starts_with('"');
    match output.as_bytes().first()? {
        b'"' => Some(vec![serde_json::from_str(output).ok()?]),
        b'[' => {
            let pieces: Vec<&RawValue> = serde_json::from_str(output).ok()?;
            pieces.iter().all(is_text).then_some(pieces)
        }
        _ => None,
    }
}

/// Returns a list of texts as one JSON string; none of another output.
pub fn joined_text(output: &str) -> Option<String> {
    if !output.starts_with('[') {
        return None;
    }
    let pieces = text_pieces(output)?;
    let inner = pieces
        .iter()
        .map(|piece| &piece.get()[1..piece.get().len() - 1]);
    let mut joined = String::from('"');
    joined.extend(inner);
    joined.push('"');
    Some(joined)
}

/// State of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CogState {
    /// The model is being loaded.
    Starting,
    /// A slot is free.
    Ready,
    /// No slot is free.
    Busy,
    /// The model could not be loaded.
    SetupFailed,
    /// The server has given up.
    Defunct,
    /// The check of the model itself fails, or its process is gone.
    Unhealthy,
    /// None that is known.
    Unknown,
}

impl CogState {
    /// Returns why the server can serve nothing, in a word or two; none where it can.
    pub fn fault(self) -> Option<&'static str> {
        match self {
            CogState::Ready | CogState::Busy => None,
            CogState::Starting => Some("loading"),
            CogState::SetupFailed => Some("setup failed"),
            CogState::Defunct => Some("defunct"),
            CogState::Unhealthy => Some("unhealthy"),
            CogState::Unknown => Some("unknown state"),
        }
    }
}

/// Health of a server, as it tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CogHealth {
    /// State.
    pub state: CogState,
    /// The last part of the logs of the setup, of a server that can serve nothing.
    pub logs: Option<String>,
}

#[derive(Deserialize)]
struct WireHealth<'a> {
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow, default)]
    setup: Option<WireSetup<'a>>,
    #[serde(borrow, default)]
    user_healthcheck_error: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct WireSetup<'a> {
    #[serde(borrow, default)]
    logs: Option<Cow<'a, str>>,
}

/// Reads the answer to a health check; none where it is none.
pub fn read_health(body: &[u8]) -> Option<CogHealth> {
    let read: WireHealth<'_> = serde_json::from_slice(body).ok()?;
    let state = match &*read.status {
        "STARTING" => CogState::Starting,
        "READY" => CogState::Ready,
        "BUSY" => CogState::Busy,
        "SETUP_FAILED" => CogState::SetupFailed,
        "DEFUNCT" => CogState::Defunct,
        "UNHEALTHY" => CogState::Unhealthy,
        _ => CogState::Unknown,
    };
    let logs = state.fault().and_then(|_| {
        let logs = read.setup.and_then(|setup| setup.logs).unwrap_or_default();
        let error = read.user_healthcheck_error.unwrap_or_default();
        let begin = logs.ceil_char_boundary(logs.len().saturating_sub(SETUP_LOG_BYTES_MAX));
        let mut kept = logs[begin..].to_owned();
        kept.push_str(&error[..error.floor_char_boundary(FAILURE_BYTES_MAX)]);
        (!kept.is_empty()).then_some(kept)
    });
    Some(CogHealth { state, logs })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(payload: &str, kind: CogPayload) -> String {
        String::from_utf8(prediction_body(payload.as_bytes(), kind).unwrap()).unwrap()
    }

    #[test]
    fn the_members_of_a_payload_are_the_inputs_of_the_model() {
        let payload = r#"{"prompt": "a\n", "stream": true, "n": [1, 2]}"#;
        assert_eq!(
            body(payload, CogPayload::Own),
            r#"{"input":{"prompt":"a\n","stream":true,"n":[1, 2]}}"#
        );
        assert_eq!(
            body(payload, CogPayload::Text),
            r#"{"input":{"prompt":"a\n","n":[1, 2]}}"#
        );
        assert_eq!(body("{}", CogPayload::Own), r#"{"input":{}}"#);
        for bad in ["[1]", "1", "", "{"] {
            let refused = prediction_body(bad.as_bytes(), CogPayload::Own);
            assert!(matches!(refused, Err(Refusal::BadRequest { .. })), "{bad}");
        }
    }

    #[test]
    fn files_of_a_task_become_data_uris_and_urls_stay() {
        let payload = r#"{"image":"aGk=","mask":"https://x/y.png","text":"aGk="}"#;
        assert_eq!(
            body(payload, CogPayload::Task),
            r#"{"input":{"image":"data:application/octet-stream;base64,aGk=","mask":"https://x/y.png","text":"aGk="}}"#
        );
        assert!(body(payload, CogPayload::Own).contains(r#""image":"aGk=""#));
    }

    #[test]
    fn an_output_comes_with_the_metrics_of_its_run() {
        let answer = r#"{"id":"a","output":{"x":[1, 2]},"status":"succeeded","metrics":{"predict_time":0.25,
            "input_token_count":3,"output_token_count":7,"steps":4,"name":"x","total_secs":9,"low":-1}}"#;
        let read = read_prediction(answer.as_bytes()).unwrap();
        assert_eq!(read.output, r#"{"x":[1, 2]}"#);
        let costs: Vec<_> = read.costs.iter().cloned().collect();
        let expected = [
            ("predict_secs", 0.25),
            ("input_tokens", 3.0),
            ("output_tokens", 7.0),
            ("steps", 4.0),
        ];
        assert_eq!(
            costs,
            expected.map(|(name, value)| (name.to_owned(), value))
        );
        let bare = read_prediction(br#"{"status":"succeeded","output":null,"metrics":null}"#);
        let bare = bare.unwrap();
        assert_eq!((bare.output, bare.costs.is_empty()), ("null", true));
    }

    #[test]
    fn a_failure_of_the_model_is_told_and_one_of_its_worker_is_the_servers() {
        let error = |body: &str| read_prediction(body.as_bytes()).unwrap_err();
        let failed = |text: &str| PredictionError::Failed(text.to_owned());
        for (body, expected) in [
            (
                r#"{"status":"failed","error":"Prediction failed: ValueError: no \"x\""}"#,
                failed(r#"Prediction failed: ValueError: no "x""#),
            ),
            (
                r#"{"status":"failed","error":"it says: Worker crashed"}"#,
                failed("it says: Worker crashed"),
            ),
            (
                r#"{"status":"failed","error":"Worker crashed"}"#,
                PredictionError::Crashed,
            ),
            (
                r#"{"status":"failed","error":"Failed to send on slot socket: Broken pipe"}"#,
                PredictionError::Crashed,
            ),
            (
                r#"{"status":"failed","error":null}"#,
                failed("the model failed"),
            ),
            (r#"{"status":"failed"}"#, failed("the model failed")),
            (
                r#"{"status":"canceled"}"#,
                failed("the run was canceled at the model server"),
            ),
            (r#"{"status":"processing"}"#, PredictionError::Malformed),
            (r#"{"output":1}"#, PredictionError::Malformed),
            ("[]", PredictionError::Malformed),
        ] {
            assert_eq!(error(body), expected, "{body}");
        }
        let long = format!(r#"{{"status":"failed","error":"{}"}}"#, "é".repeat(4096));
        let PredictionError::Failed(text) = error(&long) else {
            panic!("it failed");
        };
        assert_eq!(text.len(), FAILURE_BYTES_MAX);
    }

    #[test]
    fn a_text_in_pieces_is_one_text() {
        assert_eq!(joined_text(r#"["a\"", "b"]"#).unwrap(), r#""a\"b""#);
        assert_eq!(joined_text("[]").unwrap(), r#""""#);
        for other in [r#""a""#, "[1]", r#"{"a":1}"#, r#"["a", 1]"#] {
            assert_eq!(joined_text(other), None, "{other}");
        }
        assert_eq!(text_pieces(r#""a""#).unwrap().len(), 1);
        assert_eq!(text_pieces(r#"["a","b"]"#).unwrap().len(), 2);
        assert!(text_pieces(r#"{"text":"a"}"#).is_none());
    }

    #[test]
    fn each_state_says_whether_the_server_can_serve() {
        let health = |status: &str| {
            let body = format!(r#"{{"status":"{status}","setup":{{"logs":"no weights"}}}}"#);
            read_health(body.as_bytes()).unwrap()
        };
        for ready in ["READY", "BUSY"] {
            let health = health(ready);
            assert_eq!((health.state.fault(), health.logs), (None, None), "{ready}");
        }
        for (status, fault) in [
            ("STARTING", "loading"),
            ("SETUP_FAILED", "setup failed"),
            ("DEFUNCT", "defunct"),
            ("UNHEALTHY", "unhealthy"),
            ("UNKNOWN", "unknown state"),
            ("NEW", "unknown state"),
        ] {
            let health = health(status);
            assert_eq!(health.state.fault(), Some(fault), "{status}");
            assert_eq!(health.logs.as_deref(), Some("no weights"));
        }
        assert_eq!(read_health(b"{}"), None);
        let empty = read_health(br#"{"status":"STARTING","setup":{}}"#).unwrap();
        assert_eq!(empty.logs, None);
    }

    #[test]
    fn of_long_logs_the_end_is_kept() {
        let logs = "é".repeat(SETUP_LOG_BYTES_MAX);
        let body = format!(r#"{{"status":"SETUP_FAILED","setup":{{"logs":"{logs}!"}}}}"#);
        let kept = read_health(body.as_bytes()).unwrap().logs.unwrap();
        assert!(kept.ends_with("é!") && kept.len() <= SETUP_LOG_BYTES_MAX);
    }
}
