//! JSON Schemas of tasks, compiled once and enforced natively before any guest is called.
//!
//! Fetches nothing: a `$ref` out of the schema is refused. Patterns run on an engine of linear time. A schema
//! has at most [`SCHEMA_MAX_BYTES`] and stands for at most 10,000 subschemas. A check takes a bounded number
//! of steps for each byte of the body and builds no tree. A message has at most [`MESSAGE_MAX_CHARS`] and
//! never repeats what the client sent.

use std::fmt::Write;
use std::sync::Arc;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use serde_json::Value;

use crate::plugin::json::expansion;
use crate::plugin::json::fast::SchemaPlan;
use crate::plugin::json::pointer;
use crate::plugin::json::{Outline, OutlineJson};

/// Real schemas have a tenth of it.
pub const SCHEMA_MAX_BYTES: usize = 256 << 10;
/// Bytes of compiled pattern: a schema's author must not make the gateway large.
const PATTERN_MAX_BYTES: usize = 1 << 20;
/// Long enough for a sentence and a list of words.
const MESSAGE_MAX_CHARS: usize = 400;

/// Errors that are listed to find the one that is told.
const ERRORS_MAX: u32 = 1_000;
/// A schema that stands for more subschemas is heavy: even a short body takes long.
const HEAVY_FROM: u64 = 1_000;

/// A compiled schema with its text.
#[derive(Debug)]
pub struct Schema {
    text: Arc<str>,
    root: Value,
    validator: Validator<OutlineJson>,
    /// For the check in one pass; none where a keyword has none.
    plan: Option<SchemaPlan>,
    /// Subschemas it stands for.
    expansion: u64,
    /// Members of the value that are files in base64.
    encoded: Arc<[Box<str>]>,
}

/// Reason why a body does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaError {
    /// The body breaks the schema.
    Violation(SchemaViolation),
    /// The check took more steps than a body of its length may.
    TooCostly,
}

/// Place at which a value does not fit, and the expectation there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaViolation {
    /// RFC 6901, empty for the whole body.
    pub pointer: String,
    /// For the caller to read.
    pub message: String,
}

impl Schema {
    /// Compiles a schema (2020-12 unless it declares another version).
    ///
    /// # Errors
    /// A sentence with the place in the schema, when it is too large, not JSON, not a schema, or refers
    /// elsewhere.
    pub fn compile(text: &str) -> Result<Schema, String> {
        if text.len() > SCHEMA_MAX_BYTES {
            return Err(format!(
                "the schema is larger than {SCHEMA_MAX_BYTES} bytes"
            ));
        }
        let root: Value = serde_json::from_str(text)
            .map_err(|error| format!("the schema is not JSON: {error}"))?;
        let expansion =
            expansion::count(&root).map_err(|why| format!("the schema cannot be used: {why}"))?;
        let patterns = PatternOptions::regex()
            .size_limit(PATTERN_MAX_BYTES)
            .dfa_size_limit(PATTERN_MAX_BYTES);
        let validator = jsonschema::options_for::<OutlineJson>()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(patterns)
            .offline()
            .build(&root)
            .map_err(|error| unusable(&error))?;
        let plan = SchemaPlan::of(&root);
        let encoded = encoded_members(&root);
        Ok(Schema {
            text: text.into(),
            root,
            validator,
            plan,
            expansion,
            encoded,
        })
    }

    /// True when even a short body is better checked off the worker.
    pub fn is_heavy(&self) -> bool {
        self.expansion > HEAVY_FROM
    }

    /// Names of the members that it describes as `contentEncoding: base64` (JSON Schema 2020-12, validation 8.3).
    pub fn encoded(&self) -> &Arc<[Box<str>]> {
        &self.encoded
    }

    /// The schema as it was written.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// Returns whether a JSON text certainly fits, and no name stands twice in one of its objects. Where this is
    /// false, [`Schema::check`] tells.
    pub fn accepts(&self, text: &[u8]) -> bool {
        self.accepts_within(text, u64::MAX)
    }

    /// As [`Schema::accepts`], in so many steps at most; false where they do not suffice.
    pub fn accepts_within(&self, text: &[u8], steps_max: u64) -> bool {
        let accepts = |plan: &SchemaPlan| plan.accepts_within(text, steps_max);
        self.plan.as_ref().is_some_and(accepts)
    }

    #[cfg(test)]
    pub(super) fn has_plan(&self) -> bool {
        self.plan.is_some()
    }

    /// Checks a body.
    ///
    /// # Errors
    /// The first place where it does not.
    pub fn check(&self, body: &Outline) -> Result<(), SchemaError> {
        body.refill(u32::MAX);
        let fits = self.validator.is_valid(body.root());
        if body.is_exhausted() {
            return Err(SchemaError::TooCostly);
        }
        if fits {
            return Ok(());
        }
        body.refill(ERRORS_MAX);
        let misfit = match self.validator.validate(body.root()) {
            Err(error) if !body.is_exhausted() => self.violation(&error),
            // Listing the errors took too long; that there are some is known.
            _ => SchemaViolation {
                pointer: String::new(),
                message: "the body does not fit the schema of its input".into(),
            },
        };
        Err(SchemaError::Violation(misfit))
    }

    /// Checks a value, for tools.
    pub fn fits(&self, value: &Value) -> bool {
        Outline::read(value.to_string().into()).is_ok_and(|body| self.check(&body).is_ok())
    }

    fn violation(&self, error: &ValidationError<'_>) -> SchemaViolation {
        if let ValidationErrorKind::AnyOf { context }
        | ValidationErrorKind::OneOfNotValid { context } = error.kind()
        {
            return self.all_violations(error, context);
        }
        let here = error.instance_path().as_str();
        let below = |key: &str| format!("{here}/{}", pointer::escape(key));
        let (pointer, message) = match error.kind() {
            ValidationErrorKind::Required { property } => {
                let key = property.as_str().unwrap_or_default();
                let schema = &self.around(error)["properties"][key];
                (
                    below(key),
                    format!("`{key}` is required{}", required_kind(schema)),
                )
            }
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                let key = unexpected.first().map_or("", String::as_str);
                (below(key), self.unknown(error, key))
            }
            kind => (
                here.to_owned(),
                format!("{} {}", name(here), self.expected(error, kind)),
            ),
        };
        SchemaViolation {
            pointer,
            message: short(message),
        }
    }

    /// None of several shapes fits: the one that was meant is the one that went deepest; where all
    /// only miss a key, the keys are the choice.
    fn all_violations(
        &self,
        error: &ValidationError<'_>,
        context: &[Vec<ValidationError<'static>>],
    ) -> SchemaViolation {
        let here = error.instance_path().as_str();
        let firsts: Vec<&ValidationError<'_>> = context.iter().filter_map(|c| c.first()).collect();
        let missing: Vec<&str> = firsts
            .iter()
            .filter_map(|first| match first.kind() {
                ValidationErrorKind::Required { property }
                    if first.instance_path().as_str() == here =>
                {
                    property.as_str()
                }
                _ => None,
            })
            .collect();
        if let Some(first) = missing.first()
            && missing.len() == firsts.len()
        {
            let keys: Vec<String> = missing.iter().map(|key| format!("`{key}`")).collect();
            return SchemaViolation {
                pointer: format!("{here}/{}", pointer::escape(first)),
                message: short(format!("{} is required", keys.join(" or "))),
            };
        }
        let types: Option<Vec<String>> = firsts
            .iter()
            .map(|first| match first.kind() {
                ValidationErrorKind::Type { kind } if first.instance_path().as_str() == here => {
                    Some(types(kind))
                }
                _ => None,
            })
            .collect();
        if let Some(types) = types.filter(|types| !types.is_empty()) {
            return SchemaViolation {
                pointer: here.to_owned(),
                message: short(format!("{} must be {}", name(here), types.join(" or "))),
            };
        }
        let depth = |e: &ValidationError<'_>| e.instance_path().as_str().matches('/').count();
        // Of several as deep, the first.
        let deepest = context.iter().flatten().rev().max_by_key(|e| {
            let is_type = matches!(e.kind(), ValidationErrorKind::Type { .. });
            (depth(e), !is_type)
        });
        match deepest {
            Some(inner) => self.violation(inner),
            None => SchemaViolation {
                pointer: here.to_owned(),
                message: short(format!("{} has none of the shapes it may have", name(here))),
            },
        }
    }

    /// Describes the expected value, as the end of a sentence.
    fn expected(&self, error: &ValidationError<'_>, kind: &ValidationErrorKind) -> String {
        use ValidationErrorKind as Kind;
        match kind {
            Kind::Type { kind } => format!("must be {}", types(kind)),
            Kind::Minimum { limit } => format!("must be at least {limit}"),
            Kind::Maximum { limit } => format!("must be at most {limit}"),
            Kind::ExclusiveMinimum { limit } => format!("must be more than {limit}"),
            Kind::ExclusiveMaximum { limit } => format!("must be less than {limit}"),
            Kind::MultipleOf { multiple_of } => format!("must be a multiple of {multiple_of}"),
            Kind::MinLength { limit: 1 } => "must not be empty".into(),
            Kind::MinLength { limit } => format!("must have at least {limit} characters"),
            Kind::MaxLength { limit } => format!("must have at most {limit} characters"),
            Kind::MinItems { limit: 1 } => "must not be empty".into(),
            Kind::MinItems { limit } => format!("must have at least {limit} items"),
            Kind::MaxItems { limit } => format!("must have at most {limit} items"),
            Kind::MinProperties { limit } => format!("must have at least {limit} keys"),
            Kind::MaxProperties { limit } => format!("must have at most {limit} keys"),
            Kind::UniqueItems => "must not have the same item twice".into(),
            Kind::Enum { options } => format!("must be one of {}", listed(options)),
            Kind::Constant { expected_value } => format!("must be {expected_value}"),
            Kind::Pattern { pattern } => format!("must match `{pattern}`"),
            Kind::Format { format } => format!("must be a {format}"),
            Kind::FalseSchema => "is not allowed here".into(),
            Kind::OneOfMultipleValid { .. } => "has more than one of the shapes it may have".into(),
            Kind::Not { .. } => "has a shape that is not allowed".into(),
            _ => {
                let keyword = error.schema_path().as_str().rsplit('/').next();
                format!("breaks `{}` of the schema", keyword.unwrap_or_default())
            }
        }
    }

    fn unknown(&self, error: &ValidationError<'_>, key: &str) -> String {
        let mut message = format!("unknown key `{key}`");
        if let Some(known) = self.around(error)["properties"].as_object() {
            let known: Vec<&str> = known.keys().map(String::as_str).take(24).collect();
            let _ = write!(message, ": the keys here are {}", known.join(", "));
        }
        message
    }

    /// The part of the schema that holds the keyword which failed.
    fn around(&self, error: &ValidationError<'_>) -> &Value {
        let keyword = error.schema_path().as_str();
        let parent = keyword.rsplit_once('/').map_or("", |(parent, _)| parent);
        self.root.pointer(parent).unwrap_or(&Value::Null)
    }
}

/// Members of an object that are in base64, by its schema.
fn encoded_members(root: &Value) -> Arc<[Box<str>]> {
    let members = root.get("properties").and_then(Value::as_object);
    let is_encoded = |schema: &Value| schema.get("contentEncoding") == Some(&"base64".into());
    let members = members.into_iter().flatten();
    let encoded = members.filter(|(_, schema)| is_encoded(schema));
    encoded.map(|(name, _)| name.as_str().into()).collect()
}

/// Name of the place in a message: its last key.
fn name(pointer: &str) -> String {
    if pointer.is_empty() {
        return "the body".into();
    }
    let mut parts: Vec<String> = pointer.split('/').skip(1).map(pointer::unescape).collect();
    let mut index = String::new();
    while parts.len() > 1 && parts.last().is_some_and(|p| p.parse::<usize>().is_ok()) {
        index.insert_str(0, &format!("[{}]", parts.pop().unwrap_or_default()));
    }
    format!("`{}{index}`", parts.last().map_or("", String::as_str))
}

fn types(kind: &TypeKind) -> String {
    let words: Vec<&str> = match kind {
        TypeKind::Single(one) => vec![word(&one.to_string())],
        TypeKind::Multiple(set) => set.iter().map(|one| word(&one.to_string())).collect(),
    };
    words.join(" or ")
}

fn word(json_type: &str) -> &'static str {
    match json_type {
        "null" => "null",
        "boolean" => "true or false",
        "integer" => "a whole number",
        "number" => "a number",
        "string" => "text",
        "array" => "a list",
        _ => "an object",
    }
}

/// Describes the value of a required key, where its schema does.
fn required_kind(schema: &Value) -> String {
    match schema["type"].as_str() {
        Some(json_type) => format!(": {}", word(json_type)),
        None => String::new(),
    }
}

fn listed(options: &Value) -> String {
    match options.as_array() {
        Some(options) => {
            let words: Vec<String> = options.iter().map(Value::to_string).collect();
            words.join(", ")
        }
        None => options.to_string(),
    }
}

fn short(message: String) -> String {
    match message.char_indices().nth(MESSAGE_MAX_CHARS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    }
}

/// Reason for which a JSON text is no schema, for its author: the place, its value and the allowed ones.
fn unusable(error: &ValidationError<'_>) -> String {
    let place = error.instance_path().as_str();
    let shown = if place.is_empty() { "/" } else { place };
    let hint = match place.rsplit('/').next() {
        Some("type") => {
            "; a type is array, boolean, integer, null, number, object or string, or a list of these"
        }
        _ => "",
    };
    let why: String = error.to_string().chars().take(MESSAGE_MAX_CHARS).collect();
    format!("the schema cannot be used: at `{shown}`: {why}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema(value: Value) -> Schema {
        Schema::compile(&value.to_string()).unwrap()
    }

    fn outline(value: &Value) -> Outline {
        Outline::read(value.to_string().into()).unwrap()
    }

    fn misfit(schema: &Schema, value: Value) -> (String, String) {
        match schema.check(&outline(&value)).unwrap_err() {
            SchemaError::Violation(misfit) => (misfit.pointer, misfit.message),
            SchemaError::TooCostly => panic!("too costly"),
        }
    }

    fn image() -> Schema {
        schema(json!({
            "type": "object",
            "required": ["prompt"],
            "additionalProperties": false,
            "properties": {
                "prompt": { "type": "string", "minLength": 1 },
                "steps": { "type": "integer", "minimum": 1, "maximum": 20 },
                "size": { "enum": ["small", "large"] },
                "a/b~c": { "type": "array", "items": { "type": "number" } }
            }
        }))
    }

    #[test]
    fn the_first_misfit_has_a_pointer_and_names_key_and_expectation() {
        let s = image();
        let expected_words = |value| misfit(&s, value);
        assert_eq!(
            expected_words(json!({})),
            ("/prompt".into(), "`prompt` is required: text".into())
        );
        assert_eq!(
            expected_words(json!({ "prompt": "x", "steps": 21 })),
            ("/steps".into(), "`steps` must be at most 20".into())
        );
        assert_eq!(
            expected_words(json!({ "prompt": "x", "steps": "7" })),
            ("/steps".into(), "`steps` must be a whole number".into())
        );
        assert_eq!(
            expected_words(json!({ "prompt": "" })),
            ("/prompt".into(), "`prompt` must not be empty".into())
        );
        assert_eq!(
            expected_words(json!({ "prompt": "x", "size": "huge" })),
            (
                "/size".into(),
                r#"`size` must be one of "small", "large""#.into()
            )
        );
        assert_eq!(
            expected_words(json!({ "prompt": "x", "stps": 1 })),
            (
                "/stps".into(),
                "unknown key `stps`: the keys here are prompt, steps, size, a/b~c".into()
            )
        );
        assert_eq!(
            expected_words(json!({ "prompt": "x", "a/b~c": [1, true] })),
            ("/a~1b~0c/1".into(), "`a/b~c[1]` must be a number".into())
        );
        assert_eq!(
            expected_words(json!([])),
            (String::new(), "the body must be an object".into())
        );
    }

    #[test]
    fn of_several_shapes_the_missing_keys_or_the_deepest_misfit_are_named() {
        let s = schema(json!({
            "type": "object",
            "anyOf": [{ "required": ["prompt"] }, { "required": ["messages"] }],
            "properties": {
                "text": { "anyOf": [
                    { "type": "string" },
                    { "type": "array", "items": { "type": "string" } }
                ] }
            }
        }));
        assert_eq!(
            misfit(&s, json!({})),
            (
                "/prompt".into(),
                "`prompt` or `messages` is required".into()
            )
        );
        assert_eq!(
            misfit(&s, json!({ "prompt": "", "text": 7 })),
            ("/text".into(), "`text` must be text or a list".into())
        );
        assert_eq!(
            misfit(&s, json!({ "prompt": "", "text": ["a", 7] })),
            ("/text/1".into(), "`text[1]` must be text".into())
        );
    }

    #[test]
    fn a_reference_out_of_the_schema_is_refused() {
        for reference in [
            "http://127.0.0.1:1/x.json",
            "file:///etc/passwd",
            "other.json",
        ] {
            let text = json!({ "$ref": reference }).to_string();
            assert!(Schema::compile(&text).is_err(), "{reference}");
        }
        let inside = json!({ "$ref": "#/$defs/x", "$defs": { "x": { "type": "string" } } });
        assert!(!schema(inside).fits(&json!(1)));
    }

    #[test]
    fn a_schema_is_bounded_and_a_pattern_too() {
        let large = format!(r#"{{"description":"{}"}}"#, "x".repeat(SCHEMA_MAX_BYTES));
        assert!(Schema::compile(&large).is_err());
        assert!(Schema::compile("{").is_err());
        assert!(Schema::compile(r#"{"type":"strin"}"#).is_err());
        for (schema, expected_words) in [
            (
                json!({ "properties": { "prompt": { "type": "strin" } } }),
                ["`/properties/prompt/type`", "\"strin\"", "a type is array"],
            ),
            (
                json!({ "properties": { "n": { "minimum": "1" } } }),
                ["`/properties/n/minimum`", "\"1\"", "number"],
            ),
            (
                json!({ "anyOf": [{}, { "required": "prompt" }] }),
                ["`/anyOf/1/required`", "\"prompt\"", "array"],
            ),
        ] {
            let why = Schema::compile(&schema.to_string()).unwrap_err();
            assert!(
                expected_words.iter().all(|word| why.contains(word)),
                "{why}"
            );
        }
        let bomb = json!({ "type": "string", "pattern": "(((a{1000}){1000}){1000})" });
        assert!(Schema::compile(&bomb.to_string()).is_err());
        let slow = schema(json!({ "type": "string", "pattern": "^(a+)+$" }));
        assert!(!slow.fits(&json!("a".repeat(30_000) + "b")));
    }

    #[test]
    fn a_message_never_repeats_the_value_and_is_short() {
        let s = schema(json!({ "enum": (0..500).map(|n| n.to_string()).collect::<Vec<_>>() }));
        let (_, message) = misfit(&s, json!("my secret"));
        assert!(!message.contains("secret"));
        assert!(message.chars().count() <= MESSAGE_MAX_CHARS + 1);
    }

    #[test]
    fn a_long_list_is_checked_item_by_item_and_the_first_misfit_found() {
        let bytes = schema(json!({ "properties": { "image": {
            "type": ["string", "array"],
            "items": { "type": "integer", "minimum": 0, "maximum": 255 }
        } } }));
        let list = |last: &str| format!(r#"{{"image":[{}{last}]}}"#, "255,".repeat(300_000));
        let check = |text: String| bytes.check(&Outline::read(text.into()).unwrap());
        assert_eq!(check(list("0")), Ok(()));
        let misfit = SchemaViolation {
            pointer: "/image/300000".into(),
            message: "`image[300000]` must be at most 255".into(),
        };
        assert_eq!(check(list("256")), Err(SchemaError::Violation(misfit)));
    }

    #[test]
    fn errors_of_a_long_list_under_several_shapes_are_not_all_collected() {
        let s = schema(json!({ "anyOf": [
            { "type": "string" },
            { "type": "array", "items": { "type": "string" } }
        ] }));
        let list = json!(vec![7; 300_000]);
        let (pointer, message) = misfit(&s, list);
        assert_eq!(
            (pointer.as_str(), message.as_str()),
            ("/0", "`0` must be text")
        );
    }

    #[test]
    fn a_recursive_schema_that_doubles_with_depth_ends_in_bounded_time() {
        let below = json!({ "properties": { "a": { "allOf": [{ "$ref": "#" }, { "$ref": "#" }, { "$ref": "#" }] } } });
        let mut value = json!(1);
        for _ in 0..100 {
            value = json!({ "a": value });
        }
        let s = schema(below);
        let checked = s.check(&outline(&value));
        assert!(matches!(checked, Ok(()) | Err(SchemaError::TooCostly)));
    }
}
