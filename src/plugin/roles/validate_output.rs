//! Output validation: rules that an answer of a guest must keep before it is used.
//!
//! Knows neither guest nor request; a broken rule is its name, a short word that logs and tests carry.
//! Charges and rankings have their rules in the core, where the built-in ones are held to them as well.

use std::collections::HashSet;

use infergate_core::billing::{METRIC_NAME_MAX_BYTES, METRICS_MAX, QUANTITY_MAX};
use infergate_core::task::{
    BodyEdit, EventEdit, FinishResult, PrepareResult, Rejection, STATE_MAX_BYTES, StreamResult,
    TaskDescription,
};

use crate::plugin::json::pointer::{EDITS_MAX, is_pointer, overlap};
use crate::plugin::spec::Bounds;

/// Facts an answer may add.
const ATTRIBUTES_MAX: usize = 64;
/// Bytes of a fact's name or value, of a path, of a word.
const WORD_MAX_BYTES: usize = 1024;
/// Characters of a text that callers read.
const TEXT_MAX_CHARS: usize = 1024;

/// Names that are never a plugin's: they belong to the hop or to the caller's credentials.
const FORBIDDEN_ATTRIBUTES: &[&str] = &[
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
];

type ValidationResult = Result<(), &'static str>;

fn rule(holds: bool, name: &'static str) -> ValidationResult {
    if holds { Ok(()) } else { Err(name) }
}

/// Checks the answer of `describe`.
pub fn description(description: &TaskDescription) -> ValidationResult {
    let wants = &description.wants;
    rule(wants.len() <= EDITS_MAX, "wants-count")?;
    rule(wants.iter().all(|want| is_pointer(want)), "wants-pointer")?;
    // Places apart from each other: what is picked is then never more than the body is.
    rule(!overlap(wants), "wants-overlap")?;
    rule(description.slug.len() <= WORD_MAX_BYTES, "slug-length")
}

/// Advice for a description that breaks a rule; empty where the rule's name is enough.
pub fn advice(rule: &str) -> &'static str {
    match rule {
        "wants-count" => {
            "`wants` names more than 256 places: an empty one hands over the whole body"
        }
        "wants-pointer" => {
            "a place in `wants` is no JSON Pointer: write \"/messages/0/content\", with ~0 for ~ \
             and ~1 for / in a key"
        }
        "wants-overlap" => {
            "places in `wants` overlap: name each once, and none inside another (\"/messages\" holds \
             \"/messages/0\", and \"\" holds all)"
        }
        _ => "",
    }
}

/// Checks the answer of `prepare`.
pub fn prepared(prepared: &PrepareResult, bounds: &Bounds) -> ValidationResult {
    edit(&prepared.edit, bounds)?;
    metrics(&prepared.metrics)?;
    state(&prepared.state)?;
    rule(
        prepared.attributes.len() <= ATTRIBUTES_MAX,
        "attribute-count",
    )?;
    for (name, value) in &prepared.attributes {
        let fits = name.len() <= WORD_MAX_BYTES && value.len() <= WORD_MAX_BYTES;
        rule(fits, "attribute-length")?;
        let name = name.to_ascii_lowercase();
        let forbidden = FORBIDDEN_ATTRIBUTES.contains(&name.as_str());
        rule(!forbidden, "attribute-name")?;
    }
    match &prepared.backend_path {
        Some(path) => rule(is_path(path), "backend-path"),
        None => Ok(()),
    }
}

/// Checks the answer of `finish`.
pub fn finished(finished: &FinishResult, bounds: &Bounds) -> ValidationResult {
    edit(&finished.edit, bounds)?;
    metrics(&finished.metrics)
}

/// Checks the answer of `push` to `given` events; `close` may return any number up to 16 of its own.
pub fn step(step: &StreamResult, given: Option<usize>, output_max: usize) -> ValidationResult {
    /// Events a stream's end may add.
    const CLOSING_MAX: usize = 16;
    match given {
        Some(given) => rule(step.events.len() == given, "event-count")?,
        None => rule(step.events.len() <= CLOSING_MAX, "event-count")?,
    }
    let mut bytes = 0;
    for event in &step.events {
        if let EventEdit::Replace(event) = event {
            bytes += event.data.len();
            let named = event.name.as_deref().unwrap_or_default();
            rule(named.len() <= WORD_MAX_BYTES, "event-name")?;
            rule(!named.contains(['\r', '\n', '\0']), "event-name")?;
            let utf8 = std::str::from_utf8(&event.data).is_ok();
            rule(utf8 && !event.data.contains(&b'\r'), "event-data")?;
        }
    }
    rule(bytes <= output_max, "output-size")?;
    metrics(&step.metrics)?;
    state(&step.state)
}

/// Metrics: few, named, finite, not negative, each once.
pub fn metrics(metrics: &[(String, f64)]) -> ValidationResult {
    rule(metrics.len() <= METRICS_MAX, "metric-count")?;
    let mut names = HashSet::with_capacity(metrics.len());
    for (name, value) in metrics {
        let named = !name.is_empty() && name.len() <= METRIC_NAME_MAX_BYTES;
        rule(named && !name.contains(char::is_control), "metric-name")?;
        rule((0.0..=QUANTITY_MAX).contains(value), "metric-value")?;
        rule(names.insert(name.as_str()), "metric-repeated")?;
    }
    Ok(())
}

/// A rejection as the caller may see it: a status of 400 to 499, a text of one bounded line.
pub fn sanitize(rejection: Rejection) -> Rejection {
    let status = match rejection.status {
        400..=499 => rejection.status,
        _ => 400,
    };
    let pointer = rejection
        .pointer
        .filter(|pointer| is_pointer(pointer) && !pointer.contains(char::is_control));
    let message = rejection
        .message
        .chars()
        .take(TEXT_MAX_CHARS)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    Rejection {
        status,
        code: rejection.code.chars().take(64).collect(),
        message,
        pointer,
    }
}

fn edit(edit: &BodyEdit, bounds: &Bounds) -> ValidationResult {
    let bytes = match edit {
        BodyEdit::Keep => 0,
        BodyEdit::Replace(body) => body.len(),
        BodyEdit::Set(fields) => {
            rule(fields.len() <= EDITS_MAX, "edit-count")?;
            let largest = fields.iter().map(|field| field.json.len()).max();
            rule(largest.unwrap_or(0) <= bounds.set_bytes, "set-size")?;
            fields.iter().map(|f| f.json.len() + f.pointer.len()).sum()
        }
    };
    rule(bytes <= bounds.output_bytes, "output-size")
}

fn state(state: &[u8]) -> ValidationResult {
    rule(state.len() <= STATE_MAX_BYTES, "state-size")
}

/// A path under the endpoint's base URL: no query, no way up, nothing that ends a request line.
fn is_path(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%@:+,=".contains(&byte);
    path.len() <= WORD_MAX_BYTES
        && path.starts_with('/')
        && path.bytes().all(plain)
        && !path.split('/').any(|part| part == "..")
        && !has_hidden_separator(path)
}

/// True when a path holds a dot, a slash or a control character that only its server would see.
fn has_hidden_separator(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    ["%2e", "%2f", "%5c", "%7f", "%0", "%1"]
        .iter()
        .any(|hidden| path.contains(hidden))
}

#[cfg(test)]
mod tests {
    use super::*;
    use infergate_core::task::{BodyField, StreamEvent};

    const MAX: usize = 1 << 20;
    const BOUNDS: Bounds = Bounds {
        memory_bytes: 1 << 20,
        deadline_ms: 1,
        stream_deadline_ms: 1,
        output_bytes: MAX,
        set_bytes: 100,
        charge_max: 100,
    };

    fn one(name: &str, value: f64) -> ValidationResult {
        metrics(&[(name.into(), value)])
    }

    #[test]
    fn wanted_places_stand_once_and_apart() {
        let wants = |wants: &[&str]| {
            description(&TaskDescription {
                wants: wants.iter().map(|want| (*want).to_owned()).collect(),
                ..TaskDescription::default()
            })
        };
        assert_eq!(wants(&[]), Ok(()));
        assert_eq!(wants(&[""]), Ok(()));
        assert_eq!(wants(&["/a", "/ab", "/b/0", "/b/1"]), Ok(()));
        for overlapping in [
            &["/a", "/a"][..],
            &["", "/a"],
            &["/a", "/b", ""],
            &["/a/b/c", "/x", "/a/b"],
        ] {
            assert_eq!(wants(overlapping), Err("wants-overlap"), "{overlapping:?}");
        }
        let many = vec!["/messages"; 256];
        assert_eq!(wants(&many), Err("wants-overlap"));
        assert_eq!(wants(&["a"]), Err("wants-pointer"));
        assert_eq!(wants(&["/a~b"]), Err("wants-pointer"));
        for rule in ["wants-count", "wants-pointer", "wants-overlap"] {
            assert!(advice(rule).contains("`wants`"), "{rule}");
        }
    }

    #[test]
    fn metrics_are_finite_not_negative_small_and_named_once() {
        assert_eq!(one("steps", 20.0), Ok(()));
        for value in [f64::NAN, f64::INFINITY, -0.5, QUANTITY_MAX * 2.0] {
            assert_eq!(one("steps", value), Err("metric-value"), "{value}");
        }
        assert_eq!(one("", 1.0), Err("metric-name"));
        assert_eq!(one(&"x".repeat(65), 1.0), Err("metric-name"));
        let twice = vec![("a".to_owned(), 1.0); 2];
        assert_eq!(metrics(&twice), Err("metric-repeated"));
        let many: Vec<_> = (0..65).map(|n| (n.to_string(), 1.0)).collect();
        assert_eq!(metrics(&many), Err("metric-count"));
    }

    #[test]
    fn a_payload_is_bounded_and_names_no_credentials_and_no_way_out() {
        let prepared = |change: fn(&mut PrepareResult)| {
            let mut answer = PrepareResult::default();
            change(&mut answer);
            super::prepared(&answer, &BOUNDS)
        };
        assert_eq!(prepared(|_| {}), Ok(()));
        assert_eq!(prepared(|p| p.state = vec![0; 4097]), Err("state-size"));
        assert_eq!(
            prepared(|p| p.edit = BodyEdit::Replace(vec![0; MAX + 1])),
            Err("output-size")
        );
        assert_eq!(
            prepared(|p| p.attributes = vec![("Authorization".into(), "x".into())]),
            Err("attribute-name")
        );
        for path in [
            "v1",
            "/../x",
            "/a b",
            "/a?b",
            "/%2E%2e/x",
            "/x/..%2fy",
            "/x%5C..",
            "/x%0d",
            "/x\r\nHost: y",
        ] {
            let answer = PrepareResult {
                backend_path: Some(path.into()),
                ..PrepareResult::default()
            };
            assert_eq!(
                super::prepared(&answer, &BOUNDS),
                Err("backend-path"),
                "{path}"
            );
        }
        let field = BodyField {
            pointer: "/x".into(),
            json: "1".into(),
        };
        let answer = FinishResult {
            edit: BodyEdit::Set(vec![field; 257]),
            ..FinishResult::default()
        };
        assert_eq!(finished(&answer, &BOUNDS), Err("edit-count"));
        let large = BodyField {
            pointer: "/x".into(),
            json: "1".repeat(101),
        };
        let answer = FinishResult {
            edit: BodyEdit::Set(vec![large]),
            ..FinishResult::default()
        };
        assert_eq!(finished(&answer, &BOUNDS), Err("set-size"));
    }

    #[test]
    fn a_step_answers_every_event_and_cannot_forge_another() {
        let replaced = |name: Option<&str>, data: &[u8]| StreamResult {
            events: vec![EventEdit::Replace(StreamEvent {
                name: name.map(str::to_owned),
                data: data.to_vec(),
            })],
            ..StreamResult::default()
        };
        assert_eq!(step(&replaced(None, b"{}"), Some(1), MAX), Ok(()));
        assert_eq!(
            step(&replaced(None, b"{}"), Some(2), MAX),
            Err("event-count")
        );
        assert_eq!(
            step(&replaced(Some("a\ndata: b"), b""), Some(1), MAX),
            Err("event-name")
        );
        assert_eq!(
            step(&replaced(None, b"a\rb"), Some(1), MAX),
            Err("event-data")
        );
        assert_eq!(
            step(&replaced(None, &[0xff]), Some(1), MAX),
            Err("event-data")
        );
        assert_eq!(
            step(&replaced(None, b"abc"), Some(1), 2),
            Err("output-size")
        );
    }

    #[test]
    fn a_rejection_is_a_client_error_of_one_line() {
        let tamed = sanitize(Rejection {
            status: 200,
            code: "x".into(),
            message: "a\nb".into(),
            pointer: Some("not a pointer".into()),
        });
        assert_eq!(
            (tamed.status, &*tamed.message, tamed.pointer),
            (400, "a b", None)
        );
    }
}
