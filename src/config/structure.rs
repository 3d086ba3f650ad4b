//! Structural check: keys, types, words and bounds, all errors at once, by the JSON Schema.
//!
//! Relations between keys are checked elsewhere. No other file names the schema validator; here its
//! errors become sentences for a person.

use std::net::SocketAddr;
use std::sync::LazyLock;

use infergate_core::model::UNIX_PATH_BYTES_MAX;
use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, ValidationError, Validator};
use serde_json::Value;

use super::document::{Cursor, DocumentNode, NodeData};
use super::problem::{Problem, Problems, path_of_key};
use super::schema::{SCHEMA, words};
use crate::downstream::ListenAddress;

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    jsonschema::options()
        .with_draft(Draft::Draft7)
        .with_format("socket-address", |text: &str| {
            text.parse::<SocketAddr>().is_ok()
        })
        .with_format("listen-address", |text: &str| {
            ListenAddress::try_from(text.to_owned()).is_ok()
        })
        .should_validate_formats(true)
        .build(&SCHEMA)
        .expect("the schema is made by schemars and checked by a test")
});

/// Reports every place where the tree does not have the shape of the configuration.
pub(super) fn check(root: &DocumentNode, problems: &mut Problems) {
    let value = root.to_value();
    let root = Cursor::root(root);
    for error in VALIDATOR.iter_errors(&value) {
        let Some(here) = root.at(error.instance_path().as_str()) else {
            continue;
        };
        report(&error, &here, problems);
    }
}

fn report(error: &ValidationError<'_>, here: &Cursor<'_>, problems: &mut Problems) {
    let schema = schema_of(error);
    let message = match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            for key in unexpected {
                if let Some(found) = here.key(key) {
                    problems.add(found.problem(unknown_key(key, schema)));
                }
            }
            return;
        }
        ValidationErrorKind::Required { property } => {
            let key = property.as_str().unwrap_or_default();
            let path = path_of_key(&here.path, key);
            let expected = expected(&schema["properties"][key]);
            let message = format!("`{key}` is required: add it ({expected})");
            problems.add(Problem::new(path, here.place, message));
            return;
        }
        ValidationErrorKind::Type { .. } | ValidationErrorKind::AnyOf { .. } => {
            wrong_type(here, schema)
        }
        ValidationErrorKind::Enum { .. } | ValidationErrorKind::OneOfNotValid { .. } => {
            wrong_word(here, schema)
        }
        ValidationErrorKind::Minimum { .. } => out_of_range(here, schema, "too small"),
        ValidationErrorKind::Maximum { .. } => out_of_range(here, schema, "too large"),
        ValidationErrorKind::MinItems { limit } => {
            format!("the list needs at least {limit} {}", items(*limit))
        }
        ValidationErrorKind::MaxItems { limit } => {
            format!("the list may have at most {limit} {}", items(*limit))
        }
        ValidationErrorKind::MinLength { .. } => "must not be empty".to_owned(),
        ValidationErrorKind::Pattern { .. } => {
            "expected the 64 hex digits of a SHA-256, never the key itself: `printf %s \"$KEY\" | sha256sum` prints them".to_owned()
        }
        ValidationErrorKind::Format { .. } if here.shown().contains("unix:") => format!(
            "expected `unix:` and an absolute path of at most {UNIX_PATH_BYTES_MAX} bytes, found {}",
            here.shown()
        ),
        ValidationErrorKind::Format { .. } => format!(
            "expected an IP address and a port such as 127.0.0.1:8080 or [::]:8080, found {}",
            here.shown()
        ),
        _ => format!("{} does not fit the schema: {}", here.shown(), error.masked()),
    };
    problems.add(here.problem(message));
}

/// The part of the schema that holds the keyword which failed.
fn schema_of(error: &ValidationError<'_>) -> &'static Value {
    let keyword = error.schema_path().as_str();
    let parent = keyword.rsplit_once('/').map_or("", |(parent, _)| parent);
    SCHEMA.pointer(parent).unwrap_or(&Value::Null)
}

fn items(count: u64) -> &'static str {
    if count == 1 { "item" } else { "items" }
}

fn unknown_key(key: &str, schema: &Value) -> String {
    let known: Vec<&str> = match schema["properties"].as_object() {
        Some(properties) => properties.keys().map(String::as_str).collect(),
        None => Vec::new(),
    };
    if let Some(near) = nearest(key, known.iter().copied()) {
        return format!("unknown key `{key}`: did you mean `{near}`?");
    }
    // Short words, such as `name`, mean something else elsewhere.
    const DISTINCTIVE_BYTES_MIN: usize = 5;
    let mut elsewhere = Vec::new();
    if key.len() >= DISTINCTIVE_BYTES_MIN {
        places_of(key, &SCHEMA, "", &mut elsewhere);
    }
    match &elsewhere[..] {
        [only] => return format!("unknown key `{key}` here: it belongs at `{only}`"),
        [one, other] => {
            return format!("unknown key `{key}` here: it belongs at `{one}` or `{other}`");
        }
        _ => {}
    }
    format!(
        "unknown key `{key}`: the keys here are {}",
        known.join(", ")
    )
}

/// Every path in the schema that ends in `key`.
fn places_of(key: &str, schema: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            let path = path_of_key(path, name);
            if name == key {
                found.push(path.clone());
            }
            places_of(key, property, &path, found);
        }
    }
    if schema["items"].is_object() {
        places_of(key, &schema["items"], &format!("{path}[]"), found);
    }
}

/// The candidate that `word` most probably is a slip for.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    /// Jaro-Winkler: high enough that `prot` finds `port` and `banana` finds nothing.
    const SIMILAR: f64 = 0.84;
    let folded = word.to_lowercase().replace('-', "_");
    candidates
        .map(|c| {
            (
                strsim::jaro_winkler(&folded, &c.to_lowercase().replace('-', "_")),
                c,
            )
        })
        .filter(|(score, _)| *score >= SIMILAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Describes in words the value that a schema expects.
fn expected(schema: &Value) -> String {
    let words = words(schema);
    if !words.is_empty() {
        return format!("one of {}", words.join(", "));
    }
    match schema["type"].as_str() {
        Some("integer") => match (schema["minimum"].as_i64(), schema["maximum"].as_u64()) {
            (Some(min), Some(max)) if max < u64::from(u32::MAX) => {
                format!("a whole number from {min} to {max}")
            }
            (Some(min), _) if min > 0 => format!("a whole number, at least {min}"),
            _ => "a whole number".to_owned(),
        },
        Some("number") if schema["minimum"].as_f64() == Some(0.0) => {
            "a number, at least 0".to_owned()
        }
        Some("number") => "a number".to_owned(),
        Some("boolean") => "true or false".to_owned(),
        Some("string") => "text".to_owned(),
        Some("array") => "a list".to_owned(),
        Some("object") => "a mapping with keys below it".to_owned(),
        None if schema["type"].is_array() => "a name or a whole number".to_owned(),
        None if schema["anyOf"].is_array() => one_of_forms(schema),
        _ => "another kind of value".to_owned(),
    }
}

/// Describes in words the forms that a value may have.
fn one_of_forms(schema: &Value) -> String {
    let forms = schema["anyOf"].as_array().into_iter().flatten();
    let forms = forms.map(|form| match form["properties"].as_object() {
        Some(keys) => {
            let keys: Vec<&str> = keys.keys().map(String::as_str).collect();
            format!("a mapping of {}", keys.join(", "))
        }
        None => expected(form),
    });
    forms.collect::<Vec<String>>().join(" or ")
}

fn wrong_type(here: &Cursor<'_>, schema: &Value) -> String {
    let expected = expected(schema);
    let message = match &here.node.data {
        NodeData::Null => {
            return format!("empty: expected {expected}; remove the key to get its default");
        }
        _ => format!("expected {expected}, found {}", here.shown()),
    };
    match (hint(here, schema), message) {
        (Some(hint), message) => format!("{message}: {hint}"),
        (None, message) => message,
    }
}

/// Probable intention behind a value of the wrong type.
fn hint(here: &Cursor<'_>, schema: &Value) -> Option<String> {
    const UNITS: &[&str] = &["_secs", "_ms", "_mib", "_kib"];
    let kind = schema["type"].as_str()?;
    match (&here.node.data, kind) {
        (NodeData::Text(text), "integer" | "number") if text.source.is_some() => {
            Some("a value with ${…} is always text".to_owned())
        }
        (NodeData::Text(text), "integer" | "number") => {
            let trimmed = text.value.trim();
            let number = trimmed.trim_end_matches(|c: char| !c.is_ascii_digit());
            if trimmed.parse::<f64>().is_ok_and(f64::is_finite) {
                Some("write it without quotes".to_owned())
            } else if number.parse::<u64>().is_ok()
                && UNITS.iter().any(|unit| here.path.ends_with(unit))
            {
                Some(format!("write {number} alone, the unit stands in the key"))
            } else {
                None
            }
        }
        (NodeData::Text(text), "boolean")
            if matches!(&*text.value.to_lowercase(), "yes" | "no" | "on" | "off") =>
        {
            Some("YAML 1.2 knows only true and false".to_owned())
        }
        (NodeData::Number(_) | NodeData::Bool(_), "string") => Some("put it in quotes".to_owned()),
        (NodeData::Text(_) | NodeData::Number(_) | NodeData::Map(_), "array") => {
            Some("begin each item with `- `".to_owned())
        }
        _ => None,
    }
}

fn wrong_word(here: &Cursor<'_>, schema: &Value) -> String {
    let words = words(schema);
    let listed = words.join(", ");
    let Some(text) = here.text() else {
        return format!("expected one of {listed}, found {}", here.shown());
    };
    match nearest(text, words.iter().map(String::as_str)) {
        Some(near) => {
            format!(
                "expected one of {listed}, found {}: did you mean `{near}`?",
                here.shown()
            )
        }
        None => format!("expected one of {listed}, found {}", here.shown()),
    }
}

fn out_of_range(here: &Cursor<'_>, schema: &Value, what: &str) -> String {
    format!("{} is {what}: expected {}", here.shown(), expected(schema))
}
